//! Tiny engine with optional faults, and dumps written by its correct form.
//!
//! It has two layers: a gated short convolution of width 3, and attention over a window of 4. The reference
//! sums in the other direction, so that two correct runs differ by rounding.

#![allow(clippy::allow_attributes_without_reason, unreachable_pub, dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::{
    Chunk, Engine, Error, Logits, ModelSource, OutputRows, Probe, Session, SessionFeatures,
    SessionOptions, SlotId, StateValue,
};
use formats::safetensors::{FileDtype, TensorSpec, Writer};
use registry::diag::{SourceText as Text, Span};
use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{
    Graph, Layer, Node, State, StateId, StateKind, StatePart, Value, ValueId, Weight,
};
use registry::model::Model;

pub const VOCAB: usize = 23;
const H: usize = 16;
const WIDTH: usize = 3;
const WINDOW: usize = 4;
const HEADS: usize = 2;
const D: usize = H / HEADS;

/// Fault of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The conv state is stored in bf16, whatever the run's dtype.
    NarrowState,
    /// An epsilon is 1e-5 instead of 1e-6.
    Epsilon,
    /// The window is one too long.
    Window,
    /// The weight of one norm is offset by 1.
    PlusOne,
    /// Attention's scale is wrong by 3 in 1000.
    Scale,
    /// A reused slot is not cleared.
    StaleSlot,
    /// A chunk shorter than the kernel drops the positions before it.
    ShortChunk,
    /// Forks share their conv state's newest column.
    ForkLeaks,
    /// Truncation drops positions but not the conv state.
    HalfTruncate,
    /// Slots are mixed up when their order changes.
    BatchOrder,
    /// The second norm is never computed.
    MissingNorm,
    /// Logits turn to NaN in decode.
    NotANumber,
}

#[derive(Debug, Clone, Copy)]
pub struct Fake {
    pub fault: Fault,
    /// True to sum from the other end.
    pub reversed: bool,
    /// True to expose neither taps nor states.
    pub blind: bool,
}

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

pub fn round(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::F32 => x,
        Dtype::Bf16 => half::bf16::from_f32(x).to_f32(),
        Dtype::F16 => half::f16::from_f32(x).to_f32(),
    }
}

/// Returns a weight on the bf16 grid, so that it is exact in every dtype.
fn weight(seed: usize, n: usize) -> f32 {
    let mut z = (seed as u64 * 1_000_003 + n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
    round(Dtype::Bf16, unit * 2.0 - 1.0)
}

#[derive(Debug, Clone)]
struct Slot {
    tokens: Vec<u32>,
    /// Columns of the conv state, oldest first, for every position so far (`WIDTH - 1` zeros first).
    columns: Vec<[f32; H]>,
    keys: Vec<[f32; H]>,
    values: Vec<[f32; H]>,
}

impl Slot {
    fn empty() -> Self {
        Self { tokens: vec![], columns: vec![[0.0; H]; WIDTH - 1], keys: vec![], values: vec![] }
    }
}

pub struct FakeSession {
    model: Model,
    dtype: Dtype,
    fake: Fake,
    slots: Vec<Option<Slot>>,
    released: Vec<Slot>,
}

impl Engine for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        Ok(Box::new(FakeSession {
            model: (*source.model).clone(),
            dtype: options.dtype,
            fake: *self,
            slots: vec![],
            released: vec![],
        }))
    }
}

impl FakeSession {
    fn slot(&self, id: SlotId) -> Result<&Slot, Error> {
        self.slots.get(id.0).and_then(Option::as_ref).ok_or(Error::UnknownSlot(id.0))
    }

    fn sum(&self, terms: impl DoubleEndedIterator<Item = f32>) -> f32 {
        if self.fake.reversed { terms.rev().sum() } else { terms.sum() }
    }

    fn round(&self, x: f32) -> f32 {
        round(self.dtype, x)
    }

    fn linear(&self, seed: usize, x: &[[f32; H]]) -> Vec<[f32; H]> {
        let scale = 1.0 / (H as f32).sqrt();
        x.iter()
            .map(|row| {
                std::array::from_fn(|o| {
                    let terms = (0..H).map(|i| row[i] * 2.0 * scale * weight(seed, o * H + i));
                    self.round(self.sum(terms))
                })
            })
            .collect()
    }

    fn norm(&self, seed: usize, x: &[[f32; H]]) -> Vec<[f32; H]> {
        let broken = seed == 11;
        let eps = if self.fake.fault == Fault::Epsilon && broken { 1e-5 } else { 1e-6 };
        let one = if self.fake.fault == Fault::PlusOne && broken { 1.0 } else { 0.0 };
        x.iter()
            .map(|row| {
                if self.fake.fault == Fault::MissingNorm && broken {
                    return *row;
                }
                let mean = self.sum(row.iter().map(|v| v * v)) / H as f32;
                let r = 1.0 / (mean + eps).sqrt();
                std::array::from_fn(|i| {
                    self.round((1.0 + one + 0.5 * weight(seed, i)) * self.round(row[i] * r))
                })
            })
            .collect()
    }

    fn add(&self, a: &[[f32; H]], b: &[[f32; H]]) -> Vec<[f32; H]> {
        a.iter().zip(b).map(|(a, b)| std::array::from_fn(|i| self.round(a[i] + b[i]))).collect()
    }

    fn conv(&self, slot: &mut Slot, x: &[[f32; H]]) -> Vec<[f32; H]> {
        // Within a forward pass the engine uses its own values; only the past is read back.
        let past = slot.columns.len();
        let mut seen = slot.columns.clone();
        if self.fake.fault == Fault::ShortChunk && x.len() == 2 {
            seen.fill([0.0; H]);
        }
        seen.extend_from_slice(x);
        let out = (0..x.len())
            .map(|t| {
                std::array::from_fn(|c| {
                    let taps = (0..WIDTH)
                        .map(|k| seen[past + t + k + 1 - WIDTH][c] * weight(7, c * WIDTH + k));
                    self.round(self.sum(taps))
                })
            })
            .collect();
        slot.columns.extend(x.iter().map(|row| {
            row.map(
                |v: f32| {
                    if self.fake.fault == Fault::NarrowState { round(Dtype::Bf16, v) } else { v }
                },
            )
        }));
        out
    }

    fn attend(
        &self,
        slot: &mut Slot,
        q: &[[f32; H]],
        k: &[[f32; H]],
        v: &[[f32; H]],
    ) -> Vec<[f32; H]> {
        let window = if self.fake.fault == Fault::Window { WINDOW + 1 } else { WINDOW };
        let scale = if self.fake.fault == Fault::Scale { 1.003 } else { 1.0 } / (D as f32).sqrt();
        let mut out = Vec::new();
        for t in 0..q.len() {
            slot.keys.push(k[t]);
            slot.values.push(v[t]);
            let from = slot.keys.len().saturating_sub(window);
            let mut row = [0.0; H];
            for h in 0..HEADS {
                let at = h * D..(h + 1) * D;
                let scores: Vec<f32> = slot.keys[from..]
                    .iter()
                    .map(|key| self.round(scale * self.sum(at.clone().map(|i| q[t][i] * key[i]))))
                    .collect();
                let top = scores.iter().copied().fold(f32::MIN, f32::max);
                let total: f32 = self.sum(scores.iter().map(|s| (s - top).exp()));
                for i in at {
                    let terms = scores
                        .iter()
                        .zip(&slot.values[from..])
                        .map(|(s, v)| self.round((s - top).exp() / total) * v[i]);
                    row[i] = self.round(self.sum(terms.collect::<Vec<_>>().into_iter()));
                }
            }
            out.push(row);
        }
        out
    }
}

/// Probe without taps: a call fails the test.
struct Closed;

impl Probe for Closed {
    fn wants(&self, _tap: &str) -> bool {
        false
    }

    fn tap(&mut self, tap: &str, _shape: &[usize], _data: &mut [f32]) {
        panic!("{tap} was shown");
    }
}

fn show(probe: &mut dyn Probe, tap: &str, x: &mut [[f32; H]]) {
    if probe.wants(tap) {
        let mut flat = x.concat();
        probe.tap(tap, &[x.len(), H], &mut flat);
        for (row, new) in x.iter_mut().zip(flat.chunks(H)) {
            row.copy_from_slice(new);
        }
    }
}

impl Session for FakeSession {
    fn model(&self) -> &Model {
        &self.model
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn features(&self) -> SessionFeatures {
        let sees = !self.fake.blind;
        SessionFeatures { taps: sees, states: sees, seeds: sees, feeds: sees, steps: true }
    }

    fn open_slot(&mut self) -> SlotId {
        let fresh = match self.released.pop() {
            Some(old) if self.fake.fault == Fault::StaleSlot => Slot {
                columns: old.columns[old.columns.len() + 1 - WIDTH..].to_vec(),
                ..Slot::empty()
            },
            _ => Slot::empty(),
        };
        self.slots.push(Some(fresh));
        SlotId(self.slots.len() - 1)
    }

    fn release(&mut self, slot: SlotId) -> Result<(), Error> {
        self.slot(slot)?;
        self.released.extend(self.slots[slot.0].take());
        Ok(())
    }

    fn position(&self, slot: SlotId) -> Result<usize, Error> {
        Ok(self.slot(slot)?.tokens.len())
    }

    fn step(&mut self, chunks: &[Chunk<'_>], probe: &mut dyn Probe) -> Result<Vec<Logits>, Error> {
        let probe: &mut dyn Probe = if self.fake.blind { &mut Closed } else { probe };
        let tokens: Vec<u32> = chunks.iter().flat_map(|c| c.tokens.iter().copied()).collect();
        let mut x: Vec<[f32; H]> = tokens
            .iter()
            .map(|t| std::array::from_fn(|i| 2.0 * weight(1, *t as usize * H + i)))
            .collect();
        show(probe, "embed", &mut x);
        let mut slots = Vec::new();
        for chunk in chunks {
            slots.push(self.slot(chunk.slot)?.clone());
        }
        let sorted = chunks.windows(2).all(|w| w[0].slot < w[1].slot);
        if self.fake.fault == Fault::BatchOrder && !sorted {
            slots.rotate_left(1);
        }
        let mut y = self.norm(10, &x);
        show(probe, "layers.0.norm", &mut y);
        let mut y = self.linear(2, &y);
        show(probe, "layers.0.in_proj", &mut y);
        let mut y: Vec<[f32; H]> = rows_of_chunks(chunks, &y)
            .iter()
            .zip(&mut slots)
            .flat_map(|(rows, slot)| self.conv(slot, rows))
            .collect();
        y = self.linear(3, &y);
        show(probe, "layers.0.out_proj", &mut y);
        x = self.add(&x, &y);
        show(probe, "layers.0", &mut x);
        let mut y = self.norm(11, &x);
        show(probe, "layers.1.norm", &mut y);
        let q = self.linear(4, &y);
        let mut k = self.linear(5, &y);
        show(probe, "layers.1.k_proj", &mut k);
        let v = self.linear(6, &y);
        let q = rows_of_chunks(chunks, &q);
        let k = rows_of_chunks(chunks, &k);
        let v = rows_of_chunks(chunks, &v);
        let mut y: Vec<[f32; H]> = Vec::new();
        for (n, slot) in slots.iter_mut().enumerate() {
            y.extend(self.attend(slot, &q[n], &k[n], &v[n]));
        }
        let mut y = self.linear(8, &y);
        show(probe, "layers.1.o_proj", &mut y);
        x = self.add(&x, &y);
        show(probe, "layers.1", &mut x);
        let mut results = Vec::new();
        let mut at = 0;
        for (chunk, mut slot) in chunks.iter().zip(slots) {
            let end = at + chunk.tokens.len();
            let rows = match chunk.rows {
                OutputRows::None => end..end,
                OutputRows::Last => end - 1..end,
                OutputRows::All => at..end,
            };
            let mut data = Vec::new();
            for row in &x[rows.clone()] {
                for o in 0..VOCAB {
                    data.push(self.round(self.sum((0..H).map(|i| row[i] * weight(9, o * H + i)))));
                }
            }
            if probe.wants("head") && !rows.is_empty() {
                probe.tap("head", &[rows.len(), VOCAB], &mut data);
            }
            if self.fake.fault == Fault::NotANumber && !slot.tokens.is_empty() {
                data[3] = f32::NAN;
            }
            results.push(Logits { rows: rows.len(), vocab: VOCAB, data });
            slot.tokens.extend_from_slice(chunk.tokens);
            self.slots[chunk.slot.0] = Some(slot);
            at = end;
        }
        Ok(results)
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        let mut copy = self.slot(slot)?.clone();
        if self.fake.fault == Fault::ForkLeaks {
            copy.columns.last_mut().unwrap()[0] += 0.5;
        }
        self.slots.push(Some(copy));
        Ok(SlotId(self.slots.len() - 1))
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error> {
        let half = self.fake.fault == Fault::HalfTruncate;
        self.slot(slot)?;
        let s = self.slots[slot.0].as_mut().unwrap();
        s.tokens.truncate(length);
        s.keys.truncate(length);
        s.values.truncate(length);
        if !half {
            s.columns.truncate(length + WIDTH - 1);
        }
        Ok(())
    }

    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error> {
        Ok(self.slot(slot)?.tokens.iter().flat_map(|t| t.to_le_bytes()).collect())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error> {
        let tokens: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
        let slot = self.open_slot();
        self.step(
            &[Chunk { slot, tokens: &tokens, rows: OutputRows::None }],
            &mut engine::NoProbe,
        )?;
        Ok(slot)
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        assert!(!self.fake.blind, "asked for states that are not shown");
        let slot = self.slot(slot)?;
        let last = &slot.columns[slot.columns.len() + 1 - WIDTH..];
        let conv = (0..H).flat_map(|c| last.iter().map(move |column| column[c])).collect();
        let kept = slot.keys.len().min(WINDOW - 1);
        Ok(vec![
            state_value(0, 0, "conv", vec![H, WIDTH - 1], conv),
            state_value(
                1,
                1,
                "k",
                vec![kept, HEADS, D],
                slot.keys[slot.keys.len() - kept..].concat(),
            ),
            state_value(
                1,
                1,
                "v",
                vec![kept, HEADS, D],
                slot.values[slot.values.len() - kept..].concat(),
            ),
        ])
    }

    fn seed(&mut self, position: usize, states: &[StateValue]) -> Result<SlotId, Error> {
        let last = &states[0].data;
        let columns =
            std::iter::repeat_n([0.0; H], position).chain((0..WIDTH - 1).map(|n: usize| {
                std::array::from_fn(|c| {
                    let x = last[c * (WIDTH - 1) + n];
                    if self.fake.fault == Fault::NarrowState { round(Dtype::Bf16, x) } else { x }
                })
            }));
        self.slots.push(Some(Slot {
            tokens: vec![0; position],
            columns: columns.collect(),
            keys: rows_after_zeros(position, states.get(1).map_or(&[], |state| &state.data)),
            values: rows_after_zeros(position, states.get(2).map_or(&[], |state| &state.data)),
        }));
        Ok(SlotId(self.slots.len() - 1))
    }
}

pub const TAPS: [&str; 10] = [
    "embed",
    "layers.0.norm",
    "layers.0.in_proj",
    "layers.0.out_proj",
    "layers.0",
    "layers.1.norm",
    "layers.1.k_proj",
    "layers.1.o_proj",
    "layers.1",
    "head",
];

#[derive(Default)]
struct Keep(BTreeMap<String, (usize, Vec<f32>)>);

impl Probe for Keep {
    fn wants(&self, _: &str) -> bool {
        true
    }
    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        let kept = self.0.entry(tap.into()).or_insert((shape[1], Vec::new()));
        kept.1.extend_from_slice(data);
    }
}

/// Runs a prefill and returns its logits and taps.
fn whole(
    source: &ModelSource<'_>,
    dtype: Dtype,
    reversed: bool,
    tokens: &[u32],
) -> (Vec<f32>, Keep) {
    let fake = Fake { fault: Fault::None, reversed, blind: false };
    let mut session =
        fake.open(source, &SessionOptions { dtype, ..SessionOptions::default() }).unwrap();
    let slot = session.open_slot();
    let mut taps = Keep::default();
    let all = session.step(&[Chunk { slot, tokens, rows: OutputRows::All }], &mut taps).unwrap();
    (all[0].data.clone(), taps)
}

/// Writes a dump (and its checkpoint files) with the correct engine as the reference.
pub fn write_dump(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let tokens: Vec<u32> = (0..12).map(|n| (n * 5 + 2) % VOCAB as u32).collect();
    let split = 5;
    let mut tensors: Vec<(TensorSpec, Vec<u8>)> = Vec::new();
    let mut greedy = serde_json::Map::new();
    for dtype in Dtype::ALL {
        let mut put = |name: String, dtype: Dtype, shape: Vec<usize>, data: &[f32]| {
            let format = FileDtype::from(dtype);
            let mut bytes = vec![0; data.len() * format.size()];
            formats::numbers::from_f32(format, data, &mut bytes).unwrap();
            tensors.push((TensorSpec { name, dtype: format, shape }, bytes));
        };
        let fake = Fake { fault: Fault::None, reversed: true, blind: false };
        let model = Arc::new(model());
        let source = ModelSource { model, dir };
        let mut session =
            fake.open(&source, &SessionOptions { dtype, ..SessionOptions::default() }).unwrap();
        let (_, rounded) = whole(&source, dtype, true, &tokens);
        let (_, wide) = whole(&source, Dtype::F32, true, &tokens);
        let (_, other) = whole(&source, dtype, false, &tokens);
        let spread = |tap: &str| -> Vec<f32> {
            let [a, b] = [&rounded, &other].map(|run| {
                onboard_parity::measure::distances(&run.0[tap].1, &wide.0[tap].1, tokens.len())
            });
            a.into_iter().zip(b).map(|(a, b)| a.max(b) as f32).collect()
        };
        let rows = tokens.len();
        let all = TAPS.len();
        let mut names = TAPS;
        names.sort_unstable(); // as in the manifest
        let taps: Vec<f32> = names.iter().flat_map(|tap| spread(tap)).collect();
        put(format!("{dtype}/main/spread/taps"), Dtype::F32, vec![all, rows], &taps);
        // With logits about 1, log-probabilities change as they do.
        let kl = vec![0.0; rows];
        put(
            format!("{dtype}/main/spread/logits"),
            Dtype::F32,
            vec![2, rows],
            &[spread("head"), kl].concat(),
        );
        let largest = taps.iter().copied().fold(0.0, f32::max);
        put(format!("{dtype}/main/spread/states"), Dtype::F32, vec![3], &[largest; 3]);
        let mut taps = Keep::default();
        let slot = session.open_slot();
        let all = session
            .step(&[Chunk { slot, tokens: &tokens, rows: OutputRows::All }], &mut taps)
            .unwrap();
        put(main_name(dtype, "prefill", "logits"), dtype, vec![tokens.len(), VOCAB], &all[0].data);
        for (tap, (width, data)) in &taps.0 {
            put(
                main_name(dtype, "prefill", &format!("tap/{tap}")),
                dtype,
                vec![data.len() / width, *width],
                data,
            );
        }
        for s in session.states(slot).unwrap() {
            put(
                main_name(dtype, "prefill", &format!("state/{}/{}", s.layer, s.part)),
                dtype,
                s.shape,
                &s.data,
            );
        }
        let mut chosen = Vec::new();
        let mut row = all[0].data[all[0].data.len() - VOCAB..].to_vec();
        for _ in 0..4 {
            let next = onboard_parity::metrics::top1(&row) as u32;
            chosen.push(next);
            row.clone_from(
                &session
                    .step(
                        &[Chunk { slot, tokens: &[next], rows: OutputRows::Last }],
                        &mut engine::NoProbe,
                    )
                    .unwrap()[0]
                    .data,
            );
        }
        greedy.insert(dtype.to_string(), serde_json::json!({ "main": chosen }));

        let slot = session.open_slot();
        session
            .step(
                &[Chunk { slot, tokens: &tokens[..split], rows: OutputRows::Last }],
                &mut engine::NoProbe,
            )
            .unwrap();
        let mut taps = Keep::default();
        let mut rows = Vec::new();
        let first = session.states(slot).unwrap();
        let mut conv: Vec<f32> = first[0].data.clone();
        // Rows of keys and values outside a window are zeros.
        let mut kept: Vec<Vec<f32>> = first[1..]
            .iter()
            .map(|s| [vec![0.0; split * H - s.data.len()], s.data.clone()].concat())
            .collect();
        for token in &tokens[split..] {
            let step = session
                .step(&[Chunk { slot, tokens: &[*token], rows: OutputRows::Last }], &mut taps)
                .unwrap();
            rows.extend_from_slice(&step[0].data);
            let states = session.states(slot).unwrap();
            conv.extend_from_slice(&states[0].data);
            for (kept, state) in kept.iter_mut().zip(&states[1..]) {
                kept.extend_from_slice(&state.data[state.data.len() - H..]);
            }
        }
        let steps = tokens.len() - split;
        put(main_name(dtype, "decode", "logits"), dtype, vec![steps, VOCAB], &rows);
        for (tap, (width, data)) in &taps.0 {
            put(
                main_name(dtype, "decode", &format!("tap/{tap}")),
                dtype,
                vec![steps, *width],
                data,
            );
        }
        put(
            main_name(dtype, "decode", "state/0/conv"),
            dtype,
            vec![steps + 1, H, WIDTH - 1],
            &conv,
        );
        for (part, data) in ["k", "v"].iter().zip(&kept) {
            put(
                main_name(dtype, "decode", &format!("state/1/{part}")),
                dtype,
                vec![tokens.len(), HEADS, D],
                data,
            );
        }
    }
    tensors.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    write(&dir.join("reference.safetensors"), &tensors);

    let names = [
        "embed",
        "layers.0.norm",
        "layers.0.in_proj",
        "layers.0.out_proj",
        "layers.1.norm",
        "layers.1.k_proj",
        "layers.1.o_proj",
        "head",
    ];
    let weights: Vec<_> = names
        .iter()
        .map(|n| {
            let name = format!("{n}.weight");
            (TensorSpec { name, dtype: FileDtype::F32, shape: vec![1] }, vec![0; 4])
        })
        .collect();
    let mut weights = weights;
    weights.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    write(&dir.join("model.safetensors"), &weights);
    fs_err::write(dir.join("config.json"), "{}").unwrap();

    let taps: BTreeMap<String, serde_json::Value> = TAPS
        .iter()
        .map(|t| ((*t).to_owned(), serde_json::json!({ "phases": ["prefill", "decode"] })))
        .collect();
    let mut manifest = serde_json::json!({
        "format": "onboard-dump", "version": 2,
        "producer": {"name": "fake"},
        "model": {
            "architecture": "FakeForCausalLM", "model_type": "fake", "dtype": "bf16",
            "config_sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            "weights_sha256": checkpoints::Checkpoint::open(dir).unwrap().fingerprint().unwrap(),
        },
        "checkpoint": {
            "config": "{}",
            "tensors": checkpoints::Checkpoint::open(dir).unwrap().tensor_hashes().unwrap(),
        },
        "vocab": VOCAB,
        "logprobs": {"kind": "full"},
        "runs": ["f32", "bf16", "f16"],
        "prompts": [{"name": "main", "tokens": tokens, "split": split, "taps": ["prefill", "decode"]}],
        "taps": taps,
        "states": [
            {"layer": 0, "kind": "conv", "parts": ["conv"]},
            {"layer": 1, "kind": "attention", "parts": ["k", "v"]},
        ],
        "greedy": greedy,
        "patches": [{"name": "topk_first_of_equals", "version": 1}],
        "members": {
            "f32": {"ran": ["f64", "decode"], "failed": {}},
            "bf16": {"ran": ["own", "decode"], "failed": {}},
            "f16": {"ran": ["own", "decode"], "failed": {}},
        },
        "audit": {"truth": "decode", "notes": []},
    });
    edit(&mut manifest);
    fs_err::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
}

fn main_name(dtype: Dtype, phase: &str, leaf: &str) -> String {
    format!("{dtype}/main/{phase}/{leaf}")
}

fn rows_after_zeros(position: usize, data: &[f32]) -> Vec<[f32; H]> {
    let held = data.chunks(H).map(|row| row.try_into().unwrap());
    let before = position - data.len() / H;
    std::iter::repeat_n([0.0; H], before).chain(held).collect()
}

fn rows_of_chunks(chunks: &[Chunk<'_>], x: &[[f32; H]]) -> Vec<Vec<[f32; H]>> {
    let mut at = 0;
    chunks
        .iter()
        .map(|c| {
            at += c.tokens.len();
            x[at - c.tokens.len()..at].to_vec()
        })
        .collect()
}

fn state_value(
    state: usize,
    layer: usize,
    part: &str,
    shape: Vec<usize>,
    data: Vec<f32>,
) -> StateValue {
    StateValue { state: StateId(state), layer, part: part.into(), shape, data }
}

fn write(path: &Path, tensors: &[(TensorSpec, Vec<u8>)]) {
    let declared: Vec<TensorSpec> = tensors.iter().map(|(d, _)| d.clone()).collect();
    let mut writer = Writer::create(path, &BTreeMap::new(), &declared).unwrap();
    for (d, bytes) in tensors {
        writer.write(&d.name, bytes).unwrap();
    }
    writer.finish().unwrap();
}
