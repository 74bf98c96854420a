//! Products of rows with packed weights, shared out to threads by tiles.
#![expect(unsafe_code, reason = "tasks write columns of one result through a pointer")]

use lanes::Isa;
use rayon::prelude::*;
use registry::dtype::Dtype;

use super::form::{self, LayoutVisitor, LevelBits, LevelFormat, PackedLayout, ROWS, STEP};
use super::input::{self, CodeSums, RoundedRows};
use super::pack::PackedMatrix;
use super::panel::{self, KernelFacts, RowPanel};

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

/// Multiplies `rows` rows of `x` `[rows, inputs]`, rounded to 8 bits, with several weights.
///
/// # Panics
/// If a slice is not as long as the shapes say.
pub fn products(x: &[f32], rows: usize, products: &mut [IntegerProduct<'_>]) {
    products_on(Isa::best(), x, rows, products);
}

/// Computes [`products`] with the kernels of one instruction set.
///
/// # Panics
/// As [`products`].
pub fn products_on(isa: Isa, x: &[f32], rows: usize, products: &mut [IntegerProduct<'_>]) {
    let Some(inputs) = products.first().map(|product| product.weight.inputs()) else { return };
    assert_eq!(Some(x.len()), rows.checked_mul(inputs), "x is [rows, inputs]");
    for IntegerProduct { weight, bytes, bias, y, .. } in &*products {
        assert!(weight.fits(bytes), "the weight has as many bytes as its shape says");
        assert_eq!(weight.inputs(), inputs, "every weight has the inputs of x");
        assert_eq!(Some(y.len()), rows.checked_mul(weight.outputs()), "y is [rows, outputs]");
        assert!(bias.is_none_or(|b| b.len() == weight.outputs()), "bias is [outputs]");
    }
    if rows == 0 {
        return;
    }
    let facts = KernelFacts::of(isa);
    let x = RoundedRows::new(x, inputs, facts.rows);
    let mut sums: Vec<((u8, usize, bool), CodeSums)> = Vec::new();
    for product in &*products {
        let key = sums_key(facts, &product.weight.form());
        if sums.iter().all(|(other, _)| *other != key) {
            sums.push((key, CodeSums::new(&x, key)));
        }
    }
    let threads = rayon::current_num_threads();
    let mut tasks = Vec::new();
    for product in products.iter_mut() {
        let key = sums_key(facts, &product.weight.form());
        let sums = &sums.iter().find(|(other, _)| *other == key).expect("made above").1;
        let tiles = product.weight.tiles();
        let bytes = product.weight.tile_bytes().max(1);
        let size = (TASK_BYTES / bytes).min(tiles.div_ceil(TASKS_PER_THREAD * threads)).max(1);
        let y = product.y.as_mut_ptr();
        for first in (0..tiles).step_by(size) {
            tasks.push(ByteTileTask {
                weight: product.weight,
                bytes: product.bytes,
                tiles: first..(first + size).min(tiles),
                x: &x,
                sums,
                bias: product.bias,
                round: product.round,
                y,
            });
        }
    }
    if threads == 1 || tasks.len() == 1 {
        for task in &tasks {
            run(isa, task);
        }
    } else {
        tasks.par_iter().with_max_len(1).for_each(|task| run(isa, task));
    }
}

/// Returns the offset, the group and the use of minima, which sums of codes depend on.
fn sums_key(facts: KernelFacts, form: &LevelFormat) -> (u8, usize, bool) {
    (offset(facts, form), form.group, form.mins)
}

fn run(isa: Isa, task: &ByteTileTask<'_>) {
    form::visit(task.weight.ty(), TileRun { isa, task });
}

/// Returns the number that is added to levels for the kernels of an instruction set.
fn offset(facts: KernelFacts, form: &LevelFormat) -> u8 {
    match form.bits {
        LevelBits::Table | LevelBits::Eight => facts.signed,
        _ => form.offset,
    }
}

struct ByteTileTask<'a> {
    weight: &'a PackedMatrix,
    bytes: &'a [u8],
    tiles: std::ops::Range<usize>,
    x: &'a RoundedRows,
    sums: &'a CodeSums,
    bias: Option<&'a [f32]>,
    round: Dtype,
    y: *mut f32,
}

// SAFETY: `y` is the one field that is not `Send` and `Sync` by itself. A task writes the columns of its
// tiles, which no other task touches, and the mutable borrow of `y` outlives the tasks.
unsafe impl Send for ByteTileTask<'_> {}
// SAFETY: as above; a task is run once.
unsafe impl Sync for ByteTileTask<'_> {}

struct TileRun<'a> {
    isa: Isa,
    task: &'a ByteTileTask<'a>,
}

impl LayoutVisitor for TileRun<'_> {
    type Out = ();

    fn visit<F: PackedLayout>(self) {
        let ByteTileTask { weight, bytes, tiles, x, sums, bias, round, y } = self.task;
        let steps = weight.inputs() / STEP;
        let groups = steps * F::FORM.groups();
        let mut room = Vec::new();
        let packed = weight.packed(tiles.clone(), bytes, &mut room);
        // The tiles of a task stay in the L2 cache, a panel of `x` in the L1 cache.
        input::panels(x.rows(), x.panel_rows(), |first, rows| {
            for (tile, packed) in tiles.clone().zip(packed.chunks_exact(weight.tile_bytes())) {
                let column = tile * ROWS;
                let columns = ROWS.min(weight.outputs() - column);
                let row_panel = RowPanel {
                    rows,
                    once: rows == x.rows(),
                    steps,
                    tile: packed.as_ptr(),
                    codes: &x.codes()[first * steps..],
                    scales: &x.scales()[first * steps..],
                    starts: sums.starts().get(first * groups..).unwrap_or_default(),
                    sums: sums.sums().get(first * groups..).unwrap_or_default(),
                    factor: weight.factor(),
                    bias: bias.map(|bias| &bias[column..column + columns]),
                    round: *round,
                    y: y.wrapping_add(first * weight.outputs() + column),
                    stride: weight.outputs(),
                    columns,
                };
                // SAFETY: `products_on` checked all lengths, and a tile holds its steps. These
                // columns of `y` belong to this task alone, and `y` is [rows, outputs].
                unsafe { panel::run::<F>(self.isa, &row_panel) }
            }
        });
    }
}
