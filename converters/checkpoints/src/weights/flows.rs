//! Finds the weights of a model as lazy flows, by the same rules as [`super::CheckpointWeights`].

use std::collections::BTreeSet;
use std::sync::Arc;

use registry::dtype::Dtype;
use registry::gguf::IdleWeight;
use registry::graph::Weight;
use registry::weight_map::{WeightRule, WeightStep};

use super::{Error, find_rule, missing};
use crate::checkpoint::{BlockEncoding, Checkpoint};
use crate::flow::{self, Flow, MXFP4_GROUP, ValueReader};
use crate::integers::{self, is_integer};
use formats::codec::BlockType;
use formats::shown;

/// Weight with its source tensors.
#[derive(Clone)]
pub struct WeightFlow<'c> {
    /// Values of the weight.
    pub flow: Flow<'c>,
    /// File and offset of the first source tensor.
    pub place: (usize, u64),
    /// Names of the source tensors.
    pub tensors: Vec<String>,
    /// Index of the rule that makes the weight; none if it is the tensor of its name.
    pub rule: Option<usize>,
    /// Block format of the rows on disk, if a GGUF file can hold it unchanged.
    pub packed: Option<BlockEncoding>,
}

/// Finds every weight by the first rule that names it and has a tensor in the checkpoint. Other weights are
/// found under their own name. Also returns the names of the used tensors.
pub fn flows<'c>(
    checkpoint: &'c Checkpoint,
    weights: &[Weight],
    rules: &[WeightRule],
) -> Result<(Vec<WeightFlow<'c>>, BTreeSet<String>), Vec<Error>> {
    let mut weight_flows = Vec::new();
    let mut used = BTreeSet::new();
    let mut errors = Vec::new();
    for weight in weights {
        match find(checkpoint, weight, rules) {
            Ok(sourced) => {
                used.extend(sourced.tensors.iter().cloned());
                weight_flows.push(sourced);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok((weight_flows, used)) } else { Err(errors) }
}

/// Returns weights that the graph does not use but a GGUF file may need. Their shapes come from the
/// checkpoint; required weights that it lacks are zeros.
pub fn idle<'c>(
    checkpoint: &'c Checkpoint,
    all: Vec<IdleWeight>,
    rules: &[WeightRule],
) -> Result<Vec<(Weight, WeightFlow<'c>)>, Vec<Error>> {
    let mut weight_flows = Vec::new();
    let mut errors = Vec::new();
    for IdleWeight { mut weight, filled } in all {
        match of_any_shape(checkpoint, &weight, rules) {
            Ok(sourced) => {
                weight.shape = sourced.flow.shape().to_vec();
                weight_flows.push((weight, sourced));
            }
            Err(Error::Missing { .. }) if filled => {
                let flow = Flow::new(&weight.shape, Arc::new(ZeroValues));
                let place = (usize::MAX, 0);
                let sourced = WeightFlow { flow, place, tensors: vec![], rule: None, packed: None };
                weight_flows.push((weight, sourced));
            }
            Err(Error::Missing { .. }) => {}
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(weight_flows) } else { Err(errors) }
}

struct ZeroValues;

impl ValueReader for ZeroValues {
    fn read(&self, _: usize, out: &mut [f32]) {
        out.fill(0.0);
    }
}

fn find<'c>(
    checkpoint: &'c Checkpoint,
    weight: &Weight,
    rules: &[WeightRule],
) -> Result<WeightFlow<'c>, Error> {
    let weight_flow = of_any_shape(checkpoint, weight, rules)?;
    if weight_flow.flow.shape() != weight.shape {
        return Err(Error::Shape {
            root: checkpoint.root().into(),
            weight: shown(&weight.name),
            found: weight_flow.flow.shape().to_vec(),
            expected: weight.shape.clone(),
        });
    }
    Ok(weight_flow)
}

fn of_any_shape<'c>(
    checkpoint: &'c Checkpoint,
    weight: &Weight,
    rules: &[WeightRule],
) -> Result<WeightFlow<'c>, Error> {
    let rule = find_rule(checkpoint, weight, rules);
    let names = rule.as_ref().map_or_else(|| vec![weight.name.clone()], |(_, g)| g.names.clone());
    let mut place = (usize::MAX, u64::MAX);
    for name in &names {
        let info = checkpoint.info(name).ok_or_else(|| missing(checkpoint, weight, name))?;
        place = place.min((info.file, info.range.0));
    }
    let flow = match &rule {
        Some((number, gathered)) => {
            let rule = &rules[*number];
            computed_flow(checkpoint, &weight.name, rule, &names, gathered.output, None)?
        }
        None => checkpoint.flow(&weight.name)?,
    };
    let flow = readable(flow, weight).map_err(|why| {
        let rule = rule.as_ref().map(|(number, _)| text(&rules[*number]));
        broken(checkpoint, &weight.name, rule.as_ref().unwrap_or(&weight.name), why)
    })?;
    let rule = rule.map(|(number, _)| number);
    let packed = match rule {
        Some(number) => {
            let ty = in_blocks(&rules[number]).then(|| BlockType::of_e2m1(MXFP4_GROUP)).flatten();
            ty.map(|ty| BlockEncoding { ty, factor: 1.0 })
        }
        None => checkpoint.packed(&weight.name),
    };
    Ok(WeightFlow { flow, place, tensors: names, rule, packed })
}

/// Returns a flow that can be read as numbers: integers only for a weight that holds some.
fn readable<'c>(flow: Flow<'c>, weight: &Weight) -> Result<Flow<'c>, flow::Error> {
    let dtype = flow.dtype().filter(|dtype| weight.integers && is_integer(*dtype));
    let Some(dtype) = dtype else { return flow.numeric().map(|()| flow) };
    let numbers = integers::numbers(dtype, &flow.bytes())?;
    Ok(Flow::new(flow.shape(), Arc::new(HeldNumbers(numbers))))
}

/// Numbers in memory.
struct HeldNumbers(Vec<f32>);

impl ValueReader for HeldNumbers {
    fn read(&self, at: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

/// True if a rule reads blocks of 4-bit values.
fn in_blocks(rule: &WeightRule) -> bool {
    rule.steps.first() == Some(&WeightStep::Mxfp4)
}

/// Returns one output tensor of a rule, for `weight`. Values of any dtype can be moved unchanged. `loaded`: the dtype to
/// which the reference rounds a tensor before its class adds a number to it.
pub(super) fn computed_flow<'c>(
    checkpoint: &'c Checkpoint,
    weight: &str,
    rule: &WeightRule,
    tensors: &[String],
    output: usize,
    loaded: Option<Dtype>,
) -> Result<Flow<'c>, Error> {
    let mut flows = Vec::with_capacity(tensors.len());
    let adds = rule.steps.iter().any(|step| matches!(step, WeightStep::Add(_)));
    for name in tensors {
        let flow = checkpoint.flow(name)?;
        flows.push(match loaded.filter(|_| adds) {
            Some(dtype) => flow.rounded(dtype),
            None => flow,
        });
    }
    let flows =
        Flow::run(&rule.steps, flows).map_err(|why| rule_error(checkpoint, weight, rule, why))?;
    let count = flows.len();
    let flow = flows.into_iter().nth(output).ok_or_else(|| {
        let why = flow::Error::NoOutput { found: count, number: output + 1 };
        rule_error(checkpoint, weight, rule, why)
    })?;
    if flow.dtype().is_none() {
        flow.numeric().map_err(|why| rule_error(checkpoint, weight, rule, why))?;
    }
    Ok(flow)
}

/// Returns the error for a rule that cannot make a weight.
fn rule_error(checkpoint: &Checkpoint, weight: &str, rule: &WeightRule, why: flow::Error) -> Error {
    broken(checkpoint, weight, &text(rule), why)
}

pub(super) fn text(rule: &WeightRule) -> String {
    format!("{} -> {}", rule.disk.text, rule.weight.text)
}

pub(super) fn broken(checkpoint: &Checkpoint, weight: &str, rule: &str, why: flow::Error) -> Error {
    Error::Rule {
        root: checkpoint.root().into(),
        weight: shown(weight),
        rule: shown(rule),
        why: Box::new(why),
    }
}
