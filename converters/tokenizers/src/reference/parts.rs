//! Components of a tokenizer.json, each checked against the library's use of it.
//!
//! A component is rebuilt from the fields of its type, so the library sees nothing unchecked.

use indexmap::IndexSet;
use serde_json::{Map, Value};

use super::{Charsmap, base64};
use formats::shown;

/// Component of a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComponentRole {
    Normalizer,
    PreTokenizer,
    PostProcessor,
    Decoder,
}

/// Limits that all components share.
pub(super) struct Budget<'a> {
    ids: &'a IndexSet<u64>,
    steps: usize,
    regex: usize,
}

/// Maximum nesting of sequences. Deserializing one takes a large stack frame.
const DEEPEST: usize = 8;
/// Maximum number of steps in all components.
const STEPS: usize = 256;
/// Maximum length of a text in a step, in bytes.
const TEXT: usize = 4096;
/// Maximum total bytes of regular expressions; each may take 10 MB when compiled.
const REGEX: usize = 1 << 16;
/// Maximum number of regular expressions.
const EXPRESSIONS: usize = 64;
/// Maximum number of tokens that a post-processor adds around texts.
const AROUND: usize = 64;
/// Maximum growth of one byte through a chain of steps, by the steps alone.
const GROWTH: f64 = 8192.0;

type ComponentFault = (String, String);

/// Type name with its fields.
type TypeFields = (&'static str, &'static [&'static str]);

/// Types of each component.
const TYPES: [(ComponentRole, &[TypeFields]); 4] = [
    (
        ComponentRole::Normalizer,
        &[
            (
                "BertNormalizer",
                &["clean_text", "handle_chinese_chars", "strip_accents", "lowercase"],
            ),
            ("Strip", &["strip_left", "strip_right"]),
            ("StripAccents", &[]),
            ("NFC", &[]),
            ("NFD", &[]),
            ("NFKC", &[]),
            ("NFKD", &[]),
            ("Sequence", &["normalizers"]),
            ("Lowercase", &[]),
            ("Nmt", &[]),
            ("Precompiled", &["precompiled_charsmap"]),
            ("Replace", &["pattern", "content"]),
            ("Prepend", &["prepend"]),
            ("ByteLevel", &[]),
        ],
    ),
    (
        ComponentRole::PreTokenizer,
        &[
            ("BertPreTokenizer", &[]),
            ("ByteLevel", &["add_prefix_space", "trim_offsets", "use_regex"]),
            ("CharDelimiterSplit", &["delimiter"]),
            (
                "Metaspace",
                &["replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"],
            ),
            ("Whitespace", &[]),
            ("WhitespaceSplit", &[]),
            ("Sequence", &["pretokenizers"]),
            ("Split", &["pattern", "behavior", "invert"]),
            ("Punctuation", &["behavior"]),
            ("Digits", &["individual_digits"]),
            ("UnicodeScripts", &[]),
            ("FixedLength", &["length"]),
        ],
    ),
    (
        ComponentRole::PostProcessor,
        &[
            ("RobertaProcessing", &["sep", "cls", "trim_offsets", "add_prefix_space"]),
            ("BertProcessing", &["sep", "cls"]),
            ("ByteLevel", &["add_prefix_space", "trim_offsets", "use_regex"]),
            ("TemplateProcessing", &["single", "pair", "special_tokens"]),
            ("Sequence", &["processors"]),
        ],
    ),
    (
        ComponentRole::Decoder,
        &[
            ("BPEDecoder", &["suffix"]),
            ("ByteLevel", &["add_prefix_space", "trim_offsets", "use_regex"]),
            ("WordPiece", &["prefix", "cleanup"]),
            (
                "Metaspace",
                &["replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"],
            ),
            ("CTC", &["pad_token", "word_delimiter_token", "cleanup"]),
            ("Sequence", &["decoders"]),
            ("Replace", &["pattern", "content"]),
            ("Fuse", &[]),
            ("Strip", &["content", "start", "stop"]),
            ("ByteFallback", &[]),
        ],
    ),
];

impl ComponentRole {
    /// Returns the key of the component.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Normalizer => "normalizer",
            Self::PreTokenizer => "pre_tokenizer",
            Self::PostProcessor => "post_processor",
            Self::Decoder => "decoder",
        }
    }

    /// Returns the key of the steps of a sequence.
    fn steps(self) -> &'static str {
        match self {
            Self::Normalizer => "normalizers",
            Self::PreTokenizer => "pretokenizers",
            Self::PostProcessor => "processors",
            Self::Decoder => "decoders",
        }
    }
}

impl<'a> Budget<'a> {
    pub(super) fn new(ids: &'a IndexSet<u64>) -> Self {
        Self { ids, steps: 0, regex: 0 }
    }
}

/// Checks a component. Returns its known fields alone, and the maximum growth of a byte in it. The error is
/// the place and the reason.
pub(super) fn check(
    role: ComponentRole,
    value: &Value,
    budget: &mut Budget<'_>,
) -> Result<(Value, f64), ComponentFault> {
    if value.is_null() {
        return Ok((Value::Null, 1.0));
    }
    let (fields, growth) = step(role, role.key(), value, 0, budget)?;
    if growth > GROWTH {
        let why = format!("its steps may make {growth:.0} bytes of one, more than {GROWTH:.0}");
        return Err((role.key().to_owned(), why));
    }
    Ok((fields, growth))
}

fn step(
    role: ComponentRole,
    at: &str,
    value: &Value,
    depth: usize,
    budget: &mut Budget<'_>,
) -> Result<(Value, f64), ComponentFault> {
    budget.steps += 1;
    if budget.steps > STEPS || depth > DEEPEST {
        return Err(fault(
            at,
            format!("there are more than {STEPS} steps, or {DEEPEST} sequences in another"),
        ));
    }
    let Some(map) = value.as_object() else { return Err(fault(at, "it is not an object".into())) };
    let known = TYPES.iter().find(|(known, _)| *known == role).map_or(&[][..], |(_, types)| types);
    let name = map.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some((name, fields)) = known.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        return Err(fault(
            at,
            format!("its type is `{}`; expected {}", shown(name), names.join(", ")),
        ));
    };
    let mut rebuilt = Map::from_iter([("type".to_owned(), Value::from(*name))]);
    for field in *fields {
        if let Some(value) = map.get(*field) {
            rebuilt.insert((*field).to_owned(), value.clone());
        }
    }
    check_texts(&rebuilt).map_err(|why| fault(at, why))?;
    let mut growth = match *name {
        "Sequence" => {
            let Some(list) = map.get(role.steps()).and_then(Value::as_array) else {
                return Err(fault(at, format!("`{}` is not a list", role.steps())));
            };
            let mut steps = Vec::with_capacity(list.len());
            let mut growth = 1.0;
            for (n, inner) in list.iter().enumerate() {
                let at = format!("{at}.{}[{n}]", role.steps());
                let (inner, grown) = step(role, &at, inner, depth + 1, budget)?;
                growth *= grown;
                steps.push(inner);
            }
            rebuilt.insert(role.steps().to_owned(), Value::Array(steps));
            growth
        }
        "Replace" | "Split" => {
            let pattern = pattern(map.get("pattern"), budget).map_err(|why| fault(at, why))?;
            // An expression may match every byte, and the empty text before it.
            let content = text_of(&rebuilt, "content").len() as f64;
            if name == &"Split" {
                1.0
            } else if pattern > 0 {
                (content / pattern as f64).max(1.0)
            } else {
                content + 1.0
            }
        }
        "Precompiled" => {
            let bytes = base64::decode(text_of(&rebuilt, "precompiled_charsmap"));
            let Some(bytes) = bytes else {
                return Err(fault(at, "`precompiled_charsmap` is not base64".into()));
            };
            match Charsmap::parse(&bytes) {
                Ok(map) => map.growth,
                Err(why) => {
                    return Err(fault(at, format!("`precompiled_charsmap` is damaged: {why}")));
                }
            }
        }
        "Prepend" => 1.0 + text_of(&rebuilt, "prepend").len() as f64,
        "NFKC" | "NFKD" | "BertNormalizer" => 12.0,
        "NFC" | "NFD" => 4.0,
        "Lowercase" | "ByteLevel" | "BPEDecoder" | "CTC" | "WordPiece" => 2.0,
        "Metaspace" => 5.0,
        _ => 1.0,
    };
    match *name {
        "FixedLength" if rebuilt.get("length").is_some_and(|length| length.as_u64() == Some(0)) => {
            return Err(fault(at, "`length` is 0; expected at least 1".into()));
        }
        "TemplateProcessing" => template(&rebuilt, budget).map_err(|why| fault(at, why))?,
        "RobertaProcessing" | "BertProcessing" => {
            for key in ["sep", "cls"] {
                let id = rebuilt.get(key).and_then(|pair| pair.get(1)).and_then(Value::as_u64);
                listed(key, id, budget).map_err(|why| fault(at, why))?;
            }
        }
        _ => {}
    }
    if !growth.is_finite() || growth < 1.0 {
        growth = GROWTH * 2.0;
    }
    Ok((Value::Object(rebuilt), growth))
}

fn fault(at: &str, why: String) -> ComponentFault {
    (at.to_owned(), why)
}

/// Returns the text of a field; empty if it is missing.
fn text_of<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Checks the lengths of the texts of a step.
fn check_texts(fields: &Map<String, Value>) -> Result<(), String> {
    for field in ["content", "prepend", "suffix", "prefix", "pad_token", "word_delimiter_token"] {
        let length = text_of(fields, field).len();
        if length > TEXT {
            return Err(format!("`{field}` has {length} bytes, more than {TEXT}"));
        }
    }
    Ok(())
}

/// Checks a pattern. Returns the length of a plain text, or 0 for an expression.
fn pattern(value: Option<&Value>, budget: &mut Budget<'_>) -> Result<usize, String> {
    let map = value.and_then(Value::as_object).filter(|map| map.len() == 1);
    let one = map.and_then(|map| map.iter().next());
    let Some((kind @ ("String" | "Regex"), Value::String(text))) =
        one.map(|(kind, text)| (kind.as_str(), text))
    else {
        return Err("`pattern` is not an object with one text, `String` or `Regex`".into());
    };
    budget.regex += text.len() + REGEX / EXPRESSIONS;
    if text.len() > TEXT || budget.regex > REGEX * 2 {
        return Err(format!(
            "`pattern` has {} bytes, and at most {TEXT} are supported, {EXPRESSIONS} patterns in all",
            text.len()
        ));
    }
    Ok(if kind == "String" { text.len() } else { 0 })
}

fn listed(name: &str, id: Option<u64>, budget: &Budget<'_>) -> Result<(), String> {
    match id {
        Some(id) if budget.ids.contains(&id) => Ok(()),
        Some(id) => Err(format!("`{name}` has id {id}, which no token has")),
        None => Err(format!("`{name}` has no id")),
    }
}

/// Checks that every special token of a template is listed with its tokens.
fn template(map: &Map<String, Value>, budget: &Budget<'_>) -> Result<(), String> {
    let tokens = map.get("special_tokens").and_then(Value::as_object);
    let tokens = tokens.ok_or("`special_tokens` is not an object")?;
    for key in ["single", "pair"] {
        let steps = map.get(key).and_then(Value::as_array);
        let steps = steps.ok_or_else(|| format!("`{key}` is not a list"))?;
        let mut count = 0;
        for step in steps {
            count += 1;
            let Some(special) = step.get("SpecialToken") else {
                // A second text is never passed, so a single template cannot place one.
                let text = step.get("Sequence").and_then(|text| text.get("id"));
                if key == "single" && text.and_then(Value::as_str) != Some("A") {
                    return Err("`single` places something other than text A".into());
                }
                continue;
            };
            let name = special.get("id").and_then(Value::as_str).unwrap_or_default();
            let token = tokens.get(name).ok_or_else(|| {
                format!("`{key}` names `{}`, which `special_tokens` does not list", shown(name))
            })?;
            let ids = token.get("ids").and_then(Value::as_array);
            let texts = token.get("tokens").and_then(Value::as_array);
            let (Some(ids), Some(texts)) = (ids, texts) else {
                return Err(format!("`{}` has no lists `ids` and `tokens`", shown(name)));
            };
            if ids.len() != texts.len() {
                let ids = ids.len();
                let texts = texts.len();
                return Err(format!("`{}` has {ids} ids and {texts} tokens", shown(name)));
            }
            for id in ids {
                listed(&shown(name), id.as_u64(), budget)?;
            }
            count += ids.len();
        }
        if count > AROUND {
            return Err(format!("`{key}` puts {count} tokens around a text, more than {AROUND}"));
        }
    }
    Ok(())
}
