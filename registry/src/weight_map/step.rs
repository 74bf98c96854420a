//! The things that can happen to a tensor between disk and model.

/// One step. All but the last two take each tensor by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Swaps two axes.
    Transpose(usize, usize),
    /// Removes an axis of size one.
    Squeeze(usize),
    /// Adds an axis of size one.
    Unsqueeze(usize),
    /// Reads the same numbers in another shape.
    Reshape(Vec<usize>),
    /// Reorders the rows of each head (axis 0) from one rotary pairing to the other.
    PermuteHeads {
        /// How many heads axis 0 holds.
        heads: usize,
        /// The pairing afterwards.
        to: HeadLayout,
    },
    /// One tensor becomes several.
    Split {
        /// Along which axis.
        axis: usize,
        /// How much each gets.
        sizes: Sizes,
    },
    /// One tensor becomes as many as the axis is long, without that axis.
    Unstack(usize),
    /// Several tensors become one, along an axis they have.
    Concat(usize),
    /// Several tensors of one shape become one, along a new axis.
    Stack(usize),
}

/// How an axis is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sizes {
    /// Into this many equal parts.
    Equal(usize),
    /// Into parts of these sizes.
    Each(Vec<usize>),
}

/// Which rows of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadLayout {
    /// Row `r` with row `r + dim / 2`.
    Half,
    /// Row `2r` with row `2r + 1`.
    Interleaved,
}
