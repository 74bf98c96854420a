//! Kinds of files that are attacked: their seeds, their damaged parts, and their judges.

use crate::case::Case;
use crate::judge::{Judged, Trial, answers, conversions, dumps, files, models, texts};
use crate::random::Random;
use crate::seeds::{self, Sources};
use crate::{bytes, formats, json, words};

/// Kind of case.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Share of the batches.
    pub(crate) weight: usize,
    /// Number of cases per batch: fewer if one takes long.
    pub(crate) batch: u64,
    /// Mebibytes that a case may hold beyond four times its input: specs, and the program's own buffers.
    pub(crate) spare: u64,
    pub(crate) seeds: fn(&Sources) -> std::io::Result<Vec<Case>>,
    /// Suffixes of the names of files that are damaged; empty if the words are.
    pub(crate) damaged: &'static [&'static str],
    pub(crate) judge: fn(&Trial<'_>) -> Judged,
}

/// All kinds.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        name: "safetensors",
        weight: 12,
        batch: 100,
        spare: 4,
        seeds: seeds::safetensors,
        damaged: &[".safetensors"],
        judge: files::safetensors,
    },
    Kind {
        name: "index",
        weight: 6,
        batch: 100,
        spare: 4,
        seeds: seeds::shards,
        damaged: &[".index.json", ".index.json", ".safetensors"],
        judge: files::checkpoint,
    },
    Kind {
        name: "gguf",
        weight: 12,
        batch: 100,
        spare: 32,
        seeds: seeds::gguf,
        damaged: &[".gguf"],
        judge: files::gguf,
    },
    Kind {
        name: "set",
        weight: 6,
        batch: 50,
        spare: 32,
        seeds: seeds::sets,
        damaged: &[".gguf", ".json", ".safetensors"],
        judge: files::set,
    },
    Kind {
        name: "gguf-model",
        weight: 5,
        batch: 20,
        spare: 128,
        seeds: seeds::gguf_models,
        damaged: &[".gguf"],
        judge: models::gguf,
    },
    Kind {
        name: "config",
        weight: 12,
        batch: 50,
        spare: 128,
        seeds: seeds::configs,
        damaged: &["config.json"],
        judge: models::config,
    },
    Kind {
        name: "quantization",
        weight: 8,
        batch: 40,
        spare: 128,
        seeds: seeds::quantized,
        damaged: &["config.json", "config.json", ".safetensors"],
        judge: models::quantization,
    },
    Kind {
        name: "spec",
        weight: 12,
        batch: 50,
        spare: 128,
        seeds: seeds::specs,
        damaged: &[".yaml"],
        judge: models::spec,
    },
    Kind {
        name: "set-override",
        weight: 8,
        batch: 50,
        spare: 128,
        seeds: seeds::overrides,
        damaged: &[],
        judge: models::set,
    },
    Kind {
        name: "tokenizer-bytes",
        weight: 4,
        batch: 20,
        spare: 128,
        seeds: seeds::byte_tokenizers,
        damaged: &["tokenizer.json"],
        judge: texts::tokenizer,
    },
    Kind {
        name: "tokenizer-pieces",
        weight: 4,
        batch: 20,
        spare: 128,
        seeds: seeds::piece_tokenizers,
        damaged: &["tokenizer.json"],
        judge: texts::tokenizer,
    },
    Kind {
        name: "tokenizer-unigram",
        weight: 4,
        batch: 20,
        spare: 128,
        seeds: seeds::unigram_tokenizers,
        damaged: &["tokenizer.json"],
        judge: texts::tokenizer,
    },
    Kind {
        name: "tokenizer-words",
        weight: 4,
        batch: 20,
        spare: 128,
        seeds: seeds::word_tokenizers,
        damaged: &["tokenizer.json"],
        judge: texts::tokenizer,
    },
    Kind {
        name: "tokenizer-model",
        weight: 4,
        batch: 20,
        spare: 128,
        seeds: seeds::models_of_pieces,
        damaged: &["tokenizer.model"],
        judge: texts::tokenizer,
    },
    Kind {
        name: "tokenizer-config",
        weight: 4,
        batch: 20,
        spare: 128,
        seeds: seeds::tokenizer_configs,
        damaged: &["_config.json", "_map.json", "added_tokens.json"],
        judge: texts::tokenizer,
    },
    Kind {
        name: "carried",
        weight: 3,
        batch: 20,
        spare: 128,
        seeds: seeds::carried,
        damaged: &[
            "generation_config.json",
            ".jinja",
            ".tiktoken",
            "tiktoken.model",
            ".txt",
            "vocab.json",
        ],
        judge: conversions::carried,
    },
    Kind {
        name: "imatrix",
        weight: 6,
        batch: 100,
        spare: 4,
        seeds: seeds::imatrices,
        damaged: &[".gguf"],
        judge: files::imatrix,
    },
    Kind {
        name: "imatrix-shard",
        weight: 4,
        batch: 100,
        spare: 4,
        seeds: seeds::imatrix_shards,
        damaged: &[".shard"],
        judge: files::imatrix_shard,
    },
    Kind {
        name: "imatrix-dat",
        weight: 6,
        batch: 100,
        spare: 4,
        seeds: seeds::imatrices_dat,
        damaged: &[".dat"],
        judge: files::imatrix,
    },
    Kind {
        name: "dump",
        weight: 6,
        batch: 40,
        spare: 128,
        seeds: seeds::dumps,
        damaged: &["manifest.json", "manifest.json", ".safetensors"],
        judge: dumps::dump,
    },
    Kind {
        name: "journal",
        weight: 2,
        batch: 10,
        spare: 128,
        seeds: seeds::journals,
        damaged: &[".journal", ".journal", ".part"],
        judge: conversions::journal,
    },
    Kind {
        name: "verify",
        weight: 4,
        batch: 20,
        spare: 128,
        seeds: seeds::converted,
        damaged: &[".gguf", ".gguf", ".safetensors", ".safetensors", ".json", ".hashes"],
        judge: conversions::verify,
    },
    Kind {
        name: "text",
        weight: 2,
        batch: 20,
        spare: 128,
        seeds: seeds::texts,
        damaged: &["text.txt"],
        judge: texts::text,
    },
    Kind {
        name: "template",
        weight: 6,
        batch: 40,
        // Texts and lists that a template may make before its steps are spent.
        spare: 512,
        seeds: seeds::templates,
        damaged: &[".jinja", ".jinja", ".jinja", "request.json", "tokenizer_config.json"],
        judge: texts::template,
    },
    Kind {
        name: "results",
        weight: 4,
        batch: 50,
        spare: 128,
        seeds: seeds::results,
        damaged: &[".jsonl"],
        judge: texts::results,
    },
    Kind {
        name: "answers",
        weight: 4,
        batch: 20,
        spare: 32,
        seeds: seeds::answers::answers,
        damaged: &[".json"],
        judge: answers::answers,
    },
    Kind {
        name: "plan",
        weight: 2,
        batch: 100,
        spare: 32,
        seeds: seeds::plans,
        damaged: &[".yaml", ".json"],
        judge: texts::plan,
    },
    Kind {
        name: "sheet",
        weight: 4,
        batch: 50,
        spare: 128,
        seeds: seeds::sheets,
        damaged: &[".yaml"],
        judge: models::sheet,
    },
    #[cfg(feature = "hub")]
    Kind {
        name: "hub",
        weight: 6,
        batch: 20,
        spare: 4,
        seeds: seeds::hubs::hubs,
        damaged: &[".http"],
        judge: crate::judge::hubs::hub,
    },
];

/// Makes a case: a seed, with at most `limit` pieces of damage.
pub(crate) fn make(kind: &Kind, seeds: &[Case], seed: u64, number: u64, limit: usize) -> Case {
    let mut random = Random::new(seed, kind.name, number);
    let mut case = random.pick(seeds);
    // Most variations of a bad file are bad too, and not informative.
    while case.hostile && !random.one_in(8) {
        case = random.pick(seeds);
    }
    let mut case = case.clone();
    let mut count = 1;
    while count < 6 && random.one_in(2) {
        count += 1;
    }
    // The first case of each seed is the unchanged seed: valid files have to be accepted.
    if let Some(sound) = usize::try_from(number).ok().and_then(|number| seeds.get(number)) {
        return sound.clone();
    }
    // A reader of numbers reads as many as a long file has, so its memory use is no fault.
    if random.one_in(100) && !kind.name.starts_with("imatrix") {
        let end = kind.damaged.first().copied().unwrap_or("none");
        case.grown = case.files.keys().find(|name| name.ends_with(end)).cloned();
    }
    for _ in 0..count.min(limit) {
        let other = random.pick(seeds);
        if kind.damaged.is_empty() {
            damage_words(&mut case, other, &mut random);
        } else {
            damage_file(kind, &mut case, other, &mut random);
        }
    }
    case
}

fn damage_file(kind: &Kind, case: &mut Case, other: &Case, random: &mut Random) {
    let end = random.pick(kind.damaged);
    let names: Vec<&String> = case.files.keys().filter(|name| name.ends_with(end)).collect();
    let Some(name) = names.get(random.below(names.len())).map(|name| (*name).clone()) else {
        return;
    };
    let empty = Vec::new();
    let other = other
        .files
        .iter()
        .find(|(name, _): &(&String, &Vec<u8>)| name.ends_with(end))
        .map_or(&empty, |(_, bytes)| bytes);
    let Some(old) = case.files.get(&name) else { return };
    let (_, form) = name.rsplit_once('.').unwrap_or(("", &name));
    let new = match form {
        "json" => json::damage(old, other, random),
        "jsonl" if !random.one_in(4) => line(old, other, random),
        "safetensors" => formats::safetensors(old, other, random),
        "gguf" => formats::gguf(old, other, random),
        "yaml" | "txt" | "journal" | "jinja" | "tiktoken" | "http" if !random.one_in(6) => {
            let old = String::from_utf8_lossy(old);
            let other = String::from_utf8_lossy(other);
            words::damage(&old, &other, random).into_bytes()
        }
        _ => {
            let mut bytes = old.clone();
            bytes::damage(&mut bytes, other, random);
            bytes
        }
    };
    case.files.insert(name, new);
}

/// Damages one line of JSON lines.
fn line(old: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = old.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let other_lines: Vec<&[u8]> = other.split(|&byte| byte == b'\n').collect();
    let at = random.below(lines.len());
    let by = other_lines.get(random.below(other_lines.len())).copied().unwrap_or_default();
    if let Some(line) = lines.get_mut(at) {
        *line = json::damage(line, by, random);
    }
    lines.join(&b'\n')
}

/// Damages the words, except the first, which is the family.
fn damage_words(case: &mut Case, other: &Case, random: &mut Random) {
    let from: Vec<&String> = other.words.iter().skip(1).collect();
    let Some(other) = from.get(random.below(from.len())) else { return };
    let count = case.words.len();
    match random.below(6) {
        0 => case.words.push((*other).clone()),
        _ if count > 1 => {
            let at = 1 + random.below(count - 1);
            case.words[at] = words::damage(&case.words[at], other, random);
        }
        _ => {}
    }
}
