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
    let mut found = Mentions::default();
    for dim in spec.dims.values() {
        found.sources(&dim.sources);
    }
    for rope in spec.rope.values() {
        found.expr(&rope.dim);
        found.sources(&rope.theta);
        found.sources(&rope.parameters);
        rope.partial.iter().chain(&rope.context).for_each(|expr| found.expr(expr));
    }
    for part in spec.states.values().flat_map(|state| &state.parts) {
        part.shape.iter().for_each(|expr| found.expr(expr));
    }
    for function in spec.functions.values() {
        function
            .params
            .iter()
            .filter_map(|param| param.default.as_ref())
            .for_each(|expr| found.expr(expr));
        found.program(&function.program);
    }
    if let Some(layers) = &spec.layers {
        layers.count.iter().chain(&layers.kind).for_each(|expr| found.expr(expr));
        layers.each.values().for_each(|each| found.expr(&each.value));
        layers.programs.values().for_each(|layer| found.program(&layer.program));
    }
    found.program(&spec.model);
    if let Some(nextn) = &spec.nextn {
        nextn.count.iter().chain(&nextn.kind).for_each(|expr| found.expr(expr));
        nextn.each.values().for_each(|each| found.expr(&each.value));
        nextn.programs().into_iter().for_each(|program| found.program(program));
    }
    spec.assumes.values().for_each(|entry| found.expr(&entry.value));
    spec.weights.iter().flat_map(|rule| &rule.steps).for_each(|step| found.expr(step));
    if let Some(gguf) = &spec.gguf {
        for source in gguf.arch.iter().chain(&gguf.pre) {
            // A bare word is a text here, not a key.
            if let DimSource::Compute(expr) = source {
                found.expr(expr);
            }
        }
        let entries = gguf.metadata.values().chain(gguf.tensors.values());
        let entries = entries.chain(gguf.assumes.values());
        entries.for_each(|entry| found.expr(&entry.value));
        let weights = gguf.weights.iter().chain(&gguf.nextn);
        weights
            .flat_map(|weight| {
                let layers = weight.layers.iter().flat_map(|(layers, first)| [layers, first]);
                weight.steps.iter().chain(&weight.when).chain(layers)
            })
            .for_each(|expr| found.expr(expr));
    }
    found
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
const KNOWN: &[&str] = &["hidden", "layers", "vocab", "context"];

/// Warns of what the spec's own file declares and nothing names. What is inherited, or comes
/// from a shared file, need not be used.
pub(super) fn unused(spec: &Spec, mentions: &Mentions, report: &mut FindingSet) {
    let mut warn = |what: &str, name: &Ident, used: bool| {
        let own = Arc::ptr_eq(&name.at.source, &spec.source) || *name.at.source == *spec.source;
        if own && !used {
            report.add(
                Finding::error(&name.at, format!("the {what} `{}` is never used", name.name))
                    .warning()
                    .help("remove it, or use it in a program"),
            );
        }
    };
    for dim in spec.dims.values() {
        let name = &dim.name;
        warn(
            "dim",
            name,
            KNOWN.contains(&name.name.as_str()) || mentions.names.contains(&name.name),
        );
    }
    for rope in spec.rope.values() {
        warn("rotary table", &rope.name, mentions.names.contains(&rope.name.name));
    }
    for state in spec.states.values() {
        warn("state", &state.name, mentions.names.contains(&state.name.name));
    }
    for function in spec.functions.values() {
        warn("function", &function.name, mentions.calls.contains(&function.name.name));
    }
}
