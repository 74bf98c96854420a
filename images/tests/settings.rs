//! Configurations with values of no sense: an error or a result, never a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use onboard_images::{BackEnd, FrameLimits, Picture, Processor, ProcessorOptions};
use serde_json::{Value, json};

const SEED: u64 = 118;
/// Changed configurations of each folder.
const CHANGES: usize = 12;

/// DecodeLimits that keep the memory of a test small.
const LIMITS: FrameLimits = FrameLimits {
    pixels: 1 << 20,
    side: 1 << 12,
    all_pixels: 1 << 22,
    frames: 64,
    numbers: 1 << 22,
    tokens: 1 << 14,
};

fn values() -> Vec<Value> {
    vec![
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(17),
        json!(70_000),
        json!(9_000_000_000_000_000_000_i64),
        json!(-9_000_000_000_000_000_000_i64),
        json!(0.3),
        json!(-2.5),
        json!(1e300),
        json!("x"),
        json!(true),
        json!(null),
        json!([]),
        json!([1, 2]),
        json!([[0, 0], [9, 9]]),
        json!({ "height": 0, "width": 5 }),
        json!({ "shortest_edge": 7, "longest_edge": 1 }),
        json!({ "longest_edge": 100_000_000 }),
    ]
}

fn object(path: &Path) -> Option<Value> {
    fs_err::read(path).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap())
}

/// Changes one to three keys of a configuration.
fn changed(mut config: Value, random: &mut fastrand::Rng) -> Value {
    let entries = config.as_object_mut().unwrap();
    let mut keys: Vec<String> = entries.keys().cloned().collect();
    keys.extend(
        ["size", "patch_size", "resample", "rescale_factor", "max_patches"].map(str::to_owned),
    );
    keys.retain(|key| key != "image_processor_type" && key != "processor_class");
    for _ in 0..random.usize(1..4) {
        let key = random.choice(&keys).unwrap().clone();
        entries.insert(key, random.choice(values()).unwrap());
    }
    config
}

#[test]
fn changed_configurations_are_errors_or_results() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/processors");
    let mut folders: Vec<_> =
        fs_err::read_dir(folders).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let mut errors = 0;
    let mut runs = 0;
    for folder in folders {
        for n in 0..CHANGES {
            let copy = tempfile::tempdir().unwrap();
            let images =
                changed(object(&folder.join("preprocessor_config.json")).unwrap(), &mut random);
            fs_err::write(copy.path().join("preprocessor_config.json"), images.to_string())
                .unwrap();
            if let Some(whole) = object(&folder.join("processor_config.json")) {
                let whole = changed(whole, &mut random);
                fs_err::write(copy.path().join("processor_config.json"), whole.to_string())
                    .unwrap();
            }
            let back_end = if n % 2 == 0 { BackEnd::Torchvision } else { BackEnd::Pil };
            let options =
                ProcessorOptions { back_end, limits: LIMITS, ..ProcessorOptions::default() };
            let height = random.usize(1..60);
            let width = random.usize(1..60);
            let picture = Picture::new(height, width, vec![90; 3 * height * width]).unwrap();
            let result = std::panic::catch_unwind(|| {
                let processor = Processor::open_with(copy.path(), options)
                    .map_err(|error| error.to_string())?;
                processor.prepare(&[picture.clone(), picture]).map_err(|error| error.to_string())
            });
            let result = result.unwrap_or_else(|_| panic!("{}: {images}", folder.display()));
            errors += usize::from(result.is_err());
            runs += 1;
        }
    }
    assert!(errors > runs / 4 && errors < runs, "{errors} of {runs}");
}
