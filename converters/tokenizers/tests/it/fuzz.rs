//! Fuzz test with damaged tokenizers: each gives an error that names the component, or tokenizes texts.
//! None panics, hangs or allocates memory that a file merely claims.

use onboard_tokenizers::ReferenceTokenizer;
use serde_json::{Value, json};

use crate::tokenizers::{charsmap, encode, pieces, seeds, words};

/// Texts that every tokenizer is tried on.
const TEXTS: [&str; 6] = [
    "",
    "the quick  qq aab!",
    " 世界 é\u{301}\n\t x",
    "<s>[MASK]<|im_end|> <mask>▁▁",
    "\u{fdfa}ﬁ™ ①Ａ",
    "a\0b\u{200b}c",
];

/// Returns the notes of a tokenizer after it has processed the texts, or its error.
fn outcome(bytes: &[u8]) -> Result<Vec<String>, String> {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("tokenizer.json"), bytes).unwrap();
    let read = ReferenceTokenizer::read(dir.path()).map_err(|why| why.to_string())?;
    let tokenizer = read.expect("the file is there");
    for text in TEXTS {
        let ids = tokenizer.encode(text, true).map_err(|why| why.to_string())?;
        assert!(ids.len() < 10_000, "{} tokens of {text:?}", ids.len());
        let back = tokenizer.decode(&ids, false).map_err(|why| why.to_string())?;
        assert!(back.len() < 1_000_000, "{} bytes of {text:?}", back.len());
    }
    let long = "ab q".repeat(1_000);
    tokenizer.encode(&long, true).map_err(|why| why.to_string())?;
    Ok(tokenizer.notes().to_vec())
}

fn of(json: &Value) -> Result<Vec<String>, String> {
    outcome(json.to_string().as_bytes())
}

/// Seeded generator (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }
}

/// Collects the places of all values in a tree, as JSON pointers. Vocabularies are mostly skipped.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter().take(40) {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(inner, &format!("{at}/{key}"), all);
            }
        }
        Value::Array(list) => {
            for (n, inner) in list.iter().take(12).enumerate() {
                places(inner, &format!("{at}/{n}"), all);
            }
        }
        _ => {}
    }
}

fn strange(dice: &mut Dice) -> Value {
    match dice.roll(16) {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(0),
        3 => json!(u64::MAX),
        4 => json!(u32::MAX),
        5 => json!(1e300),
        6 => json!(true),
        7 => json!(""),
        8 => json!("▁"),
        9 => json!("x".repeat(100_000)),
        10 => json!([]),
        11 => json!({}),
        12 => {
            json!({"type": "Sequence", "normalizers": [], "pretokenizers": [], "processors": [], "decoders": []})
        }
        13 => json!({"Regex": "(a|a)*b(?!c)"}),
        14 => json!({"String": ""}),
        _ => json!([["", 1], ["<s>", 70]]),
    }
}

fn damage(dice: &mut Dice, seeds: &[(&str, Value)], tree: &mut Value) {
    let mut pointers = Vec::new();
    places(tree, "", &mut pointers);
    let at = pointers[dice.roll(pointers.len())].clone();
    let how = dice.roll(6);
    let copy = {
        let (_, other) = &seeds[dice.roll(seeds.len())];
        let mut places_there = Vec::new();
        places(other, "", &mut places_there);
        other.pointer(&places_there[dice.roll(places_there.len())]).unwrap().clone()
    };
    let Some(value) = tree.pointer_mut(&at) else { return };
    match (how, value) {
        (1, value) => *value = copy,
        (2, Value::Object(map)) if !map.is_empty() => {
            let key = map.keys().nth(dice.roll(map.len())).unwrap().clone();
            map.remove(&key);
        }
        (2 | 3, Value::Array(list)) if !list.is_empty() => {
            let n = dice.roll(list.len());
            if dice.roll(2) == 0 {
                list.remove(n);
            } else {
                list.extend(vec![list[n].clone(); 1 + dice.roll(4)]);
            }
        }
        (4, Value::String(text)) if !text.is_empty() => {
            let mut chars: Vec<char> = text.chars().collect();
            let n = dice.roll(chars.len());
            chars[n] = ['A', '/', '=', '(', '\\', '▁', 'z', '9'][dice.roll(8)];
            *text = chars.into_iter().collect();
        }
        (5, value) => {
            *value = json!({"type": "Sequence", "normalizers": [value.clone()], "decoders": [value.clone()]});
        }
        (_, value) => *value = strange(dice),
    }
}

#[test]
fn sound_tokenizers_are_read() {
    for (name, json) in seeds() {
        of(&json).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn no_damage_to_the_tree_panics() {
    let seeds = seeds();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut read = 0;
    let mut refused = 0;
    for n in 0..3_000 {
        let (_, mut tree) = seeds[n % seeds.len()].clone();
        for _ in 0..=dice.roll(4) / 3 {
            damage(&mut dice, &seeds, &mut tree);
        }
        match of(&tree) {
            Ok(_) => read += 1,
            Err(why) => {
                assert!(!why.chars().any(char::is_control), "{why:?}");
                refused += 1;
            }
        }
    }
    assert!(read > 300 && refused > 300, "{read} read, {refused} refused");
}

#[test]
fn no_damage_to_the_bytes_panics() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let seeds: Vec<Vec<u8>> =
        seeds().iter().map(|(_, json)| json.to_string().into_bytes()).collect();
    for n in 0..2_000 {
        let mut bytes = seeds[n % seeds.len()].clone();
        for _ in 0..=dice.roll(3) {
            let at = dice.roll(bytes.len());
            match dice.roll(4) {
                0 => bytes[at] = b"{}[],:\"0e-\\u\xff\0"[dice.roll(14)],
                1 => bytes.truncate(at.max(1)),
                2 => drop(bytes.drain(at..(at + dice.roll(40)).min(bytes.len()))),
                _ => {
                    let end = (at + dice.roll(200)).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        let _error_or_notes = outcome(&bytes);
    }
}

/// A file cut at any byte is an error with a message.
#[test]
fn cut_files_are_refused() {
    for (name, json) in seeds() {
        let bytes = json.to_string().into_bytes();
        for cut in (0..bytes.len()).step_by(bytes.len() / 200) {
            assert!(outcome(&bytes[..cut]).is_err(), "{name} cut at {cut}");
        }
    }
}

fn with(mut json: Value, at: &str, value: Value) -> Value {
    *json.pointer_mut(at).expect("the place is there") = value;
    json
}

#[test]
fn the_component_is_named() {
    let mut huge = charsmap(b'q', "ss");
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut outside = charsmap(b'q', "ss");
    outside[7] = 0xff;
    let grows = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(1000)});
    let nested = (0..60).fold(
        json!({"type": "NFC"}),
        |inner: Value, _| json!({"type": "Sequence", "normalizers": [inner]}),
    );
    let special = json!([{"SpecialToken": {"id": "<none>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let cases: Vec<(Value, &[&str])> = vec![
        (
            with(pieces(), "/decoder", json!({"type": "Metaspa"})),
            &["`decoder`", "its type is `Metaspa`"],
        ),
        (
            with(
                pieces(),
                "/decoder",
                json!({"type": "Sequence", "decoders": [{"type": "Strip"}]}),
            ),
            &["`decoder`", "content"],
        ),
        (with(pieces(), "/decoder", json!([1])), &["`decoder`", "not an object"]),
        (charsmap_with(&huge), &["`normalizer.normalizers[0]`", "4294967295 bytes"]),
        (charsmap_with(&outside), &["`normalizer.normalizers[0]`", "a unit leads to"]),
        (charsmap_with(b"abc"), &["`normalizer.normalizers[0]`", "shorter than its length"]),
        (
            with(pieces(), "/normalizer/normalizers/0/precompiled_charsmap", "%%".into()),
            &["not base64"],
        ),
        (
            with_template(special.clone(), json!({})),
            &["`post_processor`", "names `<none>`, which `special_tokens` does not list"],
        ),
        (
            with_template(
                special,
                json!({"<none>": {"id": "<none>", "ids": [9999], "tokens": ["<none>"]}}),
            ),
            &["has id 9999, which no token has"],
        ),
        (
            with_template(json!([{"Sequence": {"id": "B", "type_id": 0}}]), json!({})),
            &["other than text A"],
        ),
        (
            with(words(), "/post_processor/sep", json!(["[SEP]", 4000])),
            &["`post_processor`", "id 4000"],
        ),
        (
            with(
                pieces(),
                "/normalizer",
                json!({"type": "Sequence", "normalizers": [grows, grows]}),
            ),
            &["`normalizer`", "bytes of one"],
        ),
        (
            with(pieces(), "/normalizer", nested),
            &["`normalizer.normalizers[0]", "8 sequences in another"],
        ),
        (
            with(pieces(), "/pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            &["`pre_tokenizer`", "`length` is 0"],
        ),
        (
            with(
                pieces(),
                "/pre_tokenizer",
                json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
            ),
            &["`pre_tokenizer`"],
        ),
        (
            with(words(), "/model/max_input_chars_per_word", json!(u64::MAX)),
            &["`model.max_input_chars_per_word`", "at most 1000"],
        ),
        (with(words(), "/model/type", "Bigram".into()), &["kind Bigram", "expected BPE"]),
        (
            with(pieces(), "/model/vocab/5/0", "x".repeat(1 << 20).into()),
            &["`model.vocab`", "more than 2048"],
        ),
        (with(pieces(), "/model/unk_id", json!(4000)), &["`model`"]),
        (
            with(pieces(), "/added_tokens/1/id", json!(77)),
            &["`added_tokens[1]`", "has id 77", "numbers it 39"],
        ),
    ];
    for (json, expected) in cases {
        let message = of(&json).unwrap_err();
        for part in expected {
            assert!(message.contains(part), "{message}\n    lacks {part}");
        }
    }
}

fn with_template(single: Value, listed: Value) -> Value {
    let json = with(pieces(), "/post_processor/single", single);
    with(json, "/post_processor/special_tokens", listed)
}

fn charsmap_with(bytes: &[u8]) -> Value {
    with(pieces(), "/normalizer/normalizers/0/precompiled_charsmap", encode(bytes).into())
}

/// Whole texts are read, whatever lengths the file sets, and a note is returned.
#[test]
fn truncation_and_padding_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut json = words();
    json["padding"]["strategy"]["Fixed"] = json!(1_u64 << 40);
    fs_err::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = ReferenceTokenizer::read(dir.path()).unwrap().unwrap();
    let ids = tokenizer.encode(&"the ".repeat(50), true).unwrap();
    assert_eq!(ids.len(), 52);
    assert_eq!(tokenizer.notes().len(), 1);
    assert!(tokenizer.notes()[0].contains("sets truncation and padding"));
}

/// Ids and the text that they decode to.
type Made = (&'static [u32], &'static str);

/// The ids and texts are those of tokenizers 0.23.3 for Python, which has no checks of this kind.
#[test]
fn checked_tokenizers_make_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let texts = ["the quick  qq aab!", " 世界 é x", "<s>a<mask> the"];
    let expected: [(Value, [Made; 3]); 2] = [
        (
            pieces(),
            [
                (&[1, 4, 3, 7, 33, 21, 15, 23, 3, 7, 7, 5, 8, 0], "the ssuick ssss aab<unk>"),
                (&[1, 3, 11, 3, 10, 3, 36], "世界 é x"),
                (&[1, 1, 5, 0, 25, 13, 31, 23, 0, 4], "a<unk>mask<unk> the"),
            ],
        ),
        (
            words(),
            [
                (&[2, 4, 5, 1, 1, 10, 3], "the quick [UNK] [UNK]!"),
                (&[2, 8, 9, 15, 34, 3], "世 界 e x"),
                (&[2, 1, 29, 1, 11, 1, 1, 1, 4, 3], "[UNK] s [UNK] a [UNK] [UNK] [UNK] the"),
            ],
        ),
    ];
    for (json, expected) in expected {
        fs_err::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let tokenizer = ReferenceTokenizer::read(dir.path()).unwrap().unwrap();
        for (text, (ids, back)) in texts.into_iter().zip(expected) {
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text}");
            assert_eq!(tokenizer.decode(ids, true).unwrap(), back, "{text}");
        }
    }
}

/// A text that grows under the limit of the steps is measured before the library normalizes it.
#[test]
fn growth_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let grows = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(4000)});
    let json = with(pieces(), "/normalizer", grows);
    fs_err::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = ReferenceTokenizer::read(dir.path()).unwrap().unwrap();
    assert_eq!(tokenizer.encode(&"b".repeat(100_000), false).unwrap().len(), 100_001);
    let message = tokenizer.encode(&"a".repeat(100_000), false).unwrap_err().to_string();
    assert!(
        message.contains("`normalizer`") && message.contains("more than 16 for each"),
        "{message}"
    );
}
