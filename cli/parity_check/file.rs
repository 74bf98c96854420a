//! `parity check FILE --engine NAME` for an engine that opens files itself.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use engine::drivers::{EngineDriver, ModelFile};
use engine::{Engine, InputRounding, ModelSource, SessionOptions};
use formats::codec::{BlockType, expected_error};
use formats::gguf::GgufFile;
use parity::quantized::{GraphProof, QuantizedWeights, is_quantized};
use parity::{CheckOptions, Dump};
use registry::dtype::Dtype;

use super::child::SCHEDULES;
use super::{ParityCheckArgs, check};
use crate::engines::ChildCommand;
use crate::{CommandOutcome, engines};

/// Maximum `|Δlogprob|` of an f32 file in an engine with different arithmetic. It is ten times the bound of
/// the native engine, for block sums and exponentials by table or polynomial.
const BOUND: f64 = 1e-3;

impl ParityCheckArgs {
    /// Compares a file in an engine of this process.
    pub(super) fn run_file(&self, driver: &'static EngineDriver) -> Result<CommandOutcome> {
        let dump = self.dump_of_file(driver.name)?;
        let opened = engines::open_file(driver, &self.which.model, &dump)?;
        self.judge_file(opened.engine.as_ref(), opened.file, &dump)
    }

    /// Compares a file in an engine of a process of its own.
    pub(super) fn run_child_file(&self, child: &ChildCommand) -> Result<CommandOutcome> {
        let dump = self.dump_of_file(&child.launch.name)?;
        let file = GgufFile::open(&self.which.model)?;
        let file = ModelFile::of_gguf(&file, dump.manifest.vocab, None)?;
        let engine = child.engine(engines::room(&dump).max(SCHEDULES));
        self.judge_file(&engine, file, &dump)
    }

    /// Opens the dump that a file is compared with.
    fn dump_of_file(&self, name: &str) -> Result<Dump> {
        let choice = &self.choice;
        for (flag, given) in [
            ("--spec", choice.spec.is_some()),
            ("--specs", choice.specs.is_some()),
            ("--set", !choice.set.is_empty()),
            ("--plain-graph", self.plain_graph),
            ("--allow-dtype-mismatch", self.allow_dtype_mismatch),
        ] {
            ensure!(!given, "engine `{name}` builds its own graph, so {flag} has no effect on it");
        }
        let Some(reference) = &self.reference else {
            bail!("say what to compare `{}` with: --reference DUMP", self.which.model.display());
        };
        Dump::open_whole(reference)
            .with_context(|| format!("cannot read the reference `{}`", reference.display()))
    }

    fn judge_file(
        &self,
        engine: &dyn Engine,
        opened: ModelFile,
        dump: &Dump,
    ) -> Result<CommandOutcome> {
        let name = engine.name();
        let path = self.which.model.as_path();
        let model = ModelSource { model: Arc::new(opened.model), dir: path };
        let file = GgufFile::open(path)?;
        if self.bound.is_none() && is_quantized(&file) {
            let options = SessionOptions {
                dtype: Dtype::F32,
                threads: self.threads,
                ..SessionOptions::default()
            };
            self.refuse_pages()?;
            let tensors = match &self.source {
                Some(source) => self.tensors(source, path)?,
                None => Vec::new(),
            };
            // The engine multiplies blocks by blocks of 8 bits.
            let inputs = expected_error(BlockType::Q80).unwrap_or(0.0);
            let quantized =
                QuantizedWeights { inputs, ..QuantizedWeights::of_file(&file, tensors) };
            // The engine builds a graph of its own, and runs no other weights.
            let quantized = (quantized, GraphProof::default());
            let reference = self.reference.as_deref().unwrap_or(path);
            return self.show_cost(engine, &model, (reference, dump), &options, quantized);
        }
        let bound = match self.bound {
            Some(bound) => bound,
            None if opened.f32_weights => BOUND,
            None => bail!(
                "`{}` keeps numbers in less than 32 bits, and how much that may move a \
                 log-probability nobody can say in general: give --bound NATS",
                path.display()
            ),
        };
        let options = CheckOptions {
            same_model: false,
            rounds: Some(InputRounding::None),
            logprob: Some(bound),
            ..self.options(self.dtypes_of_file())
        };
        let mut report = check(engine, &model, dump, &options)?;
        report.notes.extend(engine.facts());
        report.notes.push(format!(
            "a log-probability may differ by {bound:.0e}: the arithmetic of `{name}` is its own"
        ));
        self.conclude(&report, &model.model)
    }
}
