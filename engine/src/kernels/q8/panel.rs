//! The one loop: sixteen rows of a weight against a few rows of `x`.
#![expect(unsafe_code, reason = "hot loops over raw bytes, without bounds checks")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use std::marker::PhantomData;

use lanes::{ByteSimd, ByteTask, GroupRows, Isa, prefetch_to_l2};
use registry::dtype::Dtype;

use super::form::{LevelBits, LevelFormat, PackedLayout, ROWS, SPAN, STEP, ScaleFormat};
use crate::kernels::finish::finish;

/// Distance at which a tile that is read once is asked for. Loads alone keep too few lines of memory under way.
const AHEAD: usize = 4096;

/// Sixteen rows of a weight and a panel of `x`, whose products go to `y`.
pub(super) struct RowPanel<'a> {
    /// Rows of `x`.
    pub(super) rows: usize,
    /// True if no other panel reads the tile, so that it comes from memory and not from a cache.
    pub(super) once: bool,
    /// Steps of a row.
    pub(super) steps: usize,
    pub(super) tile: *const u8,
    /// `[step, row, 32]`.
    pub(super) codes: &'a [[i8; STEP]],
    /// `[step, row]`.
    pub(super) scales: &'a [f32],
    /// `[group, row]`.
    pub(super) starts: &'a [i32],
    /// `[group, row]`.
    pub(super) sums: &'a [f32],
    /// The factor on sums, the bias of each column, and the grid of the results.
    pub(super) factor: f32,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) round: Dtype,
    /// `columns` numbers in each row, which are `stride` apart.
    pub(super) y: *mut f32,
    pub(super) stride: usize,
    pub(super) columns: usize,
}

/// Facts about the kernel of an instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelFacts {
    /// Rows of `x` in the largest panel.
    pub(super) rows: usize,
    /// The number that is added to signed levels before they are multiplied.
    pub(super) signed: u8,
}

impl KernelFacts {
    /// Returns the facts for an instruction set.
    pub(super) fn of(isa: Isa) -> Self {
        isa.run_bytes(FactsTask)
    }
}

struct FactsTask;

impl ByteTask for FactsTask {
    type Output = KernelFacts;

    #[inline(always)]
    fn run<S: ByteSimd>(self, _s: S) -> KernelFacts {
        KernelFacts { rows: if S::REGISTERS < 32 { 4 } else { 16 }, signed: S::SIGNED as u8 }
    }
}

/// Multiplies a panel.
///
/// # Safety
/// `tile` holds all steps of a tile of `F`; codes, scales and sums are of as many rows as the panel has and of `F`; `y`
/// is writable at `columns` numbers, at most 16, of these rows.
pub(super) unsafe fn run<F: PackedLayout>(isa: Isa, of: &RowPanel<'_>) {
    isa.run_bytes(PanelTask::<F> { of, layout: PhantomData });
}

/// One panel; [`run`] alone makes one.
struct PanelTask<'a, 'b, F> {
    of: &'b RowPanel<'a>,
    layout: PhantomData<F>,
}

impl<F: PackedLayout> ByteTask for PanelTask<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: ByteSimd>(self, s: S) {
        let of = self.of;
        // SAFETY: the promise of the caller of `run`.
        unsafe {
            match of.rows {
                16 if S::REGISTERS >= 32 => panel::<S, F, 16>(s, of),
                8 if S::REGISTERS >= 32 => panel::<S, F, 8>(s, of),
                4 => panel::<S, F, 4>(s, of),
                2 => panel::<S, F, 2>(s, of),
                _ => panel::<S, F, 1>(s, of),
            }
        }
    }
}

/// Multiplies a panel of `R` rows.
///
/// # Safety
/// As [`run`], for `R` rows.
#[inline(always)]
unsafe fn panel<S: ByteSimd, F: PackedLayout, const R: usize>(s: S, of: &RowPanel<'_>) {
    let mut out = [[0.0_f32; ROWS]; R];
    for part in 0..ROWS / S::LANES {
        // SAFETY: the caller's promise.
        unsafe { lanes::<S, F, R>(s, of, part, &mut out) }
    }
    for (row, out) in out.iter_mut().enumerate() {
        if of.factor != 1.0 {
            for out in out.iter_mut() {
                *out *= of.factor;
            }
        }
        finish(out, of.bias, of.round);
        // SAFETY: the caller's promise.
        unsafe {
            let y = of.y.add(row * of.stride);
            if of.columns == ROWS {
                y.cast::<[f32; ROWS]>().write_unaligned(*out);
            } else {
                y.copy_from_nonoverlapping(out.as_ptr(), of.columns);
            }
        }
    }
}

/// Writes a block out for each row, so that the sums of all rows stay in registers: a loop of this length is
/// not unrolled by the compiler.
macro_rules! each_row {
    ($rows:expr, $row:ident, $body:block) => {
        each_row!(@ $rows, $row, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $rows:expr, $row:ident, $body:block, $($n:literal)*) => {
        $(if $n < $rows {
            const $row: usize = $n;
            $body
        })*
    };
}

/// Multiplies as many rows of a tile as a vector has lanes.
#[inline(always)]
unsafe fn lanes<S: ByteSimd, F: PackedLayout, const R: usize>(
    s: S,
    of: &RowPanel<'_>,
    part: usize,
    out: &mut [[f32; ROWS]; R],
) {
    let form = F::FORM;
    let groups = form.groups();
    let share = S::LANES * part;
    // SAFETY: the caller's promise; every address lies within a tile, or a row of `x` or of its sums.
    unsafe {
        let table = s.add_signed(s.byte_table(&F::FORM.table));
        let mut d = s.splat(0.0);
        let mut dmin = s.splat(0.0);
        let mut sums = [s.splat(0.0); R];
        let mut codes = of.codes.as_ptr().cast::<i8>();
        let mut x_scales = of.scales.as_ptr();
        let mut starts = of.starts.as_ptr();
        let mut x_sums = of.sums.as_ptr();
        let mut span = of.tile;
        for first in (0..of.steps).step_by(SPAN) {
            if matches!(form.scale, ScaleFormat::Int) {
                d = s.read_f32(span.add(4 * share));
                if form.mins {
                    dmin = s.read_f32(span.add(4 * (ROWS + share)));
                }
            }
            let mut scales = span.add(form.factor_bytes());
            let mut levels = span.add(form.head_bytes());
            for _ in first..of.steps.min(first + SPAN) {
                if of.once {
                    for line in (0..form.level_bytes() + form.scale_bytes()).step_by(64) {
                        prefetch_to_l2(levels.wrapping_add(AHEAD + line));
                    }
                }
                let bytes = read::<S, F>(s, levels, part, table);
                for group in 0..groups {
                    let scale = |at: usize| match form.scale {
                        ScaleFormat::F16 => s.read_f16(scales.add(2 * (at * ROWS + share))),
                        ScaleFormat::Bf16 => s.read_bf16(scales.add(2 * (at * ROWS + share))),
                        ScaleFormat::Int => d * s.read_i8(scales.add(at * ROWS + share)),
                    };
                    let weight = scale(group);
                    let min = if form.mins {
                        match form.scale {
                            ScaleFormat::Int => {
                                dmin * s.read_u8(scales.add((groups + group) * ROWS + share))
                            }
                            _ => scale(groups + group),
                        }
                    } else {
                        s.splat(0.0)
                    };
                    let rows = GroupRows {
                        codes: codes.add(group * form.group),
                        starts: (!unsigned::<S>(&form)).then(|| starts.add(group * R)),
                        scales: x_scales,
                        sums: form.mins.then(|| (min, x_sums.add(group * R))),
                    };
                    let levels = &bytes[group * form.group / 4..][..form.group / 4];
                    let signed = matches!(form.bits, LevelBits::Table | LevelBits::Eight);
                    each_row!(R, ROW, {
                        sums[ROW] = s.add_group::<ROW>(sums[ROW], levels, signed, weight, &rows);
                    });
                }
                levels = levels.add(form.level_bytes());
                scales = scales.add(form.scale_bytes());
                codes = codes.add(R * STEP);
                x_scales = x_scales.add(R);
                starts = starts.wrapping_add(R * groups);
                x_sums = x_sums.wrapping_add(R * groups);
            }
            span = span.wrapping_add(form.span_bytes());
        }
        for (sum, out) in sums.into_iter().zip(out) {
            s.write(sum, out.as_mut_ptr().add(share));
        }
    }
}

/// True if levels are multiplied as they are, so that sums begin with zero.
#[inline(always)]
fn unsigned<S: ByteSimd>(form: &LevelFormat) -> bool {
    match form.bits {
        LevelBits::Table | LevelBits::Eight => S::SIGNED == 0,
        _ => form.offset == 0,
    }
}

/// Unpacks the levels of a step: vector `v` holds values `4 v` to `4 v + 3` of each row.
#[inline(always)]
unsafe fn read<S: ByteSimd, F: PackedLayout>(
    s: S,
    from: *const u8,
    part: usize,
    table: S::I,
) -> [S::I; 8] {
    // SAFETY: the caller's promise: a step of a tile.
    unsafe {
        let line = |n: usize| s.read_bytes(from.add(64 * n + 4 * S::LANES * part));
        if matches!(F::FORM.bits, LevelBits::Eight) {
            return std::array::from_fn(|n| s.add_signed(line(n)));
        }
        let low = s.splat_byte(15);
        let lines: [S::I; 4] = std::array::from_fn(line);
        let mut levels: [S::I; 8] = std::array::from_fn(|n| {
            if n < 4 {
                s.and_bytes(lines[n], low)
            } else {
                s.and_bytes(s.pairs_right::<4>(lines[n - 4]), low)
            }
        });
        match F::FORM.bits {
            LevelBits::Table => levels = levels.map(|level| s.lookup_bytes(table, level)),
            LevelBits::Five => {
                let plane = line(4);
                let bit = s.splat_byte(16);
                let fifths = [
                    s.pairs_left::<4>(plane),
                    s.pairs_left::<3>(plane),
                    s.pairs_left::<2>(plane),
                    s.pairs_left::<1>(plane),
                    plane,
                    s.pairs_right::<1>(plane),
                    s.pairs_right::<2>(plane),
                    s.pairs_right::<3>(plane),
                ];
                for (level, fifth) in levels.iter_mut().zip(fifths) {
                    *level = s.or_bytes(*level, s.and_bytes(fifth, bit));
                }
            }
            LevelBits::Six => {
                let bits = s.splat_byte(48);
                for half in 0..2 {
                    let plane = line(4 + half);
                    let uppers = [
                        s.pairs_left::<4>(plane),
                        s.pairs_left::<2>(plane),
                        plane,
                        s.pairs_right::<2>(plane),
                    ];
                    for (level, upper) in levels[4 * half..].iter_mut().zip(uppers) {
                        *level = s.or_bytes(*level, s.and_bytes(upper, bits));
                    }
                }
            }
            LevelBits::Four | LevelBits::Eight => {}
        }
        levels
    }
}
