//! The one loop: sixteen rows of a weight against a few rows of `x`.
#![expect(unsafe_code, reason = "hot loops over raw bytes, without bounds checks")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use super::form::{LevelBits, LevelFormat, PackedLayout, ROWS, SPAN, STEP, ScaleFormat};
use super::lanes::{ByteLanes, GroupRows};
use crate::kernels::finish::finish;
use crate::kernels::prefetch::prefetch;
use registry::dtype::Dtype;

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

/// Multiplies a panel of `R` rows.
///
/// # Safety
/// The CPU has the features of `L`; `tile` holds all steps of a tile of `F`; codes, scales and sums are of
/// `R` rows and of `F`; `y` is writable at `columns` numbers, at most 16, of `R` rows.
#[inline(always)]
pub(super) unsafe fn panel<L: ByteLanes, F: PackedLayout, const R: usize>(of: &RowPanel<'_>) {
    let mut out = [[0.0_f32; ROWS]; R];
    for part in 0..ROWS / L::LANES {
        // SAFETY: the caller's promise.
        unsafe { lanes::<L, F, R>(of, part, &mut out) }
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
unsafe fn lanes<L: ByteLanes, F: PackedLayout, const R: usize>(
    of: &RowPanel<'_>,
    part: usize,
    out: &mut [[f32; ROWS]; R],
) {
    let form = F::FORM;
    let groups = form.groups();
    let share = L::LANES * part;
    // SAFETY: the caller's promise; every address lies within a tile, or a row of `x` or of its sums.
    unsafe {
        let table = L::signed(L::table(&F::FORM.table));
        let mut d = L::zero();
        let mut dmin = L::zero();
        let mut sums = [L::zero(); R];
        let mut codes = of.codes.as_ptr().cast::<i8>();
        let mut x_scales = of.scales.as_ptr();
        let mut starts = of.starts.as_ptr();
        let mut x_sums = of.sums.as_ptr();
        let mut span = of.tile;
        for first in (0..of.steps).step_by(SPAN) {
            if matches!(form.scale, ScaleFormat::Int) {
                d = L::load_f32(span.add(4 * share));
                if form.mins {
                    dmin = L::load_f32(span.add(4 * (ROWS + share)));
                }
            }
            let mut scales = span.add(form.factor_bytes());
            let mut levels = span.add(form.head_bytes());
            for _ in first..of.steps.min(first + SPAN) {
                if of.once {
                    for line in (0..form.level_bytes() + form.scale_bytes()).step_by(64) {
                        prefetch(levels.wrapping_add(AHEAD + line));
                    }
                }
                let bytes = read::<L, F>(levels, part, table);
                for group in 0..groups {
                    let scale = |at: usize| match form.scale {
                        ScaleFormat::F16 => L::load_f16(scales.add(2 * (at * ROWS + share))),
                        ScaleFormat::Bf16 => L::load_bf16(scales.add(2 * (at * ROWS + share))),
                        ScaleFormat::Int => L::mul(d, L::load_i8(scales.add(at * ROWS + share))),
                    };
                    let weight = scale(group);
                    let min = if form.mins {
                        match form.scale {
                            ScaleFormat::Int => L::mul(
                                dmin,
                                L::load_u8(scales.add((groups + group) * ROWS + share)),
                            ),
                            _ => scale(groups + group),
                        }
                    } else {
                        L::zero()
                    };
                    let rows = GroupRows {
                        codes: codes.add(group * form.group),
                        starts: (!unsigned::<L>(&form)).then(|| starts.add(group * R)),
                        scales: x_scales,
                        sums: form.mins.then(|| (min, x_sums.add(group * R))),
                    };
                    let levels = &bytes[group * form.group / 4..][..form.group / 4];
                    let signed = matches!(form.bits, LevelBits::Table | LevelBits::Eight);
                    each_row!(R, ROW, {
                        sums[ROW] = L::add_group::<ROW>(sums[ROW], levels, signed, weight, &rows);
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
            L::store(sum, out.as_mut_ptr().add(share));
        }
    }
}

/// True if levels are multiplied as they are, so that sums begin with zero.
#[inline(always)]
fn unsigned<L: ByteLanes>(form: &LevelFormat) -> bool {
    match form.bits {
        LevelBits::Table | LevelBits::Eight => L::SIGNED == 0,
        _ => form.offset == 0,
    }
}

/// Unpacks the levels of a step: vector `v` holds values `4 v` to `4 v + 3` of each row.
#[inline(always)]
unsafe fn read<L: ByteLanes, F: PackedLayout>(
    from: *const u8,
    part: usize,
    table: L::Int,
) -> [L::Int; 8] {
    // SAFETY: the caller's promise: a step of a tile.
    unsafe {
        let line = |n: usize| L::load(from.add(64 * n + 4 * L::LANES * part));
        if matches!(F::FORM.bits, LevelBits::Eight) {
            return std::array::from_fn(|n| L::signed(line(n)));
        }
        let low = L::splat_byte(15);
        let lines: [L::Int; 4] = std::array::from_fn(line);
        let mut levels: [L::Int; 8] = std::array::from_fn(|n| {
            if n < 4 { L::and(lines[n], low) } else { L::and(L::right::<4>(lines[n - 4]), low) }
        });
        match F::FORM.bits {
            LevelBits::Table => levels = levels.map(|level| L::lookup(table, level)),
            LevelBits::Five => {
                let plane = line(4);
                let bit = L::splat_byte(16);
                let fifths = [
                    L::left::<4>(plane),
                    L::left::<3>(plane),
                    L::left::<2>(plane),
                    L::left::<1>(plane),
                    plane,
                    L::right::<1>(plane),
                    L::right::<2>(plane),
                    L::right::<3>(plane),
                ];
                for (level, fifth) in levels.iter_mut().zip(fifths) {
                    *level = L::or(*level, L::and(fifth, bit));
                }
            }
            LevelBits::Six => {
                let bits = L::splat_byte(48);
                for half in 0..2 {
                    let plane = line(4 + half);
                    let uppers =
                        [L::left::<4>(plane), L::left::<2>(plane), plane, L::right::<2>(plane)];
                    for (level, upper) in levels[4 * half..].iter_mut().zip(uppers) {
                        *level = L::or(*level, L::and(upper, bits));
                    }
                }
            }
            LevelBits::Four | LevelBits::Eight => {}
        }
        levels
    }
}
