//! Tests of a benchmark: prompt tokens, generated tokens, depth and batch.

use std::fmt::Write as _;

use super::error::BenchError;

/// One test, run on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchTest {
    /// Tokens of the prompt, fed in one step.
    pub prompt: usize,
    /// Tokens that are generated one after another.
    pub generated: usize,
    /// Tokens that a slot holds before the test.
    pub depth: usize,
    /// Slots that run the test together.
    pub batch: usize,
}

impl BenchTest {
    /// Names the test as llama-bench does: `pp512`, `tg128 @ d4096`, `pp512+tg128`.
    pub fn name(&self) -> String {
        let parts = [("pp", self.prompt), ("tg", self.generated)];
        let parts = parts.iter().filter(|(_, count)| *count > 0);
        let mut name = parts.map(|(kind, n)| format!("{kind}{n}")).collect::<Vec<_>>().join("+");
        if self.batch > 1 {
            let _ = write!(name, " x{}", self.batch);
        }
        if self.depth > 0 {
            let _ = write!(name, " @ d{}", self.depth);
        }
        name
    }

    /// Returns the number of tokens that are timed.
    pub fn tokens(&self) -> usize {
        self.prompt.saturating_add(self.generated).saturating_mul(self.batch)
    }

    /// Returns the positions of a slot that the test needs.
    pub fn positions(&self) -> usize {
        // Generation begins with a token that is not timed.
        self.depth.saturating_add(self.prompt.max(1)).saturating_add(self.generated)
    }
}

/// Lengths from the command line, each a list.
#[derive(Debug, Clone)]
pub struct BenchGrid<'a> {
    /// Tokens of the prefill tests.
    pub prompts: &'a [usize],
    /// Tokens of the decode tests.
    pub generated: &'a [usize],
    /// Tests of a prompt and generated tokens together.
    pub both: &'a [(usize, usize)],
    /// Tokens that a slot holds before a test.
    pub depths: &'a [usize],
    /// Slots that run a test together.
    pub batches: &'a [usize],
}

impl BenchGrid<'_> {
    /// Lists the tests: for each depth and batch the prompts, then generation, then both.
    pub fn tests(&self) -> Vec<BenchTest> {
        let alone =
            self.prompts.iter().map(|&n| (n, 0)).chain(self.generated.iter().map(|&n| (0, n)));
        let pairs: Vec<(usize, usize)> = alone.chain(self.both.iter().copied()).collect();
        let mut tests = Vec::new();
        for &depth in self.depths {
            for &batch in self.batches {
                for &(prompt, generated) in pairs.iter().filter(|(p, n)| *p > 0 || *n > 0) {
                    tests.push(BenchTest { prompt, generated, depth, batch });
                }
            }
        }
        tests
    }
}

/// Model and settings that tests are measured with.
#[derive(Debug, Clone)]
pub struct BenchSubject {
    /// Name of the model.
    pub model: String,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Number of parameters.
    pub parameters: u64,
    /// Dtype of activations.
    pub dtype: String,
    /// Number of worker threads.
    pub threads: usize,
}

/// Most tokens of one part of a test.
const LONGEST: usize = 1 << 24;

/// Parses an integer within bounds.
fn within(text: &str, least: usize, limit: usize) -> Result<usize, BenchError> {
    let number = text.trim().parse().ok().filter(|n| (least..=limit).contains(n));
    number.ok_or_else(|| BenchError::Number { text: text.to_owned(), least, limit })
}

/// Parses a number of tokens.
pub fn parse_tokens(text: &str) -> Result<usize, BenchError> {
    within(text, 0, LONGEST)
}

/// Parses a number of sequences, threads or rounds.
pub fn parse_count(text: &str) -> Result<usize, BenchError> {
    within(text, 1, 1024)
}

/// Parses `PROMPT,GENERATED`.
pub fn parse_pair(text: &str) -> Result<(usize, usize), BenchError> {
    let pair = text.split_once(',').and_then(|(prompt, generated)| {
        within(prompt, 1, LONGEST).ok().zip(within(generated, 1, LONGEST).ok())
    });
    pair.ok_or_else(|| BenchError::Pair { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_and_listed_as_in_llama_bench() {
        let grid = BenchGrid {
            prompts: &[512, 0],
            generated: &[128],
            both: &[(64, 16)],
            depths: &[0, 4096],
            batches: &[1, 4],
        };
        let names: Vec<String> = grid.tests().iter().map(BenchTest::name).collect();
        assert_eq!(names[..4], ["pp512", "tg128", "pp64+tg16", "pp512 x4"]);
        assert_eq!(names[6..8], ["pp512 @ d4096", "tg128 @ d4096"]);
        assert_eq!(names.len(), 12);
        let last = grid.tests()[11];
        assert_eq!((last.tokens(), last.positions()), (320, 4176));
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        assert_eq!((parse_tokens("0"), parse_count("1024")), (Ok(0), Ok(1024)));
        for wrong in ["", "x", "18446744073709551615", "-1"] {
            assert!(parse_tokens(wrong).is_err() && parse_count(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            parse_count("0").unwrap_err().to_string(),
            "`0` is not an integer from 1 to 1024"
        );
    }

    #[test]
    fn pairs_are_two_numbers_above_zero() {
        assert_eq!(parse_pair("512,128"), Ok((512, 128)));
        for wrong in ["512", "0,1", "1,0", "a,b", "1,2,3", ""] {
            assert!(
                parse_pair(wrong).unwrap_err().to_string().contains("expected PROMPT,GENERATED"),
                "{wrong}"
            );
        }
    }
}
