//! Every fixture as a GGUF file of f32, and back: the reader gives the weights that went in.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::path::{Path, PathBuf};

use converters::checkpoint::Checkpoint;
use converters::codec::{BlockType, decode};
use converters::convert::gguf::{
    Arithmetic, Choice, Output, base_type, keys, lay_out, nameless, tensors, with_scalars, work,
};
use converters::convert::{Settings, run};
use converters::gguf::{Error, File, GgufWeights, Metadata};
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

/// Writes a model with every tensor in f32; not if its own names are too long for such a file.
fn write(model: &Model, checkpoint: &Checkpoint, path: &Path) -> bool {
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
    };
    let keys = keys(&gguf, "", &Metadata::new(), 0);
    let planned = match lay_out(&output, &keys, &tensors) {
        Err(Error::NameTooLong { .. }) if model.gguf.is_none() => return false,
        planned => planned.unwrap(),
    };
    let work = work(&tensors, &[(output, planned)], String::new());
    run(&work, &Settings::default(), &()).unwrap();
    true
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
        if !write(&model, &checkpoint, &path) {
            continue;
        }
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
