//! Parses the quantization section of a config.

use std::path::Path;

use fancy_regex::Regex;
use serde_json::Value;

use super::auto_round;
use super::checks::SchemeResult;
use super::inputs::{CodeType, InputScheme};
use super::scheme::Schemes;
use crate::checkpoint::Checkpoint;
use formats::FileDtype;
use formats::python_json::words_as_texts;

/// Quantization settings of a config.
pub(super) struct QuantConfig {
    pub(super) method: String,
    pub(super) block: Option<(usize, usize)>,
    pub(super) numbers: IntegerConfig,
    /// Layout of GPTQ and AWQ codes: `checkpoint_format` or `version`, in lower case.
    pub(super) layout: String,
    /// True if zero points were stored minus one by subtracting from whole words.
    pub(super) borrowed: bool,
    /// True if codes of 5 to 7 bits are stored in bit planes.
    pub(super) planes: bool,
    /// Config key that lists the exceptions of modules.
    pub(super) exceptions: &'static str,
    /// Settings of modules that are exceptions, by pattern.
    dynamic: Vec<(Regex, Option<IntegerConfig>)>,
    pub(super) schemes: Schemes,
    /// True if inputs of 8-bit weights have a stored scale.
    still: bool,
}

/// Integer settings of GPTQ and AWQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IntegerConfig {
    pub(super) bits: u32,
    pub(super) group: GroupSize,
}

/// Number of inputs that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupSize {
    Unset,
    /// All of them.
    All,
    Of(usize),
}

fn read(folder: &Path, name: &str) -> Option<Value> {
    serde_json::from_slice(&words_as_texts(
        &registry::file::read(&folder.join(name), registry::file::CONFIG).ok()?,
    ))
    .ok()
}

/// Returns the quantization section of a folder, and true if it comes from ModelOpt's own file.
pub(super) fn section(folder: &Path) -> Option<(Value, bool)> {
    let inside = read(folder, "config.json").and_then(of_config);
    if let Some(found) = inside {
        return Some((found, false));
    }
    let own = read(folder, "hf_quant_config.json");
    if let Some(found) = own.and_then(|mut own| own.get_mut("quantization").map(Value::take)) {
        return Some((found, true));
    }
    // Config files that GPTQ and AWQ wrote before `config.json` had the section.
    for (name, method) in [("quantize_config.json", "gptq"), ("quant_config.json", "awq")] {
        if let Some(Value::Object(mut found)) = read(folder, name) {
            found.entry("quant_method").or_insert_with(|| method.into());
            return Some((Value::Object(found), false));
        }
    }
    None
}

/// Returns the section of a config, by its current or older name, or the section of its text model.
fn of_config(mut config: Value) -> Option<Value> {
    let mut own =
        |at: &str| config.pointer_mut(at).map(Value::take).filter(|value| !value.is_null());
    own("/quantization_config")
        .or_else(|| own("/compression_config"))
        .or_else(|| own("/text_config/quantization_config"))
        .or_else(|| own("/text_config/compression_config"))
}

/// True if MLX quantized a folder: its config has a `quantization` section, and sometimes the usual one
/// too.
pub(super) fn is_mlx(folder: &Path) -> bool {
    let Some(config) = read(folder, "config.json") else { return false };
    let number = |key: &str| config["quantization"][key].is_u64();
    number("bits")
        && number("group_size")
        && config["quantization_config"]["quant_method"].is_null()
}

impl QuantConfig {
    /// Parses the settings of a checkpoint; none if it has no quantization section.
    pub(super) fn of(checkpoint: &Checkpoint) -> SchemeResult<Option<Self>> {
        let Some((section, own)) = section(checkpoint.root()) else { return Ok(None) };
        let whole = IntegerConfig { bits: 4, group: GroupSize::Unset };
        let mut config = Self {
            method: "modelopt".to_owned(),
            block: None,
            numbers: whole,
            layout: String::new(),
            borrowed: false,
            planes: true,
            exceptions: "dynamic",
            dynamic: Vec::new(),
            schemes: Schemes::default(),
            still: section.get("activation_scheme").is_some_and(|scheme| scheme == "static")
                || (section.get("quant_algo"))
                    .is_some_and(|algo| algo == "FP8" || algo == "MIXED_PRECISION"),
        };
        refuse_turned(checkpoint, &section)?;
        if own {
            return Ok(Some(config));
        }
        let Some(method) = section.get("quant_method").and_then(Value::as_str) else {
            return Ok(None);
        };
        method.clone_into(&mut config.method);
        let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
            Some([a, b]) => Some((a.as_u64()?.try_into().ok()?, b.as_u64()?.try_into().ok()?)),
            _ => None,
        };
        config.block = section.get("weight_block_size").and_then(pair);
        match method {
            "compressed-tensors" => config.schemes = Schemes::read(checkpoint, &section)?,
            "gptq" | "awq" => {
                config.numbers = numbers(checkpoint, &section, whole)?;
                let key = if method == "gptq" { "checkpoint_format" } else { "version" };
                let layout = section.get(key).and_then(Value::as_str).unwrap_or_default();
                config.layout = layout.to_lowercase();
                config.borrowed = is_borrowed(&section);
                config.dynamic = dynamic(checkpoint, &section, config.numbers)?;
            }
            method if auto_round::METHODS.contains(&method) => {
                let (method, layout) = auto_round::layout(checkpoint, &section)?;
                method.clone_into(&mut config.method);
                layout.clone_into(&mut config.layout);
                config.planes = false;
                config.exceptions = "extra_config";
                config.numbers = numbers(checkpoint, &section, whole)?;
                config.dynamic = auto_round::extra(checkpoint, &section, config.numbers)?;
            }
            _ => {}
        }
        Ok(Some(config))
    }

    /// Returns the input rounding for codes of this dtype, if no scheme declares one.
    pub(super) fn inputs_of(&self, codes: FileDtype) -> InputScheme {
        match self.block {
            _ if codes != FileDtype::F8E4m3 || self.method == "compressed-tensors" => {
                InputScheme::None
            }
            _ if self.still => InputScheme::StoredOrDynamic(CodeType::E4m3),
            // Inputs that share a scale of the weight also share one in the row (`fp8_linear` of
            // transformers' integrations/finegrained_fp8.py: dynamic scales per block of K).
            Some((_, across)) => InputScheme::Dynamic(CodeType::E4m3, Some(across.max(1))),
            None => InputScheme::Dynamic(CodeType::E4m3, None),
        }
    }

    /// Returns the settings of a module; none if it is not quantized.
    pub(super) fn of_module(
        &self,
        checkpoint: &Checkpoint,
        module: &str,
    ) -> SchemeResult<Option<IntegerConfig>> {
        for (regex, numbers) in &self.dynamic {
            if matches(checkpoint, self.exceptions, regex, module)? {
                return Ok(*numbers);
            }
        }
        Ok(Some(self.numbers))
    }
}

/// Returns an error for weights that need a rotation of their inputs or outputs at run time. Rotations
/// merged into the weights are accepted.
fn refuse_turned(checkpoint: &Checkpoint, section: &Value) -> SchemeResult<()> {
    let groups = section.pointer("/transform_config/config_groups").and_then(Value::as_object);
    let all = groups.into_iter().flat_map(serde_json::Map::values);
    let applied = all.filter_map(|group| group.get("apply")?.as_array()).flatten();
    let mut places = applied.filter_map(|one| one.get("location")?.as_str());
    match places.find(|place| !place.starts_with("weight_")) {
        Some(place) => Err(checkpoint.config_error(
            "transform_config",
            place,
            "transforms of weights alone: what is rotated while the model runs is not read",
        )),
        None => Ok(()),
    }
}

/// Compiles a pattern that matches from the beginning, like Python's `re.match`.
pub(super) fn pattern(checkpoint: &Checkpoint, key: &str, text: &str) -> SchemeResult<Regex> {
    Regex::new(&format!("^(?:{text})"))
        .map_err(|_| checkpoint.config_error(key, text, "a regular expression"))
}

/// True if a pattern matches. A pattern that takes too long is an error.
pub(super) fn matches(
    checkpoint: &Checkpoint,
    key: &str,
    regex: &Regex,
    text: &str,
) -> SchemeResult<bool> {
    regex
        .is_match(text)
        .map_err(|_| checkpoint.config_error(key, regex.as_str(), "a pattern that can be matched"))
}

/// Parses bits and group size of a section, with defaults for missing ones.
pub(super) fn numbers(
    checkpoint: &Checkpoint,
    section: &Value,
    default: IntegerConfig,
) -> SchemeResult<IntegerConfig> {
    let find = |keys: [&'static str; 2]| {
        keys.into_iter().find_map(|key| Some((key, section.get(key).filter(|v| !v.is_null())?)))
    };
    let bits = match find(["bits", "w_bit"]) {
        Some((key, value)) => match value.as_u64() {
            Some(bits @ 2..=8) => bits as u32,
            _ => return Err(checkpoint.config_error(key, &value.to_string(), "2 to 8")),
        },
        None => default.bits,
    };
    let group = match find(["group_size", "q_group_size"]) {
        Some((key, value)) => match value.as_i64() {
            Some(-1) => GroupSize::All,
            Some(size @ 1..) => GroupSize::Of(usize::try_from(size).unwrap_or(usize::MAX)),
            _ => {
                let expected = "the number of inputs that share a scale, or -1 for all";
                return Err(checkpoint.config_error(key, &value.to_string(), expected));
            }
        },
        None => default.group,
    };
    Ok(IntegerConfig { bits, group })
}

/// True if zero points were decremented by one subtraction per word, as in GPTQModel. A zero point of 0
/// then borrows from its neighbours. AutoGPTQ decrements each zero point before packing.
fn is_borrowed(section: &Value) -> bool {
    let quantizer = section.pointer("/meta/quantizer");
    let names = match quantizer {
        Some(Value::Array(names)) => names.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    names.iter().filter_map(Value::as_str).any(|name| name.starts_with("gptqmodel"))
}

/// Parses `dynamic`: patterns of modules with their own settings (`+:`) or without quantization (`-:`).
fn dynamic(
    checkpoint: &Checkpoint,
    section: &Value,
    default: IntegerConfig,
) -> SchemeResult<Vec<(Regex, Option<IntegerConfig>)>> {
    let Some(Value::Object(rules)) = section.get("dynamic") else { return Ok(Vec::new()) };
    let rule = |(text, own): (&String, &Value)| {
        if let Some(text) = text.strip_prefix("-:") {
            return Ok((pattern(checkpoint, "dynamic", text)?, None));
        }
        let text = text.strip_prefix("+:").unwrap_or(text);
        let own = numbers(checkpoint, own, default)?;
        Ok((pattern(checkpoint, "dynamic", text)?, Some(own)))
    };
    rules.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::of_config;

    #[test]
    fn the_section_has_several_places() {
        let section = || json!({"quant_method": "fp8"});
        for config in [
            json!({"quantization_config": section(), "text_config": {"quantization_config": {}}}),
            json!({"compression_config": section()}),
            json!({"text_config": {"quantization_config": section()}}),
            json!({"quantization_config": null, "text_config": {"quantization_config": section()}}),
        ] {
            assert_eq!(of_config(config.clone()), Some(section()), "{config}");
        }
        assert_eq!(of_config(json!({"vision_config": {"quantization_config": section()}})), None);
    }
}
