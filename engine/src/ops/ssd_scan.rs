//! `ssd_scan`: state space duality (Dao and Gu 2024), a decay per head:
//! `S = exp(dt·A)·S + dt·x⊗B`, `y = S·C + D·x`.
//!
//! It is in f32 throughout, as `mamba2_chunk_scan` of transformers is. With `stepwise`, rows that
//! continue a sequence are rounded as `mamba2_selective_state_update` does.

use registry::dtype::Dtype;

use super::scan::{scan_rows, walk};
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::{dot, softplus};
use crate::kernels::round::{round_inline, round1};
use crate::kernels::ssd::{SsdRow, SsdRows, ssd_rows};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("ssd_scan", SsdScan::prepare);
}

/// Sizes of the heads, and of the groups that share inputs and outputs of the state.
#[derive(Debug, Clone, Copy)]
pub(super) struct SsdSizes {
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) groups: usize,
    /// Numbers of the state for each number of a head.
    pub(super) size: usize,
}

impl SsdSizes {
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let (&[heads, dim], &[groups, size]) = (args.input(0)?, args.input(2)?) else {
            return Err(args.error("its first input has heads, its third has groups"));
        };
        if groups == 0 || heads % groups != 0 || args.input(3)? != [groups, size] {
            return Err(args.error(format!("{groups} groups do not share {heads} heads")));
        }
        if ["A_log", "D", "dt_bias"].iter().any(|role| args.numbers(role) != heads) {
            return Err(args.error(format!("its weights are not those of {heads} heads")));
        }
        if args.width(1)? != heads || args.state_width()? != heads * dim * size {
            return Err(
                args.error(format!("its steps or its state are not those of {heads} heads"))
            );
        }
        args.expect_output(heads * dim)?;
        Ok(Self { heads, dim, groups, size })
    }
}

/// Sizes, bounds of a step, and the rounding of rows that continue a sequence.
pub(super) struct SsdScan {
    pub(super) sizes: SsdSizes,
    pub(super) low: Option<f32>,
    pub(super) high: Option<f32>,
    pub(super) stepwise: bool,
}

impl SsdScan {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            sizes: SsdSizes::of(args)?,
            low: args.number_or_null("dt_min")?,
            high: args.number_or_null("dt_max")?,
            stepwise: args.flag("stepwise")?,
        })
    }
}

impl Kernel for SsdScan {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let b = ctx.input(2)?;
        let c = ctx.input(3)?;
        let SsdSizes { heads, dim, groups, size } = self.sizes;
        let dt = self.steps(ctx)?;
        let decay: Vec<f32> = ctx.need_vector("A_log")?.iter().map(|a| -a.exp()).collect();
        let skip = ctx.need_vector("D")?;
        let dtype = ctx.activation();
        let stepwise = self.stepwise && dtype != Dtype::F32;
        let xs = x.view();
        let xs: &[f32] = &xs;
        let bs = b.view();
        let bs: &[f32] = &bs;
        let cs = c.view();
        let cs: &[f32] = &cs;
        let dt: &[f32] = &dt;
        let decay: &[f32] = &decay;
        let per_group = heads / groups;
        let row_of = |row: usize, head: usize| SsdRow {
            dt: dt[row * heads + head],
            decay: (dt[row * heads + head] * decay[head]).exp(),
            skip: skip[head],
            x: &xs[(row * heads + head) * dim..][..dim],
            b: &bs[(row * groups + head / per_group) * size..][..size],
            c: &cs[(row * groups + head / per_group) * size..][..size],
        };
        let y = scan_rows(ctx, heads, dim, |at, before, after, y| {
            if stepwise && at.continued {
                walk(at, before, after, y, &|at, before, after, y| {
                    rounded(&row_of(at.row, at.unit), dtype, before, after, y);
                });
            } else if at.count == 1 {
                walk(at, before, after, y, &|at, before, after, y| {
                    row_of(at.row, at.unit).run(before, after, y);
                });
            } else {
                let rows: Vec<SsdRow<'_>> =
                    (at.first..at.first + at.count).map(|row| row_of(row, at.unit)).collect();
                ssd_rows(SsdRows { rows: &rows, before, after, y });
            }
        })?;
        ctx.set(0, y)
    }
}

impl SsdScan {
    /// Computes `softplus(dt + bias)`, clamped, each step rounded: `[rows, heads]`.
    fn steps(&self, ctx: &Ctx<'_>) -> Result<Vec<f32>, Error> {
        let dt = ctx.input(1)?;
        let dtype = ctx.activation();
        let bias = ctx.need_vector("dt_bias")?;
        let heads = self.sizes.heads;
        // Bounds become numbers of the dtype, as torch's `clamp` makes them.
        let low = self.low.map_or(f32::NEG_INFINITY, |x| round1(dtype, x));
        let high = self.high.map_or(f32::INFINITY, |x| round1(dtype, x));
        Ok(rows::map(&dt.view(), heads, heads, |_, dt, y| {
            for ((y, dt), bias) in y.iter_mut().zip(dt).zip(bias) {
                let step = round1(dtype, softplus(round1(dtype, dt + bias)));
                *y = if step < low { low } else { step };
                *y = if *y > high { high } else { *y };
            }
        }))
    }
}

/// Computes one row, rounded as the reference rounds single steps.
#[expect(clippy::inline_always, reason = "part of a loop that is compiled for vectors")]
#[inline(always)]
fn rounded(row: &SsdRow<'_>, dtype: Dtype, before: &[f32], after: &mut [f32], y: &mut [f32]) {
    let size = row.b.len();
    let mut db: Vec<f32> = row.b.iter().map(|b| row.dt * b).collect();
    round_inline(dtype, &mut db);
    let mut line = vec![0.0; size];
    let lines = before.chunks_exact(size).zip(after.chunks_exact_mut(size));
    for (((from, to), x), y) in lines.zip(row.x).zip(y) {
        line.iter_mut().zip(&db).for_each(|(line, db)| *line = db * x);
        round_inline(dtype, &mut line);
        for ((to, from), dbx) in to.iter_mut().zip(from).zip(&line) {
            *to = from * row.decay + dbx;
        }
        // The state itself stays f32; what is read out of it does not.
        line.copy_from_slice(to);
        round_inline(dtype, &mut line);
        let read = round1(dtype, dot(&line, row.c));
        *y = round1(dtype, read + round1(dtype, x * row.skip));
    }
}
