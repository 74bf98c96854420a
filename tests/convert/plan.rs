//! Tests that large checkpoints are planned from their headers, with the memory of a small one.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::tool::{fixture, run};

const HIDDEN: usize = 5120;
const FFN: usize = 13_824;
const VOCAB: usize = 32_000;
const LAYERS: usize = 64;
/// Limit on the private memory of a plan, in kB: mapped files do not count.
const MEMORY: &str = "32768";

/// Returns the tensors of a model with 40 GB of weights.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])];
    for layer in 0..LAYERS {
        let square = vec![HIDDEN, HIDDEN];
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", square.clone()),
            ("self_attn.k_proj", square.clone()),
            ("self_attn.v_proj", square.clone()),
            ("self_attn.o_proj", square),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![FFN, HIDDEN]),
            ("mlp.up_proj", vec![FFN, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, FFN]),
        ] {
            all.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    all.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    all.push(("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]));
    all
}

/// Writes a sparse file with these tensors, which takes no room on the disk.
fn sparse(path: &Path, tensors: &[(String, Vec<usize>)]) -> u64 {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += shape.iter().product::<usize>() as u64 * 2;
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), entry);
    }
    let mut text = Value::from(header).to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    let mut file = fs_err::File::create(path).unwrap();
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_len(8 + text.len() as u64 + end).unwrap();
    end
}

/// Plans under a limit on memory; returns the number of tensors in the file.
fn plan(folder: &Path) -> usize {
    let mut command = Command::new("sh");
    let line = format!("ulimit -d {MEMORY} && exec \"$@\"");
    command.args(["-c", &line, "sh", env!("CARGO_BIN_EXE_convert")]).arg(folder);
    command.args(["--to", "gguf:q4_k_m", "--plan", "--json", "--threads", "2", "-o"]);
    let ran = run(command.arg(folder.join("model.gguf"))).code(0);
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    plan["outputs"][0]["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["tensors"].as_array().unwrap().len())
        .sum()
}

#[test]
fn forty_gigabytes_are_planned_in_the_memory_of_a_small_model() {
    let dir = tempfile::tempdir().unwrap();
    let small = fixture("llama");
    let config = fs_err::read_to_string(small.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    for (key, value) in [
        ("hidden_size", HIDDEN),
        ("intermediate_size", FFN),
        ("num_hidden_layers", LAYERS),
        ("num_attention_heads", 40),
        ("num_key_value_heads", 40),
        ("head_dim", 128),
        ("vocab_size", VOCAB),
    ] {
        config[key] = value.into();
    }
    fs_err::write(dir.path().join("config.json"), config.to_string()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(small.join(name), dir.path().join(name)).unwrap();
    }
    let all = tensors();
    let mut bytes = 0;
    let shards: Vec<_> = all.chunks(100).collect();
    let mut map = Map::new();
    for (n, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", n + 1, shards.len());
        bytes += sparse(&dir.path().join(&name), shard);
        map.extend(shard.iter().map(|(tensor, _)| (tensor.clone(), name.clone().into())));
    }
    assert!(bytes > 40_000_000_000, "{bytes}");
    let index = json!({ "metadata": { "total_size": bytes }, "weight_map": map });
    fs_err::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();

    assert_eq!(plan(dir.path()), all.len());
    assert!(plan(&small) > 0, "a small model is planned under the same limit");
}
