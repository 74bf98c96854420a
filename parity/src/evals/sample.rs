//! Content of a result file: one sample per question, and facts about the run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Program that wrote a result file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultFormat {
    /// `samples_TASK_DATE.jsonl` of lm-eval with `--log_samples`.
    LmEval,
    /// The file of SGLang's `bench_serving --output-details`.
    SglangBench,
    /// Predictions of sgl-eval, which SGLang's `run_eval` runs.
    SglEval,
    /// The file of `vllm bench serve --save-result --save-detailed`.
    VllmBench,
    /// JSON lines with the keys of `docs/evals.md`; `parity eval` writes it.
    Plain,
}

impl fmt::Display for ResultFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LmEval => "lm-eval samples",
            Self::SglangBench => "SGLang bench",
            Self::SglEval => "sgl-eval predictions",
            Self::VllmBench => "vLLM bench",
            Self::Plain => "plain samples",
        })
    }
}

/// Question with its result.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Id in the file.
    pub id: String,
    /// Line in the file, from one.
    pub line: usize,
    /// A hash of the document, as lm-eval writes it.
    pub hash: Option<String>,
    /// Texts before the choices or the generated text: one, or one per choice.
    pub prompts: Vec<String>,
    /// The token ids of the prompt.
    pub ids: Option<Vec<u32>>,
    /// A hash of the prompt, as lm-eval writes it.
    pub prompt_hash: Option<String>,
    /// The number of tokens of the prompt.
    pub prompt_tokens: Option<usize>,
    /// Continuations that were scored, as appended to the prompt.
    pub choices: Vec<String>,
    /// The log-likelihood of each choice.
    pub logprobs: Vec<f64>,
    /// The number of tokens of each choice.
    pub tokens: Vec<usize>,
    /// The generated text.
    pub text: Option<String>,
    /// Answer extracted from the text or the log-likelihoods.
    pub answer: Option<String>,
    /// Correct answer.
    pub target: Option<String>,
    /// Scores by metric.
    pub scores: BTreeMap<String, f64>,
}

impl Sample {
    /// Returns the index of the choice with the largest log-likelihood, as in lm-eval's `acc`.
    pub(super) fn best(&self) -> Option<usize> {
        best(self.logprobs.iter().copied())
    }
}

/// Returns the index of the largest value: the first of equals, and of NaN, as in numpy.
pub(super) fn best(numbers: impl Iterator<Item = f64>) -> Option<usize> {
    let mut largest: Option<(usize, f64)> = None;
    for (at, number) in numbers.enumerate() {
        match largest {
            Some((_, value)) if value.is_nan() || !(number > value || number.is_nan()) => {}
            _ => largest = Some((at, number)),
        }
    }
    largest.map(|(at, _)| at)
}

/// Parsed result file.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// The file.
    pub path: PathBuf,
    /// Format of the file.
    pub format: ResultFormat,
    /// Samples in file order.
    pub samples: Vec<Sample>,
    /// Facts about the run by name: `model`, `task`, `dtype`, `temperature`, ...
    pub facts: BTreeMap<String, String>,
    /// Remarks of the reader, one sentence each.
    pub notes: Vec<String>,
}

impl Results {
    /// True if texts were sampled, false if they were decoded greedily; none if the file does not say.
    pub(super) fn sampled(&self) -> Option<bool> {
        let temperature = self.facts.get("temperature").and_then(|t| t.parse::<f64>().ok());
        match self.facts.get("do_sample").map(|flag| flag.to_lowercase()).as_deref() {
            Some("false") => Some(false),
            Some("true") => Some(temperature != Some(0.0)),
            _ => temperature.map(|temperature| temperature > 0.0),
        }
    }
}
