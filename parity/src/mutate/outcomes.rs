//! Classes of mutants and their outcomes.

use std::collections::BTreeSet;

use registry::dtype::Dtype;
use serde::Serialize;

use super::MutantDiagnosis;
use crate::fit::MeasureRatios;
use crate::gate::dtype_name;

/// Name and version of the JSON format.
pub const SCHEMA: &str = "onboard-mutants/1";

/// Class of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MistakeClass {
    /// Epsilon of a norm.
    Epsilon,
    /// Scale, cap or limit.
    Number,
    /// Integer that is not a shape.
    Integer,
    /// Window of an attention.
    Window,
    /// Flag or form of an op, a missing weight or bias, an activation function.
    Form,
    /// Two swapped inputs or weights of equal shape.
    Swap,
    /// Rotary table.
    Rope,
    /// Dtype or order of a rounding.
    Rounding,
    /// Value of one projection, head or expert, or from a position on.
    Value,
    /// Values at some positions alone.
    Place,
    /// Content or dtype of a state.
    State,
    /// Handling of slots.
    Slot,
}

impl MistakeClass {
    /// Every class, in the order of reports.
    pub const ALL: [Self; 12] = [
        Self::Epsilon,
        Self::Number,
        Self::Integer,
        Self::Window,
        Self::Form,
        Self::Swap,
        Self::Rope,
        Self::Rounding,
        Self::Value,
        Self::Place,
        Self::State,
        Self::Slot,
    ];

    /// Returns the name in reports.
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
            Self::Place => "place",
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
    /// The engine refused to run the mutant.
    Refused,
    /// Values changed, and every gate passed.
    Missed,
    /// No value changed, or only f32 noise if only rounding was edited.
    Unreached,
}

/// Gate that came closest to catching a mutant.
#[derive(Debug, Clone, Serialize)]
pub struct ClosestGate {
    /// The tap, state, log-probabilities or schedule.
    pub subject: String,
    /// The phase, the mode and the prompt.
    pub place: String,
    /// The measure.
    pub measure: String,
    /// Value of the measure.
    pub value: f64,
    /// Limit of the measure.
    pub limit: f64,
    /// Value in the unchanged model.
    pub before: f64,
}

/// Result of one mutant in one dtype.
#[derive(Debug, Clone, Serialize)]
pub struct MutantOutcome {
    /// The mutant.
    pub mutant: String,
    /// Class of the mutant.
    pub class: MistakeClass,
    /// The dtype of the run.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// Outcome of the run.
    pub fate: Fate,
    /// Tap, state or schedule that was named first, or the error text of a refusal.
    pub first: Option<String>,
    /// True if that is the place of the mistake; none if the place is unknown.
    pub right: Option<bool>,
    /// Places that would be correct.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub expected: BTreeSet<String>,
    /// The largest value of each measure; none for a refusal.
    pub strengths: Option<MeasureRatios>,
    /// For a missed mutant: the gate that came closest.
    pub closest: Option<ClosestGate>,
    /// For an unreached mutant: the likely reason.
    pub reach: Option<&'static str>,
    /// Diagnosis, if one was requested and the mutant was caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blame: Option<MutantDiagnosis>,
}

/// All results.
#[derive(Debug, Clone, Serialize)]
pub struct MutationReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The spec.
    pub spec: String,
    /// The dump.
    pub reference: String,
    /// Results by mutant and dtype.
    pub outcomes: Vec<MutantOutcome>,
}

impl MutationReport {
    /// True if an f32 run missed a mutant.
    pub fn misses(&self) -> bool {
        self.outcomes.iter().any(|o| o.dtype == Dtype::F32 && o.fate == Fate::Missed)
    }

    /// Returns the number of caught mutants with a known place, and of those whose place was named first.
    pub fn places(&self) -> (usize, usize) {
        let known = self.outcomes.iter().filter_map(|o| o.right);
        known.fold((0, 0), |(all, right), is| (all + 1, right + usize::from(is)))
    }
}
