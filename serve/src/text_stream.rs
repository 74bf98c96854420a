//! Text of generated tokens, in pieces that never change afterwards.

use std::sync::Arc;

use crate::ServedTokenizer;

/// Number of tokens of a prompt that give the context of the first generated one.
const CONTEXT: usize = 8;
/// Most tokens that wait for the rest of a character.
const WINDOW: usize = 16;

/// Turns tokens into pieces of text, and ends at the first stop text.
///
/// A decoder may look at neighbours, so a token is decoded together with those before it, up to the last ones whose
/// text was complete. Characters whose bytes are incomplete are held back, and text that may begin a stop text is too.
/// So all pieces together are the text of all tokens decoded at once, but for bytes that never become a character:
/// some decoders then replace bytes before them too, which were sent already.
///
/// ```
/// # use onboard_serve::{CodecError, ServedTokenizer, TextStream};
/// # struct Letters;
/// # impl ServedTokenizer for Letters {
/// #     fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, CodecError> { Ok(text.chars().map(u32::from).collect()) }
/// #     fn decode(&self, ids: &[u32], _: bool) -> Result<String, CodecError> {
/// #         Ok(ids.iter().filter_map(|id| char::from_u32(*id)).collect())
/// #     }
/// # }
/// let mut stream = TextStream::new(Some(std::sync::Arc::new(Letters)), &[], vec!["no".to_owned()], true);
/// assert_eq!([stream.push(97), stream.push(110), stream.push(98)], ["a", "", "nb"]);
/// ```
pub struct TextStream {
    codec: Option<Arc<dyn ServedTokenizer>>,
    stops: Vec<String>,
    plain: bool,
    /// The end of the prompt or of the tokens whose text is complete, then those that follow.
    window: Vec<u32>,
    /// Tokens at the beginning of the window whose text is complete.
    read: usize,
    /// Characters of the window's text that were taken.
    taken: usize,
    /// The text of the window without its last token.
    last: String,
    /// Text that was taken and may begin a stop text.
    held: String,
    /// Complete characters of the generated tokens.
    chars: usize,
    /// Characters before the last token.
    begin: usize,
    stopped: bool,
}

impl TextStream {
    /// Creates a stream of the text after `prompt`; `plain` omits special tokens.
    pub fn new(
        codec: Option<Arc<dyn ServedTokenizer>>,
        prompt: &[u32],
        stops: Vec<String>,
        plain: bool,
    ) -> Self {
        let window = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        let mut stream = Self {
            codec,
            stops,
            plain,
            read: window.len(),
            window,
            taken: 0,
            last: String::new(),
            held: String::new(),
            chars: 0,
            begin: 0,
            stopped: false,
        };
        stream.last = stream.decoded();
        stream.taken = complete(&stream.last).chars().count();
        stream
    }

    fn decoded(&self) -> String {
        match &self.codec {
            Some(codec) => codec.decode(&self.window, self.plain).unwrap_or_default(),
            None => String::new(),
        }
    }

    /// Counts the characters before the last token. A character that spans tokens counts after the last of them.
    pub fn begin(&self) -> usize {
        self.begin
    }

    /// Counts the complete characters of all generated tokens, with those of a stop text.
    pub fn chars(&self) -> usize {
        self.chars
    }

    /// True if a stop text was found.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Adds a token; returns the text that is certain now.
    pub fn push(&mut self, token: u32) -> String {
        self.begin = self.chars;
        if self.stopped {
            return String::new();
        }
        self.window.push(token);
        let text = self.decoded();
        if text == self.last && complete(&text).len() == text.len() {
            // A token without text, such as a special one.
            self.window.pop();
            return String::new();
        }
        if follows(&text, &self.last) {
            self.begin += self.last.chars().count().saturating_sub(self.taken);
        }
        let new = behind(&text, self.taken);
        let complete_text =
            if self.window.len() - self.read < WINDOW { complete(new) } else { new };
        let count = complete_text.chars().count();
        self.chars += count;
        self.taken += count;
        self.held.push_str(complete_text);
        if !new.is_empty() && complete_text.len() == new.len() {
            self.window.drain(..self.read);
            self.read = self.window.len();
            self.last = self.decoded();
            self.taken = self.last.chars().count();
        } else {
            self.last = text;
        }
        let (new, stopped) = self.cut(&self.held);
        let held_len = if stopped { 0 } else { self.held(new) };
        let new = new[..new.len() - held_len].to_owned();
        self.stopped = stopped;
        self.held.drain(..new.len());
        new
    }

    /// Returns the text that was held back.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let text = self.decoded();
        self.held.push_str(behind(&text, self.taken));
        self.taken = text.chars().count();
        let (new, stopped) = self.cut(&self.held);
        let new = new.to_owned();
        self.stopped = stopped;
        self.held.clear();
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
        self.stops
            .iter()
            .map(|stop: &String| {
                let starts = stop.char_indices().map(|(at, _)| at).chain([stop.len()]);
                starts
                    .filter(|at| *at < stop.len() && text.ends_with(&stop[..*at]))
                    .max()
                    .unwrap_or(0)
            })
            .max()
            .unwrap_or(0)
    }
}

/// True if a text goes on after another one with a character, so that no bytes before it become one.
fn follows(text: &str, before: &str) -> bool {
    text.strip_prefix(before).is_some_and(|new| new.contains(|c| c != '\u{fffd}'))
}

/// Returns the number of characters of a prompt's text before each of its tokens. A character that spans
/// tokens counts once, after the last of them. Special tokens that are not in the text have no characters.
pub(crate) fn offsets(codec: &dyn ServedTokenizer, tokens: &[u32], text: &str) -> Vec<usize> {
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut chars = 0;
    let mut remaining = text;
    // Tokens before `known` are counted, and `known` follows the text of `start..known`.
    let mut start = 0;
    let mut known = 0;
    let mut before = 0;
    let mut last = String::new();
    for end in 1..=tokens.len() {
        let window = codec.decode(&tokens[start..end], false).unwrap_or_default();
        let new = behind(&window, before);
        let broken = if follows(new, &last) { last.chars().count() } else { 0 };
        offsets.push(chars + broken.min(remaining.chars().take(broken).count()));
        new.clone_into(&mut last);
        if (new.is_empty() || complete(new).len() < new.len()) && end - start < WINDOW {
            continue;
        }
        let trimmed = new.strip_prefix(' ').unwrap_or(new);
        let piece = if remaining.starts_with(new) { new } else { trimmed };
        let count = if remaining.starts_with(piece) {
            piece.chars().count()
        } else if codec.decode(&tokens[known..end], true).unwrap_or_default().is_empty() {
            0
        } else {
            // A normalizer changed the text: the characters are as many as those of the token.
            new.chars().count().min(remaining.chars().count())
        };
        chars += count;
        let bytes = remaining.char_indices().nth(count).map_or(remaining.len(), |(at, _)| at);
        remaining = &remaining[bytes..];
        (start, known) = (known, end);
        let window = codec.decode(&tokens[start..known], false).unwrap_or_default();
        before = window.chars().count();
        last.clear();
    }
    offsets
}

/// Returns the text behind so many characters.
fn behind(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or("", |(at, _)| &text[at..])
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
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut stream = TextStream::new(Some(Arc::new(Bytes)), &ids_of(prompt), stops, true);
        let mut pieces: Vec<String> = ids_of(bytes).into_iter().map(|id| stream.push(id)).collect();
        pieces.push(stream.finish());
        (pieces, stream.is_stopped())
    }

    fn ids_of(bytes: &[u8]) -> Vec<u32> {
        bytes.iter().map(|byte| u32::from(*byte)).collect()
    }

    #[test]
    fn characters_come_whole() {
        let (texts, _) = pieces(b"x", "a€🙂b".as_bytes(), &[]);
        assert_eq!(texts, ["a", "", "", "€", "", "", "", "🙂", "b", ""]);
        // Bytes that never become a character are replaced, as they are at once.
        let bytes = [b'a', 0xe2, 0x82, b'b', 0xf0, 0x9f];
        let (texts, _) = pieces(b"", &bytes, &[]);
        assert_eq!(texts.concat(), String::from_utf8_lossy(&bytes));
        assert_eq!(texts[1], "");
    }

    /// One token per byte, decoded as tokenizers with tokens for bytes do: if bytes that follow each other are no text,
    /// all of them are replaced. Capitals are tokens of text.
    struct Runs;

    impl ServedTokenizer for Runs {
        fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, CodecError> {
            Bytes.encode(text, special)
        }

        fn decode(&self, tokens: &[u32], _: bool) -> Result<String, CodecError> {
            let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
            let runs = bytes.chunk_by(|a, b| a.is_ascii_uppercase() == b.is_ascii_uppercase());
            Ok(runs
                .map(|run: &[u8]| match std::str::from_utf8(run) {
                    Ok(text) => text.to_owned(),
                    Err(_) => "\u{fffd}".repeat(run.len()),
                })
                .collect())
        }
    }

    #[test]
    fn text_goes_on_behind_bytes_that_are_none() {
        // A line end was sent before the byte behind it turned out to be no text.
        let (text, begins, _) = stream_runs(b"A\n\xf0BCD", &[]);
        assert_eq!((text.as_str(), &begins[..]), ("A\n\u{fffd}BCD", &[0, 1, 2, 3, 4, 5][..]));
        let (text, _, stopped) = stream_runs(b"A\n\xf0BCDE", &["CD"]);
        assert_eq!((text.as_str(), stopped), ("A\n\u{fffd}B", true));
        // Characters of several bytes behind each other.
        let bytes = "A\n🙂日本C".as_bytes();
        let (text, begins, _) = stream_runs(bytes, &[]);
        assert_eq!(text.as_bytes(), bytes);
        assert_eq!(begins, [0, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5]);
        // Many bytes that are none, and any others: the text is that of all tokens but for bytes that were sent.
        let broken = [&b"A"[..], &[0x80; 100], b"BC"].concat();
        let (text, _, _) = stream_runs(&broken, &[]);
        assert_eq!(text, format!("A{}BC", "\u{fffd}".repeat(100)));
        let mut seed = 1_u64;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..40)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    [b'A', b'\n', b'B', 0xe2, 0x82, 0xac, 0xf0, b'a'][(seed >> 60) as usize % 8]
                })
                .collect();
            let ids: Vec<u32> = bytes.iter().map(|byte| u32::from(*byte)).collect();
            let whole_text = Runs.decode(&ids, true).unwrap();
            let (text, begins, _) = stream_runs(&bytes, &[]);
            // Nothing that all tokens together say is missing.
            let mut remaining = text.chars();
            let mut known = whole_text.chars().filter(|c| *c != '\u{fffd}');
            assert!(known.all(|c| remaining.any(|other| other == c)), "{text:?} {whole_text:?}");
            assert!(
                begins.is_sorted() && begins.last() <= Some(&text.chars().count()),
                "{begins:?}"
            );
            assert_eq!(offsets(&Runs, &ids, &whole_text).len(), ids.len());
        }
    }

    fn stream_runs(bytes: &[u8], stops: &[&str]) -> (String, Vec<usize>, bool) {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut stream = TextStream::new(Some(Arc::new(Runs)), &[], stops, true);
        let mut begins = Vec::new();
        let mut text = String::new();
        for byte in bytes {
            text += &stream.push(u32::from(*byte));
            begins.push(stream.begin());
        }
        text += &stream.finish();
        (text, begins, stream.is_stopped())
    }

    #[test]
    fn offsets_count_characters_once() {
        let text = "a€🙂b\u{fffd}c";
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let counted = offsets(&Bytes, &ids, text);
        let want: Vec<usize> = (0..text.len())
            .map(|at| {
                let begun = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap();
                text[..begun].chars().count()
            })
            .collect();
        assert_eq!(counted[..8], want[..8]);
        assert_eq!(counted.last(), want.last());
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
            let (texts, ended) = pieces(b"", text.as_bytes(), stops);
            assert_eq!((texts.concat().as_str(), ended), (want, stopped), "{text} {stops:?}");
        }
        // The part that may begin a stop text comes once it does not.
        let (texts, _) = pieces(b"", b"xabd", &["abc"]);
        assert_eq!(texts, ["x", "", "", "abd", ""]);
    }
}
