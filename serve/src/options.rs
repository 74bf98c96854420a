//! Settings and limits of a server.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Settings and limits of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address to listen on.
    pub host: IpAddr,
    /// Names of this server in `Host` and `Origin`, beside those of this machine.
    pub hosts: Vec<String>,
    /// Port to listen on; 0 takes any free one.
    pub port: u16,
    /// Key that requests have to carry, if any.
    pub api_key: Option<String>,
    /// Maximum number of sequences that are computed together.
    pub slots: usize,
    /// Maximum number of prompt tokens in one step, so that a long prompt does not stop others.
    pub prefill_chunk: usize,
    /// Maximum number of waiting sequences.
    pub queue: usize,
    /// Maximum number of finished sequences that are kept for prompts with the same beginning.
    pub kept: usize,
    /// Maximum length of a sequence; the model's, if it is lower.
    pub context: Option<usize>,
    /// Maximum number of positions in all slots together; a quarter of the free memory if not given.
    pub cache_tokens: Option<usize>,
    /// Maximum size of a request body, in bytes.
    pub body: usize,
    /// Maximum number of sequences of one request.
    pub prompts: usize,
    /// Maximum number of log-probabilities in one answer.
    pub logprobs: usize,
    /// Maximum number of connections at a time.
    pub connections: usize,
    /// Maximum time of a request, from its last byte to its answer.
    pub request_time: Duration,
    /// Maximum time of the chat template for one conversation.
    pub template_time: Duration,
    /// Maximum time that a client may take to send its request, or to read a part of the answer.
    pub client_time: Duration,
    /// Maximum time that running requests get after a stop.
    pub drain_time: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            hosts: Vec::new(),
            port: 8000,
            api_key: None,
            slots: 16,
            prefill_chunk: 256,
            queue: 512,
            kept: 16,
            context: None,
            cache_tokens: None,
            body: 8 << 20,
            prompts: 256,
            logprobs: 4 << 20,
            connections: 1024,
            request_time: Duration::from_secs(600),
            template_time: Duration::from_secs(10),
            client_time: Duration::from_secs(30),
            drain_time: Duration::from_secs(30),
        }
    }
}
