//! Finds the largest absolute value of tensors that share a scale.

use std::collections::BTreeMap;

use rayon::prelude::*;
use registry::quant::QuantRules;

use super::{DtypeChoice, FolderTensor};
use crate::peaks::{Error, in_threads, peak};

/// Returns the peak of each quantized tensor, taken over all tensors that share its scale; 0 for the
/// others. Every quantized tensor is read once.
pub fn peaks(
    tensors: &[FolderTensor<'_>],
    choices: &[DtypeChoice],
    quant: &QuantRules,
    threads: usize,
) -> Result<Vec<f32>, Error> {
    let all = tensors.par_iter().zip(choices);
    let tensor_peaks: Vec<f32> = in_threads(threads, || {
        all.map(|(tensor, choice): (&FolderTensor<'_>, &DtypeChoice)| match choice.kept {
            Some(_) => Ok(0.0),
            None => peak(&tensor.name, &tensor.flow, 0..tensor.flow.len()),
        })
        .collect::<Result<_, Error>>()
    })??;
    let places: BTreeMap<&str, usize> =
        tensors.iter().enumerate().map(|(n, tensor)| (tensor.weight.as_str(), n)).collect();
    let shared = tensors.iter().map(|tensor| {
        let group = quant.scale_group(&tensor.weight);
        group
            .iter()
            .map(|name: &String| places.get(name.as_str()).map_or(0.0, |&n| tensor_peaks[n]))
            .fold(0.0, f32::max)
    });
    Ok(shared.collect())
}
