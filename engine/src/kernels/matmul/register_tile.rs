//! Register tile of the innermost loop, with its place in the operands.

/// One register tile: `R` rows of `x` times `N` rows of the weight.
pub(super) struct Sweep<const N: usize> {
    /// The starts of the weight rows.
    pub(super) weights: [*const u8; N],
    /// The start of the packed panel.
    pub(super) x: *const u8,
    /// First step of this stretch, and the step after its last.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whole steps of a row.
    pub(super) steps: usize,
    /// Bytes of a row after its whole steps.
    pub(super) rest: usize,
    /// The buffer that holds `R * N` vectors of sums between stretches.
    pub(super) spilled: *mut f32,
    /// The output of the first row.
    pub(super) y: *mut f32,
    pub(super) y_stride: usize,
    /// The next address to prefetch, and the bytes by which each step advances it.
    pub(super) next: *const u8,
    pub(super) pace: usize,
    /// Results of a row to store, at most `N`.
    pub(super) columns: usize,
}
