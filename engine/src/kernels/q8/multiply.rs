//! The one loop: sixteen rows of a weight against a few rows of `x`.
#![expect(unsafe_code, reason = "hot loops over raw bytes, without bounds checks")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::form::{
    self, LayoutVisitor, LevelBits, LevelFormat, PackedLayout, ROWS, SPAN, STEP, ScaleFormat,
};
use super::input::{CodeSums, RoundedRows, RowPanels, panel_rows};
use super::lanes::ByteLanes;
use super::pack::PackedMatrix;
use super::{IntegerIsa, portable};
use crate::kernels::finish::finish;

#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// Bytes of a weight in one task, at most, unless a tile has more.
const TASK_BYTES: usize = 128 << 10;
/// Tasks of a product for each thread, where its size allows.
const TASKS_PER_THREAD: usize = 4;

/// One product: a packed weight, a bias, and the result.
#[derive(Debug)]
pub struct IntegerProduct<'a> {
    /// `[outputs, inputs]`.
    pub weight: &'a PackedMatrix,
    /// The weight's blocks, which are packed anew at every use if `weight` keeps none.
    pub bytes: &'a [u8],
    /// `[outputs]`, added in f32 before the one rounding.
    pub bias: Option<&'a [f32]>,
    /// The grid that results are rounded to.
    pub round: Dtype,
    /// `[rows, outputs]`.
    pub y: &'a mut [f32],
}

/// Sixteen rows of a weight and a panel of `x`, whose products go to `out`.
pub(super) struct RowPanel<'a> {
    /// Rows of `x`.
    pub(super) rows: usize,
    /// Steps of a row.
    steps: usize,
    tile: *const u8,
    /// `[step, row, 32]`.
    codes: &'a [[i8; STEP]],
    /// `[step, row]`.
    scales: &'a [f32],
    /// `[group, row]`.
    starts: &'a [i32],
    /// `[group, row]`.
    sums: &'a [f32],
    /// `[rows, 16]`.
    out: *mut f32,
}

/// Multiplies rows with several weights.
///
/// # Panics
/// If a slice is not as long as the shapes say.
pub fn products(x: &RoundedRows, products: &mut [IntegerProduct<'_>]) {
    products_on(IntegerIsa::best(), x, products);
}

/// Computes [`products`] with the kernels of one instruction set.
///
/// # Panics
/// As [`products`], and if this CPU does not have `isa`.
pub fn products_on(isa: IntegerIsa, x: &RoundedRows, products: &mut [IntegerProduct<'_>]) {
    assert!(isa.available(), "this CPU has no {isa:?}");
    for IntegerProduct { weight, bytes, bias, y, .. } in &*products {
        assert!(weight.fits(bytes), "the weight has as many bytes as its shape says");
        assert_eq!(weight.inputs(), x.inputs(), "every weight has the inputs of x");
        assert_eq!(Some(y.len()), x.rows().checked_mul(weight.outputs()), "y is [rows, outputs]");
        assert!(bias.is_none_or(|b| b.len() == weight.outputs()), "bias is [outputs]");
    }
    if x.rows() == 0 {
        return;
    }
    let most = match isa {
        IntegerIsa::Vnni => 16,
        IntegerIsa::Avx2 | IntegerIsa::Portable => 4,
    };
    let panels = RowPanels::new(x, most);
    let mut sums: Vec<((u8, usize, bool), CodeSums)> = Vec::new();
    let key = |form: &LevelFormat| (offset(isa, form), form.group, form.mins);
    for product in &*products {
        let key = key(&product.weight.form());
        if sums.iter().all(|(other, _)| *other != key) {
            sums.push((key, CodeSums::new(x, key, most)));
        }
    }
    let threads = rayon::current_num_threads();
    let mut tasks = Vec::new();
    for product in products.iter_mut() {
        let key = key(&product.weight.form());
        let sums = &sums.iter().find(|(other, _)| *other == key).expect("made above").1;
        let tiles = product.weight.tiles();
        let bytes = product.weight.tile_bytes().max(1);
        let size = (TASK_BYTES / bytes).min(tiles.div_ceil(TASKS_PER_THREAD * threads)).max(1);
        let y = product.y.as_mut_ptr();
        for first in (0..tiles).step_by(size) {
            tasks.push(TileTask {
                weight: product.weight,
                bytes: product.bytes,
                tiles: first..(first + size).min(tiles),
                rows: x.rows(),
                most,
                panels: &panels,
                sums,
                bias: product.bias,
                round: product.round,
                y,
            });
        }
    }
    let run = |task: &TileTask<'_>| {
        form::visit(task.weight.ty(), TileRun { isa, task });
    };
    if threads == 1 || tasks.len() == 1 {
        tasks.iter().for_each(run);
    } else {
        tasks.par_iter().with_max_len(1).for_each(run);
    }
}

/// Returns the number that is added to levels for the kernels of an instruction set.
fn offset(isa: IntegerIsa, form: &LevelFormat) -> u8 {
    match form.bits {
        LevelBits::Table | LevelBits::Eight if isa == IntegerIsa::Vnni => 128,
        _ => form.offset,
    }
}

struct TileTask<'a> {
    weight: &'a PackedMatrix,
    bytes: &'a [u8],
    tiles: std::ops::Range<usize>,
    /// Rows of `x`, and the most of a panel.
    rows: usize,
    most: usize,
    panels: &'a RowPanels,
    sums: &'a CodeSums,
    bias: Option<&'a [f32]>,
    round: Dtype,
    y: *mut f32,
}

// SAFETY: `y` is the one field that is not `Send` and `Sync` by itself. A task writes the columns of its
// tiles, which no other task touches, and the mutable borrow of `y` outlives the tasks.
unsafe impl Send for TileTask<'_> {}
// SAFETY: as above; a task is run once.
unsafe impl Sync for TileTask<'_> {}

struct TileRun<'a> {
    isa: IntegerIsa,
    task: &'a TileTask<'a>,
}

impl LayoutVisitor for TileRun<'_> {
    type Out = ();

    fn visit<F: PackedLayout>(self) {
        let TileTask { weight, bytes, tiles, rows, most, panels, sums, bias, round, y } = self.task;
        let steps = weight.inputs() / STEP;
        let groups = steps * F::FORM.groups();
        let mut out = [[0.0_f32; ROWS]; 16];
        let mut room = Vec::new();
        let packed = weight.packed(tiles.clone(), bytes, &mut room);
        let mut first = 0;
        while first < *rows {
            // The tiles of a task stay in the L2 cache, a panel of `x` in the L1 cache.
            let height = panel_rows(rows - first, *most);
            for (tile, packed) in tiles.clone().zip(packed.chunks_exact(weight.tile_bytes())) {
                let panel = RowPanel {
                    rows: height,
                    steps,
                    tile: packed.as_ptr(),
                    codes: &panels.codes()[first * steps..],
                    scales: &panels.scales()[first * steps..],
                    starts: sums.starts().get(first * groups..).unwrap_or_default(),
                    sums: sums.sums().get(first * groups..).unwrap_or_default(),
                    out: out.as_mut_ptr().cast(),
                };
                // SAFETY: `products_on` checked the CPU and all lengths; a tile holds its steps, and `out` has
                // room for sixteen rows.
                unsafe {
                    match self.isa {
                        #[cfg(target_arch = "x86_64")]
                        IntegerIsa::Vnni => avx512::run::<F>(&panel),
                        #[cfg(target_arch = "x86_64")]
                        IntegerIsa::Avx2 => avx2::run::<F>(&panel),
                        _ => portable::run::<F>(&panel),
                    }
                }
                let column = tile * ROWS;
                let columns = ROWS.min(weight.outputs() - column);
                let bias = bias.map(|bias| &bias[column..column + columns]);
                for (row, out) in out.iter_mut().enumerate().take(height) {
                    let out = &mut out[..columns];
                    if weight.factor() != 1.0 {
                        for out in out.iter_mut() {
                            *out *= weight.factor();
                        }
                    }
                    finish(out, bias, *round);
                    let at = (first + row) * weight.outputs() + column;
                    // SAFETY: these columns of `y` belong to this task alone, and `y` is [rows, outputs].
                    unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), y.add(at), columns) };
                }
            }
            first += height;
        }
    }
}

/// Multiplies a panel of `R` rows.
///
/// # Safety
/// The CPU has the features of `L`; `tile` holds all steps of a tile of `F`; codes, scales and sums are of
/// `R` rows and of `F`; `out` is writable at `R` rows of 16.
#[inline(always)]
pub(super) unsafe fn panel<L: ByteLanes, F: PackedLayout, const R: usize>(of: &RowPanel<'_>) {
    for part in 0..ROWS / L::LANES {
        // SAFETY: the caller's promise.
        unsafe { lanes::<L, F, R>(of, part) }
    }
}

/// Multiplies as many rows of a tile as a vector has lanes.
#[inline(always)]
unsafe fn lanes<L: ByteLanes, F: PackedLayout, const R: usize>(of: &RowPanel<'_>, part: usize) {
    let form = F::FORM;
    let (groups, share) = (form.groups(), L::LANES * part);
    // SAFETY: the caller's promise; every address lies within a tile, or a row of `x` or of its sums.
    unsafe {
        let table = L::signed(L::table(&F::FORM.table));
        let (mut d, mut dmin) = (L::zero(), L::zero());
        let mut sums = [L::zero(); R];
        let mut codes = of.codes.as_ptr().cast::<i8>();
        let mut x_scales = of.scales.as_ptr();
        let (mut starts, mut x_sums) = (of.starts.as_ptr(), of.sums.as_ptr());
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
                let bytes = read::<L, F>(levels, part, table);
                for group in 0..groups {
                    let scale = |at: usize| match form.scale {
                        ScaleFormat::F16 => L::load_f16(scales.add(2 * (at * ROWS + share))),
                        ScaleFormat::Bf16 => L::load_bf16(scales.add(2 * (at * ROWS + share))),
                        ScaleFormat::Int => L::mul(d, L::load_i8(scales.add(at * ROWS + share))),
                    };
                    let (weight, min) = (
                        scale(group),
                        if form.mins {
                            match form.scale {
                                ScaleFormat::Int => L::mul(
                                    dmin,
                                    L::load_u8(scales.add((groups + group) * ROWS + share)),
                                ),
                                _ => scale(groups + group),
                            }
                        } else {
                            L::zero()
                        },
                    );
                    for (r, total) in sums.iter_mut().enumerate() {
                        let x = codes.add(r * STEP + group * form.group);
                        let mut sum = if unsigned::<L>(&form) {
                            L::splat_int(0)
                        } else {
                            L::splat_int(*starts.add(group * R + r))
                        };
                        for n in 0..form.group / 4 {
                            let bytes = bytes[group * form.group / 4 + n];
                            sum = match form.bits {
                                LevelBits::Table | LevelBits::Eight => {
                                    L::dot_signed(sum, bytes, x.add(4 * n))
                                }
                                _ => L::dot(sum, bytes, x.add(4 * n)),
                            };
                        }
                        let both = L::mul(weight, L::splat(*x_scales.add(r)));
                        *total = L::fma(L::to_float(sum), both, *total);
                        if form.mins {
                            let x_sum = L::splat(*x_sums.add(group * R + r));
                            *total = L::minus(min, x_sum, *total);
                        }
                    }
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
        for (r, sum) in sums.into_iter().enumerate() {
            L::store(sum, of.out.add(r * ROWS + share));
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
                let (plane, bit) = (line(4), L::splat_byte(16));
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
