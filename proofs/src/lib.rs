//! Proofs of opened models: what was compared, and what it shows.
//!
//! A [`Card`] holds the checks that were run on a model, with all their values, as Markdown and as JSON.
//!
//! ```
//! use onboard_proofs::ProofStatus;
//!
//! assert_eq!(ProofStatus::of(None), ProofStatus::NotProven);
//! ```

mod card;

pub use card::{Card, ChatSummary, ProofResults, ProofStatus, WeightsSummary};
