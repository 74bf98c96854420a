//! JSON objects of requests: parsed strictly, with errors in the words of JSON.

use std::fmt;
use std::marker::PhantomData;

use axum::http::StatusCode;
use serde::de::value::StringDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};
use serde_json::Value;
use serde_path_to_error::Track;

use crate::error::ApiError;

/// Field that is known and changes no answer at some values; other values are refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeutralField {
    name: &'static str,
    /// Accepted values beside null, as JSON; none for every value.
    accepted: Option<&'static [&'static str]>,
}

/// True if a JSON text is the same as a value; numbers are compared by value.
fn is_same(text: &str, value: &Value) -> bool {
    match (serde_json::from_str(text), value.as_f64()) {
        (Ok(Value::Number(number)), Some(value)) => number.as_f64() == Some(value),
        (Ok(other), _) => other == *value,
        (Err(_), _) => false,
    }
}

impl NeutralField {
    pub(crate) const fn of(name: &'static str, accepted: &'static [&'static str]) -> Self {
        Self { name, accepted: Some(accepted) }
    }

    pub(crate) const fn any(name: &'static str) -> Self {
        Self { name, accepted: None }
    }

    /// Returns the reason why a value is refused.
    fn refusal(&self, value: &Value) -> Option<String> {
        let accepted = self.accepted?;
        if value.is_null() || accepted.iter().any(|text| is_same(text, value)) {
            return None;
        }
        let or = accepted.first().map(|text| format!(", or give {text}")).unwrap_or_default();
        Some(format!(
            "`{}` is {}, which is not supported; leave it out{or}",
            self.name,
            shown(value)
        ))
    }
}

/// Writes a value for an error.
pub(crate) fn shown(value: &Value) -> String {
    const LONGEST: usize = 100;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Reads an object: a list of its fields in order is none.
struct ObjectVisitor<'n, T> {
    neutral: &'n [NeutralField],
    kind: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(FilteredObject { map, neutral: self.neutral })
    }
}

/// Object whose neutral fields are checked and left out.
struct FilteredObject<'n, A> {
    map: A,
    neutral: &'n [NeutralField],
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for FilteredObject<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        self.deserialize_struct("", &[], visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(FilteredMap { map: self.map, neutral: self.neutral, fields })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for ObjectVisitor<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        from.deserialize_map(self)
    }
}

/// Fields of an object without the neutral ones, and without unknown ones that are null: they ask for nothing.
struct FilteredMap<'n, A> {
    map: A,
    neutral: &'n [NeutralField],
    /// Names of the known fields.
    fields: &'static [&'static str],
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for FilteredMap<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.map.next_key::<String>()? {
            match self.neutral.iter().find(|field| field.name == name) {
                Some(field) => self.map.next_value_seed(NeutralValue(field))?,
                None if self.fields.contains(&name.as_str()) => {
                    return seed.deserialize(StringDeserializer::new(name)).map(Some);
                }
                // Only a name that is not known fails here.
                None if self.map.next_value::<Option<IgnoredAny>>()?.is_some() => {
                    return seed.deserialize(StringDeserializer::new(name)).map(Some);
                }
                None => {}
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Value of a neutral field.
struct NeutralValue<'n>(&'n NeutralField);

impl<'de> DeserializeSeed<'de> for NeutralValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        let value = Value::deserialize(from)?;
        self.0.refusal(&value).map_or(Ok(()), |why| Err(D::Error::custom(why)))
    }
}

/// Reads an object inside of another one, or nothing.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    struct OptionalVisitor<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for OptionalVisitor<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }

        fn visit_none<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
            ObjectVisitor { neutral: &[], kind: PhantomData }.deserialize(from).map(Some)
        }
    }
    from.deserialize_option(OptionalVisitor(PhantomData))
}

/// Reads an integer, or nothing. Some clients have no integers, and write `4.0`.
pub(crate) fn integer<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    struct IntegerVisitor<T>(PhantomData<T>);
    impl<'de, T: TryFrom<i128>> Visitor<'de> for IntegerVisitor<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let negative = T::try_from(-1).is_ok();
            f.write_str(if negative { "an integer" } else { "an integer of 0 or more" })
        }

        fn visit_none<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
            from.deserialize_any(self)
        }

        fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Option<T>, E> {
            let unexpected = serde::de::Unexpected::Unsigned(value);
            T::try_from(value.into()).map(Some).map_err(|_| E::invalid_value(unexpected, &self))
        }

        fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Option<T>, E> {
            let unexpected = serde::de::Unexpected::Signed(value);
            T::try_from(value.into()).map(Some).map_err(|_| E::invalid_value(unexpected, &self))
        }

        fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Option<T>, E> {
            // Integers of f64 are exact below 2^53.
            let exact = value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0;
            let integer = exact.then_some(value as i128).and_then(|value| T::try_from(value).ok());
            let unexpected = serde::de::Unexpected::Float(value);
            integer.map(Some).ok_or_else(|| E::invalid_value(unexpected, &self))
        }
    }
    from.deserialize_option(IntegerVisitor(PhantomData))
}

/// Parses a JSON object without its neutral fields; unknown fields are refused by name.
pub(crate) fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    neutral: &[NeutralField],
) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut track = Track::new();
    let from = serde_path_to_error::Deserializer::new(&mut reader, &mut track);
    let parsed = ObjectVisitor { neutral, kind: PhantomData }.deserialize(from);
    let parsed = parsed.map_err(|error| {
        let message = error.to_string();
        let unknown = field_after(&message, "unknown field `");
        let missing = field_after(&message, "missing field `");
        let path = track.path().to_string();
        let (param, code) = match unknown {
            Some(name) if path == "." || path == name => {
                (Some(name.to_owned()), Some("unknown_field"))
            }
            Some(name) => {
                let outer = path.strip_suffix(name).and_then(|path| path.strip_suffix('.'));
                (Some(format!("{}.{name}", outer.unwrap_or(&path))), Some("unknown_field"))
            }
            None if let Some(name) = missing => {
                let outer = if path == "." { String::new() } else { format!("{path}.") };
                (Some(format!("{outer}{name}")), Some("missing_field"))
            }
            None if path == "." || !error.is_data() => (None, Some("invalid_json")),
            None if message.contains("which is not supported;") => {
                (Some(path.clone()), Some("unsupported_value"))
            }
            None => (Some(path.clone()), Some("invalid_value")),
        };
        let place = param.as_ref().filter(|path: &&String| unknown.is_none() || path.contains('.'));
        let place = place.map(|path| format!(" at `{path}`")).unwrap_or_default();
        let message = format!("the request is not understood{place}: {}", plain(&message));
        ApiError { param, code, ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    })?;
    reader.end().map_err(|error| {
        let message = format!("the request is not one JSON object: {error}");
        ApiError::coded(StatusCode::BAD_REQUEST, "invalid_json", message)
    })?;
    Ok(parsed)
}

/// Returns the name of the field that a message has behind its first words.
fn field_after<'m>(message: &'m str, words: &str) -> Option<&'m str> {
    message.strip_prefix(words)?.split('`').next()
}

/// Returns a message of serde with the words of JSON in place of the names of types.
fn plain(message: &str) -> String {
    for half in ["lone leading surrogate in hex escape", "unexpected end of hex escape"] {
        if let Some(place) = message.strip_prefix(half) {
            return format!(
                "a text has half of a character, an escape of a surrogate without its pair{place}"
            );
        }
    }
    let Some((actual, expected)) = message.split_once(", expected ") else {
        return message.to_owned();
    };
    let end = expected.find(" at line ").unwrap_or(expected.len());
    let (expected, place) = expected.split_at(end);
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of 0 or more",
        "i32" | "i64" => "an integer",
        "f32" | "f64" => "a number",
        "a string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    let actual = match actual {
        "invalid type: sequence" => "invalid type: list",
        "invalid type: map" => "invalid type: object",
        other => other,
    };
    format!("{actual}, expected {expected}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        flag: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fields {
        count: Option<u32>,
        names: Option<Vec<String>>,
        #[serde(default, deserialize_with = "optional")]
        inner: Option<Inner>,
    }

    const NEUTRAL: [NeutralField; 4] = [
        NeutralField::of("store", &["false"]),
        NeutralField::of("penalty", &["1.0"]),
        NeutralField::of("search", &[]),
        NeutralField::any("metadata"),
    ];

    fn parsed(text: &str) -> Result<Fields, ApiError> {
        parse(text.as_bytes(), &NEUTRAL)
    }

    #[test]
    fn faults_of_json_are_named() {
        let error = parsed("{\"include\": true}").unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("include"), Some("unknown_field")));
        assert!(error.message.contains("`count`"), "{}", error.message);
        for text in ["", "{", "{} {}", "[", "nul", "{\"count\": 1,}", "[]", "[1, []]", "7", "null"]
        {
            let error = parsed(text).unwrap_err();
            assert_eq!(error.code, Some("invalid_json"), "{text}: {}", error.message);
        }
        assert!(
            parsed("[1, [\"a\"]]").unwrap_err().message.contains("list, expected a JSON object")
        );
        assert!(parse::<Fields>(b"{\"\xff\": 1}", &[]).is_err());
    }

    #[test]
    fn errors_have_the_words_of_json() {
        for (text, place, words) in [
            ("{\"count\": \"x\"}", "count", "expected an integer of 0 or more"),
            ("{\"names\": {}}", "names", "object, expected a list"),
            ("{\"names\": [1]}", "names[0]", "expected a text"),
            ("{\"inner\": [true]}", "inner", "list, expected a JSON object"),
            ("{\"inner\": {\"flag\": 1}}", "inner.flag", "expected true or false"),
        ] {
            let error = parsed(text).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(place), "{text}: {}", error.message);
            assert!(error.message.contains(words), "{text}: {}", error.message);
        }
        let fields = parsed("{\"inner\": null, \"count\": 3, \"names\": null}").unwrap();
        assert!(fields.inner.is_none() && fields.count == Some(3) && fields.names.is_none());
        let fields = parsed("{\"inner\": {\"flag\": true}}").unwrap();
        assert_eq!(fields.inner.and_then(|inner| inner.flag), Some(true));
    }

    #[test]
    fn neutral_fields_change_nothing() {
        let text = "{\"store\": false, \"count\": 2, \"penalty\": 1, \"search\": null, \"metadata\": {\"a\": [1]}}";
        assert_eq!(parsed(text).unwrap().count, Some(2));
        for (text, name, words) in [
            (
                "{\"store\": true}",
                "store",
                "`store` is true, which is not supported; leave it out, or give false",
            ),
            ("{\"penalty\": 0.5}", "penalty", "or give 1.0"),
            ("{\"search\": {}}", "search", "`search` is {}, which is not supported; leave it out"),
        ] {
            let error = parsed(text).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name), "{}", error.message);
            assert_eq!(error.code, Some("unsupported_value"));
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
