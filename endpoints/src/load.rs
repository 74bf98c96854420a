//! Load tests of inference servers: many streamed requests, and the time of every chunk.
//!
//! A [`LoadClient`] sends the prompts of a [`LoadPlan`] to an endpoint of the OpenAI API, and a
//! [`LoadSummary`] has the latencies and rates. Terms have the meaning that they have in
//! `vllm bench serve` and `sglang.bench_serving`. One thread serves one request at a time. It only keeps
//! bytes and times while the answer arrives, and parses them after the last one.

mod answer;
mod arrivals;
mod client;
mod exchange;
mod failure;
mod lengths;
mod preparation;
mod prompt_file;
mod prompts;
mod report;
pub mod settings;
mod sse;
mod summary;

pub use arrivals::ArrivalProcess;
pub use client::{LoadClient, LoadOptions, LoadPlan, LoadProgress, LoadRun, MOST_CONNECTIONS};
pub use failure::{LoadFailure, LoadFailureKind};
pub use lengths::LengthDistribution;
pub use preparation::PreparationError;
pub use prompt_file::{LoadPrompt, PromptContent, PromptFileError, parse_prompts};
pub use prompts::{LoadPromptError, PromptForm, PromptSource, PromptTokenizer, Vocabulary};
pub use report::{ReportForm, ReportStyle, RunSettings, render};
pub use summary::{
    LatencyStatistics, LoadSummary, ServiceObjective, SloMetric, SummaryOptions, TokenSource,
};

pub use answer::{ChunkRule, RequestRecord};

/// Endpoint of the OpenAI API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompletionsApi {
    /// `/v1/completions`: token ids or text.
    #[default]
    Completions,
    /// `/v1/chat/completions`: messages.
    Chat,
}

impl CompletionsApi {
    /// Returns the path of the endpoint.
    pub fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}
