//! Damage that preserves a file's format: headers of safetensors, keys of GGUF.

use std::path::Path;

use formats::gguf::{
    DimsStyle, GgufHeader, GgufLayout, GgufTensorSpec, Metadata, MetadataArray, MetadataValue,
};

use crate::random::Random;
use crate::{bytes, json};

/// Splits a safetensors file into its header and its data.
fn split(file: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (length, tail) = file.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, data) = tail.split_at_checked(length)?;
    Some((header.to_vec(), data.to_vec()))
}

/// Damages the header of a safetensors file and mostly keeps its length correct.
pub(crate) fn safetensors(file: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let Some((header, mut data)) = split(file).filter(|_| !random.one_in(4)) else {
        let mut file = file.to_vec();
        bytes::damage(&mut file, other, random);
        return file;
    };
    let other_header = split(other).map(|(header, _)| header).unwrap_or_default();
    let header = json::damage(&header, &other_header, random);
    if random.one_in(10) {
        bytes::damage(&mut data, other, random);
    }
    let mut damaged = (header.len() as u64).to_le_bytes().to_vec();
    damaged.extend(header);
    damaged.extend(data);
    damaged
}

/// Damages a GGUF file: one of its keys, laid out again, or its bytes.
pub(crate) fn gguf(file: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let changed = if random.one_in(3) { None } else { keys(file, other, random) };
    changed.unwrap_or_else(|| {
        let mut file = file.to_vec();
        bytes::damage(&mut file, other, random);
        file
    })
}

fn keys(file: &[u8], other: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let name = Path::new("x");
    let header = GgufHeader::parse(name, file).ok()?;
    let mut keys = header.metadata.clone();
    let names: Vec<String> = keys.iter().map(|(key, _)| key.to_owned()).collect();
    let key = names.get(random.below(names.len()))?;
    let mut tensors: Vec<GgufTensorSpec> =
        header.tensors.iter().map(GgufTensorSpec::from).collect();
    match random.below(8) {
        0 => drop(keys.remove(key)),
        1..=3 => {
            let value = value(keys.get(key)?, random);
            keys.set(key.clone(), value);
        }
        4 => {
            // A value of another key, of this file or another.
            let from = GgufHeader::parse(name, other).map_or_else(|_| keys.clone(), |h| h.metadata);
            let (key, value) = from.iter().nth(random.below(from.len()))?;
            let target = if random.one_in(2) { key.to_owned() } else { names[0].clone() };
            keys.set(target, value.clone());
        }
        5 => {
            let n = random.below(tensors.len());
            tensors.get_mut(n)?.name = format!("blk.{}.x", random.below(100));
        }
        6 => {
            let one = random.below(tensors.len());
            let two = random.below(tensors.len());
            tensors.get(one.max(two))?;
            tensors.swap(one, two);
        }
        _ => {
            let n = random.below(tensors.len());
            let shape = &mut tensors.get_mut(n)?.shape;
            match random.below(3) {
                0 => shape.reverse(),
                1 => shape.push(1),
                _ => {
                    let all = shape.iter().product();
                    *shape = vec![all];
                }
            }
        }
    }
    lay_out(&keys, &tensors, file.get(header.data_start as usize..)?)
}

fn lay_out(keys: &Metadata, tensors: &[GgufTensorSpec], data: &[u8]) -> Option<Vec<u8>> {
    // Padding to gibibytes would be this program's own allocation.
    if keys.u32("general.alignment").ok()?.is_some_and(|to| to > 1 << 16) {
        return None;
    }
    let layout = GgufLayout::new(Path::new("x"), keys, tensors, DimsStyle::AsGiven).ok()?;
    let mut file = layout.header;
    file.extend_from_slice(data);
    // Shorter data is a truncated file; longer data is allowed.
    if file.len() < layout.file_len as usize {
        file.resize(layout.file_len as usize, 0);
    }
    Some(file)
}

/// Returns a value near the current one, or of another kind.
fn value(old: &MetadataValue, random: &mut Random) -> MetadataValue {
    let number = *random.pick(bytes::NUMBERS);
    if random.one_in(3) {
        return match random.below(8) {
            0 => (number as u32).into(),
            1 => number.into(),
            2 => (number as i32).into(),
            3 => (*random.pick(&[f32::NAN, f32::INFINITY, 0.0, -1.0, 1e30, 1e-30])).into(),
            4 => String::from("\u{1b}[2J").into(),
            5 => true.into(),
            6 => vec![number as u32; random.below(9)].into(),
            _ => vec![String::new(); random.below(9)].into(),
        };
    }
    match old {
        MetadataValue::U32(old) => match random.below(4) {
            0 => (old.wrapping_add(1)).into(),
            1 => (old.wrapping_sub(1)).into(),
            2 => (old.wrapping_mul(2)).into(),
            _ => (number as u32).into(),
        },
        MetadataValue::F32(old) => (*random.pick(&[-old, old * 2.0, 0.0, f32::NAN, 1e30])).into(),
        MetadataValue::Bool(old) => (!old).into(),
        MetadataValue::String(old) => {
            let mut raw = old.as_bytes().to_vec();
            if old.starts_with('{') {
                raw = json::damage(&raw, b"", random);
            } else {
                bytes::damage(&mut raw, b"", random);
            }
            String::from_utf8_lossy(&raw).into_owned().into()
        }
        MetadataValue::Array(MetadataArray::String(old)) => {
            let mut list = old.clone();
            let at = random.below(list.len());
            match random.below(4) {
                0 => list.truncate(at),
                1 => list.extend_from_within(..at),
                2 if at < list.len() => list[at].clear(),
                _ if at < list.len() => list[at] = format!("{}\u{1b}", list[0]),
                _ => {}
            }
            list.into()
        }
        MetadataValue::Array(MetadataArray::F32(old)) => {
            let mut list = old.clone();
            let at = random.below(list.len());
            match list.get_mut(at) {
                Some(one) if !random.one_in(3) => *one = f32::NAN,
                _ => list.truncate(at),
            }
            list.into()
        }
        other => other.clone(),
    }
}
