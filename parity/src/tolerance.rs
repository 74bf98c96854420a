//! Every bound that a check applies, in one place, each with its reason.
//!
//! All bounds of a gate hold together (AND): a large median cannot hide behind
//! a small maximum, nor a single bad position behind a good mean. No bound is
//! set per model; what differs between models is the noise floor, and that is
//! measured by the reference itself.

use registry::dtype::Dtype;

use crate::gate::{Mode, Subject};
use crate::metrics::{Spread, TensorError};

/// Largest `|Δlogprob|` of an f32 run. Two f32 implementations differ in the order of
/// additions only: about 1e-6 on a tiny model, 1e-5 on a deep one. The smallest real
/// mistake seen (one epsilon of 1e-6 for 1e-5) moves a tiny model by more than this.
pub const F32_LOGPROB: f64 = 1e-4;

/// The same for a model that turns rounding into more than usual: `mean` is how far the
/// reference's own run in `dtype` is from its f32 run. Two f32 runs are apart by some 2.3 times
/// what the units of rounding make of that, and by 14 times their mean at most (a random hybrid
/// of shared blocks, whose bf16 run is off by 0.28 nats in the mean).
pub fn f32_logprob(dtype: Dtype, mean: f64) -> f64 {
    const PEAK: f64 = 64.0;
    let noise = PEAK * mean * roundoff(Dtype::F32) / roundoff(dtype);
    noise.clamp(F32_LOGPROB, F32_LOGPROB_MOST)
}

/// The same where the reference says what rounding is worth to it: by so many nats it moves when
/// its weights move by a unit in the last place. Implementations round between weights too: on random
/// hybrids they are apart by 0.6 to 2.4 times that. A reference that moves by 5.4e-3 nats
/// (a mixture, 150 tokens) is itself 4.0e-3 from its f64 run.
pub fn f32_logprob_shaken(nats: f64) -> f64 {
    /// What no measurement excuses.
    const MOST: f64 = 1e-2;
    (3.0 * nats).clamp(F32_LOGPROB, MOST)
}

/// No sensitivity excuses more.
const F32_LOGPROB_MOST: f64 = 5e-4;

/// Largest `|Δ| / rms` of a tap or state of an f32 run, errors of earlier layers included.
pub const F32_CUMULATIVE: f64 = 1e-4;

/// The same, against the rms of the element's own row.
pub const F32_CUMULATIVE_ROW: f64 = 3e-4;

/// Largest `|Δ| / rms` of a tap of an f32 run whose inputs are the reference's own: what one
/// op's order of additions explains (a sum of 4096 products: about 2e-6 of its rms), and small outputs
/// of long sums up to 1.2e-5, which were seen in 3 of 525 checkpoints drawn at random.
pub const F32_LOCAL: f64 = 1.5e-5;

/// The same, against the rms of the element's own row.
pub const F32_LOCAL_ROW: f64 = 4.5e-5;

/// Most that an op may scale its output, in f32, on the reference's inputs. Rounding is
/// random and averages out, so this sees an epsilon of 1e-5 for 1e-6 (4.5e-6 where the
/// mean square is 1), far below what one element shows.
pub const F32_LOCAL_GAIN: f64 = 1e-6;

/// Of a run that rounds rows to codes of 8 bits: most that a row may differ, as a share of its rms, on
/// the reference's own inputs where one of the numbers that it follows from lies at the border of
/// two codes. A step is a 16th of a number of e4m3, and a 127th of the largest of a row of whole
/// numbers; the largest of a row is some 3 times its rms, and weights differ by as much.
pub const F32_FLIPPED: f64 = 0.1;

/// The same where errors add up: behind such a number all codes of later rows may be others, and
/// only log-probabilities say whether the whole is right.
pub const F32_FLIPPED_BEFORE: f64 = 1.0;

/// How much more a recurrent state of an f32 run may differ than a tap. A reference that computes
/// a prefill in chunks, by a triangular solve, is itself up to 2e-4 of the rms from its own f64 run
/// on tiny random gated delta nets. A state kept in f16 is off by 1e-3, and its numbers show it besides.
pub const F32_RECURRENT: f64 = 10.0;

/// How far apart, as a share of the rms, a reference's prefill and its decode steps may leave a
/// recurrent state before the steps are not believed: several times what chunks explain (2e-4), and
/// less than what a bound that only one of the two applies makes of it (1e-1).
pub const REFERENCE_STATE: f64 = 2e-3;

/// The same for a tap that is computed from such a state, with no other tap between: a norm of a
/// small row shows it (1.0e-5 of the rms on a random hybrid).
pub const F32_BEHIND_RECURRENT: f64 = 3.0;

/// A model whose log-probabilities may be this far off is one whose taps are too: one that was moved
/// by 5.4e-3 nats by a unit in the last place was 1.6e-4 of the rms off at a tap, with no op off.
pub const F32_FELT: f64 = 5e-4;

/// How much more its taps may differ where errors add up.
pub const F32_FELT_BY_TAPS: f64 = 3.0;

/// How much more an op of it may differ on the reference's own inputs, given the bound on its
/// log-probabilities: several roundings lie between two taps, and what multiplies those of weights
/// multiplies these (logits of 50 in a softmax: 1.3e-5 of the rms behind attention; a norm of keys: 1.4e-5).
pub fn felt_by_ops(bound: f64) -> f64 {
    (bound / F32_LOGPROB).clamp(1.0, F32_FELT_BY_TAPS)
}

/// How many times as much an op may be given for what its inputs' rounding is worth to it.
pub const CONDITION_MOST: f64 = 4.0;

/// What an op may be off whose output moves by `worth` when its inputs move by a unit in the last place. Its own
/// sums in f32 are of dozens of roundings; in 16 bits its inputs' are most of them.
pub fn condition(dtype: Dtype, worth: f64) -> f64 {
    match dtype {
        Dtype::F32 => 4.0 * worth,
        _ => 1.5 * worth,
    }
}

/// Share of an op's elements that are unequal to the reference's, of those that f32 rounding leaves alone, from which the
/// op is another one. Over 184 references of 169 families in bf16 and f16, 8502 of 9090 kinds of taps and states were
/// equal in all elements, and where an op was right the median place had at most 0.093 unequal; a norm that rounds
/// before its weight instead of after, or rotary tables of another dtype, change 0.16 to 0.7.
pub const EXACT_SHARE: f64 = 0.125;

/// Fewest elements of all places of an op from which a share says something.
pub const EXACT_LEAST: usize = 64;

/// One place in so many has to be unequal, and two at least. One flipped rounding before a softmax may change the rest of
/// a row, in one place: 5 of 9090 kinds had one such.
pub const EXACT_PLACES: usize = 8;

/// Units in the last place of f32 by which inputs are moved to see which elements depend on rounding in f32: the errors of
/// a sum of some hundred products.
pub const EXACT_UNITS: u32 = 8;

/// How often they are moved.
pub const EXACT_SHAKES: u64 = 2;

/// How far a schedule may move an f32 log-probability of the same engine.
pub const F32_SCHEDULE: f64 = 5e-5;

/// How far a schedule may move a log-probability of an engine whose sums depend on how it is fed; `noise` is how far
/// its log-probabilities are from the reference's, and `scale` is the rms of its logits. Each of two runs may be
/// off by its noise, and the sequences of schedules are others than the prompts that it was measured on.
pub fn schedule(dtype: Dtype, scale: f64, noise: Option<f64>) -> f64 {
    match (dtype, noise) {
        (Dtype::F32, noise) => F32_SCHEDULE.max(4.0 * noise.unwrap_or(0.0)),
        (_, Some(noise)) => 2.0 * roundoff(dtype) * scale + 4.0 * noise,
        (_, None) => 24.0 * roundoff(dtype) * scale,
    }
}

/// How close two scores of a router have to be, as a share of how far they are apart, for rounding to
/// explain that the other was chosen. On the reference's inputs a few units in the last place;
/// with errors of earlier layers what a deep 16-bit model shows. That is wide, but the router's
/// logits have a gate of their own.
pub fn router(dtype: Dtype, mode: Mode) -> f64 {
    match (dtype, mode) {
        (Dtype::F32, Mode::Local) => 1e-5,
        (Dtype::F32, Mode::Cumulative) => 1e-4,
        (_, Mode::Local) => 4.0 * roundoff(dtype),
        (_, Mode::Cumulative) => 32.0 * roundoff(dtype),
    }
}

/// How many of so many choices rounding explains, each of them close. Honest runs of 16 bits flipped at
/// most one in 250 on the reference's inputs and one in 70 behind errors of earlier layers; the rest is
/// room for models deeper than those. A router that does not see its input agrees as seldom as chance.
pub fn flips(choices: usize, mode: Mode) -> usize {
    match mode {
        Mode::Local => choices / 10 + 2,
        Mode::Cumulative => choices / 4 + 2,
    }
}

/// Fewer numbers than this say little of where most of them lie.
const FEW: usize = 64;

/// And fewer than this nothing of how far a run may be off.
const HANDFUL: usize = 8;

/// One gate in so many may be beyond its bound by chance.
pub const BY_CHANCE: usize = 40;

/// How many times its bound a gate may be, if it is one of those. Small tensors behind many layers (three numbers
/// a row, of scans and norms) were up to 1.9 times beyond it in 7 of 134 checkpoints nobody prepared, whose f32 runs
/// agreed, and a scale 1.3 times.
pub fn excess(dtype: Dtype, mode: Mode, subject: &Subject, measure: &str) -> Option<f64> {
    let tap = matches!(subject, Subject::Tap { .. });
    match (dtype, mode) {
        (Dtype::F32, _) if *subject == Subject::Logprobs => None,
        // Few rows have a median that luck puts; their largest is what is asked for.
        _ if *subject == Subject::Logprobs => {
            ["p50", "p90", "kl.mean"].contains(&measure).then_some(1.25)
        }
        (Dtype::F32, Mode::Cumulative) => Some(1.5),
        (Dtype::F32, Mode::Local) => None,
        (_, Mode::Cumulative) => Some(2.0),
        (_, Mode::Local) => (tap && measure == "gain").then_some(1.4),
    }
}

/// Fewest numbers (not 0) from which a narrower grid can be told: by chance, all of n
/// f16 numbers lie on the bf16 grid once in 8^n.
pub const GRID_COUNT: usize = 12;

/// What one measure may be at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Of the median.
    pub p50: f64,
    /// Of the 90th percentile.
    pub p90: f64,
    /// Of the 99th percentile.
    pub p99: f64,
    /// Of the largest.
    pub max: f64,
    /// Of the largest, against the rms of its own row.
    pub row: f64,
    /// Of `|gain|`.
    pub gain: f64,
}

impl Bounds {
    /// Bounds nothing.
    pub const NONE: Self = Self {
        p50: f64::INFINITY,
        p90: f64::INFINITY,
        p99: f64::INFINITY,
        max: f64::INFINITY,
        row: f64::INFINITY,
        gain: f64::INFINITY,
    };

    /// A tap or state of an f32 run, errors of earlier layers included.
    pub const fn f32_cumulative() -> Self {
        Self { max: F32_CUMULATIVE, row: F32_CUMULATIVE_ROW, ..Self::NONE }
    }

    /// A tap or state of an f32 run on the reference's own inputs.
    pub const fn f32_local() -> Self {
        Self { max: F32_LOCAL, row: F32_LOCAL_ROW, gain: F32_LOCAL_GAIN, ..Self::NONE }
    }

    /// So many times as wide, of what f32 runs are judged by.
    #[must_use]
    pub fn widened(self, times: f64) -> Self {
        Self { max: self.max * times, row: self.row * times, gain: self.gain * times, ..self }
    }

    /// The same of so many numbers, errors of earlier layers included: a handful may all be small beside what they were summed of.
    #[must_use]
    pub fn of_handful(self, count: usize) -> Self {
        if count < HANDFUL { self.widened(4.0) } else { self }
    }

    /// The same of so many numbers: few average less of their rounding out.
    #[must_use]
    pub fn of_few(self, count: usize) -> Self {
        Self { gain: self.gain * (1.0 + 4.0 / (count.max(1) as f64).sqrt()), ..self }
    }

    /// A tap or state of a 16-bit run on the reference's own 16-bit inputs, against its
    /// 16-bit output: a few units in the last place. More than one, because between two taps
    /// lie several roundings, and one flipped rounding before a sum moves the sum's result. One
    /// unit of a number that is 2.6 times the rms (1 in 100 is) is 5.2 u of the rms.
    pub fn local(dtype: Dtype, reference: &TensorError) -> Self {
        let u = roundoff(dtype);
        let peak = (reference.peak / reference.rms).max(1.0);
        let count = reference.spread.count.max(1) as f64;
        Self {
            p50: 0.5 * u,
            p90: 3.0 * u,
            p99: 6.0 * u,
            max: 2.0 * u * peak + 4.0 * u,
            row: f64::INFINITY,
            // Random roundings average out, to three deviations since a check has hundreds of these
            // gates; a scale that was rounded, or was not, remains.
            gain: u / 8.0 + 3.0 * u / count.sqrt(),
        }
    }

    /// A tap or state of a 16-bit run against the f32 run, given what the reference's own
    /// 16-bit run shows (`floor`), measured alike.
    ///
    /// Two honest 16-bit runs are two draws of the same noise. Their medians agree within a
    /// few percent and their maxima within a factor of two once there are many rows; with few
    /// rows (errors within a row are not independent) either may be luckier. To each bound
    /// comes a share of a unit in the last place, for where the reference happens to be exact.
    pub fn noise(dtype: Dtype, floor: &TensorError) -> Self {
        let u = roundoff(dtype);
        let Spread { count, mut p50, mut p90, p99, max, .. } = floor.spread;
        if count < FEW {
            // The middle of a handful of numbers is where luck puts it; the largest is steadier.
            (p50, p90) = (p50.max(max / 4.0), p90.max(max / 2.0));
        }
        // Of less than that nothing but luck is left: one number of one head in one step.
        let luck = if count < HANDFUL { 32.0 * u / (count.max(1) as f64).sqrt() } else { 0.0 };
        // A tap of one number a row has as few numbers as rows: two medians of a dozen differ.
        let rows = floor.rows.len().max(1);
        let few = if count == rows { 2.0 } else { 1.0 };
        let slack = 1.0 + few / (rows as f64).sqrt();
        let peak = (floor.peak / floor.rms).max(1.0);
        let row = floor.rows.iter().copied().fold(0.0, f64::max);
        Self {
            p50: 1.25 * slack * p50 + 0.25 * u + luck,
            p90: 1.25 * slack * p90 + 0.5 * u + luck,
            p99: 1.5 * slack * p99 + u + luck,
            max: 2.0 * slack * max + u * peak + luck,
            row: 2.5 * slack * row + 2.0 * u * peak + luck,
            gain: f64::INFINITY,
        }
    }

    /// Log-probabilities of a 16-bit run, given the reference's own 16-bit run. `scale` is the
    /// rms of the logits, whose own rounding is the least that can be expected.
    pub fn noise_logprobs(dtype: Dtype, floor: &Spread, rows: usize, scale: f64) -> Self {
        let u = roundoff(dtype) * scale;
        let slack = luck_of_rows(rows);
        Self {
            p50: 1.25 * slack * floor.p50 + 0.25 * u,
            p90: 1.25 * slack * floor.p90 + 0.5 * u,
            p99: 1.5 * slack * floor.p99 + u,
            max: 2.0 * slack * floor.max + 2.0 * u,
            ..Self::NONE
        }
    }
}

/// How much luckier the reference may have been in so many rows of log-probabilities. A few rows of one prompt are
/// no independent draws: what rounding did to a state is in all that follow.
fn luck_of_rows(rows: usize) -> f64 {
    let each = if rows < HANDFUL { 2.0 } else { 1.0 };
    1.0 + each / (rows.max(1) as f64).sqrt()
}

/// Bounds of the mean and the largest divergence of a 16-bit run. It grows with the square of
/// the error, so its factors are the squares of those above. The reference's errors may all
/// lie along one direction that divergence does not see (a shift of every logit): errors as
/// large as those that `deltas` allows explain half their square, and the more rows there are
/// the less they may.
pub fn noise_kl(
    dtype: Dtype,
    floor: &Spread,
    deltas: &Bounds,
    rows: usize,
    scale: f64,
) -> (f64, f64) {
    let u = roundoff(dtype) * scale;
    let slack = luck_of_rows(rows);
    let rows = rows.max(1) as f64;
    let luck = 0.5 * deltas.p90 * deltas.p90 / rows;
    (
        1.5 * slack * slack * floor.mean + 0.5 * u * u + luck + F32_KL,
        4.0 * slack * slack * floor.max + 2.0 * u * u + luck + F32_KL,
    )
}

/// Divergence that says nothing: the last place of an f32 log-probability between 4 and 8.
const F32_KL: f64 = 4.8e-7;

/// Half the distance between 1 and the next number: what one rounding moves at most.
pub fn roundoff(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2.0_f64.powi(-24),
        Dtype::Bf16 => 2.0_f64.powi(-8),
        Dtype::F16 => 2.0_f64.powi(-11),
    }
}

/// Bits of the mantissa that a dtype stores.
pub fn stored_bits(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 23,
        Dtype::Bf16 => 7,
        Dtype::F16 => 10,
    }
}
