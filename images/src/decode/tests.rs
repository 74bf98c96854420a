use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::*;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs_err::read(data(name)).unwrap()).unwrap()
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let start = digest[..16].try_into().expect("sixteen bytes");
    format!("{:032x}", u128::from_be_bytes(start))
}

#[test]
fn other_formats_are_named_by_their_first_bytes() {
    let error = decode(b"GIF89a", &DecodeLimits::default()).unwrap_err();
    assert_eq!(error, DecodeError::UnknownFormat { start: "[47, 49, 46, 38]".to_owned() });
}

/// Returns the largest difference of a picture from Pillow's, in levels.
fn difference(name: &str, picture: &Picture, entry: &Value) -> u8 {
    assert_eq!(entry["height"], picture.height(), "{name}");
    assert_eq!(entry["width"], picture.width(), "{name}");
    if digest(picture.bytes()) == entry["hash"] {
        return 0;
    }
    let stored = data("pictures").join(format!("{name}.truth.png"));
    let stored =
        read(&stored, &DecodeLimits::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(digest(stored.bytes()), entry["hash"], "{name}");
    let pairs = picture.bytes().iter().zip(stored.bytes());
    pairs.map(|(ours, theirs)| ours.abs_diff(*theirs)).max().unwrap()
}

fn is_jpeg(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|end| end == "jpg")
}

/// JPEG differs: `zune-jpeg` has another inverse transform and interpolates chroma otherwise than libjpeg.
#[test]
fn pictures_are_those_of_pillow() {
    let truth = json("decoded.json");
    let entries = truth["decoded"].as_object().unwrap();
    assert_eq!(entries.len(), 62);
    let mut largest = 0;
    for (name, entry) in entries {
        let picture = read(&data("pictures").join(name), &DecodeLimits::default());
        let picture = picture.unwrap_or_else(|error| panic!("{name}: {error}"));
        let levels = difference(name, &picture, entry);
        assert!(levels == 0 || is_jpeg(name), "{name}: {levels} levels");
        largest = largest.max(levels);
    }
    assert_eq!(largest, 4, "docs/images.md states the number");
}
