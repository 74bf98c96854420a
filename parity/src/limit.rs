//! Parts of a model that a check leaves unproven although nothing differs.

use std::fmt;

use serde::Serialize;

/// Part of a model, or of its proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unproven {
    /// Ops and states of single steps.
    Decode,
    /// Ops on the reference's own inputs.
    Ops,
    /// States that steps keep.
    States,
    /// Whole runs, judged by the reference's ensemble.
    Runs,
    /// Tokens that the reference chose by itself.
    Greedy,
    /// Other chunks, slots and batches of the same tokens.
    Schedules,
    /// The `nextn` head.
    Head,
    /// The files of the dump.
    Dump,
}

impl Unproven {
    fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Ops => "ops",
            Self::States => "states",
            Self::Runs => "whole runs",
            Self::Greedy => "greedy tokens",
            Self::Schedules => "schedules",
            Self::Head => "the `nextn` head",
            Self::Dump => "the dump",
        }
    }
}

/// Part that was not proven, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// The part.
    pub kind: Unproven,
    /// The reason.
    pub why: String,
    /// Runs that did not prove the part; empty for all runs.
    pub runs: Vec<String>,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if !self.runs.is_empty() {
            write!(f, " in {}", self.runs.join(", "))?;
        }
        write!(f, " ({})", self.why)
    }
}
