//! Attention: scores, softmax and the sum of values.

use crate::graph::{Dim, Graph, Id, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins the steps of attention.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "scale" | "relu" if graph.term(term.inputs[0]).op == "index_scores" => {
            let mut joined = graph.term(term.inputs[0]).clone();
            match term.attribute("s") {
                Some(scale) => joined.set("scale", scale.clone()),
                None => joined.set("relu", Number::Bool(true)),
            }
            Some(Joined::Term(joined))
        }
        "scale" | "divide" => scaled(graph, term),
        "temperature" => on_numbers(graph, term),
        "add" => masked(graph, term).or_else(|| biased(graph, term)),
        "cast" if graph.term(term.inputs[0]).op == "relative" => on_numbers(graph, term),
        "tanh" | "cast" | "softmax_keys" | "slice" => passed(graph, term),
        "masked_fill" | "where" => hidden(graph, term),
        "sub" => highest(graph, term),
        "with_sinks" => sinks(graph, term),
        "attended" => attended(graph, term),
        "merge_axes" => flat(graph, term),
        _ => None,
    }
}

/// A number that multiplies scores; behind a tanh it is a soft cap.
fn scaled(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let factor = term.attribute("s")?.clone();
    let mut joined = scores.clone();
    joined.kind = term.kind;
    match (term.op.as_str(), scores.word("open")) {
        ("divide", None) => {
            if let Some(divisor) = scores.attribute("divided") {
                let scale = Number::apply("/", vec![Number::Real(1.0), divisor.clone()]);
                joined.set("scale", scale);
            }
            joined.set("divided", factor);
        }
        ("scale", Some("tanh")) if scores.attribute("divided") == Some(&factor) => {
            joined.set("softcap", factor);
            joined.attributes.retain(|(key, _)| key != "open" && key != "divided");
        }
        ("scale", None)
            if scores.attribute("scale").is_none() && scores.attribute("divided").is_none() =>
        {
            joined.set("scale", factor);
        }
        _ => return None,
    }
    Some(Joined::Term(joined))
}

fn masked(graph: &mut Graph, term: &Term) -> Option<Joined> {
    // Scores of an indexer are masked before the best are taken.
    if let Some((sum, _)) = both(term).into_iter().find(|(sum, mask)| {
        graph.term(*sum).op == "index_sum" && graph.term(graph.bare(*mask)).op == "mask"
    }) {
        return Some(Joined::Known(sum));
    }
    for (mask, rows) in both(term) {
        let (Some(mask), Some(scores)) = (graph.is(mask, "mask"), graph.is(rows, "scores")) else {
            continue;
        };
        let mut joined = scores.clone();
        joined.kind = term.kind;
        joined.set("mask", mask.attribute("kind")?.clone());
        if let Some(&selected) = mask.inputs.first() {
            joined.inputs.push(selected);
            joined.set("selected_at", Number::Int(joined.inputs.len() as i64 - 1));
        }
        return Some(Joined::Term(joined));
    }
    None
}

/// Scores whose hidden places are filled with the lowest number.
fn hidden(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = term.inputs.iter().copied().find(|&id| graph.term(id).op == "scores")?;
    let mask = term.inputs.iter().copied().find(|&id| is_mask(graph, id))?;
    let mut joined = graph.term(scores).clone();
    joined.kind = term.kind;
    let kind = mask_kind(graph, mask)?;
    joined.set("mask", kind);
    Some(Joined::Term(joined))
}

fn is_mask(graph: &Graph, id: Id) -> bool {
    mask_kind(graph, id).is_some()
}

/// The kind of mask behind casts and tests.
pub(crate) fn mask_kind(graph: &Graph, id: Id) -> Option<Number> {
    let term = graph.term(id);
    match term.op.as_str() {
        "mask" => term.attribute("kind").cloned(),
        "cast" | "not" | "ne" | "eq" | "lt" | "with_ones" | "slice" => {
            mask_kind(graph, *term.inputs.first()?)
        }
        _ => None,
    }
}

/// Numbers of a query, by the distance of keys, that are added to its scores.
fn biased(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (scores, numbers) in both(term) {
        let (Some(scores), Some(numbers)) =
            (graph.is(scores, "scores"), graph.is(numbers, "relative"))
        else {
            continue;
        };
        if ["mask", "soft", "relative_at"].iter().any(|name| scores.attribute(name).is_some()) {
            return None;
        }
        let mut joined = scores.clone();
        joined.kind = term.kind;
        joined.inputs.push(numbers.inputs[0]);
        joined.set("relative_at", Number::Int(joined.inputs.len() as i64 - 1));
        return Some(Joined::Term(joined));
    }
    None
}

/// Steps on numbers by distance are steps on the numbers, since 0 stays 0.
fn on_numbers(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let relative = graph.is(term.inputs[0], "relative")?.clone();
    let shape = graph.term(relative.inputs[0]).shape.clone();
    let inner = graph.add(Term { inputs: relative.inputs.clone(), shape, ..term.clone() });
    let kind = graph.term(inner).kind;
    Some(Joined::Term(Term { inputs: vec![inner], kind, ..relative }))
}

/// Steps that scores remember: tanh, casts, softmax, and a slice that drops the column of sinks.
fn passed(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let mut joined = scores.clone();
    joined.kind = term.kind;
    match term.op.as_str() {
        "tanh" => joined.set("open", Number::Word("tanh".to_owned())),
        "softmax_keys" => {
            joined.set(
                "soft",
                Number::Word(
                    if term.kind == Kind::Float || scores.kind == Kind::Float {
                        "f32"
                    } else {
                        "activation"
                    }
                    .to_owned(),
                ),
            );
            let rounded = scores.attribute("rounded").is_some();
            if scores.kind == Kind::Float && !rounded && scores.attribute("mask").is_some() {
                joined.set("scores", Number::Word("f32".to_owned()));
            }
        }
        "cast" if term.kind == Kind::Float && scores.kind == Kind::Activation => {
            joined.set("rounded", Number::Bool(true));
        }
        "cast" => {}
        _ => return None,
    }
    Some(Joined::Term(joined))
}

/// `scores - max(scores)` changes no softmax.
fn highest(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let highest = graph.is(term.inputs[1], "max_keys")?;
    if highest.inputs[0] != term.inputs[0] {
        return None;
    }
    let mut joined = scores.clone();
    joined.set("highest", Number::Bool(true));
    Some(Joined::Term(joined))
}

fn sinks(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let tensor = graph.uncast(term.inputs[1]);
    let is_weight = graph.weight(tensor).is_some();
    let row = graph.term(tensor);
    let heads = row.shape.len() == 1 && row.shape[0].size == scores.shape.first()?.size;
    if !is_weight && (!heads || row.kind != Kind::Activation) {
        return None;
    }
    let mut joined = scores.clone();
    joined.inputs.push(tensor);
    // Sinks of the query itself are numbers of its row.
    let name = if is_weight { "sinks" } else { "query_sinks" };
    joined.set(name, Number::Int(joined.inputs.len() as i64 - 1));
    Some(Joined::Term(joined))
}

/// The layer of the cache that holds keys.
fn cache_layer(graph: &Graph, id: Id) -> Option<Number> {
    let term = graph.term(id);
    match term.op.as_str() {
        "cached" => term.attribute("layer").cloned(),
        "repeat_each" | "cast" | "expand" | "with_ones" | "merge_axes" => {
            cache_layer(graph, term.inputs[0])
        }
        _ => None,
    }
}

/// Keys or values as they were before heads shared them, and the term that is kept.
fn kept(graph: &Graph, id: Id) -> Option<Id> {
    let mut id = id;
    loop {
        let term = graph.term(id);
        match term.op.as_str() {
            "repeat_each" | "cast" | "expand" => id = term.inputs[0],
            "cached" => return Some(term.inputs[0]),
            // A class without a cache computes all keys anew.
            _ => return Some(id),
        }
    }
}

/// Keys of one head have an axis for it.
pub(crate) fn with_heads(graph: &mut Graph, id: Id) -> Id {
    let row = graph.term(id).shape.clone();
    if row.len() != 1 {
        return id;
    }
    let kind = graph.term(id).kind;
    let mut term = graph.step("split_axis", &[id], vec![Dim::plain(1), row[0].clone()], kind);
    term.owner.clone_from(&graph.term(id).owner);
    term.set("at", Number::Int(0));
    term.set("count", Number::Int(2));
    graph.add(term)
}

/// Keys and values that a matrix expands from a latent vector, with a rotated part that all heads share, or without one.
fn latent(graph: &mut Graph, term: &Term, scores: &Term) -> Option<Term> {
    if ["relative_at", "query_sinks"].iter().any(|name| scores.attribute(name).is_some()) {
        return None;
    }
    let key = graph.uncast(scores.inputs[1]);
    let parts = graph.term(key).clone();
    let (straight, rotated) = match (parts.op.as_str(), &parts.inputs[..]) {
        ("concat", &[straight, rotated]) => (straight, Some(rotated)),
        ("slice", _) => (key, None),
        _ => return None,
    };
    let straight = graph.is(straight, "slice")?.clone();
    let value = graph.is(graph.uncast(term.inputs[1]), "slice")?.clone();
    if straight.inputs != value.inputs
        || straight.attribute("start") != Some(&Number::Int(0))
        || straight.attribute("end") != value.attribute("start")
    {
        return None;
    }
    let heads = graph.is(straight.inputs[0], "split_axis")?;
    let expanded = graph.is(heads.inputs[0], "linear")?.clone();
    let cached = graph.is(graph.weightless(expanded.inputs[0]), "cached")?.clone();
    let latent = with_heads(graph, cached.inputs[0]);
    let mut query = graph.uncast(scores.inputs[0]);
    let mut layer = cached.attribute("layer").cloned();
    let shared = if let Some(rotated) = rotated {
        let shared = shared_part(graph, rotated);
        let rotated = graph.is(shared, "cached")?.inputs[0];
        layer = cache_layer(graph, shared);
        with_heads(graph, rotated)
    } else {
        // A number 0 stands in the place of the shared part, of keys and of queries.
        let zero = first_as_zero(graph, query);
        let widths = [graph.term(query).width(), Dim::plain(1)];
        let mut wide = graph.step("concat", &[query, zero], Vec::new(), term.kind);
        wide.shape = vec![graph.term(query).shape[0].clone(), sum_of(&widths)];
        wide.owner.clone_from(&term.owner);
        query = graph.add(wide);
        first_as_zero(graph, latent)
    };
    let mut joined = Term {
        op: "latent_attend".to_owned(),
        inputs: vec![query, latent, shared, expanded.inputs[1]],
        attributes: Vec::new(),
        ..term.clone()
    };
    joined.set("scale", scores.attribute("scale").cloned().unwrap_or(Number::Real(1.0)));
    joined.set("v_dim", value.width().number);
    if let Some(mask) = scores.attribute("mask") {
        joined.set("mask", mask.clone());
    }
    if let Some(layer) = layer {
        joined.set("layer", layer);
    }
    if let Some(Number::Int(at)) = scores.attribute("selected_at") {
        joined.inputs.push(scores.inputs[*at as usize]);
        joined.set("selected_at", Number::Int(joined.inputs.len() as i64 - 2));
    }
    if let Some(Number::Int(at)) = scores.attribute("sinks") {
        joined.inputs.push(scores.inputs[*at as usize]);
        joined.set("sinks", Number::Int(joined.inputs.len() as i64 - 2));
    }
    Some(joined)
}

/// The part of keys that all heads share, before it is repeated for each.
fn shared_part(graph: &Graph, id: Id) -> Id {
    let term = graph.term(id);
    match term.op.as_str() {
        "expand" | "repeat_each" | "with_ones" | "merge_axes" => shared_part(graph, term.inputs[0]),
        _ => id,
    }
}

/// The sum of two sizes.
fn sum_of([one, other]: &[Dim; 2]) -> Dim {
    let number = Number::apply("+", vec![one.number.clone(), other.number.clone()]);
    Dim { size: one.size + other.size, number }
}

/// The first number of each head, times 0.
fn first_as_zero(graph: &mut Graph, id: Id) -> Id {
    let source = graph.term(id).clone();
    let shape = vec![source.shape[0].clone(), Dim::plain(1)];
    let mut first =
        Term { op: "slice".to_owned(), inputs: vec![id], attributes: Vec::new(), shape, ..source };
    for (name, place) in [("from", 0), ("to", 1), ("start", 0), ("end", 1)] {
        first.set(name, Number::Int(place));
    }
    let mut zero = Term { op: "scale".to_owned(), attributes: Vec::new(), ..first.clone() };
    zero.inputs = vec![graph.add(first)];
    zero.set("s", Number::Real(0.0));
    graph.add(zero)
}

/// The heads that a value repeats as a whole, and how often.
fn repeated_heads(graph: &Graph, id: Id) -> Option<(Id, Option<Number>)> {
    let term = graph.is(graph.uncast(id), "repeat_all")?;
    let first = term.attribute("axis") == Some(&Number::Int(0));
    first.then(|| (term.inputs[0], term.attribute("n").cloned()))
}

/// Keys and values that go round several times over the heads: queries in groups for each key head see them once.
fn by_rounds(graph: &mut Graph, term: &Term, scores: &Term) -> Option<Term> {
    let (key, count) = repeated_heads(graph, scores.inputs[1])?;
    let (value, same) = repeated_heads(graph, term.inputs[1])?;
    if count != same || scores.inputs.len() > 2 {
        return None;
    }
    let heads = graph.term(key).shape.first()?.number.clone();
    let query = graph.uncast(scores.inputs[0]);
    let grouped = regrouped(graph.term(query), query, count?);
    let grouped = graph.add(grouped);
    let inner = graph.add(Term { inputs: vec![grouped, key], ..scores.clone() });
    let attended = graph.add(Term { inputs: vec![inner, value], ..term.clone() });
    Some(regrouped(term, attended, heads))
}

/// Heads in groups of another number.
fn regrouped(like: &Term, heads: Id, count: Number) -> Term {
    let mut term = Term {
        op: "regroup".to_owned(),
        inputs: vec![heads],
        attributes: Vec::new(),
        ..like.clone()
    };
    term.set("n", count);
    term
}

fn attended(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(graph.uncast(term.inputs[0]), "scores")?.clone();
    scores.attribute("soft")?;
    if let Some(latent) = latent(graph, term, &scores) {
        return Some(Joined::Term(latent));
    }
    if let Some(regrouped) = by_rounds(graph, term, &scores) {
        return Some(Joined::Term(regrouped));
    }
    let layer = cache_layer(graph, scores.inputs[1]);
    let key = kept(graph, scores.inputs[1])?;
    let value = kept(graph, term.inputs[1])?;
    let key = with_heads(graph, key);
    let value = with_heads(graph, value);
    let mut joined = Term {
        op: "attend".to_owned(),
        inputs: vec![graph.uncast(scores.inputs[0]), key, value],
        attributes: Vec::new(),
        ..term.clone()
    };
    joined.inputs.extend(scores.inputs.iter().skip(2));
    joined.shape.clone_from(&term.shape);
    for (name, value) in &scores.attributes {
        joined.set(name, value.clone());
    }
    if let Some(layer) = layer {
        joined.set("layer", layer);
    }
    Some(Joined::Term(joined))
}

/// `attend` gives its heads side by side.
fn flat(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let attend = graph.term(term.inputs[0]);
    if !["attend", "latent_attend"].contains(&attend.op.as_str()) {
        return None;
    }
    if attend.attribute("flat").is_some() || term.shape.len() != 1 {
        return None;
    }
    let mut joined = Term { shape: term.shape.clone(), ..attend.clone() };
    joined.set("flat", Number::Bool(true));
    Some(Joined::Term(joined))
}
