//! Proofs of opened models: what was compared, and what it shows.
//!
//! A [`Card`] holds the checks that were run on a model, with all their values, as Markdown and as JSON.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use models::open::{OpenOptions, open};
//! use models::specs::Specs;
//! use onboard_proofs::{Card, ChatSummary, ProofResults, ProofStatus, WeightsSummary};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = Path::new("checkpoints/mine");
//! let model = open(dir, &mut Specs::builtin(), &OpenOptions::default())?.target;
//! let weights = WeightsSummary { coverage: None, fingerprint: model.fingerprint()? };
//! let chat = ChatSummary::read(dir, None);
//! let results = ProofResults { report: None, book: None };
//! let card = Card::new(&model, weights, results, chat, ProofStatus::of(None))?;
//! println!("{}", card.markdown());
//! # Ok(())
//! # }
//! ```

mod card;

pub use card::{Card, ChatSummary, ProofResults, ProofStatus, WeightsSummary};
