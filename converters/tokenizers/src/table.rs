//! Tokens of a vocabulary: texts, types and scores, one of each per row of the embedding.

use std::path::Path;

use indexmap::IndexMap;

use super::Error;
use formats::shown;

/// Maximum number of tokens, about sixty times the largest known vocabulary.
const MOST: usize = 1 << 24;
/// Byte-level spelling of a space.
pub(super) const BLANK: char = 'Ġ';
/// Score of tokens that were added to a SentencePiece model.
pub(super) const ADDED: f32 = -1000.0;
/// Score of rows without a token.
const PADDING: f32 = -10000.0;

/// Type of a token, with the format's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Piece of text.
    Normal = 1,
    /// Replacement for text that no piece covers.
    Unknown = 2,
    /// Control token, never parsed from plain text.
    Control = 3,
    /// User-defined token, matched in text before anything else.
    UserDefined = 4,
    /// Row without a token.
    Unused = 5,
    /// Single byte, used if no piece fits.
    Byte = 6,
}

/// Rows of a vocabulary.
pub(super) struct VocabTable {
    pub(super) texts: Vec<String>,
    pub(super) types: Vec<TokenType>,
    pub(super) scores: Vec<f32>,
}

impl VocabTable {
    /// Returns a table of rows without tokens.
    pub(super) fn new(rows: usize) -> Result<Self, Error> {
        if rows > MOST {
            return Err(Error::TooLarge { found: rows, most: MOST });
        }
        Ok(Self {
            texts: (0..rows).map(|n| format!("[PAD{n}]")).collect(),
            types: vec![TokenType::Unused; rows],
            scores: vec![PADDING; rows],
        })
    }

    pub(super) fn set(&mut self, row: usize, text: String, ty: TokenType, score: f32) {
        self.texts[row] = text;
        self.types[row] = ty;
        self.scores[row] = score;
    }

    /// Sets the row of an added token. A token that looks special counts as special.
    pub(super) fn add(&mut self, row: usize, text: &str, special: bool) {
        self.add_stated(row, text, special || looks_special(text));
    }

    /// Sets the row of an added token, special only if its file says so.
    pub(super) fn add_stated(&mut self, row: usize, text: &str, special: bool) {
        let ty = if special { TokenType::Control } else { TokenType::UserDefined };
        // Tokens that are matched in plain text are written with plain spaces.
        let text =
            if ty == TokenType::Control { text.to_owned() } else { text.replace('▁', " ") };
        self.set(row, text, ty, ADDED);
    }

    /// Checks that every text occurs once, as loaders require.
    pub(super) fn check_unique(&self, file: &Path) -> Result<(), Error> {
        let mut seen: IndexMap<&str, usize> = IndexMap::with_capacity(self.texts.len());
        for (second, text) in self.texts.iter().enumerate() {
            if let Some(first) = seen.insert(text, second) {
                let token = shown(text);
                return Err(Error::Duplicate { file: file.to_owned(), token, first, second });
            }
        }
        Ok(())
    }

    /// Returns the types as the format's ids.
    pub(super) fn type_ids(&self) -> Vec<i32> {
        self.types.iter().map(|&ty| ty as i32).collect()
    }
}

/// True for tokens that models forget to mark as special, by the list of llama.cpp's converter.
pub(super) fn looks_special(text: &str) -> bool {
    const WORDS: [&str; 4] = ["<pad>", "<mask>", "<2mass>", "[@BOS@]"];
    const BRACKETS: [(&str, &str); 3] = [("<|", "|>"), ("<｜", "｜>"), ("<unused", ">")];
    WORDS.contains(&text)
        || BRACKETS.iter().any(|(begin, end)| text.starts_with(begin) && text.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stand_once() {
        let mut table = VocabTable::new(4).unwrap();
        table.check_unique(Path::new("t")).unwrap();
        table.set(1, "a\u{1b}".into(), TokenType::Normal, 0.0);
        table.set(3, "a\u{1b}".into(), TokenType::Normal, 0.0);
        let message = table.check_unique(Path::new("t")).unwrap_err().to_string();
        assert!(message.contains("tokens 1 and 3") && message.contains("a\\u{1b}"), "{message}");
        table.set(3, "[PAD0]".into(), TokenType::Normal, 0.0);
        assert!(table.check_unique(Path::new("t")).is_err());
        assert!(VocabTable::new(usize::MAX).is_err());
    }

    #[test]
    fn added_tokens_are_sorted_by_what_they_look_like() {
        let mut table = VocabTable::new(4).unwrap();
        for (row, (text, special)) in
            [("▁▁", false), ("<|x|>", false), ("[INST]", true), ("<unused7>", false)]
                .into_iter()
                .enumerate()
        {
            table.add(row, text, special);
        }
        assert_eq!(table.texts, ["  ", "<|x|>", "[INST]", "<unused7>"]);
        assert_eq!(table.type_ids(), [4, 3, 3, 3]);
    }
}
