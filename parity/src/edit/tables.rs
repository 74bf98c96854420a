//! Edits of rotary tables, and of dtypes of states and values.

use std::collections::BTreeMap;

use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{RopeId, StateId, ValueId};
use registry::model::Model;
use registry::rope::RopeTable;
use registry::scalar::Scalar;

use super::frequencies::{stretch, theta};
use super::knobs::{Knob, KnobTarget, RopeKnob};
use super::number::show;
use super::scope::{Suspects, kinds, place, scopes};
use super::{Candidate, Change, Clues, Edit};

/// Bases of rotary tables in released models; the first is the default of most config classes.
const THETAS: [f64; 8] = [
    10_000.0,
    500_000.0,
    1_000_000.0,
    100_000.0,
    150_000.0,
    5_000_000.0,
    10_000_000.0,
    8_000_000.0,
];

/// Returns replacements of the tables that suspects read.
pub(super) fn candidates(model: &Model, suspects: &Suspects) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (rope, table) in model.ropes.iter().enumerate() {
        let readers: Vec<usize> = (0..model.graph.nodes.len())
            .filter(|n: &usize| model.graph.nodes[*n].rope == Some(RopeId(rope)))
            .collect();
        if !readers.iter().any(|n| suspects.first.contains(n)) {
            continue;
        }
        let home = format!("table `{}`", table.name);
        for (words, table) in tables(model, table, &readers) {
            let change = Change::Table { rope, table: Box::new(table) };
            let words = format!("rope {words}");
            all.push(Candidate::Edit(Edit { words, place: home.clone(), change }));
        }
        for knob in RopeKnob::ALL.into_iter().filter(|knob| knob.applies(table)) {
            let target = KnobTarget::Table { rope, table: Box::new(table.clone()), knob };
            all.push(Candidate::Knob(Knob { place: home.clone(), target }));
        }
        for (id, other) in model.ropes.iter().enumerate().filter(|(id, _)| *id != rope) {
            if other.dim > table.dim {
                continue;
            }
            for scope in scopes(&model.graph, &readers, suspects) {
                let words =
                    format!("rope table `{}` in the place of table `{}`", other.name, table.name);
                let change = Change::Rope(scope.nodes, RopeId(id));
                all.push(Candidate::Edit(Edit { words, place: scope.place, change }));
            }
        }
    }
    all
}

/// A table that a loader may compute instead, with its description.
type OtherTable = (String, RopeTable);

/// Returns tables that a loader may compute instead, with a description of each.
fn tables(model: &Model, table: &RopeTable, readers: &[usize]) -> Vec<OtherTable> {
    let mut all = Vec::new();
    if let Some(base) = theta(table) {
        all.extend(of_other_base(model, table, base));
        all.extend(of_other_size(model, table, base, readers));
    }
    if table.attention_factor != 1.0 {
        let words = format!("without the factor {} on cos and sin", show(table.attention_factor));
        all.push((words, RopeTable { attention_factor: 1.0, ..table.clone() }));
    }
    all.extend(rounded(table));
    all.extend(of_other_length(table));
    all
}

/// Returns the table without its scaling, and those of other bases.
fn of_other_base(model: &Model, table: &RopeTable, base: f64) -> Vec<OtherTable> {
    let mut all = Vec::new();
    let scaled = table.kind != "default"
        || table.long.is_some()
        || table.dynamic.is_some()
        || table.attention_factor != 1.0;
    if scaled {
        let words = format!("scaling left out (here '{}')", table.kind);
        all.push((words, RopeTable::plain(&table.name, table.dim, base)));
    }
    let dims = model.dims.values().filter_map(Scalar::as_f64).filter(|x| *x >= 1000.0);
    for other in THETAS.into_iter().chain(dims).filter(|x| (x / base - 1.0).abs() > 1e-6) {
        let tail = if other == THETAS[0] { ": `rope_parameters` not read" } else { "" };
        let words = format!("theta = {} instead of {}", show(other), show(base));
        let plain = RopeTable::plain(&table.name, table.dim, other);
        if scaled {
            // The base that scaled frequencies suggest is not that of the config.
            let unscaled =
                format!("theta = {} without scaling (here '{}'){tail}", show(other), table.kind);
            all.push((unscaled, plain));
            let mut scaled = table.clone();
            stretch(&mut scaled.inv_freq, (other / base) as f32);
            all.push((words, scaled));
        } else {
            all.push((format!("{words}{tail}"), plain));
        }
    }
    all
}

/// Returns tables for more or fewer numbers of a head.
fn of_other_size(
    model: &Model,
    table: &RopeTable,
    base: f64,
    readers: &[usize],
) -> Vec<OtherTable> {
    let mut all = Vec::new();
    let heads = readers.iter().filter_map(|n| model.graph.nodes[*n].inputs.first());
    let sizes = heads.filter_map(|value| model.graph.values[value.0].shape.last());
    if let Some(&head) = sizes.min() {
        if head != table.dim {
            let words = format!("on all {head} numbers of a head instead of {}", table.dim);
            all.push((words, RopeTable::plain(&table.name, head, base)));
            let mut wide = table.clone();
            wide.inv_freq = RopeTable::plain(&table.name, head, base).inv_freq;
            wide.inv_freq.truncate(table.dim / 2);
            all.push(("frequencies of the whole head".to_owned(), wide));
        }
        if table.dim + 2 <= head {
            let mut more = table.clone();
            more.dim += 2;
            let ratio = table.inv_freq.get(1).zip(table.inv_freq.first());
            let last = table.inv_freq.last().copied().unwrap_or(1.0);
            more.inv_freq.push(last * ratio.map_or(1.0, |(b, a)| b / a));
            all.push(("on two numbers of a head more".to_owned(), more));
        }
    }
    if table.dim >= 4 && table.dim.is_multiple_of(4) {
        let words = format!("on half as many numbers of a head ({})", table.dim / 2);
        all.push((words, RopeTable::plain(&table.name, table.dim / 2, base)));
    }
    if table.dim > 2 {
        let mut less = table.clone();
        less.dim -= 2;
        less.inv_freq.truncate(less.dim / 2);
        all.push(("on two numbers of a head less".to_owned(), less));
    }
    all
}

/// Returns the table with results, and with frequencies, in dtypes of 16 bits.
fn rounded(table: &RopeTable) -> Vec<OtherTable> {
    let mut all = Vec::new();
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let words = format!("with cos and sin rounded to {dtype}");
        all.push((words, RopeTable { rounded: Some(dtype), ..table.clone() }));
        let mut other = table.clone();
        for x in &mut other.inv_freq {
            *x = on_grid(dtype, *x);
        }
        all.push((format!("with frequencies rounded to {dtype}"), other));
    }
    all
}

/// Returns tables that change at another length of the sequence, or never.
fn of_other_length(table: &RopeTable) -> Vec<OtherTable> {
    let mut all = Vec::new();
    if let Some(long) = &table.long {
        all.push((
            "without the table for long sequences".to_owned(),
            RopeTable { long: None, ..table.clone() },
        ));
        for (words, context) in [
            ("table for long sequences at every length", 0),
            (
                "table for long sequences one position earlier",
                long.original_context.saturating_sub(1),
            ),
            ("table for long sequences one position later", long.original_context + 1),
        ] {
            let mut other = table.clone();
            other.long =
                Some(registry::rope::LongRope { original_context: context, ..long.clone() });
            all.push((words.to_owned(), other));
        }
    }
    if let Some(dynamic) = &table.dynamic {
        let still = RopeTable { dynamic: None, ..table.clone() };
        all.push(("without dynamic scaling".to_owned(), still));
        for (words, context) in [
            ("dynamic scaling one position earlier", dynamic.context.saturating_sub(1)),
            ("dynamic scaling one position later", dynamic.context + 1),
        ] {
            let mut other = table.clone();
            other.dynamic = Some(registry::rope::DynamicRope { context, ..dynamic.clone() });
            all.push((words.to_owned(), other));
        }
    }
    all
}

/// Returns other dtypes of the suspects' states, and in 16 bits of the values that they make.
pub(super) fn dtypes(model: &Model, suspects: &Suspects, clues: &Clues) -> Vec<Candidate> {
    let graph = &model.graph;
    let mut all = Vec::new();
    let mut names: BTreeMap<&str, Vec<StateId>> = BTreeMap::new();
    for (n, state) in graph.states.iter().enumerate() {
        names.entry(&state.name).or_default().push(StateId(n));
    }
    for (name, states) in names {
        if !suspects
            .first
            .iter()
            .any(|n: &usize| graph.nodes[*n].state.is_some_and(|s| states.contains(&s)))
        {
            continue;
        }
        let fixed = Dtype::ALL.into_iter().map(DtypeRule::Fixed);
        for rule in [DtypeRule::Activation].into_iter().chain(fixed) {
            let other: Vec<StateId> =
                states.iter().copied().filter(|s| graph.states[s.0].dtype != rule).collect();
            let Some(first) = other.first() else { continue };
            let words =
                format!("state `{name}` kept in {rule} instead of {}", graph.states[first.0].dtype);
            let place = format!("{} layers", other.len());
            let change = Change::StateDtype(other, rule);
            all.push(Candidate::Edit(Edit { words, place, change }));
        }
    }
    if clues.dtype.is_none_or(|dtype| dtype == Dtype::F32) {
        return all;
    }
    for (op, nodes) in kinds(graph, |_| true) {
        for scope in scopes(graph, &nodes, suspects) {
            for rule in [DtypeRule::Activation, DtypeRule::Fixed(Dtype::F32)] {
                let results = scope.nodes.iter().flat_map(|n| &graph.nodes[*n].outputs).copied();
                let values: Vec<ValueId> =
                    results.filter(|value| graph.values[value.0].dtype != rule).collect();
                if values.is_empty() {
                    continue;
                }
                let words = match rule {
                    DtypeRule::Activation => {
                        format!("result of `{op}` rounded to the activation dtype")
                    }
                    _ => format!("result of `{op}` kept in f32"),
                };
                let place = place(graph, &scope.nodes);
                let change = Change::ValueDtype(values, rule);
                all.push(Candidate::Edit(Edit { words, place, change }));
            }
        }
    }
    all
}

/// Rounds a number to the nearest of a dtype.
fn on_grid(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::Bf16 => half::bf16::from_f32(x).to_f32(),
        Dtype::F16 => half::f16::from_f32(x).to_f32(),
        Dtype::F32 => x,
    }
}
