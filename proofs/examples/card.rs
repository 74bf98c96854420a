//! Prints the card of a checkpoint that was compared with nothing.
//!
//! `cargo run -p onboard-proofs --example card -- fixtures/llama`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use models::coverage::TensorCoverage;
use models::open::{OpenOptions, open};
use models::specs::Specs;
use onboard_proofs::{Card, ChatSummary, ProofResults, ProofStatus, WeightsSummary};

fn main() -> Result<(), Box<dyn Error>> {
    let dir: PathBuf = std::env::args_os().nth(1).ok_or("give the folder of a checkpoint")?.into();
    let model = open(&dir, &mut Specs::builtin(), &OpenOptions::default())?.target;
    let coverage = TensorCoverage::of(&model.model, &model.checkpoint()?);
    let weights = WeightsSummary { coverage: Some(coverage), fingerprint: model.fingerprint()? };
    let results = ProofResults { report: None, book: None };
    let chat = ChatSummary::read(&dir, None);
    let card = Card::new(&model, weights, results, chat, ProofStatus::of(None))?;
    println!("{}", card.markdown());
    Ok(())
}
