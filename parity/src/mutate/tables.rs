//! Edits of rotary tables, and of the dtypes of states and values.

use std::collections::{BTreeMap, BTreeSet};

use registry::dtype::{Dtype, DtypeRule};
use registry::graph::StateId;
use registry::model::Model;
use registry::rope::RopeTable;

use super::{MistakeClass, Mutant};
use crate::edit::{Change, stretch};
use crate::places::Places;

/// Returns the edits of a model's tables and dtypes.
pub(super) fn mutants(model: &Model, places: &Places<'_>) -> Vec<Mutant> {
    let mut all = ropes(model, places);
    all.extend(states(model, places));
    all.extend(values(model, places));
    all
}

/// Edit of a table; false if it changes nothing.
type TableEdit = fn(&mut RopeTable) -> bool;

/// Factor of a larger base.
const LARGER: f32 = 1.01;

const TABLES: [(&str, TableEdit); 7] = [
    ("theta x 1.01", |rope| {
        stretch(&mut rope.inv_freq, LARGER);
        rope.inv_freq.len() > 1
    }),
    ("a scaling factor of 1.01", |rope| {
        rope.inv_freq.iter_mut().for_each(|x| *x /= 1.01);
        true
    }),
    ("cos and sin x 1.01", |rope| {
        rope.attention_factor *= 1.01;
        true
    }),
    ("two rotated dims less", |rope| {
        rope.dim -= 2.min(rope.dim);
        rope.inv_freq.truncate(rope.dim / 2);
        rope.dim > 0
    }),
    ("the lowest frequency twice as high", |rope| {
        rope.inv_freq.last_mut().map(|x| *x *= 2.0).is_some()
    }),
    ("the table for long sequences: theta x 1.01", |rope| {
        rope.long.as_mut().map(|long| stretch(&mut long.inv_freq, LARGER)).is_some()
    }),
    ("the table for long sequences one position later", |rope| {
        let long = rope.long.as_mut().map(|long| long.original_context += 1);
        let dynamic = rope.dynamic.as_mut().map(|dynamic| dynamic.context += 1);
        long.is_some() || dynamic.is_some()
    }),
];

fn ropes(model: &Model, places: &Places<'_>) -> Vec<Mutant> {
    let mut all = Vec::new();
    for (n, rope) in model.ropes.iter().enumerate() {
        for (what, change) in TABLES {
            let mut table = rope.clone();
            if !change(&mut table) {
                continue;
            }
            let name = format!("rope `{}`: {what}", rope.name);
            let reach = "no layer reads it, no prompt is as long, or the pair is not rotated";
            let change = Change::Table { rope: n, table: Box::new(table) };
            all.push(Mutant::edit(name, MistakeClass::Rope, places.of_rope(n), reach, change));
        }
    }
    all
}

/// Returns edits of the dtype of states, to each dtype that they do not have.
fn states(model: &Model, places: &Places<'_>) -> Vec<Mutant> {
    let mut names: BTreeMap<&str, Vec<StateId>> = BTreeMap::new();
    for (n, state) in model.graph.states.iter().enumerate() {
        names.entry(&state.name).or_default().push(StateId(n));
    }
    let mut all = Vec::new();
    for (name, states) in names {
        for dtype in Dtype::ALL {
            let rule = DtypeRule::Fixed(dtype);
            let edited: Vec<StateId> =
                states.iter().copied().filter(|s| model.graph.states[s.0].dtype != rule).collect();
            if edited.is_empty() {
                continue;
            }
            let name = format!("state `{name}` kept in {dtype}");
            let right = places.of_states(&edited);
            let reach =
                "the run keeps it in this dtype anyway, or keeps no number that does not fit";
            let change = Change::StateDtype(edited, rule);
            all.push(Mutant::edit(name, MistakeClass::State, right, reach, change));
        }
    }
    all
}

/// Returns edits of the rounding of op results: f32 values are rounded, and rounded values are not.
fn values(model: &Model, places: &Places<'_>) -> Vec<Mutant> {
    let graph = &model.graph;
    let mut kinds: BTreeMap<(&str, bool), BTreeSet<usize>> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        for value in &node.outputs {
            let wide = graph.values[value.0].dtype == DtypeRule::Fixed(Dtype::F32);
            kinds.entry((node.op.as_str(), wide)).or_default().insert(n);
        }
    }
    let mut all = Vec::new();
    for ((op, wide), nodes) in kinds {
        let (from, to, what) = if wide {
            (DtypeRule::Fixed(Dtype::F32), DtypeRule::Activation, "its f32 result is rounded")
        } else {
            (DtypeRule::Activation, DtypeRule::Fixed(Dtype::F32), "its result is not rounded")
        };
        let right = places.of(nodes.iter().copied());
        let reach = "f32 runs round nothing, and ops that only move numbers round nothing";
        let name = format!("{op}: {what}");
        let results = nodes.iter().flat_map(|n| &graph.nodes[*n].outputs).copied();
        let values = results.filter(|value| graph.values[value.0].dtype == from).collect();
        let change = Change::ValueDtype(values, to);
        all.push(Mutant::edit(name, MistakeClass::Rounding, right, reach, change));
    }
    all
}
