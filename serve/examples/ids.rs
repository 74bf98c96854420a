//! Serves a checkpoint without a tokenizer: prompts are token ids.
//!
//! `cargo run --release -p onboard-serve --example ids -- fixtures/llama`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use engine::{Engine as _, ModelSource, NativeEngine, SessionOptions};
use onboard_serve::{ModelServer, ServeOptions, ServedModel};
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
    let dir: PathBuf = std::env::args_os().nth(1).ok_or("give the folder of a checkpoint")?.into();
    let config = Config::read(&dir.join("config.json")).map_err(|finding| finding.message)?;
    let library = Library::builtin();
    let name = library.find(&config).into_iter().next().ok_or("no built-in spec matches")?;
    let spec = library.load(name, &[]).map_err(failed)?;
    let (model, _) = resolve(&spec, &config, &OpSet::builtin()).map_err(failed)?;
    let source = ModelSource { model: Arc::new(model), dir: &dir };
    let session = NativeEngine::new().open(&source, &SessionOptions::default())?;
    let served = ServedModel {
        name: "example".to_owned(),
        session,
        codec: None,
        chat: None,
        ends: Vec::new(),
        arithmetic: "exact",
        memory: None,
    };
    let server = ModelServer::bind(served, ServeOptions { port: 0, ..ServeOptions::default() })?;
    println!("listening on {}", server.address());
    server.run()?;
    Ok(())
}
