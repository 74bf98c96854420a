//! Special tokens around every text, and the keys that declare them.
//!
//! A file has keys for one token before a text (BOS) and one behind it (EOS). If the keys are missing,
//! loaders use defaults of the tokenizer kind, so both are always written.

use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use super::check::{corpus, loaded};
use super::doc::Doc;
use super::json::TokenizerJson;
use super::{Error, ReferenceTokenizer, Tokenizer, TokenizerKind, pre_table};
use formats::gguf::{Metadata, MetadataValue};
use formats::shown;

/// Number of corpus texts that are tokenized with and without the special tokens around them.
const PROBES: usize = 32;
/// Roles of tokens around texts.
const ROLES: [&str; 2] = ["bos", "eos"];

/// Tokenizer classes, by their behaviour with only a tokenizer.model.
#[derive(Deserialize)]
struct ModelOnlyClasses {
    /// Classes that begin texts with the BOS token by default.
    begin: Vec<String>,
}

static LONE: LazyLock<ModelOnlyClasses> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/lone_models.json"))
        .expect("the table is part of the program, and a test reads it")
});

/// Tokens before and behind every text.
type SurroundingTokens = (Vec<u32>, Vec<u32>);

/// Writes both keys, unless the converter's own keys are requested, and warns of tokens that keys cannot
/// express.
pub(super) fn write(
    dir: &Path,
    json: Option<&TokenizerJson>,
    rows: usize,
    identity: bool,
    tokenizer: &mut Tokenizer,
) -> Result<(), Error> {
    let config = Doc::read(dir, "tokenizer_config.json")?;
    let Some(json) = json else {
        return if identity { Ok(()) } else { model_only_keys(config.as_ref(), tokenizer) };
    };
    let surrounding = of(&ReferenceTokenizer::build(json)?)?;
    if !identity {
        write_surrounding(surrounding.as_ref(), rows, &mut tokenizer.keys);
    }
    warn_of_settings(config.as_ref(), tokenizer)?;
    let name = if tokenizer.kind == TokenizerKind::Merges {
        pre_table::find(&tokenizer.pre)
    } else {
        None
    };
    let (before, after) =
        loaded::around(&tokenizer.keys, tokenizer.kind, name.map(|(_, name)| name), rows).map_err(
            |why| Error::Component {
                file: json.file.clone(),
                component: "post_processor".into(),
                why: why.to_string(),
            },
        )?;
    let written = (Vec::from_iter(before), Vec::from_iter(after));
    tokenizer.around = surrounding.as_ref() == Some(&written);
    if !tokenizer.around {
        let lost = describe_difference(json, surrounding.as_ref(), &written);
        if identity {
            tokenizer
                .notes
                .push(format!("{lost}. These are the keys that llama.cpp's converter writes"));
        } else {
            tokenizer.warnings.push(format!(
                "{lost}. A file has room for one bos token before and one eos token behind: a prompt has to hold the others"
            ));
        }
    }
    Ok(())
}

/// Writes the tokens around texts, as far as keys can express them.
fn write_surrounding(surrounding: Option<&SurroundingTokens>, rows: usize, keys: &mut Metadata) {
    let (before, after) = surrounding.cloned().unwrap_or_default();
    let ends = [(before.first(), before.len()), (after.last(), after.len())];
    for (role, (token, count)) in ROLES.into_iter().zip(ends) {
        let id = format!("tokenizer.ggml.{role}_token_id");
        let known = keys.get(&id).and_then(MetadataValue::integer);
        let row = token.copied().filter(|&token| (token as usize) < rows);
        // A token that stands alone at this place of every text gets the role, if none was named for it.
        if let (None, Some(token), 1) = (known, row, count) {
            keys.set(id, token);
        }
        let adds = match (known, row) {
            (Some(known), Some(token)) => known == i128::from(token),
            (None, Some(_)) => count == 1,
            (_, None) => false,
        };
        keys.set(flag(role), adds);
    }
}

fn flag(role: &str) -> String {
    format!("tokenizer.ggml.add_{role}_token")
}

/// Returns the tokens that a tokenizer puts around texts; none if they differ between texts.
fn of(reference: &ReferenceTokenizer) -> Result<Option<SurroundingTokens>, Error> {
    let mut fits: Option<Vec<SurroundingTokens>> = None;
    for text in corpus().take(PROBES) {
        let bare = reference.encode(text, false)?;
        let surrounded = reference.encode(text, true)?;
        let here: Vec<SurroundingTokens> = (0..=surrounded.len())
            .filter_map(|at: usize| {
                let after = surrounded.get(at..)?.strip_prefix(bare.as_slice())?;
                Some((surrounded[..at].to_vec(), after.to_vec()))
            })
            .collect();
        let both = match fits {
            Some(fits) => fits.into_iter().filter(|around| here.contains(around)).collect(),
            None => here,
        };
        fits = Some(both);
    }
    // Several results fit if all texts consist of the token alone; take the one with most tokens before the
    // text.
    Ok(fits.and_then(|mut fits| fits.pop()))
}

/// Derives the keys of a tokenizer.model without a tokenizer.json, which no reference can run. Transformers
/// 5.23 follows the settings, and without settings adds no tokens, except for a few classes.
fn model_only_keys(config: Option<&Doc>, tokenizer: &mut Tokenizer) -> Result<(), Error> {
    let class = config.and_then(|config| config.get("tokenizer_class"));
    let class = class.and_then(|class| class.value.as_str()).unwrap_or_default();
    for role in ROLES {
        let stated = config.and_then(|config| config.get(&format!("add_{role}_token")));
        let adds = match stated {
            Some(node) => node.bool()?,
            None if role == "eos" => false,
            None if LONE.begin.iter().any(|known| known == class) => true,
            None => {
                tokenizer.warnings.push(
                    "tokenizer.model does not say whether texts begin with the bos token: none is put before them, as in \
                     transformers 5; earlier ones put one for some classes. `add_bos_token` in \
                     tokenizer_config.json settles it"
                        .into(),
                );
                false
            }
        };
        tokenizer.keys.set(flag(role), adds);
    }
    Ok(())
}

/// Warns of settings that contradict the keys: transformers 5 ignores them beside a tokenizer.json.
fn warn_of_settings(config: Option<&Doc>, tokenizer: &mut Tokenizer) -> Result<(), Error> {
    for role in ROLES {
        let setting = format!("add_{role}_token");
        let stated = config.and_then(|config| config.get(&setting));
        let Some(stated) = stated.map(|node| node.bool()).transpose()? else { continue };
        if let Ok(Some(written)) = tokenizer.keys.bool(&flag(role))
            && written != stated
        {
            tokenizer.warnings.push(format!(
                "`{setting}` of tokenizer_config.json is {stated}, but the tokenizer itself says {written}, \
                 which is written"
            ));
        }
    }
    Ok(())
}

/// Describes the tokens around texts in the checkpoint, and those that the file's keys give.
fn describe_difference(
    json: &TokenizerJson,
    surrounding: Option<&SurroundingTokens>,
    written: &SurroundingTokens,
) -> String {
    let theirs = match surrounding {
        Some(surrounding) => format!("puts {} every text", describe(json, surrounding)),
        None => "does not put the same tokens around every text".into(),
    };
    let ours = describe(json, written);
    format!("tokenizer.json {theirs}; by the keys of the file it will be {ours}")
}

/// Describes the tokens before and behind a text.
fn describe(json: &TokenizerJson, (before, after): &SurroundingTokens) -> String {
    format!("{} before and {} behind", token_names(json, before), token_names(json, after))
}

/// Returns the names of tokens, with spaces between them.
fn token_names(json: &TokenizerJson, ids: &[u32]) -> String {
    if ids.is_empty() {
        return "nothing".to_owned();
    }
    ids.iter().map(|&id| token_name(json, id)).collect::<Vec<_>>().join(" ")
}

/// Returns the text of a token in backquotes, or its number if the tokenizer does not list it.
fn token_name(json: &TokenizerJson, id: u32) -> String {
    let added = json.added.iter().map(|token| (token.text.as_str(), token.id));
    let vocab = json.vocab.iter().map(|(text, id)| (text.as_str(), *id));
    let token = added.chain(vocab).find(|(_, known)| *known == u64::from(id));
    token.map_or_else(|| format!("token {id}"), |(text, _)| format!("`{}`", shown(text)))
}
