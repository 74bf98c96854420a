//! Facts that the values of a failed gate show beyond its bounds.
//!
//! No cause is guessed: only trying an edit of the spec shows that it restores parity.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use registry::diag::Span;
use registry::dtype::DtypeRule;
use registry::graph::{Graph, Node, State, StateId, StateKind, ValueId};
use registry::model::Model;
use registry::ops::ParamKind;

use crate::dump::Phase;
use crate::edit::maker_of;
use crate::gate::{Gate, Mode, Subject};

/// Returns hints for the first failed gate among `gates`, likeliest first.
pub(crate) fn hints(model: &Model, gate: &Gate, gates: &[Gate]) -> Vec<String> {
    let mut hints = Vec::new();
    if let Subject::State { layer, part, .. } = &gate.subject {
        state(model, *layer, part, gate, &mut hints);
    }
    let prefill: Vec<&Gate> = gates.iter().filter(|g| g.phase == Phase::Prefill).collect();
    if gate.phase == Phase::Decode && !prefill.iter().any(|g| g.fails()) {
        if is_snapshot(&model.graph, &gate.subject) {
            hints.push(
                "no comparison of prefill fails, and only decode reads this snapshot".to_owned(),
            );
        } else if prefill.iter().any(|g| {
            (&g.subject, &g.prompt, g.mode) == (&gate.subject, &gate.prompt, gate.mode)
                && g.error.count > 0
        }) {
            hints.push("the prefill of this prompt agrees here, and decode does not".to_owned());
        }
    }
    if gates.iter().all(|g| g.mode == Mode::Cumulative) {
        hints.extend(between(model, gate, gates));
    }
    if gate.error.max.is_infinite() {
        hints.push("some values are not numbers".to_owned());
        return hints;
    }
    scale(gate, &mut hints);
    positions(&model.graph.states, gate, &mut hints);
    hints
}

/// True if a subject is a part of a convolution's or a recurrence's state: only the next step reads it.
fn is_snapshot(graph: &Graph, subject: &Subject) -> bool {
    let Subject::State { layer, part, .. } = subject else { return false };
    graph.states.iter().any(|state| {
        matches!(state.kind, StateKind::Conv | StateKind::Recurrent)
            && state.layer == *layer
            && state.parts.iter().any(|p| p.name == *part)
    })
}

/// Maximum number of ops that a hint names.
const NAMED: usize = 8;

/// Names the ops between values that agree and the value of a gate.
fn between(model: &Model, gate: &Gate, gates: &[Gate]) -> Option<String> {
    let nodes = suspected(&model.graph, gate, gates);
    let agreeing: BTreeSet<&str> = agreeing(gate, gates).collect();
    let mut inputs = nodes.iter().flat_map(|n| &model.graph.nodes[*n].inputs);
    let known =
        inputs.any(|input| tap_of(&model.graph, *input).is_some_and(|tap| agreeing.contains(tap)));
    let mut calls: Vec<String> = Vec::new();
    for node in nodes.iter().map(|n| &model.graph.nodes[*n]) {
        let call = format!("`{}` ({})", node.op, place(&node.at));
        if !calls.contains(&call) {
            calls.push(call);
        }
    }
    let more = calls.len().saturating_sub(NAMED);
    if calls.is_empty() || more > NAMED || !known {
        return None;
    }
    calls.truncate(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let among = if calls.len() == 1 { "" } else { "one of: " };
    let calls = calls.join(", ");
    let mut words = format!("values before it agree, so the fault is in {among}{calls}{more}");
    // A single op that is right computes with other weights.
    if let [n] = nodes.iter().copied().collect::<Vec<_>>().as_slice() {
        let mut names =
            model.graph.nodes[*n].weights.values().map(|w| &model.graph.weights[w.0].name);
        if let Some(first) = names.next() {
            let _ = write!(words, ", or in how its weights are read: `{first}`");
            let more = names.count();
            if more > 0 {
                let _ = write!(words, " and {more} more");
            }
        }
    }
    Some(words)
}

/// Returns the taps that agree in the run and the phase of a gate.
fn agreeing<'a>(gate: &'a Gate, gates: &'a [Gate]) -> impl Iterator<Item = &'a str> {
    gates
        .iter()
        .filter(move |other| {
            (&other.prompt, other.phase, other.mode) == (&gate.prompt, gate.phase, gate.mode)
                && !other.fails()
                && other.error.count > 0
        })
        .filter_map(|other| match &other.subject {
            Subject::Tap { name } => Some(name.as_str()),
            _ => None,
        })
}

/// Returns the nodes from values that agree to the value of a gate.
pub(crate) fn suspected(graph: &Graph, gate: &Gate, gates: &[Gate]) -> BTreeSet<usize> {
    let agreeing: BTreeSet<&str> = agreeing(gate, gates).collect();
    let mut queue: Vec<usize> = (0..graph.nodes.len())
        .filter(|n| makes_subject(graph, &graph.nodes[*n], &gate.subject))
        .collect();
    if let Subject::State { part, .. } = &gate.subject
        && let [n] = queue.as_slice()
    {
        // A part of a state that has the name of an input holds that input.
        let mut values = graph.nodes[*n].op.signature().params.iter();
        let input = values.position(|p| p.kind == ParamKind::Value && p.name == part);
        let input = input.and_then(|input| graph.nodes[*n].inputs.get(input));
        if let Some(maker) = input.and_then(|input| maker_of(graph, *input)) {
            queue = vec![maker];
        }
    }
    let mut suspects = BTreeSet::new();
    while let Some(n) = queue.pop() {
        if !suspects.insert(n) {
            continue;
        }
        for input in &graph.nodes[n].inputs {
            if !tap_of(graph, *input).is_some_and(|tap| agreeing.contains(tap)) {
                queue.extend(maker_of(graph, *input));
            }
        }
    }
    suspects
}

/// Returns the tap of a value.
fn tap_of(graph: &Graph, value: ValueId) -> Option<&str> {
    graph.values[value.0].tap.as_deref()
}

/// True if a node makes what a gate compares.
fn makes_subject(graph: &Graph, node: &Node, subject: &Subject) -> bool {
    match subject {
        Subject::Tap { name } => {
            node.outputs.iter().any(|output| tap_of(graph, *output) == Some(name.as_str()))
        }
        Subject::State { layer, part, .. } => node.state.is_some_and(|state| {
            let state = &graph.states[state.0];
            state.layer == *layer && state.parts.iter().any(|p| p.name == *part)
        }),
        Subject::Logprobs => graph.output.is_some_and(|output| node.outputs.contains(&output)),
    }
}

/// Adds a hint on the dtype of a state, or on the op that writes it.
fn state(model: &Model, layer: usize, part: &str, gate: &Gate, hints: &mut Vec<String>) {
    let mut states = model.graph.states.iter().enumerate();
    let state = states.find(|(_, s)| s.layer == layer && s.parts.iter().any(|p| p.name == part));
    let Some((n, state)) = state else { return };
    if gate.finding.as_deref().is_some_and(|f| f.starts_with("kept in")) {
        hints.push(match state.dtype {
            DtypeRule::Fixed(registry::dtype::Dtype::F32) => format!(
                "the spec keeps state `{}` in f32 ({}): the engine narrows it",
                state.name,
                place(&state.dtype_at)
            ),
            DtypeRule::Fixed(dtype) => format!(
                "{}: `dtype: {dtype}` of state `{}`; write `dtype: {}`",
                place(&state.dtype_at),
                state.name,
                // Recurrent states are accumulated in f32 in nearly all models.
                if state.kind == StateKind::Recurrent { "f32" } else { "activation" }
            ),
            DtypeRule::Activation | DtypeRule::WideInF16 => format!(
                "the spec keeps state `{}` in the activation dtype ({}): the engine narrows it",
                state.name,
                place(&state.dtype_at)
            ),
        });
        return;
    }
    if let Some(node) = model.graph.nodes.iter().find(|node| node.state == Some(StateId(n))) {
        hints.push(format!("it is written by `{}` at {}", node.op, place(&node.at)));
    }
}

/// Adds a hint on a pure scale error, which has an angle of 0 and a gain.
fn scale(gate: &Gate, hints: &mut Vec<String>) {
    if gate.gain.abs() > 1e-4 && 1.0 - gate.cosine < 1e-3 * gate.gain * gate.gain {
        hints.push(format!("ours is the reference times {:.6}", 1.0 + gate.gain));
    } else if gate.cosine < -0.9 {
        hints.push("ours points the other way".to_owned());
    }
}

/// Adds a hint on the position at which the error begins.
fn positions(states: &[State], gate: &Gate, hints: &mut Vec<String>) {
    if gate.phase != Phase::Prefill || gate.by_step.len() < 3 {
        return;
    }
    let worst = gate.by_step.iter().flatten().copied().fold(0.0, f64::max);
    let limit = worst * 1e-3;
    let good = gate.by_step.iter().take_while(|e| e.is_some_and(|error| error < limit)).count();
    // The error begins here only if this position was compared and differs.
    let begins = gate.by_step.get(good).copied().flatten().is_some();
    if good == 0 || !begins {
        return;
    }
    if good == 1 {
        hints.push("position 0 agrees and later ones do not".to_owned());
        return;
    }
    let near = states.iter().find_map(|s| {
        let reach = s.window.or_else(|| {
            let columns = s.parts.first().filter(|_| s.kind == StateKind::Conv)?.shape.get(1)?;
            Some(columns + 1)
        })?;
        reach.abs_diff(good).le(&1).then_some((s.name.clone(), reach))
    });
    hints.push(match near {
        Some((name, reach)) => {
            format!("the first {good} positions agree, and state `{name}` reaches over {reach}")
        }
        None => format!("the first {good} positions agree"),
    });
}

/// Returns `path:line`, or the override.
fn place(at: &Span) -> String {
    if at.source.path.starts_with("the option") {
        return at.source.path.clone(); // an override on the command line has no lines
    }
    let before = at.source.text.get(..at.start).unwrap_or_default();
    format!("{}:{}", at.source.path, before.matches('\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Verdict;
    use crate::order::LAST;

    #[test]
    fn positions_that_were_not_compared_agree_with_nothing() {
        for (by_step, hint) in [
            (
                &[Some(0.0), Some(0.0), Some(0.5), Some(0.1)][..],
                Some("the first 2 positions agree"),
            ),
            (&[Some(0.0), Some(0.4), Some(0.5)], Some("position 0 agrees")),
            // A window keeps the last positions alone.
            (&[None, None, Some(0.5), Some(0.1)], None),
            (&[Some(0.0), Some(0.0), None, Some(0.5)], None),
            (&[Some(0.0), Some(0.0), Some(0.0)], None),
        ] {
            let mut gate = Gate::new(Subject::Logprobs, "main", Phase::Prefill, Mode::Local, LAST);
            (gate.verdict, gate.by_step) = (Verdict::Fail, by_step.to_vec());
            let mut hints = Vec::new();
            positions(&[], &gate, &mut hints);
            assert_eq!(hints.len(), usize::from(hint.is_some()), "{hints:?}");
            assert!(hint.is_none_or(|hint| hints[0].starts_with(hint)), "{hints:?}");
        }
    }
}
