//! Builds small graphs by hand, so that the engine is tested without specs or files.

use std::collections::BTreeMap;
use std::sync::Arc;

use onboard_engine::weights::WeightsInMemory;
use onboard_engine::{
    Chunk, Logits, NativeEngine, NoProbe, OutputRows, Session, SessionOptions, SlotId,
};
use registry::diag::{SourceText, Span};
use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{
    Graph, Layer, Node, RopeId, State, StateId, StateKind, StatePart, Value, ValueId, Weight,
    WeightId,
};
use registry::model::Model;
use registry::rope::RopeTable;
use registry::scalar::Scalar;

pub(crate) struct Build {
    pub(crate) graph: Graph,
    pub(crate) tensors: WeightsInMemory,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) vocab: usize,
    pub(crate) context: Option<usize>,
    at: Span,
    seed: u64,
}

impl Build {
    pub(crate) fn new(vocab: usize) -> Self {
        let source = Arc::new(SourceText { path: "test.yaml".into(), text: String::new() });
        let mut build = Self {
            graph: Graph::default(),
            tensors: WeightsInMemory::default(),
            ropes: Vec::new(),
            vocab,
            context: None,
            at: Span { source, start: 0, end: 0 },
            seed: 1,
        };
        build.value("tokens", &[]);
        build
    }

    pub(crate) fn value(&mut self, name: &str, shape: &[usize]) -> ValueId {
        self.graph.values.push(Value {
            name: name.into(),
            shape: shape.to_vec(),
            dtype: DtypeRule::Activation,
            tap: None,
        });
        ValueId(self.graph.values.len() - 1)
    }

    pub(crate) fn weight(&mut self, shape: &[usize], data: &[f32]) -> WeightId {
        assert_eq!(shape.iter().product::<usize>(), data.len());
        self.tensors.push(shape, data);
        self.graph.weights.push(Weight {
            name: format!("w{}", self.graph.weights.len()),
            shape: shape.to_vec(),
            dtype: DtypeRule::Activation,
            integers: false,
            at: self.at.clone(),
        });
        WeightId(self.graph.weights.len() - 1)
    }

    /// Numbers between -1 and 1 times `size`.
    pub(crate) fn random(&mut self, shape: &[usize], size: f32) -> WeightId {
        let data: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((self.seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * size
            })
            .collect();
        self.weight(shape, &data)
    }

    pub(crate) fn rope(&mut self, inv_freq: &[f32]) -> RopeId {
        self.ropes.push(RopeTable {
            name: "main".into(),
            dim: inv_freq.len() * 2,
            inv_freq: inv_freq.to_vec(),
            attention_factor: 1.0,
            long: None,
            dynamic: None,
            rounded: None,
            behind: 0,
            axes: Vec::new(),
            kind: "default".into(),
        });
        RopeId(self.ropes.len() - 1)
    }

    pub(crate) fn state(
        &mut self,
        kind: StateKind,
        parts: &[(&str, &[usize])],
        window: Option<usize>,
    ) -> StateId {
        self.graph.states.push(State {
            name: kind.name().into(),
            layer: 0,
            kind,
            parts: parts
                .iter()
                .map(|(n, s)| StatePart { name: (*n).into(), shape: s.to_vec() })
                .collect(),
            dtype: DtypeRule::Activation,
            eight: None,
            fixed: None,
            block: None,
            window,
            at: self.at.clone(),
            dtype_at: self.at.clone(),
        });
        StateId(self.graph.states.len() - 1)
    }

    /// A node with one output.
    pub(crate) fn node(
        &mut self,
        op: &str,
        inputs: &[ValueId],
        shape: &[usize],
    ) -> (&mut Node, ValueId) {
        let out = self.value(op, shape);
        self.graph.nodes.push(Node {
            op: op.into(),
            inputs: inputs.to_vec(),
            weights: BTreeMap::new(),
            state: None,
            rope: None,
            attrs: BTreeMap::new(),
            outputs: vec![out],
            layer: None,
            at: self.at.clone(),
        });
        (self.graph.nodes.last_mut().unwrap(), out)
    }

    pub(crate) fn embed(&mut self, table: WeightId, width: usize) -> ValueId {
        let (node, x) = self.node("embed", &[ValueId(0)], &[width]);
        node.weights.insert("weight".into(), table);
        x
    }

    pub(crate) fn linear(&mut self, x: ValueId, from: usize, to: usize) -> ValueId {
        let w = self.random(&[to, from], (3.0 / from as f32).sqrt());
        let (node, y) = self.node("linear", &[x], &[to]);
        node.weights.insert("weight".into(), w);
        y
    }

    pub(crate) fn norm(&mut self, x: ValueId, width: usize) -> ValueId {
        let w = self.random(&[width], 2.0);
        let shape = self.graph.values[x.0].shape.clone();
        let (node, y) = self.node("rms_norm", &[x], &shape);
        node.weights.insert("weight".into(), w);
        node.attrs.insert("eps".into(), Scalar::Float(1e-5));
        y
    }

    pub(crate) fn model(mut self, output: ValueId) -> (Model, WeightsInMemory) {
        self.graph.output = Some(output);
        let model = Model {
            name: "test".into(),
            architecture: "Test".into(),
            dims: BTreeMap::new(),
            graph: self.graph,
            ropes: self.ropes,
            vocab: self.vocab,
            input_vocab: self.vocab,
            context: self.context,
            ignore: Vec::new(),
            wrapped: None,
            rules: Vec::new(),
            nextn: None,
            gguf: None,
            quant: registry::quant::QuantRules::default(),
            own_steps: false,
            layers: None,
        };
        (model, self.tensors)
    }
}

pub(crate) fn open(model: (Model, WeightsInMemory), options: &SessionOptions) -> Box<dyn Session> {
    NativeEngine::new().open_with(Arc::new(model.0), Box::new(model.1), options).unwrap()
}

pub(crate) fn feed(session: &mut dyn Session, slot: SlotId, tokens: &[u32]) -> Logits {
    let chunk = Chunk { slot, tokens, rows: OutputRows::All };
    session.step(&[chunk], &mut NoProbe).unwrap().remove(0)
}

/// Hidden size 32, four query and two key heads of 8 with a window, a convolution of width 3, a
/// gated MLP, norms, rotary embedding; 23 tokens.
pub(crate) fn hybrid(window: Option<usize>) -> (Model, WeightsInMemory) {
    let mut b = Build::new(23);
    b.context = Some(300);
    let table = b.random(&[23, 32], 1.0);
    let mut x = b.embed(table, 32);
    let rope = b.rope(&[1.0, 0.3, 0.1, 0.03]);

    let y = b.norm(x, 32);
    let y3 = b.linear(y, 32, 96);
    let (_, g) = b.node("split", &[y3], &[32]);
    let c = b.value("c", &[32]);
    let u = b.value("u", &[32]);
    b.graph.nodes.last_mut().unwrap().outputs.extend([c, u]);
    let (_, gu) = b.node("mul", &[g, u], &[32]);
    let conv = b.state(StateKind::Conv, &[("conv", &[32, 2])], None);
    let w = b.random(&[32, 1, 3], 0.8);
    let (node, y) = b.node("causal_conv", &[gu], &[32]);
    node.weights.insert("weight".into(), w);
    node.state = Some(conv);
    let (_, y) = b.node("mul", &[c, y], &[32]);
    let y = b.linear(y, 32, 32);
    x = b.node("add", &[x, y], &[32]).1;

    let y = b.norm(x, 32);
    let mut heads = Vec::new();
    for n in [4, 2, 2] {
        let y = b.linear(y, 32, n * 8);
        heads.push(b.node("heads", &[y], &[n, 8]).1);
    }
    for head in &mut heads[..2] {
        let shape = b.graph.values[head.0].shape.clone();
        let y = b.norm(*head, 8);
        let (node, y) = b.node("rope", &[y], &shape);
        node.rope = Some(rope);
        *head = y;
    }
    let kv = b.state(StateKind::Attention, &[("k", &[2, 8]), ("v", &[2, 8])], window);
    let (node, y) = b.node("attend", &heads, &[32]);
    node.state = Some(kv);
    node.attrs.insert("scale".into(), Scalar::Float(8f64.powf(-0.5)));
    if let Some(w) = window {
        node.attrs.insert("window".into(), Scalar::Int(w as i64));
    }
    let y = b.linear(y, 32, 32);
    x = b.node("add", &[x, y], &[32]).1;
    let end = b.graph.nodes.len();
    b.graph.layers.push(Layer { kind: "all".into(), prefix: "layers.0".into(), nodes: (1, end) });
    b.graph.values[x.0].tap = Some("layers.0".into());

    let y = b.norm(x, 32);
    let gate = b.linear(y, 32, 48);
    let up = b.linear(y, 32, 48);
    let (_, gate) = b.node("silu", &[gate], &[48]);
    let (_, y) = b.node("mul", &[gate, up], &[48]);
    let y = b.linear(y, 48, 32);
    x = b.node("add", &[x, y], &[32]).1;
    b.graph.head = b.graph.nodes.len();
    let y = b.norm(x, 32);
    let (node, y) = b.node("linear", &[y], &[23]);
    node.weights.insert("weight".into(), table);
    b.model(y)
}

pub(crate) fn options(dtype: Dtype) -> SessionOptions {
    SessionOptions { dtype, poison: true, ..SessionOptions::default() }
}

pub(crate) fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + i * i) % 23).collect()
}
