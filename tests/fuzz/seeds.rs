//! Seeds: valid files from `fixtures`, files converted from them, and small ones made here.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::case::Case;

pub(crate) mod answers;
#[cfg(feature = "hub")]
pub(crate) mod hubs;
pub(crate) mod made;
#[path = "../../converters/tokenizers/tests/support/tokenizers.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "tests of converters use the rest")]
mod sound;

/// Sources of seeds.
pub(crate) struct Sources {
    pub(crate) fixtures: PathBuf,
    pub(crate) specs: PathBuf,
    /// Folder that [`made::make`] wrote.
    pub(crate) made: PathBuf,
}

/// Families of different kinds, with few weights.
const FAMILIES: &[&str] = &[
    "llama",
    "lfm2",
    "gemma3_text",
    "mamba2",
    "qwen3_moe",
    "deepseek_v3",
    "gpt2",
    "falcon_mamba",
    "phi3",
    "minicpm3",
    "kimi_linear",
    "gpt_oss",
    "granitemoehybrid",
    "llava",
    "bloom",
    "jamba",
];

const MODEL: &[&str] = &["config.json", "model.safetensors"];
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

type Seeds = io::Result<Vec<Case>>;

impl Sources {
    fn family(&self, name: &str, files: &[&str]) -> io::Result<Case> {
        Case::of(&self.fixtures.join(name), files)
    }

    fn families(&self, names: &[&str], files: &[&str]) -> Seeds {
        names.iter().map(|name| self.family(name, files)).collect()
    }
}

/// Returns every folder of a folder as a case.
fn folders(dir: &Path) -> Seeds {
    let mut all: Vec<PathBuf> =
        fs_err::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    all.sort();
    let mut cases = Vec::new();
    for folder in all.iter().filter(|path| path.is_dir()) {
        let mut case = Case::read(folder)?;
        case.hostile = case.files.remove("expect.txt").is_some();
        if case.bytes() < 400_000 {
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Returns the cases that have a file, renamed to the name that judges expect.
fn with(cases: Vec<Case>, end: &str, name: &str) -> Vec<Case> {
    cases
        .into_iter()
        .filter_map(|mut case: Case| {
            let path = case.files.keys().find(|name| name.ends_with(end))?.clone();
            let bytes = case.files.remove(&path)?;
            case.files.insert(name.to_owned(), bytes);
            Some(case)
        })
        .collect()
}

/// Returns single files of tensors.
pub(crate) fn safetensors(from: &Sources) -> Seeds {
    let mut seeds = from.families(&["cohere", "falcon", "gpt2", "mamba2"], &[WEIGHTS])?;
    seeds.push(made::tiny_safetensors(&[("a", "F32", &[2, 3]), ("b", "BF16", &[4])], &[]));
    seeds.push(made::tiny_safetensors(&[("s", "F8_E4M3", &[]), ("e", "U8", &[0, 7])], &["k", "v"]));
    seeds.extend(with(folders(&from.fixtures.join("hostile/checkpoints"))?, WEIGHTS, WEIGHTS));
    Ok(seeds)
}

/// Returns folders of shards with an index.
pub(crate) fn shards(from: &Sources) -> Seeds {
    let mut seeds = folders(&from.made.join("shards"))?;
    let hostile = folders(&from.fixtures.join("hostile/checkpoints"))?;
    seeds.extend(
        hostile.into_iter().filter(|case| case.files.keys().any(|n| n.ends_with(".index.json"))),
    );
    Ok(seeds)
}

/// Returns single GGUF files.
pub(crate) fn gguf(from: &Sources) -> Seeds {
    let name = "model.gguf";
    let mut seeds = with(vec![from.family("gguf", &["tiny.gguf"])?], ".gguf", name);
    seeds.extend(with(folders(&from.made.join("gguf"))?, ".gguf", name));
    seeds.extend(with(folders(&from.fixtures.join("hostile/gguf"))?, ".gguf", name));
    Ok(seeds)
}

/// Returns split GGUF files, and parts of folders.
pub(crate) fn sets(from: &Sources) -> Seeds {
    let mut seeds = folders(&from.made.join("sets"))?;
    seeds.extend(folders(&from.made.join("shards"))?);
    let names = ["tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"];
    seeds.push(from.family("gguf", &names)?);
    Ok(seeds)
}

/// Returns GGUF files of whole models, our own and files without a config inside.
pub(crate) fn gguf_models(from: &Sources) -> Seeds {
    folders(&from.made.join("gguf"))
}

/// Returns checkpoints.
pub(crate) fn configs(from: &Sources) -> Seeds {
    let mut seeds = from.families(FAMILIES, MODEL)?;
    seeds.extend(folders(&from.fixtures.join("hostile/models"))?);
    Ok(seeds)
}

/// Returns quantized checkpoints.
pub(crate) fn quantized(from: &Sources) -> Seeds {
    let mut seeds = Vec::new();
    for folder in ["coded", "w8a8"] {
        for mut case in folders(&from.fixtures.join(folder))? {
            case.files.retain(|name, _| name == CONFIG || name == WEIGHTS);
            seeds.push(case);
        }
    }
    seeds.extend(folders(&from.made.join("quantized"))?);
    Ok(seeds)
}

/// Returns built-in specs, with the family whose checkpoint they are compared with.
pub(crate) fn specs(from: &Sources) -> Seeds {
    let mut seeds = Vec::new();
    for family in FAMILIES {
        let path = from.specs.join(format!("{family}.yaml"));
        if path.is_file() {
            let mut case = Case { words: vec![(*family).to_owned()], ..Case::default() };
            case.files.insert("spec.yaml".to_owned(), fs_err::read(path)?);
            seeds.push(case);
        }
    }
    Ok(seeds)
}

/// Returns overrides of parts of specs.
#[expect(clippy::unnecessary_wraps, reason = "every kind has seeds of one type")]
pub(crate) fn overrides(_: &Sources) -> Seeds {
    let sets = [
        "dims.eps=1e-6",
        "dims.hidden=32",
        "dims.tied=false",
        "dims.layers=2",
        "dims.theta=1e6",
        "states.conv.dtype=bf16",
        "states.kv.dtype=f8_e4m3",
        "rope.main.theta=1000.0",
        "rope={main: {theta: 10000, dim: 8}}",
        "layers=[{count: 1, kind: attention}]",
        "gguf.arch=x",
        "gguf=~",
        "functions.mlp=x",
        "model=[]",
        "quant.keep=[lm_head]",
        "weights=[]",
        "ignore=['*']",
        "dims.vocab=config('vocab_size') + 1",
        "dims.heads=[4, 4, 4]",
        "name=other",
    ];
    let mut seeds: Vec<Case> = sets
        .iter()
        .enumerate()
        .map(|(n, set): (usize, &&str)| {
            let family = FAMILIES[n % FAMILIES.len()];
            Case { words: vec![family.to_owned(), (*set).to_owned()], ..Case::default() }
        })
        .collect();
    // An override that every family accepts.
    seeds.extend(FAMILIES.iter().map(|family| Case {
        words: vec![(*family).to_owned(), "dims.eps=2e-6".to_owned()],
        ..Case::default()
    }));
    Ok(seeds)
}

const SPOKEN: &[&str] = &[CONFIG, WEIGHTS, TOKENIZER, "tokenizer_config.json"];

/// Returns byte-level BPE tokenizers.
pub(crate) fn byte_tokenizers(from: &Sources) -> Seeds {
    from.families(&["lfm2", "gpt2", "qwen2", "llama3", "deepseek_v3", "falcon"], SPOKEN)
}

/// Returns SentencePiece BPE tokenizers with byte fallback.
pub(crate) fn piece_tokenizers(from: &Sources) -> Seeds {
    from.families(&["llama", "gemma3_text", "phi3", "internlm3"], SPOKEN)
}

fn tokenizers(from: &Sources, files: &[serde_json::Value]) -> Seeds {
    let mut base = from.family("llama", MODEL)?;
    Ok(files
        .iter()
        .map(|json: &serde_json::Value| {
            base.files.insert(TOKENIZER.to_owned(), json.to_string().into_bytes());
            base.clone()
        })
        .collect())
}

/// Returns Unigram tokenizers, with and without a table of replacements.
pub(crate) fn unigram_tokenizers(from: &Sources) -> Seeds {
    let full = sound::pieces();
    let mut plain = full.clone();
    plain["normalizer"] = json!(null);
    plain["post_processor"] = json!(null);
    tokenizers(from, &[full, plain])
}

/// Returns WordPiece and whole-word tokenizers.
pub(crate) fn word_tokenizers(from: &Sources) -> Seeds {
    let pieces = sound::words();
    let mut whole_words = pieces.clone();
    let vocab = &pieces["model"]["vocab"];
    whole_words["model"] = json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab});
    whole_words["pre_tokenizer"] = json!({"type": "Whitespace"});
    whole_words["decoder"] = json!(null);
    tokenizers(from, &[pieces, whole_words])
}

/// Returns SentencePiece's own files.
pub(crate) fn models_of_pieces(from: &Sources) -> Seeds {
    let files = [CONFIG, WEIGHTS, "tokenizer.model", "tokenizer_config.json"];
    from.families(&["llama", "internlm3", "ernie4_5"], &files)
}

/// Returns tokenizers with the files beside them.
pub(crate) fn tokenizer_configs(from: &Sources) -> Seeds {
    let names = ["llama", "lfm2", "qwen2", "gemma3_text"];
    let mut seeds = from.families(&names, &[SPOKEN, &["generation_config.json"]].concat())?;
    for case in &mut seeds {
        let map = r#"{"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},"additional_special_tokens":["<x>"]}"#;
        case.files.insert("special_tokens_map.json".to_owned(), map.into());
        case.files.insert("added_tokens.json".to_owned(), r#"{"<x>":360,"<y>":361}"#.into());
    }
    Ok(seeds)
}

/// Returns files that are copied along.
pub(crate) fn carried(from: &Sources) -> Seeds {
    let mut seeds =
        from.families(&["llama", "lfm2"], &[SPOKEN, &["generation_config.json"]].concat())?;
    let texts = [
        (
            "chat_template.jinja",
            "{% for m in messages %}{{ m['role'] }}: {{ m.content }}\n{% endfor %}",
        ),
        ("tiktoken.model", "YQ== 0\nYg== 1\nYWI= 2\n"),
        ("qwen.tiktoken", "YQ== 0\nYg== 1\n"),
        ("merges.txt", "#version: 0.2\na b\nab c\n"),
        ("vocab.json", "{\"a\":0,\"b\":1}"),
        ("vocab.txt", "a\nb\n"),
    ];
    for case in &mut seeds {
        case.files.extend(texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).into())));
    }
    Ok(seeds)
}

/// Returns a chat template with a request.
fn template(text: Vec<u8>, hostile: bool) -> Case {
    let request: &[u8] = br#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "<think>x</think> y", "reasoning_content": "r", "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, 2.5, null]}"}}]}, {"role": "tool", "tool_call_id": "call00001", "content": "z"}, {"role": "user", "content": "b"}], "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}, "required": ["a"]}}}], "documents": [{"title": "t", "text": "x"}], "add_generation_prompt": true, "variables": {"enable_thinking": false, "custom": {"a": [1]}}}"#;
    let config =
        br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "added_tokens_decoder": {}}"#;
    let files = [
        ("chat_template.jinja".to_owned(), text),
        ("request.json".to_owned(), request.to_vec()),
        ("tokenizer_config.json".to_owned(), config.to_vec()),
    ];
    Case { files: files.into(), hostile, ..Case::default() }
}

/// Returns chat templates with a request, from the tests of templates, and hostile ones.
pub(crate) fn templates(from: &Sources) -> Seeds {
    let folder = from.fixtures.join("../chat/tests/templates");
    let mut seeds = Vec::new();
    let mut names: Vec<PathBuf> =
        fs_err::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    names.retain(|path| path.extension().is_some_and(|end| end == "jinja"));
    names.sort();
    for name in &names {
        seeds.push(template(fs_err::read(name)?, false));
    }
    for text in [
        "{% set ns = namespace(a=[1]) %}{% for i in range(90) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}",
        "{% set ns = namespace(a='x') %}{% for i in range(90) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m([1]) }}",
        "{% set ns = namespace(x=range(9999)|list) %}{% for i in range(99999) %}{% set ns.x = ns.x[0:] %}{% endfor %}{{ ns.x|length }}",
        "{% set ns = namespace(x=range(9999)|list) %}{% for i in range(99999) %}{% set ns.x = ns.x[::-1]|reverse %}{% endfor %}{{ ns.x|list }}",
        "{% set ns = namespace(x=range(9999)|list) %}{% for i in range(99999) %}{% set ns.x = ns.x[9998:] or ns.x|map('int')|batch(9)|list %}{% endfor %}{{ ns.x[:1] }}",
        "{% set ns = namespace(x='x' * 999999) %}{% for i in range(99999) %}{% set ns.x = ns.x[:-1][1:] %}{% if ns.x == ns.x[0:] %}{% endif %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x={'a': 1}) %}{% for i in range(99999) %}{% set ns.x = dict(ns.x.items(), b=ns.x.values()) %}{% endfor %}{{ ns.x|items|list }}",
        "{{ ('x' * 9999999)|replace('x', 'y' * 999) }}{{ '%99999999d' % 1 }}",
        "{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a|tojson }}",
    ] {
        seeds.push(template(text.into(), true));
    }
    Ok(seeds)
}

/// Returns result files of evaluations.
pub(crate) fn results(from: &Sources) -> Seeds {
    let folder = from.fixtures.join("evals");
    let names = [
        "samples_tiny_mc_2026-11-23.jsonl",
        "samples_tiny_gen_2026-11-23.jsonl",
        "llama.tasks.jsonl",
        "llama.lm_eval.jsonl",
    ];
    let mut seeds = Vec::new();
    for name in names {
        let bytes = fs_err::read(folder.join(name))?;
        seeds.push(Case { files: [("damaged.jsonl".to_owned(), bytes)].into(), ..Case::default() });
    }
    let bench = r#"{"backend":"x","input_lens":[3,4],"itls":[[0.1],[NaN]],"generated_texts":["a","b"],"errors":["",""]}"#;
    seeds.push(Case {
        files: [("damaged.jsonl".to_owned(), bench.into())].into(),
        ..Case::default()
    });
    Ok(seeds)
}

/// Returns a cell of a scoreboard.
fn cell(model: &str, outcome: &str) -> serde_json::Value {
    json!({"model": model, "engine": "native", "dtype": "f32", "outcome": outcome, "share": 0.5, "message": "m", "known": null})
}

/// Returns a plan of a matrix, and a scoreboard.
#[expect(clippy::unnecessary_wraps, reason = "every kind has seeds of one type")]
pub(crate) fn plans(_: &Sources) -> Seeds {
    let plan = "models:\n  - models/tiny\n  - {name: big, path: owner/big, reference: d, engines: [eager], dtypes: [bf16]}\n\
        engines:\n  - native\n  - {name: eager, engine: transformers, options: {attention: eager}, flags: [--no-schedules]}\n\
        dtypes: [f32, bf16]\nflags: []\nknown:\n  - {model: big, dtype: bf16, because: not yet}\n";
    let board = serde_json::json!({"schema": "onboard-scoreboard/1", "cells": [cell("tiny", "pass"), cell("big", "differ"), cell("c", "error")]});
    let files = [
        ("parity.yaml".to_owned(), plan.as_bytes().to_vec()),
        ("board.json".to_owned(), board.to_string().into_bytes()),
    ];
    Ok(vec![Case { files: files.into(), ..Case::default() }])
}

/// Returns sheets of engines: those that launch, and one of an engine in a child process.
#[expect(clippy::unnecessary_wraps, reason = "every kind has seeds of one type")]
pub(crate) fn sheets(_: &Sources) -> Seeds {
    let names = ["sglang.yaml", "vllm.yaml", "llama_cpp.yaml", "mlx.yaml"];
    let sheets = registry::engines::sheets().iter();
    let sheets = sheets.filter(|(path, _)| names.iter().any(|name| path.ends_with(name)));
    Ok(sheets
        .map(|(_, text)| Case {
            files: [("engine.yaml".to_owned(), text.as_bytes().to_vec())].into(),
            ..Case::default()
        })
        .collect())
}

/// Returns importance matrices of the newer format.
pub(crate) fn imatrices(from: &Sources) -> Seeds {
    Ok(with(folders(&from.made.join("imatrix"))?, ".gguf", "im.gguf"))
}

/// Returns shards of importance matrices.
pub(crate) fn imatrix_shards(from: &Sources) -> Seeds {
    Ok(with(folders(&from.made.join("imatrix-shard"))?, ".gguf", "im.shard"))
}

/// Returns importance matrices of the older format.
#[expect(clippy::unnecessary_wraps, reason = "every kind has seeds of one type")]
pub(crate) fn imatrices_dat(_: &Sources) -> Seeds {
    Ok([
        made::dat(&[("blk.0.ffn_up.weight", 4), ("output.weight", 7)], true),
        made::dat(&[("a", 1)], false),
    ]
    .map(|bytes| Case { files: [("im.dat".to_owned(), bytes)].into(), ..Case::default() })
    .into())
}

/// Returns dumps of references.
pub(crate) fn dumps(from: &Sources) -> Seeds {
    let mut seeds = Vec::new();
    for family in
        ["doge_keep", "openai_gpt", "falcon", "hrm_text", "mamba2", "qwen3_vl_moe", "lfm2"]
    {
        let dir = from.fixtures.join(family).join("reference");
        let mut case = Case::of(&dir, &["manifest.json", "reference.safetensors"])?;
        case.words = vec![family.to_owned()];
        // Checksums would refuse every damaged case at once.
        let manifest = String::from_utf8_lossy(&case.files["manifest.json"]).into_owned();
        if let Some((manifest, _)) = manifest.split_once(",\n \"sha256\": ") {
            case.files.insert("manifest.json".to_owned(), format!("{manifest}\n}}\n").into_bytes());
        }
        seeds.push(case);
    }
    Ok(seeds)
}

/// Returns a stopped conversion.
pub(crate) fn journals(from: &Sources) -> Seeds {
    Ok(vec![Case::of(&from.made.join("resumed"), &["out.gguf.part", "out.gguf.part.journal"])?])
}

/// Returns conversions with their hashes; the first word is their folder below the files that were made.
pub(crate) fn converted(from: &Sources) -> Seeds {
    made::VERIFIED
        .iter()
        .map(|(folder, _): &(&str, &str)| -> io::Result<Case> {
            let words = vec![(*folder).to_owned()];
            Ok(Case { words, ..Case::read(&from.made.join(folder))? })
        })
        .collect()
}

/// Returns texts.
pub(crate) fn texts(from: &Sources) -> Seeds {
    let corpus = fs_err::read_to_string(from.fixtures.join("corpus.txt"))?;
    let odd = "\u{feff}<s>[INST] \u{1f468}\u{200d}\u{1f469} \u{202e}abc\r\n\t\u{0} 12345678901234567890 ﷽ \u{300}\u{300}\u{300}";
    let piece: String = corpus.chars().take(1500).collect();
    Ok([("llama", &*piece), ("lfm2", odd), ("qwen2", &piece), ("gemma3_text", odd)]
        .map(|(family, text): (&str, &str)| Case {
            files: [("text.txt".to_owned(), text.as_bytes().to_vec())].into(),
            words: vec![family.to_owned()],
            ..Case::default()
        })
        .into())
}
