//! JSON responses, and errors for those that cannot be parsed.

use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
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

    /// Returns an error about this response.
    pub(crate) fn unusable(&self, found: impl Into<String>) -> Error {
        Error::Answer { url: self.url.clone(), found: found.into(), help: "" }
    }

    fn explain(&self, error: &serde_json::Error) -> Error {
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n');
        let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at = (before + error.column().saturating_sub(1)).min(self.bytes.len());
        let near = &self.bytes[at.saturating_sub(12)..(at + 12).min(self.bytes.len())];
        let near = String::from_utf8_lossy(near).into_owned();
        let odd = ["NaN", "Infinity", "nan", "inf"].into_iter().find(|word| near.contains(word));
        let (found, help) = match (odd, error.is_eof()) {
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
        Error::Answer { url: self.url.clone(), found, help }
    }
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
                let short = || serde::de::Error::custom("an entry has less than two parts");
                let logprob = list.next_element::<Option<f64>>()?.ok_or_else(short)?;
                let id = list.next_element::<u32>()?.ok_or_else(short)?;
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
    fn pairs_may_lack_their_number() {
        let read: Vec<LogprobPair> =
            answer(r#"[[null, 3, "a"], [-2.5, 4, null, 0]]"#).json().unwrap();
        assert_eq!((read[0].logprob, read[0].id, read[1].logprob), (None, 3, Some(-2.5)));
        assert!(answer("[[1.0]]").json::<Vec<LogprobPair>>().is_err());
    }
}
