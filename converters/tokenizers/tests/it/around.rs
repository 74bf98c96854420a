//! Tests of special tokens around texts: by a checkpoint's tokenizer, and by the keys written for it.

use std::path::{Path, PathBuf};

use formats::gguf::Metadata;
use onboard_tokenizers::check::LlamaTokenizer;
use onboard_tokenizers::{Mismatch, ReferenceTokenizer, Tokenizer, TokenizerOptions};
use serde_json::{Value, json};

use crate::{tokenizers, vocabulary};

const BOS: &str = "tokenizer.ggml.add_bos_token";
const EOS: &str = "tokenizer.ggml.add_eos_token";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

/// Returns the rows of the embedding, from wherever the config has them.
fn rows(dir: &Path) -> usize {
    fn find(value: &Value) -> Option<usize> {
        let map = value.as_object()?;
        let here = map.get("vocab_size").and_then(Value::as_u64);
        here.map(|n| n as usize).or_else(|| map.values().find_map(find))
    }
    find(&parsed(&dir.join("config.json"))).unwrap()
}

fn read(dir: &Path, identity: bool) -> Tokenizer {
    let options = TokenizerOptions { identity, ..TokenizerOptions::default() };
    onboard_tokenizers::read(dir, rows(dir), &options)
        .unwrap_or_else(|why| panic!("{}: {why}", dir.display()))
}

/// Returns the tokens of a text by the folder, and by the keys.
fn both(dir: &Path, keys: &Metadata, text: &str) -> (Vec<u32>, Vec<u32>) {
    let reference = ReferenceTokenizer::read(dir).unwrap().unwrap();
    (
        reference.encode(text, true).unwrap(),
        LlamaTokenizer::new(keys).unwrap().prompt(text).unwrap(),
    )
}

fn adds(keys: &Metadata) -> (Option<bool>, Option<bool>) {
    (keys.bool(BOS).unwrap(), keys.bool(EOS).unwrap())
}

/// Returns a folder with a tokenizer.json and settings, and a config with this many rows.
fn folder(json: &Value, settings: &Value, rows: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", json);
    write(dir.path(), "tokenizer_config.json", settings);
    write(dir.path(), "config.json", &json!({"vocab_size": rows}));
    dir
}

fn write(dir: &Path, name: &str, value: &Value) {
    fs_err::write(dir.join(name), value.to_string()).unwrap();
}

/// Returns a template with these tokens before and after a text.
fn template(before: &[(&str, u32)], after: &[(&str, u32)]) -> Value {
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let steps = before.iter().map(special_step).chain([text]).chain(after.iter().map(special_step));
    let mut listed = serde_json::Map::new();
    for (text, id) in before.iter().chain(after) {
        listed.insert((*text).into(), json!({"id": text, "ids": [id], "tokens": [text]}));
    }
    json!({"type": "TemplateProcessing", "single": steps.collect::<Vec<_>>(),
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": listed})
}

fn special_step((text, _): &(&str, u32)) -> Value {
    json!({"SpecialToken": {"id": text, "type_id": 0}})
}

/// Returns a Unigram tokenizer with another post-processor.
fn pieces(post: Value) -> Value {
    let mut seeds = tokenizers::seeds().into_iter();
    let (_, mut json) = seeds.find(|(name, _)| *name == "pieces").unwrap();
    let ends = json!({"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    json["added_tokens"].as_array_mut().unwrap().insert(1, ends);
    json["post_processor"] = post;
    json
}

const SETTINGS: &str = r#"{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}"#;

fn settings() -> Value {
    serde_json::from_str(SETTINGS).unwrap()
}

/// Their post-processors are templates of only the text, while their config names a BOS token.
#[test]
fn nothing_stands_before_texts_where_the_template_puts_nothing() {
    for name in ["phi3", "phimoe"] {
        let dir = fixtures().join(name);
        let tokenizer = read(&dir, false);
        assert_eq!(adds(&tokenizer.keys), (Some(false), Some(false)), "{name}");
        assert!(tokenizer.around, "{name}");
        let (theirs, ours) = both(&dir, &tokenizer.keys, "Hi there");
        assert_eq!((theirs[0], ours[0]), (290, 290), "{name}");
    }
}

#[test]
fn scored_pieces_say_what_stands_around_texts() {
    let begin = ("<s>", 1);
    let end = ("</s>", 2);
    let cases = [
        (Value::Null, false, false),
        (template(&[begin], &[]), true, false),
        (template(&[], &[end]), false, true),
        (template(&[begin], &[end]), true, true),
        (json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}), true, true),
    ];
    for (post, bos, eos) in cases {
        let dir = folder(&pieces(post.clone()), &settings(), 48);
        let tokenizer = read(dir.path(), false);
        assert_eq!(adds(&tokenizer.keys), (Some(bos), Some(eos)), "{post}");
        assert!(tokenizer.around, "{post}: {:?}", tokenizer.warnings);
        for text in ["the quick", "qq the a", "x"] {
            let (theirs, ours) = both(dir.path(), &tokenizer.keys, text);
            assert_eq!(theirs, ours, "{post}");
        }
        onboard_tokenizers::check::check(&tokenizer, dir.path(), ["the quick", "a b"]).unwrap();
    }
}

/// Transformers 5.23 ignores both settings of the config beside a tokenizer.json, for every class.
#[test]
fn settings_beside_a_tokenizer_json_are_not_followed() {
    for name in ["llama", "qwen2", "gpt2"] {
        let mut json = parsed(&fixtures().join(name).join("tokenizer.json"));
        json["post_processor"] = Value::Null;
        for class in ["PreTrainedTokenizerFast", "LlamaTokenizer", "GPT2TokenizerFast"] {
            let mut config = parsed(&fixtures().join(name).join("tokenizer_config.json"));
            config["tokenizer_class"] = class.into();
            config["add_bos_token"] = true.into();
            config["add_eos_token"] = true.into();
            let dir = folder(&json, &config, rows(&fixtures().join(name)));
            let tokenizer = read(dir.path(), false);
            assert_eq!(adds(&tokenizer.keys), (Some(false), Some(false)), "{name} {class}");
            for setting in ["`add_bos_token`", "`add_eos_token`"] {
                assert!(
                    tokenizer.warnings.iter().any(|warning: &String| warning.starts_with(setting)),
                    "{name}: {:?}",
                    tokenizer.warnings
                );
            }
            let (theirs, ours) = both(dir.path(), &tokenizer.keys, "Hi there");
            assert_eq!(theirs, ours, "{name} {class}");
        }
    }
}

/// The ids are those of transformers 5.23 for the same files.
#[test]
fn settings_beside_a_vocabulary_and_merges_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    vocabulary::write_vocab_and_merges(dir.path());
    write(dir.path(), "config.json", &json!({"vocab_size": rows(&fixtures().join("qwen2"))}));
    let text = [39, 72];
    for class in ["GPT2Tokenizer", "Qwen2Tokenizer", "CodeGenTokenizer"] {
        for (bos, eos) in [(false, false), (true, false), (false, true), (true, true)] {
            let config = json!({"tokenizer_class": class, "bos_token": "<|B|>", "eos_token": "<|E|>",
                "add_bos_token": bos, "add_eos_token": eos});
            write(dir.path(), "tokenizer_config.json", &config);
            let tokenizer = read(dir.path(), false);
            let (theirs, ours) = both(dir.path(), &tokenizer.keys, "Hi");
            let before: &[u32] = if bos { &[304] } else { &[] };
            let after: &[u32] = if eos { &[305] } else { &[] };
            assert_eq!(theirs, [before, &text, after].concat(), "{class} {bos} {eos}");
            assert_eq!(ours, theirs, "{class} {bos} {eos}");
        }
    }
    // A class without a BOS token has none to add.
    let config = json!({"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true});
    write(dir.path(), "tokenizer_config.json", &config);
    let tokenizer = read(dir.path(), false);
    assert_eq!(both(dir.path(), &tokenizer.keys, "Hi"), (text.to_vec(), text.to_vec()));
}

/// By `llama_vocab::impl::load`: the tokens that a kind of tokenizer adds, and its default ids.
#[test]
fn what_a_file_does_not_say_is_read_by_kind() {
    let scores = keys_of_fixture("gemma2");
    assert_eq!(tokens_around(&scores), (vec![2], vec![]));
    assert_eq!(tokens_around(&without_ids(&scores)), (vec![1], vec![]));

    let dir = folder(&pieces(Value::Null), &settings(), 48);
    let likeliest = without_flags(&read(dir.path(), false).keys);
    assert_eq!(tokens_around(&likeliest), (vec![], vec![2]));
    assert_eq!(tokens_around(&without_ids(&likeliest)), (vec![], vec![1]));

    for (pre, first) in [
        ("llama-bpe", Some(304)),
        ("tekken", Some(304)),
        ("chameleon", Some(304)),
        ("glm4", None),
        ("youtu", None),
        ("qwen2", None),
        ("gpt-2", None),
    ] {
        let mut keys = keys_of_fixture("llama3");
        keys.set("tokenizer.ggml.pre", pre);
        assert_eq!(tokens_around(&keys), (Vec::from_iter(first), vec![]), "{pre}");
        let id = first.map(|_| 11);
        assert_eq!(tokens_around(&without_ids(&keys)), (Vec::from_iter(id), vec![]), "{pre}");
    }
}

fn without_flags(keys: &Metadata) -> Metadata {
    let mut keys = keys.clone();
    keys.remove(BOS);
    keys.remove(EOS);
    keys
}

fn tokens_around(keys: &Metadata) -> (Vec<u32>, Vec<u32>) {
    let loaded = LlamaTokenizer::new(keys).unwrap();
    let plain = loaded.encode("the").unwrap();
    let prompt = loaded.prompt("the").unwrap();
    let at = prompt.windows(plain.len()).position(|part| part == plain).unwrap();
    (prompt[..at].to_vec(), prompt[at + plain.len()..].to_vec())
}

fn without_ids(keys: &Metadata) -> Metadata {
    let mut keys = keys.clone();
    for id in ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"] {
        keys.remove(id);
    }
    keys
}

fn keys_of_fixture(name: &str) -> Metadata {
    without_flags(&read(&fixtures().join(name), false).keys)
}

#[test]
fn what_a_file_cannot_say_is_warned_of() {
    let begin = ("<s>", 1);
    let end = ("</s>", 2);
    let mask = ("<mask>", 39);
    let cases = [
        (template(&[begin, mask], &[]), "`<s>` `<mask>` before and nothing behind every text"),
        (template(&[mask], &[]), "`<mask>` before and nothing behind every text"),
        (template(&[begin], &[mask, end]), "`<s>` before and `<mask>` `</s>` behind every text"),
        (template(&[begin], &[begin, begin]), "`<s>` before and `<s>` `<s>` behind every text"),
    ];
    for (post, says) in cases {
        let dir = folder(&pieces(post), &settings(), 48);
        let tokenizer = read(dir.path(), false);
        let told = tokenizer.warnings.iter().any(|warning| warning.contains(says));
        assert!(told && !tokenizer.around, "{says}: {:?}", tokenizer.warnings);
        onboard_tokenizers::check::check(&tokenizer, dir.path(), ["the quick", "a b"]).unwrap();
    }
    let tokenizer = read(&fixtures().join("glm4"), false);
    let says = "`[gMASK]` `<sop>` before";
    assert!(
        tokenizer.warnings.iter().any(|warning| warning.contains(says)),
        "{:?}",
        tokenizer.warnings
    );
}

#[test]
fn a_token_that_no_file_names_gets_its_role_by_its_place() {
    let dir = folder(&pieces(template(&[("<s>", 1)], &[("</s>", 2)])), &json!({}), 48);
    fs_err::remove_file(dir.path().join("tokenizer_config.json")).unwrap();
    let tokenizer = read(dir.path(), false);
    assert_eq!(tokenizer.keys.u32("tokenizer.ggml.bos_token_id").unwrap(), Some(1));
    assert_eq!(tokenizer.keys.u32("tokenizer.ggml.eos_token_id").unwrap(), Some(2));
    let (theirs, ours) = both(dir.path(), &tokenizer.keys, "the quick");
    assert!(tokenizer.around && theirs == ours && ours[0] == 1, "{ours:?}");
}

#[test]
fn keys_of_the_converter_stay_as_they_are_with_a_note() {
    let tokenizer = read(&fixtures().join("phi3"), true);
    assert_eq!(adds(&tokenizer.keys), (None, None));
    let says = "nothing before and nothing behind every text; by the keys of the file it will be `<s>` before";
    assert!(tokenizer.notes.iter().any(|note| note.contains(says)), "{:?}", tokenizer.notes);
    assert!(!tokenizer.around);
    onboard_tokenizers::self_check(&tokenizer, &fixtures().join("phi3")).unwrap();
    let tokenizer = read(&fixtures().join("llama3"), true);
    assert_eq!(adds(&tokenizer.keys), (Some(true), Some(false)));
    assert!(tokenizer.around && tokenizer.notes.is_empty(), "{:?}", tokenizer.notes);
}

#[test]
fn the_check_sees_what_stands_around_texts() {
    let dir = fixtures().join("llama3");
    for (key, value) in [(BOS, false), (EOS, true)] {
        let mut tokenizer = read(&dir, false);
        tokenizer.keys.set(key, value);
        let outcome = onboard_tokenizers::self_check(&tokenizer, &dir);
        assert!(matches!(outcome, Err(Mismatch::Around { .. })), "{key}: {outcome:?}");
    }
}

/// The answers are those of transformers 5.23 for a tokenizer.model alone.
#[test]
fn a_model_of_pieces_alone_goes_by_its_settings() {
    let class = "LlamaTokenizer";
    let silent = pieces_alone(&json!({"tokenizer_class": class}));
    assert!(adds(&silent.keys) == (Some(false), Some(false)) && is_unsure(&silent));
    let stated = pieces_alone(
        &json!({"tokenizer_class": class, "add_bos_token": true, "add_eos_token": true}),
    );
    assert!(adds(&stated.keys) == (Some(true), Some(true)) && !is_unsure(&stated));
    let stated = pieces_alone(&json!({"tokenizer_class": class, "add_bos_token": false}));
    assert!(adds(&stated.keys) == (Some(false), Some(false)) && !is_unsure(&stated));
    let other = pieces_alone(&json!({"tokenizer_class": "CodeLlamaTokenizer"}));
    assert!(adds(&other.keys) == (Some(true), Some(false)) && !is_unsure(&other));
}

fn is_unsure(tokenizer: &Tokenizer) -> bool {
    tokenizer.warnings.iter().any(|text| text.contains("does not say"))
}

fn pieces_alone(config: &Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.model", "config.json"] {
        fs_err::copy(fixtures().join("llama").join(name), dir.path().join(name)).unwrap();
    }
    fs_err::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    read(dir.path(), false)
}
