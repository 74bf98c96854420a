//! Search for points with a scale per lane, or a neighbour per lane.
//!
//! A lane adds up the errors of its own candidate in the order of [`OneByOne`](super::search::OneByOne),
//! so the candidates have the same errors, and the first of the least is taken in both.

use super::lattice::{Lattice, LatticePlace, bits, level, levels};
use super::search::{CodebookSearch, ODD, PartValues, ScaleTrials, TRIALS};
use super::split::Split;
use super::splits;
use crate::codec::simd::Groups;

/// Vectorized search.
#[derive(Clone, Copy)]
pub(super) struct InLanes<S>(pub(super) S);

/// Returns a table of the values of levels, by the lowest bits of packed levels. Bits beyond the first
/// level select the same value again.
#[inline(always)]
fn table<S: Groups, const N: usize>(s: S, values: &[f32; 8]) -> S::F {
    s.load(&std::array::from_fn(|lane| values[level::<N>(lane as u32, 0)]))
}

impl<S: Groups> CodebookSearch for InLanes<S> {
    #[inline(always)]
    fn nearest<const N: usize>(
        self,
        list: &[u16],
        (x, weight): (&[f32; N], &[f32; N]),
        scale: f32,
        values: &[f32; 8],
    ) -> u16 {
        let s = self.0;
        let scaled = s.splat(scale) * table::<S, N>(s, values);
        let mut errors = [scaled; N];
        for ((errors, &x), &weight) in errors.iter_mut().zip(x).zip(weight) {
            let apart = scaled - s.splat(x);
            *errors = s.splat(weight) * apart * apart;
        }
        let lanes = s.load(&std::array::from_fn(|lane| lane as f32));
        let mut least = s.splat(f32::MAX);
        let mut place = s.splat(0.0);
        for (n, list) in list.chunks_exact(S::LANES).enumerate() {
            let points = s.widened(list);
            let mut error = s.lookup(errors[0], points);
            for (i, &errors) in errors.iter().enumerate().skip(1) {
                error = error + s.lookup(errors, s.shift_right(points, (bits(N) * i) as u32));
            }
            let better = s.lt(error, least);
            least = s.select(better, error, least);
            place = s.select(better, s.splat((n * S::LANES) as f32) + lanes, place);
        }
        // Lanes without an error below the maximum stay at the first place, as the reference does.
        let first = s.le(least, s.splat(s.least(least)));
        let bits = s.bits(first);
        let lane = bits.trailing_zeros() as usize;
        if list.len() == S::LANES {
            list[lane]
        } else if bits.is_power_of_two() {
            list[s.array(place)[lane] as usize]
        } else {
            list[s.least(s.select(first, place, s.splat(f32::MAX))) as usize]
        }
    }

    #[inline(always)]
    fn trials<const M: usize, const N: usize>(
        self,
        lattice: &Lattice<N>,
        numbers: &PartValues<M>,
        inverses: &[f32],
        all: &mut ScaleTrials,
    ) {
        let s = self.0;
        all.off = [0; TRIALS];
        let odd = table::<S, N>(s, &ODD);
        let half = s.splat(0.5);
        let one = s.splat(1.0);
        for from in (0..inverses.len()).step_by(S::LANES) {
            let count = S::LANES.min(inverses.len() - from);
            let inverse = s.load(&std::array::from_fn(|lane| inverses[from + lane.min(count - 1)]));
            let scales = s.array(one / inverse);
            let mut qx = s.splat(0.0);
            let mut q2 = s.splat(0.0);
            let weighted = numbers.x.as_chunks::<N>().0.iter();
            let weighted = weighted.zip(numbers.weight.as_chunks::<N>().0).enumerate();
            for (k, (x, weight)) in weighted {
                // Packed levels fit the mantissa.
                let mut code = s.splat(0.0);
                for (i, &x) in x.iter().enumerate() {
                    let level = half * (inverse * s.splat(x) - one);
                    let level = s.nearest_level(level, 0.0, (levels(N) - 1) as f32);
                    code = code + level * s.splat((1_u32 << (bits(N) * i)) as f32);
                }
                let codes = s.array(code);
                let root = &numbers.root.as_chunks::<N>().0[k];
                let mut picks = [0; 16];
                for lane in 0..count {
                    picks[lane] = match lattice.at(codes[lane] as u32) {
                        LatticePlace::Point(pick) => pick,
                        LatticePlace::Near(list) => {
                            all.off[from + lane] |= 1 << k;
                            lattice.pick(self.nearest(list, (x, root), scales[lane], &ODD))
                        }
                    };
                }
                all.picks[k][from..from + count].copy_from_slice(&picks[..count]);
                let picks = s.integers(&picks);
                for (i, (&x, &weight)) in x.iter().zip(weight).enumerate() {
                    let q = s.lookup(odd, s.shift_right(picks, (bits(N) * i) as u32));
                    qx = qx + s.splat(weight * x) * q;
                    q2 = q2 + s.splat(weight) * q * q;
                }
            }
            all.qx[from..from + count].copy_from_slice(&s.array(qx)[..count]);
            all.q2[from..from + count].copy_from_slice(&s.array(q2)[..count]);
        }
    }

    #[inline(always)]
    fn with_one_shift(
        self,
        parts: &[[f32; 32]],
        weights: &[[f32; 32]],
        out: &mut [Option<Split<32>>],
    ) {
        splits::with_one_shift(self.0, parts, weights, out);
    }

    #[inline(always)]
    fn with_two_shifts(
        self,
        parts: &[[f32; 16]],
        weights: &[[f32; 16]],
        out: &mut [Option<Split<16>>],
    ) {
        splits::with_two_shifts(self.0, parts, weights, out);
    }
}
