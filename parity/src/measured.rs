//! Differences of an op from the reference, as they are measured.

use registry::dtype::Dtype;

/// An op, or a few in a row between values that the dump has.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// The dtype of the run.
    pub dtype: Dtype,
    /// True if the reference keeps the output in 16 bits.
    pub exact: bool,
    /// Nodes of the graph between the recorded values and its output.
    pub span: usize,
}

/// Difference of an op's output from the reference's.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// By row.
    pub rows: Vec<Row>,
    /// Of f32: the mean scale against the reference's less 1, in units of what moved inputs make of it.
    pub gain: f64,
}

/// Difference of one row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row {
    /// Of f32: movement of the output for a unit in the last place of the inputs, as a share of its rms.
    pub noise: f64,
    /// Of f32: the largest difference, in units of the noise.
    pub times: f64,
    /// Of 16 bits: share of the elements that change when inputs move.
    pub changed: f64,
    /// Of 16 bits: share of the elements that are not the reference's, beyond those.
    pub flips: f64,
    /// Of 16 bits: mean square of the difference in units of rounding, beyond what moved inputs make.
    pub units: f64,
}
