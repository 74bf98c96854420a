//! One sequence of a request, as the engine's thread sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use chat::OutputConstraint;
use engine::sample::Sampling;
use tokio::sync::mpsc::Sender;

use crate::error::ApiError;
use crate::logprobs::TokenScore;
use crate::penalties::Penalties;

/// A prompt and the way to continue it.
#[derive(Debug)]
pub(crate) struct SequenceRequest {
    /// Index of the sequence in its request.
    pub(crate) index: usize,
    pub(crate) prompt: Arc<[u32]>,
    /// Maximum number of tokens to add.
    pub(crate) most: usize,
    pub(crate) sampling: Sampling,
    /// Penalties of tokens that the sequence has already, if any change something.
    pub(crate) penalties: Option<Penalties>,
    /// Numbers to add to logits before a token is chosen.
    pub(crate) bias: Arc<[(u32, f32)]>,
    /// Rule that the added tokens have to keep, at its start. Waiting sequences share it.
    pub(crate) constraint: Option<Arc<OutputConstraint>>,
    /// Tokens that end the sequence.
    pub(crate) ends: Arc<[u32]>,
    /// Number of likely tokens to report for every token of the prompt, if any are.
    pub(crate) prompt_top: Option<usize>,
    /// The same for added tokens.
    pub(crate) top: Option<usize>,
    /// Only sequences of the same salt share their beginnings.
    pub(crate) salt: Arc<str>,
    pub(crate) events: Sender<SequenceMessage>,
    pub(crate) cancel: CancelFlag,
    pub(crate) queued: Instant,
    pub(crate) deadline: Instant,
}

impl SequenceRequest {
    /// True if nobody waits for the answer.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_set() || self.events.is_closed()
    }

    /// Maximum number of positions that the sequence takes.
    pub(crate) fn positions(&self) -> usize {
        self.prompt.len().saturating_add(self.most)
    }
}

/// Cancels one sequence of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An event of the sequence with this index in its request.
pub(crate) type SequenceMessage = (usize, SequenceEvent);

/// Progress of a sequence.
#[derive(Debug)]
pub(crate) enum SequenceEvent {
    /// Scores of the tokens of the prompt, from the second on.
    Prompt(Vec<TokenScore>),
    /// The next token; the last one has the reason of the end.
    Token { id: u32, score: Option<TokenScore>, end: Option<EndReason> },
    /// The end without another token.
    End(EndReason),
    /// The sequence failed.
    Failed(ApiError),
}

/// Reason that a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// An end token or a stop text.
    Stop,
    /// The maximum number of tokens.
    Length,
}

impl EndReason {
    /// Returns the `finish_reason` of the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}
