//! Recurrences on a device: `ssd_scan`, `ssm1_scan`, `log_decay`, `delta_rule`, `rg_lru`, `wkv`, `mlstm`, `lightning`.

use std::sync::OnceLock;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::source::THREADS;
use crate::device::{DeviceBuffer, KernelArgument, KernelParts, count};
use crate::kernels::math::softplus;
use crate::kernels::round::round1;
use crate::ops::delta_rule::{DeltaRule, LogDecay};
use crate::ops::device::{index, last_axis};
use crate::ops::lightning::Lightning;
use crate::ops::mlstm::Mlstm;
use crate::ops::ssd_scan::SsdScan;
use crate::ops::ssm1_scan::Ssm1Scan;
use crate::ops::wkv::decays;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::recurrent::DeviceRecurrentStep;
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("ssd_scan", |args: &Args<'_>| {
        Ok(DeviceSsd { rule: SsdScan::prepare(args)?, decays: OnceLock::new() })
    });
    kernels.prepared("ssm1_scan", |args: &Args<'_>| {
        Ok(DeviceSsm1 { rule: Ssm1Scan::prepare(args)?, decays: OnceLock::new() })
    });
    kernels.prepared("log_decay", |args: &Args<'_>| {
        Ok(DeviceLogDecay { rule: LogDecay::prepare(args)?, rates: OnceLock::new() })
    });
    kernels.prepared("delta_rule", |args: &Args<'_>| DeltaRule::prepare(args).map(DeviceDelta));
    kernels.prepared("rg_lru", |_: &Args<'_>| Ok(DeviceRgLru { soft: OnceLock::new() }));
    kernels.prepared("wkv", |_: &Args<'_>| Ok(DeviceWkv { decays: OnceLock::new() }));
    kernels.prepared("mlstm", |args: &Args<'_>| Mlstm::prepare(args).map(DeviceMlstm));
    kernels.prepared("lightning", |args: &Args<'_>| Lightning::prepare(args).map(DeviceLightning));
}

/// Returns numbers that the CPU makes of weights once in a session, so that they have its bits.
fn table<'t>(
    ctx: &Ctx<'_>,
    table: &'t OnceLock<DeviceBuffer>,
    make: impl FnOnce() -> Result<Vec<f32>, Error>,
) -> Result<&'t DeviceBuffer, Error> {
    if let Some(table) = table.get() {
        return Ok(table);
    }
    let uploaded = ctx.queue()?.upload(bytemuck::cast_slice(&make()?))?;
    Ok(table.get_or_init(|| uploaded))
}

/// The kernel of a recurrence and its sizes.
struct ScanKernel {
    name: &'static str,
    /// Numbers of the state.
    width: usize,
    /// Parts of the state, each with a thread.
    threads: usize,
    /// Blocks of the state that a chunk needs to begin a sequence, besides those that are kept.
    begins: usize,
}

/// Places of the blocks of one chunk.
struct ScanPart {
    before: KernelArgument,
    /// Offset of the addresses of the kept blocks.
    first: usize,
    kept: usize,
    /// Offset of the blocks that are not kept.
    work: usize,
}

/// Runs the kernel of a recurrence for all chunks, and rounds the blocks that are kept.
fn scan(ctx: &mut Ctx<'_>, kernel: &ScanKernel, more: &[KernelArgument]) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let &ScanKernel { name, width, threads, begins } = kernel;
    let mut rounding = KernelParts::new("round_numbers");
    let mut parts = Vec::new();
    let mut places = Vec::<u64>::new();
    let mut blocks = 0;
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold blocks of this shape");
        let Memory::Recurrent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
        if width == 0 || memory.width() != width || memory.end() != chunk.start {
            return Err(wrong);
        }
        let DeviceRecurrentStep { before, after, dtype } = memory.device_step(chunk.rows.len())?;
        let kept_blocks = after.len();
        parts.push(ScanPart {
            before: before.into(),
            first: places.len(),
            kept: kept_blocks,
            work: blocks,
        });
        places.extend(after.iter().map(|block| block.address()));
        if dtype != Dtype::F32 {
            for block in after {
                rounding.push_each(width, vec![block.into(), dtype.into(), count(width)]);
            }
        }
        let begins = if chunk.start == 0 { begins } else { 0 };
        blocks += begins.max(usize::from(chunk.rows.len() > kept_blocks));
    }
    let places = queue.upload(bytemuck::cast_slice(&places))?;
    let work = queue.allocate(4 * width * blocks)?;
    let mut launch = KernelParts::new(name);
    for (chunk, part) in ctx.chunks().iter().zip(&parts) {
        let mut arguments = vec![
            part.before,
            places.argument(8 * part.first)?,
            (part.kept as u32).into(),
            work.argument(4 * width * part.work)?,
            index(ctx, chunk.rows.start)?.into(),
            index(ctx, chunk.rows.len())?.into(),
            (chunk.start > 0).into(),
        ];
        arguments.extend(more);
        launch.push_each(threads, arguments);
    }
    queue.launch_parts(&[launch, rounding])
}

/// Computes softplus(dt + bias) of the second input, between bounds, rounded as activations are.
fn steps(ctx: &Ctx<'_>, width: usize, (low, high): (f32, f32)) -> Result<DeviceBuffer, Error> {
    let queue = ctx.queue()?;
    let dt = ctx.device_input(1)?;
    let bias = ctx.device_vector("dt_bias");
    if dt.width() != width || bias.is_some_and(|bias| bias.bytes() != 4 * width) {
        return Err(ctx.error(format!("its steps are {width} numbers")));
    }
    let rounded = queue.allocate(4 * dt.len())?;
    let arguments = [
        (&*dt.buffer).into(),
        dt.dtype.into(),
        index(ctx, width)?.into(),
        bias.into(),
        low.into(),
        high.into(),
        ctx.activation().into(),
        (&rounded).into(),
        count(dt.len()),
    ];
    queue.launch_each("scan_steps", dt.len(), &arguments)?;
    Ok(rounded)
}

fn pair(value: &DeviceValue) -> [KernelArgument; 2] {
    [(&*value.buffer).into(), value.dtype.into()]
}

struct DeviceSsd {
    rule: SsdScan,
    /// -exp(A) of each head.
    decays: OnceLock<DeviceBuffer>,
}

fn negative_exponentials(ctx: &Ctx<'_>, role: &str) -> Result<Vec<f32>, Error> {
    Ok(ctx.need_vector(role)?.iter().map(|a| -a.exp()).collect())
}

impl Kernel for DeviceSsd {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let b = ctx.device_input(2)?;
        let c = ctx.device_input(3)?;
        let (&[_, heads, dim], &[_, groups, size]) = (x.shape.as_slice(), b.shape.as_slice())
        else {
            return Err(ctx.error("its first input has heads, its third has groups"));
        };
        if groups == 0 || heads % groups != 0 || b.shape != c.shape || size == 0 {
            return Err(ctx.error(format!("{groups} groups do not share {heads} heads")));
        }
        let dtype = ctx.activation();
        ctx.need_vector("dt_bias")?;
        // Bounds become numbers of the dtype, as torch's `clamp` makes them.
        let low = self.rule.low.map_or(f32::NEG_INFINITY, |x| round1(dtype, x));
        let high = self.rule.high.map_or(f32::INFINITY, |x| round1(dtype, x));
        let steps = steps(ctx, heads, (low, high))?;
        let decays = table(ctx, &self.decays, || negative_exponentials(ctx, "A_log"))?;
        let skips = ctx.device_vector("D");
        if decays.bytes() != 4 * heads || skips.is_none_or(|skips| skips.bytes() != 4 * heads) {
            return Err(ctx.error(format!("its weights are not those of {heads} heads")));
        }
        let y = ctx.device_output(0, x.rows())?;
        if y.width() != x.width() {
            return Err(ctx.error(format!("{:?} give no {:?}", x.shape, y.shape)));
        }
        let grid = if self.rule.stepwise { dtype } else { Dtype::F32 };
        let mut more = pair(&x).to_vec();
        more.push((&steps).into());
        more.extend([pair(&b), pair(&c)].concat());
        more.extend::<[KernelArgument; 9]>([
            decays.into(),
            skips.into(),
            index(ctx, heads)?.into(),
            index(ctx, dim)?.into(),
            index(ctx, groups)?.into(),
            index(ctx, size)?.into(),
            grid.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ]);
        let kernel = ScanKernel {
            name: "ssd_scan",
            width: heads * dim * size,
            threads: heads * dim,
            begins: 0,
        };
        scan(ctx, &kernel, &more)?;
        ctx.set_device(0, y)
    }
}

struct DeviceSsm1 {
    rule: Ssm1Scan,
    /// -exp(A) of each number of the state.
    decays: OnceLock<DeviceBuffer>,
}

impl Kernel for DeviceSsm1 {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let b = ctx.device_input(2)?;
        let c = ctx.device_input(3)?;
        let channels = x.width();
        let dim = last_axis(&x);
        let size = last_axis(&b);
        let heads = channels.checked_div(dim).unwrap_or(0);
        let decays = table(ctx, &self.decays, || negative_exponentials(ctx, "A_log"))?;
        let skips = ctx.device_vector("D");
        let y = ctx.device_output(0, x.rows())?;
        if heads == 0
            || size == 0
            || b.width() != heads * size
            || c.width() != b.width()
            || decays.bytes() != 4 * channels * size
            || skips.is_none_or(|skips| skips.bytes() != 4 * channels)
            || y.width() != channels
        {
            return Err(ctx.error(format!(
                "{channels} channels in {heads} heads do not fit its other inputs and weights"
            )));
        }
        let steps = steps(ctx, channels, (f32::NEG_INFINITY, f32::INFINITY))?;
        let mut more = pair(&x).to_vec();
        more.push((&steps).into());
        more.extend([pair(&b), pair(&c)].concat());
        more.extend::<[KernelArgument; 9]>([
            decays.into(),
            skips.into(),
            index(ctx, channels)?.into(),
            index(ctx, dim)?.into(),
            index(ctx, size)?.into(),
            ctx.activation().into(),
            self.rule.stepwise.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ]);
        let kernel =
            ScanKernel { name: "ssm1_scan", width: channels * size, threads: channels, begins: 0 };
        scan(ctx, &kernel, &more)?;
        ctx.set_device(0, y)
    }
}

struct DeviceLogDecay {
    rule: LogDecay,
    /// exp(A) of each head.
    rates: OnceLock<DeviceBuffer>,
}

impl Kernel for DeviceLogDecay {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let width = x.width();
        let rates = table(ctx, &self.rates, || {
            Ok(ctx.need_vector("A")?.iter().map(|a| a.exp()).collect())
        })?;
        let rate_count = rates.bytes() / 4;
        let dt = ctx.device_vector("dt");
        let y = ctx.device_output(0, x.rows())?;
        if dt.is_none_or(|dt| dt.bytes() != 4 * width)
            || rate_count == 0
            || width % rate_count != 0
            || y.width() != width
        {
            return Err(ctx.error(format!("{rate_count} rates do not fit {width} numbers")));
        }
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, width)?.into(),
            rates.into(),
            index(ctx, width / rate_count)?.into(),
            dt.into(),
            self.rule.floor.is_some().into(),
            self.rule.floor.unwrap_or(0.0).into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("log_decay", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceDelta(DeltaRule);

impl DeviceDelta {
    /// Makes each head of length 1 if the rule says so, times a factor.
    fn unit_heads(
        &self,
        ctx: &Ctx<'_>,
        x: &DeviceValue,
        head: usize,
        scale: f32,
    ) -> Result<DeviceBuffer, Error> {
        let queue = ctx.queue()?;
        let scaled = queue.allocate(4 * x.len())?;
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, head)?.into(),
            self.0.eps.is_some().into(),
            self.0.eps.unwrap_or(0.0).into(),
            self.0.divides.into(),
            scale.into(),
            (&scaled).into(),
        ];
        queue.launch("unit_heads", x.len() / head.max(1), &arguments)?;
        Ok(scaled)
    }
}

impl Kernel for DeviceDelta {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let q = ctx.device_input(0)?;
        let k = ctx.device_input(1)?;
        let v = ctx.device_input(2)?;
        let g = ctx.device_input(3)?;
        let beta = ctx.device_input(4)?;
        let (&[_, key_heads, key], &[_, heads, value]) = (k.shape.as_slice(), v.shape.as_slice())
        else {
            return Err(ctx.error("keys and values have two axes each, heads and head size"));
        };
        let y = ctx.device_output(0, v.rows())?;
        let fits = key_heads > 0
            && heads > 0
            && heads % key_heads == 0
            && q.width() == k.width()
            && beta.width() == heads
            && y.width() == v.width()
            && (g.width() == heads || g.width() == heads * key);
        if !fits {
            return Err(ctx.error("its inputs and its state do not fit"));
        }
        let units = self.unit_heads(ctx, &q, key, self.0.scale)?;
        let keys = self.unit_heads(ctx, &k, key, 1.0)?;
        let decays = queue.allocate(4 * g.len())?;
        let arguments = [(&*g.buffer).into(), g.dtype.into(), (&decays).into(), count(g.len())];
        queue.launch_each("exponentials", g.len(), &arguments)?;
        let mut more: Vec<KernelArgument> = vec![(&units).into(), (&keys).into()];
        more.extend(pair(&v));
        // Numbers of a head's decay: one, or one for each channel of the keys.
        more.extend::<[KernelArgument; 2]>([
            (&decays).into(),
            index(ctx, g.width() / heads)?.into(),
        ]);
        more.extend(pair(&beta));
        for size in [heads, key_heads, key, value] {
            more.push(index(ctx, size)?.into());
        }
        more.extend(pair(&y));
        let kernel = ScanKernel {
            name: "delta_rule",
            width: heads * key * value,
            threads: heads * value,
            begins: 0,
        };
        scan(ctx, &kernel, &more)?;
        ctx.set_device(0, y)
    }
}

struct DeviceRgLru {
    /// softplus(P) of each channel, rounded.
    soft: OnceLock<DeviceBuffer>,
}

impl Kernel for DeviceRgLru {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let input = ctx.device_input(1)?;
        let gate = ctx.device_input(2)?;
        let channels = x.width();
        let dtype = ctx.activation();
        let soft = table(ctx, &self.soft, || {
            let param = ctx.need_vector("recurrent_param")?;
            Ok(param.iter().map(|p| round1(dtype, softplus(*p))).collect())
        })?;
        let y = ctx.device_output(0, x.rows())?;
        if soft.bytes() != 4 * channels
            || input.width() != channels
            || gate.width() != channels
            || y.width() != channels
        {
            return Err(ctx.error(format!("its gates and weight are not of {channels} channels")));
        }
        let mut more = [pair(&x), pair(&input), pair(&gate)].concat();
        more.extend::<[KernelArgument; 3]>([
            soft.into(),
            index(ctx, channels)?.into(),
            dtype.into(),
        ]);
        more.extend(pair(&y));
        let kernel = ScanKernel { name: "rg_lru", width: channels, threads: channels, begins: 0 };
        scan(ctx, &kernel, &more)?;
        ctx.set_device(0, y)
    }
}

struct DeviceWkv {
    /// -exp(time_decay) of each channel, rounded.
    decays: OnceLock<DeviceBuffer>,
}

impl Kernel for DeviceWkv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let k = ctx.device_input(0)?;
        let v = ctx.device_input(1)?;
        let channels = k.width();
        let decays = table(ctx, &self.decays, || decays(ctx))?;
        let bonus = ctx.device_vector("time_first");
        let y = ctx.device_output(0, v.rows())?;
        if decays.bytes() != 4 * channels
            || bonus.is_none_or(|bonus| bonus.bytes() != 4 * channels)
            || v.width() != channels
            || y.width() != channels
        {
            return Err(ctx.error(format!("its values and weights are not of {channels} channels")));
        }
        let mut more = [pair(&k), pair(&v)].concat();
        more.extend::<[KernelArgument; 3]>([
            decays.into(),
            bonus.into(),
            index(ctx, channels)?.into(),
        ]);
        more.extend(pair(&y));
        let kernel = ScanKernel { name: "wkv", width: 3 * channels, threads: channels, begins: 0 };
        scan(ctx, &kernel, &more)?;
        ctx.set_device(0, y)
    }
}

struct DeviceMlstm(Mlstm);

impl Kernel for DeviceMlstm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.device_input(0)?;
        let k = ctx.device_input(1)?;
        let v = ctx.device_input(2)?;
        let gates = [ctx.device_input(3)?, ctx.device_input(4)?];
        let (&[_, heads, key], &[_, _, value]) = (k.shape.as_slice(), v.shape.as_slice()) else {
            return Err(ctx.error("keys and values have two axes each, heads and head size"));
        };
        let y = ctx.device_output(0, v.rows())?;
        if q.width() != heads * key
            || v.width() != heads * value
            || y.width() != v.width()
            || gates.iter().any(|gate| gate.width() != heads)
        {
            return Err(ctx.error("its queries, keys, values and gates do not fit"));
        }
        let mut more = [&q, &k, &v, &gates[0], &gates[1]].map(pair).concat();
        for size in [heads, key, value] {
            more.push(index(ctx, size)?.into());
        }
        more.extend::<[KernelArgument; 3]>([
            self.0.scale.into(),
            self.0.eps.into(),
            self.0.stepwise.into(),
        ]);
        more.extend(pair(&y));
        let kernel = ScanKernel {
            name: "mlstm",
            width: heads * (key * (value + 1) + 1),
            // A block of threads for each head.
            threads: heads * THREADS,
            begins: 0,
        };
        scan(ctx, &kernel, &more)?;
        ctx.set_device(0, y)
    }
}

struct DeviceLightning(Lightning);

impl Kernel for DeviceLightning {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.device_input(0)?;
        let k = ctx.device_input(1)?;
        let v = ctx.device_input(2)?;
        let (&[_, heads, key], &[_, _, value]) = (k.shape.as_slice(), v.shape.as_slice()) else {
            return Err(ctx.error("keys and values have two axes each, heads and head size"));
        };
        let block = self.0.block;
        let y = ctx.device_output(0, v.rows())?;
        let mut more = [pair(&q), pair(&k), pair(&v)].concat();
        for (role, numbers) in [
            ("slope_rate", heads),
            ("query_decay", heads * block),
            ("key_decay", heads * block),
            ("diagonal_decay", heads * block * block),
        ] {
            let weight = ctx.device_vector(role);
            if weight.is_none_or(|weight| weight.bytes() != 4 * numbers) {
                return Err(ctx.error(format!("its `{role}` has no {numbers} numbers")));
            }
            more.push(weight.into());
        }
        if q.width() != heads * key
            || v.width() != heads * value
            || y.width() != v.width()
            || block == 0
        {
            return Err(ctx.error("its inputs and tables do not fit"));
        }
        for size in [heads, key, value, block] {
            more.push(index(ctx, size)?.into());
        }
        more.extend(pair(&y));
        let kernel = ScanKernel {
            name: "lightning",
            width: heads * key * value,
            threads: heads * value,
            begins: 2,
        };
        scan(ctx, &kernel, &more)?;
        ctx.set_device(0, y)
    }
}
