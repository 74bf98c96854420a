//! Text of generated tokens, in pieces that never change afterwards.

use std::sync::Arc;

use crate::ServedTokenizer;

/// Number of tokens of a prompt that give the context of the first generated one.
const CONTEXT: usize = 8;

/// Turns tokens into pieces of text, and ends at the first stop text.
///
/// All tokens are decoded again for each piece, because a decoder may look at neighbours. Characters
/// whose bytes are incomplete are held back, and text that may begin a stop text is too. So all pieces
/// together are the text of all tokens decoded at once.
pub(crate) struct TextStream {
    codec: Option<Arc<dyn ServedTokenizer>>,
    stops: Vec<String>,
    plain: bool,
    /// The end of the prompt, then the generated tokens.
    tokens: Vec<u32>,
    /// Bytes of the text of the prompt's end.
    base: usize,
    /// Bytes that were handed out.
    sent: usize,
    /// Complete characters of the generated tokens.
    chars: usize,
    /// Characters before the last token.
    begin: usize,
    /// The text of all tokens so far.
    last: String,
    stopped: bool,
}

impl TextStream {
    /// Creates a stream of the text after `prompt`; `plain` omits special tokens.
    pub(crate) fn new(
        codec: Option<Arc<dyn ServedTokenizer>>,
        prompt: &[u32],
        stops: Vec<String>,
        plain: bool,
    ) -> Self {
        let tokens = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        let mut stream = Self {
            codec,
            stops,
            plain,
            tokens,
            base: 0,
            sent: 0,
            chars: 0,
            begin: 0,
            last: String::new(),
            stopped: false,
        };
        let before = stream.decoded();
        stream.base = complete(&before).len();
        stream.last = before;
        stream
    }

    fn decoded(&self) -> String {
        match &self.codec {
            Some(codec) => codec.decode(&self.tokens, self.plain).unwrap_or_default(),
            None => String::new(),
        }
    }

    /// Counts the characters before the last token. A character that spans tokens counts after the last of them.
    pub(crate) fn begin(&self) -> usize {
        self.begin
    }

    /// Counts the complete characters of all generated tokens, with those of a stop text.
    pub(crate) fn chars(&self) -> usize {
        self.chars
    }

    /// True if a stop text was found.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Adds a token; returns the text that is certain now.
    pub(crate) fn push(&mut self, token: u32) -> String {
        self.begin = self.chars;
        if self.stopped {
            return String::new();
        }
        self.tokens.push(token);
        let text = self.decoded();
        let whole = complete(&text);
        if follows(&text, &self.last) {
            self.begin = self.last.get(self.base..).unwrap_or_default().chars().count();
        }
        self.chars = whole.get(self.base..).unwrap_or_default().chars().count();
        let new = whole.get(self.base + self.sent..).unwrap_or_default();
        let (new, stopped) = self.cut(new);
        let held = if stopped { 0 } else { self.held(new) };
        self.stopped = stopped;
        let new = new[..new.len() - held].to_owned();
        self.sent += new.len();
        self.last = text;
        new
    }

    /// Returns the text that was held back.
    pub(crate) fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let text = self.decoded();
        let (new, stopped) = self.cut(text.get(self.base + self.sent..).unwrap_or_default());
        self.stopped = stopped;
        let new = new.to_owned();
        self.sent += new.len();
        new
    }

    /// Cuts text before the first stop text.
    fn cut<'a>(&self, text: &'a str) -> (&'a str, bool) {
        match self.stops.iter().filter_map(|stop| text.find(stop.as_str())).min() {
            Some(at) => (&text[..at], true),
            None => (text, false),
        }
    }

    /// Counts the last bytes of a text that may begin a stop text.
    fn held(&self, text: &str) -> usize {
        let held = |stop: &String| {
            let starts = stop.char_indices().map(|(at, _)| at).chain([stop.len()]);
            starts.filter(|at| *at < stop.len() && text.ends_with(&stop[..*at])).max().unwrap_or(0)
        };
        self.stops.iter().map(held).max().unwrap_or(0)
    }
}

/// True if a text goes on after another one with a character, so that no bytes before it become one.
fn follows(text: &str, before: &str) -> bool {
    text.strip_prefix(before).is_some_and(|new| new.contains(|c| c != '\u{fffd}'))
}

/// Most tokens that are decoded together for the offsets of a prompt.
const WINDOW: usize = 16;

/// Returns the number of characters of a prompt's text before each of its tokens. A character that spans
/// tokens counts once, after the last of them. Special tokens that are not in the text have no characters.
pub(crate) fn offsets(codec: &dyn ServedTokenizer, tokens: &[u32], text: &str) -> Vec<usize> {
    let decoded = |tokens: &[u32]| codec.decode(tokens, false).unwrap_or_default();
    let (mut offsets, mut chars, mut rest) = (Vec::with_capacity(tokens.len()), 0, text);
    // Tokens before `known` are counted, and `known` follows the text of `start..known`.
    let (mut start, mut known, mut before) = (0, 0, String::new());
    let mut last = String::new();
    for end in 1..=tokens.len() {
        let window = decoded(&tokens[start..end]);
        let new = window.strip_prefix(before.as_str()).unwrap_or_default();
        let broken = if follows(new, &last) { last.chars().count() } else { 0 };
        offsets.push(chars + broken.min(rest.chars().take(broken).count()));
        new.clone_into(&mut last);
        if (new.is_empty() || complete(new).len() < new.len()) && end - start < WINDOW {
            continue;
        }
        let trimmed = new.strip_prefix(' ').unwrap_or(new);
        let found = if rest.starts_with(new) { new } else { trimmed };
        let plain = || codec.decode(&tokens[known..end], true).unwrap_or_default();
        let count = if rest.starts_with(found) {
            found.chars().count()
        } else if plain().is_empty() {
            0
        } else {
            // A normalizer changed the text: the characters are as many as those of the token.
            new.chars().count().min(rest.chars().count())
        };
        chars += count;
        let bytes = rest.char_indices().nth(count).map_or(rest.len(), |(at, _)| at);
        rest = &rest[bytes..];
        (start, known) = (known, end);
        before = decoded(&tokens[start..known]);
        last.clear();
    }
    offsets
}

/// Returns the text without incomplete characters at its end.
fn complete(text: &str) -> &str {
    text.trim_end_matches('\u{fffd}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CodecError;

    /// One token per byte.
    struct Bytes;

    impl ServedTokenizer for Bytes {
        fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, CodecError> {
            Ok(text.bytes().map(u32::from).collect())
        }

        fn decode(&self, tokens: &[u32], _: bool) -> Result<String, CodecError> {
            let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }

    fn pieces(prompt: &[u8], bytes: &[u8], stops: &[&str]) -> (Vec<String>, bool) {
        let ids = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).collect::<Vec<_>>();
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut stream = TextStream::new(Some(Arc::new(Bytes)), &ids(prompt), stops, true);
        let mut pieces: Vec<String> = ids(bytes).into_iter().map(|id| stream.push(id)).collect();
        pieces.push(stream.finish());
        (pieces, stream.is_stopped())
    }

    #[test]
    fn characters_come_whole() {
        let (found, _) = pieces(b"x", "a€🙂b".as_bytes(), &[]);
        assert_eq!(found, ["a", "", "", "€", "", "", "", "🙂", "b", ""]);
        // Bytes that never become a character are replaced, as they are at once.
        let bytes = [b'a', 0xe2, 0x82, b'b', 0xf0, 0x9f];
        let (found, _) = pieces(b"", &bytes, &[]);
        assert_eq!(found.concat(), String::from_utf8_lossy(&bytes));
        assert_eq!(found[1], "");
    }

    #[test]
    fn offsets_count_characters_once() {
        let text = "a€🙂b\u{fffd}c";
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let found = offsets(&Bytes, &ids, text);
        let want: Vec<usize> = (0..text.len())
            .map(|at| {
                let begun = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap();
                text[..begun].chars().count()
            })
            .collect();
        assert_eq!(found[..8], want[..8]);
        assert_eq!(found.last(), want.last());
        // The same while tokens are generated.
        let mut stream = TextStream::new(Some(Arc::new(Bytes)), &[], Vec::new(), true);
        let streamed: Vec<usize> = ids[..8]
            .iter()
            .map(|id| {
                stream.push(*id);
                stream.begin()
            })
            .collect();
        assert_eq!(streamed, want[..8]);
        // Bytes that never become a character count once it is certain.
        let bytes = [b'a', 0x80, 0xe2, 0x82, b'b', b'c'];
        let text = String::from_utf8_lossy(&bytes);
        let ids: Vec<u32> = bytes.iter().map(|byte| u32::from(*byte)).collect();
        assert_eq!(text, "a\u{fffd}\u{fffd}bc");
        assert_eq!(offsets(&Bytes, &ids, &text), [0, 1, 1, 1, 3, 4]);
        let mut stream = TextStream::new(Some(Arc::new(Bytes)), &[], Vec::new(), true);
        let streamed = ids.iter().map(|id| {
            stream.push(*id);
            stream.begin()
        });
        assert_eq!(streamed.collect::<Vec<_>>(), [0, 1, 1, 1, 3, 4]);
        // Many of them, and a text that a normalizer changed.
        let broken = vec![0x80; 100];
        assert_eq!(offsets(&Bytes, &broken, "").len(), 100);
        let upper: Vec<u32> = b"abc".iter().map(|byte| u32::from(*byte)).collect();
        assert_eq!(offsets(&Bytes, &upper, "ABC"), [0, 1, 2]);
    }

    #[test]
    fn text_ends_before_the_first_stop() {
        for (text, stops, want, stopped) in [
            ("one two three", &["two"][..], "one ", true),
            ("one two three", &["three", "ne"], "o", true),
            ("aab aabb", &["aabb"], "aab ", true),
            ("ends in a", &["abc"], "ends in a", false),
            ("€uro", &["€u"], "", true),
            ("a€", &["€€"], "a€", false),
        ] {
            let (found, ended) = pieces(b"", text.as_bytes(), stops);
            assert_eq!((found.concat().as_str(), ended), (want, stopped), "{text} {stops:?}");
        }
        // The part that may begin a stop text comes once it does not.
        let (found, _) = pieces(b"", b"xabd", &["abc"]);
        assert_eq!(found, ["x", "", "", "abd", ""]);
    }
}
