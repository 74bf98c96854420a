//! Rows of real pictures, from a file to what enters the text model, equal those of the reference: its processor, and its
//! encoder in three dtypes.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::path::{Path, PathBuf};

use formats::numbers;
use formats::safetensors::SafetensorsFile;
use images::Picture;
use images::decode::{DecodeLimits, read};
use models::specs::Specs;
use onboard_vision::{EncoderOptions, VisionEncoder};
use registry::dtype::Dtype;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// Returns the encoders with rows of pictures.
fn encoders() -> Vec<PathBuf> {
    let entries = fs_err::read_dir(fixtures().join("encoders")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("pictures.safetensors").is_file());
    folders.sort();
    folders
}

fn pictures(names: &[&str]) -> Vec<Picture> {
    let place = |name: &&str| fixtures().join("pictures").join(format!("{name}.png"));
    names.iter().map(|name| read(&place(name), &DecodeLimits::default()).unwrap()).collect()
}

fn reference(file: &SafetensorsFile, name: &str) -> Vec<f32> {
    let (entry, bytes) = file.tensor(name).unwrap().unwrap();
    let mut rows = vec![0.0; bytes.len() / entry.dtype.size()];
    numbers::to_f32(entry.dtype, bytes, &mut rows).unwrap();
    rows
}

/// Returns the root of the mean square difference, and that of the second rows.
fn distance(rows: &[f32], reference: &[f32]) -> (f64, f64) {
    let mean = |sum: f64| (sum / reference.len() as f64).sqrt();
    let squares = reference.iter().map(|x| f64::from(*x).powi(2)).sum();
    let gaps =
        rows.iter().zip(reference).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    (mean(gaps), mean(squares))
}

#[test]
fn rows_of_pictures_are_those_of_the_reference() {
    let folders = encoders();
    assert!(folders.len() >= 16, "{}", folders.len());
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let truth = SafetensorsFile::open(&folder.join("pictures.safetensors")).unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let options = EncoderOptions { dtype, threads: Some(1) };
            let mut specs = Specs::builtin();
            let mut encoder = VisionEncoder::open(&folder, &mut specs, &options).unwrap();
            for (group, members) in [
                ("small", &["small"][..]),
                ("tall", &["tall"]),
                ("wide", &["wide"]),
                ("all", &["small", "tall", "wide"]),
            ] {
                let frames = encoder.encode(&pictures(members)).unwrap();
                let rows: Vec<f32> =
                    frames.frames.iter().flat_map(|frame| frame.rows.clone()).collect();
                let wanted = reference(&truth, &format!("{dtype}/{group}"));
                assert_eq!(rows.len(), wanted.len(), "{name} {dtype} {group}");
                let (gap, size) = distance(&rows, &wanted);
                // Two runs of 16 bits are as far from each other as from one of 32, or nearly so.
                let bound = match dtype {
                    Dtype::F32 => 1e-5 * size,
                    _ => 1.5 * distance(&wanted, &reference(&truth, &format!("f32/{group}"))).0,
                };
                assert!(
                    gap <= bound,
                    "{name} {dtype} {group}: {gap:.2e} off, bound {bound:.2e}, rows {size:.2e}"
                );
            }
        }
    }
}

/// Settings of processors that differ from the checkpoint's own, each of which moves rows by more than rounding.
const FAULTS: &[(&str, &str, &str)] = &[
    ("llava", "image_mean", "[0.5, 0.5, 0.5]"),
    ("llava", "image_std", "[0.26862954, 0.26130258, 0.28]"),
    ("llava", "resample", "2"),
    ("paligemma", "resample", "2"),
    ("gemma3", "rescale_factor", "0.00390625"),
    ("qwen2_vl", "do_normalize", "false"),
    ("qwen2_vl", "resample", "0"),
    ("mistral3", "resample", "1"),
    ("internvl", "image_mean", "[0.406, 0.456, 0.485]"),
    ("lfm2_vl", "do_rescale", "false"),
];

#[test]
fn faults_of_processors_move_rows() {
    for (name, key, value) in FAULTS {
        let folder = fixtures().join("encoders").join(name);
        let copy = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs_err::copy(folder.join(file), copy.path().join(file)).unwrap();
        }
        let settings = settings_of(&folder);
        let mut settings: serde_json::Value = serde_json::from_str(&settings).unwrap();
        let value: serde_json::Value = serde_json::from_str(value).unwrap();
        let changed = settings.as_object_mut().unwrap().insert((*key).to_owned(), value.clone());
        assert_ne!(changed, Some(value), "{name} {key}");
        fs_err::write(copy.path().join("preprocessor_config.json"), settings.to_string()).unwrap();
        let mut specs = Specs::builtin();
        let options = EncoderOptions { threads: Some(1), ..EncoderOptions::default() };
        let mut encoder = VisionEncoder::open(copy.path(), &mut specs, &options).unwrap();
        let frames = encoder.encode(&pictures(&["wide"])).unwrap().frames;
        let rows: Vec<f32> = frames.iter().flat_map(|frame| frame.rows.clone()).collect();
        let truth = SafetensorsFile::open(&folder.join("pictures.safetensors")).unwrap();
        let (gap, size) = distance(&rows, &reference(&truth, "f32/wide"));
        assert!(gap > 1e-4 * size, "{name} with {key}: {gap:.2e} off, rows {size:.2e}");
    }
}

/// Returns the settings of an encoder's processor.
fn settings_of(folder: &Path) -> String {
    fs_err::read_to_string(folder.join("preprocessor_config.json")).unwrap()
}
