//! Facts from a server's self-description.

use registry::dtype::Dtype;

/// Log-probabilities of prompts that a server provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogprobSupport {
    /// Whole vocabulary at each position.
    Full,
    /// Up to this many top tokens at each position, and the next token of the prompt.
    Top(usize),
    /// Only the next token of the prompt at each position.
    Target,
    /// No log-probabilities.
    None,
}

/// Form to which an engine rounds rows before it multiplies them by weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowForm {
    /// A dtype of 16 bits.
    Narrow(Dtype),
    /// Integers of 8 bits with one scale for this many numbers.
    EightBits(usize),
}

impl std::fmt::Display for RowForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Narrow(dtype) => write!(f, "{dtype}"),
            Self::EightBits(shared) => write!(f, "8 bits with a scale for {shared}"),
        }
    }
}

/// Types of weights whose products round rows first, with the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundedProducts {
    /// Names of the types, as in GGUF files.
    pub weights: Vec<String>,
    /// Form of the rows.
    pub rows: RowForm,
}

/// Ops whose inputs and results an engine rounds, whatever the dtype of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NarrowOps {
    /// Names of the ops.
    pub ops: Vec<String>,
    /// Dtype of the inputs and results.
    pub dtype: Dtype,
}

/// Description of a server and of the log-probabilities that it provides.
#[derive(Debug, Clone)]
pub struct ServerFacts {
    /// Address, without a trailing slash.
    pub url: String,
    /// Name of the driver.
    pub driver: &'static str,
    /// Version that the server reports.
    pub version: Option<String>,
    /// Served name of the model for requests.
    pub model: String,
    /// All served names.
    pub models: Vec<String>,
    /// Path or name of the model behind the served name, if reported.
    pub root: Option<String>,
    /// Vocabulary size, if reported.
    pub vocab: Option<usize>,
    /// Maximum length of a sequence, if reported.
    pub context: Option<usize>,
    /// Short name of the dtype, if reported.
    pub dtype: Option<String>,
    /// Actual settings, read with the engine's sheet.
    pub settings: Vec<(String, String)>,
    /// Log-probabilities of prompts.
    pub scores: LogprobSupport,
    /// Number of entries per row of a generated token, with their ids; none if ids or log-probabilities are
    /// missing.
    pub generates: Option<usize>,
    /// True if exactly the requested number of tokens is generated, whatever their ids.
    pub ignores_eos: bool,
    /// True if `PrefixCache::Off` has an effect.
    pub cache_off: bool,
    /// Maximum difference of a log-probability of an f32 run, if the server's arithmetic differs.
    pub bound: Option<f64>,
    /// Products that round rows first, by the types of weights in the served file; empty if the engine does not.
    pub products: Vec<RoundedProducts>,
    /// Ops that round their inputs and results; empty if the engine has none.
    pub narrow_ops: Vec<NarrowOps>,
    /// Flags with which the server computes in f32 throughout, if its defaults do not.
    pub exact: Option<String>,
    /// Hidden log-probabilities, with the remedy.
    pub hidden: Vec<String>,
    /// Versions that the engine's sheet is verified for, unless this is one of them.
    pub unverified: Option<String>,
}

impl ServerFacts {
    /// Returns `NAME VERSION at URL`.
    pub fn title(&self) -> String {
        let version = self.version.as_ref().map(|v| format!(" {v}")).unwrap_or_default();
        format!("{}{version} at {}", self.driver, self.url)
    }
}
