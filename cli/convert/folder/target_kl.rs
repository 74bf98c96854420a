//! `--target-kl`: keeps as many matrices as they were as a divergence asks for, the ones that matter
//! most for their size first.
//!
//! The whole checkpoint is quantized once, into a folder beside the output. Every group of matrices
//! that are quantized together is then run alone in its codes, the rest as it was: what that costs per
//! number orders the groups. How many of them have to stay is found by halving, each time by
//! measuring, and the folder that is written is measured once more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use converters::Checkpoint;
use converters::convert::folder;
use converters::weights::{Weights, flows};
use engine::mixed::Mixed;
use engine::{NativeEngine, Options, Source};
use parity::Dump;
use parity::cost::cost;
use registry::dtype::Dtype;
use registry::graph::WeightId;

use super::{Plan, beside};
use crate::convert::Convert;
use crate::parity_check::{beside as dump_beside, no_reference};
use crate::specs::check_error;
use crate::{Ended, term};

/// Matrices that are quantized all or none.
struct Group {
    /// Places in the plan.
    tensors: Vec<usize>,
    weights: BTreeSet<WeightId>,
    /// Divergence where only these are quantized.
    kl: f64,
    numbers: usize,
}

/// The most divergence, and what it is measured with.
pub(super) struct Goal {
    most: f64,
    dump: Dump,
    options: Options,
}

impl Goal {
    /// What the flags ask for, if they do.
    pub(super) fn of(args: &Convert, plan: &Plan<'_>) -> Result<Option<Self>> {
        let Some(most) = args.target_kl else { return Ok(None) };
        ensure!(plan.format.quantizes(), "--target-kl: `{}` loses nothing", plan.format.name());
        ensure!(!args.plan, "--target-kl measures weights, and --plan reads none");
        ensure!(args.shard.is_none(), "--target-kl measures all weights; --shard goes without it");
        let target = plan.target;
        let path = args.reference.clone().or_else(|| dump_beside(target));
        let path = path.with_context(|| no_reference(target))?;
        let dump = Dump::open(&path)
            .with_context(|| format!("cannot read the reference `{}`", path.display()))?;
        let options = Options {
            dtype: Dtype::F32,
            threads: args.threads,
            round_tokens: args.w8a8,
            ..Options::default()
        };
        Ok(Some(Self { most, dump, options }))
    }

    fn measure(&self, plan: &Plan<'_>, engine: &dyn engine::Engine, dir: &Path) -> Result<f64> {
        let source = Source { model: Arc::clone(&plan.target.model), dir };
        let cost = cost(engine, &source, &self.dump, &self.options).map_err(check_error)?;
        Ok(cost.kl.mean)
    }

    /// Changes the choices of a plan so that the goal is met.
    pub(super) fn choose(&self, args: &Convert, plan: &mut Plan<'_>) -> Result<()> {
        let name = plan.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let trial = plan.folder.with_file_name(format!("{name}.trial"));
        ensure!(!trial.exists(), "`{}` is in the way; remove it", trial.display());
        let chosen = self.choose_with(args, plan, &trial);
        fs_err::remove_dir_all(&trial).ok();
        chosen
    }

    fn choose_with(&self, args: &Convert, plan: &mut Plan<'_>, trial: &Path) -> Result<()> {
        let home = std::mem::replace(&mut plan.folder, trial.to_owned());
        let written = write_trial(args, plan);
        plan.folder = home;
        written?;
        let mut groups = groups(plan, &Checkpoint::open(trial)?)?;
        let model = &plan.target.model;
        let weights = |checkpoint| {
            let found = Weights::with_rules(checkpoint, &model.graph.weights, &model.rules)?;
            Ok::<_, anyhow::Error>(Arc::new(found))
        };
        let (first, second) =
            (weights(plan.target.checkpoint()?)?, weights(Checkpoint::open(trial)?)?);
        let mixed = |listed: BTreeSet<WeightId>| {
            let mixed = Mixed { first: Arc::clone(&first), second: Arc::clone(&second), listed };
            self.measure(plan, &mixed, trial)
        };
        let none = mixed(BTreeSet::new())?;
        ensure!(
            none <= self.most,
            "--target-kl {:e} cannot be met: with every matrix as it is the divergence is {none:.3e} already",
            self.most
        );
        let bar = term::count_bar(groups.len() as u64, "groups");
        for group in &mut groups {
            group.kl = mixed(group.weights.clone())?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        // The dearest for their size first; what costs the same stays in the order of its names.
        let dear = |group: &Group| (group.kl - none).max(0.0) / group.numbers.max(1) as f64;
        groups.sort_by(|a, b| dear(b).total_cmp(&dear(a)));
        let rest = |kept: usize| {
            let rest = groups[kept..].iter();
            mixed(rest.flat_map(|group| group.weights.iter().copied()).collect())
        };
        let all = rest(0)?;
        // With `low` groups kept it is too much, with `high` it is not.
        let (mut low, mut high) = (0, if all <= self.most { 0 } else { groups.len() });
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if rest(middle)? <= self.most { high = middle } else { low = middle }
        }
        for group in &groups[..high] {
            for &n in &group.tensors {
                let tensor = &plan.tensors[n];
                let why = format!("it would cost {:.1e} nats", group.kl);
                plan.choices[n] = folder::Choice { kept: Some(tensor.dtype), why };
            }
        }
        term::note(&format!(
            "{high} of {} groups of matrices stay as they are (with all quantized the divergence is {all:.3e})",
            groups.len()
        ));
        ensure!(
            plan.quantized() > 0,
            "--target-kl {:e} cannot be met with a single matrix as {}",
            self.most,
            plan.format.name()
        );
        Ok(())
    }

    /// Measures what was written.
    pub(super) fn confirm(&self, plan: &Plan<'_>) -> Result<Ended> {
        let kl = self.measure(plan, &NativeEngine::new(), &plan.folder)?;
        let (most, folder) = (self.most, plan.folder.display());
        if kl > most {
            bail!("`{folder}` was written, and its divergence is {kl:.3e}, more than {most:e}");
        }
        term::print(&format!(
            "divergence from the reference {kl:.3e}, asked for at most {most:e}"
        ))?;
        Ok(Ended::Well)
    }
}

/// Writes everything quantized.
fn write_trial(args: &Convert, plan: &mut Plan<'_>) -> Result<()> {
    plan.items = super::items(args, plan)?;
    plan.files = folder::lay_out(&plan.folder, &plan.items, plan.limit(args))?;
    let work = folder::work(&plan.items, &plan.files, None, plan.fingerprint()?);
    fs_err::create_dir_all(&plan.folder)?;
    let settings = converters::convert::Settings {
        threads: args.threads(),
        slab: args.slab as usize * 1000,
        ..Default::default()
    };
    converters::convert::run(&work, &settings, &())?;
    beside::write(plan)
}

/// The groups, and which weights of the graph each makes.
fn groups(plan: &Plan<'_>, trial: &Checkpoint) -> Result<Vec<Group>> {
    let model = &plan.target.model;
    let (sourced, _) = flows(trial, &model.graph.weights, &model.rules)
        .map_err(|errors| crate::convert::several(errors.iter().map(ToString::to_string)))?;
    let mut made: BTreeMap<&str, Vec<WeightId>> = BTreeMap::new();
    for (n, weight) in sourced.iter().enumerate() {
        for tensor in &weight.tensors {
            made.entry(tensor).or_default().push(WeightId(n));
        }
    }
    let mut groups: BTreeMap<(Option<usize>, String), Group> = BTreeMap::new();
    for (n, (tensor, choice)) in plan.tensors.iter().zip(&plan.choices).enumerate() {
        if choice.kept.is_some() {
            continue;
        }
        let first = || model.quant.together(&tensor.weight).swap_remove(0);
        let name = if tensor.mixture.is_some() { String::new() } else { first() };
        let group = groups.entry((tensor.mixture, name)).or_insert_with(|| Group {
            tensors: Vec::new(),
            weights: BTreeSet::new(),
            kl: 0.0,
            numbers: 0,
        });
        group.tensors.push(n);
        group.weights.extend(made.get(tensor.name.as_str()).into_iter().flatten());
        group.numbers += tensor.flow.len();
    }
    Ok(groups.into_values().collect())
}
