//! AutoRound's config, whose codes are laid out as in GPTQ or AWQ.

use fancy_regex::Regex;
use serde_json::Value;

use super::checks::SchemeResult;
use super::integer_config::{IntegerConfig, numbers, pattern};
use crate::checkpoint::Checkpoint;

/// Values of `quant_method` that AutoRound writes.
pub(super) const METHODS: [&str; 2] = ["auto-round", "intel/auto-round"];

/// Maps AutoRound's packing to a supported method: its `quant_method` and its `checkpoint_format` or
/// `version`. The names are those of auto_round/inference/backend.py (`GPTQ_FORMAT` and others).
pub(super) fn layout(
    checkpoint: &Checkpoint,
    section: &Value,
) -> SchemeResult<(&'static str, &'static str)> {
    let setting = |key: &str| section.get(key).filter(|value| !value.is_null());
    let wrong = |key: &str, found: &Value, expected: &str| {
        let found = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
        Err(checkpoint.config_error(key, &found, expected))
    };
    if let Some(found) = setting("rotation_config") {
        return wrong(
            "rotation_config",
            found,
            "none: what is rotated while the model runs is not read",
        );
    }
    if let Some(found) = setting("data_type")
        .filter(|kind| !kind.as_str().is_some_and(|kind| kind == "int" || kind.starts_with("int_")))
    {
        return wrong("data_type", found, "int: save it in the format `llm_compressor` instead");
    }
    if let Some(found) = setting("act_bits").filter(|bits| bits.as_u64().is_none_or(|n| n < 16)) {
        return wrong("act_bits", found, "16: rows that are rounded in its own way are not read");
    }
    Ok(match section.get("packing_format").and_then(Value::as_str).unwrap_or("auto") {
        "auto" | "auto_round:gptq" | "auto_round:auto_gptq" => ("gptq", "gptq"),
        "auto_round" | "auto_round:gptqmodel" => ("gptq", "gptq_v2"),
        "auto_round:awq" | "auto_round:auto_awq" => {
            if let Some(bits) = setting("bits").filter(|bits| bits.as_u64() != Some(4)) {
                return wrong("bits", bits, "4 where `packing_format` is auto_round:auto_awq");
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
    for (text, own) in rules {
        let plain = |bits: &Value| bits.as_u64().is_some_and(|bits| bits >= 16);
        let own = match own.get("bits") {
            Some(bits) if plain(bits) => None,
            _ => Some(numbers(checkpoint, own, default)?),
        };
        named.push((
            pattern(checkpoint, "extra_config", &format!("{}$", fancy_regex::escape(text)))?,
            own,
        ));
        // AutoRound itself ignores invalid patterns.
        if let Ok(regex) = Regex::new(text) {
            fitting.push((regex, own));
        }
    }
    named.extend(fitting);
    Ok(named)
}
