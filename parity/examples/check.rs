//! Compares the native engine with a reference dump and prints the report.
//!
//! `cargo run --release -p onboard-parity --example check -- fixtures/llama fixtures/llama/reference`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use engine::ModelSource;
use onboard_parity::{CheckOptions, Dump, check};
use registry::config::Config;
use registry::diag::Finding;
use registry::library::Library;
use registry::ops::OpSet;
use registry::resolve::resolve;

/// Joins the messages of findings into one error.
fn failed(findings: Vec<Finding>) -> String {
    findings.into_iter().map(|finding| finding.message).collect::<Vec<_>>().join("\n")
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let dir = paths.next().ok_or("give the folder of a checkpoint")?;
    let dump = Dump::open(&paths.next().ok_or("give the folder of a dump")?)?;
    let config = Config::read(&dir.join("config.json")).map_err(|finding| finding.message)?;
    let library = Library::builtin();
    let name = library.find(&config).into_iter().next().ok_or("no built-in spec matches")?;
    let spec = library.load(name, &[]).map_err(failed)?;
    let (model, _) = resolve(&spec, &config, &OpSet::builtin()).map_err(failed)?;

    let source = ModelSource { model: Arc::new(model), dir: &dir };
    let report = check(&source, &dump, &CheckOptions::default())?;
    println!("{}", onboard_parity::report::text(&report));
    Ok(())
}
