//! Trial files with every tensor in every type that it may get.

use std::path::Path;
use std::sync::Arc;

use checkpoints::GgufWeights;
use checkpoints::weights::CheckpointWeights;
use conversion::ConversionResult;
use conversion::gguf::{self as plan, GgufOutput};
use conversion::mix::LEVELS;
use engine::weights::WeightSource;
use formats::FileDtype;
use formats::gguf::GgufFile;
use models::local_model::LocalModel;
use registry::gguf::Gguf;

use super::TOP;
use crate::draft::GgufDraft;
use crate::error::Result;
use crate::gguf_model::GgufModel;
use crate::run::ConversionRun;

/// Weights at every level.
pub(super) struct LevelTrials {
    /// Sources of the weights, beginning with the lowest level.
    pub(super) sources: Vec<Arc<dyn WeightSource>>,
    /// Index of the source for each level.
    pub(super) place: [usize; LEVELS],
    /// Squared error of each tensor at each level.
    pub(super) errors: Vec<[f64; LEVELS]>,
}

impl LevelTrials {
    /// Writes a file for each level whose types differ from those of the level below, in one pass over the
    /// checkpoint. Unquantized values are read from the checkpoint itself if possible.
    pub(super) fn write(
        run: ConversionRun<'_>,
        source: &GgufModel<'_>,
        target: &LocalModel,
        gguf: &Gguf,
        draft: &GgufDraft,
        folder: &Path,
    ) -> Result<Self> {
        let as_it_lies = source.tensors.iter().zip(&draft.levels).all(|(tensor, levels)| {
            levels[0] == levels[TOP]
                || tensor.flow.dtype() == levels[TOP].plain().map(FileDtype::from)
        });
        let mut planned = Vec::new();
        let mut place = [0; LEVELS];
        for (level, place) in place.iter_mut().enumerate() {
            let differs =
                level > 0 && draft.levels.iter().any(|levels| levels[level] != levels[level - 1]);
            if level == 0 || (differs && !(level == TOP && as_it_lies)) {
                let output = at_level(draft, level, folder);
                let files = plan::lay_out(&output, &draft.keys, &source.tensors)?;
                planned.push((output, files));
            }
            *place = planned.len() - 1;
        }
        fs_err::create_dir_all(folder)?;
        let done = write(run, source, &planned)?;
        let model = &target.model;
        let mut sources: Vec<Arc<dyn WeightSource>> = Vec::new();
        for (output, _) in &planned {
            let file = GgufFile::open(&output.path)?;
            sources.push(Arc::new(GgufWeights::new(file, gguf, &model.graph.weights)?));
        }
        let mut errors: Vec<[f64; LEVELS]> = Vec::with_capacity(source.tensors.len());
        for measures in &done.tensors {
            errors.push(place.map(|file| measures.get(file).map_or(0.0, |measure| measure.error)));
        }
        if as_it_lies {
            let checkpoint = target.checkpoint()?;
            let weights =
                CheckpointWeights::with_rules(checkpoint, &model.graph.weights, &model.rules)?;
            sources.push(Arc::new(weights));
            place[TOP] = sources.len() - 1;
            for errors in &mut errors {
                errors[TOP] = 0.0;
            }
        }
        Ok(Self { sources, place, errors })
    }
}

/// Returns the output with every tensor at a level.
fn at_level(draft: &GgufDraft, level: usize, folder: &Path) -> GgufOutput {
    let mut choices = draft.output.choices.clone();
    for (choice, levels) in choices.iter_mut().zip(&draft.levels) {
        choice.ty = levels[level];
    }
    GgufOutput {
        path: folder.join(format!("{level}.gguf")),
        choices,
        file_type: draft.output.file_type,
        split: None,
        shard: None,
        via: draft.output.via,
        dims: draft.output.dims,
        importance: draft.output.importance.clone(),
        // Factors belong to a type that no mix uses, so they are the same at every level.
        factors: draft.output.factors.clone(),
    }
}

fn write(
    run: ConversionRun<'_>,
    source: &GgufModel<'_>,
    planned: &[(GgufOutput, Vec<plan::GgufPlan>)],
) -> Result<ConversionResult> {
    for (output, _) in planned {
        plan::measure(&source.tensors, output, run.options.threads())?;
    }
    let work = plan::work(&source.tensors, planned, "trial".to_owned());
    let settings = conversion::RunOptions {
        threads: run.options.threads(),
        slab: run.options.slab,
        // A disk fault is detected when the final output is read back and measured.
        read_back: false,
        ..Default::default()
    };
    let numbers = work.tasks.iter().map(|task| task.flow.len() as u64).sum();
    let bar = run.observer.count(numbers, "weights");
    let done = conversion::run(&work, &settings, &*bar)?;
    drop(bar);
    Ok(done)
}
