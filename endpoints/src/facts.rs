//! Facts that a server gives about itself.

/// Log-probabilities of prompts that a server can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// The whole vocabulary at each position.
    Full,
    /// The likeliest tokens at each position, so many, and the token that follows.
    Top(usize),
    /// The token that follows at each position, and no other.
    Target,
    /// None.
    Nothing,
}

/// Description of a server and of the evidence that it gives.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The address, without a slash at its end.
    pub url: String,
    /// The driver's name.
    pub driver: &'static str,
    /// The version it reports.
    pub version: Option<String>,
    /// The served name that requests are for.
    pub model: String,
    /// All served names.
    pub models: Vec<String>,
    /// The path or name of the model behind the served name, where the server says it.
    pub root: Option<String>,
    /// Vocabulary size, where the server says it.
    pub vocab: Option<usize>,
    /// Longest sequence, where the server says it.
    pub context: Option<usize>,
    /// The dtype it runs in, where the server says it, by its short name.
    pub dtype: Option<String>,
    /// Settings in force, as the engine's sheet finds them.
    pub settings: Vec<(String, String)>,
    /// Log-probabilities of prompts.
    pub scores: Scores,
    /// Entries of a row of a generated token, with their ids; none if ids or numbers are missing.
    pub generates: Option<usize>,
    /// True if as many tokens are generated as are asked for, whatever their ids.
    pub ignores_eos: bool,
    /// True if `Cache::Off` has an effect.
    pub cache_off: bool,
    /// Most that a log-probability of an f32 run may differ where arithmetic is the server's own.
    pub bound: Option<f64>,
    /// Flags with which the server computes in f32 throughout, where its defaults do not.
    pub exact: Option<String>,
    /// Evidence that the server hides, and the remedy.
    pub hidden: Vec<String>,
    /// The versions that the engine's sheet is true for, where this is none of them.
    pub unverified: Option<String>,
}

impl Facts {
    /// Returns `NAME VERSION at URL`.
    pub fn title(&self) -> String {
        let version = self.version.as_ref().map(|v| format!(" {v}")).unwrap_or_default();
        format!("{}{version} at {}", self.driver, self.url)
    }
}
