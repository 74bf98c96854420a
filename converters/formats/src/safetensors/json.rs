//! Parses the header's JSON into exactly the three fields of a tensor.
//!
//! `serde_json` alone keeps the last of two equal names; here the second one is an error. Unknown fields
//! are not stored, so memory stays within a small multiple of the text.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::error::Category;

use crate::shown;

/// Limit on axes, more than any framework supports.
const MAX_RANK: usize = 64;

/// Unchecked tensor of the header.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RawTensor {
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Unchecked header.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RawHeader {
    pub(super) tensors: BTreeMap<String, RawTensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Error in the header's JSON.
#[derive(Debug, PartialEq)]
pub(super) enum HeaderFault {
    NotJson(String),
    DuplicateTensor(String),
    DuplicateField { tensor: String, field: String },
    MissingField { tensor: String, field: &'static str },
    UnknownField { tensor: String, field: String },
    BadField { tensor: String, field: &'static str, why: String },
    BadMetadata(String),
}

/// Reads the text of a header.
pub(super) fn parse(text: &str) -> Result<RawHeader, HeaderFault> {
    let mut fault = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let header = HeaderSeed(&mut fault)
        .deserialize(&mut deserializer)
        .and_then(|header| deserializer.end().map(|()| header));
    header.map_err(|error| match (fault, error.classify()) {
        // A recorded fault explains the error, unless the text is not JSON at all.
        (Some(fault), Category::Data) => fault,
        _ => HeaderFault::NotJson(shown(&error.to_string())),
    })
}

/// Records the fault and stops the parser.
fn stop<E: serde::de::Error>(slot: &mut Option<HeaderFault>, fault: HeaderFault) -> E {
    slot.get_or_insert(fault);
    E::custom("stopped")
}

struct HeaderSeed<'f>(&'f mut Option<HeaderFault>);

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        let mut seen_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut seen_metadata, true) {
                    return Err(stop(
                        self.0,
                        HeaderFault::BadMetadata("it stands there twice".into()),
                    ));
                }
                match map.next_value_seed(MetadataSeed) {
                    Ok(metadata) => header.metadata = metadata,
                    Err(error) => {
                        let why = shown(&error.to_string());
                        self.0.get_or_insert(HeaderFault::BadMetadata(why));
                        return Err(error);
                    }
                }
                continue;
            }
            if header.tensors.contains_key(&name) {
                return Err(stop(self.0, HeaderFault::DuplicateTensor(shown(&name))));
            }
            let raw = map.next_value_seed(TensorSeed { tensor: &name, fault: self.0 })?;
            header.tensors.insert(name, raw);
        }
        Ok(header)
    }
}

struct MetadataSeed;

impl<'de> DeserializeSeed<'de> for MetadataSeed {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    // The format's reference reader accepts `null` for "none".
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if metadata.contains_key(&key) {
                return Err(A::Error::custom(format!("`{key}` stands there twice")));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }
}

struct TensorSeed<'n, 'f> {
    tensor: &'n str,
    fault: &'f mut Option<HeaderFault>,
}

impl TensorSeed<'_, '_> {
    fn field<T, E: fmt::Display>(
        &mut self,
        field: &'static str,
        value: Result<T, E>,
    ) -> Result<T, E> {
        if let Err(error) = &value {
            let why = shown(&error.to_string());
            let tensor = shown(self.tensor);
            self.fault.get_or_insert(HeaderFault::BadField { tensor, field, why });
        }
        value
    }

    /// Returns the error for a tensor without a field, and records the fault.
    fn missing<E: serde::de::Error>(&mut self, field: &'static str) -> E {
        let fault = HeaderFault::MissingField { tensor: shown(self.tensor), field };
        stop(self.fault, fault)
    }
}

impl<'de> DeserializeSeed<'de> for TensorSeed<'_, '_> {
    type Value = RawTensor;

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<RawTensor, D::Error> {
        let result = deserializer.deserialize_map(TensorVisitor(&mut self));
        self.field("the entry", result)
    }
}

struct TensorVisitor<'s, 'n, 'f>(&'s mut TensorSeed<'n, 'f>);

impl<'de> Visitor<'de> for TensorVisitor<'_, '_, '_> {
    type Value = RawTensor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawTensor, A::Error> {
        let seed = self.0;
        let mut dtype = None;
        let mut shape = None;
        let mut offsets = None;
        while let Some(field) = map.next_key::<String>()? {
            let again = match field.as_str() {
                "dtype" => dtype.is_some(),
                "shape" => shape.is_some(),
                "data_offsets" => offsets.is_some(),
                _ => {
                    let fault = HeaderFault::UnknownField {
                        tensor: shown(seed.tensor),
                        field: shown(&field),
                    };
                    // The value is skipped, so that broken JSON is reported as such.
                    map.next_value::<IgnoredAny>()?;
                    return Err(stop(seed.fault, fault));
                }
            };
            if again {
                let fault = HeaderFault::DuplicateField { tensor: shown(seed.tensor), field };
                return Err(stop(seed.fault, fault));
            }
            match field.as_str() {
                "dtype" => dtype = Some(seed.field("dtype", map.next_value::<String>())?),
                "shape" => shape = Some(seed.field("shape", map.next_value_seed(IntegerList))?),
                _ => offsets = Some(seed.field("data_offsets", map.next_value_seed(IntegerList))?),
            }
        }
        let dtype = dtype.ok_or_else(|| seed.missing("dtype"))?;
        let shape = shape.ok_or_else(|| seed.missing("shape"))?;
        let offsets = offsets.ok_or_else(|| seed.missing("data_offsets"))?;
        let [begin, end] = offsets[..] else {
            let fault = HeaderFault::BadField {
                tensor: shown(seed.tensor),
                field: "data_offsets",
                why: format!("found {} numbers, expected begin and end", offsets.len()),
            };
            return Err(stop(seed.fault, fault));
        };
        Ok(RawTensor { dtype, shape, begin, end })
    }
}

/// Short list of integers.
struct IntegerList;

impl<'de> DeserializeSeed<'de> for IntegerList {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for IntegerList {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of integers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = seq.next_element()? {
            if numbers.len() == MAX_RANK {
                return Err(A::Error::custom(format!("more than {MAX_RANK} numbers")));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }
}
