//! Search for scale and points of formats with separate signs: IQ2_* and IQ3_*.

use super::lattice::{Lattice, LatticePlace, Pick, bits, level, levels};
use super::split::{self, Split};
use super::{BLOCK, larger, mean_square, signs};
use crate::codec::layout::error_weights;
use crate::codec::rounding::nearest;
use crate::codec::search::positive;
use crate::numbers::f32_to_f16;

/// Search parameters of one format.
pub(super) struct SearchParams<const N: usize> {
    pub(super) lattice: fn() -> &'static Lattice<N>,
    /// Factor of the mean square in the weights.
    pub(super) sigma: f32,
    /// Function that computes the weight of a value without importance, from the value and the mean square.
    pub(super) unweighted: fn(f32, f32) -> f32,
    /// True if the number of negative signs in eight is made even.
    pub(super) even: bool,
    /// Magnitude up to which a part counts as zero.
    pub(super) tiny: f32,
    /// Number of scales to try on either side of the first, and the step between them.
    pub(super) tries: i8,
    pub(super) step: f32,
    /// Points that are searched again with the best scale.
    pub(super) again: SecondSearch,
    /// Final factor of the block's scale.
    pub(super) gain: f32,
}

/// Points of a part that are searched again with the best scale.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SecondSearch {
    /// All points; the first scale is fitted.
    Always,
    /// All points, if one was not the nearest to its values.
    AllIfOff,
    /// Points that were not the nearest to their values.
    Off,
}

/// Search result for a block.
pub(super) struct IqBlock {
    /// f16 bits.
    pub(super) scale: u16,
    /// True if no part has a scale.
    pub(super) zero: bool,
    /// Results of the parts; the used length is the block's number of parts.
    pub(super) parts: [IqPart; 16],
}

/// Search result for a part of a block.
#[derive(Clone, Copy, Default)]
pub(super) struct IqPart {
    /// True if all values are zero or nearly so, and nothing was searched.
    pub(super) empty: bool,
    /// Scale level, in 0 to 15.
    pub(super) scale: u8,
    pub(super) picks: [Pick; 8],
    pub(super) signs: [u8; 4],
}

/// Values of a part, with the signs removed.
pub(super) struct PartValues<const M: usize> {
    pub(super) x: [f32; M],
    pub(super) weight: [f32; M],
    /// Square roots of the weights, used to compare neighbours.
    pub(super) root: [f32; M],
}

/// Most scales that a format tries.
pub(super) const TRIALS: usize = 32;

/// Results of trying several scales.
pub(super) struct ScaleTrials {
    /// Point of each group, by trial.
    pub(super) picks: [[Pick; TRIALS]; 8],
    /// Bit per group, set if the nearest levels are not a point.
    pub(super) off: [u8; TRIALS],
    /// Weighted sums of products of source and decoded values.
    pub(super) qx: [f32; TRIALS],
    /// Weighted sums of squared decoded values.
    pub(super) q2: [f32; TRIALS],
}

impl Default for ScaleTrials {
    fn default() -> Self {
        Self { picks: [[0; TRIALS]; 8], off: [0; TRIALS], qx: [0.0; TRIALS], q2: [0.0; TRIALS] }
    }
}

/// Searches of the formats, with one candidate after the other or several at once.
pub(super) trait CodebookSearch: Copy {
    /// Returns the neighbour of the least weighted error, the first of equals; the first of the list if no
    /// error is finite.
    fn nearest<const N: usize>(
        self,
        list: &[u16],
        group: (&[f32; N], &[f32; N]),
        scale: f32,
        values: &[f32; 8],
    ) -> u16;

    /// Finds the points for several scales, given as their inverses. `all` may have results of another search.
    fn trials<const M: usize, const N: usize>(
        self,
        lattice: &Lattice<N>,
        numbers: &PartValues<M>,
        inverses: &[f32],
        all: &mut ScaleTrials,
    );

    /// Splits parts whose values are shifted together.
    fn with_one_shift(
        self,
        parts: &[[f32; 32]],
        weights: &[[f32; 32]],
        out: &mut [Option<Split<32>>],
    );

    /// Splits parts whose halves have a shift each.
    fn with_two_shifts(
        self,
        parts: &[[f32; 16]],
        weights: &[[f32; 16]],
        out: &mut [Option<Split<16>>],
    );
}

/// Reference search.
#[derive(Clone, Copy)]
pub(super) struct OneByOne;

impl CodebookSearch for OneByOne {
    fn nearest<const N: usize>(
        self,
        list: &[u16],
        (x, weight): (&[f32; N], &[f32; N]),
        scale: f32,
        values: &[f32; 8],
    ) -> u16 {
        nearest_point(list, &errors(x, weight, scale, values))
    }

    fn trials<const M: usize, const N: usize>(
        self,
        lattice: &Lattice<N>,
        numbers: &PartValues<M>,
        inverses: &[f32],
        all: &mut ScaleTrials,
    ) {
        all.off = [0; TRIALS];
        for (trial, &inverse) in inverses.iter().enumerate() {
            let mut picks = [0; 8];
            for (k, to) in picks.iter_mut().enumerate().take(M / N) {
                let (pick, on) = point(self, lattice, numbers, k, inverse, 1.0 / inverse);
                *to = pick;
                all.picks[k][trial] = pick;
                all.off[trial] |= u8::from(!on) << k;
            }
            (all.qx[trial], all.q2[trial]) = sums::<M, N>(numbers, &picks);
        }
    }

    fn with_one_shift(
        self,
        parts: &[[f32; 32]],
        weights: &[[f32; 32]],
        out: &mut [Option<Split<32>>],
    ) {
        for ((x, weight), to) in parts.iter().zip(weights).zip(out) {
            *to = split::with_one_shift(x, weight);
        }
    }

    fn with_two_shifts(
        self,
        parts: &[[f32; 16]],
        weights: &[[f32; 16]],
        out: &mut [Option<Split<16>>],
    ) {
        for ((x, weight), to) in parts.iter().zip(weights).zip(out) {
            *to = split::with_two_shifts(x, weight);
        }
    }
}

/// Searches a block in parts of `M` values and groups of `N`.
#[inline(always)]
pub(super) fn block<const M: usize, const N: usize>(
    search: impl CodebookSearch,
    rule: &SearchParams<N>,
    x: &[f32; BLOCK],
    importance: Option<&[f32; BLOCK]>,
) -> IqBlock {
    let sigma = mean_square(x, rule.sigma);
    let mut parts = [IqPart::default(); 16];
    let mut scales = [0.0; 16];
    let mut max = 0.0;
    let mut trials = ScaleTrials::default();
    for (at, x) in x.as_chunks::<M>().0.iter().enumerate() {
        let importance = importance.map(|all| &all.as_chunks::<M>().0[at]);
        let weight = match importance {
            Some(importance) => error_weights(x, importance, sigma),
            None => x.map(|x| (rule.unweighted)(x, sigma)),
        };
        (parts[at], scales[at]) = part(search, rule, x, weight, &mut trials);
        if !parts[at].empty {
            max = larger(max, scales[at]);
        }
    }
    if max == 0.0 {
        return IqBlock { scale: 0, zero: true, parts };
    }
    let scale = max / 31.0;
    let inverse = 1.0 / scale;
    for (part, of_part) in parts.iter_mut().zip(scales) {
        part.scale = nearest(0.5 * (inverse * of_part - 1.0)).clamp(0, 15) as u8;
    }
    IqBlock { scale: f32_to_f16(scale * rule.gain), zero: false, parts }
}

/// Searches a part: its points and signs, and its scale.
#[inline(always)]
fn part<const M: usize, const N: usize>(
    search: impl CodebookSearch,
    rule: &SearchParams<N>,
    numbers: &[f32; M],
    weight: [f32; M],
    trials: &mut ScaleTrials,
) -> (IqPart, f32) {
    const EMPTY: (IqPart, f32) =
        (IqPart { empty: true, scale: 0, picks: [0; 8], signs: [0; 4] }, 0.0);
    let mut part = IqPart::default();
    let mut x = [0.0; M];
    let groups = x.as_chunks_mut::<8>().0.iter_mut().zip(numbers.as_chunks::<8>().0);
    for (k, (x, numbers)) in groups.enumerate() {
        (*x, part.signs[k]) = signs::split(numbers);
        if rule.even {
            part.signs[k] = signs::make_even(x, &weight.as_chunks().0[k], part.signs[k]) & 0x7f;
        }
    }
    let max = x[1..].iter().fold(x[0], |max, &x| larger(max, x));
    if max < rule.tiny {
        return EMPTY;
    }
    let top = (2 * levels(N) - 1) as f32;
    let (reach, mut scale) = if rule.again == SecondSearch::Always {
        let scale = positive(&x, &weight, levels(N) as i32 + 1, &mut [0; M]);
        (scale * levels(N) as f32, scale)
    } else {
        (max, max / top)
    };
    if reach <= 0.0 {
        return EMPTY;
    }
    let lattice = (rule.lattice)();
    let numbers = PartValues { x, weight, root: weight.map(f32::sqrt) };
    let mut best = 0.0;
    let mut off = if rule.again == SecondSearch::Off { 0 } else { u8::MAX };
    let mut inverses = [0.0; TRIALS];
    for (inverse, step) in inverses.iter_mut().zip(-rule.tries..=rule.tries) {
        *inverse = (top + f32::from(step) * rule.step) / reach;
    }
    let inverses = &inverses[..=2 * rule.tries as usize];
    search.trials::<M, N>(lattice, &numbers, inverses, trials);
    let mut chosen = None;
    let tried = trials.qx.iter().zip(&trials.q2).take(inverses.len());
    for (trial, (&qx, &q2)) in tried.enumerate() {
        if q2 > 0.0 && qx * qx > best * q2 {
            scale = qx / q2;
            best = scale * qx;
            chosen = Some(trial);
        }
    }
    if let Some(trial) = chosen {
        part.picks = std::array::from_fn(|group| trials.picks[group][trial]);
        off = trials.off[trial];
    }
    if rule.again == SecondSearch::Always {
        off = u8::MAX;
    }
    if off != 0 && scale > 0.0 {
        let all = rule.again != SecondSearch::Off;
        for k in (0..M / N).filter(|k| all || off >> k & 1 == 1) {
            (part.picks[k], _) = point(search, lattice, &numbers, k, 1.0 / scale, scale);
        }
        let (qx, q2) = sums::<M, N>(&numbers, &part.picks);
        if q2 > 0.0 {
            scale = qx / q2;
        }
    }
    if scale < 0.0 {
        // Scales have no sign: the signs are flipped instead.
        scale = -scale;
        let mask = if rule.even { 0x7f } else { 0xff };
        part.signs = part.signs.map(|signs| !signs & mask);
    }
    (part, scale)
}

/// Returns the point for group `k`, and true if its levels are the nearest ones.
#[inline(always)]
fn point<const M: usize, const N: usize>(
    search: impl CodebookSearch,
    lattice: &Lattice<N>,
    numbers: &PartValues<M>,
    k: usize,
    inverse: f32,
    scale: f32,
) -> (Pick, bool) {
    let x = &numbers.x.as_chunks::<N>().0[k];
    let mut code = 0;
    for (i, x) in x.iter().enumerate() {
        let level = nearest(0.5 * (inverse * x - 1.0)).clamp(0, levels(N) as i32 - 1);
        code |= (level as u32) << (bits(N) * i);
    }
    match lattice.at(code) {
        LatticePlace::Point(pick) => (pick, true),
        LatticePlace::Near(list) => {
            let root = &numbers.root.as_chunks::<N>().0[k];
            (lattice.pick(search.nearest(list, (x, root), scale, &ODD)), false)
        }
    }
}

/// The values of levels.
pub(super) const ODD: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// Returns the weighted squared error of each value at each level.
#[inline]
fn errors<const N: usize>(
    x: &[f32; N],
    weight: &[f32; N],
    scale: f32,
    values: &[f32; 8],
) -> [[f32; 8]; N] {
    let mut all = [[0.0; 8]; N];
    for i in 0..N {
        for level in 0..levels(N) {
            let apart = scale * values[level] - x[i];
            all[i][level] = weight[i] * apart * apart;
        }
    }
    all
}

/// Returns the point of the least error.
#[inline]
fn nearest_point<const N: usize>(list: &[u16], errors: &[[f32; 8]; N]) -> u16 {
    let mut nearest = list[0];
    let mut least = f32::MAX;
    for &point in list {
        let error = (0..N).fold(0.0, |sum, i| sum + errors[i][level::<N>(point.into(), i)]);
        if error < least {
            nearest = point;
            least = error;
        }
    }
    nearest
}

fn sums<const M: usize, const N: usize>(numbers: &PartValues<M>, picks: &[Pick; 8]) -> (f32, f32) {
    let mut qx = 0.0;
    let mut q2 = 0.0;
    for i in 0..M {
        let q = ODD[level::<N>(picks[i / N], i % N)];
        qx += numbers.weight[i] * numbers.x[i] * q;
        q2 += numbers.weight[i] * q * q;
    }
    (qx, q2)
}
