//! Checks of a spec without a config: calls that no config can make right.
//!
//! Shapes, weights and dims need a `config.json`; [`crate::resolve`] checks those. This module
//! finds the mistakes of the text alone: unknown names, wrong arity, functions that call themselves, and
//! dtypes and kinds of states that do not exist.

use std::collections::BTreeSet;

use crate::diag::{Finding, Span};
use crate::dtype::Dtype;
use crate::eval;
use crate::graph::ScaleGranularity;
use crate::ops::{OpSet, ParamKind};
use crate::spec::{NextnDecl, Spec};
use crate::syntax::{Arg, Expr, ExprKind, Ident, Program};

/// Checks every call of every program, and every state.
pub fn lint(spec: &Spec, ops: &OpSet) -> Vec<Finding> {
    let mut lint = SpecLint { spec, ops, findings: Vec::new() };
    lint.program(&spec.model);
    for layer in spec.layers.iter().flat_map(|layers| layers.programs.values()) {
        lint.program(&layer.program);
    }
    for program in spec.nextn.iter().flat_map(NextnDecl::programs) {
        lint.program(program);
    }
    for function in spec.functions.values() {
        lint.program(&function.program);
    }
    lint.cycles();
    for state in spec.states.values() {
        let word = state.dtype.name.as_str();
        if word != "activation"
            && Dtype::parse(word).is_none()
            && ScaleGranularity::parse(word).is_none()
        {
            let finding = Finding::error(&state.dtype.at, format!("there is no dtype `{word}`"));
            lint.findings
                .push(finding.help(
                    "write `activation`, `f32`, `bf16`, `f16`, `f8_e4m3` or `f8_e4m3_heads`",
                ));
        }
        let kind = state.kind.name.as_str();
        if !matches!(kind, "attention" | "conv" | "recurrent" | "latent" | "index" | "pooled") {
            let message = format!("there is no kind of state `{}`", state.kind.name);
            lint.findings.push(
                Finding::error(&state.kind.at, message).help(
                    "known are `attention`, `conv`, `recurrent`, `latent`, `index`, `pooled`",
                ),
            );
        }
    }
    // A program that two kinds of layers share is walked twice.
    let mut seen = Vec::new();
    lint.findings.retain(|finding| {
        let new = !seen.contains(finding);
        if new {
            seen.push(finding.clone());
        }
        new
    });
    lint.findings
}

struct SpecLint<'a> {
    spec: &'a Spec,
    ops: &'a OpSet,
    findings: Vec<Finding>,
}

impl SpecLint<'_> {
    fn program(&mut self, program: &Program) {
        for call in calls_of(program) {
            self.call(call.0, call.1, &call.2.at);
        }
    }

    fn call(&mut self, name: &Ident, args: &[Arg], at: &Span) {
        let word = name.name.as_str();
        if let Some(function) = self.spec.functions.get(word) {
            let params: Vec<_> = function
                .params
                .iter()
                .map(|param| (param.name.name.as_str(), param.default.is_none()))
                .collect();
            self.arity(word, &params, false, args, at);
        } else if let Some(rule) = self.ops.get(word) {
            let params: Vec<_> = rule
                .signature()
                .params
                .iter()
                .map(|param| (param.name, param.default.is_none()))
                .collect();
            let many = rule.signature().params.iter().any(|param| param.kind == ParamKind::Values);
            self.arity(word, &params, many, args, at);
        } else if word != "layers" && !eval::FUNCTIONS.contains(&word) {
            let functions: Vec<&str> = self.spec.functions.keys().map(String::as_str).collect();
            self.findings.push(self.ops.unknown(name, &functions));
        }
    }

    fn arity(&mut self, word: &str, params: &[(&str, bool)], many: bool, args: &[Arg], at: &Span) {
        let positional = args.iter().filter(|arg| arg.name.is_none()).count();
        if positional > params.len() && !many {
            let message =
                format!("`{word}` takes {} arguments and is given {positional}", params.len());
            self.findings.push(Finding::error(at, message).help(usage_text(word, params)));
        }
        let named: BTreeSet<&str> = args
            .iter()
            .filter_map(|arg| arg.name.as_ref())
            .map(|name| name.name.as_str())
            .collect();
        for arg in args.iter().filter_map(|arg| arg.name.as_ref()) {
            if !params.iter().any(|(param, _)| *param == arg.name) {
                let message = format!("`{word}` has no argument `{}`", arg.name);
                self.findings.push(Finding::error(&arg.at, message).help(usage_text(word, params)));
            }
        }
        for (name, needed) in params.iter().skip(positional) {
            if *needed && !named.contains(name) && !many {
                let message = format!("`{word}` is not given its `{name}`");
                self.findings.push(Finding::error(at, message).help(usage_text(word, params)));
            }
        }
    }

    /// Functions that call themselves, through others or not: each once, at its own name.
    fn cycles(&mut self) {
        for (start, function) in &self.spec.functions {
            let mut reached = BTreeSet::new();
            let mut open = vec![start.as_str()];
            while let Some(at) = open.pop() {
                let Some(function) = self.spec.functions.get(at) else { continue };
                for (name, _, _) in calls_of(&function.program) {
                    if reached.insert(name.name.as_str()) {
                        open.push(name.name.as_str());
                    }
                }
            }
            if reached.contains(start.as_str()) {
                let message = format!("the function `{start}` calls itself");
                self.findings.push(
                    Finding::error(&function.name.at, message)
                        .help("programs are straight-line: layers repeat, functions do not"),
                );
            }
        }
    }
}

/// Returns every call of a program; the parser bounds the depth of expressions.
fn calls_of(program: &Program) -> Vec<(&Ident, &[Arg], &Expr)> {
    let mut calls = Vec::new();
    let statements = program.body.iter().map(|statement| &statement.value);
    for expr in statements.chain(&program.result) {
        walk(expr, &mut calls);
    }
    calls
}

fn walk<'e>(expr: &'e Expr, calls: &mut Vec<(&'e Ident, &'e [Arg], &'e Expr)>) {
    match &expr.kind {
        ExprKind::Call(name, args) => {
            calls.push((name, args, expr));
            for arg in args {
                walk(&arg.value, calls);
            }
        }
        ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) => {
            walk(a, calls);
            walk(b, calls);
        }
        ExprKind::Slice(a, from, to) => {
            walk(a, calls);
            for e in from.iter().chain(to) {
                walk(e, calls);
            }
        }
        ExprKind::Unary(_, a) => walk(a, calls),
        ExprKind::If { then, condition, otherwise } => {
            for e in [then, condition, otherwise] {
                walk(e, calls);
            }
        }
        ExprKind::List(items) => {
            for e in items {
                walk(e, calls);
            }
        }
        ExprKind::Comprehension { body, over, filter, variable: _ } => {
            walk(body, calls);
            walk(over, calls);
            if let Some(e) = filter {
                walk(e, calls);
            }
        }
        ExprKind::Null
        | ExprKind::Bool(_)
        | ExprKind::Int(_)
        | ExprKind::Float(_)
        | ExprKind::Str(_)
        | ExprKind::Path(_) => {}
    }
}

/// Shows a call with its parameters for the help of a finding.
fn usage_text(word: &str, params: &[(&str, bool)]) -> String {
    let shown: Vec<_> = params
        .iter()
        .map(|(name, needed)| if *needed { (*name).to_owned() } else { format!("{name}=...") })
        .collect();
    format!("it is `{word}({})`", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Library;

    #[test]
    fn built_in_specs_have_nothing_to_say() {
        let library = Library::builtin();
        for name in library.names() {
            let spec = library.load(name, &[]).unwrap();
            assert_eq!(lint(&spec, &OpSet::builtin()), [], "{name}");
        }
    }
}
