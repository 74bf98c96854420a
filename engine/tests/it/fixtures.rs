//! Every fixture, against the reference that made its dump.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use formats::safetensors::SafetensorsFile;
use onboard_engine::{
    Chunk, Engine, ModelSource, NativeEngine, NoProbe, OutputRows, Session, SessionOptions, SlotId,
};
use registry::config::Config;
use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;

/// A prompt's name, tokens and split.
pub(crate) type Prompt = (String, Vec<u32>, usize);

pub(crate) fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut found: Vec<PathBuf> = fs_err::read_dir(root)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.join("reference/manifest.json").exists())
        .collect();
    found.sort();
    found
}

pub(crate) fn model(dir: &Path) -> Result<Model, String> {
    let config = Config::read(&dir.join("config.json")).map_err(|f| f.message)?;
    let library = Library::builtin();
    let names = library.find(&config);
    let name = names.first().ok_or(format!("no spec for {:?}", config.architecture()))?;
    let messages = |findings: Vec<Finding>| {
        findings.into_iter().map(|f| f.message).collect::<Vec<_>>().join("; ")
    };
    let spec = library.load(name, &[]).map_err(messages)?;
    let (model, _) =
        registry::resolve::resolve(&spec, &config, &OpSet::builtin()).map_err(messages)?;
    Ok(model)
}

fn feed(session: &mut dyn Session, slot: SlotId, tokens: &[u32]) -> Vec<f32> {
    let chunk = Chunk { slot, tokens, rows: OutputRows::All };
    let logits = session.step(&[chunk], &mut NoProbe).unwrap().remove(0);
    let mut data = logits.data;
    normalize(&mut data, logits.vocab);
    data
}

/// Makes log-probabilities of logits.
fn normalize(data: &mut [f32], vocab: usize) {
    for row in data.chunks_exact_mut(vocab) {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - top).exp()).sum();
        let shift = top + sum.ln() as f32;
        for x in row.iter_mut() {
            *x -= shift;
        }
    }
}

/// Log-probabilities of prefill and decode, by the names of a dump.
fn run(
    model: &Arc<Model>,
    dir: &Path,
    dtype: Dtype,
    prompts: &[Prompt],
) -> Result<BTreeMap<String, Vec<f32>>, String> {
    let options = SessionOptions { dtype, poison: true, ..SessionOptions::default() };
    let source = ModelSource { model: Arc::clone(model), dir };
    let mut session = NativeEngine::new().open(&source, &options).map_err(|e| e.to_string())?;
    let mut found = BTreeMap::new();
    for (name, tokens, split) in prompts {
        let slot = session.open_slot();
        found.insert(format!("{name}/prefill"), feed(&mut *session, slot, tokens));
        session.release(slot).map_err(|e| e.to_string())?;
        let slot = session.open_slot();
        feed(&mut *session, slot, &tokens[..*split]);
        let decode =
            tokens[*split..].iter().flat_map(|t| feed(&mut *session, slot, &[*t])).collect();
        found.insert(format!("{name}/decode"), decode);
        session.release(slot).map_err(|e| e.to_string())?;
    }
    Ok(found)
}

pub(crate) fn prompts(manifest: &serde_json::Value) -> Vec<Prompt> {
    let list = manifest["prompts"].as_array().unwrap();
    // Of long ones a few rows are recorded.
    list.iter()
        .filter(|p| p["rows"].is_null())
        .map(|p| {
            let tokens = p["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32);
            let split = p["split"].as_u64().unwrap() as usize;
            (p["name"].as_str().unwrap().to_owned(), tokens.collect(), split)
        })
        .collect()
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

fn distances<'a>(a: &'a [f32], b: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    a.iter().zip(b).map(|(a, b)| (a - b).abs())
}

fn mean(distances: &[f32]) -> f32 {
    distances.iter().sum::<f32>() / distances.len().max(1) as f32
}

/// Checks one fixture: f32 closely; 16 bits by whether the distance to f32 is the reference's own.
fn check(dir: &Path) -> Result<(), String> {
    let text = fs_err::read_to_string(dir.join("reference/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let prompts = prompts(&manifest);
    let dump = SafetensorsFile::open(&dir.join("reference/reference.safetensors"))
        .map_err(|e| e.to_string())?;
    let model = Arc::new(model(dir)?);
    let read = |run: Dtype, name: &str| -> Option<Vec<f32>> {
        let (entry, bytes) = dump.tensor(&format!("{run}/{name}/logits")).unwrap()?;
        let mut logits = vec![0.0; bytes.len() / entry.dtype.size()];
        formats::numbers::to_f32(entry.dtype, bytes, &mut logits).unwrap();
        normalize(&mut logits, model.vocab);
        Some(logits)
    };
    for dtype in Dtype::ALL {
        // In 16 bits one prompt alone is too few numbers, and the largest distance hangs on one.
        let (mut off, mut floor) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (name, ours) in run(&model, dir, dtype, &prompts)? {
            let decode = name.ends_with("/decode");
            // Where the reference's own decode is wrong, as its audit says, forwards are the truth.
            if decode && manifest["audit"]["truth"] == "prefill" {
                continue;
            }
            let (Some(truth), Some(theirs)) = (read(Dtype::F32, &name), read(dtype, &name)) else {
                continue;
            };
            let far = largest(&ours, &truth);
            if far.is_nan() || (dtype == Dtype::F32 && far > 1e-4) {
                return Err(format!("{dtype} {name}: off by {far:e}"));
            }
            off[usize::from(decode)].extend(distances(&ours, &truth));
            floor[usize::from(decode)].extend(distances(&theirs, &truth));
        }
        for (phase, (off, floor)) in off.iter().zip(&floor).enumerate() {
            let (off, bound) = (mean(off), 1.5 * mean(floor) + 1e-3);
            if dtype != Dtype::F32 && off > bound {
                let phase = ["prefill", "decode"][phase];
                return Err(format!("{dtype} {phase}: off by {off:e}, the bound is {bound:e}"));
            }
        }
    }
    Ok(())
}

#[test]
fn fixtures_agree_with_their_references() {
    let failures: Vec<String> = folders()
        .iter()
        .filter_map(|dir| check(dir).err().map(|e| format!("{}: {e}", dir.display())))
        .collect();
    assert!(failures.is_empty(), "{} fixtures:\n{}", failures.len(), failures.join("\n"));
}
