//! Steps without an op, and functions and tests that programs share.

use super::{GIVEN, Program};
use crate::graph::{Kind, Term};
use crate::number::Number;

impl Program<'_, '_> {
    /// A step that is no op, with what it reads.
    pub(super) fn unknown(&mut self, term: &Term) -> String {
        self.unknown += 1;
        for &input in &term.inputs {
            let source = self.writer.graph.term(input);
            if source.op == "cached" {
                self.value(source.inputs[0]);
            } else if !GIVEN.contains(&source.op.as_str()) {
                self.value(input);
            }
        }
        self.unknown -= 1;
        let reason =
            term.word("reason").map_or_else(|| format!("no op for `{}`", term.op), str::to_owned);
        self.fault(term, &reason)
    }

    /// Is true for steps over the axis before the last.
    pub(super) fn is_over_heads(&self, term: &Term) -> bool {
        let source = self.writer.graph.term(term.inputs[0]);
        let before_last = source.shape.len().checked_sub(2);
        before_last.is_some_and(|axis| term.attribute("axis") == Some(&Number::Int(axis as i64)))
    }

    /// Is true for a sum over heads in f32.
    pub(super) fn sums_heads(&self, term: &Term) -> bool {
        let source = self.writer.graph.term(term.inputs[0]);
        source.shape.len() == 2
            && term.kind == Kind::Float
            && term.attribute("axis") == Some(&Number::Int(0))
    }

    /// Name of a function of all layers with this body.
    pub(super) fn shared_function(&self, stem: &str, parameters: &str, body: &str) -> String {
        let mut functions = self.writer.shared.borrow_mut();
        let mut name = stem.to_owned();
        let mut number = 2;
        loop {
            let header = format!("{name}({parameters})");
            let known = functions.entry(header).or_insert_with(|| body.to_owned());
            if known == body {
                return name;
            }
            name = format!("{stem}_{number}");
            number += 1;
        }
    }

    /// A value that the step around it reads, for which it is no op.
    pub(super) fn given(&self, term: &Term) -> String {
        if self.unknown > 0 {
            // What a cache gives is read for a step without an op.
            return format!("hole_{}", term.op);
        }
        let reader = self.open.len().checked_sub(2).map(|place| self.open[place]);
        let reader = reader.map_or(term, |id| self.writer.graph.term(id));
        self.fault(reader, &format!("no op for `{}` of `{}`", reader.op, term.op))
    }
}
