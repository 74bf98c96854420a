//! Server-sent events, with the time at which each one arrived.

use std::time::Duration;

use super::{LoadFailure, LoadFailureKind};
use crate::error::shown;

/// Received bytes, and the time after which each part had arrived.
#[derive(Debug, Default)]
pub(super) struct TimedBytes {
    pub(super) bytes: Vec<u8>,
    /// Ends of the parts in `bytes`, in ascending order, each with its time.
    pub(super) arrivals: Vec<(usize, Duration)>,
}

impl TimedBytes {
    pub(super) fn push(&mut self, part: &[u8], at: Duration) {
        self.bytes.extend_from_slice(part);
        self.arrivals.push((self.bytes.len(), at));
    }

    /// True if the bytes end with the event that ends a stream.
    pub(super) fn is_done(&self) -> bool {
        let line = self.bytes.trim_ascii_end().strip_suffix(b"[DONE]");
        let before = line.and_then(|line| line.trim_ascii_end().strip_suffix(b"data:"));
        before.is_some_and(|before| matches!(before.last(), None | Some(b'\n' | b'\r')))
    }
}

/// Event of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamEvent {
    /// Contents of its `data:` lines.
    pub(super) data: String,
    /// Time at which its last line was complete.
    pub(super) at: Duration,
}

/// Parses the events of a stream, by the rules of the HTML standard. Lines with unknown fields, which the
/// standard ignores, are refused: they show that the answer is no stream.
pub(super) fn events(stream: &TimedBytes) -> Result<Vec<StreamEvent>, LoadFailure> {
    let text = std::str::from_utf8(&stream.bytes).map_err(|error| {
        LoadFailure::malformed(format!(
            "the answer is not UTF-8 from byte {} on",
            error.valid_up_to()
        ))
    })?;
    let mut events = Vec::new();
    let mut open: Option<StreamEvent> = None;
    let mut arrivals = stream.arrivals.iter();
    let mut arrival = arrivals.next();
    let mut begin = 0;
    while begin < text.len() {
        let remaining = &text[begin..];
        let length = remaining.find(['\n', '\r']).unwrap_or(remaining.len());
        let line = &remaining[..length];
        let newline = if remaining[length..].starts_with("\r\n") { 2 } else { 1 };
        begin = (begin + length + newline).min(text.len());
        // A line is complete with the part that holds its last character or the newline.
        let end = begin.saturating_sub(newline - 1);
        while let Some((to, _)) = arrival
            && *to < end
        {
            arrival = arrivals.next();
        }
        let at = arrival.or(stream.arrivals.last()).map_or(Duration::ZERO, |(_, at)| *at);
        if line.is_empty() {
            events.extend(open.take());
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut open {
                Some(event) => {
                    event.data.push('\n');
                    event.data.push_str(value);
                    event.at = at;
                }
                None => open = Some(StreamEvent { data: value.to_owned(), at }),
            },
            // llama-server once sent errors in a field of this name.
            "error" => {
                return Err(LoadFailure::new(LoadFailureKind::ErrorEvent, shown(value)));
            }
            "" | "event" | "id" | "retry" => {}
            _ => {
                let words = format!(
                    "line `{}` is no field of an event; expected `data: {{...}}`",
                    shown(line)
                );
                return Err(LoadFailure::malformed(words));
            }
        }
    }
    events.extend(open);
    Ok(events)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(parts: &[&str]) -> TimedBytes {
        let mut stream = TimedBytes::default();
        for (n, part) in parts.iter().enumerate() {
            stream.push(part.as_bytes(), Duration::from_secs(n as u64));
        }
        stream
    }

    fn parsed(parts: &[&str]) -> Vec<(String, u64)> {
        let events = events(&stream(parts)).unwrap();
        events.into_iter().map(|event| (event.data, event.at.as_secs())).collect()
    }

    #[test]
    fn an_event_has_the_time_of_its_last_line() {
        assert_eq!(
            parsed(&["data: a\n\ndata: b\n", "\n", "data:c\n\n"]),
            [pair("a", 0), pair("b", 0), pair("c", 2)]
        );
        assert_eq!(parsed(&["data: a", "b\r\n", "\r\n: ping\n\n"]), [pair("ab", 1)]);
        assert_eq!(parsed(&["data: x\n", "data: y\r\rid: 3\n\n"]), [pair("x\ny", 1)]);
        // The stream may end without a blank line.
        assert_eq!(parsed(&["data: a\n\n", "data: [DONE]"]), [pair("a", 0), pair("[DONE]", 1)]);
        assert!(stream(&["data: [DO", "NE]\n\n"]).is_done() && !stream(&["data: 1"]).is_done());
        // A token may be spelled like the last event.
        assert!(!stream(&["data: {\"text\": \"data: [DONE]"]).is_done());
        assert!(stream(&["data: 1\n\ndata:[DONE]"]).is_done());
        assert!(parsed(&["", "\n\n"]).is_empty());
    }

    fn pair(text: &str, at: u64) -> (String, u64) {
        (text.to_owned(), at)
    }

    #[test]
    fn other_answers_are_refused_by_kind() {
        for (text, kind) in [
            ("<html>hello</html>", LoadFailureKind::Malformed),
            ("{\"a\": 1}\n", LoadFailureKind::Malformed),
            ("error: {\"message\": \"full\"}\n", LoadFailureKind::ErrorEvent),
        ] {
            assert_eq!(events(&stream(&[text])).unwrap_err().kind, kind, "{text}");
        }
        let mut bytes = stream(&["data: a\n\n"]);
        bytes.push(b"data: \xff\n\n", Duration::ZERO);
        let failure = events(&bytes).unwrap_err();
        assert!(failure.words.contains("not UTF-8 from byte 15"), "{failure}");
    }

    proptest! {
        /// Events do not depend on the borders of parts, and times never run backwards.
        #[test]
        fn borders_do_not_show(
            lines in prop::collection::vec("(data: ?[a-z:]{0,6}|: x|id: 1|)(\n|\r\n|\r)", 0..12),
            cuts in prop::collection::vec(0usize..200, 0..12),
        ) {
            let text = lines.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let parts: Vec<&str> = cuts.windows(2).map(|two| &text[two[0]..two[1]]).collect();
            let uncut = events(&stream(&[&text])).unwrap();
            let cut = events(&stream(&parts)).unwrap();
            prop_assert_eq!(uncut.len(), cut.len());
            prop_assert!(uncut.iter().zip(&cut).all(|(a, b)| a.data == b.data));
            prop_assert!(cut.is_sorted_by_key(|event| event.at));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut stream = TimedBytes::default();
            stream.push(&bytes, Duration::ZERO);
            drop(events(&stream));
        }
    }
}
