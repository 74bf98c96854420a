//! 8-bit states: the model with and without them, and their effect.

use std::sync::Arc;

use checkpoints::Checkpoint;
use registry::attention_modules::attention_modules;
use registry::dtype::DtypeRule;
use registry::graph::{Graph, ScaleGranularity, StateKind};
use registry::model::Model;

use crate::error::Error;
use crate::gate::Verdict;
use crate::report::RunReport;

/// Returns the model with its 8-bit states widened, and the name of their format. Returns none if no state
/// has 8 bits.
pub(crate) fn widened(model: &Model) -> Option<(Model, &'static str)> {
    let part = model.graph.states.iter().find_map(|state| state.eight)?.name();
    let mut model = model.clone();
    widen(&mut model.graph);
    for layer in model.nextn.iter_mut().flat_map(|nextn| &mut nextn.layers) {
        widen(&mut Arc::make_mut(layer).graph);
    }
    Some((model, part))
}

/// Stores keys and values with scales in the checkpoint in 8 bits, unless they already are. A reference
/// rounded with those scales, so a checkpoint without any is not the reference's.
pub(crate) fn narrow(
    graph: &mut Graph,
    scales: ScaleGranularity,
    checkpoint: &Checkpoint,
) -> Result<(), Error> {
    let caches = attention_modules(graph);
    let mut names = Vec::new();
    let mut has_scales = false;
    for (state, cache) in graph.states.iter_mut().zip(&caches) {
        let Some(cache) = cache.as_ref().filter(|_| state.kind == StateKind::Attention) else {
            continue;
        };
        let known = cache.names(0);
        if known.iter().any(|name| checkpoint.stored(name).is_some()) {
            has_scales = true;
            if state.eight.is_none() {
                (state.eight, state.dtype) = (Some(scales), DtypeRule::Activation);
            }
        }
        names.extend(known);
    }
    if has_scales {
        return Ok(());
    }
    let root = checkpoint.root().to_owned();
    let name = names.into_iter().next().unwrap_or_else(|| "k_scale of any layer".to_owned());
    Err(Error::NoScales { root, name })
}

fn widen(graph: &mut Graph) {
    graph.states.iter_mut().for_each(|state| state.eight = None);
}

/// Returns rows that show the movement of log-probabilities, without a verdict.
pub(crate) fn effects(runs: Vec<RunReport>, part: &'static str) -> impl Iterator<Item = RunReport> {
    runs.into_iter().filter(|run| run.part.is_none()).map(move |mut run| {
        run.part = Some(part);
        run.gates.clear();
        run.routers.clear();
        (run.first, run.first_local) = (None, None);
        run.phases.iter_mut().for_each(|phase| phase.verdict = Verdict::Skip);
        run.greedy.iter_mut().for_each(|row| row.verdict = Verdict::Skip);
        run
    })
}
