//! llama.cpp as an engine: opens GGUF files by itself and gives log-probabilities.
//!
//! It is a second opinion on files that this project writes. What runs is llama.cpp's own code
//! inside this process, with all that this means: a file that passes its loader and then breaks
//! one of its assertions ends the process. So the reader of this project looks at it first.
//!
//! For parity it runs as exactly as it can: keys and values in f32, no flash attention, no
//! window cut out of the cache.

mod log;
mod session;
mod worker;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use formats::gguf;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};
use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::graph::Graph;
use registry::model::Model;

use crate::capability::{EngineSheet, Feature, refuse, refuse_features};
use crate::model_file::{ARCHITECTURE, ModelFile};
use crate::{Engine, Error, ModelSource, Session, SessionOptions};

/// The engine, and how much room its sessions have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlamaCpp {
    /// Positions that each slot has room for; llama.cpp rounds up to a multiple of 256. Models
    /// with rotary tables for short and for long contexts choose by this number.
    pub context: usize,
    /// Slots that can have tokens at once.
    pub slots: usize,
}

impl Default for LlamaCpp {
    fn default() -> Self {
        Self { context: 1024, slots: 4 }
    }
}

impl LlamaCpp {
    /// Opens a file only to see what it holds.
    pub fn describe(&self, path: &Path) -> Result<ModelFile, Error> {
        let file = admit(path)?;
        let loaded = load(path)?;
        let vocab = usize::try_from(loaded.n_vocab()).unwrap_or(0);
        let context = usize::try_from(loaded.n_ctx_train()).ok().filter(|n| *n > 0);
        ModelFile::of_gguf(&file, vocab, context).map_err(broken)
    }
}

impl Engine for LlamaCpp {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    fn runs_specs(&self) -> bool {
        false
    }

    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        if options.dtype != Dtype::F32 {
            let none = Model { graph: Graph::default(), ..(*source.model).clone() };
            return Err(Error::Refused(refuse(&none, &EngineSheet::llama_cpp(), options.dtype)));
        }
        let findings =
            refuse_features(&EngineSheet::llama_cpp(), &Feature::required(&source.model, options));
        if !findings.is_empty() {
            return Err(Error::Refused(findings));
        }
        admit(source.dir)?;
        let session = session::open(*self, Arc::clone(&source.model), source.dir, options)?;
        Ok(Box::new(session))
    }
}

/// The most layers that llama.cpp is built for (`LLAMA_MAX_LAYERS`).
const MAX_BLOCKS: u32 = 512;

/// Reads a file with the reader of this project, which trusts nothing, and refuses what
/// llama.cpp has no log-probabilities for.
fn admit(path: &Path) -> Result<gguf::GgufFile, Error> {
    let file = gguf::GgufFile::open(path).map_err(broken)?;
    let place = path.display();
    let Some(architecture) = file.metadata().str(ARCHITECTURE).map_err(broken)? else {
        return Err(Error::Other(format!(
            "`{place}` has no key `{ARCHITECTURE}`, so nobody knows what it is: convert it again"
        )));
    };
    let sheet = EngineSheet::llama_cpp();
    let mut findings = Vec::new();
    if !sheet.architectures.contains(architecture) {
        findings.push(Finding::unplaced(format!(
            "engine `llama.cpp` gives no log-probabilities for the architecture `{}` of `{place}`",
            architecture.escape_debug()
        )));
    }
    // llama.cpp ends the process where its loader counts more.
    let blocks = file.metadata().u32(&format!("{architecture}.block_count")).map_err(broken)?;
    if let Some(blocks) = blocks.filter(|blocks| !(1..=MAX_BLOCKS).contains(blocks)) {
        findings.push(Finding::unplaced(format!(
            "engine `llama.cpp` runs 1 to {MAX_BLOCKS} layers; `{place}` says {blocks}"
        )));
    }
    let unread = file.tensors().iter().find(|t| !sheet.formats.contains(t.ty.name()));
    if let Some(tensor) = unread {
        findings.push(Finding::unplaced(format!(
            "engine `llama.cpp` reads no {}, the format of tensor `{}` of `{place}`",
            tensor.ty.name(),
            tensor.name.escape_debug()
        )));
    }
    if !findings.is_empty() {
        return Err(Error::Refused(findings));
    }
    Ok(file)
}

fn broken(error: gguf::Error) -> Error {
    Error::Checkpoint(Box::new(error))
}

/// Returns llama.cpp's global state, which is set up once.
fn backend() -> Result<&'static LlamaBackend, Error> {
    static BACKEND: OnceLock<Result<LlamaBackend, String>> = OnceLock::new();
    let backend = BACKEND.get_or_init(|| {
        send_logs_to_tracing(LogOptions::default());
        LlamaBackend::init().map_err(|e| e.to_string())
    });
    backend.as_ref().map_err(|e| Error::Other(format!("starting llama.cpp: {e}")))
}

fn load(path: &Path) -> Result<LlamaModel, Error> {
    let backend = backend()?;
    let (model, complaints) =
        log::listen(|| LlamaModel::load_from_file(backend, path, &LlamaModelParams::default()));
    model.map_err(|e| {
        Error::Other(format!("llama.cpp does not load `{}`: {e}{complaints}", path.display()))
    })
}
