//! `linear` and `linears` on a device.

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument};
use crate::ops::device::codes::CodedRows;
use crate::ops::device::round_inputs::rows_for;
use crate::ops::device::{index, library, product_blocks};
use crate::ops::linear::{expect_product, expect_products};
use crate::ops::{Ctx, Kernels};
use crate::value::DeviceValue;
use crate::weights::DeviceMatrix;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("linear", |args| {
        expect_product(args, 0, "weight", "bias")?;
        Ok(|ctx: &mut Ctx<'_>| multiply(ctx, 0, "weight", "bias"))
    });
    kernels.prepared("linears", |args| {
        expect_products(args)?;
        Ok(multiply_all)
    });
}

fn multiply_all(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    (0..ctx.node().outputs.len())
        .try_for_each(|n| multiply(ctx, n, &format!("weight.{n}"), &format!("bias.{n}")))
}

fn multiply(ctx: &mut Ctx<'_>, n: usize, weight: &str, bias: &str) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let role = weight;
    let weight = ctx.device_matrix(role)?;
    let bias = ctx.device_vector(bias);
    if ctx.is_watched() {
        ctx.observe_product(role, weight.inputs, &x.download()?);
    }
    let y = ctx.device_output(n, x.rows())?;
    product(ctx, &*rows_for(ctx, role, &x)?, weight, bias, &y)?;
    ctx.set_device(n, y)
}

/// Multiplies rows by a matrix; the caller has checked the shapes.
pub(super) fn product(
    ctx: &Ctx<'_>,
    x: &DeviceValue,
    weight: &DeviceMatrix,
    bias: Option<&DeviceBuffer>,
    y: &DeviceValue,
) -> Result<(), Error> {
    let outputs = weight.outputs;
    let inputs = weight.inputs;
    let rows = x.rows();
    if library::takes(ctx, rows, x.dtype, weight.plain()) {
        return library::product(ctx, x, weight, bias, y);
    }
    let coded = weight.integers.then(|| CodedRows::new(ctx, x)).transpose()?;
    let mut arguments =
        coded.as_ref().map_or([(&*x.buffer).into(), x.dtype.into()], CodedRows::arguments).to_vec();
    arguments.extend::<[KernelArgument; 9]>([
        index(ctx, rows)?.into(),
        (&weight.buffer).into(),
        weight.form.into(),
        weight.factor.into(),
        index(ctx, outputs)?.into(),
        index(ctx, inputs)?.into(),
        bias.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
    ]);
    let kernel = if coded.is_some() { "linear_codes" } else { "linear" };
    ctx.queue()?.launch(kernel, product_blocks(rows, outputs), &arguments)
}
