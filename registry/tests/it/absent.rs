//! Absent keys of foreign files, as llama.cpp reads them.

use std::path::Path;
use std::sync::LazyLock;

use onboard_spec::config::Config;
use onboard_spec::gguf::Gguf;
use onboard_spec::gguf_match::{FileSpecs, SpecMatch, SpecMismatch};
use onboard_spec::library::Library;
use onboard_spec::model::Model;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::file_metadata;
use onboard_spec::resolve::resolve;
use onboard_spec::scalar::Scalar;

static FAMILIES: LazyLock<FileSpecs> = LazyLock::new(|| FileSpecs::new(&Library::builtin()));

/// A fixture's model, and what opens of its file with keys changed; null removes one.
fn opened(name: &str, changes: &[(&str, Scalar)]) -> (Model, Result<SpecMatch, Vec<SpecMismatch>>) {
    let library = Library::builtin();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
    let config = Config::read(&path.join("config.json")).unwrap();
    let spec = library.load(library.find(&config)[0], &[]).unwrap();
    let (model, _) = resolve(&spec, &config, &OpSet::builtin()).unwrap();
    let gguf = model.gguf.clone().unwrap();
    let mut metadata = gguf.metadata.clone();
    metadata.retain(|(full, _)| changes.iter().all(|(short, _)| key_of(&gguf, short) != *full));
    let added = changes.iter().filter(|(_, value)| *value != Scalar::Null);
    metadata.extend(added.map(|(short, value)| (key_of(&gguf, short), value.clone())));
    let groups = gguf.groups(&model.graph.weights).unwrap();
    let header = file_metadata(&Gguf { metadata, ..gguf.clone() }, &groups);
    let chosen = FAMILIES.choose(&OpSet::builtin(), &gguf.arch, None, &header);
    (model, chosen)
}

fn key_of(gguf: &Gguf, short: &str) -> String {
    format!("{}.{short}", gguf.arch)
}

fn read(name: &str, changes: &[(&str, Scalar)]) -> Model {
    let outcome = opened(name, changes).1;
    outcome.unwrap_or_else(|why| panic!("{name}: {why:?}")).model
}

fn refused(name: &str, key: &str, words: &str) {
    let refusals = opened(name, &[(key, Scalar::Null)]).1.unwrap_err();
    let faults: Vec<&String> = refusals.iter().flat_map(|refusal| &refusal.faults).collect();
    assert!(faults.iter().any(|fault| fault.contains(words)), "{name}: {faults:?}");
}

/// The values of an attribute of an op.
fn attrs(model: &Model, op: &str, attr: &str) -> Vec<f64> {
    let nodes = model.graph.nodes.iter().filter(|node| node.op == op);
    nodes.filter_map(|node| node.attrs.get(attr)?.as_f64()).collect()
}

#[test]
fn every_key_says_what_its_absence_means() {
    let library = Library::builtin();
    let mut silent = Vec::new();
    for name in library.names() {
        let Some(decl) = library.load(name, &[]).unwrap().gguf else { continue };
        let keys = decl.metadata.keys();
        let keys =
            keys.filter(|key| !key.starts_with("general.") && !key.starts_with("tokenizer."));
        let unsaid = keys.filter(|key| !decl.absent.contains_key(*key));
        silent.extend(unsaid.map(|key| format!("{name}: {key}")));
    }
    assert!(silent.is_empty(), "say under `gguf: absent:`:\n{}", silent.join("\n"));
}

#[test]
fn an_absent_router_is_llama_cpps_and_not_the_specs() {
    // Softmax there: no spec has that with the correction that the file holds.
    refused(
        "deepseek_v3",
        "expert_gating_func",
        "key `deepseek2.expert_gating_func` is missing, which is 1 to llama.cpp; the model's would be 2",
    );
    // Sigmoid in both.
    let without = read("glm4_moe", &[("expert_gating_func", Scalar::Null)]);
    assert!(without.graph == read("glm4_moe", &[]).graph);
    // The spec's class has 2.5.
    let scaled = read("deepseek_v3", &[("expert_weights_scale", Scalar::Null)]);
    assert!(attrs(&scaled, "scale", "s").iter().all(|s| *s == 1.0));
}

#[test]
fn an_absent_number_is_llama_cpps() {
    // The class has 1.
    let model = read("granite", &[("attention.scale", Scalar::Null)]);
    let head = model.dims["head_dim"].as_f64().unwrap();
    assert!(attrs(&model, "attend", "scale").iter().all(|s| (s - head.powf(-0.5)).abs() < 1e-12));
    let model = read("llama", &[("rope.freq_base", Scalar::Null)]);
    let expected = 10000.0_f64.powf(-2.0 / model.ropes[0].dim as f64);
    assert!((f64::from(model.ropes[0].inv_freq[1]) - expected).abs() < 1e-6);
    // A factor without a type is a linear one.
    let plain = read("llama", &[]).ropes[0].inv_freq.clone();
    let model = read("llama", &[("rope.scaling.factor", Scalar::Float(4.0))]);
    assert_eq!(model.ropes[0].inv_freq[0] * 4.0, plain[0]);
    // All key heads there are.
    let refusal = opened("llama", &[("attention.head_count_kv", Scalar::Null)]).1;
    assert!(refusal.is_err());
}

#[test]
fn a_key_that_llama_cpp_needs_is_not_made_up() {
    for (name, key) in [
        ("llama", "attention.layer_norm_rms_epsilon"),
        ("mixtral", "expert_used_count"),
        ("lfm2", "shortconv.l_cache"),
        ("cohere2", "logit_scale"),
    ] {
        let arch = opened(name, &[]).0.gguf.unwrap().arch;
        refused(name, key, &format!("key `{arch}.{key}` is missing: llama.cpp needs it"));
    }
    assert!(opened("llama", &[("vocab_size", Scalar::Null)]).1.is_ok());
}
