//! Lists the tensors of a new checkpoint: the source tensors, with experts split if wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{Graph, WeightId};
use registry::model::{Model, is_buffer};
use registry::ops::Trait;
use registry::quant::{UnquantizedReason, unquantized_matrices};
use registry::weight_map::{WeightRule, WeightStep, gather, natural_order_key, shapes};

use super::FolderTensor;
use checkpoints::checkpoint::{self, Checkpoint, TensorInfo};
use checkpoints::flow::{Flow, RawBytes};
use checkpoints::weights::WeightFlow;
use formats::safetensors::FileDtype;

/// What the graph does with a weight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WeightUse {
    /// The weight is a matrix factor, and nothing else.
    Matrix,
    Other,
}

/// Options for listing tensors.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListingOptions {
    /// True if stacked experts are split into one tensor each, as engines require for scales.
    pub apart: bool,
    /// True if the output matrix, whose product is the logits, may be quantized too.
    pub output: bool,
}

/// Reason that the tensors of a new checkpoint cannot be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor of the source cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The spec has no other name for a tensor of blocks.
    #[error(
        "`{tensor}` is kept in blocks, and no rule of the spec says what it is called \
         without them; add one to `weights:`"
    )]
    NoName {
        /// Name of the tensor of blocks.
        tensor: String,
    },
}

/// Reason that a tensor is not quantized as a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unquantized {
    /// The tensor is not only a factor of products.
    #[error("nothing only multiplies by it")]
    NoFactor,
    /// The spec lists the tensor, with a reason.
    #[error("the spec keeps it: {0}")]
    Kept(String),
    /// The tensor is the matrix of the output or of a router.
    #[error("{}", .0.reason())]
    Reason(UnquantizedReason),
    /// The tensor has another number of axes than two.
    #[error("it has {0} axes")]
    Axes(usize),
    /// The tensor is a stack of matrices.
    #[error("several matrices in one")]
    Several,
}

/// Returns the tensors, in natural order of their names.
pub fn tensors<'c>(
    checkpoint: &'c Checkpoint,
    model: &Model,
    weights: &[WeightFlow<'c>],
    options: ListingOptions,
) -> Result<Vec<FolderTensor<'c>>, Error> {
    let graph = &model.graph;
    let mut stays = unquantized_matrices(graph);
    stays.retain(|_, why| !(options.output && *why == UnquantizedReason::OutputMatrix));
    let uses = uses(graph);
    let experts = experts(graph);
    let mut makes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (n, weight) in weights.iter().enumerate() {
        for tensor in &weight.tensors {
            makes.entry(tensor).or_default().push(n);
        }
    }
    let listing = TensorListing { checkpoint, model, weights, stays, uses, experts };
    let mut listed = Vec::new();
    let mut done = BTreeSet::new();
    for (name, info) in checkpoint.tensors() {
        let mine = makes.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        if options.apart && listing.splits(name, mine) {
            let fresh = mine.iter().filter(|&&n| done.insert(n));
            listed.extend(fresh.map(|&n| listing.expert(name, n)));
        } else if let Some(&first) = mine.iter().find(|&&n| in_blocks(model, &weights[n])) {
            if mine.iter().all(|n| done.insert(*n)) {
                listed.push(listing.stack(name, info, mine, first)?);
            }
        } else if !mine.is_empty() || !is_buffer(name) {
            listed.push(listing.plain(name, info, mine)?);
        }
    }
    listed.sort_by_cached_key(|tensor| natural_order_key(&tensor.name));
    Ok(listed)
}

/// Tensors of a checkpoint, and what the graph does with the weights that they hold.
struct TensorListing<'a, 'c> {
    checkpoint: &'c Checkpoint,
    model: &'a Model,
    weights: &'a [WeightFlow<'c>],
    stays: BTreeMap<WeightId, UnquantizedReason>,
    uses: Vec<WeightUse>,
    /// Mixture of each weight of experts.
    experts: BTreeMap<usize, usize>,
}

impl<'c> TensorListing<'_, 'c> {
    /// True if a tensor is split into the weights that it holds. Stacked tensors that no loader can restack stay as they
    /// are.
    fn splits(&self, tensor: &str, mine: &[usize]) -> bool {
        mine.len() > 1
            && mine.iter().all(|n: &usize| {
                let weight = &self.model.graph.weights[*n].name;
                let renamed = self.weights[*n].rule.is_some() && weight != tensor;
                let may_change = self.model.quant.keep_reason(weight).is_none();
                self.experts.contains_key(n) && renamed && may_change
            })
    }

    /// Returns the tensor of one of the weights that a tensor holds.
    fn expert(&self, tensor: &str, n: usize) -> FolderTensor<'c> {
        let model = self.model;
        let weight = &model.graph.weights[n];
        let flow = self.weights[n].flow.clone();
        let dtype = match flow.dtype() {
            Some(dtype) if dtype.run().is_some() => dtype,
            _ => FileDtype::Bf16,
        };
        let stays = stay_reason(&self.stays, &[n]);
        let matrix = quantizable(model, &[&weight.name], self.uses[n], stays, flow.shape());
        FolderTensor {
            name: split_name(model, tensor, &weight.name),
            place: self.weights[n].place,
            dtype,
            always_wide: is_always_wide(&model.graph, &[n]),
            shape: flow.shape().to_vec(),
            flow,
            weight: weight.name.clone(),
            weights: vec![WeightId(n)],
            mixture: self.experts.get(&n).copied(),
            matrix,
        }
    }

    /// Returns the unquantized tensor in place of one of blocks.
    fn stack(
        &self,
        tensor: &str,
        info: &TensorInfo,
        mine: &[usize],
        first: usize,
    ) -> Result<FolderTensor<'c>, Error> {
        let (name, flow) = stacked(self.model, self.weights, mine, &info.shape)
            .ok_or_else(|| Error::NoName { tensor: tensor.to_owned() })?;
        Ok(FolderTensor {
            weight: name.clone(),
            name,
            place: self.weights[first].place,
            dtype: FileDtype::Bf16,
            always_wide: is_always_wide(&self.model.graph, mine),
            shape: flow.shape().to_vec(),
            flow,
            weights: mine.iter().copied().map(WeightId).collect(),
            mixture: None,
            matrix: Err(Unquantized::Several),
        })
    }

    /// Returns a tensor that keeps its name and shape.
    fn plain(
        &self,
        tensor: &str,
        info: &TensorInfo,
        mine: &[usize],
    ) -> Result<FolderTensor<'c>, Error> {
        let model = self.model;
        let mut flow = self.checkpoint.flow(tensor)?;
        if flow.numeric().is_err() {
            let bytes = self.checkpoint.bytes(tensor)?;
            flow = Flow::new(&[bytes.len()], Arc::new(RawBytes(bytes)));
        }
        let are_matrices = mine.iter().all(|&n| {
            let steps = self.weights[n].rule.map(|rule| &model.rules[rule].steps);
            self.uses[n] == WeightUse::Matrix
                && steps.is_none_or(|steps| steps.iter().all(rows_stay))
        });
        let used =
            if !mine.is_empty() && are_matrices { WeightUse::Matrix } else { WeightUse::Other };
        let names: Vec<&str> = mine.iter().map(|&n| model.graph.weights[n].name.as_str()).collect();
        let coded = self.checkpoint.is_quantized(tensor);
        Ok(FolderTensor {
            name: tensor.to_owned(),
            weight: if let [one] = names[..] { one.to_owned() } else { tensor.to_owned() },
            weights: mine.iter().copied().map(WeightId).collect(),
            mixture: mine.iter().find_map(|n| self.experts.get(n).copied()),
            matrix: quantizable(model, &names, used, stay_reason(&self.stays, mine), &info.shape),
            flow,
            place: (info.file, info.range.0),
            dtype: if coded { FileDtype::Bf16 } else { info.dtype },
            always_wide: is_always_wide(&model.graph, mine),
            shape: info.shape.clone(),
        })
    }
}

/// True if one of these weights is f32 by the spec.
fn is_always_wide(graph: &Graph, weights: &[usize]) -> bool {
    let fixed = DtypeRule::Fixed(Dtype::F32);
    weights.iter().any(|&n| graph.weights[n].dtype == fixed)
}

/// Returns the first reason to leave one of these weights unquantized.
fn stay_reason(
    stays: &BTreeMap<WeightId, UnquantizedReason>,
    weights: &[usize],
) -> Option<UnquantizedReason> {
    weights.iter().find_map(|n| stays.get(&WeightId(*n))).copied()
}

/// Returns the name of a weight that is split from a tensor. The name shares the tensor's prefix.
fn split_name(model: &Model, tensor: &str, weight: &str) -> String {
    let disk_name = if begin_alike(tensor, weight) {
        None
    } else {
        model.rules.iter().find_map(|rule: &WeightRule| {
            let wrapped = rule.renamed(tensor).is_some_and(|name| begin_alike(&name, weight));
            wrapped.then(|| rule.on_disk(weight)).flatten()
        })
    };
    disk_name.unwrap_or_else(|| weight.to_owned())
}

/// True if two names have the same first three parts.
fn begin_alike(one: &str, other: &str) -> bool {
    one.split('.').zip(other.split('.')).take_while(|(a, b)| a == b).count() >= 3
}

/// True if a rule of the spec decodes the weight from blocks and scales.
fn in_blocks(model: &Model, weight: &WeightFlow<'_>) -> bool {
    let steps = weight.rule.map(|rule| &model.rules[rule].steps);
    steps.is_some_and(|steps| steps.first() == Some(&WeightStep::Mxfp4))
}

/// Returns the unquantized tensor that holds some weights: the name and steps of another rule that makes
/// the same weights. `blocks` is the shape of the blocks.
fn stacked<'c>(
    model: &Model,
    weights: &[WeightFlow<'c>],
    mine: &[usize],
    blocks: &[usize],
) -> Option<(String, Flow<'c>)> {
    let &[outer, rows, runs, _] = blocks else { return None };
    let row = runs.checked_mul(32)?;
    model
        .rules
        .iter()
        .filter(|rule: &&WeightRule| rule.steps.first() != Some(&WeightStep::Mxfp4))
        .find_map(|rule| {
            let mut parts = Vec::with_capacity(mine.len());
            let mut disk = None;
            for &n in mine {
                let name = &model.graph.weights[n].name;
                let gathered = gather(rule, name, |_| std::iter::empty())?;
                let [tensor] = &gathered.names[..] else { return None };
                if disk.get_or_insert_with(|| tensor.clone()) != tensor {
                    return None;
                }
                parts.push((gathered.output, n));
            }
            parts.sort_unstable();
            let flows: Vec<_> = parts.iter().map(|&(_, n)| weights[n].flow.clone()).collect();
            let expected: Vec<_> = flows.iter().map(|flow| flow.shape().to_vec()).collect();
            let orders = [vec![outer, rows, row], vec![outer, row, rows]];
            let shape = orders.into_iter().find(|shape: &Vec<usize>| {
                shapes(&rule.steps, vec![shape.clone()]).is_ok_and(|shapes| shapes == expected)
            })?;
            Some((disk?, Flow::undo(&rule.steps, shape, flows).ok()?))
        })
}

/// True if a step keeps rows intact. A matrix on disk is then one or several stacked matrices of the graph.
fn rows_stay(step: &WeightStep) -> bool {
    match step {
        WeightStep::Split { axis, .. } | WeightStep::SplitRuns { axis, .. } => *axis == 0,
        WeightStep::PermuteHeads { .. } => true,
        _ => false,
    }
}

/// Returns the reason why a tensor is not quantized as a matrix, if it is not.
fn quantizable(
    model: &Model,
    names: &[&str],
    used: WeightUse,
    stays: Option<UnquantizedReason>,
    shape: &[usize],
) -> Result<(), Unquantized> {
    if used == WeightUse::Other {
        return Err(Unquantized::NoFactor);
    }
    if let Some(why) = names.iter().find_map(|name| model.quant.keep_reason(name)) {
        return Err(Unquantized::Kept(why.to_owned()));
    }
    if let Some(stays) = stays {
        return Err(Unquantized::Reason(stays));
    }
    if shape.len() != 2 {
        return Err(Unquantized::Axes(shape.len()));
    }
    Ok(())
}

fn uses(graph: &Graph) -> Vec<WeightUse> {
    let mut matrix = BTreeSet::new();
    let mut other = BTreeSet::new();
    for node in &graph.nodes {
        let multiplies = node.op.is(Trait::RoundsInputs);
        for (role, id) in &node.weights {
            let to = if multiplies && !role.contains("bias") { &mut matrix } else { &mut other };
            to.insert(id.0);
        }
    }
    (0..graph.weights.len())
        .map(|n| {
            let alone = matrix.contains(&n) && !other.contains(&n);
            if alone { WeightUse::Matrix } else { WeightUse::Other }
        })
        .collect()
}

/// Maps the weights of mixtures to their mixture.
fn experts(graph: &Graph) -> BTreeMap<usize, usize> {
    let nodes = graph.nodes.iter().enumerate().filter(|(_, node)| node.op.is(Trait::Experts));
    nodes.flat_map(|(n, node)| node.weights.values().map(move |id| (id.0, n))).collect()
}
