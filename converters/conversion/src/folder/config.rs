//! Writes the quantization section of a checkpoint's config.

use serde_json::{Value, json};

/// Facts that a config states besides the format.
pub(super) struct ConfigFacts<'a> {
    /// Modules that are not quantized.
    pub(super) ignored: &'a [String],
    pub(super) asked: ScaleKinds,
}

/// Describes codes of 8 bits.
pub(super) fn float8(strategy: &str) -> Value {
    json!({
        "num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "strategy": strategy,
    })
}

/// Describes inputs of 8 bits: with stored scales, or scaled by token.
pub(super) fn tokens(kinds: ScaleKinds) -> Value {
    if kinds.inputs {
        return float8("tensor");
    }
    json!({
        "num_bits": 8, "type": "float", "symmetric": true, "dynamic": true, "strategy": "token",
    })
}

/// Describes codes of 4 bits.
pub(super) fn float4(strategy: &str, size: usize, scale: &str) -> Value {
    json!({
        "num_bits": 4, "type": "float", "symmetric": true, "dynamic": false, "strategy": strategy,
        "group_size": size, "scale_dtype": scale,
    })
}

/// Returns the config of a format of compressed-tensors.
pub(super) fn compressed(
    facts: &ConfigFacts<'_>,
    name: &str,
    weights: &Value,
    inputs: &Value,
) -> Value {
    let cache_scheme = if facts.asked.caches { float8("tensor") } else { Value::Null };
    json!({
        "quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed",
        "ignore": facts.ignored, "kv_cache_scheme": cache_scheme,
        "config_groups": { "group_0": {
            "targets": ["Linear"], "weights": weights, "input_activations": inputs,
            "output_activations": null, "format": name,
        } },
    })
}

/// Returns the config of a format of ModelOpt.
pub(super) fn modelopt(facts: &ConfigFacts<'_>, algorithm: &str) -> Value {
    let cache_scheme = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
    json!({
        "quant_method": "modelopt", "quant_algo": algorithm, "ignore": facts.ignored,
        "kv_cache_scheme": facts.asked.caches.then_some(cache_scheme),
    })
}

/// Returns the file that ModelOpt writes beside the config.
pub(super) fn modelopt_file(facts: &ConfigFacts<'_>, algorithm: &str) -> Value {
    json!({
        "producer": { "name": "onboard", "version": env!("CARGO_PKG_VERSION") },
        "quantization": {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": facts.asked.caches.then_some("FP8"),
            "group_size": null, "exclude_modules": facts.ignored,
        },
    })
}

/// Kinds of calibrated scales that a checkpoint has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScaleKinds {
    /// True if each quantized matrix has a scale for its inputs.
    pub inputs: bool,
    /// True if keys and values have scales.
    pub caches: bool,
}

#[cfg(test)]
mod tests {
    use super::super::FolderFormat;
    use super::*;

    /// Returns the description of a quantized float type of `bits` bits, extended by `more`.
    fn numbers(bits: u8, strategy: &str, dynamic: bool, more: &[(&str, Value)]) -> Value {
        let mut declared = json!({
            "num_bits": bits, "type": "float", "symmetric": true, "dynamic": dynamic, "strategy": strategy,
        });
        for (key, value) in more {
            declared[*key] = value.clone();
        }
        declared
    }

    fn compressed(format: &str, weights: &Value, inputs: &Value, caches: &Value) -> Value {
        json!({
            "quant_method": "compressed-tensors", "format": format,
            "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": caches,
            "config_groups": { "group_0": {
                "targets": ["Linear"], "format": format, "weights": weights,
                "input_activations": inputs, "output_activations": null,
            } },
        })
    }

    fn fp8(scales: &str) -> Value {
        json!({
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
            "weight_block_size": [128, 128], "scale_fmt": scales,
            "modules_to_not_convert": ["lm_head"],
        })
    }

    fn modelopt(algo: &str, caches: &Value) -> Value {
        json!({
            "quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"],
            "kv_cache_scheme": caches,
        })
    }

    /// The names are those of compressed-tensors' own schemes (FP8_DYNAMIC, FP8_BLOCK, NVFP4A16, MXFP4A16),
    /// of transformers' fp8 and of ModelOpt's files.
    #[test]
    fn every_format_is_declared_in_the_words_of_its_loaders() {
        let none = Value::Null;
        let tokens = numbers(8, "token", true, &[]);
        let squares = numbers(8, "block", false, &[("block_structure", json!([128, 128]))]);
        let groups = numbers(8, "group", true, &[("group_size", json!(128))]);
        let sixteen = four_bits("tensor_group", 16, "torch.float8_e4m3fn");
        let thirty_two = four_bits("group", 32, "torch.uint8");
        let plain = [
            ("bf16", none.clone()),
            ("hf", none.clone()),
            ("hf:f32", none.clone()),
            ("hf:bf16", none.clone()),
            ("hf:f16", none.clone()),
            ("fp8", compressed("float-quantized", &e4m3("channel"), &tokens, &none)),
            ("fp8:tensor", compressed("float-quantized", &e4m3("tensor"), &tokens, &none)),
            ("fp8:block", fp8("float")),
            ("fp8:block-ue8m0", fp8("ue8m0")),
            ("fp8:ct-block", compressed("float-quantized", &squares, &groups, &none)),
            ("fp8:modelopt", modelopt("FP8_PER_CHANNEL_PER_TOKEN", &none)),
            ("nvfp4", compressed("nvfp4-pack-quantized", &sixteen, &none, &none)),
            ("mxfp4", compressed("mxfp4-pack-quantized", &thirty_two, &none, &none)),
        ];
        let ignored = ["lm_head".to_owned()];
        assert_eq!(
            FolderFormat::all().map(|row| row.0).collect::<Vec<_>>(),
            plain.each_ref().map(|row| row.0)
        );
        for (name, expected) in plain {
            let format = FolderFormat::parse(name).unwrap();
            assert_eq!(
                format.quantization(&ignored, ScaleKinds::default()).unwrap_or_default(),
                expected,
                "{name}"
            );
        }
        // Input and cache scales that are stored.
        let one = e4m3("tensor");
        let cache_scheme = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
        let stored = [
            ("fp8", compressed("float-quantized", &e4m3("channel"), &one, &one)),
            ("fp8:tensor", compressed("float-quantized", &one, &one, &one)),
            ("fp8:modelopt", modelopt("FP8", &cache_scheme)),
        ];
        for (name, expected) in stored {
            let format = FolderFormat::parse(name).unwrap().with_inputs().unwrap();
            let kinds = ScaleKinds { inputs: true, caches: true };
            assert_eq!(format.quantization(&ignored, kinds).unwrap(), expected, "{name}");
        }
    }

    fn four_bits(strategy: &str, size: u8, scale: &str) -> Value {
        let more = [("group_size", json!(size)), ("scale_dtype", json!(scale))];
        numbers(4, strategy, false, &more)
    }

    fn e4m3(strategy: &str) -> Value {
        numbers(8, strategy, false, &[])
    }
}
