//! Taps and states: there as promised, and in the layouts that comparisons expect.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::super::wire::{ExpectedFrames, Frame};
use super::{ConformanceResult, ConformanceTest};
use crate::Error;

impl ConformanceTest {
    /// Shows taps of a prompt at once and token by token.
    pub(super) fn taps(&mut self, prompt: &[u32]) -> Result<(), Error> {
        const CHECK: &str = "taps are the same at once and token by token";
        let taps: BTreeSet<String> = self.opened.taps.iter().cloned().collect();
        if taps.is_empty() {
            self.not_shown("taps", CHECK);
            return Ok(());
        }
        let prompt_slot = self.fresh();
        let single = self.fresh();
        let mut outcome = Ok(format!("{} taps", taps.len()));
        match self.show(prompt_slot, 0, prompt, &taps)? {
            Ok(all) => {
                for (row, token) in prompt.iter().enumerate() {
                    match self.show(single, row, std::slice::from_ref(token), &taps)? {
                        Ok(one) => {
                            if let Some(words) = self.apart(&all, &one, row, prompt.len()) {
                                outcome = Err(words);
                                break;
                            }
                        }
                        Err(words) => {
                            outcome = Err(words);
                            break;
                        }
                    }
                }
            }
            Err(words) => outcome = Err(words),
        }
        self.note("taps", CHECK, outcome);
        Ok(())
    }

    /// Names the first tap whose row differs between a prompt and one step of it.
    fn apart(&self, all: &[Frame], one: &[Frame], row: usize, rows: usize) -> Option<String> {
        /// Taps are not log-probabilities: their numbers may be of any size.
        const RELATIVE: f64 = 10.0;
        all.iter().find_map(|frame| {
            let width = frame.data.len() / rows.max(1);
            let ours = frame.data.get(row * width..(row + 1) * width)?;
            let name = &frame.head.name;
            let Some(other) = one.iter().find(|frame| frame.head.name == *name) else {
                return Some(format!("tap `{name}` is missing in the step of token {row}"));
            };
            if other.data.len() != width {
                return Some(format!(
                    "tap `{name}` has {} numbers for one token and {width} a token in a prompt",
                    other.data.len()
                ));
            }
            let far: f64 = ours.iter().zip(&other.data).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let size: f64 = ours.iter().map(|&x| f64::from(x).powi(2)).sum();
            let share = (far / size.max(f64::MIN_POSITIVE)).sqrt();
            (share > RELATIVE * self.limit).then(|| {
                format!(
                    "tap `{name}` of token {row} is {share:.1e} of its size apart: a row belongs to the token at its place"
                )
            })
        })
    }

    fn show(
        &mut self,
        slot: usize,
        at: usize,
        tokens: &[u32],
        taps: &BTreeSet<String>,
    ) -> Result<Result<Vec<Frame>, String>, Error> {
        let chunk = json!({ "slot": slot, "at": at, "tokens": tokens, "rows": "all" });
        let count = tokens.len();
        let expect =
            ExpectedFrames::Rows { rows: count, vocab: self.opened.vocab, taps, tokens: count };
        let answer = self.ask("step", json!({ "chunks": [chunk], "taps": taps }), &expect)?;
        Ok(answer.map(|answer| answer.frames.into_iter().skip(1).collect()))
    }

    /// Reads states after a prompt and after one token more.
    pub(super) fn states(&mut self, prompt: &[u32]) -> Result<(), Error> {
        const CHECK: &str = "states have every part, and positions on their first axis";
        if !self.hello.can("states") || self.opened.states.is_empty() {
            self.not_shown("states", CHECK);
            return Ok(());
        }
        let slot = self.fresh();
        let mut seen = Vec::new();
        for (at, tokens) in [(0, prompt), (prompt.len(), &prompt[..1])] {
            if let Err(words) = self.feed(&[(slot, at, tokens)])? {
                self.note("states", CHECK, Err(words));
                return Ok(());
            }
            match self.ask("states", json!({ "slot": slot }), &ExpectedFrames::States)? {
                Ok(answer) => seen.push(by_part(answer.frames)),
                Err(words) => {
                    self.note("states", CHECK, Err(words));
                    return Ok(());
                }
            }
        }
        let outcome = self.grown(&seen[0], &seen[1]);
        self.note("states", CHECK, outcome);
        Ok(())
    }

    /// Compares the states after a prompt with those after one token more.
    fn grown(&self, before: &StateParts, after: &StateParts) -> Result<String, String> {
        for part in &self.opened.states {
            if !before.keys().any(|(_, name)| name == part) {
                return Err(format!("`open` promised `{part}`, and no layer has it"));
            }
        }
        for ((layer, part), (shape, data)) in before {
            let place = format!("`{part}` of layer {layer}");
            let Some((next, more)) = after.get(&(*layer, part.clone())) else {
                return Err(format!("{place} is gone after one token more"));
            };
            let grew = next.first() == shape.first().map(|rows| rows + 1).as_ref();
            if grew && next.get(1..) == shape.get(1..) {
                // What was written for a position stays.
                if more.get(..data.len()) != Some(data) {
                    return Err(format!("{place}: earlier positions changed with one token more"));
                }
            } else if next != shape {
                return Err(format!(
                    "{place} is {shape:?}, and {next:?} after one token more; expected positions on the first axis: \
                     [positions, heads, size]"
                ));
            } else if more == data {
                return Err(format!("{place} is the same after one token more"));
            }
        }
        Ok(format!("{} parts", before.len()))
    }

    fn not_shown(&mut self, verb: &'static str, check: &'static str) {
        let words = "`open` lists none".to_owned();
        self.results.push(ConformanceResult { verb, check, holds: None, words });
    }
}

/// Shapes and numbers by layer and part.
type StateParts = BTreeMap<(usize, String), (Vec<usize>, Vec<f32>)>;

fn by_part(frames: Vec<Frame>) -> StateParts {
    frames
        .into_iter()
        .map(|frame: Frame| {
            ((frame.head.layer.unwrap_or(0), frame.head.name), (frame.head.shape, frame.data))
        })
        .collect()
}
