//! Names of tensors that are too long for a GGUF file.

use std::path::Path;

use registry::config::Config;
use registry::library::Library;
use registry::ops::OpSet;
use registry::resolve::resolve;

#[test]
fn names_that_are_too_long_are_shortened() {
    let text = fs_err::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/zamba2/config.json"),
    )
    .unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["layers_block_type"] = (0..13)
        .map(|n: usize| if n == 12 { "hybrid" } else { "linear_attention" })
        .collect::<Vec<_>>()
        .into();
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
        let name = &group.tensors[0].0;
        let weight = &weights[group.weights[0]].name;
        assert!(name.len() < 64 && (name == weight || weight.len() >= 64), "{name}");
    }
}
