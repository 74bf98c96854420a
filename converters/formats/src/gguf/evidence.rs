//! Facts about the model of a GGUF file without a config.

use std::collections::{BTreeMap, BTreeSet};

use registry::gguf::{FileMetadata, KeyTree};
use registry::scalar::Scalar;

use super::{GgufFile, MetadataArray, MetadataValue};
use crate::codec::BlockType;

/// Limit on the tensors, and on the values of a list, that expressions can read: no model has more.
const MOST: usize = 1 << 15;

/// Returns the keys below `arch.`, the shapes of tensors, and the values of small one-dimensional f32
/// tensors that belong to no layer or hold one number throughout.
pub fn evidence(file: &GgufFile, arch: &str) -> FileMetadata {
    let mut keys = KeyTree::default();
    let prefix = format!("{arch}.");
    for (key, value) in file.metadata().iter().take(MOST) {
        if let (Some(key), Some(value)) = (key.strip_prefix(&prefix), scalar(value)) {
            keys.add(key, value);
        }
    }
    let mut tensors = BTreeMap::new();
    let mut companions = BTreeSet::new();
    for info in file.tensors() {
        tensors.insert(info.name.clone(), info.shape.clone());
        if file.is_companion(&info.name) {
            companions.insert(info.name.clone());
        }
        let parts = file.parts(&info.name);
        if !parts.is_empty() {
            companions.insert(info.name.clone());
            for (name, shape) in parts {
                keys.add(&format!("shapes.{name}"), dims(&shape));
                companions.insert(name.clone());
                tensors.insert(name, shape);
            }
        }
        if tensors.len() > MOST {
            continue;
        }
        keys.add(&format!("shapes.{}", info.name), dims(&info.shape));
        let small = info.shape.len() == 1 && info.shape[0] <= 1024;
        if small && info.ty == BlockType::F32 {
            let numbers = file.bytes(&info.name).unwrap_or_default().as_chunks().0;
            let constant = numbers.iter().all(|bytes| *bytes == numbers[0]);
            if constant || !info.name.starts_with("blk.") {
                let numbers = numbers.iter().map(|bytes| float(f32::from_le_bytes(*bytes)));
                keys.add(&format!("numbers.{}", info.name), Scalar::List(numbers.collect()));
            }
        }
    }
    let path = file.files().first().map(|path| path.display().to_string()).unwrap_or_default();
    FileMetadata { keys: keys.into_config(&path), tensors, companions }
}

fn dims(shape: &[usize]) -> Scalar {
    Scalar::List(shape.iter().map(|&dim| Scalar::Int(dim as i64)).collect())
}

/// Converts an f32 to the shortest decimal that rounds to it, which restores the value of a config.
fn float(x: f32) -> Scalar {
    Scalar::Float(x.to_string().parse().unwrap_or(f64::from(x)))
}

fn scalar(value: &MetadataValue) -> Option<Scalar> {
    Some(match value {
        MetadataValue::Bool(flag) => Scalar::Bool(*flag),
        MetadataValue::String(text) => Scalar::Str(text.clone()),
        MetadataValue::F32(x) => float(*x),
        MetadataValue::F64(x) => Scalar::Float(*x),
        MetadataValue::Array(array) => return list(array),
        other => Scalar::Int(i64::try_from(other.integer()?).ok()?),
    })
}

fn list(array: &MetadataArray) -> Option<Scalar> {
    if array.len() > MOST {
        return None;
    }
    (0..array.len()).map(|n| scalar(&array.get(n)?)).collect::<Option<_>>().map(Scalar::List)
}
