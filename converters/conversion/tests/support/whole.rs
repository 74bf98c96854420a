//! Writes a fixture as a GGUF file.

use std::path::Path;

use checkpoints::checkpoint::Checkpoint;
use checkpoints::weights::flows;
use formats::codec::BlockType;
use formats::gguf::{DimsStyle, Metadata};
use onboard_conversion::gguf::{
    Arithmetic, GgufOutput, TypeChoice, base_type, keys, lay_out, tensors, with_scalars, work,
};
use onboard_conversion::{RunOptions, run};
use registry::config::Config;
use registry::gguf::Gguf;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::resolve::resolve;

/// Opens the model of a folder.
pub(crate) fn open(folder: &Path) -> Model {
    let config = Config::read(&folder.join("config.json")).unwrap();
    let library = Library::builtin();
    let specs = library.find(&config);
    let spec = library.load(specs[0], &[]).unwrap();
    resolve(&spec, &config, &OpSet::builtin()).unwrap().0
}

/// Returns the GGUF section of a model, or this program's own if its spec has none.
pub(crate) fn gguf_of(model: &Model) -> Gguf {
    model.gguf.clone().unwrap_or_else(|| checkpoints::own_names(model))
}

/// Writes a model with its matrices in the types of their names; rows that do not divide into blocks stay in f32.
pub(crate) fn write(
    model: &Model,
    checkpoint: &Checkpoint,
    types: impl Fn(&str) -> BlockType,
    path: &Path,
) {
    let weights = &model.graph.weights;
    let (sourced, _) = flows(checkpoint, weights, &model.rules).unwrap();
    let gguf = with_scalars(gguf_of(model), &model.graph.weights, &sourced).unwrap();
    let tensors = tensors(&gguf, &model.graph.weights, &sourced, Arithmetic::Wide).unwrap();
    let choices = tensors.iter().map(|tensor| {
        let shape = tensor.flow.shape();
        let ty = base_type(&tensor.name, shape, types(&tensor.name));
        let fits = shape.last().is_some_and(|row| ty.row_bytes(*row).is_some());
        TypeChoice { ty: if fits { ty } else { BlockType::F32 }, why: String::new() }
    });
    let output = GgufOutput {
        path: path.to_owned(),
        choices: choices.collect(),
        file_type: 0,
        split: None,
        shard: None,
        via: None,
        dims: DimsStyle::Trimmed,
        importance: std::collections::BTreeMap::new(),
        factors: std::collections::BTreeMap::new(),
    };
    let keys = keys(&gguf, "", &Metadata::new(), 0);
    let planned = lay_out(&output, &keys, &tensors).unwrap();
    let work = work(&tensors, &[(output, planned)], String::new());
    run(&work, &RunOptions::default(), &()).unwrap();
}
