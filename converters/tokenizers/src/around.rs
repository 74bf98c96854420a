//! Tokens around every text: those that the checkpoint's tokenizer puts there, and the keys that say so.
//!
//! A file has room for one token before a text, the one that begins texts, and one behind it, the one that ends them. Where
//! the keys are missing, loaders go by the kind of tokenizer, so both are always written.

use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use super::check::{corpus, loaded};
use super::doc::Doc;
use super::json::Json;
use super::{Error, Kind, Reference, Tokenizer, pre};
use formats::gguf::{Metadata, Value};
use formats::shown;

/// Texts of the corpus that are tokenized with and without the tokens around them.
const PROBES: usize = 32;
/// Roles whose tokens stand around texts.
const ROLES: [&str; 2] = ["bos", "eos"];

/// Classes by their way with a tokenizer.model alone.
#[derive(Deserialize)]
struct Lone {
    /// Those that begin texts with the bos token unless told not to.
    begin: Vec<String>,
}

static LONE: LazyLock<Lone> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/lone_models.json"))
        .expect("the table is part of the program, and a test reads it")
});

/// Tokens before and behind every text.
type Around = (Vec<u32>, Vec<u32>);

/// Writes both keys, unless they are to be the converter's, and says what they cannot.
pub(super) fn write(
    dir: &Path,
    json: Option<&Json>,
    rows: usize,
    identity: bool,
    made: &mut Tokenizer,
) -> Result<(), Error> {
    let config = Doc::read(dir, "tokenizer_config.json")?;
    let Some(json) = json else {
        return if identity { Ok(()) } else { alone(config.as_ref(), made) };
    };
    let found = of(&Reference::build(json)?)?;
    if !identity {
        say(found.as_ref(), rows, &mut made.keys);
    }
    unlike_settings(config.as_ref(), made)?;
    let name = if made.kind == Kind::Merges { pre::find(&made.pre) } else { None };
    let (before, after) =
        loaded::around(&made.keys, made.kind, name.map(|(_, name)| name), rows).map_err(|why| {
            Error::Component { file: json.file.clone(), component: "post_processor".into(), why }
        })?;
    let written = (Vec::from_iter(before), Vec::from_iter(after));
    made.around = found.as_ref() == Some(&written);
    if !made.around {
        let lost = lost(json, found.as_ref(), &written);
        if identity {
            made.notes
                .push(format!("{lost}. These are the keys that llama.cpp's converter writes"));
        } else {
            made.warnings.push(format!(
                "{lost}. A file has room for one bos token before and one eos token behind: a prompt has to hold the others"
            ));
        }
    }
    Ok(())
}

/// Writes what stands around texts, as far as keys can say it.
fn say(found: Option<&Around>, rows: usize, keys: &mut Metadata) {
    let (before, after) = found.cloned().unwrap_or_default();
    let ends = [(before.first(), before.len()), (after.last(), after.len())];
    for (role, (token, count)) in ROLES.into_iter().zip(ends) {
        let id = format!("tokenizer.ggml.{role}_token_id");
        let known = keys.get(&id).and_then(Value::integer);
        let row = token.copied().filter(|&token| (token as usize) < rows);
        // What stands alone at this place of every text has the role, if no token was named for it.
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

/// Tokens that a tokenizer puts around texts, or nothing if that is not the same around each.
fn of(reference: &Reference) -> Result<Option<Around>, Error> {
    let mut fits: Option<Vec<Around>> = None;
    for text in corpus().take(PROBES) {
        let (bare, whole) = (reference.encode(text, false)?, reference.encode(text, true)?);
        let split = |at: usize| {
            let after = whole.get(at..)?.strip_prefix(bare.as_slice())?;
            Some((whole[..at].to_vec(), after.to_vec()))
        };
        let here: Vec<Around> = (0..=whole.len()).filter_map(split).collect();
        let both = match fits {
            Some(fits) => fits.into_iter().filter(|around| here.contains(around)).collect(),
            None => here,
        };
        fits = Some(both);
    }
    // Of several that fit, as if all texts were nothing but the token, the one with most before the text.
    Ok(fits.and_then(|mut fits| fits.pop()))
}

/// The keys of a tokenizer.model without a tokenizer.json, which no reference runs. Transformers 5.23 goes by the settings, and
/// puts nothing around texts without them, but for a class or two.
fn alone(config: Option<&Doc>, made: &mut Tokenizer) -> Result<(), Error> {
    let class = config.and_then(|config| config.get("tokenizer_class"));
    let class = class.and_then(|class| class.value.as_str()).unwrap_or_default();
    for role in ROLES {
        let stated = config.and_then(|config| config.get(&format!("add_{role}_token")));
        let adds = match stated {
            Some(node) => node.bool()?,
            None if role == "eos" => false,
            None if LONE.begin.iter().any(|known| known == class) => true,
            None => {
                made.warnings.push(
                    "tokenizer.model does not say whether texts begin with the bos token: none is put before them, as in \
                     transformers 5; earlier ones put one for some classes. `add_bos_token` in \
                     tokenizer_config.json settles it"
                        .into(),
                );
                false
            }
        };
        made.keys.set(flag(role), adds);
    }
    Ok(())
}

/// Warns of settings that say otherwise than the keys: transformers 5 does not read them beside a tokenizer.json.
fn unlike_settings(config: Option<&Doc>, made: &mut Tokenizer) -> Result<(), Error> {
    for role in ROLES {
        let setting = format!("add_{role}_token");
        let stated = config.and_then(|config| config.get(&setting));
        let Some(stated) = stated.map(|node| node.bool()).transpose()? else { continue };
        if let Ok(Some(written)) = made.keys.bool(&flag(role))
            && written != stated
        {
            made.warnings.push(format!(
                "`{setting}` of tokenizer_config.json is {stated}, but the tokenizer itself says {written}, \
                 which is written"
            ));
        }
    }
    Ok(())
}

/// Says which tokens stand around texts, and which will by the keys of the file.
fn lost(json: &Json, found: Option<&Around>, written: &Around) -> String {
    let name = |id: &u32| {
        let mut listed = json.added.iter().map(|token| (token.text.as_str(), token.id));
        let mut vocab = json.vocab.iter().map(|(text, id)| (text.as_str(), *id));
        let is = |(_, known): &(&str, u64)| *known == u64::from(*id);
        let token = listed.find(is).or_else(|| vocab.find(is));
        token.map_or_else(|| format!("token {id}"), |(text, _)| format!("`{}`", shown(text)))
    };
    let list = |ids: &[u32]| match ids {
        [] => "nothing".to_owned(),
        ids => ids.iter().map(name).collect::<Vec<_>>().join(" "),
    };
    let around =
        |(before, after): &Around| format!("{} before and {} behind", list(before), list(after));
    let theirs = match found {
        Some(found) => format!("puts {} every text", around(found)),
        None => "does not put the same tokens around every text".into(),
    };
    format!("tokenizer.json {theirs}; by the keys of the file it will be {}", around(written))
}
