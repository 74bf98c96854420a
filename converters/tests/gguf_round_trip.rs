//! Every fixture as a GGUF file of f32, and back: the reader gives the weights that went in.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::path::{Path, PathBuf};

use converters::checkpoint::Checkpoint;
use converters::codec::{BlockType, decode};
use converters::convert::gguf::{
    Arithmetic, Choice, Output, base_type, keys, lay_out, nameless, tensors, with_scalars, work,
};
use converters::convert::{Settings, run};
use converters::gguf::{File, GgufWeights, Metadata};
use converters::weights::flows;
use registry::config::Config;
use registry::gguf::Gguf;
use registry::graph::WeightId;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::resolve::resolve;

fn open(folder: &Path) -> Model {
    let config = Config::read(&folder.join("config.json")).unwrap();
    let library = Library::builtin();
    let specs = library.find(&config);
    let spec = library.load(specs[0], &[]).unwrap();
    resolve(&spec, &config, &OpSet::builtin()).unwrap().0
}

/// What a model is as a file; where its spec says nothing of it, a file of this program's own.
fn gguf_of(model: &Model) -> Gguf {
    model.gguf.clone().unwrap_or_else(|| nameless(model))
}

/// Writes a model with every tensor in f32.
fn write(model: &Model, checkpoint: &Checkpoint, path: &Path) {
    let weights = &model.graph.weights;
    let (sourced, _) = flows(checkpoint, weights, &model.rules).unwrap();
    let gguf = with_scalars(gguf_of(model), &model.graph.weights, &sourced).unwrap();
    let tensors = tensors(&gguf, &model.graph.weights, &sourced, Arithmetic::Wide).unwrap();
    let choice = |ty| Choice { ty, why: String::new() };
    let choices = tensors
        .iter()
        .map(|tensor| choice(base_type(&tensor.name, tensor.flow.shape(), BlockType::F32)))
        .collect();
    let output = Output {
        path: path.to_owned(),
        choices,
        file_type: 0,
        split: None,
        shard: None,
        via: None,
        importance: std::collections::BTreeMap::new(),
        factors: std::collections::BTreeMap::new(),
    };
    let keys = keys(&gguf, "", &Metadata::new(), 0);
    let planned = lay_out(&output, &keys, &tensors).unwrap();
    let work = work(&tensors, &[(output, planned)], String::new());
    run(&work, &Settings::default(), &()).unwrap();
}

#[test]
fn fixtures_come_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
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
        write(&model, &checkpoint, &path);
        let file = File::open(&path).unwrap();
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
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/zamba2/config.json"),
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
    let groups = nameless(&model).groups(weights).unwrap();
    assert_eq!(groups.len(), weights.len());
    for group in groups {
        let (name, weight) = (&group.tensors[0].0, &weights[group.weights[0]].name);
        assert!(name.len() < 64 && (name == weight || weight.len() >= 64), "{name}");
    }
}
