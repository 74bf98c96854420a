//! Checks of a model's vocabulary and merges before the library builds it.

use super::super::json::{JsonModel, TokenizerJson};
use formats::shown;

/// Maximum length of a token text, in bytes. A trie of texts is as deep as its longest text, and is freed
/// recursively.
const TOKEN: usize = 2048;
/// Maximum number of trie nodes of a Unigram model, at about 400 bytes each.
const NODES: usize = 4 << 20;
/// Maximum length of a word in a greedy search for pieces; the search is cubic in it.
const WORD: usize = 1000;

type VocabFault = (String, String);

/// Checks a model. The error is the place and the reason.
pub(super) fn check(json: &TokenizerJson) -> Result<(), VocabFault> {
    let largest = u64::from(u32::MAX) - 1;
    let texts = json.vocab.iter().map(|(text, id)| ("model.vocab", text, id));
    let added = json.added.iter().map(|token| ("added_tokens", &token.text, &token.id));
    for (at, text, &id) in texts.chain(added) {
        if text.len() > TOKEN {
            let why =
                format!("token `{}` has {} bytes, more than {TOKEN}", shown(text), text.len());
            return Err((at.to_owned(), why));
        }
        if id > largest {
            let why = format!("token `{}` has id {id}, more than {largest}", shown(text));
            return Err((at.to_owned(), why));
        }
    }
    match &json.model {
        JsonModel::Merges { prefix, .. } => merges(json, prefix.as_deref().unwrap_or_default()),
        JsonModel::Scores { .. } => pieces(json),
        JsonModel::WordPiece { longest, .. } if *longest > WORD => Err((
            "model.max_input_chars_per_word".to_owned(),
            format!("it is {longest}, and at most {WORD} is supported"),
        )),
        JsonModel::WordPiece { .. } | JsonModel::Words => Ok(()),
    }
}

/// Checks merges: the second part is joined without its prefix, byte by byte.
fn merges(json: &TokenizerJson, prefix: &str) -> Result<(), VocabFault> {
    let longest = json.vocab.iter().map(|(text, _)| text.len()).max().unwrap_or(0);
    for (n, (left, right)) in json.merges.iter().enumerate() {
        let suffix = right.get(prefix.len()..);
        if suffix.is_none_or(|suffix| left.len() + suffix.len() > longest) {
            let why = format!("`{}` and `{}` make no token", shown(left), shown(right));
            return Err((format!("model.merges[{n}]"), why));
        }
    }
    Ok(())
}

fn pieces(json: &TokenizerJson) -> Result<(), VocabFault> {
    let mut texts: Vec<&[u8]> = json.vocab.iter().map(|(text, _)| text.as_bytes()).collect();
    texts.sort_unstable();
    let mut nodes = 0_usize;
    let mut before: &[u8] = b"";
    for text in texts {
        nodes += text.len() - text.iter().zip(before).take_while(|(a, b)| a == b).count();
        before = text;
    }
    if nodes > NODES {
        let why = format!("its texts make a trie of {nodes} nodes, more than {NODES}");
        return Err(("model.vocab".to_owned(), why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trie_of_pieces_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let one = r#"{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}}"#;
        fs_err::write(dir.path().join("tokenizer.json"), one).unwrap();
        let mut json = TokenizerJson::read(dir.path()).unwrap().unwrap();
        let same = "x".repeat(TOKEN - 4);
        let many = NODES / same.len() + 1;
        json.vocab = (0..many as u64).map(|n| (format!("{same}{n:04}"), n)).collect();
        assert_eq!(check(&json), Ok(()), "texts that begin alike share their nodes");
        json.vocab = (0..many as u64).map(|n| (format!("{n:04}{same}"), n)).collect();
        let (place, why) = check(&json).unwrap_err();
        assert_eq!(place, "model.vocab");
        assert!(why.contains("a trie of 41") && why.contains("more than 4194304"), "{why}");
        json.vocab.truncate(many - 5);
        assert_eq!(check(&json), Ok(()));
    }
}
