//! JSON responses, and errors for those that cannot be parsed.

use std::cell::Cell;
use std::marker::PhantomData;

use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::Value;

use crate::Error;
use crate::error::shown;
use crate::http::ServerResponse;

impl ServerResponse {
    /// Parses the response.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.bytes).map_err(|error| self.explain(&error))
    }

    /// Parses a report that a server gives about itself. A value takes up to a hundred times the bytes of its text, so
    /// the memory for all of them is bounded by a few times the size of the response.
    pub(crate) fn report(&self) -> Result<Value, Error> {
        let memory =
            Cell::new(SMALL_REPORT.saturating_add(self.bytes.len().saturating_mul(FACTOR)));
        let mut parser = serde_json::Deserializer::from_slice(&self.bytes);
        let value = BoundedValue(&memory).deserialize(&mut parser);
        value.and_then(|value| parser.end().map(|()| value)).map_err(|error| self.explain(&error))
    }

    /// Returns an error about this response.
    pub(crate) fn unusable(&self, problem: impl Into<String>) -> Error {
        Error::Answer { url: self.url.clone(), found: problem.into(), help: "" }
    }

    fn explain(&self, error: &serde_json::Error) -> Error {
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n');
        let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at = (before + error.column().saturating_sub(1)).min(self.bytes.len());
        let near = &self.bytes[at.saturating_sub(12)..(at + 12).min(self.bytes.len())];
        let near = String::from_utf8_lossy(near).into_owned();
        let odd = ["NaN", "Infinity", "nan", "inf"].into_iter().find(|word| near.contains(word));
        let (problem, help) = match (odd, error.is_eof()) {
            (Some(word), _) => (
                format!("a number is `{word}` (near `{}`, byte {at})", shown(&near)),
                "the server computes numbers that are not finite: look for overflow, or for damaged weights",
            ),
            (None, true) => (
                format!("it breaks off after {} bytes", self.bytes.len()),
                "look into the server's log",
            ),
            (None, false) => {
                let begins =
                    String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(60)]).into_owned();
                let message = shown(&error.to_string());
                if error.is_data() {
                    (
                        format!("its JSON has another form: {message}"),
                        "the version of the server may be another",
                    )
                } else {
                    (
                        format!("it is no JSON: {message}; it begins with `{}`", shown(&begins)),
                        "check that the address is that of the server",
                    )
                }
            }
        };
        Error::Answer { url: self.url.clone(), found: problem, help }
    }
}

/// Memory that the values of every report may take, in bytes.
const SMALL_REPORT: usize = 4 << 20;
/// Memory of a large report's values, as a multiple of its size.
const FACTOR: usize = 4;
/// Memory of one value or key, and of a map with one entry, in bytes: the room of the allocations of serde_json.
const VALUE: usize = 96;
const MAP: usize = 700;

/// Reads any value within the memory that is left.
struct BoundedValue<'m>(&'m Cell<usize>);

impl BoundedValue<'_> {
    fn take<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.ok_or_else(|| E::custom("it has too many values for a report"))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for BoundedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.take::<E>(text.len())?;
        Ok(text.into())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Value, S::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(BoundedValue(self.0))? {
            self.take::<S::Error>(VALUE)?;
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Value, M::Error> {
        self.take::<M::Error>(MAP)?;
        let mut values = serde_json::Map::new();
        while let Some(key) = map.next_key::<String>()? {
            self.take::<M::Error>(2 * VALUE + key.len())?;
            values.insert(key, map.next_value_seed(BoundedValue(self.0))?);
        }
        Ok(Value::Object(values))
    }
}

/// Most items of a list that has one item for each prompt of a request.
const MOST_ITEMS: usize = 16;

/// Reads a list with one item for each prompt. An item takes far more memory than its shortest text.
pub(crate) fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct FewVisitor<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for FewVisitor<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "a list of at most {MOST_ITEMS} items")
        }
        fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vec<T>, S::Error> {
            let mut items = Vec::new();
            while let Some(item) = list.next_element()? {
                if items.len() == MOST_ITEMS {
                    let why =
                        format!("a list has more than the {MOST_ITEMS} items that were asked for");
                    return Err(serde::de::Error::custom(why));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_seq(FewVisitor(PhantomData))
}

/// Returns a value inside a response, by a path with dots; numbers are list indices.
pub fn find<'v>(answer: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(answer, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        other => other.get(step),
    })
}

/// Formats a value as a setting.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        Value::String(text) => Some(shown(text)),
        other => Some(other.to_string()),
    }
}

/// Maximum number of entries of a row that are kept while it is parsed: above every vocabulary.
const MOST_ENTRIES: usize = 1 << 21;

/// Map from token ids, written as strings, to objects with a `logprob`.
#[derive(Debug, Default)]
pub(crate) struct LogprobById(pub(crate) Vec<(u32, f32)>);

impl<'de> Deserialize<'de> for LogprobById {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LogprobByIdVisitor;
        impl<'de> Visitor<'de> for LogprobByIdVisitor {
            type Value = LogprobById;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of token ids")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<LogprobById, M::Error> {
                #[derive(serde::Deserialize)]
                struct LogprobEntry {
                    logprob: f64,
                }
                let mut entries = Vec::new();
                while let Some(TokenIdText(id)) = map.next_key()? {
                    entries.push((id, map.next_value::<LogprobEntry>()?.logprob as f32));
                    if entries.len() > MOST_ENTRIES {
                        return Err(serde::de::Error::custom("a row has too many entries"));
                    }
                }
                Ok(LogprobById(entries))
            }
        }
        deserializer.deserialize_map(LogprobByIdVisitor)
    }
}

/// Token id that is written as a string.
struct TokenIdText(u32);

impl<'de> Deserialize<'de> for TokenIdText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenIdVisitor;
        impl Visitor<'_> for TokenIdVisitor {
            type Value = TokenIdText;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a token id as text")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TokenIdText, E> {
                let id = text
                    .parse()
                    .map_err(|_| E::custom(format!("`{}` is no token id", shown(text))));
                id.map(TokenIdText)
            }
        }
        deserializer.deserialize_str(TokenIdVisitor)
    }
}

/// Returns the error for an entry without a log-probability and an id.
fn too_short<E: serde::de::Error>() -> E {
    E::custom("an entry has less than two parts")
}

/// List that begins with a log-probability and a token id: `[-1.5, 17, "word"]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogprobPair {
    /// Log-probability; none for the first token.
    pub(crate) logprob: Option<f32>,
    pub(crate) id: u32,
}

impl<'de> Deserialize<'de> for LogprobPair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LogprobPairVisitor;
        impl<'de> Visitor<'de> for LogprobPairVisitor {
            type Value = LogprobPair;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of a log-probability, a token id and a text")
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<LogprobPair, S::Error> {
                let logprob = list.next_element::<Option<f64>>()?;
                let logprob = logprob.ok_or_else(too_short::<S::Error>)?;
                let id = list.next_element::<u32>()?.ok_or_else(too_short::<S::Error>)?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(LogprobPair { logprob: logprob.map(|x| x as f32), id })
            }
        }
        deserializer.deserialize_seq(LogprobPairVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> ServerResponse {
        ServerResponse { url: "http://h/x".to_owned(), bytes: text.as_bytes().to_vec() }
    }

    #[test]
    fn answers_that_cannot_be_read_are_explained() {
        for (text, words) in [
            (r#"{"1": {"logprob": NaN}}"#, "a number is `NaN`"),
            (r#"{"1": {"logprob": -Infinity}}"#, "a number is `Infinity`"),
            (r#"{"1": {"logprob": -1."#, "breaks off after"),
            (r#"{"x": {"logprob": -1.0}}"#, "`x` is no token id"),
            (r#"{"-1": {"logprob": -1.0}}"#, "`-1` is no token id"),
            (r#"{"1": {"logprob": 1e999}}"#, "number out of range"),
            (r#"{"1": {"logprob": "no"}}"#, "another form"),
            ("<html>", "no JSON"),
        ] {
            let error = answer(text).json::<LogprobById>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let read: LogprobById = answer(r#"{"1": {"logprob": -1.5, "rank": 1}}"#).json().unwrap();
        assert_eq!(read.0, [(1, -1.5)]);
    }

    #[test]
    fn reports_take_a_few_times_their_size() {
        let text =
            r#"{"data": [{"id": "a", "max_model_len": 3, "x": [null, true, -1.5]}], "y": "é"}"#;
        assert_eq!(report_of(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for item in ["{\"\":0}", "{}", "[]", "[{}]", "[0]"] {
            let many = format!("{{\"data\":[{}0]}}", format!("{item},").repeat(2_000_000));
            let error = report_of(&many).unwrap_err();
            assert!(error.contains("too many values"), "{item}: {error}");
        }
        assert!(report_of("{} {}").is_err());
        assert!(report_of(&"[".repeat(100_000)).unwrap_err().contains("recursion"));
    }

    fn report_of(text: &str) -> Result<Value, String> {
        answer(text).report().map_err(|error| error.to_string())
    }

    #[test]
    fn lists_have_an_item_for_each_prompt() {
        #[derive(Debug, serde::Deserialize)]
        struct Items {
            #[serde(deserialize_with = "few")]
            items: Vec<Option<u64>>,
        }
        let read: Items = answer(r#"{"items": [1, null]}"#).json().unwrap();
        assert_eq!(read.items, [Some(1), None]);
        let many = format!("{{\"items\":[{}0]}}", "{},".repeat(1_000));
        assert!(answer(&many).json::<Items>().is_err());
        let many = format!("{{\"items\":[{}0]}}", "0,".repeat(1_000));
        let error = answer(&many).json::<Items>().unwrap_err().to_string();
        assert!(error.contains("more than the 16 items"), "{error}");
    }

    #[test]
    fn pairs_may_lack_their_number() {
        let read: Vec<LogprobPair> =
            answer(r#"[[null, 3, "a"], [-2.5, 4, null, 0]]"#).json().unwrap();
        assert_eq!((read[0].logprob, read[0].id, read[1].logprob), (None, 3, Some(-2.5)));
        assert!(answer("[[1.0]]").json::<Vec<LogprobPair>>().is_err());
    }
}
