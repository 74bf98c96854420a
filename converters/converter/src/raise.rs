//! Divergence goals of GGUF files: raises tensors to finer types than those of the mix. A tensor is raised if
//! its own type costs too much divergence.
//!
//! Every tensor is written once in each type that it may get, into files beside the output. Each group of
//! tensors made of the same weights is run alone in the mix's types, the rest unquantized. The resulting
//! divergence, and the error reduction of finer types, order the raises. Bisection with measurements finds
//! the number of raises, and the final file is measured once more.
//!
//! Costs are measured, not derived ([decision 40](../../../docs/decisions/0040-measured-target-kl.md)).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use checkpoints::{GgufWeights, own_names};
use conversion::gguf::TypeChoice;
use conversion::mix::LEVELS;
use engine::NativeEngine;
use engine::mixed::MixedEngine;
use formats::codec::BlockType;
use formats::gguf::GgufFile;
use models::local_model::LocalModel;
use registry::gguf::Gguf;

use crate::draft::GgufDraft;
use crate::error::{Result, several};
use crate::gguf_model::GgufModel;
use crate::goal::{DivergenceGoal, smallest_sufficient};
use crate::measured::MeasuredDivergences;
use crate::observer::ConversionObserver;
use crate::run::ConversionRun;
use crate::set_id;

mod level_trials;
mod order;

use level_trials::LevelTrials;
use order::LevelCosts;

/// Level at which no raisable tensor is quantized.
const TOP: usize = LEVELS - 1;

/// Tensors that are made of the same weights.
struct TypeGroup {
    /// Indices in the list of tensors, without those that cannot be raised.
    tensors: Vec<usize>,
    /// Indices in the graph.
    weights: Vec<usize>,
}

/// Inputs of the search.
struct RaiseSearch<'a> {
    goal: &'a DivergenceGoal,
    target: &'a LocalModel,
    groups: &'a [TypeGroup],
    tried: &'a LevelTrials,
    measured: MeasuredDivergences,
}

/// Result of the search: a level for each group, and the cost of each group alone at the lowest level.
struct RaisedLevels {
    levels: Vec<usize>,
    costs: Vec<f64>,
}

/// Raises types to meet the target divergence, if one is set.
pub(crate) fn choose(
    run: ConversionRun<'_>,
    source: &GgufModel<'_>,
    target: &LocalModel,
    draft: &mut GgufDraft,
) -> Result<Option<DivergenceGoal>> {
    let Some(goal) = run.options.goal.goal(run, target, &draft.output.path)? else {
        return Ok(None);
    };
    let gguf = target.model.gguf.clone().unwrap_or_else(|| own_names(&target.model));
    let groups = groups(source, target, &gguf, &draft.levels)?;
    let types = goal.trial.path.join("types");
    let tried = LevelTrials::write(run, source, target, &gguf, draft, &types)?;
    let measured = goal
        .measured(run.observer, &set_id::of_gguf_search(source, &draft.output, &draft.levels)?)?;
    let search = RaiseSearch { goal: &goal, target, groups: &groups, tried: &tried, measured };
    let none = search.measure(&vec![TOP; groups.len()])?;
    let limit = goal.most;
    goal.ensure_met(run.observer, none, || fixed_tensors(source, draft))?;
    let all = search.measure(&vec![0; groups.len()])?;
    let raised = if all > limit {
        let levels = search.find(run.observer, none, |tensor, level| {
            bytes(draft.levels[tensor][level], source.tensors[tensor].flow.len())
        })?;
        raise(source, draft, &groups, &levels)
    } else {
        Vec::new()
    };
    let of: usize = groups.iter().map(|group| group.tensors.len()).sum();
    run.observer.note(&format!(
        "{} of {of} quantized tensors are raised (as the mix has them the divergence is {all:.3e})",
        raised.len()
    ));
    if !raised.is_empty() {
        run.observer.print(&raised.join("\n"))?;
    }
    fs_err::remove_dir_all(types)?;
    Ok(Some(goal))
}

impl RaiseSearch<'_> {
    /// Returns the divergence with each group at a level.
    fn measure(&self, levels: &[usize]) -> Result<f64> {
        let mut from = vec![0; self.target.model.graph.weights.len()];
        for (group, &level) in self.groups.iter().zip(levels) {
            group.weights.iter().for_each(|&weight| from[weight] = self.tried.place[level]);
        }
        self.measured.get(format!("{levels:?}").as_bytes(), || {
            let engine = self.goal.engine.clone();
            let sources = self.tried.sources.clone();
            let mixed = MixedEngine { engine, sources, from };
            self.goal.measure(&mixed, self.target, &self.goal.trial.path)
        })
    }

    /// Finds the levels that meet the goal with the fewest raises. `none` is the divergence with nothing
    /// quantized; `bytes` returns the size of a tensor at a level.
    fn find(
        &self,
        observer: &dyn ConversionObserver,
        none: f64,
        bytes: impl Fn(usize, usize) -> u64,
    ) -> Result<RaisedLevels> {
        let count = self.groups.len();
        let mut costs = vec![0.0; count];
        let bar = observer.count(count as u64, "groups");
        for (n, cost) in costs.iter_mut().enumerate() {
            let mut alone = vec![TOP; count];
            alone[n] = 0;
            *cost = self.measure(&alone)?;
            bar.advance(1);
        }
        drop(bar);
        let raises = order::raises(
            &self
                .groups
                .iter()
                .zip(&costs)
                .map(|(group, cost): (&TypeGroup, &f64)| {
                    LevelCosts::new(cost - none, &group.tensors, &self.tried.errors, &bytes)
                })
                .collect::<Vec<_>>(),
        );
        let after = |raised: usize| {
            let mut levels = vec![0; count];
            raises[..raised].iter().for_each(|raise| levels[raise.group] = raise.to);
            levels
        };
        Ok(RaisedLevels {
            levels: after(smallest_sufficient(raises.len(), |raised: usize| {
                Ok(self.measure(&after(raised))? <= self.goal.most)
            })?),
            costs,
        })
    }
}

/// Assigns the found types to the tensors of a draft; returns a line for each change.
fn raise(
    source: &GgufModel<'_>,
    draft: &mut GgufDraft,
    groups: &[TypeGroup],
    raised: &RaisedLevels,
) -> Vec<String> {
    let mut lines = Vec::new();
    for ((group, &level), cost) in groups.iter().zip(&raised.levels).zip(&raised.costs) {
        for &n in &group.tensors {
            let [was, ty] = [0, level].map(|level| draft.levels[n][level]);
            if was == ty {
                continue;
            }
            let name = &source.tensors[n].name;
            let choice = &mut draft.output.choices[n];
            let why =
                format!("{}; raised from {was}, which would cost {cost:.1e} nats", choice.why);
            lines.push(format!("  {name:<40} {:<8} {why}", ty.name()));
            *choice = TypeChoice { ty, why };
        }
    }
    lines
}

/// Opens a written file for measurement, independent of its name.
pub(crate) fn written(
    engine: NativeEngine,
    target: &LocalModel,
    path: &Path,
) -> Result<MixedEngine> {
    let model = &target.model;
    let gguf = model.gguf.clone().unwrap_or_else(|| own_names(model));
    let weights = GgufWeights::new(GgufFile::open(path)?, &gguf, &model.graph.weights)?;
    let from = vec![0; model.graph.weights.len()];
    Ok(MixedEngine { engine, sources: vec![Arc::new(weights)], from })
}

/// Groups the tensors that may be raised by the weights that they are made of. Tensors that do not run with
/// the model, such as the prediction head, keep the type of the mix.
fn groups(
    source: &GgufModel<'_>,
    target: &LocalModel,
    gguf: &Gguf,
    levels: &[[BlockType; LEVELS]],
) -> Result<Vec<TypeGroup>> {
    let names = source.tensors.iter().enumerate().map(|(n, tensor)| (tensor.name.as_str(), n));
    let places: BTreeMap<&str, usize> = names.collect();
    let groups = gguf.groups(&target.model.graph.weights).map_err(several)?;
    let groups = groups.into_iter().map(|group| {
        let tensors = group.tensors.iter().filter_map(|(name, _)| places.get(name.as_str()));
        TypeGroup {
            tensors: tensors.copied().filter(|&n: &usize| levels[n][0] != levels[n][TOP]).collect(),
            weights: group.weights,
        }
    });
    Ok(groups.filter(|group| !group.tensors.is_empty()).collect())
}

/// Returns the size of values in a type.
fn bytes(ty: BlockType, numbers: usize) -> u64 {
    (numbers / ty.elements() * ty.bytes()) as u64
}

/// Describes the tensors that stay quantized at every level.
fn fixed_tensors(source: &GgufModel<'_>, draft: &GgufDraft) -> String {
    let tensors = source.tensors.iter().zip(&draft.levels);
    let mut stay = tensors.filter(|(_, levels)| levels[TOP].is_quantized());
    stay.next().map_or_else(String::new, |(first, levels)| {
        let count = stay.count() + 1;
        let name = &first.name;
        format!(
            ", {count} tensors of asked or fixed types among them: `{name}` stays {}",
            levels[TOP]
        )
    })
}
