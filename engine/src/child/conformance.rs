//! The conformance test of the protocol: every verb that an engine claims, held to its meaning.

mod rows;
mod slots;
mod taps_and_states;

use std::path::Path;

use registry::dtype::Dtype;
use serde::Serialize;
use serde_json::{Value, json};

use super::wire::{ChildReply, ExpectedFrames, Wire};
use super::{EngineLaunch, Hello, OpenModel, greet, open_model};
use crate::Error;

use rows::{distance, rows, varied};

/// Outcome of one check.
#[derive(Debug, Clone, Serialize)]
pub struct ConformanceResult {
    /// The verb.
    pub verb: &'static str,
    /// The check.
    pub check: &'static str,
    /// True if it held; none if the engine does not claim the verb.
    pub holds: Option<bool>,
    /// The measure, what is wrong and what to change, or why it was not run.
    pub words: String,
}

/// Tokens of the prompts.
const LENGTH: usize = 12;
/// Room that is asked for.
const ROOM: usize = 96;
/// Returns the largest difference of two log-probabilities that differ by rounding alone.
fn noise(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 1e-3,
        Dtype::F16 => 5e-2,
        Dtype::Bf16 => 4e-1,
    }
}

type LogitRows = Vec<Vec<f32>>;

struct ConformanceTest {
    wire: Wire,
    hello: Hello,
    opened: OpenModel,
    limit: f64,
    results: Vec<ConformanceResult>,
    slots: usize,
}

/// Runs every check. An error means that the engine could not be started or greeted.
pub fn conformance(
    launch: &EngineLaunch,
    model: &Path,
    dtype: Dtype,
) -> Result<(Hello, Vec<ConformanceResult>), Error> {
    let (mut wire, hello) = greet(launch)?;
    let opened = open_model(&mut wire, model, dtype.name(), ROOM)?;
    let limit = noise(dtype);
    let mut test = ConformanceTest {
        wire,
        hello: hello.clone(),
        opened,
        limit,
        results: Vec::new(),
        slots: 0,
    };
    test.results.push(ConformanceResult {
        verb: "hello",
        check: "protocol, engine, version, verbs",
        holds: Some(true),
        words: format!("{} {}, can {}", hello.engine, hello.version, hello.can.join(", ")),
    });
    test.results.push(ConformanceResult {
        verb: "open",
        check: "dtype and vocabulary",
        holds: Some(true),
        words: format!("{dtype}, {} tokens", test.opened.vocab),
    });
    // A broken protocol ends the test: the process is gone.
    if let Err(error) = test.run() {
        test.results.push(ConformanceResult {
            verb: "(all)",
            check: "the protocol is kept to the end",
            holds: Some(false),
            words: error.to_string(),
        });
    }
    Ok((hello, test.results))
}

impl ConformanceTest {
    fn run(&mut self) -> Result<(), Error> {
        self.unknown_verb()?;
        let one = self.prompt(1);
        let other = self.prompt(5);
        if self.claims("score", "a row for each token") {
            self.score(&one)?;
        }
        if self.claims("step", "a prefill gives what single steps give") {
            self.steps(&one, &other)?;
            self.taps(&one)?;
            self.states(&one)?;
        }
        if self.claims("generate", "each token is the likeliest after those before it") {
            self.generate(&one)?;
        }
        self.too_long(&one)
    }

    /// Notes a verb that is not claimed.
    fn claims(&mut self, verb: &'static str, check: &'static str) -> bool {
        let can = self.hello.can(verb);
        if !can {
            let words = "not claimed in `can`".to_owned();
            self.results.push(ConformanceResult { verb, check, holds: None, words });
        }
        can
    }

    fn prompt(&self, seed: usize) -> Vec<u32> {
        let vocab = self.opened.vocab.min(1 << 16);
        (0..LENGTH).map(|n| ((n * n * 7 + n * 13 + seed * 29) % vocab) as u32).collect()
    }

    fn fresh(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }

    /// Feeds chunks of tokens to slots from a position; gives all rows.
    fn feed(
        &mut self,
        parts: &[(usize, usize, &[u32])],
    ) -> Result<Result<LogitRows, String>, Error> {
        let tokens = parts.iter().map(|part| part.2.len()).sum();
        let vocab = self.opened.vocab;
        let taps = std::collections::BTreeSet::new();
        let chunks: Vec<Value> = parts
            .iter()
            .map(|(slot, at, tokens)| json!({ "slot": slot, "at": at, "tokens": tokens, "rows": "all" }))
            .collect();
        let expect = ExpectedFrames::Rows { rows: tokens, vocab, taps: &taps, tokens };
        self.ask("step", json!({ "chunks": chunks, "taps": taps }), &expect)
            .map(|answer| answer.map(|answer| rows(answer, vocab)))
    }

    /// Sends a request; the inner error has the message of a refusal.
    fn ask(
        &mut self,
        verb: &str,
        body: Value,
        expect: &ExpectedFrames<'_>,
    ) -> Result<Result<ChildReply, String>, Error> {
        match self.wire.call(verb, body, expect) {
            Ok(answer) => Ok(Ok(answer)),
            Err(Error::Other(words)) => Ok(Err(words)),
            Err(lost) => Err(lost),
        }
    }

    fn note(&mut self, verb: &'static str, check: &'static str, outcome: Result<String, String>) {
        let holds = Some(outcome.is_ok());
        let words = outcome.unwrap_or_else(|words| words);
        self.results.push(ConformanceResult { verb, check, holds, words });
    }

    /// Notes how far rows are apart.
    fn compare(
        &mut self,
        verb: &'static str,
        check: &'static str,
        got: Result<LogitRows, String>,
        want: &[Vec<f32>],
        change: &str,
    ) {
        let limit = self.limit;
        let outcome = got.and_then(|got| {
            let far = got.iter().zip(want).map(|(a, b)| distance(a, b)).collect::<Vec<_>>();
            let worst = far.iter().copied().fold(0.0, f64::max);
            match far.iter().position(|far| *far > limit) {
                None if got.len() == want.len() => Ok(format!("{worst:.1e} apart, at most {limit:.0e}")),
                None => Err(format!("{} rows; expected {}", got.len(), want.len())),
                Some(row) => Err(format!(
                    "row {row} is the first that differs, {worst:.1e} nats at most (allowed {limit:.0e}): {change}"
                )),
            }
        });
        self.note(verb, check, outcome);
    }

    fn unknown_verb(&mut self) -> Result<(), Error> {
        let answer = self.ask("no_such_verb", json!({}), &ExpectedFrames::Nothing)?;
        let outcome = match answer {
            Err(words) => Ok(words),
            Ok(_) => {
                Err("it was answered with `ok`: answer a verb that you do not know with `error`"
                    .to_owned())
            }
        };
        self.note("(unknown)", "an unknown verb is refused", outcome);
        Ok(())
    }

    fn score_rows(&mut self, tokens: &[u32]) -> Result<Result<LogitRows, String>, Error> {
        let vocab = self.opened.vocab;
        let taps = std::collections::BTreeSet::new();
        let expect =
            ExpectedFrames::Rows { rows: tokens.len(), vocab, taps: &taps, tokens: tokens.len() };
        let answer = self.ask("score", json!({ "tokens": tokens }), &expect)?;
        Ok(answer.map(|answer| rows(answer, vocab)))
    }

    fn score(&mut self, prompt: &[u32]) -> Result<(), Error> {
        let first = self.score_rows(prompt)?;
        let Ok(all_rows) = first else {
            self.note("score", "a row for each token", first.map(|_| String::new()));
            return Ok(());
        };
        self.note("score", "a row for each token", varied(&all_rows));
        let again = self.score_rows(prompt)?;
        self.compare(
            "score",
            "the same prompt again gives the same",
            again,
            &all_rows,
            "forget the prompt before: no cache may be left",
        );
        let half = self.score_rows(&prompt[..LENGTH / 2])?;
        self.compare(
            "score",
            "a row depends on the tokens before it alone",
            half,
            &all_rows[..LENGTH / 2],
            "row i is of the tokens up to i: check the causal mask",
        );
        Ok(())
    }

    fn generate(&mut self, prompt: &[u32]) -> Result<(), Error> {
        const CHECK: &str = "each token is the likeliest after those before it";
        const COUNT: usize = 6;
        let ask = json!({ "tokens": prompt, "count": COUNT });
        let chosen = self.ask("generate", ask, &ExpectedFrames::Nothing)?.and_then(|answer| {
            let tokens = answer.body.get("tokens").cloned().unwrap_or_default();
            serde_json::from_value::<Vec<u32>>(tokens)
                .map_err(|e| format!("`tokens` is no list of ids: {e}"))
        });
        let chosen = match chosen {
            Ok(chosen) if (1..=COUNT).contains(&chosen.len()) => chosen,
            Ok(chosen) => {
                let words = format!("{} tokens came; {COUNT} were asked for", chosen.len());
                self.note("generate", CHECK, Err(words));
                return Ok(());
            }
            Err(words) => {
                self.note("generate", CHECK, Err(words));
                return Ok(());
            }
        };
        let all_tokens: Vec<u32> = prompt.iter().chain(&chosen).copied().collect();
        let scored = if self.hello.can("score") {
            self.score_rows(&all_tokens)?
        } else {
            let slot = self.fresh();
            self.feed(&[(slot, 0, &all_tokens)])?
        };
        let limit = self.limit;
        let outcome = scored.and_then(|rows| {
            for (n, token) in chosen.iter().enumerate() {
                let row = &rows[prompt.len() - 1 + n];
                let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let logprob = row.get(*token as usize).copied().unwrap_or(f32::NEG_INFINITY);
                if f64::from(best - logprob) > limit {
                    return Err(format!(
                        "token {n} is {token}, {:.2} nats below the likeliest: choose greedily, without sampling or penalties",
                        best - logprob
                    ));
                }
            }
            Ok(format!("{} of {COUNT} tokens", chosen.len()))
        });
        self.note("generate", CHECK, outcome);
        Ok(())
    }

    fn too_long(&mut self, prompt: &[u32]) -> Result<(), Error> {
        const CHECK: &str = "a prompt beyond the limit is refused, and the engine lives on";
        let Some(limit) = self.opened.tokens else {
            self.note(
                "open",
                CHECK,
                Err("`tokens` is missing: say how many tokens a slot has room for".to_owned()),
            );
            return Ok(());
        };
        let long: Vec<u32> =
            prompt.iter().copied().cycle().take(limit.saturating_add(1).min(1 << 20)).collect();
        let verb = if self.hello.can("score") { "score" } else { "step" };
        let scores = verb == "score";
        let slot = self.fresh();
        let refused =
            if scores { self.score_rows(&long)? } else { self.feed(&[(slot, 0, &long)])? };
        let slot = self.fresh();
        let after =
            if scores { self.score_rows(prompt)? } else { self.feed(&[(slot, 0, prompt)])? };
        let outcome = match (refused, after) {
            (Ok(_), _) => Err(format!(
                "{} tokens were taken, and `open` said {limit}: answer with `error`",
                long.len()
            )),
            (Err(_), Err(words)) => Err(format!("it does not work after a refusal: {words}")),
            (Err(words), Ok(_)) => Ok(words),
        };
        self.note(if scores { "score" } else { "step" }, CHECK, outcome);
        Ok(())
    }
}
