//! Settings of a client.

use std::time::Duration;

/// Certificates that a client trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TrustedCertificates {
    /// Certificates of public authorities.
    #[default]
    Public,
    /// Only the certificates of a PEM file.
    Pem(Vec<u8>),
    /// Any certificate, without verification.
    Any,
}

/// Timeouts, limits and names.
#[derive(Clone)]
pub struct EndpointOptions {
    /// Vocabulary size of the model: rows have no other ids.
    pub vocab: usize,
    /// Maximum number of entries per row to request; the whole vocabulary if it is no larger.
    pub top: usize,
    /// Served name of the model; the first that the server lists if not given.
    pub model: Option<String>,
    /// Name of the driver; recognized from the server's responses if not given.
    pub driver: Option<String>,
    /// API key, sent as a bearer token to the server's own origin.
    pub key: Option<String>,
    /// Maximum wait for a connection.
    pub connect: Duration,
    /// Maximum wait for a complete response.
    pub answer: Duration,
    /// Number of attempts at a request that fails temporarily.
    pub tries: u32,
    /// Wait after the first failed attempt; doubles with each further one.
    pub backoff: Duration,
    /// Maximum bytes of a response.
    pub most_bytes: u64,
    /// Certificates that are trusted.
    pub trust: TrustedCertificates,
}

impl Default for EndpointOptions {
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
            trust: TrustedCertificates::Public,
        }
    }
}

impl std::fmt::Debug for EndpointOptions {
    // The key stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointOptions")
            .field("vocab", &self.vocab)
            .field("model", &self.model)
            .field("driver", &self.driver)
            .field("has_key", &self.key.is_some())
            .finish_non_exhaustive()
    }
}
