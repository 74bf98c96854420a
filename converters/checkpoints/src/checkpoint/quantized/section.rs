//! Finds the quantization section of a folder, whose name and file differ by program.

use std::path::Path;

use formats::python_json::words_as_texts;
use serde_json::Value;

fn read(folder: &Path, name: &str) -> Option<Value> {
    serde_json::from_slice(&words_as_texts(
        &registry::file::read(&folder.join(name), registry::file::CONFIG).ok()?,
    ))
    .ok()
}

/// Returns the quantization section of a folder, and true if it comes from ModelOpt's own file.
pub(super) fn section(folder: &Path) -> Option<(Value, bool)> {
    let inside = read(folder, "config.json").and_then(of_config);
    if let Some(section) = inside {
        return Some((section, false));
    }
    let modelopt = read(folder, "hf_quant_config.json");
    if let Some(section) =
        modelopt.and_then(|mut config| config.get_mut("quantization").map(Value::take))
    {
        return Some((section, true));
    }
    // Config files that GPTQ and AWQ wrote before `config.json` had the section.
    for (name, method) in [("quantize_config.json", "gptq"), ("quant_config.json", "awq")] {
        if let Some(Value::Object(mut section)) = read(folder, name) {
            section.entry("quant_method").or_insert_with(|| method.into());
            return Some((Value::Object(section), false));
        }
    }
    None
}

/// Returns the section of a config, by its current or older name, or the section of its text model.
fn of_config(mut config: Value) -> Option<Value> {
    let places = [
        "/quantization_config",
        "/compression_config",
        "/text_config/quantization_config",
        "/text_config/compression_config",
    ];
    places
        .into_iter()
        .find_map(|at| config.pointer_mut(at).map(Value::take).filter(|value| !value.is_null()))
}

/// Returns a setting of a section; none if it is missing or null.
pub(super) fn non_null<'v>(section: &'v Value, key: &str) -> Option<&'v Value> {
    section.get(key).filter(|value| !value.is_null())
}

/// True if MLX quantized a folder: its config has a `quantization` section, and sometimes the usual one
/// too.
pub(super) fn is_mlx(folder: &Path) -> bool {
    let Some(config) = read(folder, "config.json") else { return false };
    let section = &config["quantization"];
    section["bits"].is_u64()
        && section["group_size"].is_u64()
        && config["quantization_config"]["quant_method"].is_null()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::of_config;

    #[test]
    fn the_section_has_several_places() {
        let section = json!({"quant_method": "fp8"});
        for config in [
            json!({"quantization_config": section, "text_config": {"quantization_config": {}}}),
            json!({"compression_config": section}),
            json!({"text_config": {"quantization_config": section}}),
            json!({"quantization_config": null, "text_config": {"quantization_config": section}}),
        ] {
            assert_eq!(of_config(config.clone()), Some(section.clone()), "{config}");
        }
        assert_eq!(of_config(json!({"vision_config": {"quantization_config": section}})), None);
    }
}
