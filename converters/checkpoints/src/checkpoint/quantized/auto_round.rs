//! AutoRound's config, whose codes are laid out as in GPTQ or AWQ.

use fancy_regex::Regex;
use serde_json::Value;

use super::checks::SchemeResult;
use super::integer_config::{IntegerConfig, numbers, pattern};
use super::section::non_null;
use crate::checkpoint::{Checkpoint, Error};

/// Values of `quant_method` that AutoRound writes.
pub(super) const METHODS: [&str; 2] = ["auto-round", "intel/auto-round"];

/// Maps AutoRound's packing to a supported method: its `quant_method` and its `checkpoint_format` or
/// `version`. The names are those of auto_round/inference/backend.py (`GPTQ_FORMAT` and others).
pub(super) fn layout(
    checkpoint: &Checkpoint,
    section: &Value,
) -> SchemeResult<(&'static str, &'static str)> {
    if let Some(rotation) = non_null(section, "rotation_config") {
        let expected = "none: what is rotated while the model runs is not read";
        return Err(setting_error(checkpoint, "rotation_config", rotation, expected));
    }
    if let Some(kind) = non_null(section, "data_type")
        .filter(|kind| !kind.as_str().is_some_and(|kind| kind == "int" || kind.starts_with("int_")))
    {
        let expected = "int: save it in the format `llm_compressor` instead";
        return Err(setting_error(checkpoint, "data_type", kind, expected));
    }
    if let Some(bits) =
        non_null(section, "act_bits").filter(|bits| bits.as_u64().is_none_or(|n| n < 16))
    {
        let expected = "16: rows that are rounded in its own way are not read";
        return Err(setting_error(checkpoint, "act_bits", bits, expected));
    }
    Ok(match section.get("packing_format").and_then(Value::as_str).unwrap_or("auto") {
        "auto" | "auto_round:gptq" | "auto_round:auto_gptq" => ("gptq", "gptq"),
        "auto_round" | "auto_round:gptqmodel" => ("gptq", "gptq_v2"),
        "auto_round:awq" | "auto_round:auto_awq" => {
            if let Some(bits) = non_null(section, "bits").filter(|bits| bits.as_u64() != Some(4)) {
                let expected = "4 where `packing_format` is auto_round:auto_awq";
                return Err(setting_error(checkpoint, "bits", bits, expected));
            }
            ("awq", "gemm")
        }
        other => {
            let expected =
                "auto_round, auto_round:auto_gptq, auto_round:gptqmodel or auto_round:auto_awq";
            return Err(checkpoint.config_error("packing_format", other, expected));
        }
    })
}

/// Returns the error for a setting with an unsupported value.
fn setting_error(checkpoint: &Checkpoint, key: &str, value: &Value, expected: &str) -> Error {
    let actual = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    checkpoint.config_error(key, &actual, expected)
}

/// Parses `extra_config`: modules with their own settings, by name or by a pattern that may match anywhere
/// in a name. Names take precedence.
pub(super) fn extra(
    checkpoint: &Checkpoint,
    section: &Value,
    default: IntegerConfig,
) -> SchemeResult<Vec<(Regex, Option<IntegerConfig>)>> {
    let Some(Value::Object(rules)) = section.get("extra_config") else { return Ok(Vec::new()) };
    let mut named = Vec::new();
    let mut fitting = Vec::new();
    for (text, settings) in rules {
        let config = match settings.get("bits") {
            Some(bits) if bits.as_u64().is_some_and(|bits| bits >= 16) => None,
            _ => Some(numbers(checkpoint, settings, default)?),
        };
        named.push((
            pattern(checkpoint, "extra_config", &format!("{}$", fancy_regex::escape(text)))?,
            config,
        ));
        // AutoRound itself ignores invalid patterns.
        if let Ok(regex) = Regex::new(text) {
            fitting.push((regex, config));
        }
    }
    named.extend(fitting);
    Ok(named)
}
