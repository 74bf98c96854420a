//! Faults of an engine, derived from the layers and states of a graph.

use std::collections::BTreeSet;
use std::ops::Range;

use registry::dtype::Dtype;
use registry::graph::{Graph, Node, StateId, StateKind, ValueId};
use registry::model::Model;
use registry::ops::Trait;
use registry::scalar::Scalar;

use super::{MistakeClass, Mutant};
use crate::dump::{Phase, Prompt};
use crate::places::Places;

/// Fault of an engine.
#[derive(Debug, Clone)]
pub(super) enum EngineFault {
    /// Values of a tap are changed.
    Tap(TapFault),
    /// States are changed after each step, or slots are handled wrongly.
    State(StateFault),
    /// Masks of sequences are changed.
    Mask(MaskFault),
}

/// Change of the masks that a session is given.
#[derive(Debug, Clone, Copy)]
pub(super) enum MaskFault {
    /// The prefix is one token shorter.
    ShortPrefix,
    /// The prefix is causal.
    CausalPrefix,
    /// Documents are one sequence.
    JoinedDocuments,
    /// Documents begin one token late: their first token belongs to the document before.
    LateDocuments,
}

impl MaskFault {
    /// Changes the mask of a chunk of `count` tokens.
    pub(super) fn apply(self, prefix: &mut usize, documents: &mut Vec<usize>, count: usize) {
        match self {
            Self::ShortPrefix => *prefix = prefix.saturating_sub(1),
            Self::CausalPrefix => *prefix = 0,
            Self::JoinedDocuments => documents.clear(),
            Self::LateDocuments => {
                documents.iter_mut().filter(|start| **start > 0).for_each(|start| *start += 1);
                documents.retain(|start| *start < count);
                documents.dedup();
            }
        }
    }
}

/// Returns the faults of masks that prompts of a dump can show.
pub(super) fn mask_mutants(prompts: &[Prompt]) -> Vec<Mutant> {
    let prefix = prompts.iter().any(|prompt| prompt.prefix > 1);
    let documents = prompts.iter().any(|prompt| prompt.documents.len() > 1);
    let all = [
        (prefix, "the prefix is one token short", MaskFault::ShortPrefix),
        (prefix, "the prefix is causal", MaskFault::CausalPrefix),
        (documents, "documents see those before them", MaskFault::JoinedDocuments),
        (documents, "documents begin one token late", MaskFault::LateDocuments),
    ];
    let shown = all.into_iter().filter(|(shown, ..)| *shown);
    shown.map(|(_, name, fault)| mask_mutant(name, fault)).collect()
}

/// Returns the mutant with a fault of masks.
fn mask_mutant(name: &str, fault: MaskFault) -> Mutant {
    Mutant::fault(
        name.to_owned(),
        MistakeClass::Window,
        BTreeSet::new(),
        "no prompt has such a mask",
        EngineFault::Mask(fault),
    )
}

/// Change of a tap.
#[derive(Debug, Clone)]
pub(super) struct TapFault {
    pub(super) tap: String,
    /// Changed positions.
    pub(super) at: FaultyPositions,
    /// Range of changed values in a row; all if none.
    pub(super) part: Option<Range<usize>>,
    /// Tap and value that select the changed rows; all rows if none.
    pub(super) chosen: Option<(String, usize)>,
    pub(super) how: TapChange,
}

impl TapFault {
    /// Returns a fault of whole rows at some positions.
    fn of_rows(tap: &str, at: FaultyPositions, how: TapChange) -> Self {
        Self { tap: tap.to_owned(), at, part: None, chosen: None, how }
    }
}

/// Positions that a fault changes.
#[derive(Debug, Clone)]
pub(super) enum FaultyPositions {
    /// This position and all later ones.
    From(usize),
    /// These positions.
    At(BTreeSet<usize>),
}

impl FaultyPositions {
    pub(super) fn contain(&self, position: usize) -> bool {
        match self {
            Self::From(first) => position >= *first,
            Self::At(positions) => positions.contains(&position),
        }
    }
}

/// Kind of change.
#[derive(Debug, Clone, Copy)]
pub(super) enum TapChange {
    /// Multiplied by a factor.
    Times(f32),
    /// Rounded to fewer bits than the run keeps.
    Rounded,
    /// Increased or decreased by a hundredth, depending on the bits of each value.
    Noise,
}

/// Fault in the handling of states.
#[derive(Debug, Clone)]
pub(super) struct StateFault {
    pub(super) states: Vec<StateId>,
    pub(super) what: StateChange,
}

#[derive(Debug, Clone)]
pub(super) enum StateChange {
    /// Rows are set to 0 once the sequence is longer than the last of them.
    Dropped(Range<usize>),
    /// State is set to 0 whenever the number of tokens is a multiple.
    Zeroed(usize),
    /// State is rounded after each step.
    Narrow(Dtype),
    /// State is rounded for reading in a step.
    ReadNarrow(Dtype),
    /// One extra token is fed after each chunk of odd length.
    Padded,
    /// State is left to the next slot.
    Stale,
    /// State is not restored by a truncate.
    NotTruncated,
    /// Fork is one position ahead.
    Further,
}

/// Returns the faults that a model can have.
pub(super) fn mutants(model: &Model, places: &Places<'_>) -> Vec<Mutant> {
    let graph = &model.graph;
    let mut all = Vec::new();
    if let Some(tap) = projection(graph) {
        let right = places.of(maker(graph, &tap));
        let late = [12, 65, 130].map(|from| {
            let name = format!("one projection x 1.05 from position {from} on");
            (name, from, TapChange::Times(1.05))
        });
        let mut faults = vec![("one projection x 1.01".to_owned(), 0, TapChange::Times(1.01))];
        faults.extend(late);
        faults.push(("one projection rounded once more".to_owned(), 0, TapChange::Rounded));
        faults.push(("one projection with noise of 1 %".to_owned(), 0, TapChange::Noise));
        for (name, from, how) in faults {
            let fault = EngineFault::Tap(TapFault::of_rows(&tap, FaultyPositions::From(from), how));
            let name = format!("{name} (`{tap}`)");
            let reach = "no prompt is as long";
            all.push(Mutant::fault(name, MistakeClass::Value, right.clone(), reach, fault));
        }
    }
    all.extend(head(graph, places));
    all.extend(expert(graph, places));
    all.extend(states(graph, places));
    all
}

/// First position of late faults: later than most prompts, and before the last rows of long ones.
const LATE: usize = 124;

/// Returns faults in the last attention that act at some positions alone. `prompts` are those of the dump.
pub(super) fn place_mutants(model: &Model, places: &Places<'_>, prompts: &[Prompt]) -> Vec<Mutant> {
    use FaultyPositions::{At, From};
    let graph = &model.graph;
    let Some((output, values)) = last_attention(graph) else { return Vec::new() };
    let main = prompts.iter().find(|prompt| prompt.tapped(Phase::Prefill));
    let rows = main.map(|prompt| prompt.positions(Phase::Prefill)).unwrap_or_default();
    // Rows that do not lie side by side.
    let three = [1, rows.len() / 2, rows.len().saturating_sub(1)];
    let three: BTreeSet<usize> = three.iter().filter_map(|row| rows.get(*row).copied()).collect();
    let after_main = BTreeSet::from([32, 64, 96]);
    let output = output.as_deref();
    let values = values.as_deref();
    let all = [
        (output, "last attention x 1.5 at three positions", At(three.clone()), 1.5),
        (output, "last attention x 1.05 at three positions", At(three.clone()), 1.05),
        (output, "last attention x 1.5 at positions 40 to 120", At((40..=120).collect()), 1.5),
        (output, "last attention x 1.35 from position 124 on", From(LATE), 1.35),
        (output, "last attention x 3.08 from position 124 on", From(LATE), 3.08),
        (values, "values negated at positions 32, 64 and 96", At(after_main), -1.0),
        (values, "values negated at three positions", At(three), -1.0),
    ];
    let mut mutants = Vec::new();
    for (tap, name, at, factor) in all {
        let Some(tap) = tap else { continue };
        let right = places.of(maker(graph, tap));
        let name = format!("{name} (`{tap}`)");
        let fault = EngineFault::Tap(TapFault::of_rows(tap, at, TapChange::Times(factor)));
        let reach = "no prompt records such a position";
        mutants.push(Mutant::fault(name, MistakeClass::Place, right, reach, fault));
    }
    mutants
}

/// Returns the projections behind and before the last attention: that of its output, and that of its values.
fn last_attention(graph: &Graph) -> Option<(Option<String>, Option<String>)> {
    let owner = graph.nodes.iter().rposition(|node| attends(graph, node))?;
    let layer = graph.nodes[owner].layer;
    let later = graph.nodes.iter().skip(owner).filter(|node| node.layer == layer);
    let output = later.filter(|node| node.op.is(Trait::Projects)).find_map(|node| tap(graph, node));
    let mut value = graph.nodes[owner].inputs.get(2).copied();
    let mut values = None;
    while let Some(id) = value {
        let maker = graph.nodes[..owner].iter().find(|node| node.outputs.contains(&id));
        let Some(node) = maker else { break };
        if node.op.is(Trait::Projects) {
            values = tap(graph, node);
            break;
        }
        value = node.inputs.first().copied();
    }
    Some((output, values))
}

fn attends(graph: &Graph, node: &Node) -> bool {
    let kind = node.state.map(|state| graph.states[state.0].kind);
    matches!(kind, Some(StateKind::Attention | StateKind::Latent))
}

fn maker(graph: &Graph, tap: &str) -> Option<usize> {
    graph.nodes.iter().position(|node| {
        node.outputs.iter().any(|value: &ValueId| graph.values[value.0].tap.as_deref() == Some(tap))
    })
}

fn tap(graph: &Graph, node: &Node) -> Option<String> {
    graph.values[node.outputs.first()?.0].tap.clone()
}

/// Returns the last projection of a layer in the middle.
fn projection(graph: &Graph) -> Option<String> {
    let layer = graph.layers.get(graph.layers.len() / 2)?;
    let nodes = &graph.nodes[layer.nodes.0..layer.nodes.1];
    let hidden = nodes.last().and_then(|node| output_shape(graph, node));
    let mut projections = nodes
        .iter()
        .rev()
        .filter(|node| node.op.is(Trait::Projects) && output_shape(graph, node) == hidden);
    projections.find_map(|node| tap(graph, node))
}

/// Returns the shape of a node's first output.
fn output_shape<'g>(graph: &'g Graph, node: &Node) -> Option<&'g [usize]> {
    node.outputs.first().map(|value| graph.values[value.0].shape.as_slice())
}

/// Returns a fault in the last head of a projection that a state is made from.
fn head(graph: &Graph, places: &Places<'_>) -> Option<Mutant> {
    let owners = graph.nodes.iter().filter(|node| {
        let kind = node.state.map(|state| graph.states[state.0].kind);
        matches!(kind, Some(StateKind::Attention | StateKind::Latent | StateKind::Recurrent))
    });
    for owner in owners {
        let Some([heads, dim]) = owner.inputs.first().map(|value| &graph.values[value.0].shape[..])
        else {
            continue;
        };
        let layer = graph
            .nodes
            .iter()
            .filter(|node| node.layer == owner.layer && node.op.is(Trait::Projects));
        for node in layer {
            let size: usize = node
                .outputs
                .first()
                .map_or(0, |value| graph.values[value.0].shape.iter().product());
            if size == heads * dim
                && let Some(tap) = tap(graph, node)
            {
                let right = places.of(maker(graph, &tap));
                let name = format!("one head x 1.01 (`{tap}`)");
                let part = Some((heads - 1) * dim..size);
                let at = FaultyPositions::From(0);
                let fault = TapFault { tap, at, part, chosen: None, how: TapChange::Times(1.01) };
                return Some(Mutant::fault(
                    name,
                    MistakeClass::Value,
                    right,
                    "no layer reads it",
                    EngineFault::Tap(fault),
                ));
            }
        }
    }
    None
}

/// Returns a fault in one expert of the first experts whose output has a tap.
fn expert(graph: &Graph, places: &Places<'_>) -> Option<Mutant> {
    let mut experts = graph.nodes.iter().filter(|node| node.op.is(Trait::Experts));
    let (node, tap) = experts.find_map(|node| Some((node, tap(graph, node)?)))?;
    let chosen = graph.values[node.inputs.get(1)?.0].tap.clone()?;
    let expert = node.attrs.get("n").and_then(Scalar::as_usize)? / 2;
    let right = places.of(maker(graph, &tap));
    let name = format!("one expert x 1.01 (`{tap}`)");
    let chosen = Some((chosen, expert));
    let at = FaultyPositions::From(0);
    let fault = TapFault { tap, at, part: None, chosen, how: TapChange::Times(1.01) };
    Some(Mutant::fault(
        name,
        MistakeClass::Value,
        right,
        "no token is sent to it",
        EngineFault::Tap(fault),
    ))
}

/// Returns the states of some kinds.
fn states_of(graph: &Graph, kinds: &[StateKind]) -> Vec<StateId> {
    let states = graph.states.iter().enumerate().filter(|(_, state)| kinds.contains(&state.kind));
    states.map(|(n, _)| StateId(n)).collect()
}

/// Returns the faults in the handling of states.
fn states(graph: &Graph, places: &Places<'_>) -> Vec<Mutant> {
    let mut full = states_of(graph, &[StateKind::Attention, StateKind::Latent]);
    full.retain(|state| graph.states[state.0].window.is_none());
    let mut all = Vec::new();
    let mut add = |name: String, class, reach, states: &[StateId], what| {
        if !states.is_empty() {
            let right = if class == MistakeClass::Slot {
                BTreeSet::new()
            } else {
                places.of_states(states)
            };
            let fault = EngineFault::State(StateFault { states: states.to_vec(), what });
            all.push(Mutant::fault(name, class, right, reach, fault));
        }
    };
    let long = "no step is as late";
    add(
        "keys 64 to 128 dropped after 128".into(),
        MistakeClass::State,
        long,
        &full,
        StateChange::Dropped(64..128),
    );
    add(
        "keys 16 to 32 dropped after 64".into(),
        MistakeClass::State,
        long,
        &full,
        StateChange::Dropped(16..32),
    );
    for (name, kind) in [
        ("keys and values", StateKind::Attention),
        ("latents", StateKind::Latent),
        ("pooled keys", StateKind::Pooled),
        ("conv states", StateKind::Conv),
        ("recurrent states", StateKind::Recurrent),
    ] {
        let states = states_of(graph, &[kind]);
        if matches!(kind, StateKind::Conv | StateKind::Recurrent) {
            add(
                format!("{name} zeroed at every 64 tokens"),
                MistakeClass::State,
                long,
                &states,
                StateChange::Zeroed(64),
            );
        }
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let reach = "the run keeps them in this dtype anyway";
            let what = StateChange::Narrow(dtype);
            add(
                format!("{name} rounded to {dtype} after each step"),
                MistakeClass::State,
                reach,
                &states,
                what,
            );
            let what = StateChange::ReadNarrow(dtype);
            add(format!("{name} read in {dtype}"), MistakeClass::State, reach, &states, what);
        }
    }
    let carried = states_of(graph, &[StateKind::Conv, StateKind::Recurrent]);
    let every: Vec<StateId> = (0..graph.states.len()).map(StateId).collect();
    let slot = "the engine does not begin, or does not go on, with what a slot keeps";
    add(
        "a padding token leaks into carried states".into(),
        MistakeClass::State,
        slot,
        &carried,
        StateChange::Padded,
    );
    add(
        "a new slot begins with what the last one carried".into(),
        MistakeClass::Slot,
        slot,
        &carried,
        StateChange::Stale,
    );
    add(
        "a truncate leaves carried states".into(),
        MistakeClass::Slot,
        slot,
        &carried,
        StateChange::NotTruncated,
    );
    add(
        "a fork is one position further".into(),
        MistakeClass::Slot,
        slot,
        &every,
        StateChange::Further,
    );
    all
}
