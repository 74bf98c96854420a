//! Parses the quantization section of a config.

use fancy_regex::Regex;
use serde_json::Value;

use super::auto_round;
use super::checks::SchemeResult;
use super::inputs::{CodeType, InputScheme};
use super::integer_config::{GroupSize, IntegerConfig, matches, numbers, pattern};
use super::scheme::Schemes;
use super::section::section;
use crate::checkpoint::Checkpoint;
use formats::FileDtype;

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

impl QuantConfig {
    /// Parses the settings of a checkpoint; none if it has no quantization section.
    pub(super) fn of(checkpoint: &Checkpoint) -> SchemeResult<Option<Self>> {
        let Some((section, by_modelopt)) = section(checkpoint.root()) else { return Ok(None) };
        let default_numbers = IntegerConfig { bits: 4, group: GroupSize::Unset };
        let mut config = Self {
            method: "modelopt".to_owned(),
            block: None,
            numbers: default_numbers,
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
        if by_modelopt {
            return Ok(Some(config));
        }
        let Some(method) = section.get("quant_method").and_then(Value::as_str) else {
            return Ok(None);
        };
        method.clone_into(&mut config.method);
        config.block = section.get("weight_block_size").and_then(|value: &Value| {
            match value.as_array().map(Vec::as_slice) {
                Some([a, b]) => Some((a.as_u64()?.try_into().ok()?, b.as_u64()?.try_into().ok()?)),
                _ => None,
            }
        });
        match method {
            "compressed-tensors" => config.schemes = Schemes::read(checkpoint, &section)?,
            "gptq" | "awq" => {
                config.numbers = numbers(checkpoint, &section, default_numbers)?;
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
                config.numbers = numbers(checkpoint, &section, default_numbers)?;
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
    rules.iter().map(|(text, settings)| dynamic_rule(checkpoint, text, settings, default)).collect()
}

/// Parses one rule of `dynamic`.
fn dynamic_rule(
    checkpoint: &Checkpoint,
    text: &str,
    settings: &Value,
    default: IntegerConfig,
) -> SchemeResult<(Regex, Option<IntegerConfig>)> {
    if let Some(text) = text.strip_prefix("-:") {
        return Ok((pattern(checkpoint, "dynamic", text)?, None));
    }
    let text = text.strip_prefix("+:").unwrap_or(text);
    let config = numbers(checkpoint, settings, default)?;
    Ok((pattern(checkpoint, "dynamic", text)?, Some(config)))
}
