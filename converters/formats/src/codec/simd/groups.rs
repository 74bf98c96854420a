//! Operations on groups that are encoded at once.

use lanes::Simd;

use crate::codec::layout::peak;

/// Encoder of a format, to be compiled for an instruction set. It must be inlined into its caller.
pub(in crate::codec) trait SimdEncoder {
    fn encode<S: Groups>(
        simd: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    );
}

impl<S: Simd> Groups for S {}

/// Operations on vectors whose lanes have a group each.
pub(in crate::codec) trait Groups: Simd {
    /// Writes element `i` of every group to `out[i]`, one group per lane. There are 1 to `LANES` groups;
    /// the last one fills the remaining lanes.
    #[inline(always)]
    fn columns<const N: usize>(self, groups: &[[f32; N]], out: &mut [Self::F; N]) {
        self.each_column(|lane| &groups[lane.min(groups.len() - 1)], |at, x| out[at] = x);
    }

    /// Returns [`peak`](crate::codec::layout::peak) of groups as in [`Self::columns`].
    #[inline(always)]
    fn peaks<const N: usize>(self, groups: &[[f32; N]]) -> [f32; 16] {
        let mut greatest = self.splat(0.0);
        let mut least = self.splat(0.0);
        self.each_column(
            |lane| &groups[lane.min(groups.len() - 1)],
            |_, x| {
                greatest = self.greater(x, greatest);
                least = self.lesser(x, least);
            },
        );
        let size = self.splat(0.0) - least;
        let mut peaks = self.array(self.select(self.lt(size, greatest), greatest, least));
        if self.any(self.and(self.le(size, greatest), self.le(greatest, size))) {
            let greatest = self.array(greatest);
            let size = self.array(size);
            for (lane, group) in groups.iter().enumerate() {
                if greatest[lane] == size[lane] {
                    // The first of equals is found by their order.
                    peaks[lane] = peak(group);
                }
            }
        }
        peaks
    }

    /// Returns [`squares`](crate::codec::layout::squares) of groups as in [`Self::columns`].
    #[inline(always)]
    fn squares<'a>(self, group: impl Fn(usize) -> &'a [f32]) -> [f32; 16] {
        let mut sum = self.splat(0.0);
        self.each_column(group, |_, x| sum = sum + x * x);
        self.array(sum)
    }

    /// Returns the value of largest magnitude, with its sign, and the magnitude, of each lane; the first
    /// of equals.
    #[inline(always)]
    fn peak(self, x: &[Self::F]) -> (Self::F, Self::F) {
        let mut max = self.splat(0.0);
        let mut magnitude = self.splat(0.0);
        for &x in x {
            let above = self.lt(magnitude, self.abs(x));
            magnitude = self.select(above, self.abs(x), magnitude);
            max = self.select(above, x, max);
        }
        (max, magnitude)
    }

    /// Returns [`squares`](crate::codec::layout::squares) of up to `LANES` rows.
    #[inline(always)]
    fn row_squares(self, numbers: &[f32], row: usize) -> [f32; 16] {
        let last = numbers.len() / row - 1;
        self.squares(|lane| &numbers[lane.min(last) * row..][..row])
    }

    /// Returns the columns of groups as in [`Self::columns`], and of their
    /// [`error_weights`](crate::codec::layout::error_weights).
    #[inline(always)]
    fn weighted_columns<const N: usize>(
        self,
        numbers: &[f32],
        importance: &[f32],
        variance: Self::F,
    ) -> ([Self::F; N], [Self::F; N]) {
        let mut x = [self.splat(0.0); N];
        let mut weights = [self.splat(0.0); N];
        self.columns(numbers.as_chunks().0, &mut x);
        self.columns(importance.as_chunks().0, &mut weights);
        for (weight, &x) in weights.iter_mut().zip(&x) {
            *weight = *weight * self.sqrt(variance + x * x);
        }
        (x, weights)
    }

    /// Computes [`squares`](crate::codec::layout::squares) of every block of `N` values.
    #[inline(always)]
    fn block_squares<const N: usize>(self, numbers: &[f32], out: &mut Vec<f32>) {
        out.clear();
        for blocks in numbers.as_chunks::<N>().0.chunks(Self::LANES) {
            let sums = self.squares(|lane| &blocks[lane.min(blocks.len() - 1)]);
            out.extend_from_slice(&sums[..blocks.len()]);
        }
    }

    /// Returns `nearest(x).clamp(least, greatest)` if no `x` is NaN or beyond 2^22: the sum itself then rounds
    /// exactly.
    #[inline(always)]
    fn small_level(self, x: Self::F, least: f32, greatest: f32) -> Self::F {
        let shift = self.splat(12_582_912.0);
        let level = x + shift - shift;
        self.lesser(self.greater(level, self.splat(least)), self.splat(greatest))
    }
}
