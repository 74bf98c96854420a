//! Divergence goals of folders: keeps the most sensitive matrices for their size unquantized, until a target
//! divergence is met.
//!
//! The whole checkpoint is quantized once, into a folder beside the output. Every group of matrices that
//! are quantized together is then run alone in quantized form, the rest unquantized. The divergence per
//! weight value orders the groups. Bisection with measurements finds the number of groups to keep
//! unquantized, and the final folder is measured once more.
//!
//! Costs are measured, not derived ([decision 40](../../../../docs/decisions/0040-measured-target-kl.md)).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use checkpoints::Checkpoint;
use checkpoints::weights::{CheckpointWeights, flows};
use conversion::folder;
use engine::mixed::MixedEngine;
use engine::weights::WeightSource;
use registry::graph::WeightId;
use registry::model::Model;

use super::side_files;
use crate::error::{Result, ensure, several};
use crate::folder_plan::FolderPlan;
use crate::goal::{DivergenceGoal, smallest_sufficient};
use crate::run::ConversionRun;
use crate::set_id;

/// Matrices that are quantized all or none.
struct MatrixGroup {
    /// Indices in the plan.
    tensors: Vec<usize>,
    weights: BTreeSet<WeightId>,
    /// Divergence with only this group quantized.
    kl: f64,
    numbers: usize,
}

impl MatrixGroup {
    /// Returns the divergence per number; `none` is the divergence with no group quantized.
    fn cost(&self, none: f64) -> f64 {
        (self.kl - none).max(0.0) / self.numbers.max(1) as f64
    }
}

/// Changes the choices of a plan so that the goal is met.
pub(super) fn choose(
    goal: &DivergenceGoal,
    run: ConversionRun<'_>,
    plan: &mut FolderPlan<'_>,
) -> Result<()> {
    let trial = goal.trial.path.join("codes");
    let home = std::mem::replace(&mut plan.folder, trial.clone());
    let written = write_trial(run, plan);
    plan.folder = home;
    written?;
    let mut groups = groups(plan, &Checkpoint::open(&trial)?)?;
    let model = &plan.target.model;
    let sources = vec![
        weight_source(model, Checkpoint::open(&trial)?)?,
        weight_source(model, plan.target.checkpoint()?)?,
    ];
    let measured = goal.measured(run.observer, &set_id::of_folder_search(plan)?)?;
    let coded = |listed: &BTreeSet<WeightId>| {
        let from = (0..model.graph.weights.len()).map(WeightId);
        let from = from.map(|id| usize::from(!listed.contains(&id))).collect();
        measured.get(format!("{listed:?}").as_bytes(), || {
            goal.measure(
                &MixedEngine { engine: goal.engine.clone(), sources: sources.clone(), from },
                plan.target,
                &trial,
            )
        })
    };
    let none = coded(&BTreeSet::new())?;
    let limit = goal.most;
    goal.ensure_met(run.observer, none, String::new)?;
    let bar = run.observer.count(groups.len() as u64, "groups");
    for group in &mut groups {
        group.kl = coded(&group.weights)?;
        bar.advance(1);
    }
    drop(bar);
    // The most costly for their size come first; ties keep the order of names.
    groups.sort_by(|a, b| b.cost(none).total_cmp(&a.cost(none)));
    let all = coded(&weights_of(&groups))?;
    let high = if all <= limit {
        0
    } else {
        smallest_sufficient(groups.len(), |kept_count| {
            Ok(coded(&weights_of(&groups[kept_count..]))? <= limit)
        })?
    };
    for group in &groups[..high] {
        for &n in &group.tensors {
            let tensor = &plan.tensors[n];
            let why = format!("it would cost {:.1e} nats", group.kl);
            plan.choices[n] = folder::DtypeChoice { kept: Some(tensor.dtype), why };
        }
    }
    run.observer.note(&format!(
        "{high} of {} groups of matrices stay as they are (with all quantized the divergence is {all:.3e})",
        groups.len()
    ));
    ensure!(
        plan.quantized() > 0,
        "the option `target-kl {limit:e}` cannot be met with a single matrix as {}",
        plan.format.name()
    );
    fs_err::remove_dir_all(&trial)?;
    Ok(())
}

/// Returns the weights of groups.
fn weights_of(groups: &[MatrixGroup]) -> BTreeSet<WeightId> {
    groups.iter().flat_map(|group| group.weights.iter().copied()).collect()
}

/// Returns the weights of a checkpoint for a model.
fn weight_source(model: &Model, checkpoint: Checkpoint) -> Result<Arc<dyn WeightSource>> {
    let weights = CheckpointWeights::with_rules(checkpoint, &model.graph.weights, &model.rules)?;
    Ok(Arc::new(weights))
}

/// Writes the checkpoint with everything quantized.
fn write_trial(run: ConversionRun<'_>, plan: &mut FolderPlan<'_>) -> Result<()> {
    plan.items = super::items(run.options.threads(), plan)?;
    plan.files = folder::lay_out(&plan.folder, &plan.items, plan.limit(run.options), "")?;
    let work = super::work(plan, None, side_files::files(&(), plan)?)?;
    let settings = conversion::RunOptions {
        threads: run.options.threads(),
        slab: run.options.slab,
        ..Default::default()
    };
    conversion::run(&work, &settings, &())?;
    Ok(())
}

/// Returns the groups, with the weights of the graph that each contains.
fn groups(plan: &FolderPlan<'_>, trial: &Checkpoint) -> Result<Vec<MatrixGroup>> {
    let model = &plan.target.model;
    let (sourced, _) = flows(trial, &model.graph.weights, &model.rules).map_err(several)?;
    let mut weights: BTreeMap<&str, Vec<WeightId>> = BTreeMap::new();
    for (n, weight) in sourced.iter().enumerate() {
        for tensor in &weight.tensors {
            weights.entry(tensor).or_default().push(WeightId(n));
        }
    }
    let mut groups: BTreeMap<(Option<usize>, String), MatrixGroup> = BTreeMap::new();
    for (n, (tensor, choice)) in plan.tensors.iter().zip(&plan.choices).enumerate() {
        if choice.kept.is_some() {
            continue;
        }
        let name = if tensor.mixture.is_some() {
            String::new()
        } else {
            model.quant.scale_group(&tensor.weight).swap_remove(0)
        };
        let group = groups.entry((tensor.mixture, name)).or_insert_with(|| MatrixGroup {
            tensors: Vec::new(),
            weights: BTreeSet::new(),
            kl: 0.0,
            numbers: 0,
        });
        group.tensors.push(n);
        group.weights.extend(weights.get(tensor.name.as_str()).into_iter().flatten());
        group.numbers += tensor.flow.len();
    }
    Ok(groups.into_values().collect())
}
