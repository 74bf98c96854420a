//! Result of a comparison.

use std::fmt;

use super::sample::ResultFormat;

/// Cause of the difference between two result files, in the order of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvalVerdict {
    /// The two runs had different inputs.
    Inputs,
    /// A side has no usable scores: the server could not provide them.
    Scoring,
    /// Log-probabilities (or greedy texts) differ beyond noise on equal inputs.
    Implementation,
    /// The model's results agree; answers were sampled, or extracted differently.
    Extraction,
    /// The scores differ beyond noise, and the files do not show the cause.
    Unexplained,
    /// Single answers differ, within noise.
    Noise,
    /// Both files agree.
    Agree,
}

impl EvalVerdict {
    /// True for a difference that is real.
    pub fn differs(self) -> bool {
        !matches!(self, Self::Noise | Self::Agree)
    }

    /// Returns the name in JSON.
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

impl fmt::Display for EvalVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id().replace('-', " "))
    }
}

/// Item that shows the difference.
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

/// Result file of one side.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultFile {
    /// The file.
    pub path: String,
    /// Its form.
    pub format: ResultFormat,
    /// Samples in it.
    pub items: usize,
    /// Mean score over the items of both files.
    pub score: Option<f64>,
    /// Standard error of the mean score.
    pub error: Option<f64>,
    /// Remarks of the reader.
    pub notes: Vec<String>,
}

/// Scores of both sides on the same items.
#[derive(Debug, Clone, PartialEq)]
pub struct PairedScores {
    /// The metric.
    pub metric: String,
    /// Items with a score on both sides.
    pub items: usize,
    /// Number of items that only A has right (with a higher score).
    pub only_a: u64,
    /// Number of items that only B has right.
    pub only_b: u64,
    /// The p value of McNemar's exact test; none for a score that is not right or wrong.
    pub p: Option<f64>,
    /// Mean score of A less that of B.
    pub difference: f64,
    /// The 95 % bootstrap interval of the difference.
    pub interval: Option<(f64, f64)>,
    /// True if the difference is beyond noise.
    pub significant: bool,
    /// Share of items on which unrelated runs with these scores agree; none for a score that is not right
    /// or wrong.
    pub chance: Option<f64>,
}

/// Distances of log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobDistances {
    /// Number of log-likelihoods that were compared.
    pub compared: usize,
    /// Number of bit-identical log-likelihoods.
    pub equal: usize,
    /// Number of log-likelihoods that are finite on one side only.
    pub nonfinite: usize,
    /// Median difference, in nats.
    pub median: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest difference.
    pub max: f64,
    /// Standard deviation of a token in the bulk of the data.
    pub bulk: f64,
    /// Standard deviation of a token that the dtype explains.
    pub unit: f64,
    /// Source of `unit`.
    pub source: String,
    /// Number of log-likelihoods beyond their bound.
    pub beyond: usize,
    /// Sentence on the kind of the difference, if it is recognized.
    pub kind: Option<String>,
    /// True if noise does not explain the differences.
    pub differs: bool,
}

/// A comparison of two result files.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalComparison {
    /// The verdict.
    pub verdict: EvalVerdict,
    /// The verdict in one sentence.
    pub headline: String,
    /// The reasons, most important first.
    pub why: Vec<String>,
    /// The first items that show it.
    pub examples: Vec<Example>,
    /// Next steps.
    pub todo: Vec<String>,
    /// The first file.
    pub a: ResultFile,
    /// The second file.
    pub b: ResultFile,
    /// Items of both files.
    pub items: usize,
    /// Number of items whose inputs are equal; none if the files do not contain inputs.
    pub equal_inputs: Option<usize>,
    /// The scores.
    pub paired: Option<PairedScores>,
    /// The log-probabilities.
    pub logprobs: Option<LogprobDistances>,
    /// Remarks without influence on the verdict.
    pub notes: Vec<String>,
}

/// Cause with its evidence, found by a stage of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EvalFinding {
    pub verdict: EvalVerdict,
    pub headline: String,
    pub why: Vec<String>,
    pub examples: Vec<Example>,
    pub todo: Vec<String>,
}

/// Maximum number of examples of a stage.
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

/// Formats a count of items: `3 items`, `1 item`.
pub(super) fn items(n: usize) -> String {
    if n == 1 { "1 item".to_owned() } else { format!("{n} items") }
}
