//! The weights of a model as flows: found as [`super::Weights`] finds them, and not read.

use std::collections::BTreeSet;

use registry::graph::Weight;
use registry::weight_map::{Rule, Step, beginning, gather};

use super::Error;
use crate::checkpoint::Checkpoint;
use crate::flow::Flow;
use crate::shown;

/// A weight, and where its first source lies.
#[derive(Clone)]
pub struct Sourced<'c> {
    /// Its numbers.
    pub flow: Flow<'c>,
    /// File and offset of the first tensor it is made of.
    pub place: (usize, u64),
}

/// Finds every weight by the first rule that names it and of whose tensors the checkpoint has any, or
/// else under its own name. Also gives the names of the tensors that were used.
pub fn flows<'c>(
    checkpoint: &'c Checkpoint,
    wanted: &[Weight],
    rules: &[Rule],
) -> Result<(Vec<Sourced<'c>>, BTreeSet<String>), Vec<Error>> {
    let (mut found, mut used, mut errors) = (Vec::new(), BTreeSet::new(), Vec::new());
    for weight in wanted {
        match find(checkpoint, weight, rules) {
            Ok((sourced, names)) => {
                found.push(sourced);
                used.extend(names);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok((found, used)) } else { Err(errors) }
}

fn find<'c>(
    checkpoint: &'c Checkpoint,
    weight: &Weight,
    rules: &[Rule],
) -> Result<(Sourced<'c>, Vec<String>), Error> {
    let known = |name: &String| checkpoint.info(name).is_some();
    let rule = rules.iter().find_map(|rule| {
        let gathered = gather(rule, &weight.name, |text| beginning(checkpoint.tensors(), text))?;
        gathered.names.iter().any(known).then_some((rule, gathered))
    });
    let names = rule.as_ref().map_or_else(|| vec![weight.name.clone()], |(_, g)| g.names.clone());
    let mut flows = Vec::with_capacity(names.len());
    let mut place = (usize::MAX, u64::MAX);
    for name in &names {
        let info = checkpoint.info(name).ok_or_else(|| Error::Missing {
            root: checkpoint.root().into(),
            tensor: shown(name),
            weight: shown(&weight.name),
            shape: weight.shape.clone(),
        })?;
        place = place.min((info.file, info.range.0));
        let blocks =
            rule.as_ref().is_some_and(|(rule, _)| rule.steps.first() == Some(&Step::Mxfp4));
        let read = if blocks { Flow::raw } else { Flow::plain };
        let flow = read(&info.shape, info.dtype, checkpoint.bytes(name)?);
        flows.push(flow.map_err(|why| broken(checkpoint, weight, name, why))?);
    }
    let mut output = 0;
    if let Some((rule, gathered)) = rule {
        let text = format!("{} -> {}", rule.disk.text, rule.weight.text);
        flows =
            Flow::run(&rule.steps, flows).map_err(|why| broken(checkpoint, weight, &text, why))?;
        output = gathered.output;
    }
    let count = flows.len();
    let flow = flows.into_iter().nth(output).ok_or_else(|| {
        let why = format!("its steps give {count} tensors, and this is number {}", output + 1);
        broken(checkpoint, weight, &weight.name, why)
    })?;
    if flow.shape() != weight.shape {
        return Err(Error::Shape {
            root: checkpoint.root().into(),
            weight: shown(&weight.name),
            found: flow.shape().to_vec(),
            expected: weight.shape.clone(),
        });
    }
    Ok((Sourced { flow, place }, names))
}

/// One tensor that a rule makes of others.
pub(super) fn made<'c>(
    checkpoint: &'c Checkpoint,
    rule: &Rule,
    tensors: &[String],
    output: usize,
) -> Result<Flow<'c>, Error> {
    let fault = |why: String| Error::Rule {
        root: checkpoint.root().into(),
        weight: rule.weight.text.clone(),
        rule: format!("{} -> {}", rule.disk.text, rule.weight.text),
        why,
    };
    let mut flows = Vec::with_capacity(tensors.len());
    for name in tensors {
        let info = checkpoint.info(name).ok_or_else(|| fault(format!("there is no `{name}`")))?;
        let read = if rule.steps.first() == Some(&Step::Mxfp4) { Flow::raw } else { Flow::plain };
        flows.push(read(&info.shape, info.dtype, checkpoint.bytes(name)?).map_err(fault)?);
    }
    let flows = Flow::run(&rule.steps, flows).map_err(fault)?;
    flows.into_iter().nth(output).ok_or_else(|| fault("it gives too few tensors".to_owned()))
}

fn broken(checkpoint: &Checkpoint, weight: &Weight, rule: &str, why: String) -> Error {
    let (root, weight) = (checkpoint.root().into(), shown(&weight.name));
    Error::Rule { root, weight, rule: shown(rule), why }
}
