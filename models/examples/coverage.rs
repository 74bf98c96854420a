//! Opens a folder or a GGUF file and prints its spec and the coverage of its tensors.
//!
//! `cargo run -p onboard-models --example coverage -- fixtures/llama`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use onboard_models::coverage::TensorCoverage;
use onboard_models::open::{OpenOptions, open};
use onboard_models::specs::Specs;

fn main() -> Result<(), Box<dyn Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("give a folder or a GGUF file")?.into();
    let opened = open(&path, &mut Specs::builtin(), &OpenOptions::default())?;
    for warning in &opened.warnings {
        println!("warning: {}", warning.message);
    }
    for remark in &opened.remarks {
        println!("remark: {remark}");
    }
    let target = opened.target;
    println!("{}: spec {} ({})", target.name, target.spec.name, target.spec.path);
    if !target.is_gguf() {
        let coverage = TensorCoverage::of(&target.model, &target.checkpoint()?);
        println!("{}", coverage.summary());
        coverage.refuse(&target.dir)?;
    }
    Ok(())
}
