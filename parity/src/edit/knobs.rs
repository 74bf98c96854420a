//! Families of edits with one parameter to fit.

use registry::graph::{Graph, ValueId};
use registry::ops::Trait;
use registry::rope::RopeTable;
use registry::scalar::Scalar;

use super::frequencies::{stretch, theta};
use super::logit_op::LogitOp;
use super::number::{round_to, show, text};
use super::scope::{Suspects, kinds, maker_of, place, scopes};
use super::{Candidate, Change, Edit};

/// Family of edits with a factor, of which 1 changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Knob {
    pub(super) place: String,
    pub(super) target: KnobTarget,
}

/// Value that a factor multiplies.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum KnobTarget {
    /// An argument.
    Number { op: String, key: String, values: Vec<(usize, Scalar)> },
    /// All values of a list, or its first.
    List { op: String, key: String, values: Vec<(usize, Scalar)>, first: bool },
    /// Value of a rotary table.
    Table { rope: usize, table: Box<RopeTable>, knob: RopeKnob },
    /// Number of an op behind the logits, whose effect ends as the number grows. See [`bound`].
    Logits(LogitOp),
    /// Values themselves.
    Value { words: String, values: Vec<ValueId>, tapped: bool },
}

/// Value of a rotary table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RopeKnob {
    Theta,
    Factor,
    Attention,
    Lowest,
    LongTheta,
}

impl RopeKnob {
    pub(super) const ALL: [Self; 5] =
        [Self::Theta, Self::Factor, Self::Attention, Self::Lowest, Self::LongTheta];

    pub(super) fn applies(self, table: &RopeTable) -> bool {
        match self {
            Self::Theta => table.inv_freq.len() > 1,
            Self::LongTheta => table.long.is_some(),
            _ => true,
        }
    }

    fn scaled(self, table: &RopeTable, by: f64) -> RopeTable {
        let mut table = table.clone();
        match self {
            Self::Theta => stretch(&mut table.inv_freq, by as f32),
            Self::Factor => table.inv_freq.iter_mut().for_each(|x| *x /= by as f32),
            Self::Attention => table.attention_factor *= by,
            Self::Lowest => table.inv_freq.iter_mut().rev().take(1).for_each(|x| *x *= by as f32),
            Self::LongTheta => {
                if let Some(long) = &mut table.long {
                    stretch(&mut long.inv_freq, by as f32);
                }
            }
        }
        table
    }
}

/// Returns the bound of a factor: none of a factor 1, and a smaller one of a larger factor. What a bound of the form
/// `c * tanh(x / c)` changes grows with the inverse of its square.
fn bound(by: f64) -> f64 {
    UNIT / by.ln().max(1e-12).sqrt()
}

/// Returns the factor of a bound.
fn factor_of(bound: f64) -> f64 {
    (UNIT / bound).powi(2).exp()
}

/// Bound of the factor e.
const UNIT: f64 = 10.0;

impl Knob {
    /// Returns the edit of a factor.
    pub(crate) fn with_factor(&self, by: f64) -> Edit {
        let place = self.place.clone();
        let (words, change) = match &self.target {
            KnobTarget::Number { op, key, values } => {
                let new: Vec<(usize, Scalar)> = values
                    .iter()
                    .filter_map(|(n, value)| Some((*n, Scalar::Float(value.as_f64()? * by))))
                    .collect();
                let old = values.first().map_or_else(String::new, |(_, value)| text(value));
                let now = new.first().map_or_else(String::new, |(_, value)| text(value));
                let words = if values.iter().all(|(_, v)| *v == values[0].1) {
                    format!("`{key}` of `{op}` = {now} instead of {old}")
                } else {
                    format!("`{key}` of `{op}` x {}", show(by))
                };
                (words, Change::Argument { key: key.clone(), values: new })
            }
            KnobTarget::List { op, key, values, first } => {
                let what = if *first { "first number" } else { "numbers" };
                let words = format!("{what} of `{key}` of `{op}` x {}", show(by));
                let values =
                    values.iter().map(|(n, value)| (*n, scaled_list(value, *first, by))).collect();
                (words, Change::Argument { key: key.clone(), values })
            }
            KnobTarget::Table { rope, table, knob } => {
                let new = knob.scaled(table, by);
                let words = match (knob, theta(table)) {
                    (RopeKnob::Theta, Some(old)) => {
                        format!("rope theta = {} instead of {}", show(old * by), show(old))
                    }
                    (RopeKnob::Theta, None) => format!("rope theta x {}", show(by)),
                    (RopeKnob::Factor, _) => {
                        format!("rope positions divided by {} (a scaling factor)", show(by))
                    }
                    (RopeKnob::Attention, _) => format!(
                        "rope cos and sin x {} instead of {}",
                        show(new.attention_factor),
                        show(table.attention_factor)
                    ),
                    (RopeKnob::Lowest, _) => format!("rope lowest frequency x {}", show(by)),
                    (RopeKnob::LongTheta, _) => {
                        format!("rope theta of the table for long sequences x {}", show(by))
                    }
                };
                (words, Change::Table { rope: *rope, table: Box::new(new) })
            }
            KnobTarget::Logits(op) => return op.edit(bound(by)),
            KnobTarget::Value { words, values, tapped } => (
                format!("{words} x {}", show(by)),
                Change::Scale { values: values.clone(), by, tapped: *tapped },
            ),
        };
        Edit { words, place, change }
    }

    /// Returns factors near one that give a short value: a config says `10000`, not `9999.87`.
    pub(crate) fn round_factors(&self, by: f64) -> Vec<f64> {
        let old = match &self.target {
            KnobTarget::Number { values, .. } => {
                values.first().and_then(|(_, value)| value.as_f64())
            }
            KnobTarget::Logits(_) => {
                return (1..=4)
                    .map(|digits| factor_of(round_to(bound(by), digits)))
                    .filter(|x| (x / by - 1.0).abs() < 0.1)
                    .collect();
            }
            KnobTarget::Table { table, knob: RopeKnob::Theta, .. } => theta(table),
            KnobTarget::Table { table, knob: RopeKnob::Attention, .. } => {
                Some(table.attention_factor)
            }
            _ => Some(1.0),
        };
        let Some(old) = old.filter(|old| *old != 0.0) else { return vec![by] };
        let new = old * by;
        let roots = [1.0 / new, new * new, 1.0 / (new * new)];
        let mut all: Vec<f64> = (1..=4).map(|digits| round_to(new, digits) / old).collect();
        // Square roots and inverses of integers: 1 / sqrt(64).
        let forms: [fn(f64) -> f64; 3] = [|x| 1.0 / x, f64::sqrt, |x| x.powf(-0.5)];
        for (root, form) in roots.into_iter().zip(forms) {
            let integer = root.round();
            if integer >= 1.0 {
                all.push(form(integer) * new.signum() / old);
            }
        }
        all.retain(|x| (x / by - 1.0).abs() < 0.02 && *x != 1.0);
        all.sort_by(|a, b| (a / by - 1.0).abs().total_cmp(&(b / by - 1.0).abs()).reverse());
        all
    }
}

/// Returns factors on embeddings, on branches of the residual stream, and on the logits: multipliers that a
/// spec may lack.
pub(super) fn scales(graph: &Graph, suspects: &Suspects) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| node.op.is(Trait::FromTokens)) {
        let values: Vec<ValueId> =
            nodes.iter().filter_map(|n| graph.nodes[*n].outputs.first()).copied().collect();
        let readers = graph.nodes.iter().enumerate();
        let mut readers =
            readers.filter(|(_, node)| node.inputs.iter().any(|i| values.contains(i)));
        if suspects.has_any(&nodes) || readers.any(|(n, _)| suspects.first.contains(&n)) {
            for tapped in [false, true] {
                let words = format!("result of `{op}`");
                all.push(scale(words, place(graph, &nodes), values.clone(), tapped));
            }
        }
    }
    for (_, nodes) in kinds(graph, |node| node.op.is(Trait::Adds) && node.layer.is_some()) {
        for scope in scopes(graph, &nodes, suspects) {
            if scope.nodes.len() < 2 && nodes.len() > 1 {
                continue;
            }
            let branches = scope.nodes.iter().filter_map(|n| graph.nodes[*n].inputs.get(1));
            let values: Vec<ValueId> = branches.copied().collect();
            if values.iter().all(|value| maker_of(graph, *value).is_some()) && !values.is_empty() {
                let words = "branch of the residual stream".to_owned();
                all.push(scale(words, scope.place, values, false));
            }
        }
    }
    if let Some(output) = graph.output
        && maker_of(graph, output).is_some_and(|n| suspects.first.contains(&n))
    {
        // Behind the head's module, and inside it.
        for tapped in [false, true] {
            all.push(scale("logits".to_owned(), "the head".to_owned(), vec![output], tapped));
        }
    }
    all
}

/// Returns a factor on values.
fn scale(words: String, place: String, values: Vec<ValueId>, tapped: bool) -> Candidate {
    Candidate::Knob(Knob { place, target: KnobTarget::Value { words, values, tapped } })
}

/// Returns a list with its numbers other than 0 times a factor, or only the first of them.
fn scaled_list(value: &Scalar, first: bool, by: f64) -> Scalar {
    let Scalar::List(items) = value else { return value.clone() };
    let mut items = items.clone();
    let numbers = items.iter_mut().filter(|x| x.as_f64().is_some_and(|x| x != 0.0));
    for item in numbers.take(if first { 1 } else { usize::MAX }) {
        *item = Scalar::Float(item.as_f64().unwrap_or(0.0) * by);
    }
    Scalar::List(items)
}
