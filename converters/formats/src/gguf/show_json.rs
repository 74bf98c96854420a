//! Formats a GGUF file as JSON: every key and tensor.

use std::path::Path;

use serde_json::{Map, Number, json};

use super::show::GgufSections;
use super::{Error, GgufFile, GgufTensor, MetadataArray, MetadataValue};

/// Returns the requested sections as one object.
pub fn show_json(path: &Path, sections: GgufSections) -> Result<serde_json::Value, Error> {
    let file = GgufFile::open(path)?;
    let mut object = json!({
        "file": path.display().to_string(),
        "version": file.version(),
        "files": file.files().len(),
    });
    if sections.keys {
        object["keys"] = file
            .metadata()
            .iter()
            .map(|(name, value): (&str, &MetadataValue)| {
                (name.to_owned(), json!({ "kind": value.kind_name(), "value": json_of(value) }))
            })
            .collect::<Map<_, _>>()
            .into();
    }
    if sections.tensors {
        object["tensors"] = file.tensors().iter().map(tensor).collect();
    }
    Ok(object)
}

fn tensor(info: &GgufTensor) -> serde_json::Value {
    json!({
        "name": info.name,
        "type": info.ty.name(),
        "shape": info.shape,
        "bytes": info.bytes,
        "offset": info.offset,
        "file": info.file,
    })
}

/// Converts a value to JSON. Numbers that JSON cannot express (NaN, the infinities) become strings.
fn json_of(value: &MetadataValue) -> serde_json::Value {
    match value {
        MetadataValue::String(text) => text.as_str().into(),
        MetadataValue::Bool(flag) => (*flag).into(),
        MetadataValue::F32(x) => float(x.to_string().parse().unwrap_or(f64::from(*x))),
        MetadataValue::F64(x) => float(*x),
        MetadataValue::Array(array) => list(array),
        other => match other.integer().map(i64::try_from) {
            Some(Ok(x)) => x.into(),
            // Above the range of a signed integer.
            _ => other.integer().and_then(|x| u64::try_from(x).ok()).into(),
        },
    }
}

fn float(x: f64) -> serde_json::Value {
    Number::from_f64(x).map_or_else(|| x.to_string().into(), Into::into)
}

fn list(array: &MetadataArray) -> serde_json::Value {
    (0..array.len()).filter_map(|n| array.get(n)).map(|value| json_of(&value)).collect()
}
