//! Comparison of a GGUF file with a model: keys, tensors, and their shapes.

use std::collections::BTreeSet;

use super::absent::with_absent_keys;
use super::{FileMetadata, Gguf};
use crate::graph::Weight;
use crate::scalar::Scalar;

/// Keys of the model that the file has with other values.
pub fn key_differences(gguf: &Gguf, header: &FileMetadata) -> Vec<String> {
    let mut faults = Vec::new();
    let read = &with_absent_keys(&gguf.absent, header);
    let header = &read.header;
    let prefix = format!("{}.", gguf.arch);
    // A list with one item per layer equals a number if all of its items do.
    let layers = header.keys.peek("block_count").and_then(Scalar::as_usize);
    for (key, value) in &gguf.metadata {
        let Some(short) = key.strip_prefix(&prefix) else { continue };
        let Some(stored) = header.keys.peek(short) else {
            faults.extend(
                read.missing_reason(short).map(|why| format!("key `{key}` is missing: {why}")),
            );
            continue;
        };
        if !same(stored, value) && read.assumed.contains(short) {
            faults.push(format!(
                "key `{key}` is missing, which is {stored} to llama.cpp; the model's would be {value}"
            ));
        } else if !same(stored, value) {
            faults.push(format!("key `{key}` is {stored}; the model's would be {value}"));
        } else if let (Scalar::List(items), Some(layers)) = (stored, layers)
            && !matches!(value, Scalar::List(_))
            && ![1, layers].contains(&items.len())
        {
            let count = items.len();
            faults.push(format!("key `{key}` has {count} items; the model has {layers} layers"));
        }
    }
    faults
}

/// Lists the differences between this file and the file that the model would be written to.
pub fn differences(gguf: &Gguf, weights: &[Weight], header: &FileMetadata) -> Vec<String> {
    let mut faults = key_differences(gguf, header);
    let groups = match gguf.groups(weights) {
        Ok(groups) => groups,
        Err(why) => {
            faults.extend(why.iter().map(ToString::to_string));
            return faults;
        }
    };
    let mut expected: BTreeSet<&str> = BTreeSet::new();
    for (name, numbers) in &gguf.tensors {
        expected.insert(name);
        let stored = header.keys.peek(&format!("numbers.{name}"));
        let computed = Scalar::List(numbers.iter().map(|x| Scalar::Float(f64::from(*x))).collect());
        if !stored.is_some_and(|stored| same(stored, &computed)) {
            faults.push(format!("tensor `{name}` is missing or holds other numbers"));
        }
    }
    for (name, shape) in groups.iter().flat_map(|group| &group.tensors) {
        expected.insert(name);
        match header.tensors.get(name) {
            None => faults.push(format!("there is no tensor `{name}`, of shape {shape:?}")),
            Some(stored) if trimmed(stored) != trimmed(shape) => {
                faults.push(format!(
                    "tensor `{name}` has shape {stored:?}; the model's is {shape:?}"
                ));
            }
            Some(_) => {}
        }
    }
    let left = header.tensors.keys().filter(|name| !expected.contains(name.as_str()));
    let idle = gguf.idle_tensors(weights, header);
    let left = left.filter(|name| !header.companions.contains(*name) && !idle.contains(*name));
    faults.extend(left.map(|name| format!("tensor `{name}` has no place in the model")));
    faults
}

/// Counts the keys of the file that the model does not give.
pub(crate) fn unread(gguf: &Gguf, header: &FileMetadata) -> usize {
    let given: BTreeSet<&str> = gguf.metadata.iter().map(|(key, _)| key.as_str()).collect();
    let keys = header.keys.leaves();
    let file_keys =
        keys.iter().filter(|key| !key.starts_with("shapes.") && !key.starts_with("numbers."));
    file_keys.filter(|key| !given.contains(format!("{}.{key}", gguf.arch).as_str())).count()
}

/// Removes leading axes of size one, which a file may leave out.
fn trimmed(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|&&dim| dim == 1).count();
    &shape[ones..]
}

/// True if two values agree: numbers within a relative 1e-6, a list of one number as that number.
fn same(a: &Scalar, b: &Scalar) -> bool {
    if let (Some(x), Some(y)) = (a.as_f64(), b.as_f64()) {
        // The infinities are only equal.
        return x == y || (x - y).abs() <= 1e-6 * x.abs().max(y.abs());
    }
    match (a, b) {
        (Scalar::List(a), Scalar::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Scalar::List(items), one) | (one, Scalar::List(items)) => {
            !items.is_empty() && items.iter().all(|item| same(item, one))
        }
        // A flag as a number.
        (Scalar::Bool(flag), Scalar::Int(n)) | (Scalar::Int(n), Scalar::Bool(flag)) => {
            i64::from(*flag) == *n
        }
        _ => a == b,
    }
}
