//! Bounds of measures, and the kinds of inputs with which a value was computed.

use serde::Serialize;

/// Kind of inputs of the op that made a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The engine's own inputs: the error includes those of earlier layers.
    Cumulative,
    /// The reference's inputs: the error is the op's own.
    Local,
}

impl Mode {
    /// Returns the phrase for the inputs in reports.
    pub fn inputs(self) -> &'static str {
        match self {
            Self::Cumulative => "errors of earlier ops included",
            Self::Local => "on the reference's own inputs",
        }
    }

    /// Returns the name in reports.
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
