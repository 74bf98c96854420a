//! Encoding and decoding of text, after llama.cpp's vocabulary code.
//!
//! A word is a chain of characters. The best pair of neighbours that forms a token is joined until none is
//! left. The best pair is the earliest merge, or the highest score; in a tie, the first.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::super::TokenizerKind;
use super::super::vocabulary::{is_itself, spelled};
use super::loaded::{BYTE, LlamaTokenizer};

/// Reason that a text has no tokens, as part of a sentence.
#[derive(Debug, Clone, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum TokenizeError {
    #[error("there is no token for byte {byte:#04X}")]
    NoToken { byte: u8 },
    #[error(transparent)]
    Split(#[from] fancy_regex::Error),
}

/// Pair of neighbours that forms a token.
struct MergeCandidate {
    /// Priority; lower is better.
    rank: Rank,
    left: usize,
    right: usize,
    /// Text of both parts, used to detect that they have changed.
    text: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Rank {
    Merge(usize),
    Score(f32),
}

/// Part of a word, linked to its neighbours.
struct Symbol {
    from: usize,
    to: usize,
    before: Option<usize>,
    after: Option<usize>,
}

impl LlamaTokenizer {
    /// Returns the tokens of a text in which special tokens count as plain text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut out = Vec::new();
        self.encode_with(text, &self.added, &mut out)?;
        Ok(out)
    }

    /// Returns the tokens of a rendered conversation. Special tokens in the text are recognized, and none
    /// are added around the text.
    pub fn conversation(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut out = Vec::new();
        self.encode_with(text, &self.named, &mut out)?;
        Ok(out)
    }

    /// Returns the tokens of a prompt. Special tokens in the text are recognized, and the tokens around
    /// every prompt are added.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut out = Vec::new();
        self.encode_with(text, &self.named, &mut out)?;
        Ok(self.surrounded(&out))
    }

    /// Returns the tokens of a text with those around every text.
    pub(super) fn surrounded(&self, ids: &[u32]) -> Vec<u32> {
        let (before, after) = self.around;
        before.into_iter().chain(ids.iter().copied()).chain(after).collect()
    }

    fn encode_with(
        &self,
        text: &str,
        tokens: &[u32],
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        let mut blank = self.blank_first;
        for piece in self.pieces(text, tokens) {
            match piece {
                TextFragment::Token(id) => {
                    out.push(id);
                    blank = self.blank_first;
                }
                TextFragment::Text(part) => {
                    if self.kind == TokenizerKind::Pieces {
                        self.likeliest(part, out);
                        continue;
                    }
                    let mut part = part.to_owned();
                    if std::mem::take(&mut blank) {
                        part.insert(0, ' ');
                    }
                    if self.escapes() {
                        part = part.replace(' ', "▁");
                    }
                    match self.kind {
                        TokenizerKind::Scores | TokenizerKind::Pieces => self.join(&part, out)?,
                        TokenizerKind::Merges => {
                            for word in self.splitter.words(&part)? {
                                let word = if self.spells_bytes() { spell(&word) } else { word };
                                self.join(&word, out)?;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Decodes tokens to text, removing a space before the first token.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            let text = self.texts.get(id as usize).map_or("", String::as_str);
            let ty = self.types.get(id as usize).copied();
            match self.kind {
                _ if ty == Some(BYTE) => bytes.extend(super::super::spm::byte(text)),
                TokenizerKind::Merges if self.is_normal(id) && self.spells_bytes() => {
                    bytes.extend(text.chars().filter_map(unspell));
                }
                _ if self.is_normal(id) => bytes.extend(text.replace('▁', " ").into_bytes()),
                _ => bytes.extend(text.as_bytes()),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = if self.blank_first { text.strip_prefix(' ').unwrap_or(&text) } else { &text };
        text.to_owned()
    }

    /// Splits a text at added tokens, searching the whole text for the longest ones first.
    fn pieces<'a>(&self, text: &'a str, tokens: &[u32]) -> Vec<TextFragment<'a>> {
        let mut pieces = vec![TextFragment::Text(text)];
        for &id in tokens {
            let token = self.texts[id as usize].as_str();
            let mut split = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let TextFragment::Text(mut remaining) = piece else {
                    split.push(piece);
                    continue;
                };
                while let Some(at) = remaining.find(token) {
                    split.extend([TextFragment::Text(&remaining[..at]), TextFragment::Token(id)]);
                    remaining = &remaining[at + token.len()..];
                }
                split.push(TextFragment::Text(remaining));
            }
            pieces = split;
        }
        pieces.retain(|piece| !matches!(piece, TextFragment::Text("")));
        pieces
    }

    /// Joins the characters of a word into tokens.
    fn join(&self, word: &str, out: &mut Vec<u32>) -> Result<(), TokenizeError> {
        if self.kind == TokenizerKind::Merges
            && self.name.is_some_and(|name| name.ignore_merges)
            && let Some(id) = self.id(word)
        {
            out.push(id);
            return Ok(());
        }
        let mut parts: Vec<Symbol> = Vec::new();
        for (at, c) in word.char_indices() {
            let n = parts.len();
            parts.push(Symbol {
                from: at,
                to: at + c.len_utf8(),
                before: n.checked_sub(1),
                after: Some(n + 1),
            });
        }
        if let Some(last) = parts.last_mut() {
            last.after = None;
        }
        let mut heap = BinaryHeap::new();
        for right in 1..parts.len() {
            self.pair(word, &parts, Some(right - 1), Some(right), &mut heap);
        }
        while let Some(Reverse(MergeCandidate { left, right, text, .. })) = heap.pop() {
            // Pairs whose parts have changed are skipped.
            let l = &word[parts[left].from..parts[left].to];
            let r = &word[parts[right].from..parts[right].to];
            if l.is_empty()
                || r.is_empty()
                || l.len() + r.len() != text.len()
                || !text.starts_with(l)
            {
                continue;
            }
            let to = parts[right].to;
            let after = parts[right].after;
            parts[right].from = to;
            parts[left].to = to;
            parts[left].after = after;
            if let Some(after) = after {
                parts[after].before = Some(left);
            }
            self.pair(word, &parts, parts[left].before, Some(left), &mut heap);
            self.pair(word, &parts, Some(left), parts[left].after, &mut heap);
        }
        for part in parts.iter().filter(|part| part.to > part.from) {
            self.token(&word[part.from..part.to], out)?;
        }
        Ok(())
    }

    fn pair(
        &self,
        word: &str,
        parts: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
        heap: &mut BinaryHeap<Reverse<MergeCandidate>>,
    ) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let l = &parts[left];
        let r = &parts[right];
        let text = &word[l.from..r.to];
        let rank = match self.kind {
            TokenizerKind::Merges => {
                self.rank(&word[l.from..l.to], &word[r.from..r.to]).map(Rank::Merge)
            }
            TokenizerKind::Scores | TokenizerKind::Pieces => {
                self.id(text).map(|id| Rank::Score(self.scores[id as usize]))
            }
        };
        if let Some(rank) = rank {
            heap.push(Reverse(MergeCandidate { rank, left, right, text: text.to_owned() }));
        }
    }

    /// Appends the token of a part, or those of its bytes.
    fn token(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizeError> {
        if let Some(id) = self.id(text) {
            out.push(id);
            return Ok(());
        }
        for byte in text.bytes() {
            let id = if self.spells_bytes() {
                // Loaders drop bytes without a token.
                let one = [byte];
                match std::str::from_utf8(&one).ok().and_then(|text| self.id(text)) {
                    Some(id) => id,
                    None => continue,
                }
            } else {
                let id = self.bytes.get(&byte).copied();
                id.ok_or(TokenizeError::NoToken { byte })?
            };
            out.push(id);
        }
        Ok(())
    }
}

enum TextFragment<'a> {
    Token(u32),
    Text(&'a str),
}

impl Ord for MergeCandidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = match (self.rank, other.rank) {
            (Rank::Merge(a), Rank::Merge(b)) => a.cmp(&b),
            (Rank::Score(a), Rank::Score(b)) => b.total_cmp(&a),
            _ => Ordering::Equal,
        };
        rank.then(self.left.cmp(&other.left)).then(self.right.cmp(&other.right))
    }
}

impl PartialOrd for MergeCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for MergeCandidate {}

/// Spells bytes as characters: the visible ones of Latin-1 unchanged, others from U+0100 on.
fn spell(word: &str) -> String {
    word.bytes().map(spelled).collect()
}

/// Returns the byte that a character spells.
fn unspell(c: char) -> Option<u8> {
    let number = u32::from(c);
    match u8::try_from(number) {
        Ok(byte) if is_itself(byte) => Some(byte),
        Ok(_) => None,
        Err(_) => {
            let n = usize::try_from(number - 256).ok()?;
            (0..=u8::MAX).filter(|&byte| !is_itself(byte)).nth(n)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spelled_and_read_back() {
        assert_eq!(spell(" \n\u{ad}é!"), "ĠĊÂŃÃ©!");
        for byte in 0..0x80 {
            let spelled = spell(&char::from(byte).to_string());
            assert_eq!(spelled.chars().map(unspell).collect::<Vec<_>>(), [Some(byte)]);
        }
        let all: Vec<u8> = (0..0x180).filter_map(char::from_u32).filter_map(unspell).collect();
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 256);
        assert_eq!(unspell('世'), None);
        assert_eq!(unspell(' '), None);
    }
}
