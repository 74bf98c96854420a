//! Outcome of a conversion.

use std::path::PathBuf;

/// Outcome of a conversion.
///
/// The files are those of the plan, or of its shard, in order, without the files beside them such as a config. A conversion that
/// only plans lists the files that it would write. The divergence is measured on the written files, if one was to be met.
///
/// ```
/// use onboard_converter::ConversionOutcome;
///
/// let outcome = ConversionOutcome::default();
/// assert!(outcome.files.is_empty() && outcome.divergence.is_none());
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConversionOutcome {
    /// Files of weights.
    pub files: Vec<PathBuf>,
    /// Mean divergence from the reference in nats.
    pub divergence: Option<f64>,
}
