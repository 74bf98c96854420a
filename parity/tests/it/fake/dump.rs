//! Dumps of the tiny model, written by its correct engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::{Chunk, Engine, ModelSource, OutputRows, Probe, Session, SessionOptions, SlotId};
use formats::safetensors::{FileDtype, TensorSpec, Writer};
use registry::dtype::Dtype;

use super::{D, Fake, Fault, H, HEADS, VOCAB, WIDTH, model};

const TAPS: [&str; 10] = [
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

/// Number of tokens before those that are decoded one by one.
const SPLIT: usize = 5;

/// Tensors of a dump, with their bytes.
#[derive(Default)]
struct DumpTensors(Vec<(TensorSpec, Vec<u8>)>);

impl DumpTensors {
    /// Adds a tensor, rounded to a dtype.
    fn put(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, data: &[f32]) {
        let format = FileDtype::from(dtype);
        let mut bytes = vec![0; data.len() * format.size()];
        formats::numbers::from_f32(format, data, &mut bytes).unwrap();
        self.0.push((TensorSpec { name, dtype: format, shape }, bytes));
    }

    /// Adds the distances that runs in a dtype have from one in f32.
    fn put_spreads(&mut self, source: &ModelSource<'_>, dtype: Dtype, tokens: &[u32]) {
        let (_, rounded) = whole(source, dtype, true, tokens);
        let (_, wide) = whole(source, Dtype::F32, true, tokens);
        let (_, other) = whole(source, dtype, false, tokens);
        let runs = [&rounded, &other];
        let rows = tokens.len();
        let mut names = TAPS;
        names.sort_unstable(); // as in the manifest
        let taps: Vec<f32> = names.iter().flat_map(|tap| spread(runs, &wide, tap, rows)).collect();
        self.put(format!("{dtype}/main/spread/taps"), Dtype::F32, vec![TAPS.len(), rows], &taps);
        // With logits about 1, log-probabilities change as they do.
        let kl = vec![0.0; rows];
        self.put(
            format!("{dtype}/main/spread/logits"),
            Dtype::F32,
            vec![2, rows],
            &[spread(runs, &wide, "head", rows), kl].concat(),
        );
        let largest = taps.iter().copied().fold(0.0, f32::max);
        self.put(format!("{dtype}/main/spread/states"), Dtype::F32, vec![3], &[largest; 3]);
    }

    /// Adds a prefill, and returns the tokens that the model then generates.
    fn put_prefill(&mut self, session: &mut dyn Session, dtype: Dtype, tokens: &[u32]) -> Vec<u32> {
        let mut taps = Keep::default();
        let slot = session.open_slot();
        let all =
            session.step(&[Chunk { slot, tokens, rows: OutputRows::All }], &mut taps).unwrap();
        self.put(
            main_name(dtype, "prefill", "logits"),
            dtype,
            vec![tokens.len(), VOCAB],
            &all[0].data,
        );
        for (tap, (width, data)) in &taps.0 {
            self.put(
                main_name(dtype, "prefill", &format!("tap/{tap}")),
                dtype,
                vec![data.len() / width, *width],
                data,
            );
        }
        for s in session.states(slot).unwrap() {
            self.put(
                main_name(dtype, "prefill", &format!("state/{}/{}", s.layer, s.part)),
                dtype,
                s.shape,
                &s.data,
            );
        }
        let row = all[0].data[all[0].data.len() - VOCAB..].to_vec();
        generate(session, slot, row)
    }

    /// Adds the steps of a decode, and the states before and behind them.
    fn put_decode(&mut self, session: &mut dyn Session, dtype: Dtype, tokens: &[u32]) {
        let slot = session.open_slot();
        session
            .step(
                &[Chunk { slot, tokens: &tokens[..SPLIT], rows: OutputRows::Last }],
                &mut engine::NoProbe,
            )
            .unwrap();
        let mut taps = Keep::default();
        let mut rows = Vec::new();
        let first = session.states(slot).unwrap();
        let mut conv: Vec<f32> = first[0].data.clone();
        // Rows of keys and values outside a window are zeros.
        let mut caches: Vec<Vec<f32>> = first[1..]
            .iter()
            .map(|s| [vec![0.0; SPLIT * H - s.data.len()], s.data.clone()].concat())
            .collect();
        for token in &tokens[SPLIT..] {
            let step = session
                .step(&[Chunk { slot, tokens: &[*token], rows: OutputRows::Last }], &mut taps)
                .unwrap();
            rows.extend_from_slice(&step[0].data);
            let states = session.states(slot).unwrap();
            conv.extend_from_slice(&states[0].data);
            for (cache, state) in caches.iter_mut().zip(&states[1..]) {
                cache.extend_from_slice(&state.data[state.data.len() - H..]);
            }
        }
        let steps = tokens.len() - SPLIT;
        self.put(main_name(dtype, "decode", "logits"), dtype, vec![steps, VOCAB], &rows);
        for (tap, (width, data)) in &taps.0 {
            let name = main_name(dtype, "decode", &format!("tap/{tap}"));
            self.put(name, dtype, vec![steps, *width], data);
        }
        let name = main_name(dtype, "decode", "state/0/conv");
        self.put(name, dtype, vec![steps + 1, H, WIDTH - 1], &conv);
        for (part, data) in ["k", "v"].iter().zip(&caches) {
            let name = main_name(dtype, "decode", &format!("state/1/{part}"));
            self.put(name, dtype, vec![tokens.len(), HEADS, D], data);
        }
    }
}

/// Returns the larger distance of two runs from one in f32, at each row of a tap.
fn spread(runs: [&Keep; 2], wide: &Keep, tap: &str, rows: usize) -> Vec<f32> {
    let [a, b] =
        runs.map(|run| onboard_parity::measure::distances(&run.0[tap].1, &wide.0[tap].1, rows));
    a.into_iter().zip(b).map(|(a, b)| a.max(b) as f32).collect()
}

/// Returns the likeliest tokens behind a row of logits.
fn generate(session: &mut dyn Session, slot: SlotId, mut row: Vec<f32>) -> Vec<u32> {
    let mut chosen = Vec::new();
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
    chosen
}

/// Writes a dump (and its checkpoint files) with the correct engine as the reference.
pub fn write_dump(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let tokens: Vec<u32> = (0..12).map(|n| (n * 5 + 2) % VOCAB as u32).collect();
    let mut tensors = DumpTensors::default();
    let mut greedy = serde_json::Map::new();
    for dtype in Dtype::ALL {
        let fake = Fake { fault: Fault::None, reversed: true, blind: false };
        let model = Arc::new(model());
        let source = ModelSource { model, dir };
        let mut session =
            fake.open(&source, &SessionOptions { dtype, ..SessionOptions::default() }).unwrap();
        tensors.put_spreads(&source, dtype, &tokens);
        let chosen = tensors.put_prefill(session.as_mut(), dtype, &tokens);
        greedy.insert(dtype.to_string(), serde_json::json!({ "main": chosen }));
        tensors.put_decode(session.as_mut(), dtype, &tokens);
    }
    tensors.0.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    write(&dir.join("reference.safetensors"), &tensors.0);
    write_checkpoint(dir);
    let mut manifest = manifest(dir, &tokens, &greedy);
    edit(&mut manifest);
    fs_err::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
}

/// Writes a checkpoint with a weight of each name of the model.
fn write_checkpoint(dir: &Path) {
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
}

/// Returns the manifest of a dump of these tokens, and of those that were generated behind them.
fn manifest(
    dir: &Path,
    tokens: &[u32],
    greedy: &serde_json::Map<String, serde_json::Value>,
) -> serde_json::Value {
    let taps: BTreeMap<String, serde_json::Value> = TAPS
        .iter()
        .map(|t| ((*t).to_owned(), serde_json::json!({ "phases": ["prefill", "decode"] })))
        .collect();
    serde_json::json!({
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
        "prompts": [{"name": "main", "tokens": tokens, "split": SPLIT, "taps": ["prefill", "decode"]}],
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
    })
}

fn main_name(dtype: Dtype, phase: &str, leaf: &str) -> String {
    format!("{dtype}/main/{phase}/{leaf}")
}

fn write(path: &Path, tensors: &[(TensorSpec, Vec<u8>)]) {
    let declared: Vec<TensorSpec> = tensors.iter().map(|(d, _)| d.clone()).collect();
    let mut writer = Writer::create(path, &BTreeMap::new(), &declared).unwrap();
    for (d, bytes) in tensors {
        writer.write(&d.name, bytes).unwrap();
    }
    writer.finish().unwrap();
}
