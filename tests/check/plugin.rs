//! Tests of `onboard plugin`: a renamed architecture becomes a package, another model does not.

use std::path::Path;

use crate::tool::{Ran, copy, fixture, json, onboard, run};

/// Writes a Llama with a renamed class, config keys and tensors.
fn renamed(home: &Path) -> (String, String) {
    let model = home.join("model");
    copy("llama3", &model);
    let config = model.join("config.json");
    let mut text = json(&fs_err::read_to_string(&config).unwrap());
    text["architectures"] = serde_json::json!(["NobodyForCausalLM"]);
    text["model_type"] = "nobody".into();
    text["width"] = text["hidden_size"].take();
    text.as_object_mut().unwrap().remove("hidden_size");
    fs_err::write(config, text.to_string()).unwrap();
    // Only the header changes: names of the same length keep all offsets.
    let file = model.join("model.safetensors");
    let mut bytes = fs_err::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let header = header.replace("self_attn.q_proj", "attention.query_");
    bytes.splice(8..8 + length, header.into_bytes());
    fs_err::write(file, bytes).unwrap();
    let spec = home.join("nobody.yaml");
    let text = "spec: 1\nname: nobody\nextends: llama\nmatches: [NobodyForCausalLM]\ndims:\n  hidden: width\nweights:\n  \
        - { disk: \"model.layers.{i}.attention.query_.*\", weight: \"model.layers.{i}.self_attn.q_proj.*\" }\n";
    fs_err::write(&spec, text).unwrap();
    (model.display().to_string(), spec.display().to_string())
}

fn plugin(model: &str, more: &[&str]) -> Ran {
    run(onboard().args(["plugin", model, "--engine", "vllm"]).args(more))
}

#[test]
fn other_names_become_a_package() {
    let home = tempfile::tempdir().unwrap();
    let (model, spec) = renamed(home.path());
    let out = home.path().join("package").display().to_string();
    let words = ["--spec", &spec, "-o", &out];
    plugin(&model, &words).code(0).prints("NobodyForCausalLM is LlamaForCausalLM by other names");
    let text = fs_err::read_to_string(format!("{out}/onboard_nobody/alias.json")).unwrap();
    let alias = json(&text);
    assert_eq!(alias["base"], "LlamaForCausalLM");
    assert_eq!(alias["config"], serde_json::json!({"hidden_size": 32}));
    assert_eq!(
        alias["renames"],
        serde_json::json!([[
            "model\\.layers\\.(\\d+)\\.attention\\.query_(\\.[^.]+)",
            "model.layers.\\1.self_attn.q_proj\\2"
        ]])
    );
    let project = fs_err::read_to_string(format!("{out}/pyproject.toml")).unwrap();
    assert!(project.contains("onboard_nobody = \"onboard_nobody:register\""), "{project}");
    plugin(&model, &words).code(2).says("is there already");
    plugin(&model, &[&words[..], &["--force", "--package", "my-model"]].concat())
        .code(2)
        .says("`my-model` is no name of a Python package");
}

#[test]
fn another_model_is_refused_with_the_op_in_the_way() {
    let home = tempfile::tempdir().unwrap();
    let (model, spec) = renamed(home.path());
    let out = home.path().join("package").display().to_string();
    let text = fs_err::read_to_string(&spec).unwrap();
    let other =
        text.replace("  hidden: width\n", "  hidden: width\n  scale: = head_dim ** -0.25\n");
    fs_err::write(&spec, other).unwrap();
    plugin(&model, &["--spec", &spec, "-o", &out])
        .code(2)
        .says("does not know `NobodyForCausalLM`")
        .says("`llama`: layer 0: `scale` of `attend` is");
    assert!(!Path::new(&out).exists());
    let arcee = fixture("arcee").display().to_string();
    plugin(&arcee, &["-o", &out])
        .code(2)
        .says("where `llama` has 2")
        .says("of `linear` where `llama` has 1");
    let known = fixture("llama").display().to_string();
    plugin(&known, &["-o", &out]).code(2).says("knows `LlamaForCausalLM` by itself");
    run(onboard().args(["plugin", &known, "--engine", "sglang", "-o", &out]))
        .code(2)
        .says("has no package for other models");
}
