//! Checks of slots: steps, forks, truncation and release.

use serde_json::json;

use super::{ConformanceResult, ConformanceTest, LENGTH, LogitRows, varied};
use crate::Error;
use crate::child::wire::ExpectedFrames;

impl ConformanceTest {
    pub(super) fn steps(&mut self, prompt: &[u32], other: &[u32]) -> Result<(), Error> {
        let a = self.fresh();
        let fed = self.feed(&[(a, 0, prompt)])?;
        let Ok(all_rows) = fed else {
            self.note("step", "ids in, rows out", fed.map(|_| String::new()));
            return Ok(());
        };
        self.note("step", "ids in, rows out", varied(&all_rows));
        if self.hello.can("score") {
            let scored = self.score_rows(prompt)?;
            self.compare(
                "score",
                "equals a step over the prompt",
                scored,
                &all_rows,
                "both are of the same tokens",
            );
        }
        let b = self.fresh();
        let single = self.single(b, prompt)?;
        self.compare(
            "step",
            "a prefill gives what single steps give",
            single,
            &all_rows,
            "carry cache and positions on: `at` is how many tokens the slot has seen",
        );
        self.two_slots(&all_rows, prompt, other)?;
        self.forks(prompt, &all_rows)?;
        self.truncates(prompt, &all_rows)?;
        self.releases(a, prompt, &all_rows, other)
    }

    fn single(&mut self, slot: usize, tokens: &[u32]) -> Result<Result<LogitRows, String>, Error> {
        let mut all = Vec::new();
        for at in 0..tokens.len() {
            match self.feed(&[(slot, at, &tokens[at..=at])])? {
                Ok(rows) => all.extend(rows),
                refused => return Ok(refused),
            }
        }
        Ok(Ok(all))
    }

    fn two_slots(
        &mut self,
        all_rows: &[Vec<f32>],
        prompt: &[u32],
        other: &[u32],
    ) -> Result<(), Error> {
        let a = self.fresh();
        let b = self.fresh();
        let alone = self.fresh();
        let change =
            "slots have states of their own; a shorter one in a batch must not see padding";
        let short = &other[..LENGTH - 5];
        let want = match self.feed(&[(alone, 0, short)])? {
            Ok(rows) => [all_rows, &rows].concat(),
            Err(words) => {
                self.note("step", "two slots in one step equal two alone", Err(words));
                return Ok(());
            }
        };
        let both = self.feed(&[(a, 0, prompt), (b, 0, short)])?;
        self.compare("step", "two slots in one step equal two alone", both, &want, change);
        Ok(())
    }

    fn forks(&mut self, prompt: &[u32], all_rows: &[Vec<f32>]) -> Result<(), Error> {
        const CHECK: &str = "a fork goes on as a fresh run does";
        if !self.claims("fork", CHECK) {
            return Ok(());
        }
        let a = self.fresh();
        let b = self.fresh();
        let half = LENGTH / 2;
        let got = self.forked_rows(a, b, prompt.split_at(half))?;
        self.compare(
            "fork",
            CHECK,
            got,
            &all_rows[half..],
            "copy every state of the slot: neither slot may see what the other is fed",
        );
        Ok(())
    }

    /// Feeds the first half of a prompt to a slot, forks it, and gives the rows of the second half in the fork.
    fn forked_rows(
        &mut self,
        slot: usize,
        fork: usize,
        (first, second): (&[u32], &[u32]),
    ) -> Result<Result<LogitRows, String>, Error> {
        if let Err(words) = self.feed(&[(slot, 0, first)])? {
            return Ok(Err(words));
        }
        let ask = json!({ "slot": slot, "to": fork });
        if let Err(words) = self.ask("fork", ask, &ExpectedFrames::Nothing)? {
            return Ok(Err(words));
        }
        // What the first slot sees from here on is not the other's.
        if let Err(words) = self.feed(&[(slot, first.len(), first)])? {
            return Ok(Err(words));
        }
        self.feed(&[(fork, first.len(), second)])
    }

    fn truncates(&mut self, prompt: &[u32], all_rows: &[Vec<f32>]) -> Result<(), Error> {
        const CHECK: &str = "a truncated slot goes on as a fresh run does";
        if !self.claims("truncate", CHECK) {
            return Ok(());
        }
        let slot = self.fresh();
        let half = LENGTH / 2;
        let mut long = prompt[..half].to_vec();
        long.extend(prompt.iter().rev().take(3));
        if let Err(words) = self.feed(&[(slot, 0, &long)])? {
            self.note("truncate", CHECK, Err(words));
            return Ok(());
        }
        let ask = json!({ "slot": slot, "length": half });
        if let Err(words) = self.ask("truncate", ask, &ExpectedFrames::Nothing)? {
            // Recurrent states cannot go back, and saying so is right.
            self.results.push(ConformanceResult {
                verb: "truncate",
                check: CHECK,
                holds: None,
                words,
            });
            return Ok(());
        }
        let got = self.feed(&[(slot, half, &prompt[half..])])?;
        self.compare(
            "truncate",
            CHECK,
            got,
            &all_rows[half..],
            "forget every state from `length` on, or refuse",
        );
        Ok(())
    }

    fn releases(
        &mut self,
        slot: usize,
        prompt: &[u32],
        all_rows: &[Vec<f32>],
        other: &[u32],
    ) -> Result<(), Error> {
        const CHECK: &str = "a released slot begins anew";
        let mut outcome = self
            .ask("release", json!({ "slot": slot }), &ExpectedFrames::Nothing)?
            .map(|_| Vec::new());
        if outcome.is_ok() {
            outcome = self.feed(&[(slot, 0, other)])?;
        }
        if outcome.is_ok() {
            outcome = self
                .ask("release", json!({ "slot": slot }), &ExpectedFrames::Nothing)?
                .map(|_| Vec::new());
        }
        if outcome.is_ok() {
            outcome = self.feed(&[(slot, 0, prompt)])?;
        }
        self.compare(
            "release",
            CHECK,
            outcome,
            all_rows,
            "a slot that is used again has no state of the sequence before",
        );
        Ok(())
    }
}
