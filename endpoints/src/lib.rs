//! Clients of inference servers: token ids in, log-probabilities out.
//!
//! [`connect`] identifies a server and returns the [`Endpoint`] of its [driver](drivers). An endpoint
//! scores prompts and generates tokens. Every response is untrusted: it is limited in time and size, and
//! its rows are checked against the vocabulary and the request.
//!
//! ```no_run
//! use onboard_endpoints::{EndpointOptions, PrefixCache, PromptRequest, connect};
//!
//! # fn main() -> Result<(), onboard_endpoints::Error> {
//! let options = EndpointOptions { vocab: 32_000, ..EndpointOptions::default() };
//! let endpoint = connect("http://127.0.0.1:8000", &options)?;
//! let prompt = PromptRequest { tokens: &[1, 5, 9], cache: PrefixCache::Off };
//! println!("{} rows", endpoint.score(&prompt, &[0, 1])?.rows.len());
//! # Ok(())
//! # }
//! ```

mod address;
mod connect;
pub mod drivers;
mod error;
mod facts;
mod http;
mod json;
pub mod launch;
pub mod load;
mod options;
mod row;

pub use connect::{connect, report};
pub use error::Error;
pub use facts::{LogprobSupport, NarrowOps, RoundedProducts, RowForm, ServerFacts};
pub use json::find;
pub use options::{EndpointOptions, TrustedCertificates};
pub use row::{FLOOR, LogprobRow, LogprobRowError};

/// Request: a prompt, and the use of caches.
#[derive(Debug, Clone, Copy)]
pub struct PromptRequest<'a> {
    /// Token ids of the prompt.
    pub tokens: &'a [u32],
    /// Use of caches.
    pub cache: PrefixCache,
}

/// Use of the server's prefix caches in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCache {
    /// The server's default.
    Default,
    /// No cache: results computed for other requests are not used, as far as the server supports that.
    Off,
}

/// Log-probabilities along a prompt.
#[derive(Debug, Clone, Default)]
pub struct PromptScores {
    /// Row for each requested position, in that order.
    pub rows: Vec<LogprobRow>,
    /// Token ids of the prompt as returned by the server, if any.
    pub echo: Option<Vec<u32>>,
}

/// Tokens that a server generated greedily.
#[derive(Debug, Clone, Default)]
pub struct Generation {
    /// Generated tokens.
    pub ids: Vec<u32>,
    /// Rows of the tokens; `target` is the log-probability of the chosen token.
    pub rows: Vec<LogprobRow>,
    /// Token ids of the prompt as returned by the server, if any.
    pub echo: Option<Vec<u32>>,
}

/// Server of a known kind.
pub trait Endpoint: Send + Sync {
    /// Returns the server's self-description.
    fn facts(&self) -> &ServerFacts;
    /// Scores a prompt; returns the rows after the tokens at `positions`.
    fn score(&self, ask: &PromptRequest<'_>, positions: &[usize]) -> Result<PromptScores, Error>;
    /// Generates up to `count` tokens at temperature 0.
    fn generate(&self, ask: &PromptRequest<'_>, count: usize) -> Result<Generation, Error>;
    /// Tokenizes a text without special tokens; none if the server has no such call.
    fn tokenize(&self, _text: &str) -> Result<Option<Vec<u32>>, Error> {
        Ok(None)
    }
    /// Counts the tokens of a prompt given as text; none if the server does not report the count.
    fn count_text(&self, _text: &str) -> Result<Option<usize>, Error> {
        Ok(None)
    }
    /// Checks that the server responds.
    fn alive(&self) -> Result<(), Error>;
}
