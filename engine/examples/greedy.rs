//! Continues a prompt with the likeliest tokens.
//!
//! `cargo run --release -p onboard-engine --example greedy -- fixtures/llama`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use onboard_engine::{
    Chunk, Engine as _, ModelSource, NativeEngine, NoProbe, OutputRows, SessionOptions,
};
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
    let mut session = NativeEngine::new().open(&source, &SessionOptions::default())?;
    let slot = session.open_slot();
    let mut tokens = vec![1, 5, 9];
    for _ in 0..8 {
        let chunk = Chunk { slot, tokens: &tokens, rows: OutputRows::Last };
        let logits = session.step(&[chunk], &mut NoProbe)?.pop().ok_or("a chunk gives rows")?;
        let row = logits.row(logits.rows - 1);
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
        println!("{best}");
        tokens = vec![u32::try_from(best)?];
    }
    Ok(())
}
