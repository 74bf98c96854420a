//! The largest number of tensors that share a scale, which has to be known before the first is
//! written.

use std::collections::BTreeMap;

use rayon::prelude::*;
use registry::quant::Quant;

use super::{Choice, Tensor};
use crate::numbers::first_not_finite;

/// Numbers read at a time.
const SLAB: usize = 1 << 18;

/// The largest number of each tensor that is quantized and of those that share its scale; 0 for
/// the others. Every quantized tensor is read once.
pub fn peaks(
    tensors: &[Tensor<'_>],
    choices: &[Choice],
    quant: &Quant,
    threads: usize,
) -> Result<Vec<f32>, String> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let own = pool.map_err(|e| format!("cannot start {threads} threads: {e}"))?.install(|| {
        let all = tensors.par_iter().zip(choices);
        all.map(|(tensor, choice)| if choice.kept.is_some() { Ok(0.0) } else { peak(tensor) })
            .collect::<Result<Vec<f32>, String>>()
    })?;
    let places: BTreeMap<&str, usize> =
        tensors.iter().enumerate().map(|(n, tensor)| (tensor.weight.as_str(), n)).collect();
    let shared = tensors.iter().map(|tensor| {
        let group = quant.together(&tensor.weight);
        let of = |name: &String| places.get(name.as_str()).map_or(0.0, |&n| own[n]);
        group.iter().map(of).fold(0.0, f32::max)
    });
    Ok(shared.collect())
}

fn peak(tensor: &Tensor<'_>) -> Result<f32, String> {
    let count = tensor.flow.len();
    let slabs: Vec<usize> = (0..count).step_by(SLAB).collect();
    let largest = |at: &usize| {
        let mut numbers = vec![0.0_f32; SLAB.min(count - at)];
        tensor.flow.read(*at, &mut numbers);
        // NaN would be lost in a maximum, and infinity is as bad.
        match first_not_finite(&numbers) {
            Some(n) => {
                let (name, at, x) = (crate::shown(&tensor.name), at + n, numbers[n]);
                Err(format!("tensor `{name}` cannot be quantized: number {at} is {x}"))
            }
            None => Ok(numbers.iter().fold(0.0_f32, |most, x| most.max(x.abs()))),
        }
    };
    slabs.par_iter().map(largest).try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
}
