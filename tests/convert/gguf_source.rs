//! Tests of GGUF files as the source of conversions: folders, other types, and the refusal to round twice.

use std::collections::BTreeMap;
use std::path::Path;

use checkpoints::Checkpoint;
use tokenizer::ReferenceTokenizer;

use crate::tool::{Ran, convert, fixture, json, onboard, root, run};

/// Fixtures whose tensors keep their numbers in a file: no step of their files computes, and every name is that of
/// the class.
const SAME: [&str; 12] = [
    "cohere",
    "gpt2",
    "gpt_oss",
    "hy_v3",
    "lfm2",
    "lfm2_moe",
    "llama",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3_moe",
];

/// Fixtures whose norms are stored with one added, which rounds.
const ROUNDED: [&str; 2] = ["gemma2", "gemma3_text"];

fn converted(from: &Path, format: &str, to: &Path, more: &[&str]) -> Ran {
    run(convert().arg(from).args(["--to", format, "-o"]).arg(to).args(more))
}

/// Returns the ids that a model generates after a prompt.
fn generated(model: &Path, count: &str, more: &[&str]) -> String {
    let mut command = onboard();
    command.arg("run").arg(model).args(["--tokens", "1,5,9", "-n", count, "--dtype", "f32"]);
    run(command.args(more)).code(0).out
}

/// Reads every tensor by name: its shape and its numbers.
fn tensors(folder: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    checkpoint
        .tensors()
        .keys()
        .map(|name: &String| {
            let flow = checkpoint.flow(name).unwrap();
            let mut numbers = vec![0.0; flow.len()];
            flow.read(0, &mut numbers);
            (name.clone(), (flow.shape().to_vec(), numbers))
        })
        .collect()
}

#[test]
fn a_folder_made_of_a_file_has_the_tensors_of_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    for name in SAME.iter().chain(&ROUNDED) {
        let file = dir.path().join(format!("{name}.gguf"));
        let folder = dir.path().join(name);
        converted(&fixture(name), "gguf:f32", &file, &[]).code(0);
        converted(&file, "hf", &folder, &[]).code(0);
        let restored = tensors(&folder);
        let source = tensors(&fixture(name));
        assert!(restored.keys().eq(source.keys()), "{name}: {:?}", restored.keys());
        let limit = if ROUNDED.contains(name) { 1e-6 } else { 0.0 };
        for (tensor, (shape, numbers)) in &source {
            let (restored_shape, restored_numbers) = &restored[tensor];
            assert_eq!(restored_shape, shape, "{name}: {tensor}");
            let off = numbers.iter().zip(restored_numbers).map(|(a, b)| (a - b).abs());
            let off = off.fold(0.0, f32::max);
            assert!(off <= limit, "{name}: {tensor} is off by {off}");
        }
        // The folder is a model like any other.
        assert_eq!(generated(&folder, "8", &[]), generated(&fixture(name), "8", &[]), "{name}");
    }
}

#[test]
fn a_file_of_a_file_has_the_bytes_of_one_made_of_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_256", "gemma3_text", "qwen3_moe", "gpt_oss", "lfm2_256", "gemma4_text_moe"]
    {
        let plain = dir.path().join(format!("{name}-f32.gguf"));
        let of_folder = dir.path().join(format!("{name}-folder.gguf"));
        let of_file = dir.path().join(format!("{name}-file.gguf"));
        converted(&fixture(name), "gguf:f32", &plain, &[]).code(0);
        for ty in ["q8_0", "q4_k_m"] {
            let format = format!("gguf:{ty}");
            // The name of the model is that of the folder in both.
            converted(&fixture(name), &format, &of_folder, &["--force"]).code(0);
            converted(&plain, &format, &of_file, &["--force"]).code(0);
            let bytes = fs_err::read(&of_file).unwrap();
            assert!(fs_err::read(&of_folder).unwrap() == bytes, "{name} {ty}");
        }
    }
}

#[test]
fn a_tokenizer_of_keys_makes_the_tokens_of_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = fs_err::read_to_string(root().join("fixtures/corpus.txt")).unwrap();
    let more = [
        "",
        " ",
        "  two  blanks ",
        "1234567 12.5",
        "naïve café, 你好 ☃ 🦀",
        "a\n\n\tb\r\n",
        "x<|im_start|>y",
    ];
    // A file spells added tokens of blanks with blanks, so texts with the character for them have other tokens.
    let lines = corpus.lines().take(200).filter(|line| !line.contains("▁▁"));
    let texts: Vec<&str> = lines.chain(more).collect();
    for name in ["qwen2", "llama", "llama3", "gemma3_text", "lfm2", "granite", "olmo"] {
        let file = dir.path().join(format!("{name}.gguf"));
        let folder = dir.path().join(name);
        converted(&fixture(name), "gguf:f32", &file, &[]).code(0);
        converted(&file, "hf", &folder, &[]).code(0);
        let tokenizer = ReferenceTokenizer::read(&folder).unwrap().unwrap();
        let source = ReferenceTokenizer::read(&fixture(name)).unwrap().unwrap();
        for text in &texts {
            for around in [true, false] {
                let expected = source.encode(text, around).unwrap();
                let ids = tokenizer.encode(text, around).unwrap();
                assert_eq!(ids, expected, "{name}: {text:?}");
            }
            let ids = source.encode(text, false).unwrap();
            let expected = source.decode(&ids, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), expected, "{name}: {ids:?}");
        }
        let config = json(&fs_err::read_to_string(folder.join("tokenizer_config.json")).unwrap());
        let templates = tokenizer::chat_templates(&fixture(name)).unwrap();
        assert_eq!(
            config["chat_template"].is_string(),
            !templates.is_empty(),
            "{name}: {config:#}"
        );
    }
}

#[test]
fn a_file_without_a_config_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen2", "gemma", "gemma3_text"] {
        let file = dir.path().join(format!("{name}.gguf"));
        let folder = dir.path().join(name);
        converted(&fixture(name), "gguf:f32", &file, &[]).code(0);
        // As a file of another program: the key with the config has another name.
        let mut bytes = fs_err::read(&file).unwrap();
        let key = b"onboard.config";
        let at = bytes.windows(key.len()).position(|part| part == key).unwrap();
        bytes[at] = b'0';
        fs_err::write(&file, bytes).unwrap();
        converted(&file, "hf:bf16", &folder, &[]).code(0);
        let config = json(&fs_err::read_to_string(folder.join("config.json")).unwrap());
        let source = json(&fs_err::read_to_string(fixture(name).join("config.json")).unwrap());
        for key in ["architectures", "model_type", "hidden_size", "num_hidden_layers", "vocab_size"]
        {
            assert_eq!(config[key], source[key], "{name}: {key}");
        }
        assert_eq!(config["dtype"], "bfloat16", "{name}: {config:#}");
        assert!(config["tie_word_embeddings"].is_boolean(), "{name}: {config:#}");
        let ran = run(onboard().arg("run").arg(&folder).args(["--tokens", "1,5,9", "-n", "4"]));
        let ran = ran.code(0);
        assert!(!ran.err.contains("nothing reads"), "{name}: {}", ran.err);
    }
}

#[test]
fn quantized_weights_are_not_quantized_again_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("q4.gguf");
    let again = dir.path().join("again.gguf");
    converted(&fixture("llama_256"), "gguf:q4_k_m", &file, &[]).code(0);
    for format in ["gguf:q8_0", "fp8"] {
        converted(&file, format, &again, &[]).code(2).says("--requantize").says("Q4_K");
    }
    assert!(!again.exists());
    converted(&file, "gguf:q8_0", &again, &["--requantize"]).code(0).prints("wrote");
    converted(&file, "fp8", &dir.path().join("fp8"), &["--requantize"]).code(0).prints("wrote");
    // Decoding rounds nothing.
    let f32 = dir.path().join("f32.gguf");
    let folder = dir.path().join("folder");
    converted(&file, "gguf:f32", &f32, &[]).code(0);
    converted(&file, "hf:f32", &folder, &[]).code(0);
    let exact = ["--arithmetic", "exact"];
    let expected = generated(&folder, "12", &exact);
    assert_eq!(generated(&f32, "12", &exact), expected);
    assert_eq!(generated(&file, "12", &exact), expected);
}
