//! Measured differences of an op from the reference.

use registry::dtype::Dtype;

/// Op, or a chain of ops between values that the dump has.
#[derive(Debug, Clone, Copy)]
pub struct OpChain {
    /// The dtype of the run.
    pub dtype: Dtype,
    /// True if the reference stores the output in 16 bits.
    pub exact: bool,
    /// Number of graph nodes between the recorded values and its output.
    pub span: usize,
    /// Number of terms of its longest sum.
    pub terms: usize,
    /// True if the reference rounds rows to few bits, so that a border between two codes moves a row by a step.
    pub coded: bool,
}

/// Difference of an op's output from the reference's.
#[derive(Debug, Clone, Default)]
pub struct OpError {
    /// Differences by row.
    pub rows: Vec<OpRowError>,
    /// In f32: mean scale relative to the reference's less 1, in units of the change that perturbed inputs
    /// cause.
    pub gain: f64,
}

/// Difference of one row.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpRowError {
    /// In f32: change of the output per unit in the last place of the inputs, relative to its rms.
    pub noise: f64,
    /// In f32: largest difference, in units of the noise.
    pub times: f64,
    /// In 16 bits: share of the elements that change when inputs are perturbed.
    pub changed: f64,
    /// In 16 bits: share of other elements that differ from the reference's.
    pub flips: f64,
    /// In 16 bits: mean square of the difference in rounding units, beyond the effect of perturbed inputs.
    pub units: f64,
}
