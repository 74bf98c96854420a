//! Clients of inference servers: token ids in, log-probabilities out.
//!
//! [`connect`] asks a server who it is and returns the [`Endpoint`] of its [driver](drivers). An
//! endpoint scores prompts and generates. Every answer is untrusted: it is limited in time and
//! size, and its rows are held to the vocabulary and to what was asked for.

mod address;
mod connect;
pub mod drivers;
mod error;
mod facts;
mod http;
mod json;
mod options;
mod row;

pub use connect::{connect, report};
pub use error::Error;
pub use facts::{Facts, Scores};
pub use json::find;
pub use options::{Options, Trust};
pub use row::{FLOOR, Row};

/// One request: a prompt, and the treatment of caches.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The prompt's token ids.
    pub tokens: &'a [u32],
    /// The treatment of caches.
    pub cache: Cache,
}

/// Treatment of a request by the server's prefix caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// As the server does by default.
    Default,
    /// None: nothing that was computed for another request is used, as far as the server can be told.
    Off,
}

/// Log-probabilities along a prompt.
#[derive(Debug, Clone, Default)]
pub struct Scored {
    /// A row for each position asked for, in that order.
    pub rows: Vec<Row>,
    /// The prompt's ids as the server repeats them, if it does.
    pub echo: Option<Vec<u32>>,
}

/// Tokens that a server chose, each the likeliest.
#[derive(Debug, Clone, Default)]
pub struct Generated {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Their rows; `target` is the log-probability of the chosen token.
    pub rows: Vec<Row>,
    /// The prompt's ids as the server repeats them, if it does.
    pub echo: Option<Vec<u32>>,
}

/// A server that was recognised.
pub trait Endpoint: Send + Sync {
    /// Returns the server's description of itself.
    fn facts(&self) -> &Facts;
    /// Scores a prompt; the rows asked for are those behind the tokens at `positions`.
    fn score(&self, ask: &Ask<'_>, positions: &[usize]) -> Result<Scored, Error>;
    /// Generates up to `count` tokens at temperature 0.
    fn generate(&self, ask: &Ask<'_>, count: usize) -> Result<Generated, Error>;
    /// Tokenizes a text without special tokens; none if the server has no such call.
    fn tokenize(&self, _text: &str) -> Result<Option<Vec<u32>>, Error> {
        Ok(None)
    }
    /// Counts the tokens of a prompt given as text; none if the server does not say.
    fn count_text(&self, _text: &str) -> Result<Option<usize>, Error> {
        Ok(None)
    }
    /// Asks for a sign of life.
    fn alive(&self) -> Result<(), Error>;
}
