//! Verbs and answers: one line of JSON each, with frames of numbers after an answer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::EngineLaunch;
use super::process::{Process, ReadFailure, message, plain};
use crate::Error;

/// The longest line; `open` lists the names of taps.
const LINE: usize = 1 << 24;
/// Most numbers of a tap or a part of a state.
const MOST: usize = 1 << 28;
/// Most axes of a frame.
const AXES: usize = 8;

/// Frames that an answer may have.
pub(super) enum ExpectedFrames<'a> {
    /// None.
    Nothing,
    /// One frame `rows` of this shape, and taps of these names with so many rows.
    Rows { rows: usize, vocab: usize, taps: &'a BTreeSet<String>, tokens: usize },
    /// Parts of states.
    States,
}

/// Header of a frame.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct FrameHeader {
    /// `rows`, the name of a tap, or the part of a state.
    pub(super) name: String,
    /// The layer of a state.
    #[serde(default)]
    pub(super) layer: Option<usize>,
    /// The shape, row-major.
    pub(super) shape: Vec<usize>,
    /// Bytes that follow.
    pub(super) bytes: u64,
}

/// Numbers of an answer.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) head: FrameHeader,
    pub(super) data: Vec<f32>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct ChildReply {
    pub(super) body: Value,
    pub(super) frames: Vec<Frame>,
}

/// The line of an answer.
#[derive(Debug, Deserialize)]
struct ReplyLine {
    id: u64,
    #[serde(default)]
    ok: Option<Value>,
    #[serde(default)]
    error: Option<String>,
    /// True if the engine broke, rather than refused.
    #[serde(default)]
    failed: bool,
    #[serde(default)]
    frames: Vec<FrameHeader>,
}

/// A child and the count of its verbs.
#[derive(Debug)]
pub(super) struct Wire {
    launch: EngineLaunch,
    process: Option<Process>,
    /// The reason that the child is gone.
    gone: String,
    verbs: u64,
}

impl Wire {
    pub(super) fn start(launch: &EngineLaunch) -> Result<Self, Error> {
        let process = Process::start(launch).map_err(|e| {
            let advice = launch.advice.as_ref().map(|a| format!("\n{a}")).unwrap_or_default();
            Error::Lost(format!(
                "engine `{}` does not start: `{}`: {e}{advice}",
                launch.name,
                launch.program.display()
            ))
        })?;
        Ok(Self { launch: launch.clone(), process: Some(process), gone: String::new(), verbs: 0 })
    }

    pub(super) fn name(&self) -> &str {
        &self.launch.name
    }

    /// Sends a verb and reads its answer.
    pub(super) fn call(
        &mut self,
        verb: &str,
        body: Value,
        expect: &ExpectedFrames<'_>,
    ) -> Result<ChildReply, Error> {
        self.verbs += 1;
        let id = self.verbs;
        let mut ask = json!({ "id": id, "verb": verb });
        if let (Value::Object(ask), Value::Object(body)) = (&mut ask, body) {
            ask.extend(body);
        }
        let Some(process) = &mut self.process else {
            return Err(Error::Lost(self.gone.clone()));
        };
        process.send(format!("{ask}\n").into_bytes());
        let deadline = Instant::now() + self.launch.patience;
        let line = match process.line(LINE, deadline) {
            Ok(line) => line,
            Err(stop) => return Err(self.stopped(verb, stop, None)),
        };
        let line: ReplyLine = match serde_json::from_slice(&line) {
            Ok(line) => line,
            Err(error) => return Err(self.garbage(verb, &line, &error)),
        };
        if line.id != id {
            let received = line.id;
            return Err(self.lost(verb, &format!("the answer has id {received}; expected {id}")));
        }
        if let Some(words) = line.error {
            if line.ok.is_some() || !line.frames.is_empty() {
                return Err(self.lost(
                    verb,
                    "the answer has `error` beside `ok` or `frames`; expected one of them",
                ));
            }
            let words = message(&words);
            if line.failed {
                return Err(self.lost(verb, &format!("the engine failed: {words}")));
            }
            let cause = self.process.as_ref().and_then(|process| process.cause(&words));
            let cause = cause.map(|line| format!("\nstandard error has: {line}"));
            return Err(Error::Other(format!(
                "engine `{}` refuses `{verb}`: {words}{}",
                self.name(),
                cause.unwrap_or_default()
            )));
        }
        let Some(body) = line.ok else {
            return Err(self.lost(verb, "the answer has neither `ok` nor `error`"));
        };
        if let Err(words) = check(expect, &line.frames) {
            return Err(self.lost(verb, &words));
        }
        let mut frames = Vec::with_capacity(line.frames.len());
        for head in line.frames {
            let count = head.shape.iter().product();
            let Some(process) = &mut self.process else {
                return Err(Error::Lost(self.gone.clone()));
            };
            let data = match process.numbers(count, deadline) {
                Ok(data) => data,
                Err(stop) => return Err(self.stopped(verb, stop, Some(&head.name))),
            };
            // A masked token may have no probability at all.
            let masked = matches!(expect, ExpectedFrames::Rows { .. }) && head.name == "rows";
            if let Some(at) = data
                .iter()
                .position(|x: &f32| x.is_nan() || x.is_infinite() && !(masked && *x < 0.0))
            {
                let value = data[at];
                let name = plain(&head.name);
                let width = head.shape.iter().skip(1).product::<usize>().max(1);
                let place = format!("row {}, column {}", at / width, at % width);
                return Err(self.lost(
                    verb,
                    &format!("frame `{name}` has {value} at {place}; expected finite numbers"),
                ));
            }
            frames.push(Frame { head, data });
        }
        Ok(ChildReply { body, frames })
    }

    /// Reads the body of an answer.
    pub(super) fn read<T: DeserializeOwned>(
        &mut self,
        verb: &str,
        body: Value,
    ) -> Result<T, Error> {
        serde_json::from_value(body)
            .map_err(|e| self.lost(verb, &format!("the answer does not fit: {e}")))
    }

    /// Asks the engine to free its model. One that does not answer is killed soon after.
    pub(super) fn close(&mut self) {
        const SOON: Duration = Duration::from_secs(5);
        self.launch.patience = self.launch.patience.min(SOON);
        self.call("close", json!({}), &ExpectedFrames::Nothing).ok();
    }

    /// Kills the child, and gives the error of a broken protocol.
    pub(super) fn lost(&mut self, verb: &str, words: &str) -> Error {
        let mut text = format!("engine `{}`, verb `{verb}`: {words}", self.name());
        if let Some(mut process) = self.process.take() {
            process.end();
            let last_lines = process.last_words();
            if last_lines.is_empty() {
                text.push_str("\nit wrote nothing to standard error");
            } else {
                text.push_str("\nits last lines on standard error:");
                for line in &last_lines {
                    text.push_str("\n  ");
                    text.push_str(line);
                }
            }
            if let Some(advice) = self.launch.advice.as_ref().filter(|_| {
                last_lines.iter().any(|line: &String| {
                    line.contains("ModuleNotFoundError") || line.contains("ImportError")
                })
            }) {
                text.push('\n');
                text.push_str(advice);
            }
        }
        self.gone.clone_from(&text);
        Error::Lost(text)
    }

    /// Tells why nothing more came.
    fn stopped(&mut self, verb: &str, stop: ReadFailure, frame: Option<&str>) -> Error {
        let words = match stop {
            ReadFailure::Closed => {
                let how = self.process.as_mut().and_then(Process::end);
                let how = how.unwrap_or_else(|| "it closed its standard output".to_owned());
                format!("the engine ended before it answered ({how})")
            }
            ReadFailure::Timeout => {
                let pending = self.process.as_ref().map(Process::pending).unwrap_or_default();
                let sent = match frame {
                    Some(name) => format!("too few bytes of frame `{}`", plain(name)),
                    None if pending.is_empty() => "nothing".to_owned(),
                    None => format!("`{pending}` without an end of line"),
                };
                format!(
                    "no answer within {} s; it sent {sent}. If it needs longer, give the option `engine-timeout SECONDS`",
                    self.launch.patience.as_secs_f64()
                )
            }
            ReadFailure::LineTooLong => {
                format!("a line of more than {LINE} bytes; expected one line of JSON")
            }
        };
        self.lost(verb, &words)
    }

    fn garbage(&mut self, verb: &str, line: &[u8], error: &serde_json::Error) -> Error {
        let text = plain(&String::from_utf8_lossy(line));
        self.lost(verb, &format!(
            "standard output has `{text}`, which is no answer ({error}); expected one line of JSON with `id`. A \
             print of a library goes there too: send prints to standard error"
        ))
    }
}

/// Holds the headers of frames to what was asked for.
fn check(expect: &ExpectedFrames<'_>, heads: &[FrameHeader]) -> Result<(), String> {
    for head in heads {
        let name = plain(&head.name);
        let numbers = head.shape.iter().try_fold(1_usize, |n, axis| n.checked_mul(*axis));
        // The size of rows is known; that of taps and states is the engine's to say.
        let rows = matches!(expect, ExpectedFrames::Rows { .. }) && head.name == "rows";
        let numbers = numbers.filter(|n| (rows || *n <= MOST) && head.shape.len() <= AXES);
        let Some(numbers) = numbers.filter(|n| (*n as u64).checked_mul(4) == Some(head.bytes))
        else {
            return Err(format!(
                "frame `{name}` has shape {:?} and {} bytes; expected 4 bytes per number, at most {MOST} numbers \
                 and {AXES} axes",
                head.shape, head.bytes
            ));
        };
        match expect {
            ExpectedFrames::States if numbers == 0 || head.layer.is_none() => {
                return Err(format!("frame `{name}` of a state has no `layer` or no numbers"));
            }
            ExpectedFrames::Nothing | ExpectedFrames::Rows { .. } | ExpectedFrames::States => {}
        }
    }
    let (rows, vocab, taps, tokens) = match *expect {
        ExpectedFrames::Nothing if heads.is_empty() => return Ok(()),
        ExpectedFrames::Nothing => {
            return Err(format!("{} frames came; expected none", heads.len()));
        }
        ExpectedFrames::States => return Ok(()),
        ExpectedFrames::Rows { rows, vocab, taps, tokens } => (rows, vocab, taps, tokens),
    };
    let Some((first, tap_heads)) = heads.split_first().filter(|(first, _)| first.name == "rows")
    else {
        return Err("the first frame is not `rows`".to_owned());
    };
    if first.shape != [rows, vocab] {
        return Err(format!("`rows` has shape {:?}; expected [{rows}, {vocab}]", first.shape));
    }
    let mut seen = BTreeSet::new();
    for head in tap_heads {
        let name = plain(&head.name);
        if !taps.contains(&head.name) {
            return Err(format!("frame `{name}` is no tap that was asked for"));
        }
        if !seen.insert(&head.name) {
            return Err(format!("tap `{name}` came twice"));
        }
        if head.shape.first() != Some(&tokens) {
            return Err(format!(
                "tap `{name}` has shape {:?}; expected {tokens} rows, one for each token of the step",
                head.shape
            ));
        }
    }
    match taps.iter().find(|tap| !seen.contains(tap)) {
        Some(tap) => Err(format!("tap `{tap}` was asked for and did not come")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &str, shape: &[usize], bytes: u64) -> FrameHeader {
        FrameHeader { name: name.to_owned(), layer: None, shape: shape.to_vec(), bytes }
    }

    #[test]
    fn frames_are_held_to_what_was_asked_for() {
        let taps = BTreeSet::from(["a".to_owned()]);
        let none = BTreeSet::new();
        let rows_header = head("rows", &[2, 3], 24);
        for (expect, heads, words) in [
            (ExpectedFrames::Nothing, vec![rows_header.clone()], "expected none"),
            (expected_rows(&none), vec![], "not `rows`"),
            (expected_rows(&none), vec![head("rows", &[2, 4], 32)], "expected [2, 3]"),
            (expected_rows(&none), vec![head("rows", &[2, 3], 20)], "4 bytes per number"),
            (expected_rows(&none), vec![head("rows", &[usize::MAX, 3], 24)], "at most"),
            (
                expected_rows(&none),
                vec![head("rows", &[1 << 20, 1 << 20], 1 << 42)],
                "expected [2, 3]",
            ),
            (
                expected_rows(&none),
                vec![rows_header.clone(), rows_header.clone()],
                "no tap that was asked for",
            ),
            (expected_rows(&taps), vec![rows_header.clone()], "did not come"),
            (
                expected_rows(&taps),
                vec![rows_header.clone(), head("a", &[1, 2], 8)],
                "expected 2 rows",
            ),
            (
                expected_rows(&taps),
                vec![rows_header.clone(), head("a", &[2], 8), head("a", &[2], 8)],
                "twice",
            ),
            (ExpectedFrames::States, vec![head("k", &[2], 8)], "no `layer`"),
        ] {
            let error = check(&expect, &heads).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(check(&expected_rows(&taps), &[rows_header, head("a", &[2, 5], 40)]), Ok(()));
    }

    fn expected_rows(taps: &BTreeSet<String>) -> ExpectedFrames<'_> {
        ExpectedFrames::Rows { rows: 2, vocab: 3, taps, tokens: 2 }
    }
}
