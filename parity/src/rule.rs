//! The rule by which a check judges, and every number in it.
//!
//! **Ops by themselves.** An op gets the reference's own inputs and states. Its output may differ from the reference's
//! by what rounding in f32 explains, and by nothing else. How much that is, is measured on the op: its inputs are moved
//! by a unit in the last place of f32, and its output moves by its *noise*. In f32 an output may be [`OP`] times its
//! noise away. In 16 bits it has to be the reference's bit for bit, but for elements that the noise carries over a
//! rounding: the share of the unequal elements of a row beyond those that move is at most [`FLIPS`].
//!
//! **Whole runs.** A run may be [`FACTOR`] times as far from the f32 reference as the farthest member of an ensemble of
//! the reference, row by row. Members are runs under changes that are none in exact arithmetic.
//! The numbers are fitted in `docs/proof.md`, where a table of honest and broken runs stands behind each.

use registry::dtype::Dtype;

use crate::bound::{Bound, Mode};
use crate::measured::{Measured, Op, Row};

/// Times the noise of an op that an f32 output may be away from the reference's.
pub const OP: f64 = 64.0;

/// Times the noise of its mean scale that an op may scale its f32 output.
pub const OP_GAIN: f64 = 6.0;

/// Share of a row's elements that may be unequal in 16 bits, beyond those that move with the inputs.
pub const FLIPS: f64 = 0.1;

/// Rows of one op, in all prompts and phases, that may be beyond [`FLIPS`] or [`UNITS`].
pub const STRAYS: usize = 3;

/// Nodes of the graph between recorded values whose roundings [`OP`], [`OP_GAIN`], [`FLIPS`] and [`UNITS`] are for.
const SPAN: f64 = 8.0;

/// Mean square of a row's difference in 16 bits, in units of rounding, beyond what moves with the inputs.
pub const UNITS: f64 = 0.1;

/// Times the spread of the ensemble that a whole run may be away from the f32 reference.
pub const FACTOR: f64 = 8.0;

/// Distance of rows that have nothing in common, as a share of their rms. A gate that allows as much is not judged.
pub const UNRELATED: f64 = 1.4;

/// Units in the last place of f32 by which inputs are moved to measure the noise of an op, as other orders of sums do.
pub const MOVED: u32 = 8;

/// Runs with moved inputs.
pub const MOVES: u64 = 3;

/// Roundings, one on top of the other, that a log-probability of an engine without a reference may be off by.
const DEPTH: f64 = 16.0;

/// Share of its rms that a row may differ by where one of its inputs lies at the border of two codes of 8 bits. A step is
/// a 16th of a number of e4m3, and a 127th of the largest of a row of integers, which is some 3 times the rms.
pub const CODE_STEP: f64 = 0.1;
/// A difference from which such a border is looked for.
pub const CODED_ROW: f64 = 4.5e-5;

/// Fewest numbers (not 0) that show a narrower grid: by chance, n f16 numbers lie on the bf16 grid once in 8^n.
pub const GRID_COUNT: usize = 12;

/// Half the distance between 1 and the next number: what one rounding moves at most.
pub fn roundoff(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2.0_f64.powi(-24),
        Dtype::Bf16 => 2.0_f64.powi(-8),
        Dtype::F16 => 2.0_f64.powi(-11),
    }
}

/// Bounds of a gate, and each row's part in the worst of them: above 1 where it is beyond.
#[derive(Debug, Default)]
pub struct Judged {
    /// All of these hold, or the gate fails.
    pub bounds: Vec<Bound>,
    /// By row.
    pub rows: Vec<f64>,
    /// The smallest error that would have been seen, as a share of the rms of a row.
    pub sees: f64,
}

/// Judges an op on the reference's own inputs.
pub fn local(op: Op, measured: &Measured) -> Judged {
    let rows = &measured.rows;
    let values = |of: &dyn Fn(&Row) -> f64| rows.iter().map(of).collect::<Vec<f64>>();
    // Roundings add up over the nodes between recorded values.
    let several = (op.span as f64 / SPAN).max(1.0);
    if op.dtype == Dtype::F32 {
        let (times, most_times) = (values(&|row| row.times), several * OP);
        let value = times.iter().copied().fold(0.0, f64::max);
        let bounds = vec![
            Bound { measure: "noise", value, limit: most_times },
            Bound { measure: "gain", value: measured.gain, limit: several * OP_GAIN },
        ];
        let sees = most(values(&|row| most_times * row.noise));
        return Judged { bounds, rows: times.iter().map(|t| t / most_times).collect(), sees };
    }
    let (flips, units) = (several * FLIPS, several * UNITS);
    let bounds = vec![
        Bound { measure: "flips", value: most(values(&|row| row.flips)), limit: flips },
        Bound { measure: "units", value: most(values(&|row| row.units)), limit: units },
    ];
    Judged {
        bounds,
        rows: values(&|row| (row.flips / flips).max(row.units / units)),
        // An error of a unit changes every second element.
        sees: most(values(&|row| (flips + row.changed) * 2.0 * roundoff(op.dtype))),
    }
}

/// The largest of all rows but [`STRAYS`]: what one flip before a softmax does, it does to one row.
fn most(mut rows: Vec<f64>) -> f64 {
    rows.sort_by(|a, b| b.total_cmp(a));
    rows.get(STRAYS).copied().unwrap_or(0.0)
}

/// Judges rows of a whole run by `errors`, their distance from the f32 reference, against the `spread` of the ensemble.
pub fn whole(measure: &'static str, errors: &[f64], spread: &[f64], least: f64) -> Judged {
    let mut sorted = spread.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0).max(least);
    let limits = spread.iter().map(|spread| FACTOR * spread.max(middle));
    let rows: Vec<(f64, f64)> = errors.iter().copied().zip(limits).collect();
    let part = |row: &(f64, f64)| row.0 / row.1;
    let worst = rows.iter().max_by(|a, b| part(a).total_cmp(&part(b)));
    let bounds = worst.map(|&(value, limit)| Bound { measure, value, limit });
    let sees = rows.iter().map(|row| row.1).fold(0.0, f64::max);
    Judged { bounds: bounds.into_iter().collect(), rows: rows.iter().map(part).collect(), sees }
}

/// Distance below which a whole run is never beyond: one rounding of numbers of this size.
pub fn least(dtype: Dtype, scale: f64) -> f64 {
    roundoff(dtype) * scale.max(1.0)
}

/// Margin of two scores of a router, as a share of how far scores are apart, below which rounding may choose either.
pub fn choice(dtype: Dtype, mode: Mode) -> f64 {
    let alone = roundoff(dtype) * if dtype == Dtype::F32 { OP } else { 4.0 };
    if mode == Mode::Local { alone } else { FACTOR * alone }
}

/// Most that a schedule may move a log-probability of an engine whose sums depend on chunks and batches: `noise` is the
/// distance of its log-probabilities from the reference's, `scale` the rms of its logits.
pub fn schedule(dtype: Dtype, scale: f64, noise: Option<f64>) -> f64 {
    FACTOR * noise.unwrap_or(0.0).max(DEPTH * roundoff(dtype) * scale)
}

/// Most that the reference's greedy token may be less likely than the engine's: two log-probabilities are that far off.
pub fn greedy(spread: &[f32]) -> f64 {
    let most = spread.iter().copied().fold(0.0, f32::max);
    if most > 0.0 { 2.0 * FACTOR * f64::from(most) } else { f64::INFINITY }
}
