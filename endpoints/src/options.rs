//! Settings of a client.

use std::time::Duration;

/// Certificates that a client trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those of public authorities.
    #[default]
    Public,
    /// Those of a PEM file, and no others.
    Pem(Vec<u8>),
    /// Any, without verification.
    Anyone,
}

/// Timeouts, limits and names.
#[derive(Clone)]
pub struct Options {
    /// Vocabulary size of the model: rows have no other ids.
    pub vocab: usize,
    /// Most entries of a row that are asked for; all of the vocabulary if it has no more.
    pub top: usize,
    /// The served name of the model; the first that the server lists if not given.
    pub model: Option<String>,
    /// The driver's name; recognised from the server's answers if not given.
    pub driver: Option<String>,
    /// The API key, sent as a bearer token to the server's own origin.
    pub key: Option<String>,
    /// Longest wait for a connection.
    pub connect: Duration,
    /// Longest wait for a complete answer.
    pub answer: Duration,
    /// Attempts at a request that fails in a way that may pass.
    pub tries: u32,
    /// Wait after the first failed attempt; doubles with each further one.
    pub backoff: Duration,
    /// Most bytes of an answer.
    pub most_bytes: u64,
    /// Certificates that are trusted.
    pub trust: Trust,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vocab: 0,
            top: 64,
            model: None,
            driver: None,
            key: None,
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(600),
            tries: 4,
            backoff: Duration::from_millis(250),
            most_bytes: 256 << 20,
            trust: Trust::Public,
        }
    }
}

impl std::fmt::Debug for Options {
    // The key stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("vocab", &self.vocab)
            .field("model", &self.model)
            .field("driver", &self.driver)
            .field("has_key", &self.key.is_some())
            .finish_non_exhaustive()
    }
}
