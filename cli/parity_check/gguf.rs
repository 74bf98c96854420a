//! `parity check FILE.gguf` with the native engine: agreement if the file is lossless, and the cost if it
//! is not.

use std::path::{Path, PathBuf};

use anyhow::Result;
use converter::{TensorDeviation, deviations};
use engine::{InputRounding, SessionOptions};
use formats::gguf::GgufFile;
use models::local_model::LocalModel;
use parity::CheckOptions;
use parity::beside::open_dump;
use parity::quantized::{QuantizedTensor, QuantizedWeights, is_quantized};
use registry::dtype::Dtype;

use super::ParityCheckArgs;
use super::costs::GraphOutcome;
use crate::CommandOutcome;
use crate::findings::converter_error;
use crate::progress::ConversionTerminal;
use crate::target::{self, ModelArgs};
use crate::term;

impl ParityCheckArgs {
    pub(super) fn run_gguf(&self, target: &LocalModel) -> Result<CommandOutcome> {
        let (path, dump) = open_dump(&target.dir, self.reference.as_deref())?;
        if dump.manifest.rounds().is_some_and(|rounds| rounds != InputRounding::None) {
            term::note(
                "note: the dump's reference rounds what matrices of codes multiply (`rounds` in its manifest), and a GGUF \
                 file knows nothing of that; to compare weights alone, dump a copy without codes: convert MODEL --to bf16",
            );
        }
        let file = GgufFile::open(&target.dir)?;
        if is_quantized(&file) {
            let options = SessionOptions {
                dtype: Dtype::F32,
                threads: self.threads,
                ..SessionOptions::default()
            };
            self.refuse_pages()?;
            let weights = self.source(target).or_else(|| self.source_of(&dump));
            let graph = match self.graph(target, weights.as_deref(), &dump)? {
                GraphOutcome::Proof(graph) => graph,
                GraphOutcome::Differs(report) => return self.show_other_graph(target, *report),
            };
            let tensors = match weights {
                Some(source) => self.tensors(&source, &target.dir)?,
                None => Vec::new(),
            };
            let quantized = (QuantizedWeights::of_file(&file, tensors), graph);
            let engine = self.engine.of_models()?;
            let source = target::source(target);
            return self.show_cost(engine.as_ref(), &source, (&path, &dump), &options, quantized);
        }
        let options = CheckOptions {
            same_model: false,
            rounds: Some(InputRounding::None),
            ..self.options(self.dtypes_of_file())
        };
        self.compare(target, &dump, &options)
    }

    /// Returns the source checkpoint of the file: as given, or the folder it lies in.
    fn source(&self, target: &LocalModel) -> Option<PathBuf> {
        self.source.clone().or_else(|| {
            let home = target.home();
            home.join("config.json").is_file().then(|| home.to_owned())
        })
    }

    /// Returns the tensors of a file, with their errors against the checkpoint in a folder.
    pub(super) fn tensors(&self, folder: &Path, path: &Path) -> Result<Vec<QuantizedTensor>> {
        let source = target::open(&ModelArgs::at(folder.to_owned()), &self.choice)?;
        let deviations = deviations(&source, path, &ConversionTerminal);
        Ok(deviations.map_err(converter_error)?.into_iter().map(tensor).collect())
    }
}

fn tensor(one: TensorDeviation) -> QuantizedTensor {
    let encoding_error = one.encoding_error();
    QuantizedTensor::of_file(one.name, one.ty, one.measure.relative(), encoding_error)
}
