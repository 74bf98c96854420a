//! `parity check FILE --engine NAME` for an engine that opens files itself.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use engine::drivers::EngineDriver;
use engine::{InputRounding, ModelSource, SessionOptions};
use formats::codec::{BlockType, expected_error};
use formats::gguf::GgufFile;
use parity::quantized::{GraphProof, QuantizedWeights, is_quantized};
use parity::{CheckOptions, Dump};
use registry::dtype::Dtype;

use super::{ParityCheckArgs, check};
use crate::{CommandOutcome, engines};

/// Maximum `|Δlogprob|` of an f32 file in an engine with different arithmetic. It is ten times the bound of
/// the native engine, for block sums and exponentials by table or polynomial.
const BOUND: f64 = 1e-3;

impl ParityCheckArgs {
    pub(super) fn run_file(&self, driver: &'static EngineDriver) -> Result<CommandOutcome> {
        let name = driver.name;
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
        let dump = Dump::open_whole(reference)
            .with_context(|| format!("cannot read the reference `{}`", reference.display()))?;
        let path = self.which.model.as_path();
        let opened = engines::open_file(driver, path, &dump)?;
        let model = ModelSource { model: Arc::new(opened.file.model), dir: path };
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
            let engine = opened.engine.as_ref();
            // The engine builds a graph of its own, and runs no other weights.
            let quantized = (quantized, GraphProof::default());
            return self.show_cost(engine, &model, (reference, &dump), &options, quantized);
        }
        let bound = match self.bound {
            Some(bound) => bound,
            None if opened.file.f32_weights => BOUND,
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
        let mut report = check(opened.engine.as_ref(), &model, &dump, &options)?;
        report.notes.push(format!(
            "a log-probability may differ by {bound:.0e}: the arithmetic of `{name}` is its own"
        ));
        self.conclude(&report, &model.model)
    }
}
