//! Help for a faulty expression: the config keys and values behind its names.

use crate::config::Config;
use crate::eval::EvalError;
use crate::listing;
use crate::scalar::Scalar;
use crate::syntax::{Expr, ExprKind};

use super::Resolver;

impl Resolver<'_> {
    /// Adds where the dims of a failed expression come from.
    pub(super) fn explain(&self, fail: EvalError, expr: &Expr) -> EvalError {
        explain(fail, expr, self.config, &|name| {
            Some((self.dims.key(name)?.to_owned(), self.dims.get(name)?.ok()?.clone()))
        })
    }
}

/// Adds to a finding without help which names were read from which keys of the config, and
/// what stands there.
pub(super) fn explain(
    fail: EvalError,
    expr: &Expr,
    config: &Config,
    source: &dyn Fn(&str) -> Option<(String, Scalar)>,
) -> EvalError {
    let EvalError::Finding(mut finding) = fail else { return fail };
    if finding.help.is_none() {
        let mut names = Vec::new();
        names_of(expr, &mut names);
        let told = names.iter().filter_map(|name: &&str| {
            let (key, value) = source(name)?;
            let shown = listing::beginning(&value.to_string());
            Some(format!("`{name}` is {shown}, the key `{key}` of `{}`", config.path()))
        });
        let told: Vec<String> = told.take(3).collect();
        if !told.is_empty() {
            finding.help = Some(told.join("; "));
        }
    }
    EvalError::Finding(finding)
}

/// Names in an expression that may be dims.
fn names_of<'e>(expr: &'e Expr, names: &mut Vec<&'e str>) {
    expr.walk(&mut |expr| {
        if let ExprKind::Path(path) = &expr.kind
            && let [name] = path.as_slice()
            && !names.contains(&name.name.as_str())
        {
            names.push(&name.name);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_collected_once() {
        let text = crate::text::MappedText::whole("t", "a * b + [a for a in c][d] if e else f(a)");
        let expr = crate::parse::parse_expr(&text).unwrap();
        let mut names = Vec::new();
        names_of(&expr, &mut names);
        assert_eq!(names, ["e", "a", "b", "c", "d"]);
    }
}
