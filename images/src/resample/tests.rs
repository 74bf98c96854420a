use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::decode::{DecodeLimits, read};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let start = digest[..16].try_into().expect("sixteen bytes");
    format!("{:032x}", u128::from_be_bytes(start))
}

#[test]
fn every_filter_gives_the_bytes_of_its_library() {
    let truth: Value =
        serde_json::from_slice(&fs_err::read(data("decoded.json")).unwrap()).unwrap();
    let mut differences = Vec::new();
    let mut compared = 0;
    for (name, entries) in truth["resampled"].as_object().unwrap() {
        let path = data("pictures").join(format!("{name}.png"));
        let picture = read(&path, &DecodeLimits::default()).unwrap();
        for entry in entries.as_array().unwrap() {
            let filter = ResampleFilter::numbered(entry["filter"].as_i64().unwrap()).unwrap();
            let height = entry["height"].as_u64().unwrap() as usize;
            let width = entry["width"].as_u64().unwrap() as usize;
            let forms = [
                (BackEnd::Pil, "pil"),
                (BackEnd::OlderPil, "older_pil"),
                (BackEnd::Torchvision, "torchvision"),
            ];
            for (back_end, key) in forms {
                let Some(expected) = entry[key].as_str() else { continue };
                compared += 1;
                let resized = resize(&picture, height, width, filter, back_end);
                if digest(resized.bytes()) != expected {
                    let filter = filter.name();
                    differences.push(format!("{name} {filter} {height} x {width} {key}"));
                }
            }
        }
    }
    assert_eq!(compared, 3 * 5 * (6 + 6 + 4));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
