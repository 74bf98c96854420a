//! Fields of requests, and their checks.

use std::collections::BTreeMap;
use std::fmt;

use engine::sample::Sampling;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::ApiError;
use crate::object::{NeutralField, shown};

/// Most texts that end an answer, and most bytes of one.
const STOPS: (usize, usize) = (16, 1024);
/// Highest temperature. Beyond it, f32 cannot tell the tokens apart.
const HOTTEST: f64 = 1e6;

/// Fields of clients of OpenAI and of vLLM that change no answer at these values.
pub(crate) const NEUTRAL: [NeutralField; 32] = [
    NeutralField::any("metadata"),
    NeutralField::any("prompt_cache_key"),
    NeutralField::any("prompt_cache_retention"),
    NeutralField::any("safety_identifier"),
    NeutralField::any("request_id"),
    NeutralField::of("include_reasoning", &["true"]),
    NeutralField::of("separate_reasoning", &["true"]),
    NeutralField::of("stream_reasoning", &["true"]),
    NeutralField::of("no_stop_trim", &["false"]),
    NeutralField::of("vllm_xargs", &["{}"]),
    NeutralField::any("spaces_between_special_tokens"),
    NeutralField::of("store", &["false"]),
    NeutralField::of("service_tier", &["\"auto\"", "\"default\""]),
    NeutralField::of("modalities", &["[\"text\"]"]),
    NeutralField::of("functions", &["[]"]),
    NeutralField::of("function_call", &["\"auto\"", "\"none\""]),
    NeutralField::of("verbosity", &["\"medium\""]),
    NeutralField::of("web_search_options", &[]),
    NeutralField::of("audio", &[]),
    NeutralField::of("prediction", &[]),
    NeutralField::of("include_stop_str_in_output", &["false"]),
    NeutralField::of("priority", &["0"]),
    NeutralField::of("truncate_prompt_tokens", &[]),
    NeutralField::of("detokenize", &["true"]),
    NeutralField::of("use_beam_search", &["false"]),
    NeutralField::of("length_penalty", &["1.0"]),
    NeutralField::of("allowed_token_ids", &[]),
    NeutralField::of("bad_words", &["[]"]),
    NeutralField::of("logits_processors", &[]),
    NeutralField::of("chat_template", &[]),
    NeutralField::of("mm_processor_kwargs", &[]),
    NeutralField::of("kv_transfer_params", &[]),
];

/// Fields of completions that change no answer to a conversation at these values.
pub(crate) const NEUTRAL_OF_CHATS: [NeutralField; 2] =
    [NeutralField::of("echo", &["false"]), NeutralField::of("best_of", &["1"])];

/// One prompt, or several.
#[derive(Debug, PartialEq)]
pub(crate) enum PromptField {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

impl PromptField {
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Texts(all) => all.len(),
            Self::Ids(all) => all.len(),
        }
    }
}

/// An item of a list of prompts.
enum PromptElement {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for PromptElement {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = PromptElement;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id from 0 to 4294967295, or a list of token ids")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PromptElement, E> {
                Ok(PromptElement::Text(text.to_owned()))
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<PromptElement, E> {
                let id = u32::try_from(id);
                id.map(PromptElement::Id).map_err(|_| E::custom("a token id is above 4294967295"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptElement, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                }
                Ok(PromptElement::Ids(ids))
            }
        }
        from.deserialize_any(ElementVisitor)
    }
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PromptVisitor;
        impl<'de> Visitor<'de> for PromptVisitor {
            type Value = PromptField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list of token ids, or a list of those")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PromptField, E> {
                Ok(PromptField::Texts(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptField, A::Error> {
                let mut texts = Vec::new();
                let mut ids = Vec::new();
                let mut lists = Vec::new();
                while let Some(element) = list.next_element()? {
                    match element {
                        PromptElement::Text(text) => texts.push(text),
                        PromptElement::Id(id) => ids.push(id),
                        PromptElement::Ids(list) => lists.push(list),
                    }
                    let kinds = [texts.is_empty(), ids.is_empty(), lists.is_empty()];
                    if kinds.iter().filter(|empty| !**empty).count() > 1 {
                        return Err(A::Error::custom("a list of prompts has texts and token ids"));
                    }
                }
                Ok(match (texts.is_empty(), ids.is_empty()) {
                    (false, _) => PromptField::Texts(texts),
                    (_, false) => PromptField::Ids(vec![ids]),
                    _ => PromptField::Ids(lists),
                })
            }
        }
        from.deserialize_any(PromptVisitor)
    }
}

/// One text or several.
#[derive(Debug, PartialEq)]
pub(crate) struct StopField(Vec<String>);

impl<'de> Deserialize<'de> for StopField {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct StopVisitor;
        impl<'de> Visitor<'de> for StopVisitor {
            type Value = StopField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<StopField, E> {
                Ok(StopField(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<StopField, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(StopField(texts))
            }
        }
        from.deserialize_any(StopVisitor)
    }
}

/// Returns the texts that end an answer.
pub(crate) fn stops(field: Option<StopField>) -> Result<Vec<String>, ApiError> {
    let stops = field.map_or_else(Vec::new, |field| field.0);
    let (count, bytes) = STOPS;
    if stops.len() > count {
        let message = format!("`stop` has {} texts; expected at most {count}", stops.len());
        return Err(ApiError::field("stop", message));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > bytes) {
        let message = format!("`stop` has an empty text, or one of more than {bytes} bytes");
        return Err(ApiError::field("stop", message));
    }
    Ok(stops)
}

/// Options of streamed answers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
    /// True for the usage so far in every chunk, as vLLM has it.
    pub(crate) continuous_usage_stats: Option<bool>,
    include_obfuscation: Option<bool>,
}

/// Usage in the chunks of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamUsage {
    /// In a chunk of its own at the end.
    pub(crate) last: bool,
    /// In every chunk.
    pub(crate) each: bool,
}

/// Checks the options of a stream.
pub(crate) fn stream_usage(
    options: Option<&StreamOptions>,
    streamed: bool,
) -> Result<StreamUsage, ApiError> {
    let Some(options) = options else { return Ok(StreamUsage::default()) };
    if !streamed {
        return Err(ApiError::field("stream_options", "`stream_options` needs `stream`"));
    }
    let padding = options.include_obfuscation.as_ref();
    neutral("stream_options.include_obfuscation", padding, &false)?;
    let last = options.include_usage.unwrap_or(false);
    let each = options.continuous_usage_stats.unwrap_or(false);
    Ok(StreamUsage { last, each: last && each })
}

/// The fields of sampling, as a request has them.
#[derive(Debug, Default)]
pub(crate) struct SamplingFields {
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<i64>,
}

/// Returns the value of a field if it is good.
fn checked(name: &str, value: f32, good: bool, expected: &str) -> Result<f32, ApiError> {
    if good {
        return Ok(value);
    }
    Err(ApiError::field(name, format!("`{name}` is {value:?}; expected {expected}")))
}

impl SamplingFields {
    /// Checks the fields. The temperature is 1 if not given, and the seed is random.
    pub(crate) fn check(&self) -> Result<Sampling, ApiError> {
        let temperature = self.temperature.unwrap_or(1.0);
        if !(0.0..=HOTTEST).contains(&temperature) {
            let message = format!(
                "`temperature` is {}; expected 0 or more, at most {HOTTEST}",
                serde_json::json!(temperature)
            );
            return Err(ApiError::field("temperature", message));
        }
        let top_p =
            self.top_p.map(|p| checked("top_p", p, p > 0.0 && p <= 1.0, "above 0, at most 1"));
        let min_p = self.min_p.map(|p| checked("min_p", p, (0.0..=1.0).contains(&p), "0 to 1"));
        let top_k = match self.top_k {
            None | Some(-1 | 0) => None,
            Some(k) => Some(usize::try_from(k).map_err(|_| {
                ApiError::field(
                    "top_k",
                    format!("`top_k` is {k}; expected 1 or more, or -1 for all tokens"),
                )
            })?),
        };
        let seed = self.seed.map_or_else(random, |seed| seed as u64);
        Ok(Sampling {
            temperature: temperature as f32,
            top_k,
            top_p: top_p.transpose()?.filter(|p| *p < 1.0),
            min_p: min_p.transpose()?.filter(|p| *p > 0.0),
            seed,
        })
    }
}

/// Returns a number that nobody can foresee.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Returns the numbers to add to logits, by token.
pub(crate) fn bias(
    field: Option<BTreeMap<String, f32>>,
    vocab: usize,
) -> Result<Vec<(u32, f32)>, ApiError> {
    let mut all = Vec::new();
    for (id, bias) in field.unwrap_or_default() {
        // Another text of the same number would name a token twice.
        let number = id.parse::<u32>().ok();
        let number = number.filter(|n| (*n as usize) < vocab && n.to_string() == id);
        let number = number.ok_or_else(|| {
            let message = format!("`logit_bias` has `{id}`; expected token ids below {vocab}");
            ApiError::field("logit_bias", message)
        })?;
        if !(-100.0..=100.0).contains(&bias) {
            let message = format!("`logit_bias` of {id} is {bias:?}; expected -100 to 100");
            return Err(ApiError::field("logit_bias", message));
        }
        all.push((number, bias));
    }
    Ok(all)
}

/// Returns the tokens that end an answer: those of the request, and those of the model unless ignored.
pub(crate) fn ends(
    field: Option<Vec<u32>>,
    ignore: Option<bool>,
    model: &[u32],
    vocab: usize,
) -> Result<Vec<u32>, ApiError> {
    let mut ends = field.unwrap_or_default();
    if let Some(id) = ends.iter().find(|id| **id as usize >= vocab) {
        let message = format!("`stop_token_ids` has {id}; expected token ids below {vocab}");
        return Err(ApiError::field("stop_token_ids", message));
    }
    if ignore != Some(true) {
        ends.extend(model);
    }
    Ok(ends)
}

/// Refuses a field that changes nothing at its neutral value and is not supported otherwise.
pub(crate) fn neutral<T: PartialEq + Serialize>(
    name: &str,
    value: Option<&T>,
    neutral: &T,
) -> Result<(), ApiError> {
    match value {
        Some(value) if value != neutral => Err(ApiError {
            code: Some("unsupported_value"),
            ..ApiError::field(
                name,
                format!(
                    "`{name}` is {}, which is not supported; leave it out, or give {}",
                    shown(&serde_json::json!(value)),
                    serde_json::json!(neutral)
                ),
            )
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_four_forms() {
        assert_eq!(read_prompt("\"a\\u20ac\""), Ok(prompt_texts(&["a€"])));
        assert_eq!(read_prompt("[\"a\", \"b\"]"), Ok(prompt_texts(&["a", "b"])));
        assert_eq!(read_prompt("[1, 2]"), Ok(PromptField::Ids(vec![vec![1, 2]])));
        assert_eq!(
            read_prompt("[[1], [2, 3], []]"),
            Ok(PromptField::Ids(vec![vec![1], vec![2, 3], vec![]]))
        );
        assert_eq!(read_prompt("[]"), Ok(PromptField::Ids(vec![])));
        for (text, words) in [
            ("[1, \"a\"]", "texts and token ids"),
            ("[-1]", "a token id from 0"),
            ("[1.5]", "a token id from 0"),
            ("[4294967296]", "above 4294967295"),
            ("[[1, \"a\"]]", "u32"),
            ("[[[1]]]", "u32"),
            ("{}", "a list of token ids"),
            ("7", "a list of token ids"),
        ] {
            let error = read_prompt(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    fn prompt_texts(all: &[&str]) -> PromptField {
        PromptField::Texts(all.iter().map(|t| (*t).to_owned()).collect())
    }

    fn read_prompt(text: &str) -> Result<PromptField, String> {
        serde_json::from_str::<PromptField>(text).map_err(|e| e.to_string())
    }

    #[test]
    fn values_out_of_range_are_named() {
        for change in [
            (&|f: &mut SamplingFields| f.temperature = Some(-0.5)) as &dyn Fn(&mut SamplingFields),
            &|f| f.temperature = Some(1e308),
        ] {
            assert_eq!(check_changed(change), Err(Some("temperature".to_owned())));
        }
        assert_eq!(check_changed(&|f| f.top_p = Some(0.0)), Err(Some("top_p".to_owned())));
        assert_eq!(check_changed(&|f| f.min_p = Some(1.5)), Err(Some("min_p".to_owned())));
        assert_eq!(check_changed(&|f| f.top_k = Some(-2)), Err(Some("top_k".to_owned())));
        assert_eq!(check_changed(&|f| f.seed = Some(-1)).map(|s| s.seed), Ok(u64::MAX));
    }

    fn check_changed(change: &dyn Fn(&mut SamplingFields)) -> Result<Sampling, Option<String>> {
        let mut fields = SamplingFields::default();
        change(&mut fields);
        fields.check().map_err(|error| error.param)
    }

    #[test]
    fn messages_show_values_as_json() {
        let hot = SamplingFields { temperature: Some(1e308), ..SamplingFields::default() };
        let message = hot.check().unwrap_err().message;
        assert!(message.starts_with("`temperature` is 1e+308; expected 0"), "{message}");
        let text = serde_json::json!({ "a": "b" });
        let message = neutral("field", Some(&text), &serde_json::Value::Null).unwrap_err().message;
        assert!(
            message.contains("`field` is {\"a\":\"b\"}, which") && message.ends_with("give null"),
            "{message}"
        );
        assert_eq!(
            serde_json::from_str::<StopField>("\"a\"").unwrap(),
            StopField(vec!["a".to_owned()])
        );
        assert_eq!(serde_json::from_str::<StopField>("[\"a\", \"b\"]").unwrap().0.len(), 2);
        for text in ["1", "{}", "true"] {
            let message = serde_json::from_str::<StopField>(text).unwrap_err().to_string();
            assert!(message.contains("a text or a list of texts"), "{message}");
        }
        assert_eq!(ends(Some(vec![3]), None, &[7], 10), Ok(vec![3, 7]));
        assert_eq!(ends(Some(vec![3]), Some(true), &[7], 10), Ok(vec![3]));
        let message = ends(Some(vec![10]), None, &[7], 10).unwrap_err().message;
        assert!(message.contains("has 10; expected token ids below 10"), "{message}");
    }

    #[test]
    fn usage_is_streamed_as_asked() {
        assert_eq!(usage_of("{}", true), Ok((false, false)));
        assert_eq!(
            usage_of("{\"include_usage\": true, \"include_obfuscation\": false}", true),
            Ok((true, false))
        );
        let each = "{\"include_usage\": true, \"continuous_usage_stats\": true}";
        assert_eq!(usage_of(each, true), Ok((true, true)));
        assert!(usage_of(each, false).unwrap_err().message.contains("needs `stream`"));
        assert!(usage_of("{\"include_obfuscation\": true}", true).is_err());
    }

    fn usage_of(text: &str, streamed: bool) -> Result<(bool, bool), ApiError> {
        let options: StreamOptions = serde_json::from_str(text).unwrap();
        stream_usage(Some(&options), streamed).map(|usage| (usage.last, usage.each))
    }
}
