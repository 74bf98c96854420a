//! Classes of mutants and their outcomes.

use std::collections::BTreeSet;

use registry::dtype::Dtype;
use serde::Serialize;

use super::Blame;
use crate::fit::Strengths;
use crate::gate::dtype_name;

/// The name and version of the JSON form.
pub const SCHEMA: &str = "onboard-mutants/1";

/// Kinds of mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The epsilon of a norm.
    Epsilon,
    /// A scale, cap or limit.
    Number,
    /// An integer that is no shape.
    Integer,
    /// The reach of an attention.
    Window,
    /// A flag or a form of an op, a weight or a bias left out, an activation function.
    Form,
    /// Two inputs or two weights of equal shapes.
    Swap,
    /// A rotary table.
    Rope,
    /// The dtype or the order of a rounding.
    Rounding,
    /// A value of one projection, head or expert, or from a position on.
    Value,
    /// The content or the dtype of a state.
    State,
    /// The handling of slots.
    Slot,
}

impl Class {
    /// Every class, in the order in which reports list them.
    pub const ALL: [Self; 11] = [
        Self::Epsilon,
        Self::Number,
        Self::Integer,
        Self::Window,
        Self::Form,
        Self::Swap,
        Self::Rope,
        Self::Rounding,
        Self::Value,
        Self::State,
        Self::Slot,
    ];

    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Epsilon => "epsilon",
            Self::Number => "number",
            Self::Integer => "integer",
            Self::Window => "window",
            Self::Form => "form",
            Self::Swap => "swap",
            Self::Rope => "rope",
            Self::Rounding => "rounding",
            Self::Value => "value",
            Self::State => "state",
            Self::Slot => "slot",
        }
    }
}

/// Outcome of one mutant in one dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// A gate failed.
    Caught,
    /// The engine did not run it.
    Refused,
    /// Numbers changed, and every gate passed.
    Missed,
    /// No number changed, or f32 noise alone where only rounding was edited.
    Unreached,
}

/// A gate that came closest to catching a mutant.
#[derive(Debug, Clone, Serialize)]
pub struct Closest {
    /// The tap, state, log-probabilities or schedule.
    pub subject: String,
    /// The phase, the mode and the prompt.
    pub place: String,
    /// The measure.
    pub measure: String,
    /// Its value.
    pub value: f64,
    /// Its limit.
    pub limit: f64,
    /// Its value in the unchanged model.
    pub before: f64,
}

/// The result of one mutant in one dtype.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The mutant.
    pub mutant: String,
    /// Its class.
    pub class: Class,
    /// The dtype of the run.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// How it came out.
    pub fate: Fate,
    /// The tap, state or schedule that was named first, or the words of a refusal.
    pub first: Option<String>,
    /// True if that is the place of the mistake; none where nobody knows the place.
    pub right: Option<bool>,
    /// Places that would have been right.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub expected: BTreeSet<String>,
    /// The largest value of each measure; none for a refusal.
    pub strengths: Option<Strengths>,
    /// For a missed mutant: the gate that came closest.
    pub closest: Option<Closest>,
    /// For an unreached mutant: the likely reason.
    pub reach: Option<&'static str>,
    /// Its diagnosis, where one was asked for and the mutant was caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blame: Option<Blame>,
}

/// All results.
#[derive(Debug, Clone, Serialize)]
pub struct Book {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The spec.
    pub spec: String,
    /// The dump.
    pub reference: String,
    /// By mutant and dtype.
    pub outcomes: Vec<Outcome>,
}

impl Book {
    /// True if an f32 run missed a mutant.
    pub fn misses(&self) -> bool {
        self.outcomes.iter().any(|o| o.dtype == Dtype::F32 && o.fate == Fate::Missed)
    }

    /// Counts of mutants that a gate caught and whose place is known, and of those whose place was named first.
    pub fn places(&self) -> (usize, usize) {
        let known = self.outcomes.iter().filter_map(|o| o.right);
        known.fold((0, 0), |(all, right), is| (all + 1, right + usize::from(is)))
    }
}
