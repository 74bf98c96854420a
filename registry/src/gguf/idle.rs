//! Weights that no op uses but that files contain. Layers that read the keys of others have matrices of their
//! own in checkpoints, and some programs load them in every layer.

use std::collections::{BTreeMap, BTreeSet};

use super::{FileMetadata, Gguf, spread};
use crate::graph::Weight;
use crate::weight_map::Pattern;

/// A weight that a layer computes without.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleWeight {
    /// The name; the shape is that of the first weight of its kind that the model has.
    pub weight: Weight,
    /// True if the file has zeros for a weight that a checkpoint lacks.
    pub filled: bool,
}

impl Gguf {
    /// Returns the idle weights of the layers that have any of `weights`, in order.
    pub fn idle(&self, weights: &[Weight]) -> Vec<IdleWeight> {
        let model_names: BTreeSet<&str> =
            weights.iter().map(|weight| weight.name.as_str()).collect();
        let mut idle_weights = BTreeMap::new();
        for (pattern, filled) in &self.idle {
            let Some((before, after)) = split_at_layer(pattern) else { continue };
            let Some(like) = weights.iter().find(|weight| pattern.fit(&weight.name).is_some())
            else {
                continue;
            };
            let layers = weights.iter().filter_map(|weight| {
                weight.name.strip_prefix(before)?.split_once('.').map(|(layer, _)| layer)
            });
            for layer in layers.collect::<BTreeSet<_>>() {
                let name = format!("{before}{layer}{after}");
                if !model_names.contains(name.as_str()) {
                    let weight = Weight { name: name.clone(), ..like.clone() };
                    idle_weights.insert(name, IdleWeight { weight, filled: *filled });
                }
            }
        }
        idle_weights.into_values().collect()
    }

    /// Tensors of a file that are such weights.
    pub(super) fn idle_tensors(
        &self,
        weights: &[Weight],
        header: &FileMetadata,
    ) -> BTreeSet<String> {
        let idle = self.idle(weights).into_iter().filter_map(|idle: IdleWeight| {
            self.rules.iter().find_map(|r| spread(&r.rule, &idle.weight.name))
        });
        let names = idle.flatten();
        names.filter(|name| header.tensors.contains_key(name)).collect()
    }
}

/// Returns the text of a pattern before its hole for layers, and behind it.
pub(crate) fn split_at_layer(pattern: &Pattern) -> Option<(&str, &str)> {
    let (before, after) = pattern.text.split_once("{i}")?;
    let holes = ['{', '*'];
    (!before.contains(holes) && !after.contains(holes)).then_some((before, after))
}
