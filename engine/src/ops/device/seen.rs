//! Arguments of the kernels of attention: the positions that rows see, and the rounding of scores.

use std::ops::Range;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::source::constant;
use crate::device::{DeviceBuffer, DeviceQueue, KernelArgument};
use crate::kernels::attention::{ScoreRounding, SoftmaxForm};
use crate::ops::device::scores::KERNELS;

/// The positions that the rows of a part see, as kernels take them.
#[derive(Clone, Copy)]
pub(super) struct SeenPositions {
    /// The address of two numbers for each row: the first position, and one past the last.
    pub(super) ranges: KernelArgument,
    /// The first position that any row sees.
    pub(super) base: u32,
    /// Positions from there to the last that any row sees.
    pub(super) span: usize,
}

/// Returns the first of the positions that any row sees, and their number.
pub(super) fn extent(seen: &[Range<usize>]) -> (usize, usize) {
    let base = seen.iter().map(|range| range.start).min().unwrap_or(0);
    let end = seen.iter().map(|range| range.end).max().unwrap_or(0);
    (base, end.saturating_sub(base))
}

impl SeenPositions {
    /// Copies the positions of all parts to the device. The buffer has to live as long as the others are used.
    pub(super) fn of_parts(
        queue: &DeviceQueue,
        parts: &[&[Range<usize>]],
    ) -> Result<(DeviceBuffer, Vec<Self>), Error> {
        let all = parts.iter().flat_map(|seen| *seen);
        let numbers: Vec<u32> =
            all.flat_map(|range| [range.start as u32, range.end as u32]).collect();
        let buffer = queue.upload(bytemuck::cast_slice(&numbers))?;
        let mut at = 0;
        let placed = parts.iter().map(|seen| {
            let (base, span) = extent(seen);
            let ranges = buffer.argument(at)?;
            at += 8 * seen.len();
            Ok(Self { ranges, base: base as u32, span })
        });
        let placed = placed.collect::<Result<_, Error>>()?;
        Ok((buffer, placed))
    }

    /// Returns the arguments of kernels.
    pub(super) fn arguments(&self) -> [KernelArgument; 3] {
        [self.ranges, self.base.into(), (self.span as u32).into()]
    }
}

/// Returns the arguments of scores to which queries add nothing by distance.
pub(super) fn no_relative() -> [KernelArgument; 3] {
    [None::<&DeviceBuffer>.into(), Dtype::F32.into(), 0.into()]
}

/// Returns the number in kernels of the place where weights are rounded.
pub(super) fn softmax_word(form: SoftmaxForm) -> u32 {
    const SOFTMAX_F32: u32 = constant(KERNELS, "SOFTMAX_F32");
    const SOFTMAX_ACTIVATION: u32 = constant(KERNELS, "SOFTMAX_ACTIVATION");
    const SOFTMAX_UNROUNDED: u32 = constant(KERNELS, "SOFTMAX_UNROUNDED");
    match form {
        SoftmaxForm::F32 => SOFTMAX_F32,
        SoftmaxForm::Activation => SOFTMAX_ACTIVATION,
        SoftmaxForm::Unrounded => SOFTMAX_UNROUNDED,
    }
}

/// Weights of keys by their scores alone, of all heads: no gates, and no keys that count more than others.
pub(super) struct PlainWeights<'a> {
    pub(super) scores: KernelArgument,
    pub(super) heads: KernelArgument,
    /// The first position seen of each row and the number of them, the base of these positions, and the most keys.
    pub(super) seen: [KernelArgument; 3],
    pub(super) softcap: Option<f32>,
    pub(super) sinks: Option<&'a DeviceBuffer>,
    pub(super) softmax: SoftmaxForm,
    pub(super) dtype: Dtype,
}

impl PlainWeights<'_> {
    /// Returns the arguments of `attend_weights`.
    pub(super) fn arguments(&self) -> Vec<KernelArgument> {
        let none = KernelArgument::from(None::<&DeviceBuffer>);
        let [ranges, base, span] = self.seen;
        vec![
            self.scores,
            self.heads,
            ranges,
            base,
            span,
            self.softcap.unwrap_or(0.0).into(),
            self.sinks.into(),
            Dtype::F32.into(),
            0.into(),
            false.into(),
            softmax_word(self.softmax).into(),
            self.dtype.into(),
            none,
            none,
            self.heads,
            0.into(),
        ]
    }
}

/// Returns the rounding of scores as kernels take it.
pub(super) fn rounding_argument(rounding: ScoreRounding) -> KernelArgument {
    const ROUNDED: u32 = constant(KERNELS, "SCORES_ROUNDED");
    const ONCE: u32 = constant(KERNELS, "SCORES_ONCE");
    const NONE: u32 = constant(KERNELS, "SCORES_F32");
    let number = match rounding {
        ScoreRounding::Rounded => ROUNDED,
        ScoreRounding::Once => ONCE,
        ScoreRounding::None => NONE,
    };
    number.into()
}
