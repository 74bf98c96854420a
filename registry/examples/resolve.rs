//! Resolves a config with the built-in specs and prints the graph's size.
//!
//! `cargo run -p onboard-spec --example resolve -- fixtures/llama/config.json`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use onboard_spec::config::Config;
use onboard_spec::diag::Finding;
use onboard_spec::library::Library;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;

/// Joins the messages of findings into one error.
fn failed(findings: Vec<Finding>) -> String {
    findings.into_iter().map(|finding| finding.message).collect::<Vec<_>>().join("\n")
}

fn main() -> Result<(), Box<dyn Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("give the path of a config.json")?.into();
    let config = Config::read(&path).map_err(|finding| finding.message)?;
    let library = Library::builtin();
    let name = library.find(&config).into_iter().next().ok_or("no built-in spec matches")?;
    let spec = library.load(name, &[]).map_err(failed)?;
    let (model, warnings) = resolve(&spec, &config, &OpSet::builtin()).map_err(failed)?;
    println!("spec {name}: {} weights, vocabulary of {}", model.graph.weights.len(), model.vocab);
    for warning in warnings {
        println!("warning: {}", warning.message);
    }
    Ok(())
}
