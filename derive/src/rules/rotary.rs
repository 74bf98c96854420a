//! Rotations by positions.

use crate::graph::{Graph, Id, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins the steps of a rotation.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "concat" => half_turn(graph, term)
            .or_else(|| partly(graph, term))
            .or_else(|| by_halves(graph, term)),
        "merge_axes" => pair_turn(graph, term).or_else(|| by_pairs(graph, term)),
        "add" => turned(graph, term),
        "cast" => rounded(graph, term),
        "repeat_each" => widened(graph, term),
        "slice" | "every" | "split_axis" | "with_ones" => narrowed(graph, term),
        _ => None,
    }
}

/// `concat(-x2, x1)` of the halves of x.
fn half_turn(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let [one, other] = term.inputs[..] else { return None };
    let negative = graph.is(one, "neg")?;
    let (second, first) = (graph.is(negative.inputs[0], "slice")?, graph.is(other, "slice")?);
    let source = first.inputs[0];
    let width = graph.term(source).width().size as i64;
    let halves = second.inputs[0] == source
        && first.attribute("start") == Some(&Number::Int(0))
        && first.attribute("end") == second.attribute("start")
        && second.attribute("end") == Some(&Number::Int(width))
        && first.attribute("end") == Some(&Number::Int(width / 2));
    halves.then(|| {
        Joined::Term(Term {
            op: "half_turn".to_owned(),
            inputs: vec![source],
            attributes: Vec::new(),
            ..term.clone()
        })
    })
}

/// `stack(-x[1::2], x[0::2])` flattened: each pair turned.
fn pair_turn(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let stack = graph.is(term.inputs[0], "stack_axis")?;
    let [one, other] = stack.inputs[..] else { return None };
    let last = Number::Int(stack.shape.len() as i64 - 1);
    if stack.attribute("axis") != Some(&last) {
        return None;
    }
    let negative = graph.is(one, "neg")?;
    let (odd, even) = (graph.is(negative.inputs[0], "every")?, graph.is(other, "every")?);
    let pairs = odd.inputs == even.inputs
        && odd.attribute("from") == Some(&Number::Int(1))
        && even.attribute("from") == Some(&Number::Int(0))
        && odd.attribute("step") == Some(&Number::Int(2))
        && even.attribute("step") == Some(&Number::Int(2));
    pairs.then(|| {
        Joined::Term(Term {
            op: "pair_turn".to_owned(),
            inputs: even.inputs.clone(),
            attributes: Vec::new(),
            ..term.clone()
        })
    })
}

/// A table of half the width, each number twice.
fn widened(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let source = graph.term(term.inputs[0]);
    let two = term.attribute("n") == Some(&Number::Int(2));
    if !source.op.starts_with("rope_") || !two {
        return None;
    }
    let mut joined = Term { shape: term.shape.clone(), ..source.clone() };
    joined.set("pairs", Number::Bool(true));
    Some(Joined::Term(joined))
}

/// A part of a table, of which each half has the same numbers.
fn narrowed(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let source = graph.term(term.inputs[0]);
    if !source.op.starts_with("rope_") || term.op == "split_axis" || term.op == "with_ones" {
        return None;
    }
    if source.op == "rope_both" {
        let first = term.attribute("start") == Some(&Number::Int(0));
        return Some(Joined::Term(Term {
            op: if first { "rope_sin" } else { "rope_cos" }.to_owned(),
            shape: term.shape.clone(),
            ..source.clone()
        }));
    }
    Some(Joined::Term(Term { shape: term.shape.clone(), ..source.clone() }))
}

fn table<'g>(graph: &'g Graph, id: Id, function: &str) -> Option<&'g Term> {
    let inner = graph.term(graph.bare(id));
    let inner = if inner.op == "slice" && graph.term(inner.inputs[0]).op == function {
        graph.term(inner.inputs[0])
    } else {
        inner
    };
    (inner.op == function).then_some(inner)
}

/// `x * cos + turn(x) * sin`.
fn turned(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (straight, crossed) in both(term) {
        let (Some(straight), Some(crossed)) = (graph.is(straight, "mul"), graph.is(crossed, "mul"))
        else {
            continue;
        };
        for (rows, cosines) in both(straight) {
            for (turn, sines) in both(crossed) {
                let (Some(cos), Some(_)) =
                    (table(graph, cosines, "rope_cos"), table(graph, sines, "rope_sin"))
                else {
                    continue;
                };
                let turned = graph.term(graph.uncast(turn));
                let layout = match turned.op.as_str() {
                    "half_turn" => "half",
                    "pair_turn" => "interleaved",
                    _ => continue,
                };
                if graph.uncast(turned.inputs[0]) != graph.uncast(rows) {
                    continue;
                }
                let mut joined = Term {
                    op: "rope".to_owned(),
                    inputs: vec![graph.uncast(rows)],
                    attributes: Vec::new(),
                    ..term.clone()
                };
                joined.set("table", cos.attribute("table")?.clone());
                keep_numbers(&mut joined, cos);
                joined.set("layout", Number::Word(layout.to_owned()));
                joined.set("width", Number::Int(graph.term(rows).width().size as i64));
                joined.set(
                    "compute",
                    Number::Word(
                        compute(graph, term, cosines, rounded_kind(graph, cosines)).to_owned(),
                    ),
                );
                return Some(Joined::Term(joined));
            }
        }
    }
    None
}

/// Keeps the numbers of a table that the class computes itself, and the weight that stretches it.
fn keep_numbers(joined: &mut Term, table: &Term) {
    for (name, key) in [("theta", "theta"), ("dim", "rotated"), ("stretch", "stretch")] {
        if let Some(number) = table.attribute(name) {
            joined.set(key, number.clone());
        }
    }
}

/// Kind of the numbers of a table: that of the run, if any cast on the way rounded them.
fn rounded_kind(graph: &Graph, id: Id) -> Kind {
    let term = graph.term(id);
    match term.op.as_str() {
        "cast" | "with_ones" | "slice" if term.kind == Kind::Float => {
            rounded_kind(graph, term.inputs[0])
        }
        _ => term.kind,
    }
}

/// The word for the place where the arithmetic of a rotation rounds.
fn compute(graph: &Graph, term: &Term, cosines: Id, table: Kind) -> &'static str {
    match (term.kind, table) {
        (Kind::Activation, _) => "activation",
        (_, Kind::Activation) => "qk_f32",
        _ if graph.term(cosines).kind == Kind::Float => "f32",
        _ => "f32",
    }
}

/// A rotation whose halves are written out: `x1 * cos - x2 * sin` and `x2 * cos + x1 * sin`.
struct WrittenRotation {
    source: Id,
    pairs: bool,
    compute: &'static str,
    table: Term,
}

fn written_rotation(graph: &Graph, one: Id, other: Id) -> Option<WrittenRotation> {
    let (first, second) = (graph.is(one, "sub")?, graph.is(other, "add")?);
    let parts = |term: &Term, place: usize| -> Option<(Id, Id)> {
        let product = graph.is(term.inputs[place], "mul")?;
        Some((product.inputs[0], product.inputs[1]))
    };
    let (left, cosines) = parts(first, 0)?;
    let (right, _) = parts(first, 1)?;
    let table = table(graph, cosines, "rope_cos")?.clone();
    let (low, high) = (graph.term(graph.uncast(left)), graph.term(graph.uncast(right)));
    let source = *low.inputs.first()?;
    let width = graph.term(source).width().size as i64;
    let same = high.inputs.first() == Some(&source) && low.op == high.op;
    let halves = low.op == "slice"
        && low.attribute("start") == Some(&Number::Int(0))
        && high.attribute("end") == Some(&Number::Int(width))
        && low.attribute("end") == high.attribute("start");
    let pairs = low.op == "every"
        && low.attribute("from") == Some(&Number::Int(0))
        && high.attribute("from") == Some(&Number::Int(1))
        && low.attribute("step") == Some(&Number::Int(2));
    let (again, _) = parts(second, 0)?;
    if !same || !(halves || pairs) || (again != right && again != left) {
        return None;
    }
    let compute = compute(graph, first, cosines, rounded_kind(graph, cosines));
    Some(WrittenRotation { source, pairs, compute, table })
}

impl WrittenRotation {
    fn rope(&self, graph: &Graph, term: &Term, layout: &str) -> Option<Term> {
        let mut joined = Term {
            op: "rope".to_owned(),
            inputs: vec![graph.uncast(self.source)],
            attributes: Vec::new(),
            shape: graph.term(self.source).shape.clone(),
            ..term.clone()
        };
        joined.set("table", self.table.attribute("table")?.clone());
        keep_numbers(&mut joined, &self.table);
        joined.set("layout", Number::Word(layout.to_owned()));
        joined.set("width", Number::Int(graph.term(self.source).width().size as i64));
        joined.set("compute", Number::Word(self.compute.to_owned()));
        Some(joined)
    }
}

/// Written halves side by side, or with the numbers behind them that are not rotated.
fn by_halves(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let [one, other, behind @ ..] = term.inputs.as_slice() else { return None };
    let rotation = written_rotation(graph, *one, *other)?;
    let layout = if rotation.pairs { "interleaved_to_half" } else { "half" };
    let rope = rotation.rope(graph, term, layout)?;
    match behind {
        [] => Some(Joined::Term(rope)),
        [others] => {
            let rope = graph.add(rope);
            Some(Joined::Term(Term { inputs: vec![rope, *others], ..term.clone() }))
        }
        _ => None,
    }
}

/// Written halves that are laid into each other again.
fn by_pairs(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let stack = graph.is(term.inputs[0], "stack_axis")?;
    let [one, other] = stack.inputs[..] else { return None };
    if stack.attribute("axis") != Some(&Number::Int(stack.shape.len() as i64 - 1)) {
        return None;
    }
    let rotation = written_rotation(graph, one, other).filter(|rotation| rotation.pairs)?;
    Some(Joined::Term(rotation.rope(graph, term, "interleaved")?))
}

/// A rotation of the first numbers of a head, with the others behind it.
fn partly(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let [turned, others] = term.inputs[..] else { return None };
    let rope = graph.is(turned, "rope")?;
    let part = graph.is(rope.inputs[0], "slice")?;
    let tail = graph.is(others, "slice")?;
    let source = part.inputs[0];
    let width = graph.term(source).width().size as i64;
    let parts = tail.inputs[0] == source
        && part.attribute("start") == Some(&Number::Int(0))
        && part.attribute("end") == tail.attribute("start")
        && tail.attribute("end") == Some(&Number::Int(width));
    if !parts {
        return None;
    }
    let mut joined = Term { inputs: vec![source], shape: term.shape.clone(), ..rope.clone() };
    if joined.attribute("rotated").is_none() {
        joined.set("rotated", part.attribute("to")?.clone());
    }
    Some(Joined::Term(joined))
}

/// One rounding behind a rotation in f32.
fn rounded(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let rope = graph.is(term.inputs[0], "rope")?;
    if rope.kind != Kind::Float || term.kind != Kind::Activation {
        return None;
    }
    Some(Joined::Term(Term { kind: Kind::Activation, ..rope.clone() }))
}
