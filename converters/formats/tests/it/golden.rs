//! Checks that encoders give ggml's bytes, and decoders gguf-py's values (`fixtures/golden_quants`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use lanes::Isa;
use onboard_formats::codec::{self, BlockType};
use sha2::{Digest, Sha256};

const ROW: usize = 1024;

fn golden(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden_quants");
    fs_err::read(folder.join(name)).expect("a golden file")
}

fn numbers(name: &str) -> Vec<f32> {
    let bytes = golden(name);
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Returns hashes of gguf-py's decoded values, by file.
fn hashes() -> BTreeMap<String, String> {
    serde_json::from_slice(&golden("decoded.json")).expect("a table of hashes")
}

/// Returns the stored files: format, name, and true if made with importance.
fn files() -> Vec<(BlockType, String, bool)> {
    hashes()
        .into_keys()
        .map(|name: String| {
            let ty = name.split('.').next().and_then(BlockType::parse).expect("a format");
            let weighted = name.ends_with(".im.bin");
            (ty, name, weighted)
        })
        .collect()
}

/// Describes the blocks that differ.
fn compare(ty: BlockType, actual: &[u8], expected: &[u8]) -> Option<String> {
    let blocks = actual.chunks(ty.bytes()).zip(expected.chunks(ty.bytes()));
    let differ: Vec<_> =
        blocks.enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
    let first = *differ.first()?;
    let [actual, expected] = [actual, expected]
        .map(|bytes| format!("{:02x?}", &bytes[first * ty.bytes()..][..ty.bytes()]));
    Some(format!(
        "{} blocks differ: {differ:?}\nfound    {actual}\nexpected {expected}",
        differ.len()
    ))
}

#[test]
fn encoders_give_the_bytes_of_the_reference() {
    let input = numbers("input.f32");
    let importance = numbers("imatrix.f32");
    let mut wrong = Vec::new();
    let files = files();
    assert!(files.len() > 48, "the files were found");
    for (ty, name, weighted) in files {
        let expected = golden(&name);
        let importance = weighted.then_some(&importance[..]);
        for isa in Isa::available() {
            let mut out = vec![0xaa; expected.len()];
            if let Err(error) = codec::encode_in(isa, ty, &input, ROW, importance, &mut out) {
                wrong.push(format!("{name}: {error}"));
            } else if let Some(difference) = compare(ty, &out, &expected) {
                wrong.push(format!("{name}, {isa:?}: {difference}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn decoders_give_the_numbers_of_the_reference() {
    let hashes = hashes();
    let mut wrong = Vec::new();
    for (ty, name, _) in files() {
        let mut numbers = vec![f32::NAN; 16 * ROW];
        if let Err(error) = codec::decode(ty, &golden(&name), &mut numbers) {
            wrong.push(format!("{name}: {error}"));
            continue;
        }
        let mut hasher = Sha256::new();
        for x in &numbers {
            hasher.update(x.to_le_bytes());
        }
        let hash = format!("{:x}", hasher.finalize());
        if hash != hashes[&name] {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn golden_files_are_valid() {
    for (ty, name, _) in files() {
        codec::validate(ty, &golden(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
