//! Mixtures that run all experts, on rows times a factor that is 0 for experts that a row did not choose.

use crate::graph::{Graph, Id, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins the sum of the results of all experts.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.op != "sum_axis" || term.attribute("axis") != Some(&Number::Int(0)) {
        return None;
    }
    let down = graph.is(term.inputs[0], "heads_linear")?;
    let path = graph.weight(down.inputs[1])?.strip_suffix(".down_proj")?.to_owned();
    let product = graph.is(down.inputs[0], "mul")?;
    let (act, gate, up) = both(product).into_iter().find_map(|(gate, up)| {
        let act = graph.term(gate);
        let name = registry::ops::activation_op(&act.op)?;
        Some((name, *act.inputs.first()?, up))
    })?;
    let gate = graph.is(gate, "slice")?;
    let up = graph.is(up, "slice")?;
    let first = gate.attribute("start") == Some(&Number::Int(0));
    if gate.inputs != up.inputs || !first || gate.attribute("end") != up.attribute("start") {
        return None;
    }
    let fused = graph.is(gate.inputs[0], "heads_linear")?;
    let inner = graph.is(fused.inputs[0], "mul")?;
    let fits = graph.weight(fused.inputs[1])?.strip_suffix(".gate_up_proj") == Some(&path)
        && [down, fused].iter().all(|stack| stack.word("layout") == Some("in_out"))
        && [down, product, fused, inner].iter().all(|step| step.kind == Kind::Activation);
    let (rows, factors) = both(inner).into_iter().find_map(|(rows, factors)| {
        let rows = graph.is(rows, "expand")?;
        let first = rows.attribute("at") == Some(&Number::Int(0));
        first.then_some((rows.inputs[0], graph.weightless(factors)))
    })?;
    let choices = spread(graph, factors).filter(|_| fits)?;
    let mut joined = Term {
        op: "experts".to_owned(),
        inputs: vec![rows, choices.chosen],
        attributes: Vec::new(),
        ..term.clone()
    };
    joined.set("path", Number::Word(path));
    joined.set("n", down.shape[0].number.clone());
    joined.set("ffn", up.width().number);
    joined.set("act", Number::Word(act.to_owned()));
    joined.set("weigh", Number::Word("input".to_owned()));
    joined.set("sum", Number::Word("once".to_owned()));
    joined.set("turned", Number::Bool(true));
    let weights = choices.steps.iter().fold(choices.numbers, |id, step| {
        let shape = graph.term(id).shape.clone();
        graph.add(Term { inputs: vec![id], shape, ..step.clone() })
    });
    joined.inputs.push(weights);
    Some(Joined::Term(joined))
}

/// Numbers of chosen experts, and the steps from them to factors.
struct Choices {
    chosen: Id,
    numbers: Id,
    steps: Vec<Term>,
}

/// The choices behind factors of all experts, of which the others are sigmoids of minus infinity.
fn spread(graph: &Graph, factors: Id) -> Option<Choices> {
    let mut steps = Vec::new();
    let mut id = factors;
    while let "cast" | "sigmoid" = graph.term(id).op.as_str() {
        steps.push(graph.term(id).clone());
        id = graph.term(id).inputs[0];
    }
    steps.reverse();
    let scattered = graph.is(id, "scatter")?;
    let [base, chosen, numbers] = scattered.inputs[..] else { return None };
    let lowest = graph.term(base).attribute("fill") == Some(&Number::Real(f64::NEG_INFINITY));
    let picked = graph.is(numbers, "pick")?;
    let vanishes = steps.iter().filter(|step| step.op == "sigmoid").count() == 1;
    (lowest && vanishes && picked.inputs[1] == chosen).then_some(Choices { chosen, numbers, steps })
}
