//! Timeouts and limits of a client.

use std::time::Duration;

/// Timeouts and limits; the defaults are those of Python's `huggingface_hub` where it has them.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest wait for a name to resolve, for a connection, and for a request to be sent.
    pub connect: Duration,
    /// Longest wait for the complete headers of an answer.
    pub answer: Duration,
    /// Longest wait for the next bytes of a body.
    pub read: Duration,
    /// Period over which a transfer must keep up `least_rate`.
    pub window: Duration,
    /// Lowest acceptable rate of a transfer, in bytes per second.
    pub least_rate: u64,
    /// Attempts in a row that may fail before a request is given up.
    pub tries: u32,
    /// Wait after the first failed attempt; doubles with each further one.
    pub backoff: Duration,
    /// Longest wait between two attempts, whatever `Retry-After` asks for.
    pub most_backoff: Duration,
    /// Longest wait for another process that is fetching the same file and makes no progress.
    pub lock: Duration,
    /// Most bytes of a listing.
    pub most_listing: u64,
    /// Use the proxies that the environment names (`HTTPS_PROXY`, `NO_PROXY`, ...).
    pub proxy_from_env: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(10),
            read: Duration::from_secs(10),
            window: Duration::from_secs(30),
            least_rate: 1024,
            tries: 5,
            backoff: Duration::from_secs(1),
            most_backoff: Duration::from_secs(60),
            lock: Duration::from_secs(300),
            most_listing: 32 << 20,
            proxy_from_env: false,
        }
    }
}
