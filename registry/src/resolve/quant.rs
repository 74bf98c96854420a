//! The `quant:` section as data.

use super::FindingSet;
use super::rules::pattern;
use crate::eval::EvalError;
use crate::quant::QuantRules;
use crate::spec::Spec;
use crate::syntax::Ident;
use crate::weight_map::Pattern;

/// Resolves the section; faulty patterns are left out and reported.
pub(super) fn resolve(spec: &Spec, report: &mut FindingSet) -> QuantRules {
    let Some(decl) = &spec.quant else { return QuantRules::default() };
    QuantRules { keep: patterns(&decl.keep, report), together: patterns(&decl.together, report) }
}

/// Reads named patterns; faulty ones are left out and reported.
fn patterns(entries: &[(Ident, Ident)], report: &mut FindingSet) -> Vec<(String, Pattern)> {
    entries
        .iter()
        .filter_map(|(why, ident): &(Ident, Ident)| {
            let pattern = report.ok_or_report(pattern(ident).map_err(EvalError::from))?;
            Some((why.name.clone(), pattern))
        })
        .collect()
}
