//! Tests of changed and invalid folders.

use std::path::{Path, PathBuf};

use formats::gguf::MetadataValue as Gguf;
use onboard_tokenizers::check::LlamaTokenizer;
use onboard_tokenizers::{ReferenceTokenizer, Tokenizer, TokenizerOptions};
use serde_json::{Value, json};

use crate::{tokenizers, vocabulary};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

fn rows(name: &str) -> usize {
    let config = parsed(&fixtures().join(name).join("config.json"));
    config["vocab_size"].as_u64().unwrap() as usize
}

fn read(name: &str, options: &TokenizerOptions) -> Tokenizer {
    let read = onboard_tokenizers::read(&fixtures().join(name), rows(name), options);
    read.unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// Returns a folder with the changed tokenizer of a fixture.
fn folder(name: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["tokenizer.model", "tokenizer_config.json", "config.json"] {
        let source = fixtures().join(name).join(file);
        if source.is_file() {
            fs_err::copy(source, dir.path().join(file)).unwrap();
        }
    }
    let mut json = parsed(&fixtures().join(name).join("tokenizer.json"));
    change(&mut json);
    fs_err::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    dir
}

fn without_list(dir: &Path) {
    let path = dir.join("tokenizer_config.json");
    let mut config = parsed(&path);
    config.as_object_mut().unwrap().remove("added_tokens_decoder");
    fs_err::write(path, config.to_string()).unwrap();
}

fn write_settings(dir: &Path, settings: &Value) {
    fs_err::write(dir.join("tokenizer_config.json"), settings.to_string()).unwrap();
}

fn row(tokenizer: &Tokenizer, text: &str) -> (f32, i128) {
    let texts = tokenizer.keys.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let at = texts.iter().position(|token| token == text).unwrap_or_else(|| panic!("no {text}"));
    let Some(Gguf::Array(scores)) = tokenizer.keys.get("tokenizer.ggml.scores") else {
        panic!("scores")
    };
    let Some(Gguf::F32(score)) = scores.get(at) else { panic!("a score") };
    let Some(Gguf::Array(types)) = tokenizer.keys.get("tokenizer.ggml.token_type") else {
        panic!("types")
    };
    (score, types.get(at).unwrap().integer().unwrap())
}

/// Checkpoints of transformers 5 list added tokens in tokenizer.json alone. llama.cpp's converter reads
/// them there: the score is -1000, and only those marked as special are control tokens.
#[test]
fn added_tokens_of_pieces_are_scored_and_typed_as_stated() {
    let dir = folder("phi3", |json| {
        let added = json["added_tokens"].as_array_mut().unwrap();
        let last = added.last_mut().unwrap();
        last["special"] = json!(false);
    });
    without_list(dir.path());
    let json = parsed(&dir.path().join("tokenizer.json"));
    let last = json["added_tokens"].as_array().unwrap().last().unwrap();
    let text = last["content"].as_str().unwrap();
    assert!(text.starts_with("<|") && text.ends_with("|>"), "{text} looks special");
    let tokenizer =
        onboard_tokenizers::read(dir.path(), rows("phi3"), &TokenizerOptions::default()).unwrap();
    assert_eq!(row(&tokenizer, "<s>"), (-1000.0, 3));
    assert_eq!(row(&tokenizer, "</s>").0, -1000.0);
    assert_eq!(row(&tokenizer, text), (-1000.0, 4));
    onboard_tokenizers::self_check(&tokenizer, dir.path()).unwrap();
}

/// Transformers follows tokenizer.json, even if the tokenizer.model beside it asks for a space.
#[test]
fn a_blank_before_texts_is_what_tokenizer_json_says() {
    let dir = folder("llama", |json| {
        let steps = json["normalizer"]["normalizers"].as_array_mut().unwrap();
        steps.retain(|step| step["type"] != "Prepend");
        assert_eq!(steps.len(), 1);
        let steps = json["decoder"]["decoders"].as_array_mut().unwrap();
        steps.retain(|step| step["type"] != "Strip");
    });
    let tokenizer =
        onboard_tokenizers::read(dir.path(), rows("llama"), &TokenizerOptions::default()).unwrap();
    assert_eq!(tokenizer.keys.bool("tokenizer.ggml.add_space_prefix").unwrap(), Some(false));
    onboard_tokenizers::self_check(&tokenizer, dir.path()).unwrap();
}

#[test]
fn scored_pieces_are_written_and_tokenize_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (_, json) = tokenizers::seeds().into_iter().find(|(name, _)| *name == "pieces").unwrap();
    fs_err::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = onboard_tokenizers::read(dir.path(), 48, &TokenizerOptions::default()).unwrap();
    let keys = &tokenizer.keys;
    assert_eq!(keys.str("tokenizer.ggml.model").unwrap(), Some("t5"));
    assert_eq!(keys.bool("tokenizer.ggml.add_space_prefix").unwrap(), Some(true));
    assert_eq!(keys.bool("tokenizer.ggml.remove_extra_whitespaces").unwrap(), Some(true));
    assert_eq!(keys.u32("tokenizer.ggml.unknown_token_id").unwrap(), Some(0));
    let Some(Gguf::Array(map)) = keys.get("tokenizer.ggml.precompiled_charsmap") else {
        panic!("the table of replacements is written")
    };
    assert_eq!(map.len(), tokenizers::charsmap(b'q', "ss").len());
    assert_eq!(row(&tokenizer, "<unk>"), (0.0, 2));
    assert_eq!(row(&tokenizer, "<s>"), (0.0, 3));
    assert_eq!(row(&tokenizer, "<mask>"), (-1000.0, 3));
    assert_eq!(row(&tokenizer, "▁the"), (-2.625, 1));
    let texts = ["the quick he  qq aab", "世界 x zz", "a\tb? é", "", "  the the  "];
    let checked = onboard_tokenizers::check::check(&tokenizer, dir.path(), texts).unwrap();
    // The last begins with spaces, which the two are known to treat differently.
    assert_eq!((checked.strings, checked.skipped, checked.known.len()), (4, 1, 0));
    let loaded = LlamaTokenizer::new(keys).unwrap();
    assert_eq!(loaded.encode("qq the").unwrap(), loaded.encode("ssss the").unwrap());
    let words = tokenizers::words();
    fs_err::write(dir.path().join("tokenizer.json"), words.to_string()).unwrap();
    let message = onboard_tokenizers::read(dir.path(), 48, &TokenizerOptions::default())
        .unwrap_err()
        .to_string();
    assert!(message.contains("whole words") && message.contains("Unigram"), "{message}");
}

/// Returns a changed Unigram tokenizer, as a file stores it.
fn changed_pieces(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    let mut json = tokenizers::pieces();
    change(&mut json);
    fs_err::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = onboard_tokenizers::read(dir.path(), 48, &TokenizerOptions::default()).unwrap();
    (dir, tokenizer)
}

#[test]
fn blanks_stay_apart_where_no_step_merges_them() {
    let (dir, tokenizer) = changed_pieces(|json| {
        let steps = json["normalizer"]["normalizers"].as_array_mut().unwrap();
        steps.retain(|step| step["type"] != "Replace");
        assert_eq!(steps.len(), 1);
    });
    let merges = tokenizer.keys.bool("tokenizer.ggml.remove_extra_whitespaces").unwrap();
    assert_eq!((merges, &tokenizer.warnings[..]), (Some(false), &[][..]));
    let checked =
        onboard_tokenizers::check::check(&tokenizer, dir.path(), ["the  he", "a   b "]).unwrap();
    assert_eq!((checked.strings, checked.known.len()), (2, 0));
}

#[test]
fn bytes_that_the_loader_makes_unknown_are_warned_of() {
    assert_eq!(changed_pieces(|_| ()).1.warnings, [""; 0]);
    let changes: [fn(&mut Value); 2] = [
        |json| json["model"]["byte_fallback"] = true.into(),
        |json| {
            json["decoder"] = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}]});
        },
    ];
    for change in changes {
        let warnings = changed_pieces(change).1.warnings;
        assert!(
            matches!(&warnings[..], [one] if one.contains("will make the unknown token of them")),
            "{warnings:?}"
        );
    }
}

#[test]
fn texts_that_always_differ_are_noted() {
    assert!(notes_of("qwen2")[0].contains("NFC"), "{:?}", notes_of("qwen2"));
    assert_eq!(notes_of("llama3"), [""; 0]);
    let strict = notes_of("phi3");
    let strict: Vec<_> = strict.iter().filter(|note| note.contains("rstrip")).collect();
    assert!(matches!(strict[..], [note] if note.contains("has 4 with")), "{strict:?}");
    let dir = folder("llama", |json| {
        json["normalizer"] = Value::Null;
        json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    });
    let tokenizer =
        onboard_tokenizers::read(dir.path(), rows("llama"), &TokenizerOptions::default()).unwrap();
    assert!(tokenizer.notes[0].contains("begin with a blank"), "{:?}", tokenizer.notes);
    assert!(tokenizer.notes[1].contains("behind special tokens"), "{:?}", tokenizer.notes);
}

fn notes_of(name: &str) -> Vec<String> {
    read(name, &TokenizerOptions::default()).notes
}

/// The ids are those of transformers 5.23 for the same files.
#[test]
fn vocabulary_and_merges_are_a_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    vocabulary::write_vocab_and_merges(dir.path());
    let plain = [39, 68, 270, 78, 220, 271, 127, 114, 81, 75, 67, 220, 16, 17, 18, 304];
    for class in ["GPT2Tokenizer", "Qwen2Tokenizer", "CodeGenTokenizer", "GPT2TokenizerFast"] {
        write_settings(dir.path(), &json!({"tokenizer_class": class}));
        assert_eq!(ids_in(dir.path()).unwrap(), plain, "{class}");
    }
    let config = json!({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true,
        "add_prefix_space": true, "bos_token": "<s>", "unk_token": "<|x|>"});
    write_settings(dir.path(), &config);
    let around = [304, 220, 39, 68, 270, 78, 220, 271, 127, 114, 81, 75, 67, 220, 16, 17, 18, 305];
    assert_eq!(ids_in(dir.path()).unwrap(), around);
    write_settings(dir.path(), &json!({"tokenizer_class": "Qwen2Tokenizer"}));
    let tokenizer =
        onboard_tokenizers::read(dir.path(), rows("qwen2"), &TokenizerOptions::default()).unwrap();
    assert_eq!(tokenizer.pre, "qwen2");
    onboard_tokenizers::self_check(&tokenizer, dir.path()).unwrap();
    write_settings(dir.path(), &json!({"tokenizer_class": "OtherTokenizer"}));
    assert!(
        ids_in(dir.path()).unwrap_err().contains("none whose steps are known here (GPT2Tokenizer")
    );
    fs_err::write(dir.path().join("merges.txt"), "a b\nab\n").unwrap();
    write_settings(dir.path(), &json!({"tokenizer_class": "GPT2Tokenizer"}));
    assert!(ids_in(dir.path()).unwrap_err().contains("`line 2`"));
}

fn ids_in(dir: &Path) -> Result<Vec<u32>, String> {
    let read = ReferenceTokenizer::read(dir).map_err(|why| why.to_string())?;
    read.unwrap().encode("Hello  wörld 123<|endoftext|>", true).map_err(|why| why.to_string())
}
