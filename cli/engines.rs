//! Engines by name.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use parity::Dump;
use registry::model::Model;

/// The engine that opens GGUF files by itself.
const LLAMA_CPP: &str = "llama.cpp";

/// Finds an engine that runs resolved models.
pub(crate) fn engine(name: &str) -> Result<Box<dyn engine::Engine>> {
    match name {
        "native" => Ok(Box::new(engine::NativeEngine::new())),
        LLAMA_CPP => bail!(
            "engine `{LLAMA_CPP}` opens GGUF files and builds its own graph; it runs no specs"
        ),
        other => bail!("there is no engine `{other}`; there are: native, {LLAMA_CPP}"),
    }
}

/// Whether an engine opens files by itself, and needs no spec.
pub(crate) fn opens_files(name: &str) -> bool {
    name == LLAMA_CPP
}

/// A file, with an engine that has room for what it is to be compared with.
pub(crate) struct Opened {
    /// The engine.
    pub engine: Box<dyn engine::Engine>,
    /// What it says of the file.
    pub model: Model,
    /// Whether every number is kept in 32 bits.
    pub wide: bool,
}

/// Looks at a file with an engine for which [`opens_files`] holds.
pub(crate) fn open(name: &str, path: &Path, dump: &Dump) -> Result<Opened> {
    let place = path.display();
    ensure!(
        path.is_file(),
        "engine `{name}` opens GGUF files, and `{place}` is none; make one: \
         convert {place} --to gguf:f32 -o FILE"
    );
    llama_cpp(path, room(dump))
}

/// Positions that prompts, what follows them and schedules need.
fn room(dump: &Dump) -> usize {
    /// Longer than any schedule.
    const MORE: usize = 64;
    let manifest = &dump.manifest;
    let prompts = manifest.prompts.iter().map(|p| p.tokens.len()).max();
    let greedy = manifest.greedy.values().flat_map(|by| by.values()).map(Vec::len).max();
    prompts.unwrap_or(0) + greedy.unwrap_or(0) + MORE
}

#[cfg(feature = "llama-cpp")]
fn llama_cpp(path: &Path, context: usize) -> Result<Opened> {
    let engine = engine::llama_cpp::LlamaCpp { context, ..Default::default() };
    let file = engine.describe(path)?;
    Ok(Opened { engine: Box::new(engine), model: file.model, wide: file.wide })
}

#[cfg(not(feature = "llama-cpp"))]
fn llama_cpp(path: &Path, _context: usize) -> Result<Opened> {
    bail!(
        "this build has no engine `{LLAMA_CPP}` for `{}`; build it in with `cargo build --release \
         --features llama-cpp` (needs cmake, a C++ compiler and libclang)",
        path.display()
    )
}
