//! Names that a spec mentions: to find declarations it never uses, and the config keys it knows.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::diag::Finding;
use crate::spec::{DimSource, Spec};
use crate::syntax::{Expr, ExprKind, Ident, Program};

use super::FindingSet;

/// Names and config keys that occur anywhere in a spec, also in branches that this config
/// does not take.
#[derive(Debug, Default)]
pub(super) struct Mentions {
    names: BTreeSet<String>,
    calls: BTreeSet<String>,
    pub(super) keys: BTreeSet<String>,
}

pub(super) fn of(spec: &Spec) -> Mentions {
    let mut mentions = Mentions::default();
    for dim in spec.dims.values() {
        mentions.sources(&dim.sources);
    }
    for rope in spec.rope.values() {
        mentions.expr(&rope.dim);
        mentions.sources(&rope.theta);
        mentions.sources(&rope.parameters);
        rope.partial
            .iter()
            .chain(&rope.context)
            .chain(&rope.behind)
            .chain(&rope.axes)
            .for_each(|expr| mentions.expr(expr));
    }
    for part in spec.states.values().flat_map(|state| &state.parts) {
        part.shape.iter().for_each(|expr| mentions.expr(expr));
    }
    for function in spec.functions.values() {
        function
            .params
            .iter()
            .filter_map(|param| param.default.as_ref())
            .for_each(|expr| mentions.expr(expr));
        mentions.program(&function.program);
    }
    if let Some(layers) = &spec.layers {
        let numbers = layers.count.iter().chain(&layers.beside);
        numbers.chain(&layers.kind).for_each(|expr| mentions.expr(expr));
        layers.each.values().for_each(|each| mentions.expr(&each.value));
        layers.programs.values().for_each(|layer| mentions.program(&layer.program));
    }
    mentions.program(&spec.model);
    if let Some(nextn) = &spec.nextn {
        nextn.count.iter().chain(&nextn.kind).for_each(|expr| mentions.expr(expr));
        nextn.each.values().for_each(|each| mentions.expr(&each.value));
        nextn.programs().into_iter().for_each(|program| mentions.program(program));
    }
    spec.assumes.values().for_each(|entry| mentions.expr(&entry.value));
    spec.weights.iter().flat_map(|rule| &rule.steps).for_each(|step| mentions.expr(step));
    let image = &spec.image;
    let sizes = [&image.side, &image.block, &image.window, &image.skip];
    sizes.into_iter().flatten().for_each(|expr| mentions.expr(expr));
    if let Some(gguf) = &spec.gguf {
        for source in gguf.arch.iter().chain(&gguf.pre) {
            // A bare word is a text here, not a key.
            if let DimSource::Compute(expr) = source {
                mentions.expr(expr);
            }
        }
        let entries = gguf.metadata.values().chain(gguf.tensors.values());
        let entries = entries.chain(gguf.assumes.values());
        entries.for_each(|entry| mentions.expr(&entry.value));
        let weights = gguf.weights.iter().chain(&gguf.nextn);
        weights
            .flat_map(|weight| {
                let layers = weight.layers.iter().flat_map(|(layers, first)| [layers, first]);
                weight.steps.iter().chain(&weight.when).chain(layers)
            })
            .for_each(|expr| mentions.expr(expr));
    }
    mentions
}

impl Mentions {
    fn sources(&mut self, sources: &[DimSource]) {
        for source in sources {
            match source {
                DimSource::Key(key) => {
                    self.keys.insert(key.name.clone());
                }
                DimSource::Compute(expr) => self.expr(expr),
            }
        }
    }

    fn program(&mut self, program: &Program) {
        program.body.iter().for_each(|stmt| self.expr(&stmt.value));
        program.result.iter().for_each(|expr| self.expr(expr));
    }

    fn expr(&mut self, expr: &Expr) {
        expr.walk(&mut |expr| match &expr.kind {
            ExprKind::Path(names) => self.names.extend(names.first().map(|name| name.name.clone())),
            ExprKind::Call(name, args) => {
                self.calls.insert(name.name.clone());
                if matches!(name.name.as_str(), "config" | "has")
                    && let Some(ExprKind::Str(key)) = args.first().map(|arg| &arg.value.kind)
                {
                    self.keys.insert(key.clone());
                }
            }
            _ => {}
        });
    }
}

/// Dims that mean something without being named.
const KNOWN: &[&str] = &["hidden", "layers", "vocab", "input_vocab", "context", "patch", "output"];

/// Warns of what the spec's own file declares and nothing names. What is inherited, or comes
/// from a shared file, need not be used.
pub(super) fn unused(spec: &Spec, mentions: &Mentions, report: &mut FindingSet) {
    for dim in spec.dims.values() {
        let name = &dim.name;
        let used = KNOWN.contains(&name.name.as_str()) || mentions.names.contains(&name.name);
        warn_unused("dim", name, used, spec, report);
    }
    for rope in spec.rope.values() {
        let used = mentions.names.contains(&rope.name.name);
        warn_unused("rotary table", &rope.name, used, spec, report);
    }
    for state in spec.states.values() {
        let used = mentions.names.contains(&state.name.name);
        warn_unused("state", &state.name, used, spec, report);
    }
    for function in spec.functions.values() {
        let used = mentions.calls.contains(&function.name.name);
        warn_unused("function", &function.name, used, spec, report);
    }
}

/// Warns of a declaration of the spec's own file that is not used.
fn warn_unused(what: &str, name: &Ident, used: bool, spec: &Spec, report: &mut FindingSet) {
    let same_file = Arc::ptr_eq(&name.at.source, &spec.source) || *name.at.source == *spec.source;
    if same_file && !used {
        report.add(
            Finding::error(&name.at, format!("the {what} `{}` is never used", name.name))
                .warning()
                .help("remove it, or use it in a program"),
        );
    }
}
