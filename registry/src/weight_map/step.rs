//! The things that can happen to a tensor between disk and model.

/// One step. Most take each tensor by itself; those that join take all there are.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightStep {
    /// Swaps two axes.
    Transpose(usize, usize),
    /// Reads an axis from its end.
    Reverse(usize),
    /// Removes an axis of size one.
    Squeeze(usize),
    /// Adds an axis of size one.
    Unsqueeze(usize),
    /// Reads the same numbers in another shape.
    Reshape(Vec<usize>),
    /// Reorders the rows of each head (axis 0) from one rotary pairing to the other.
    PermuteHeads {
        /// The number of heads in axis 0.
        heads: usize,
        /// The pairing afterwards.
        to: HeadLayout,
    },
    /// One tensor becomes several.
    Split {
        /// The axis to cut.
        axis: usize,
        /// The sizes of the parts.
        sizes: SplitSizes,
    },
    /// One tensor becomes as many as the axis is long, without that axis.
    Unstack(usize),
    /// An axis and the one after it become one.
    Flatten(usize),
    /// An axis becomes several.
    Unflatten {
        /// The axis to unflatten.
        axis: usize,
        /// The new axes; one of them may be 0, which means the remaining size.
        sizes: Vec<usize>,
    },
    /// The first axis gets this many rows: cut off, or filled up with zeros.
    Resize(usize),
    /// Adds a number to every element, in f32.
    Add(f64),
    /// Multiplies every element, in f32.
    Mul(f64),
    /// Divides every element, in f32.
    Div(f64),
    /// Multiplies stretches of the first axis, each by its own number, in f32.
    MulRows(Vec<(usize, f64)>),
    /// Undoes `MulRows`.
    DivRows(Vec<(usize, f64)>),
    /// `-exp(x)`, in f32.
    NegExp,
    /// `ln(-x)`, in f32.
    LogNeg,
    /// Blocks of 4-bit numbers and their scales, two tensors of bytes, become numbers.
    Mxfp4,
    /// A step on one of several tensors.
    At(usize, Box<Self>),
    /// Runs of tensors become one each, along an axis they have.
    ConcatRuns {
        /// The axis to join along.
        axis: usize,
        /// The number of tensors in each run.
        runs: Vec<usize>,
    },
    /// Undoes `ConcatRuns`: each tensor is cut into parts of its own sizes.
    SplitRuns {
        /// The axis to cut.
        axis: usize,
        /// The parts of each tensor.
        sizes: Vec<Vec<usize>>,
    },
    /// Several tensors become one, along an axis they have.
    Concat(usize),
    /// Several tensors of one shape become one, along a new axis.
    Stack(usize),
}

/// The parts that an axis is cut into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitSizes {
    /// The number of equal parts.
    Equal(usize),
    /// The size of each part.
    Each(Vec<usize>),
}

/// The rows of a head that rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadLayout {
    /// Row `r` with row `r + dim / 2`.
    Half,
    /// Row `2r` with row `2r + 1`.
    Interleaved,
}

impl WeightStep {
    /// True if the step changes numbers, and does not only move them.
    pub fn computes(&self) -> bool {
        match self {
            Self::Add(_)
            | Self::Mul(_)
            | Self::Div(_)
            | Self::MulRows(_)
            | Self::DivRows(_)
            | Self::NegExp
            | Self::LogNeg
            | Self::Mxfp4 => true,
            Self::At(_, step) => step.computes(),
            _ => false,
        }
    }
}
