//! Compares the native engine with a reference dump and prints the report.
//!
//! `cargo run --release -p onboard-parity --example check -- fixtures/llama fixtures/llama/reference`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use engine::ModelSource;
use models::open::{OpenOptions, open};
use models::specs::Specs;
use onboard_parity::{CheckOptions, Dump, check};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let dir = paths.next().ok_or("give the folder of a checkpoint")?;
    let dump = Dump::open(&paths.next().ok_or("give the folder of a dump")?)?;
    let opened = open(&dir, &mut Specs::builtin(), &OpenOptions::default())?;
    let source = ModelSource { model: opened.target.model, dir: &dir };
    let report = check(&source, &dump, &CheckOptions::default())?;
    println!("{}", onboard_parity::report::text(&report));
    Ok(())
}
