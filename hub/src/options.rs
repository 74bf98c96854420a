//! Timeouts and limits of a client.

use std::time::Duration;

/// Timeouts and limits; the defaults follow Python's `huggingface_hub`.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Maximum wait for a name to resolve, for a connection, and for a request to be sent.
    pub connect: Duration,
    /// Maximum wait for the complete headers of a response.
    pub answer: Duration,
    /// Maximum wait for the next bytes of a body.
    pub read: Duration,
    /// Period over which a transfer must keep up `least_rate`.
    pub window: Duration,
    /// Lowest acceptable rate of a transfer, in bytes per second.
    pub least_rate: u64,
    /// Maximum number of consecutive failed attempts of a request.
    pub tries: u32,
    /// Wait after the first failed attempt; doubles with each further one.
    pub backoff: Duration,
    /// Maximum wait between two attempts, whatever `Retry-After` requests.
    pub most_backoff: Duration,
    /// Maximum wait for another process that is fetching the same file without progress.
    pub lock: Duration,
    /// Maximum bytes of a listing.
    pub most_listing: u64,
    /// True to use the proxies of the environment (`HTTPS_PROXY`, `NO_PROXY`, ...).
    pub proxy_from_env: bool,
}

impl Default for HubOptions {
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
