//! Calibrated scales: of the inputs of matrices and of the KV cache.
//!
//! Matrices that engines fuse share one scale. All experts of a mixture share one scale for each of their
//! two inputs, because engines run them as one.
//!
//! They are planned before a text is read ([decision 39](../../../../docs/decisions/0039-measured-scales-in-the-plan.md)).

use std::collections::BTreeMap;
use std::fmt;

use registry::attention_modules::attention_modules;
use registry::graph::{Graph, StateId, WeightId};
use registry::model::Model;
use registry::ops::Trait;

use super::config::ScaleKinds;
use super::{DtypeChoice, FolderFormat, FolderItem, FolderTensor, known, scaled};

/// Reason that a checkpoint has no calibrated scales.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("{scaled}: no token of the text led there; give a longer text")]
    Unseen { scaled: Scalable },
    #[error(
        "{scaled}: there were numbers that are not finite, and no scale is of those; give \
         another text, or run `parity check` on the checkpoint"
    )]
    NotFinite { scaled: Scalable },
    #[error("the model keeps no keys and values, so there is no scale of them")]
    NoCaches,
}

/// Values that a calibrated scale is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalable {
    /// Inputs of the matrix whose scale has this name.
    Inputs(String),
    /// Keys or values whose scale has this name.
    Cache(String),
}

impl fmt::Display for Scalable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inputs(name) => write!(f, "what `{name}` multiplies"),
            Self::Cache(name) => write!(f, "`{name}`"),
        }
    }
}

/// Place in the model where a calibration run records the largest absolute value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeakSite {
    /// Rows that a weight multiplies.
    Input(WeightId),
    /// Part of a state.
    Cache(StateId, usize),
}

/// Calibrated scales of a checkpoint, by tensor name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CalibratedScales {
    /// Kinds of scales present.
    pub asked: ScaleKinds,
    /// Names and scales.
    pub all: Vec<(String, f32)>,
    /// Descriptions of the states that have no scale.
    pub skipped: Vec<String>,
}

impl CalibratedScales {
    /// Returns the scales as items of the plan.
    pub(super) fn items<'a>(&self, format: FolderFormat) -> Vec<FolderItem<'a>> {
        self.all
            .iter()
            .map(|(name, scale): &(String, f32)| {
                let (dtype, shape) = format.single();
                known(name.clone(), dtype, shape, *scale)
            })
            .collect()
    }
}

/// Returns the calibrated scales of a checkpoint, or all errors at once. `peak` returns the largest
/// absolute value that the calibration run saw; none if it saw no value.
pub fn scales(
    format: FolderFormat,
    asked: ScaleKinds,
    model: &Model,
    (tensors, choices): (&[FolderTensor<'_>], &[DtypeChoice]),
    peak: &dyn Fn(PeakSite) -> Option<f32>,
) -> Result<CalibratedScales, Vec<Error>> {
    let mut scales = CalibratedScales { asked, ..CalibratedScales::default() };
    let mut faults = Vec::new();
    if asked.inputs {
        for (names, weights) in inputs(model, tensors, choices) {
            match scale(format, Scalable::Inputs(names[0].clone()), weights, peak) {
                Ok(scale) => scales.all.extend(names.into_iter().map(|name| (name, scale))),
                Err(fault) => faults.push(fault),
            }
        }
    }
    if asked.caches {
        for (name, seen) in cache_scales(format, model, tensors, &mut scales.skipped) {
            match scale(format, Scalable::Cache(name.clone()), seen, peak) {
                Ok(scale) => scales.all.push((name, scale)),
                Err(fault) => faults.push(fault),
            }
        }
        if !scales.all.iter().any(|(name, _)| name.ends_with(".k_scale")) && faults.is_empty() {
            faults.push(Error::NoCaches);
        }
    }
    if faults.is_empty() { Ok(scales) } else { Err(faults) }
}

/// Returns the scale of the largest peak that was seen at some sites.
fn scale(
    format: FolderFormat,
    scaled: Scalable,
    seen: Vec<PeakSite>,
    peak: &dyn Fn(PeakSite) -> Option<f32>,
) -> Result<f32, Error> {
    let peaks: Vec<f32> = seen.into_iter().filter_map(peak).collect();
    match peaks.iter().copied().reduce(f32::max) {
        None => Err(Error::Unseen { scaled }),
        Some(_) if peaks.iter().any(|peak| !peak.is_finite()) => Err(Error::NotFinite { scaled }),
        Some(peak) => Ok(scaled::whole_scale(peak, format.single().0)),
    }
}

/// Returns the input scales by name, with the weights that share each scale.
fn inputs(
    model: &Model,
    tensors: &[FolderTensor<'_>],
    choices: &[DtypeChoice],
) -> Vec<(Vec<String>, Vec<PeakSite>)> {
    let latent = expanding(&model.graph);
    let last = last_of_experts(&model.graph);
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut groups: Vec<(Vec<String>, Vec<PeakSite>)> = Vec::new();
    for (tensor, choice) in tensors.iter().zip(choices) {
        let (None, Some(module)) = (choice.kept, tensor.name.strip_suffix("weight")) else {
            continue;
        };
        let key = match tensor.mixture {
            Some(mixture) => {
                let last = tensor.weights.iter().any(|id| last.contains(id));
                format!("mixture {mixture} {last}")
            }
            None => model.quant.scale_group(&tensor.weight).swap_remove(0),
        };
        let place = *places.entry(key).or_insert(groups.len());
        if place == groups.len() {
            groups.push((Vec::new(), Vec::new()));
        }
        groups[place].0.push(format!("{module}input_scale"));
        groups[place].1.extend(tensor.weights.iter().map(|&id| match latent.get(&id) {
            Some(&state) => PeakSite::Cache(state, 0),
            None => PeakSite::Input(id),
        }));
    }
    groups
}

/// Maps each weight that multiplies the contents of a state to that state.
fn expanding(graph: &Graph) -> BTreeMap<WeightId, StateId> {
    let nodes = graph.nodes.iter().filter(|node| node.op.is(Trait::ExpandsState));
    nodes.filter_map(|node| Some((*node.weights.get("weight")?, node.state?))).collect()
}

/// Returns the last weights of experts, whose input differs from that of the other expert weights.
fn last_of_experts(graph: &Graph) -> Vec<WeightId> {
    let nodes = graph.nodes.iter().filter(|node| node.op.is(Trait::Experts));
    let roles = nodes.flat_map(|node| &node.weights);
    roles.filter(|(role, _)| role.starts_with("down.")).map(|(_, &id)| id).collect()
}

/// Returns the names of the key and value scales, each once, with the cached states that they scale.
fn cache_scales(
    format: FolderFormat,
    model: &Model,
    tensors: &[FolderTensor<'_>],
    skipped: &mut Vec<String>,
) -> BTreeMap<String, Vec<PeakSite>> {
    let mut names: BTreeMap<String, Vec<PeakSite>> = BTreeMap::new();
    for (n, cache) in attention_modules(&model.graph).into_iter().enumerate() {
        let state = &model.graph.states[n];
        let Some(cache) = cache else {
            skipped.push(format!("`{}` of layer {}", state.name, state.layer));
            continue;
        };
        let [keys, values] = [0, 1].map(|part| PeakSite::Cache(StateId(n), part));
        // Engines store the latent and the rotated part of a key as one row, which has one scale.
        let one = cache.keys == cache.values;
        for (part, seen) in [keys, values].into_iter().enumerate() {
            let [of_module, of_maker, _] = cache.names(part);
            let maker = if part == 0 { &cache.keys } else { &cache.values };
            let of_own_maker = format.declaration().beside_makers
                && !one
                && tensors.iter().any(|t| t.name == format!("{maker}.weight"));
            let seen = if one { vec![keys, values] } else { vec![seen] };
            names.entry(if of_own_maker { of_maker } else { of_module }).or_default().extend(seen);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_on_the_grid_that_it_is_kept_on() {
        let peak = 448.0 * 1.003;
        assert_eq!(scaled::whole_scale(peak, FolderFormat::Fp8.single().0), 1.0);
        let per_matrix = FolderFormat::Fp8Modelopt { whole: true };
        assert!(scaled::whole_scale(peak, per_matrix.single().0) > 1.002);
        assert_eq!((per_matrix.single().1, FolderFormat::Fp8.single().1), (vec![], vec![1]));
    }
}
