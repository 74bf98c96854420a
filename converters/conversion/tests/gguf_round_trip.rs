//! Round trip of every fixture through a GGUF file of f32: the reader gives the original weights.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

#[path = "support/whole.rs"]
mod whole;

use std::path::{Path, PathBuf};

use checkpoints::GgufWeights;
use checkpoints::checkpoint::Checkpoint;
use checkpoints::weights::flows;
use formats::codec::{BlockType, decode};
use formats::gguf::GgufFile;
use registry::config::Config;
use registry::graph::WeightId;
use registry::library::Library;
use registry::ops::OpSet;
use registry::resolve::resolve;

use whole::{gguf_of, open, write};

#[test]
fn fixtures_come_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let mut seen = 0;
    for entry in fs_err::read_dir(root).unwrap() {
        let folder: PathBuf = entry.unwrap().path();
        if !folder.join("model.safetensors").exists() {
            continue;
        }
        seen += 1;
        let model = open(&folder);
        let wanted = &model.graph.weights;
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.gguf");
        write(&model, &checkpoint, BlockType::F32, &path);
        let file = GgufFile::open(&path).unwrap();
        let back = GgufWeights::new(file, &gguf_of(&model), wanted).unwrap();
        let (sourced, _) = flows(&checkpoint, wanted, &model.rules).unwrap();
        for (n, weight) in wanted.iter().enumerate() {
            let mut original = vec![0.0; sourced[n].flow.len()];
            sourced[n].flow.read(0, &mut original);
            let view = back.view(WeightId(n));
            assert_eq!(view.shape, weight.shape, "{}: {}", folder.display(), weight.name);
            let mut numbers = vec![0.0; original.len()];
            decode(view.ty, view.bytes, &mut numbers).unwrap();
            // Only `add` rounds on its way.
            let far = |(a, b): (&f32, &f32)| (a - b).abs() > 2e-7 * a.abs().max(1.0);
            assert!(
                !original.iter().zip(&numbers).any(far),
                "{}: {}",
                folder.display(),
                weight.name
            );
        }
    }
    assert!(seen > 20, "only {seen} fixtures");
}

#[test]
fn names_that_are_too_long_are_shortened() {
    let text = fs_err::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/zamba2/config.json"),
    )
    .unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let kind = |n: usize| if n == 12 { "hybrid" } else { "linear_attention" };
    config["layers_block_type"] = (0..13).map(kind).collect::<Vec<_>>().into();
    config["num_hidden_layers"] = 13.into();
    let config = Config::parse("config.json", &config.to_string()).unwrap();
    let library = Library::builtin();
    let spec = library.load(library.find(&config)[0], &[]).unwrap();
    let model = resolve(&spec, &config, &OpSet::builtin()).unwrap().0;
    let weights = &model.graph.weights;
    assert!(weights.iter().any(|weight| weight.name.len() >= 64));
    let groups = checkpoints::own_names(&model).groups(weights).unwrap();
    assert_eq!(groups.len(), weights.len());
    for group in groups {
        let (name, weight) = (&group.tensors[0].0, &weights[group.weights[0]].name);
        assert!(name.len() < 64 && (name == weight || weight.len() >= 64), "{name}");
    }
}
