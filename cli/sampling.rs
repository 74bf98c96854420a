//! Sampling settings that a model recommends: `generation_config.json`, or keys of a GGUF file.

use formats::gguf::{GgufFile, MetadataValue};
use models::gguf::SAMPLING_KEYS;
use models::local_model::LocalModel;
use registry::file::{self, CONFIG};
use serde_json::Value;

/// Recommended settings; none where the model says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct SamplingDefaults {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Reads the settings of a model. Those in the keys of a file go before those of the folder.
    pub(crate) fn of(target: &LocalModel) -> Self {
        let in_keys = if target.is_gguf() { of_keys(target) } else { None };
        in_keys.unwrap_or_else(|| of_folder(target))
    }

    /// Makes settings of numbers by their names. Numbers outside of the range of a setting are ignored.
    fn new(number: impl Fn(&str) -> Option<f64>) -> Self {
        Self {
            temperature: within(number("temperature"), 0.0..=100.0),
            // 0 and less turn the limit off.
            top_k: within(number("top_k"), 1.0..=1e9).map(|k| k as usize),
            top_p: within(number("top_p"), f64::MIN_POSITIVE..=1.0),
            min_p: within(number("min_p"), 0.0..=1.0),
            repetition_penalty: within(number("repetition_penalty"), 0.0..=100.0)
                .filter(|x| *x != 1.0),
        }
    }
}

/// Returns a number within the range of its setting.
fn within(number: Option<f64>, range: std::ops::RangeInclusive<f64>) -> Option<f32> {
    number.filter(|x| range.contains(x)).map(|x| x as f32)
}

fn of_keys(target: &LocalModel) -> Option<SamplingDefaults> {
    let file = GgufFile::open(&target.dir).ok()?;
    let defaults = SamplingDefaults::new(|name| {
        let (_, key) = SAMPLING_KEYS.iter().find(|(known, _)| *known == name)?;
        match file.metadata().get(key)? {
            MetadataValue::F32(x) => Some(f64::from(*x)),
            other => other.integer().map(|n| n as f64),
        }
    });
    (defaults != SamplingDefaults::default()).then_some(defaults)
}

fn of_folder(target: &LocalModel) -> SamplingDefaults {
    let path = target.home().join("generation_config.json");
    let bytes = file::read(&path, CONFIG).unwrap_or_default();
    let json: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    // Without `do_sample`, transformers takes the likeliest token, whatever the other settings.
    if json["do_sample"] != true {
        return SamplingDefaults::default();
    }
    let defaults = SamplingDefaults::new(|name| json[name].as_f64());
    SamplingDefaults { temperature: defaults.temperature.or(Some(1.0)), ..defaults }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outside_of_their_range_are_ignored() {
        let found = SamplingDefaults::new(|name| match name {
            "temperature" => Some(0.7),
            "top_k" => Some(-1.0),
            "top_p" => Some(1.5),
            "repetition_penalty" => Some(1.0),
            _ => None,
        });
        let expected = SamplingDefaults { temperature: Some(0.7), ..SamplingDefaults::default() };
        assert_eq!(found, expected);
    }
}
