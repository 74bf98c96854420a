//! Facts of a model, as expressions of sheets see them.

use std::collections::BTreeMap;

use crate::dtype::Dtype;
use crate::graph::{Graph, State, StateKind};
use crate::model::Model;
use crate::ops::Trait;
use crate::scalar::Scalar;

/// The roots of facts and their members.
pub(super) const WORDS: [(&str, &[&str]); 4] = [
    (
        "model",
        &[
            "name",
            "architecture",
            "layers",
            "vocab",
            "context",
            "tied",
            "hidden",
            "weight_bytes",
            "rank_bytes",
            "gguf",
            "gguf_arch",
            "nextn",
            "mixture",
            "sinks",
            "query_heads",
        ],
    ),
    ("chat", &["format", "tools", "reasoning"]),
    ("has_state", &["attention", "conv", "recurrent", "latent", "index", "pooled", "window"]),
    ("state", &["attention", "window", "conv", "recurrent", "latent", "index", "pooled"]),
];
/// The facts of each kind of state.
pub(super) const STATE: [&str; 7] =
    ["layers", "numbers", "layer_numbers", "dtype", "heads", "head_dim", "window"];

/// Inputs of the facts besides the model.
#[derive(Debug, Clone, Default)]
pub struct FactInputs {
    /// The dtype of activations.
    pub dtype: Option<Dtype>,
    /// Ranks that share out the matrices and heads.
    pub tp: i64,
    /// Bytes of the stored weights, if they are at hand.
    pub stored: Option<u64>,
    /// True if the model is a GGUF file.
    pub gguf: bool,
    /// True if the head that predicts further tokens runs too.
    pub mtp: bool,
    /// Facts of the chat template.
    pub chat: ChatFacts,
}

/// Facts of a chat template: the format of its tool calls, and the engine's parsers for that format.
#[derive(Debug, Clone, Default)]
pub struct ChatFacts {
    /// Name of the format; none without a template, or with one of an unknown format.
    pub format: Option<String>,
    /// The engine's parser of tool calls.
    pub tools: Option<String>,
    /// The engine's parser of reasoning.
    pub reasoning: Option<String>,
}

/// The facts of a model: one map for each root.
#[derive(Debug, Clone)]
pub struct ModelFacts(pub(super) Vec<(String, Scalar)>);

/// Works out the facts of a model.
pub fn facts(model: &Model, about: &FactInputs) -> ModelFacts {
    let dtype = about.dtype.unwrap_or(Dtype::Bf16);
    let tp = u64::try_from(about.tp).unwrap_or(1).max(1);
    let graph = &model.graph;
    let heads = model.nextn.iter().filter(|_| about.mtp).flat_map(|nextn| &nextn.layers);
    let graphs: Vec<&Graph> = std::iter::once(graph).chain(heads.map(|head| &head.graph)).collect();
    let kinds = StateClass::ALL.map(|kind| (kind, StateTotals::of(&graphs, kind, tp, dtype)));
    let has = kinds.iter().map(|(kind, sum)| (kind.name(), Scalar::Bool(sum.layers > 0)));
    let states = kinds.iter().map(|(kind, sum)| (kind.name(), sum.facts()));
    let (split, replicated) = weights(&graphs, dtype);
    let total = about.stored.unwrap_or_else(|| split.saturating_add(replicated));
    let replicated = replicated.min(total);
    let rank = replicated.saturating_add((total - replicated).div_ceil(tp));
    let arch = model.gguf.as_ref().map(|gguf| gguf.arch.clone());
    let first = graph.nodes.first().and_then(|node| graph.values.get(node.outputs.first()?.0));
    let hidden = first.and_then(|value| value.shape.last()).copied();
    let entries = [
        ("name", Scalar::Str(model.name.clone())),
        ("architecture", Scalar::Str(model.architecture.clone())),
        ("layers", int(graph.layers.len() as u64)),
        ("vocab", int(model.vocab as u64)),
        ("context", int_or_null(model.context)),
        ("tied", Scalar::Bool(!graph.tied.is_empty())),
        ("hidden", int_or_null(hidden)),
        ("weight_bytes", int(total)),
        ("rank_bytes", int(rank)),
        ("gguf", Scalar::Bool(about.gguf)),
        ("gguf_arch", arch.map_or(Scalar::Null, Scalar::Str)),
        ("nextn", Scalar::Bool(model.nextn.is_some())),
        ("mixture", Scalar::Bool(graph.nodes.iter().any(|node| node.op.is(Trait::Experts)))),
        ("sinks", Scalar::Bool(graph.nodes.iter().any(|node| node.weights.contains_key("sinks")))),
        ("query_heads", int_or_null(query_heads(graph))),
    ];
    let chat = &about.chat;
    let chat = [
        ("format", text_or_null(chat.format.as_deref())),
        ("tools", text_or_null(chat.tools.as_deref())),
        ("reasoning", text_or_null(chat.reasoning.as_deref())),
    ];
    ModelFacts(vec![
        ("model".to_owned(), map(entries)),
        ("chat".to_owned(), map(chat)),
        ("has_state".to_owned(), map(has)),
        ("state".to_owned(), map(states)),
    ])
}

/// The kinds of state of [`StateKind`], windows apart from attention without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StateClass {
    Attention,
    Window,
    Conv,
    Recurrent,
    Latent,
    Index,
    Pooled,
}

impl StateClass {
    const ALL: [Self; 7] = [
        Self::Attention,
        Self::Window,
        Self::Conv,
        Self::Recurrent,
        Self::Latent,
        Self::Index,
        Self::Pooled,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Window => "window",
            Self::Conv => "conv",
            Self::Recurrent => "recurrent",
            Self::Latent => "latent",
            Self::Index => "index",
            Self::Pooled => "pooled",
        }
    }

    fn of(state: &State) -> Self {
        match state.kind {
            StateKind::Attention if state.window.is_some() => Self::Window,
            StateKind::Attention => Self::Attention,
            StateKind::Conv => Self::Conv,
            StateKind::Recurrent => Self::Recurrent,
            StateKind::Latent => Self::Latent,
            StateKind::Index => Self::Index,
            StateKind::Pooled => Self::Pooled,
        }
    }
}

/// The states of one kind together, on one rank.
#[derive(Debug, Default)]
struct StateTotals {
    layers: u64,
    /// Numbers of all layers: for each position, or for each sequence of states without positions.
    numbers: u64,
    /// The most of one layer.
    layer_numbers: u64,
    dtype: Option<&'static str>,
    heads: Option<usize>,
    head_dim: Option<usize>,
    window: Option<usize>,
}

impl StateTotals {
    fn of(graphs: &[&Graph], kind: StateClass, tp: u64, activation: Dtype) -> Self {
        let mut sum = Self::default();
        let mut layers = BTreeMap::<(usize, usize), u64>::new();
        let states = graphs.iter().enumerate();
        let states = states.flat_map(|(n, graph)| graph.states.iter().map(move |state| (n, state)));
        for (graph, state) in states.filter(|(_, state)| StateClass::of(state) == kind) {
            let parts = state.parts.iter().map(|part| numbers(&part.shape, kind, tp));
            let numbers = parts.fold(0, u64::saturating_add);
            let layer = layers.entry((graph, state.layer)).or_default();
            *layer = layer.saturating_add(numbers);
            sum.dtype = Some(state.dtype.resolve(activation).name());
            if let Some([heads, dim]) = state.parts.first().map(|part| part.shape.as_slice()) {
                sum.heads = sum.heads.max(Some(*heads));
                sum.head_dim = sum.head_dim.max(Some(*dim));
            }
            sum.window = sum.window.max(state.window);
        }
        sum.layers = layers.len() as u64;
        sum.numbers = layers.values().fold(0, |all, one| all.saturating_add(*one));
        sum.layer_numbers = layers.values().copied().max().unwrap_or(0);
        sum
    }

    fn facts(&self) -> Scalar {
        map([
            ("layers", int(self.layers)),
            ("numbers", int(self.numbers)),
            ("layer_numbers", int(self.layer_numbers)),
            ("dtype", self.dtype.map_or(Scalar::Null, |name| Scalar::Str(name.to_owned()))),
            ("heads", int_or_null(self.heads)),
            ("head_dim", int_or_null(self.head_dim)),
            ("window", int_or_null(self.window)),
        ])
    }
}

/// Returns the greatest number that divides the heads of queries in every layer; none without attention.
fn query_heads(graph: &Graph) -> Option<usize> {
    let nodes = graph.nodes.iter().filter(|node| {
        let state = node.state.and_then(|id| graph.states.get(id.0));
        state.is_some_and(|state| holds_keys(state.kind))
    });
    let queries = nodes.filter_map(|node| graph.values.get(node.inputs.first()?.0));
    queries.filter_map(|query| query.shape.first().copied()).reduce(common_divisor)
}

/// True for states that queries are compared with.
fn holds_keys(kind: StateKind) -> bool {
    matches!(kind, StateKind::Attention | StateKind::Latent | StateKind::Pooled)
}

/// Returns the greatest common divisor.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Numbers of a part on one rank. Heads and channels are shared out; a rank has at least one
/// head. What all heads share lies on every rank.
fn numbers(shape: &[usize], kind: StateClass, tp: u64) -> u64 {
    let tp = if matches!(kind, StateClass::Latent | StateClass::Index | StateClass::Pooled) {
        1
    } else {
        tp
    };
    let Some((&first, inner)) = shape.split_first() else { return 1 };
    let first = (first as u64).div_ceil(tp);
    inner.iter().fold(first, |product, &d| product.saturating_mul(d as u64))
}

/// Bytes of the weights that ranks share out, and of those that every rank has whole.
fn weights(graphs: &[&Graph], dtype: Dtype) -> (u64, u64) {
    let mut split = 0_u64;
    let mut replicated = 0_u64;
    for weight in graphs.iter().flat_map(|graph| &graph.weights) {
        let numbers = weight.shape.iter().fold(1_u64, |n, &d| n.saturating_mul(d as u64));
        let bytes = numbers.saturating_mul(weight.dtype.resolve(dtype).size() as u64);
        let sum = if weight.shape.len() > 1 { &mut split } else { &mut replicated };
        *sum = sum.saturating_add(bytes);
    }
    (split, replicated)
}

fn int(n: u64) -> Scalar {
    Scalar::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

/// Returns a number as expressions see it.
fn int_or_null(n: Option<usize>) -> Scalar {
    n.map_or(Scalar::Null, |n| int(n as u64))
}

/// Returns a text as expressions see it.
fn text_or_null(text: Option<&str>) -> Scalar {
    text.map_or(Scalar::Null, |text| Scalar::Str(text.to_owned()))
}

/// Builds a map of named values.
pub(super) fn map<'a>(entries: impl IntoIterator<Item = (&'a str, Scalar)>) -> Scalar {
    Scalar::Map(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_have_the_words_that_sheets_may_use() {
        let model = crate::sheet::tests::model(Graph::default());
        let ModelFacts(roots) = facts(&model, &FactInputs::default());
        for ((root, value), (word, members)) in roots.iter().zip(WORDS) {
            assert_eq!(root, word);
            let Scalar::Map(entries) = value else { panic!("a map") };
            let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.len(), members.len(), "{root}");
            assert!(members.iter().all(|member| names.contains(member)), "{root}: {names:?}");
        }
        let Scalar::Map(entries) = StateTotals::default().facts() else { panic!("a map") };
        assert!(entries.iter().map(|(name, _)| name.as_str()).eq(STATE));
    }

    #[test]
    fn ranks_share_heads_and_channels_but_not_latents() {
        for (shape, kind, tp, expected) in [
            (&[8, 64][..], StateClass::Attention, 2, 256),
            (&[2, 64], StateClass::Attention, 8, 64),
            (&[1536, 2], StateClass::Conv, 2, 1536),
            (&[1, 512], StateClass::Latent, 8, 512),
            (&[], StateClass::Recurrent, 2, 1),
        ] {
            assert_eq!(numbers(shape, kind, tp), expected, "{shape:?}");
        }
    }
}
