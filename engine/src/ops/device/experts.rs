//! `experts` on a device.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::OnceLock;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::product::{MatrixPlace, PlacedMatrix, whole};
use crate::device::{DeviceBuffer, KernelArgument, count};
use crate::kernels::round::round1;
use crate::ops::device::codes::CodedRows;
use crate::ops::device::{activation, index, library, product_blocks, round_inputs};
use crate::ops::experts::Experts;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("experts", DeviceExperts::prepare);
}

/// The matrices of an expert.
const PARTS: [&str; 3] = ["gate", "up", "down"];

struct DeviceExperts {
    rule: Experts,
    /// The number of the activation in kernels.
    kind: u32,
    /// The matrices `gate`, `up` and `down` of all experts. Weights stay where they are for a session.
    tables: [OnceLock<ExpertTable>; 3],
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
struct SortedPairs {
    count: usize,
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

impl DeviceExperts {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let rule = Experts::prepare(args)?;
        let tables = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        Ok(Self { rule, kind: activation::argument(args, "act")?, tables })
    }

    /// Returns the table of a matrix of every expert.
    fn table(
        &self,
        ctx: &Ctx<'_>,
        part: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<&ExpertTable, Error> {
        let name = PARTS[part];
        if let Some(table) = self.tables[part].get() {
            return Ok(table);
        }
        let mut words = Vec::with_capacity(3 * self.rule.n);
        let mut in_integers = 0;
        let mut kinds = Vec::new();
        let mut roundings = Vec::new();
        for expert in 0..self.rule.n {
            let matrix = ctx.device_matrix(&format!("{name}.{expert}"))?;
            if (matrix.outputs, matrix.inputs) != (outputs, inputs) {
                return Err(ctx.error(format!(
                    "`{name}` of an expert is [{}, {}], not [{outputs}, {inputs}]",
                    matrix.outputs, matrix.inputs
                )));
            }
            in_integers += usize::from(matrix.integers);
            kinds.push(matrix.plain());
            roundings.push(ctx.rounding(&format!("{name}.{expert}")));
            let bias = ctx.device_vector(&format!("bias.{name}.{expert}"));
            if let Some(numbers) = bias.map(|b| b.bytes() / 4).filter(|numbers| *numbers != outputs)
            {
                return Err(ctx.error(format!("a bias of {numbers} numbers for {outputs} outputs")));
            }
            let bias = bias.map_or(0, DeviceBuffer::address);
            let form = u64::from(matrix.form) | u64::from(matrix.factor.to_bits()) << 32;
            words.extend([matrix.buffer.address(), form, bias]);
        }
        let integers = in_integers > 0;
        if integers && in_integers < self.rule.n {
            return Err(ctx.error(format!(
                "`{name}` of {in_integers} of its {} experts is multiplied in integers; run with the option `arithmetic exact`",
                self.rule.n
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
        Ok(self.tables[part].get_or_init(|| table))
    }

    /// Multiplies the rows of all pairs by a matrix of their experts. `share` pairs have a row of `x` together.
    fn multiply(
        &self,
        ctx: &Ctx<'_>,
        part: usize,
        (x, share): (&DeviceValue, usize),
        pairs: &SortedPairs,
        (outputs, inputs): (usize, usize),
        dtype: Dtype,
    ) -> Result<DeviceValue, Error> {
        let queue = ctx.queue()?;
        if ctx.is_watched() {
            self.observe(ctx, part, (x, share), pairs, inputs)?;
        }
        let ExpertTable { words: table, integers, kinds } =
            self.table(ctx, part, outputs, inputs)?;
        let x = &*round_inputs::rows_for(ctx, &format!("{}.0", PARTS[part]), x)?;
        let y = DeviceValue::of(queue, dtype, &[pairs.count, outputs])?;
        // As if rows were shared out evenly.
        let each = pairs.count / self.rule.n.max(1);
        if kinds.iter().all(|kind| library::takes(ctx, each, x.dtype, *kind)) {
            self.multiply_in_groups(ctx, part, (x, share), pairs, (table, &y))?;
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
            index(ctx, self.rule.n)?.into(),
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
        part: usize,
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
        for (expert, places) in pairs.groups()?.iter().filter(|(expert, _)| *expert < self.rule.n) {
            let weight = ctx.device_matrix(&format!("{}.{expert}", PARTS[part]))?;
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
            index(ctx, self.rule.n)?.into(),
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
        part: usize,
        (x, share): (&DeviceValue, usize),
        pairs: &SortedPairs,
        inputs: usize,
    ) -> Result<(), Error> {
        let order = pairs.order.read(0, 4 * pairs.count)?;
        let order = order.as_chunks::<4>().0;
        let x = x.download()?;
        for (expert, places) in pairs.groups()?.iter().filter(|(expert, _)| *expert < self.rule.n) {
            let rows = order[places.clone()].iter().flat_map(|pair| {
                let row = u32::from_le_bytes(*pair) as usize / share;
                &x[row * inputs..][..inputs]
            });
            let rows: Vec<f32> = rows.copied().collect();
            ctx.observe_product(&format!("{}.{expert}", PARTS[part]), inputs, &rows);
        }
        Ok(())
    }

    /// Makes what goes into the last matrix.
    fn inner(
        &self,
        ctx: &Ctx<'_>,
        input: (&DeviceValue, usize),
        pairs: &SortedPairs,
        hidden: usize,
        dtype: Dtype,
    ) -> Result<DeviceValue, Error> {
        let queue = ctx.queue()?;
        let Experts { ffn, limit, alpha, plain, .. } = self.rule;
        let up = self.multiply(ctx, 1, input, pairs, (ffn, hidden), dtype)?;
        let numbers = &*up.buffer;
        if plain {
            let arguments = [
                self.kind.into(),
                numbers.into(),
                dtype.into(),
                numbers.into(),
                dtype.into(),
                count(up.len()),
            ];
            queue.launch_each("activation", up.len(), &arguments)?;
            return Ok(up);
        }
        let gate = self.multiply(ctx, 0, input, pairs, (ffn, hidden), dtype)?;
        let arguments = [
            self.kind.into(),
            (&*gate.buffer).into(),
            numbers.into(),
            limit.is_some().into(),
            limit.map_or(0.0, |limit| round1(dtype, limit)).into(),
            alpha.is_some().into(),
            alpha.unwrap_or(0.0).into(),
            dtype.into(),
            count(up.len()),
        ];
        queue.launch_each("experts_gate", up.len(), &arguments)?;
        Ok(gate)
    }
}

/// Places the rows of a value from `first` on.
fn rows_from(value: &DeviceValue, first: usize, width: usize) -> PlacedMatrix<'_> {
    let (buffer, place) = whole(&value.buffer, width);
    (buffer, MatrixPlace { at: first * width, ..place })
}

/// Sorts the pairs of the step by expert.
fn sorted(ctx: &Ctx<'_>, chosen: &DeviceValue, all: usize) -> Result<SortedPairs, Error> {
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

impl Kernel for DeviceExperts {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let chosen = ctx.device_input(1)?;
        let weights = ctx.device_input(2)?;
        let Experts { n, ffn, on_input, once, identities, .. } = self.rule;
        let hidden = x.width();
        let k = chosen.width();
        let rows = x.rows();
        if chosen.rows() != rows || weights.shape != chosen.shape {
            return Err(ctx.error("values and choices differ in rows"));
        }
        let y = ctx.device_output(0, rows)?;
        if y.width() != hidden || k == 0 {
            return Err(ctx.error(format!("rows of {hidden} give {:?} by {k} choices", y.shape)));
        }
        // Experts without weights, which give back what they get, come behind the others.
        let dtype = y.dtype;
        let all = n + identities;
        let pairs = sorted(ctx, &chosen, all)?;
        let weighted = if on_input {
            let weighted = DeviceValue::of(queue, dtype, &[pairs.count, hidden])?;
            let arguments = [
                (&*x.buffer).into(),
                x.dtype.into(),
                (&*weights.buffer).into(),
                weights.dtype.into(),
                index(ctx, k)?.into(),
                index(ctx, hidden)?.into(),
                (&*weighted.buffer).into(),
                dtype.into(),
                count(weighted.len()),
            ];
            queue.launch_each("experts_inputs", weighted.len(), &arguments)?;
            Some(weighted)
        } else {
            None
        };
        let (input, share) = weighted.as_ref().map_or((&x, k), |weighted| (weighted, 1));
        let inner = self.inner(ctx, (input, share), &pairs, hidden, dtype)?;
        let products = self.multiply(ctx, 2, (&inner, 1), &pairs, (hidden, ffn), dtype)?;
        // What is added in f32 is not rounded before.
        let each = if once { Dtype::F32 } else { dtype };
        let arguments = [
            (&*products.buffer).into(),
            (&*input.buffer).into(),
            input.dtype.into(),
            index(ctx, share)?.into(),
            (&*chosen.buffer).into(),
            chosen.dtype.into(),
            (&*weights.buffer).into(),
            weights.dtype.into(),
            on_input.into(),
            index(ctx, n)?.into(),
            index(ctx, all)?.into(),
            index(ctx, k)?.into(),
            index(ctx, hidden)?.into(),
            each.into(),
            (&*y.buffer).into(),
            dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("experts_sum", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}
