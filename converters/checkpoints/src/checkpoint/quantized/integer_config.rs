//! Parses bits, group sizes and patterns of a quantization section.

use fancy_regex::Regex;
use serde_json::Value;

use super::checks::SchemeResult;
use super::section::non_null;
use crate::checkpoint::Checkpoint;

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

/// Compiles a pattern that matches from the beginning, like Python's `re.match`.
pub(super) fn pattern(checkpoint: &Checkpoint, key: &str, text: &str) -> SchemeResult<Regex> {
    Regex::new(&format!("^(?:{text})"))
        .map_err(|_| checkpoint.config_error(key, text, "a regular expression"))
}

/// Parses bits and group size of a section, with defaults for missing ones.
pub(super) fn numbers(
    checkpoint: &Checkpoint,
    section: &Value,
    default: IntegerConfig,
) -> SchemeResult<IntegerConfig> {
    let bits = match first_setting(section, ["bits", "w_bit"]) {
        Some((key, value)) => match value.as_u64() {
            Some(bits @ 2..=8) => bits as u32,
            _ => return Err(checkpoint.config_error(key, &value.to_string(), "2 to 8")),
        },
        None => default.bits,
    };
    let group = match first_setting(section, ["group_size", "q_group_size"]) {
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

/// Returns the first key that the section has, with its value.
fn first_setting<'v>(
    section: &'v Value,
    keys: [&'static str; 2],
) -> Option<(&'static str, &'v Value)> {
    keys.into_iter().find_map(|key| Some((key, non_null(section, key)?)))
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
