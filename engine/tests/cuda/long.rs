//! Sequences that are longer than the spans and tiles of attention, on the CPU and on the emulated device.

use std::sync::Arc;

use libtest_mimic::Trial;
use onboard_engine::{Chunk, NativeEngine, NoProbe, OutputRows, Session, SessionOptions};
use registry::dtype::Dtype;
use registry::model::Model;

use crate::quantized::{RandomWeights, changed_model};
use crate::{emulation, sessions, trials};

/// Families with settings that divide no tile: six heads share keys, and heads have odd sizes.
const MODELS: &[(&str, &[(&str, u64)])] = &[
    ("qwen3", &[("num_attention_heads", 6), ("num_key_value_heads", 1), ("head_dim", 70)]),
    ("gemma3_text", &[("num_attention_heads", 6), ("head_dim", 40), ("sliding_window", 1501)]),
    ("deepseek_v3", &[("qk_nope_head_dim", 37), ("v_head_dim", 41)]),
    ("deepseek_v32", &[("index_topk", 1301), ("v_head_dim", 33)]),
    (
        "minimax_m3_vl_text",
        &[
            ("num_attention_heads", 6),
            ("index_head_dim", 70),
            ("index_block_size", 7),
            ("index_topk_blocks", 160),
        ],
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let names = MODELS.iter().map(|(name, _)| (*name).to_owned());
    trials::each("long", names, long_sequences_have_the_bits_of_the_cpu)
}

/// The CPU reads a prompt, and both go on from its states.
fn long_sequences_have_the_bits_of_the_cpu(name: &str) {
    let (_, changes) = MODELS.iter().find(|(other, _)| *other == name).expect("a model");
    let mut model = changed_model(name, changes);
    model.context = None;
    let model = Arc::new(model);
    let tokens: Vec<u32> = (0..2710).map(|n| n * n % 41 % model.vocab as u32).collect();
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let mut host = open(&model, dtype, &NativeEngine::new());
        let slot = host.open_slot();
        let prompt = Chunk { slot, tokens: &tokens[..2700], rows: OutputRows::None };
        host.step(&[prompt], &mut NoProbe).unwrap();
        let saved = host.save(slot).unwrap();
        let mut device =
            open(&model, dtype, &NativeEngine::on(emulation::device(dtype == Dtype::F32)));
        assert_eq!(
            resumed_steps(&mut *host, &saved, &tokens),
            resumed_steps(&mut *device, &saved, &tokens),
            "{dtype}"
        );
    }
}

fn resumed_steps(session: &mut dyn Session, saved: &[u8], tokens: &[u32]) -> sessions::Record {
    let long = session.restore(saved).unwrap();
    let short = session.open_slot();
    let chunks =
        [sessions::all_rows(short, &tokens[..3]), sessions::all_rows(long, &tokens[2700..2704])];
    let mut record = sessions::Record::new();
    sessions::feed(&mut record, "both", session, &chunks);
    record
}

fn open(model: &Arc<Model>, dtype: Dtype, engine: &NativeEngine) -> Box<dyn Session> {
    let weights = Box::new(RandomWeights::new(model, None, None));
    let options = SessionOptions { dtype, finite: false, ..SessionOptions::default() };
    engine.open_with(Arc::clone(model), weights, &options).unwrap()
}
