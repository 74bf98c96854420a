//! Graph of the tiny model, with its states and weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use registry::diag::{SourceText as Text, Span};
use registry::dtype::DtypeRule;
use registry::graph::{
    Graph, Layer, Node, State, StateId, StateKind, StatePart, Value, ValueId, Weight,
};
use registry::model::Model;

use super::{D, H, HEADS, VOCAB, WIDTH, WINDOW};

fn span() -> Span {
    let text = "spec: 1\nstates:\n  conv: { dtype: activation }\n";
    let source = Arc::new(Text { path: "fake.yaml".into(), text: text.into() });
    Span { source, start: 26, end: 30 }
}

/// Returns the graph, as a spec would resolve to it.
pub fn model() -> Model {
    let mut graph = Graph::default();
    let mut last = push_value(&mut graph, "tokens", None);
    let taps = [
        ("embed", "embed", None, None),
        ("rms_norm", "layers.0.norm", Some(0), None),
        ("linear", "layers.0.in_proj", Some(0), None),
        ("causal_conv", "", Some(0), Some(StateId(0))),
        ("linear", "layers.0.out_proj", Some(0), None),
        ("add", "layers.0", Some(0), None),
        ("rms_norm", "layers.1.norm", Some(1), None),
        ("linear", "layers.1.k_proj", Some(1), None),
        ("attend", "", Some(1), Some(StateId(1))),
        ("linear", "layers.1.o_proj", Some(1), None),
        ("add", "layers.1", Some(1), None),
        ("linear", "head", None, None),
    ];
    for (op, tap, layer, state) in taps {
        let out = push_value(&mut graph, tap, (!tap.is_empty()).then_some(tap));
        graph.nodes.push(Node {
            op: op.into(),
            inputs: vec![last],
            weights: BTreeMap::new(),
            state,
            rope: None,
            attrs: BTreeMap::new(),
            outputs: vec![out],
            layer,
            at: span(),
        });
        if matches!(op, "linear" | "rms_norm" | "embed") {
            graph.weights.push(Weight {
                name: format!("{tap}.weight"),
                shape: vec![H],
                dtype: DtypeRule::Activation,
                at: span(),
            });
        }
        last = out;
    }
    graph.output = Some(last);
    graph.head = graph.nodes.len() - 1;
    graph.states = vec![
        State {
            name: "conv".into(),
            layer: 0,
            kind: StateKind::Conv,
            parts: vec![state_part("conv", [H, WIDTH - 1])],
            dtype: DtypeRule::Activation,
            eight: None,
            fixed: None,
            block: None,
            window: None,
            at: span(),
            dtype_at: span(),
        },
        State {
            name: "kv".into(),
            layer: 1,
            kind: StateKind::Attention,
            parts: vec![state_part("k", [HEADS, D]), state_part("v", [HEADS, D])],
            dtype: DtypeRule::Activation,
            eight: None,
            fixed: None,
            block: None,
            window: Some(WINDOW),
            at: span(),
            dtype_at: span(),
        },
    ];
    graph.layers = vec![
        Layer { kind: "conv".into(), prefix: "layers.0".into(), nodes: (1, 6) },
        Layer { kind: "attention".into(), prefix: "layers.1".into(), nodes: (6, 11) },
    ];
    Model {
        name: "fake".into(),
        architecture: "FakeForCausalLM".into(),
        dims: BTreeMap::new(),
        graph,
        ropes: Vec::new(),
        vocab: VOCAB,
        input_vocab: VOCAB,
        context: Some(64),
        ignore: Vec::new(),
        wrapped: None,
        rules: Vec::new(),
        nextn: None,
        gguf: None,
        quant: registry::quant::QuantRules::default(),
        own_steps: false,
        layers: None,
    }
}

fn state_part(name: &str, shape: [usize; 2]) -> StatePart {
    StatePart { name: name.into(), shape: shape.into() }
}

fn push_value(g: &mut Graph, name: &str, tap: Option<&str>) -> ValueId {
    g.values.push(Value {
        name: name.into(),
        shape: vec![H],
        dtype: DtypeRule::Activation,
        tap: tap.map(Into::into),
    });
    ValueId(g.values.len() - 1)
}
