//! Image files that are cut off, changed or made to fill memory: an error or a picture, never a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use onboard_images::decode::{DecodeError, DecodeLimits, decode};

const SEED: u64 = 117;
/// Sound files of every decoder.
const SOUND: [&str; 8] = [
    "rgb_odd.png",
    "palette_4.png",
    "rgba_16.png",
    "turned_6.webp",
    "lossy_alpha.webp",
    "animated.webp",
    "jpeg_75_2.jpg",
    "jpeg_progressive.jpg",
];

fn sound(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pictures");
    fs_err::read(folder.join(name)).unwrap()
}

/// DecodeLimits that keep the memory of a test small.
fn limits() -> DecodeLimits {
    DecodeLimits { pixels: 1 << 20, ..DecodeLimits::default() }
}

/// Returns eight changed forms of each sound file.
fn changed() -> Vec<(String, Vec<u8>)> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut files = Vec::new();
    for name in SOUND {
        let bytes = sound(name);
        for cut in [9, 2, 1] {
            let length = bytes.len() * (10 - cut) / 10;
            files.push((format!("{name} cut at {length}"), bytes[..length].to_vec()));
        }
        for flips in [1, 8, 64] {
            let mut copy = bytes.clone();
            for _ in 0..flips {
                let at = random.usize(12..copy.len());
                copy[at] ^= 1 << random.u8(0..8);
            }
            files.push((format!("{name} with {flips} changed bits"), copy));
        }
        let mut lengths = bytes.clone();
        for at in [4, 8, 16, 20, 26] {
            lengths[at..at + 2].fill(0xff);
        }
        lengths[..12].copy_from_slice(&bytes[..12]);
        files.push((format!("{name} with wrong lengths"), lengths));
        let middle = bytes.len() / 2;
        let doubled = [&bytes[..middle], &bytes[..]].concat();
        files.push((format!("{name} begun twice"), doubled));
    }
    files
}

#[test]
fn changed_files_are_errors_or_pictures() {
    let files = changed();
    assert_eq!(files.len(), 64);
    let mut errors = 0;
    for (name, bytes) in files {
        let result = std::panic::catch_unwind(|| decode(&bytes, &limits()));
        let result = result.unwrap_or_else(|_| panic!("{name} panics"));
        errors += usize::from(result.is_err());
    }
    assert!(errors > 20, "{errors} errors");
}

#[test]
fn files_that_are_cut_off_are_errors() {
    // The first frame of an animation may be whole.
    for name in SOUND.into_iter().filter(|name| !name.starts_with("animated")) {
        let bytes = sound(name);
        for length in [bytes.len() / 3, bytes.len() * 2 / 3] {
            assert!(decode(&bytes[..length], &limits()).is_err(), "{name} of {length} bytes");
        }
    }
}

/// A JPEG header of 65,535 x 65,535 pixels.
fn jpeg_bomb() -> Vec<u8> {
    let mut bytes = sound("jpeg_75_2.jpg");
    let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bytes[frame + 5..frame + 9].fill(0xff);
    bytes
}

/// A PNG header of 100,000 x 100,000 pixels.
fn png_bomb() -> Vec<u8> {
    let mut bytes = sound("rgb_odd.png");
    bytes[16..20].copy_from_slice(&100_000_u32.to_be_bytes());
    bytes[20..24].copy_from_slice(&100_000_u32.to_be_bytes());
    bytes
}

/// A WebP header of 16,384 x 16,384 pixels, the largest of a file without an extended header.
fn webp_bomb() -> Vec<u8> {
    let mut bytes = sound("lossless.webp");
    let start = bytes.windows(4).position(|name| name == b"VP8L").unwrap();
    bytes[start + 9..start + 12].fill(0xff);
    bytes[start + 12] |= 0x0f;
    bytes
}

#[test]
fn bombs_are_refused_by_their_headers() {
    for bytes in [jpeg_bomb(), png_bomb(), webp_bomb()] {
        let error = decode(&bytes, &DecodeLimits::default()).unwrap_err();
        assert!(matches!(error, DecodeError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn long_files_are_refused() {
    let limits = DecodeLimits { bytes: 100, ..DecodeLimits::default() };
    let error = decode(&sound("rgb_odd.png"), &limits).unwrap_err();
    assert!(matches!(error, DecodeError::TooLong { limit: 100, .. }), "{error}");
}
