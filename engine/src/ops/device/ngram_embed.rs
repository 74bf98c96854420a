//! `ngram_embed` on a device.

use std::sync::Arc;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::device::embed::look_up;
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
        let NgramEmbed { factors, sizes, end, .. } = &self.0;
        let queue = ctx.queue()?;
        let hashes = sizes.len();
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
            if memory.end() != chunk.start {
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
        look_up(ctx, &places, None, y)
    }
}
