//! The matrices of experts on a device, for pairs of a row and one of its choices.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::OnceLock;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::product::{MatrixPlace, PlacedMatrix, whole};
use crate::device::{DeviceBuffer, KernelArgument, count};
use crate::ops::Ctx;
use crate::ops::device::codes::CodedRows;
use crate::ops::device::{index, library, product_blocks, round_inputs};
use crate::value::DeviceValue;

/// One of the matrices of every expert. Weights stay where they are for a session.
pub(super) struct ExpertMatrices {
    n: usize,
    part: &'static str,
    table: OnceLock<ExpertTable>,
}

/// A matrix of every expert.
struct ExpertTable {
    /// Addresses, forms and biases.
    words: DeviceBuffer,
    /// True if levels are multiplied as integers.
    integers: bool,
    /// The dtypes of plain numbers, and none for blocks.
    kinds: Vec<Option<Dtype>>,
}

/// Pairs of a row and one of its choices, sorted by expert.
pub(super) struct SortedPairs {
    pub(super) count: usize,
    order: DeviceBuffer,
    experts: DeviceBuffer,
    /// Places of the pairs of each expert, read when the library multiplies.
    groups: OnceCell<Vec<(usize, Range<usize>)>>,
}

impl SortedPairs {
    /// Returns the experts that have pairs, with their places. The device is waited for once.
    fn groups(&self) -> Result<&[(usize, Range<usize>)], Error> {
        if let Some(groups) = self.groups.get() {
            return Ok(groups);
        }
        let bytes = self.experts.read(0, 4 * self.count)?;
        let experts: &[[u8; 4]] = bytes.as_chunks().0;
        let mut end = 0;
        let groups = experts.chunk_by(|a, b| a == b).map(|of_one| {
            let start = end;
            end += of_one.len();
            (u32::from_le_bytes(of_one[0]) as usize, start..end)
        });
        let groups = groups.collect();
        Ok(self.groups.get_or_init(|| groups))
    }
}

impl ExpertMatrices {
    /// Names the matrices `part.0` to `part.n`, which are read when they are first multiplied.
    pub(super) fn new(part: &'static str, n: usize) -> Self {
        Self { n, part, table: OnceLock::new() }
    }

    /// Returns the table of a matrix of every expert.
    fn table(&self, ctx: &Ctx<'_>) -> Result<&ExpertTable, Error> {
        let name = self.part;
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let mut words = Vec::with_capacity(3 * self.n);
        let mut in_integers = 0;
        let mut kinds = Vec::new();
        let mut roundings = Vec::new();
        for expert in 0..self.n {
            let matrix = ctx.device_matrix(&format!("{name}.{expert}"))?;
            in_integers += usize::from(matrix.integers);
            kinds.push(matrix.plain());
            roundings.push(ctx.rounding(&format!("{name}.{expert}")));
            let bias = ctx.device_vector(&format!("bias.{name}.{expert}"));
            let bias = bias.map_or(0, DeviceBuffer::address);
            let form = u64::from(matrix.form) | u64::from(matrix.factor.to_bits()) << 32;
            words.extend([matrix.buffer.address(), form, bias]);
        }
        let integers = in_integers > 0;
        if integers && in_integers < self.n {
            return Err(ctx.error(format!(
                "`{name}` of {in_integers} of its {} experts is multiplied in integers; run with the option `arithmetic exact`",
                self.n
            )));
        }
        roundings.dedup();
        if roundings.len() > 1 {
            return Err(ctx.error(
                "its experts round their inputs in ways of their own, for which the device has no kernel; run on the CPU",
            ));
        }
        let words = ctx.queue()?.upload(bytemuck::cast_slice(&words))?;
        kinds.dedup();
        let table = ExpertTable { words, integers, kinds };
        Ok(self.table.get_or_init(|| table))
    }

    /// Multiplies the rows of all pairs by a matrix of their experts. `share` pairs have a row of `x` together.
    pub(super) fn multiply(
        &self,
        ctx: &Ctx<'_>,
        (x, share): (&DeviceValue, usize),
        pairs: &SortedPairs,
        (outputs, inputs): (usize, usize),
        dtype: Dtype,
    ) -> Result<DeviceValue, Error> {
        let queue = ctx.queue()?;
        if ctx.is_watched() {
            self.observe(ctx, (x, share), pairs, inputs)?;
        }
        let ExpertTable { words: table, integers, kinds } = self.table(ctx)?;
        let x = &*round_inputs::rows_for(ctx, &format!("{}.0", self.part), x)?;
        let y = DeviceValue::of(queue, dtype, &[pairs.count, outputs])?;
        // As if rows were shared out evenly.
        let each = pairs.count / self.n.max(1);
        if kinds.iter().all(|kind| library::takes(ctx, each, x.dtype, *kind)) {
            self.multiply_in_groups(ctx, (x, share), pairs, (table, &y))?;
            return Ok(y);
        }
        let coded = integers.then(|| CodedRows::new(ctx, x)).transpose()?;
        let mut arguments = coded
            .as_ref()
            .map_or([(&*x.buffer).into(), x.dtype.into()], CodedRows::arguments)
            .to_vec();
        arguments.extend::<[KernelArgument; 10]>([
            index(ctx, share)?.into(),
            (&pairs.order).into(),
            (&pairs.experts).into(),
            index(ctx, pairs.count)?.into(),
            table.into(),
            index(ctx, self.n)?.into(),
            index(ctx, outputs)?.into(),
            index(ctx, inputs)?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ]);
        let kernel = if coded.is_some() { "experts_codes" } else { "experts_linear" };
        queue.launch(kernel, product_blocks(pairs.count, outputs), &arguments)?;
        Ok(y)
    }

    /// Multiplies the rows of each expert by the library, one expert after the other.
    fn multiply_in_groups(
        &self,
        ctx: &Ctx<'_>,
        (x, share): (&DeviceValue, usize),
        pairs: &SortedPairs,
        (table, y): (&DeviceBuffer, &DeviceValue),
    ) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let inputs = x.width();
        let outputs = y.width();
        let rows = DeviceValue::of(queue, x.dtype, &[pairs.count, inputs])?;
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            (&pairs.order).into(),
            index(ctx, share)?.into(),
            index(ctx, inputs)?.into(),
            (&*rows.buffer).into(),
            count(rows.len()),
        ];
        queue.launch_each("rows_of_pairs", rows.len(), &arguments)?;
        let dtype = if y.dtype == x.dtype { y.dtype } else { Dtype::F32 };
        let products = DeviceValue::of(queue, dtype, &[pairs.count, outputs])?;
        for (expert, places) in pairs.groups()?.iter().filter(|(expert, _)| *expert < self.n) {
            let weight = ctx.device_matrix(&format!("{}.{expert}", self.part))?;
            let matrix = library::matrix(ctx, weight, x.dtype)?;
            let sizes = library::sizes(places.len(), weight, x.dtype, dtype);
            queue.multiply(
                sizes,
                rows_from(&rows, places.start, inputs),
                whole(matrix.numbers(), inputs),
                rows_from(&products, places.start, outputs),
            )?;
        }
        let arguments = [
            (&*products.buffer).into(),
            dtype.into(),
            (&pairs.order).into(),
            (&pairs.experts).into(),
            table.into(),
            index(ctx, self.n)?.into(),
            index(ctx, outputs)?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(products.len()),
        ];
        queue.launch_each("pairs_of_rows", products.len(), &arguments)
    }

    /// Shows the rows that a matrix of each expert is about to be multiplied with.
    fn observe(
        &self,
        ctx: &Ctx<'_>,
        (x, share): (&DeviceValue, usize),
        pairs: &SortedPairs,
        inputs: usize,
    ) -> Result<(), Error> {
        let order = pairs.order.read(0, 4 * pairs.count)?;
        let order = order.as_chunks::<4>().0;
        let x = x.download()?;
        for (expert, places) in pairs.groups()?.iter().filter(|(expert, _)| *expert < self.n) {
            let rows = order[places.clone()].iter().flat_map(|pair| {
                let row = u32::from_le_bytes(*pair) as usize / share;
                &x[row * inputs..][..inputs]
            });
            let rows: Vec<f32> = rows.copied().collect();
            ctx.observe_product(&format!("{}.{expert}", self.part), inputs, &rows);
        }
        Ok(())
    }
}

/// Places the rows of a value from `first` on.
fn rows_from(value: &DeviceValue, first: usize, width: usize) -> PlacedMatrix<'_> {
    let (buffer, place) = whole(&value.buffer, width);
    (buffer, MatrixPlace { at: first * width, ..place })
}

/// Sorts the pairs of the step by expert.
pub(super) fn sorted(
    ctx: &Ctx<'_>,
    chosen: &DeviceValue,
    all: usize,
) -> Result<SortedPairs, Error> {
    let queue = ctx.queue()?;
    let count = chosen.len();
    let order = queue.allocate(4 * count)?;
    let experts = queue.allocate(4 * count)?;
    let arguments: [KernelArgument; 6] = [
        (&*chosen.buffer).into(),
        chosen.dtype.into(),
        index(ctx, all)?.into(),
        index(ctx, count)?.into(),
        (&order).into(),
        (&experts).into(),
    ];
    queue.launch_each("experts_order", count, &arguments)?;
    Ok(SortedPairs { count, order, experts, groups: OnceCell::new() })
}
