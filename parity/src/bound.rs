//! Bounds, and the inputs with which a value was computed.

use serde::Serialize;

/// Inputs of the op that made a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Its own inputs: errors of earlier layers are part of the error.
    Cumulative,
    /// The reference's inputs: an error is this op's own.
    Local,
}

impl Mode {
    /// The phrase in reports of what reaches the op.
    pub fn inputs(self) -> &'static str {
        match self {
            Self::Cumulative => "errors of earlier ops included",
            Self::Local => "on the reference's own inputs",
        }
    }

    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cumulative => "cumulative",
            Self::Local => "local",
        }
    }
}

/// A measure with its limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// `max`, `p50`, `kl.mean`, ...
    pub measure: &'static str,
    /// The value.
    pub value: f64,
    /// The limit.
    pub limit: f64,
}

impl Bound {
    /// Returns true if the value is within the limit; NaN is not.
    pub fn holds(&self) -> bool {
        self.value <= self.limit
    }
}
