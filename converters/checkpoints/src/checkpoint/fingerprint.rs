//! Computes `weights_sha256`, which identifies weights without reading all of a large checkpoint.
//!
//! The algorithm must match the reference script; it is described in docs/dump.md.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::{Checkpoint, Error, TensorInfo};

/// Size limit of tensors that are hashed whole.
const WHOLE: usize = 4 << 20;
const WINDOW: usize = 4096;
const WINDOWS: usize = 64;

/// Hashes every tensor in byte order of its name.
pub(super) fn fingerprint(checkpoint: &Checkpoint) -> Result<String, Error> {
    let mut hash = Sha256::new();
    for (name, info) in &checkpoint.stored {
        hash.update(name.as_bytes());
        hash.update([0]);
        add(&mut hash, info, checkpoint.stored_bytes(name)?);
    }
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[digit as usize]));
        }
    }
    Ok(text)
}

/// Adds dtype, shape and bytes of a tensor to a hash.
fn add(hash: &mut Sha256, info: &TensorInfo, bytes: &[u8]) {
    let shape: Vec<String> = info.shape.iter().map(ToString::to_string).collect();
    for word in [info.dtype.name(), &shape.join(",")] {
        hash.update(word.as_bytes());
        hash.update([0]);
    }
    sample(bytes, |piece| hash.update(piece));
}

/// Hashes every tensor by itself.
pub(super) fn tensor_hashes(checkpoint: &Checkpoint) -> Result<BTreeMap<String, String>, Error> {
    let each = checkpoint.stored.iter().map(|(name, info)| {
        let mut hash = Sha256::new();
        add(&mut hash, info, checkpoint.stored_bytes(name)?);
        Ok((name.clone(), format!("{:x}", hash.finalize())[..16].to_owned()))
    });
    each.collect()
}

/// Hashes one window of each file, in the middle of its largest tensor.
pub(super) fn file_samples(checkpoint: &Checkpoint) -> Result<String, Error> {
    let mut largest: BTreeMap<usize, (u64, &str)> = BTreeMap::new();
    for (name, info) in &checkpoint.stored {
        let sample = largest.entry(info.file).or_insert((0, name));
        *sample = (*sample).max((info.range.1 - info.range.0, name));
    }
    let mut hash = Sha256::new();
    for (_, name) in largest.into_values() {
        let bytes = checkpoint.stored_bytes(name)?;
        let begin = (bytes.len() / 2).saturating_sub(WINDOW / 2);
        hash.update(&bytes[begin..bytes.len().min(begin + WINDOW)]);
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// Passes on all bytes of a short tensor, and evenly spread windows of a long one.
pub fn sample(bytes: &[u8], mut pass: impl FnMut(&[u8])) {
    if bytes.len() <= WHOLE {
        return pass(bytes);
    }
    for window in 0..WINDOWS {
        // No overflow: a mapped file is far shorter than `usize::MAX / 63`.
        let begin = window * (bytes.len() - WINDOW) / (WINDOWS - 1);
        pass(&bytes[begin..begin + WINDOW]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_tensors_are_sampled_to_their_last_byte() {
        let bytes = vec![1; WHOLE + 1];
        let mut total = 0;
        let mut last = 0;
        sample(&bytes, |piece| {
            total += piece.len();
            last = piece.as_ptr() as usize + piece.len();
        });
        assert_eq!(total, WINDOW * WINDOWS);
        assert_eq!(last, bytes.as_ptr() as usize + bytes.len());
        let mut total = 0;
        sample(&bytes[..WHOLE], |piece| total += piece.len());
        assert_eq!(total, WHOLE);
    }
}
