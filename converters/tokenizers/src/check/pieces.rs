//! Unigram segmentation of a text, after llama.cpp's implementation.
//!
//! Text is normalized from left to right: user-defined tokens stay, the longest match in the table of
//! replacements is replaced, spaces become `▁`. Of all segmentations, the one with the highest sum of
//! scores is taken. Text that no piece covers is unknown, with a score ten below the lowest.

use super::loaded::{LlamaTokenizer, NORMAL, UNUSED, USER_DEFINED};

/// Penalty of an unknown character, relative to the lowest score.
const PENALTY: f64 = 10.0;
const BLANK: char = '▁';

/// Best segmentation up to a position in the text.
#[derive(Clone, Copy)]
struct BestPath {
    id: u32,
    from: usize,
    score: f64,
}

impl LlamaTokenizer {
    /// Appends the most probable pieces of a text.
    pub(super) fn likeliest(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalized(text);
        let unknown = self.unknown;
        let mut best = vec![BestPath { id: unknown, from: 0, score: -f64::MAX }; text.len() + 1];
        best[0].score = 0.0;
        let missing = self.lowest() - PENALTY;
        let longest = self.longest;
        for (at, first) in text.char_indices() {
            let here = best[at].score;
            let mut alone = false;
            for (end, c) in text[at..].char_indices() {
                let end = at + end + c.len_utf8();
                if end - at > longest {
                    break;
                }
                let Some(id) = self.id(&text[at..end]) else { continue };
                let ty = self.types[id as usize];
                if !matches!(ty, NORMAL | USER_DEFINED | UNUSED) {
                    continue;
                }
                alone |= end - at == first.len_utf8();
                let score =
                    if ty == USER_DEFINED { 0.0 } else { f64::from(self.scores[id as usize]) };
                if here + score > best[end].score {
                    best[end] = BestPath { id, from: at, score: here + score };
                }
            }
            let end = at + first.len_utf8();
            if !alone && here + missing > best[end].score {
                best[end] = BestPath { id: unknown, from: at, score: here + missing };
            }
        }
        let begin = out.len();
        let mut end = text.len();
        while end > 0 {
            let BestPath { id, from, .. } = best[end];
            // Consecutive unknown characters form one token.
            if id != unknown || out.len() == begin || out.last() != Some(&unknown) {
                out.push(id);
            }
            end = from;
        }
        out[begin..].reverse();
    }

    fn lowest(&self) -> f64 {
        let scores = self.scores.iter().zip(&self.types);
        let normal = scores.filter(|(_, ty)| **ty == NORMAL).map(|(score, _)| f64::from(*score));
        normal.fold(f64::from(f32::MAX), f64::min)
    }

    fn normalized(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 3);
        let mut begun = false;
        let mut inside = false;
        let mut remaining = text;
        while let Some(c) = remaining.chars().next() {
            let token = self.added.iter().map(|&id| self.texts[id as usize].as_str());
            let token = token.into_iter().find(|token| remaining.starts_with(token));
            let (used, replacement) = match token {
                Some(token) => (token.len(), token),
                None => {
                    match self.charsmap.as_ref().and_then(|map| map.longest(remaining.as_bytes())) {
                        Some((used, text)) if remaining.is_char_boundary(used) => (used, text),
                        _ => (c.len_utf8(), &remaining[..c.len_utf8()]),
                    }
                }
            };
            for c in replacement.chars() {
                if c == ' ' {
                    inside = false;
                    if !self.merges_blanks {
                        out.push(BLANK);
                    }
                    continue;
                }
                if !std::mem::replace(&mut inside, true)
                    && ((self.blank_first && !begun) || self.merges_blanks)
                {
                    out.push(BLANK);
                    begun = true;
                }
                out.push(c);
            }
            remaining = &remaining[used..];
        }
        out
    }
}
