//! Dumps of the tiny model, written by its correct engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::{Chunk, Engine, ModelSource, OutputRows, Probe, SessionOptions};
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

fn write(path: &Path, tensors: &[(TensorSpec, Vec<u8>)]) {
    let declared: Vec<TensorSpec> = tensors.iter().map(|(d, _)| d.clone()).collect();
    let mut writer = Writer::create(path, &BTreeMap::new(), &declared).unwrap();
    for (d, bytes) in tensors {
        writer.write(&d.name, bytes).unwrap();
    }
    writer.finish().unwrap();
}
