//! Edits of the arguments of ops.

use std::collections::BTreeMap;

use registry::graph::Graph;
use registry::model::Model;
use registry::ops::{OpSet, Param, ParamKind};
use registry::scalar::Scalar;

use super::{MistakeClass, Mutant};
use crate::edit::{Change, has_window, is_editable, window_of};
use crate::places::Places;

/// Window shorter than any full attention.
const SHORT_WINDOW: usize = 30;

/// Change of a value; none if it does not apply.
type ChangeValue = Box<dyn Fn(&Scalar) -> Option<Scalar>>;

/// Change of a window.
type WindowChange = fn(Option<usize>) -> Option<usize>;

/// Kind of edit of one argument: description, class, change, and true if single nodes are edited too.
struct ArgumentEdit {
    what: String,
    class: MistakeClass,
    alone: bool,
    change: ChangeValue,
}

impl ArgumentEdit {
    fn new(
        what: impl Into<String>,
        class: MistakeClass,
        alone: bool,
        change: impl Fn(&Scalar) -> Option<Scalar> + 'static,
    ) -> Self {
        Self { what: what.into(), class, alone, change: Box::new(change) }
    }
}

/// Returns the edits of every argument of every op of a graph.
pub(super) fn mutants(model: &Model, ops: &OpSet, places: &Places<'_>) -> Vec<Mutant> {
    let graph = &model.graph;
    let mut kinds: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        for key in node.attrs.keys() {
            kinds.entry((node.op.as_str(), key)).or_default().push(n);
        }
    }
    let mut all = Vec::new();
    for ((op, key), nodes) in kinds {
        let param = ops
            .get(op)
            .and_then(|rule| rule.signature().params.iter().find(|param| param.name == key));
        for way in argument_edits(key, param) {
            let edits: Vec<(usize, Scalar)> = nodes
                .iter()
                .filter(|n| is_editable(graph, &graph.nodes[**n], key, param))
                .filter_map(|n| Some((*n, (way.change)(graph.nodes[*n].attrs.get(key)?)?)))
                .collect();
            let name = format!("{op}: {key} {}", way.what);
            if way.alone && edits.len() > 1 {
                let last = edits.last().cloned().into_iter().collect();
                all.push(edit(format!("{name}, in the last alone"), way.class, key, last, places));
            }
            if !edits.is_empty() {
                all.push(edit(name, way.class, key, edits, places));
            }
        }
    }
    all.extend(windows(graph, places));
    all
}

fn edit(
    name: String,
    class: MistakeClass,
    key: &str,
    edits: Vec<(usize, Scalar)>,
    places: &Places<'_>,
) -> Mutant {
    let right = places.of(edits.iter().map(|(n, _)| *n));
    let reach = match class {
        MistakeClass::Epsilon | MistakeClass::Number => {
            "no value is so large or so small that it matters"
        }
        MistakeClass::Rounding => "both ways round alike here",
        _ => "no token or layer is in the case in which it matters, or both are one function",
    };
    let change = Change::Argument { key: key.to_owned(), values: edits };
    Mutant::edit(name, class, right, reach, change)
}

/// Returns the edit that multiplies a number other than 0 by a factor.
fn factor_edit(what: &str, class: MistakeClass, factor: f64) -> ArgumentEdit {
    ArgumentEdit::new(what, class, true, move |value| {
        Some(Scalar::Float(value.as_f64().filter(|x| *x != 0.0)? * factor))
    })
}

/// Returns the edits of an argument, by the kind of its parameter.
fn argument_edits(key: &str, param: Option<&Param>) -> Vec<ArgumentEdit> {
    let neutral = param.is_some_and(|param| param.neutral);
    let form = if neutral { MistakeClass::Rounding } else { MistakeClass::Form };
    match param.map(|param| param.kind) {
        Some(ParamKind::Flag) => {
            vec![ArgumentEdit::new("flipped", form, false, |value| match value {
                Scalar::Bool(flag) => Some(Scalar::Bool(!flag)),
                _ => None,
            })]
        }
        Some(ParamKind::Word(words)) => words
            .iter()
            .map(|&word| {
                ArgumentEdit::new(format!("'{word}'"), form, false, move |value| match value {
                    Scalar::Str(text) if text != word => Some(Scalar::Str(word.to_owned())),
                    _ => None,
                })
            })
            .collect(),
        Some(ParamKind::Dim | ParamKind::Int) => [("+ 1", 1), ("- 1", -1)]
            .map(|(what, by)| {
                ArgumentEdit::new(what, MistakeClass::Integer, true, move |value| match value {
                    Scalar::Int(n) => Some(Scalar::Int(n + by)).filter(|_| n + by > 0),
                    _ => None,
                })
            })
            .into(),
        Some(ParamKind::Float) if key == "eps" => vec![
            factor_edit("x 10", MistakeClass::Epsilon, 10.0),
            factor_edit("/ 10", MistakeClass::Epsilon, 0.1),
        ],
        Some(ParamKind::Float) => vec![factor_edit("x 1.01", MistakeClass::Number, 1.01)],
        Some(ParamKind::Numbers) => {
            vec![ArgumentEdit::new("with its first x 1.01", MistakeClass::Number, true, |value| {
                let Scalar::List(items) = value else { return None };
                let mut items = items.clone();
                let first =
                    items.iter_mut().find(|item| item.as_f64().is_some_and(|x| x != 0.0))?;
                *first = Scalar::Float(first.as_f64()? * 1.01);
                Some(Scalar::List(items))
            })]
        }
        // Operators on a value and a number have no signature.
        None => {
            vec![ArgumentEdit::new("x 1.01", MistakeClass::Number, true, |value| match value {
                Scalar::Float(x) if *x != 0.0 => Some(Scalar::Float(x * 1.01)),
                Scalar::Int(n) if *n != 0 => Some(Scalar::Float(*n as f64 * 1.01)),
                _ => None,
            })]
        }
        _ => Vec::new(),
    }
}

/// Returns edits of windows: of arguments and of the states with that window.
fn windows(graph: &Graph, places: &Places<'_>) -> Vec<Mutant> {
    let with = places.nodes(|node| has_window(graph, node) && window_of(node).is_some());
    let without = places.nodes(|node| has_window(graph, node) && window_of(node).is_none());
    let ways: [(&str, &[usize], WindowChange); 4] = [
        ("window + 1", &with, |w| w.map(|w| w + 1)),
        ("window - 1", &with, |w| w.map(|w| (w - 1).max(1))),
        ("no window", &with, |_| None),
        ("a window of 30 on full attention", &without, |_| Some(SHORT_WINDOW)),
    ];
    let mut all = Vec::new();
    for (what, nodes, change) in ways {
        let mut sets = vec![(what.to_owned(), nodes.to_vec())];
        if nodes.len() > 1 {
            sets.push((format!("{what}, in the last alone"), nodes[nodes.len() - 1..].to_vec()));
        }
        for (name, nodes) in sets.into_iter().filter(|(_, nodes)| !nodes.is_empty()) {
            let right = places.of(nodes.iter().copied());
            let windows = nodes.iter().map(|n| (*n, change(window_of(&graph.nodes[*n]))));
            let change = Change::Window(windows.collect());
            all.push(Mutant::edit(
                name,
                MistakeClass::Window,
                right,
                "no prompt is as long",
                change,
            ));
        }
    }
    all
}
