//! Checks that llama.cpp will produce the same tokens as the checkpoint's own tokenizer.
//!
//! llama.cpp's tokenization is reimplemented here and run on a corpus of many scripts, code, whitespace and
//! symbols. Its tokens, and the text decoded from them, are compared with those of the `tokenizers` crate
//! for tokenizer.json. Special tokens in the text count as plain text on both sides. The tokens around
//! every text are compared too, unless the keys are known not to express them.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::json::TokenizerJson;
use super::{Error, ReferenceTokenizer, Tokenizer, TokenizerKind, spm, table};
use formats::shown;

mod encode;
mod load_error;
pub(super) mod loaded;
mod pieces;
mod split;

pub use encode::TokenizeError;
pub use load_error::LoadError;
pub use loaded::LlamaTokenizer;

/// Corpus: one text per line, with invisible characters escaped.
static CORPUS: LazyLock<Vec<String>> =
    LazyLock::new(|| include_str!("../data/corpus.txt").lines().map(unescape).collect());

/// Result of a successful check.
#[derive(Debug, Clone, Default)]
pub struct TokenizerCheck {
    /// Number of texts that were compared.
    pub strings: usize,
    /// Texts that were skipped, because the two programs are known to differ on them.
    pub skipped: usize,
    /// Texts that differ because llama.cpp only approximates this pre-tokenizer.
    pub known: Vec<String>,
}

/// Failure of a check.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Mismatch {
    #[error(transparent)]
    Error(#[from] Error),

    #[error("`{}` has no tokenizer.json, so there is nothing to compare the tokenizer with", dir.display())]
    NoReference { dir: PathBuf },

    #[error("llama.cpp could not use the tokenizer: {why}")]
    Unusable { why: String },

    #[error(
        "the text {text:?} is {} in `{}`, but would be {} in llama.cpp with the pre-tokenizer `{pre}`; \
         name another one with the option `set gguf.pre=NAME`, or report it if none fits",
        list(theirs), file.display(), list(ours)
    )]
    Tokens { file: PathBuf, pre: String, text: String, theirs: Vec<String>, ours: Vec<String> },

    #[error(
        "the text {text:?} with what stands around it is {} in `{}`, but would be {} in llama.cpp",
        list(theirs), file.display(), list(ours)
    )]
    Around { file: PathBuf, text: String, theirs: Vec<String>, ours: Vec<String> },

    #[error("the text {text:?} comes back as {back:?} from its tokens")]
    Text { text: String, back: String },
}

/// Formats tokens from the first difference on.
fn list(tokens: &[String]) -> String {
    const MOST: usize = 12;
    let shown: Vec<String> = tokens.iter().take(MOST).map(|token| format!("`{token}`")).collect();
    let more = if tokens.len() > MOST { " ..." } else { "" };
    format!("{}{more}", shown.join(" "))
}

/// Returns the texts that [`self_check`] compares.
pub fn corpus() -> impl ExactSizeIterator<Item = &'static str> {
    CORPUS.iter().map(String::as_str)
}

/// Compares the keys with their source tokenizer, including the tokens around every text.
pub fn self_check(tokenizer: &Tokenizer, dir: &Path) -> Result<TokenizerCheck, Mismatch> {
    check(tokenizer, dir, corpus())
}

/// Compares the keys with their source tokenizer on other texts.
pub fn check<'a>(
    tokenizer: &Tokenizer,
    dir: &Path,
    texts: impl IntoIterator<Item = &'a str>,
) -> Result<TokenizerCheck, Mismatch> {
    let Some(json) = TokenizerJson::read(dir)? else {
        return Err(Mismatch::NoReference { dir: dir.to_owned() });
    };
    let mut theirs = ReferenceTokenizer::build(&json)?;
    theirs.read_specials_as_text();
    let ours = LlamaTokenizer::new(&tokenizer.keys)
        .map_err(|why| Mismatch::Unusable { why: shown(&why.to_string()) })?;
    let mut checked = TokenizerCheck::default();
    let mut total = 0_usize;
    let mut first = None;
    // Normalizers of Unigram tokenizers differ in leading and trailing spaces and in the length of
    // replacements.
    let inexact = ours.is_approximate() || ours.kind == TokenizerKind::Pieces;
    for text in texts {
        total += 1;
        if differs_always(&json, text) {
            checked.skipped += 1;
            continue;
        }
        match compare(&ours, &theirs, &json, tokenizer, text) {
            Ok(()) => checked.strings += 1,
            Err(Mismatch::Tokens { .. }) if inexact && first.is_some() => {
                checked.known.push(text.to_owned());
            }
            Err(fault @ Mismatch::Tokens { .. }) if inexact => {
                checked.known.push(text.to_owned());
                first = Some(fault);
            }
            Err(other) => return Err(other),
        }
    }
    // An approximation fails on few texts. One that fails on many is the wrong pre-tokenizer.
    match first {
        Some(fault) if checked.known.len() > total / 16 => Err(fault),
        _ => Ok(checked),
    }
}

/// True for texts on which the two programs differ with any keys.
fn differs_always(json: &TokenizerJson, text: &str) -> bool {
    // A space before every text, or before every text without a leading space.
    let blank = text.starts_with([' ', '▁']) && spm::metaspace(&json.pre_tokenizer);
    // Tokens that are written as control tokens, although the checkpoint recognizes them in plain text.
    let control = json.added.iter().any(|token| {
        !token.special && table::looks_special(&token.text) && text.contains(&token.text)
    });
    // Added tokens of `▁` runs are written as spaces, which they represent.
    let runs = text.contains("▁▁")
        && json
            .added
            .iter()
            .any(|token| token.text.chars().count() > 1 && token.text.chars().all(|c| c == '▁'));
    blank || control || runs
}

fn compare(
    ours: &LlamaTokenizer,
    theirs: &ReferenceTokenizer,
    json: &TokenizerJson,
    tokenizer: &Tokenizer,
    text: &str,
) -> Result<(), Mismatch> {
    let expected = theirs.encode(text, false)?;
    let ids =
        ours.encode(text).map_err(|why| Mismatch::Unusable { why: shown(&why.to_string()) })?;
    if ids != expected {
        let same = ids.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        return Err(Mismatch::Tokens {
            file: json.file.clone(),
            pre: tokenizer.pre.clone(),
            text: text.to_owned(),
            theirs: ours.names(&expected[same..]),
            ours: ours.names(&ids[same..]),
        });
    }
    if tokenizer.around {
        let expected = theirs.encode(text, true)?;
        let surrounded = ours.surrounded(&ids);
        if surrounded != expected {
            return Err(Mismatch::Around {
                file: json.file.clone(),
                text: text.to_owned(),
                theirs: ours.names(&expected),
                ours: ours.names(&surrounded),
            });
        }
    }
    let back = ours.decode(&ids);
    // Pieces spell a space and the character `▁` alike.
    let text = if ours.kind == TokenizerKind::Pieces {
        // Replacements and merged spaces cannot be reversed.
        return Ok(());
    } else if ours.kind == TokenizerKind::Scores {
        text.replace('▁', " ")
    } else {
        text.to_owned()
    };
    if back == text { Ok(()) } else { Err(Mismatch::Text { text, back }) }
}

/// Unescapes a line of the corpus.
fn unescape(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut remaining = line;
    while let Some((before, after)) = remaining.split_once('\\') {
        text.push_str(before);
        let mut chars = after.chars();
        match chars.next() {
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some('t') => text.push('\t'),
            Some('u') => {
                let (hex, tail) = after[1..]
                    .strip_prefix('{')
                    .and_then(|after| after.split_once('}'))
                    .unwrap_or(("fffd", ""));
                let code = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
                text.push(code.unwrap_or('\u{fffd}'));
                remaining = tail;
                continue;
            }
            Some(other) => text.push(other),
            None => text.push('\\'),
        }
        remaining = chars.as_str();
    }
    text.push_str(remaining);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_read() {
        assert_eq!(unescape(r"a\n\t\\n\u{200d}b\r"), "a\n\t\\n\u{200d}b\r");
        assert!(CORPUS.len() > 180);
        assert!(CORPUS.iter().all(|text| !text.contains('\u{fffd}') || text.contains("private")));
        assert!(CORPUS.iter().any(|text| text == "  "));
    }
}
