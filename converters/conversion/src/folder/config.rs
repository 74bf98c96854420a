//! Writes the quantization section of a checkpoint's config.

use serde_json::{Value, json};

use super::FolderFormat;
use super::calibrated::ScaleKinds;
use super::scaled::BLOCK;

/// Returns `quantization_config`; none for plain bf16. `ignored` lists the modules that are not quantized.
pub fn quantization(format: FolderFormat, ignored: &[String], asked: ScaleKinds) -> Option<Value> {
    let float8 = |strategy: &str| {
        json!({
            "num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "strategy": strategy,
        })
    };
    let tokens = if asked.inputs {
        float8("tensor")
    } else {
        json!({
            "num_bits": 8, "type": "float", "symmetric": true, "dynamic": true, "strategy": "token",
        })
    };
    let kept = if asked.caches { float8("tensor") } else { Value::Null };
    let float4 = |strategy: &str, size: usize, scale: &str| {
        json!({
            "num_bits": 4, "type": "float", "symmetric": true, "dynamic": false, "strategy": strategy,
            "group_size": size, "scale_dtype": scale,
        })
    };
    let compressed = |name: &str, weights: Value, inputs: Value| {
        json!({
            "quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed",
            "ignore": ignored, "kv_cache_scheme": kept,
            "config_groups": { "group_0": {
                "targets": ["Linear"], "weights": weights, "input_activations": inputs,
                "output_activations": null, "format": name,
            } },
        })
    };
    Some(match format {
        FolderFormat::Bf16 => return None,
        FolderFormat::Fp8 => compressed("float-quantized", float8("channel"), tokens),
        FolderFormat::Fp8Tensor => compressed("float-quantized", float8("tensor"), tokens),
        FolderFormat::Fp8CtBlock => {
            let mut weights = float8("block");
            weights["block_structure"] = json!([BLOCK, BLOCK]);
            let mut inputs = tokens;
            inputs["strategy"] = json!("group");
            inputs["group_size"] = json!(BLOCK);
            compressed("float-quantized", weights, inputs)
        }
        FolderFormat::Nvfp4 => {
            let weights = float4("tensor_group", 16, "torch.float8_e4m3fn");
            compressed("nvfp4-pack-quantized", weights, Value::Null)
        }
        FolderFormat::Mxfp4 => {
            compressed("mxfp4-pack-quantized", float4("group", 32, "torch.uint8"), Value::Null)
        }
        FolderFormat::Fp8Block { power } => json!({
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
            "weight_block_size": [BLOCK, BLOCK], "scale_fmt": if power { "ue8m0" } else { "float" },
            "modules_to_not_convert": ignored,
        }),
        FolderFormat::Fp8Modelopt { whole } => {
            let kept = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
            json!({
                "quant_method": "modelopt", "quant_algo": modelopt(whole), "ignore": ignored,
                "kv_cache_scheme": asked.caches.then_some(kept),
            })
        }
    })
}

/// Returns ModelOpt's name for an e4m3 format.
fn modelopt(whole: bool) -> &'static str {
    if whole { "FP8" } else { "FP8_PER_CHANNEL_PER_TOKEN" }
}

/// Returns `hf_quant_config.json`, for the formats that have one.
pub fn beside(format: FolderFormat, ignored: &[String], asked: ScaleKinds) -> Option<Value> {
    let FolderFormat::Fp8Modelopt { whole } = format else { return None };
    Some(json!({
        "producer": { "name": "onboard", "version": env!("CARGO_PKG_VERSION") },
        "quantization": {
            "quant_algo": modelopt(whole), "kv_cache_quant_algo": asked.caches.then_some("FP8"),
            "group_size": null, "exclude_modules": ignored,
        },
    }))
}

/// Tensor name suffixes of the codes, the scales and the global scale of a module.
pub(super) struct TensorSuffixes {
    pub(super) codes: &'static str,
    pub(super) scales: &'static str,
    pub(super) global: &'static str,
}

/// Returns the tensor name suffixes that follow the module's name.
pub(super) fn names(format: FolderFormat) -> TensorSuffixes {
    let (codes, scales) = match format {
        FolderFormat::Nvfp4 | FolderFormat::Mxfp4 => ("weight_packed", "weight_scale"),
        FolderFormat::Fp8Block { .. } => ("weight", "weight_scale_inv"),
        _ => ("weight", "weight_scale"),
    };
    TensorSuffixes { codes, scales, global: "weight_global_scale" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the description of a quantized float type of `bits` bits, extended by `more`.
    fn numbers(bits: u8, strategy: &str, dynamic: bool, more: &[(&str, Value)]) -> Value {
        let mut said = json!({
            "num_bits": bits, "type": "float", "symmetric": true, "dynamic": dynamic, "strategy": strategy,
        });
        for (key, value) in more {
            said[*key] = value.clone();
        }
        said
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
        let e4m3 = |strategy: &str| numbers(8, strategy, false, &[]);
        let tokens = numbers(8, "token", true, &[]);
        let squares = numbers(8, "block", false, &[("block_structure", json!([128, 128]))]);
        let groups = numbers(8, "group", true, &[("group_size", json!(128))]);
        let four = |strategy: &str, size: u8, scale: &str| {
            let more = [("group_size", json!(size)), ("scale_dtype", json!(scale))];
            numbers(4, strategy, false, &more)
        };
        let sixteen = four("tensor_group", 16, "torch.float8_e4m3fn");
        let thirty_two = four("group", 32, "torch.uint8");
        let plain = [
            ("bf16", none.clone()),
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
        let said = |format: FolderFormat, asked: ScaleKinds| quantization(format, &ignored, asked);
        assert_eq!(
            FolderFormat::all().map(|row| row.0).collect::<Vec<_>>(),
            plain.each_ref().map(|row| row.0)
        );
        for (name, expected) in plain {
            let format = FolderFormat::parse(name).unwrap();
            assert_eq!(said(format, ScaleKinds::default()).unwrap_or_default(), expected, "{name}");
        }
        // Input and cache scales that are stored.
        let one = e4m3("tensor");
        let kept = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
        let stored = [
            ("fp8", compressed("float-quantized", &e4m3("channel"), &one, &one)),
            ("fp8:tensor", compressed("float-quantized", &one, &one, &one)),
            ("fp8:modelopt", modelopt("FP8", &kept)),
        ];
        for (name, expected) in stored {
            let format = FolderFormat::parse(name).unwrap().with_inputs().unwrap();
            let asked = ScaleKinds { inputs: true, caches: true };
            assert_eq!(said(format, asked).unwrap(), expected, "{name}");
        }
    }
}
