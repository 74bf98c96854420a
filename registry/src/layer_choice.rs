//! A choice of a model's layers. The other layers hand their input on, and their weights are not read.

use std::collections::BTreeSet;

/// Some layers of a model, without the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerChoice {
    /// Numbers of the layers, from 0.
    pub chosen: BTreeSet<usize>,
    /// Number of layers of the whole model.
    pub of: usize,
    /// Text before the number of a layer in the names of the checkpoint's tensors: `model.layers`.
    pub prefix: String,
}

/// Reasons why layers cannot be left out of a model.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayerChoiceError {
    /// The model has another number of layers.
    #[error(
        "the choice is of {choice} layers and the model has {model}; take the config that the dump was made with"
    )]
    Count {
        /// Number of layers in the choice.
        choice: usize,
        /// Number of layers of the model.
        model: usize,
    },
    /// A layer hands on more than one value, so there is no single input that replaces its output.
    #[error(
        "layer {layer} hands on {values} (expected one value), so the model cannot run without the layer; choose it too, or check the whole model"
    )]
    Values {
        /// Number of the layer.
        layer: usize,
        /// Names of the values.
        values: String,
    },
    /// A layer reads no value of the shape of its output.
    #[error(
        "layer {layer} reads no single value of the shape of its output, so the model cannot run without the layer; choose it too"
    )]
    Input {
        /// Number of the layer.
        layer: usize,
    },
}

impl LayerChoice {
    /// True if a tensor of the checkpoint belongs to a chosen layer, or to none.
    pub fn includes(&self, tensor: &str) -> bool {
        let Some(suffix) = tensor.strip_prefix(self.prefix.as_str()) else { return true };
        let Some(suffix) = suffix.strip_prefix('.') else { return true };
        let number = suffix.split('.').next().unwrap_or(suffix);
        let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
        !is_number || number.parse().is_ok_and(|number| self.chosen.contains(&number))
    }

    /// Lists the layers: `layers 0, 3 of 61`, `layer 3 of 61`.
    pub fn listed(&self) -> String {
        let numbers: Vec<String> = self.chosen.iter().map(ToString::to_string).collect();
        let word = if numbers.len() == 1 { "layer" } else { "layers" };
        format!("{word} {} of {}", numbers.join(", "), self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_other_layers_are_left_out() {
        let choice =
            LayerChoice { chosen: BTreeSet::from([0, 30]), of: 61, prefix: "model.layers".into() };
        for (name, included) in [
            ("model.embed_tokens.weight", true),
            ("model.layers.0.mlp.up_proj.weight", true),
            ("model.layers.30.mlp.experts.7.up_proj.weight", true),
            ("model.layers.3.mlp.up_proj.weight", false),
            ("model.layers.61.eh_proj.weight", false),
            ("model.layers.99999999999999999999999.weight", false),
            ("model.layers.norm.weight", true),
            ("model.layers", true),
            ("model.layers_norm.3.weight", true),
        ] {
            assert_eq!(choice.includes(name), included, "{name}");
        }
        assert_eq!(choice.listed(), "layers 0, 30 of 61");
    }
}
