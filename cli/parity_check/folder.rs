//! `parity check` of a checkpoint of 8 or 4 bits: measures its cost against the reference of its source
//! checkpoint.

use std::path::Path;

use anyhow::{Context as _, Result};
use checkpoints::Checkpoint;
use engine::SessionOptions;
use models::local_model::LocalModel;
use parity::Dump;
use parity::quantized::QuantizedWeights;
use registry::dtype::Dtype;

use super::ParityCheckArgs;
use super::costs::GraphOutcome;
use crate::findings::check_error;
use crate::{CommandOutcome, target};

impl ParityCheckArgs {
    pub(super) fn run_coded(
        &self,
        target: &LocalModel,
        checkpoint: &Checkpoint,
        reference: (&Path, &Dump),
    ) -> Result<CommandOutcome> {
        self.refuse_pages()?;
        let weights = self.source_of(reference.1);
        let graph = match self.graph(target, weights.as_deref(), reference.1)? {
            GraphOutcome::Proof(graph) => graph,
            GraphOutcome::Differs(report) => return self.show_other_graph(target, *report),
        };
        let options = SessionOptions {
            dtype: Dtype::F32,
            threads: self.threads,
            // The reference ran other weights, with the inputs of those weights.
            rounds: self.rounds().unwrap_or_default(),
            ..SessionOptions::default()
        };
        let source = weights.as_deref().map(|source| {
            Checkpoint::open(source)
                .with_context(|| format!("cannot read the checkpoint `{}`", source.display()))
        });
        let quantized = QuantizedWeights::of_checkpoint(checkpoint, source.transpose()?.as_ref())
            .map_err(check_error)?;
        let engine = self.engine.of_models()?;
        let quantized = (quantized, graph);
        self.show_cost(engine.as_ref(), &target::source(target), reference, &options, quantized)
    }
}
