//! Decodes codes and scales: `code * scale` in f32, as the formats define it.

use std::sync::Arc;

use super::super::{Checkpoint, Error};
use super::integers::{GroupOrder, IntegerLayout, IntegerWeight};
use super::scale_tensor::ScaleTensor;
use super::{Encoding, GlobalScale, QuantizedWeight};
use crate::flow::{Flow, ValueReader};
use formats::numbers;
use formats::safetensors::FileDtype;

/// Returns the values of a weight, read on demand.
pub(in super::super) fn flow<'c>(
    checkpoint: &'c Checkpoint,
    weight: &QuantizedWeight,
) -> Result<Flow<'c>, Error> {
    let (dtype, codes) = part(checkpoint, weight, 0)?;
    let (scale_dtype, scale_bytes) = part(checkpoint, weight, 1)?;
    let columns = weight.shape.get(1).copied().unwrap_or(1);
    let scales = ScaleTensor { dtype: scale_dtype, bytes: scale_bytes };
    let numbers: Arc<dyn ValueReader + 'c> = match weight.kind.clone() {
        Encoding::Fp8(down, across) => {
            Arc::new(Fp8Weight { dtype, codes, scales, columns, down, across })
        }
        Encoding::Fp4(group, how) => {
            let global = match how {
                GlobalScale::None => None,
                GlobalScale::Divides | GlobalScale::Multiplies => {
                    part(checkpoint, weight, 2)?;
                    Some((how, global(checkpoint, weight).unwrap_or(0.0)))
                }
            };
            Arc::new(Fp4Weight { codes, scales, group, columns, global })
        }
        Encoding::Integers(plan) => {
            let zeros = match plan.zeros_at() {
                Some(n) => part(checkpoint, weight, n)?.1,
                None => &[],
            };
            let order = match plan.order_at() {
                Some(n) => {
                    let (_, order) = part(checkpoint, weight, n)?;
                    chosen(checkpoint, &weight.parts[n], &plan, order)?
                }
                None => None,
            };
            Arc::new(IntegerWeight { plan, codes, scales, zeros, order, inputs: columns })
        }
    };
    Ok(Flow::new(&weight.shape, numbers))
}

/// Returns the dtype and the bytes of part `n` of a weight.
fn part<'c>(
    checkpoint: &'c Checkpoint,
    weight: &QuantizedWeight,
    n: usize,
) -> Result<(FileDtype, &'c [u8]), Error> {
    let name = weight.parts.get(n).map_or("", String::as_str);
    let bytes = checkpoint.stored_bytes(name)?;
    Ok((checkpoint.stored(name).map_or(FileDtype::U8, |info| info.dtype), bytes))
}

/// Reads the global scale.
pub(super) fn global(checkpoint: &Checkpoint, weight: &QuantizedWeight) -> Option<f32> {
    let name = weight.parts.get(2)?;
    let dtype = checkpoint.stored(name)?.dtype;
    let mut one = [0.0];
    numbers::to_f32(dtype, checkpoint.stored_bytes(name).ok()?, &mut one).ok()?;
    Some(one[0])
}

/// Returns the checked group index of each input; none if groups are contiguous.
fn chosen<'c>(
    checkpoint: &Checkpoint,
    name: &str,
    plan: &IntegerLayout,
    order: &'c [u8],
) -> Result<Option<&'c [u8]>, Error> {
    if plan.order == GroupOrder::StoredIfSet && group_numbers(order).any(|group| group == -1) {
        return Ok(None);
    }
    match group_numbers(order)
        .find(|&group: &i32| usize::try_from(group).map_or(true, |group| group >= plan.groups))
    {
        None => Ok(Some(order)),
        Some(group) => {
            let actual = format!("group {group}");
            let expected = format!("groups from 0 to {}", plan.groups - 1);
            Err(checkpoint.coded(name, actual, expected))
        }
    }
}

/// Returns the stored group number of each input.
fn group_numbers(order: &[u8]) -> impl Iterator<Item = i32> {
    order.as_chunks::<4>().0.iter().map(|group| i32::from_le_bytes(*group))
}

struct Fp8Weight<'a> {
    dtype: FileDtype,
    codes: &'a [u8],
    scales: ScaleTensor<'a>,
    columns: usize,
    down: usize,
    across: usize,
}

impl ValueReader for Fp8Weight<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        numbers::widen(self.dtype, &self.codes[at..at + out.len()], out);
        let wide = self.columns.div_ceil(self.across);
        let mut done = 0;
        while done < out.len() {
            let row = (at + done) / self.columns;
            let column = (at + done) % self.columns;
            let end = ((column / self.across + 1) * self.across).min(self.columns);
            let now = (end - column).min(out.len() - done);
            let scale = self.scales.at(row / self.down * wide + column / self.across);
            out[done..done + now].iter_mut().for_each(|x| *x *= scale);
            done += now;
        }
    }
}

struct Fp4Weight<'a> {
    codes: &'a [u8],
    scales: ScaleTensor<'a>,
    group: usize,
    columns: usize,
    global: Option<(GlobalScale, f32)>,
}

impl ValueReader for Fp4Weight<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let wide = self.columns.div_ceil(self.group);
        let mut done = 0;
        while done < out.len() {
            let row = (at + done) / self.columns;
            let column = (at + done) % self.columns;
            let end = ((column / self.group + 1) * self.group).min(self.columns);
            let now = (end - column).min(out.len() - done);
            let scale = self.scales.at(row * wide + column / self.group);
            let scale = match self.global {
                Some((GlobalScale::Divides, global)) => scale / global,
                Some((_, global)) => scale * global,
                None => scale,
            };
            for (n, x) in (at + done..).zip(&mut out[done..done + now]) {
                *x = numbers::f4_e2m1_to_f32(self.codes[n / 2] >> (n % 2 * 4)) * scale;
            }
            done += now;
        }
    }
}
