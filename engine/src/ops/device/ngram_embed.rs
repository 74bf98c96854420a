//! `ngram_embed` on a device.

use std::sync::Arc;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{KernelArgument, KernelParts, count};
use crate::ops::device::index;
use crate::ops::ngram_embed::NgramEmbed;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::store::device::RowWrites;
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("ngram_embed", |args: &Args<'_>| NgramEmbed::prepare(args).map(DeviceNgrams));
}

struct DeviceNgrams(NgramEmbed);

impl Kernel for DeviceNgrams {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let NgramEmbed { factors, sizes, end } = &self.0;
        let queue = ctx.queue()?;
        let weight = ctx.device_matrix("weight")?;
        let hashes = sizes.len();
        let total: usize = sizes.iter().map(|size| *size as usize).sum();
        if weight.inputs * hashes != ctx.output_width(0)? || weight.outputs < total {
            return Err(ctx.error(format!(
                "its weight has {} rows of {}, fewer or others than it looks up",
                weight.outputs, weight.inputs
            )));
        }
        let tokens = ctx.tokens();
        let numbers: Vec<f32> = tokens.iter().map(|token| *token as f32).collect();
        let rows = DeviceValue {
            buffer: Arc::new(queue.upload(bytemuck::cast_slice(&numbers))?),
            dtype: Dtype::F32,
            shape: vec![tokens.len(), 1],
        };
        let tokens = queue.upload(bytemuck::cast_slice(tokens))?;
        let factor_buffer = queue.upload(bytemuck::cast_slice(factors))?;
        let size_buffer = queue.upload(bytemuck::cast_slice(sizes))?;
        let places = queue.allocate(4 * rows.rows() * hashes)?;
        let mut writes = RowWrites::default();
        let mut launch = KernelParts::new("ngram_rows");
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold tokens");
            let from = index(ctx, chunk.rows.start)?;
            let chunk_rows = index(ctx, chunk.rows.len())?;
            let start = index(ctx, chunk.start)?;
            let hash_count = index(ctx, hashes)?;
            let longest = index(ctx, factors.len())?;
            let Memory::Index(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.width() != 1 || memory.end() != chunk.start {
                return Err(wrong);
            }
            memory.append_value(&rows, (chunk.rows.start, chunk.rows.len()), &mut writes)?;
            let (past, held) = memory.cache()?;
            let mut arguments: Vec<KernelArgument> =
                vec![(&tokens).into(), from.into(), chunk_rows.into()];
            arguments.extend(&past.list[..2]);
            arguments.extend::<[KernelArgument; 8]>([
                held.into(),
                start.into(),
                (&factor_buffer).into(),
                longest.into(),
                (&size_buffer).into(),
                hash_count.into(),
                (*end).into(),
                (&places).into(),
            ]);
            launch.push_each(chunk.rows.len() * hashes, arguments);
        }
        let mut launches = writes.into_launches();
        launches.push(launch);
        queue.launch_parts(&launches)?;
        let y = ctx.device_output(0, rows.rows())?;
        let arguments = [
            (&weight.buffer).into(),
            weight.form.into(),
            weight.factor.into(),
            (&places).into(),
            index(ctx, weight.inputs)?.into(),
            1.0_f32.into(),
            false.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("embed", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}
