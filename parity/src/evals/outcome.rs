//! The result of a comparison.

use std::fmt;

use super::sample::Format;

/// Cause of the difference between two result files, in the order in which causes are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The two runs were asked different things.
    Inputs,
    /// A side has no usable scores: the server could not give them.
    Scoring,
    /// Log-probabilities (or greedy texts) differ beyond noise on equal inputs.
    Implementation,
    /// The model's side agrees; answers were sampled, or taken from the text in another way.
    Extraction,
    /// The scores differ beyond noise, and the files do not hold the cause.
    Unexplained,
    /// Single answers differ, no more than noise explains.
    Noise,
    /// Nothing differs.
    Agree,
}

impl Verdict {
    /// Returns true for a difference that is real.
    pub fn differs(self) -> bool {
        !matches!(self, Self::Noise | Self::Agree)
    }

    /// Returns its name in JSON.
    pub fn id(self) -> &'static str {
        match self {
            Self::Inputs => "different-inputs",
            Self::Scoring => "scoring-not-supported",
            Self::Implementation => "implementation",
            Self::Extraction => "extraction-or-sampling",
            Self::Unexplained => "unexplained",
            Self::Noise => "noise",
            Self::Agree => "agree",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id().replace('-', " "))
    }
}

/// One item that shows the difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The item's id in A.
    pub id: String,
    /// The part that differs.
    pub what: String,
    /// A's side.
    pub a: String,
    /// B's side.
    pub b: String,
}

/// One file's part.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// The file.
    pub path: String,
    /// Its form.
    pub format: Format,
    /// Samples in it.
    pub items: usize,
    /// The mean score over the items of both files.
    pub score: Option<f64>,
    /// Its standard error.
    pub error: Option<f64>,
    /// Remarks of the reader.
    pub notes: Vec<String>,
}

/// Scores of both sides on the same items.
#[derive(Debug, Clone, PartialEq)]
pub struct Paired {
    /// The metric.
    pub metric: String,
    /// Items with a score on both sides.
    pub items: usize,
    /// Items that A alone has right (that has a higher score).
    pub only_a: u64,
    /// Items that B alone has right.
    pub only_b: u64,
    /// The p value of McNemar's exact test; nothing for a score that is not right or wrong.
    pub p: Option<f64>,
    /// Mean score of A less that of B.
    pub difference: f64,
    /// The 95 % interval of the difference by the bootstrap.
    pub interval: Option<(f64, f64)>,
    /// True if the difference is beyond noise.
    pub significant: bool,
    /// The share of items on which unrelated runs with these scores agree; nothing for a score that is not right or
    /// wrong.
    pub chance: Option<f64>,
}

/// Distances of log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobFacts {
    /// Log-likelihoods that were compared.
    pub compared: usize,
    /// Those that are equal in every bit.
    pub equal: usize,
    /// Those that are finite on one side alone.
    pub nonfinite: usize,
    /// The median difference, in nats.
    pub median: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest difference.
    pub max: f64,
    /// The standard deviation of a token that the data's own bulk shows.
    pub bulk: f64,
    /// The standard deviation of a token that the dtype explains.
    pub unit: f64,
    /// Source of that number.
    pub source: String,
    /// Log-likelihoods beyond their bound.
    pub beyond: usize,
    /// A sentence on the kind of the difference, where one is recognised.
    pub kind: Option<String>,
    /// True if noise does not explain the differences.
    pub differs: bool,
}

/// A comparison of two result files.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict in one sentence.
    pub headline: String,
    /// The reasons, most important first.
    pub why: Vec<String>,
    /// The first items that show it.
    pub examples: Vec<Example>,
    /// The next steps.
    pub todo: Vec<String>,
    /// The first file.
    pub a: Side,
    /// The second file.
    pub b: Side,
    /// Items of both files.
    pub items: usize,
    /// Items whose inputs are equal; nothing if the files do not hold inputs.
    pub equal_inputs: Option<usize>,
    /// The scores.
    pub paired: Option<Paired>,
    /// The log-probabilities.
    pub logprobs: Option<LogprobFacts>,
    /// Remarks that did not decide.
    pub notes: Vec<String>,
}

/// One cause with its evidence, as a stage of the comparison finds it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub verdict: Verdict,
    pub headline: String,
    pub why: Vec<String>,
    pub examples: Vec<Example>,
    pub todo: Vec<String>,
}

/// Most examples of a stage.
pub(super) const EXAMPLES: usize = 3;

/// Shortens a text to its first characters, on one line.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown: String = text.chars().take(MOST).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    format!("{shown:?}")
}

/// `3 items`, `1 item`.
pub(super) fn items(n: usize) -> String {
    if n == 1 { "1 item".to_owned() } else { format!("{n} items") }
}
