//! Table of llama.cpp's pre-tokenizers: names, rules, and equivalent steps of tokenizer.json.

use std::sync::LazyLock;

use serde::Deserialize;

/// Splitting rule of llama.cpp, with its names.
#[derive(Debug, Deserialize)]
pub(super) struct PreTokenizer {
    /// Regular expressions, applied one after the other.
    pub(super) split: Vec<String>,
    /// True if bytes are spelled as characters afterwards.
    #[serde(default = "yes")]
    pub(super) bytes: bool,
    /// True if spaces become `▁` first.
    #[serde(default)]
    pub(super) escape: bool,
    /// Reason why the rule only approximates the original split.
    pub(super) approximate: Option<String>,
    /// Steps of tokenizer.json that are equivalent to this rule.
    like: Vec<Vec<String>>,
    names: Vec<PreName>,
}

impl PreTokenizer {
    /// Returns the first name with the requested `ignore_merges`, or else the first name.
    pub(super) fn name(&self, ignore_merges: bool) -> &str {
        let fits = self.names.iter().find(|name| name.ignore_merges == ignore_merges);
        fits.or(self.names.first()).map_or("", |name| &name.name)
    }

    /// Returns the pre-tokenizers of tokenizer.json that are equivalent, each as a list of steps.
    pub(super) fn steps(&self) -> Vec<&[String]> {
        self.like.iter().map(Vec::as_slice).collect()
    }
}

/// Name of a rule, with the other settings that llama.cpp derives from it.
#[derive(Debug, Deserialize)]
pub(super) struct PreName {
    pub(super) name: String,
    /// True if a whole word that is a token is not split.
    #[serde(default)]
    pub(super) ignore_merges: bool,
    /// True if the BOS token is added by default.
    #[serde(default)]
    pub(super) add_bos: bool,
    /// True if the tokenizer.json of its models composes characters first (NFC), which llama.cpp does not.
    #[serde(default)]
    pub(super) composes: bool,
}

#[derive(Deserialize)]
struct PreTokenizers {
    models: PreByKind,
    scores_pre: String,
    same: Vec<(String, String)>,
    groups: Vec<PreTokenizer>,
}

#[derive(Deserialize)]
struct PreByKind {
    scores: String,
    merges: String,
    pieces: String,
}

fn yes() -> bool {
    true
}

static KNOWN: LazyLock<PreTokenizers> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/pre_tokenizers.json"))
        .expect("the table is part of the program, and a test reads it")
});

/// Returns the names of a SentencePiece BPE model, and of its pre-tokenizer, in files.
pub(super) fn scores_model() -> (&'static str, &'static str) {
    (&KNOWN.models.scores, &KNOWN.scores_pre)
}

/// Returns the name of a byte-level BPE model in files.
pub(super) fn merges_model() -> &'static str {
    &KNOWN.models.merges
}

/// Returns the name of a Unigram model in files.
pub(super) fn pieces_model() -> &'static str {
    &KNOWN.models.pieces
}

/// Returns every name that llama.cpp supports.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.groups.iter().flat_map(|group| group.names.iter().map(|name| name.name.as_str()))
}

/// Returns the rule and settings of a name.
pub(super) fn find(name: &str) -> Option<(&'static PreTokenizer, &'static PreName)> {
    KNOWN.groups.iter().find_map(|group| {
        group.names.iter().find(|known| known.name == name).map(|known| (group, known))
    })
}

/// Normalizes the spelling of a regular expression to that of the table.
pub(super) fn spelled(regex: &str) -> String {
    let mut text = regex.replace('\r', "\\r").replace('\n', "\\n");
    for (from, to) in &KNOWN.same {
        text = text.replace(from.as_str(), to);
    }
    text
}

/// Returns the rule for these steps.
pub(super) fn group(steps: &[String]) -> Option<&'static PreTokenizer> {
    KNOWN.groups.iter().find(|group| group.like.iter().any(|like| like == steps))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_tables_are_read_and_hold_together() {
        let all: Vec<&str> = names().collect();
        assert_eq!(all.len(), 91);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 91, "a name stands once");
        let mut likes = BTreeSet::new();
        for group in &KNOWN.groups {
            assert!(!group.names.is_empty() && !group.split.is_empty());
            for like in &group.like {
                assert!(likes.insert(like), "{like:?} means two things");
                for step in like {
                    assert_eq!(&spelled(step), step, "the table spells in its own way");
                }
            }
        }
    }

    #[test]
    fn spellings_of_one_expression_are_one() {
        let official = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
        let usual = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(spelled(official), usual);
        assert_eq!(spelled(&usual.replace("\\n", "\n")), usual);
        let steps = [format!("split {usual}"), "bytes".to_owned()];
        let group = group(&steps).unwrap();
        let name = group.name(true);
        assert!(find(name).unwrap().1.ignore_merges);
        assert!(!find(group.name(false)).unwrap().1.ignore_merges);
    }
}
