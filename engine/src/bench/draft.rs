//! Measures drafting with the model's own head: the share of accepted drafts, and the speedup.

use std::fmt::Write as _;
use std::time::Instant;

use serde_json::{Value, json};

use crate::draft::{DraftCounts, generate, plain};
use crate::error::Error;
use crate::session::Session;

/// Minimum number of drafts for a meaningful share.
const ENOUGH: u64 = 50;
/// Lower bound on the share of accepted drafts of a correctly computed head. The share by chance is one in
/// the vocabulary, and heads in production reach 0.5 and more.
const NEAR_ZERO: f64 = 0.1;

/// Greedy decoding with drafts, compared with plain greedy decoding.
#[derive(Debug)]
pub struct DraftComparison {
    tally: DraftCounts,
    /// Tokens drafted for each step.
    per_step: usize,
    /// Number of generated tokens.
    count: usize,
    /// First token that differs from plain decoding.
    first_different: Option<usize>,
    /// Tokens per second with drafts.
    drafted: f64,
    /// Tokens per second without drafts.
    plain: f64,
}

impl DraftComparison {
    /// Generates `count` tokens twice, without and with `per_step` drafts of `head` for each step.
    pub fn measure(
        session: &mut dyn Session,
        head: &mut dyn Session,
        prompt: &[u32],
        count: usize,
        per_step: usize,
    ) -> Result<Self, Error> {
        let begun = Instant::now();
        let slow = plain(session, prompt, count)?;
        let plain = token_rate(count, begun);
        let begun = Instant::now();
        let (fast, tally) = generate(session, head, prompt, count, per_step)?;
        let drafted = token_rate(count, begun);
        let at = fast.iter().zip(&slow).take_while(|(a, b)| a == b).count();
        let first_different = (fast != slow).then_some(at);
        Ok(Self { tally, per_step, count, first_different, drafted, plain })
    }

    /// True if so few drafts are accepted that the head may be computed wrongly.
    pub fn is_suspect(&self) -> bool {
        self.tally.drafts() >= ENOUGH && self.tally.rate().is_some_and(|rate| rate < NEAR_ZERO)
    }

    /// True if the tokens differ, or if the head is suspect and no reference proves it.
    pub fn differs(&self, proven: Option<bool>) -> bool {
        self.first_different.is_some() || (self.is_suspect() && proven != Some(true))
    }

    /// Returns the result as text; `proven` is true if a suspect head agrees with its reference, and none without one.
    pub fn text(&self, proven: Option<bool>) -> String {
        let mut text = tally_text(&self.tally, self.per_step);
        let _ = writeln!(
            text,
            "tokens             {}\nt/s                {:.2} with drafts, {:.2} without",
            match self.first_different {
                None => format!("{}, those of plain greedy decoding", self.count),
                Some(at) => format!("DIFFER from plain greedy decoding from token {at} on"),
            },
            self.drafted,
            self.plain
        );
        if self.is_suspect() {
            text.push_str(&mismatch(&self.tally, proven));
        }
        text
    }

    /// Returns the result as JSON; `proven` as in [`DraftComparison::text`].
    pub fn json(&self, model: &str, proven: Option<bool>) -> Value {
        let head = match (self.is_suspect(), proven) {
            (false, _) => "plausible",
            (true, None) => "suspect",
            (true, Some(true)) => "proven",
            (true, Some(false)) => "differs",
        };
        json!({
            "schema": "onboard-bench-draft/1",
            "model": model,
            "drafts": self.tally.drafts(),
            "steps": self.tally.steps,
            "drafts_per_step": self.per_step,
            "accepted": self.tally.hits(),
            "acceptance_rate": self.tally.rate(),
            "accepted_by_position": self.tally.by_position(),
            "tokens": self.count,
            "first_different_token": self.first_different,
            "tokens_per_second": { "drafted": self.drafted, "plain": self.plain },
            "head": head,
        })
    }
}

/// Returns the tokens per second since an instant.
fn token_rate(count: usize, begun: Instant) -> f64 {
    count as f64 / begun.elapsed().as_secs_f64().max(1e-9)
}

fn tally_text(tally: &DraftCounts, k: usize) -> String {
    let places: Vec<String> = tally.by_position().iter().map(|x| format!("{x:.3}")).collect();
    format!(
        "drafts             {} in {} steps, {k} each\naccepted           {}\nacceptance rate    {}\n\
         mean accepted      {} (by position)\n",
        tally.drafts(),
        tally.steps,
        tally.hits(),
        tally.rate().map_or("none".to_owned(), |rate| format!("{rate:.3}")),
        places.join(", ")
    )
}

fn mismatch(tally: &DraftCounts, proven: Option<bool>) -> String {
    let near = format!("of {} drafts nearly none were accepted", tally.drafts());
    match proven {
        Some(true) => {
            format!(
                "{near}, though the head agrees with its reference: it knows little of this text\n"
            )
        }
        Some(false) => format!(
            "LIKELY MISMATCH: {near}, and the head does not agree with its reference; \
             `parity check` names the first op that differs\n"
        ),
        None => format!(
            "LIKELY MISMATCH: {near}, and no reference proves the head: look at the order of \
             `concat`, at `recycle`, `pos` and `first` of `nextn`, or make a dump of it with \
             `parity dump` and run `parity check`\n"
        ),
    }
}
