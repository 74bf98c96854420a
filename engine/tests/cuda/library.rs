//! Products by the library of the device: within the noise of another order of additions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use libtest_mimic::Trial;
use onboard_engine::device::DeviceQueue;
use onboard_engine::{
    Chunk, Engine, ModelSource, NativeEngine, OutputRows, ProductArithmetic, Session,
    SessionOptions,
};
use registry::dtype::Dtype;

use crate::quantized::{RandomWeights, block_type, wide_model};
use crate::sessions::{self, Record, feed, near};
use crate::{emulation, trials};

pub(crate) fn trials() -> Vec<Trial> {
    let names = [
        "lfm2",
        "qwen2",
        "gemma2",
        "gemma3_text",
        "qwen3_moe",
        "gpt_oss",
        "deepseek_v3",
        "falcon_h1",
        "longcat_flash",
        "qwen3_next",
    ];
    let mut trials = trials::each("library::sessions", names.map(str::to_owned), long_chunks_agree);
    let types = ["Q8_0", "Q4_K", "MXFP4"].map(str::to_owned);
    trials.extend(trials::each("library::blocks", types, decoded_weights_agree));
    trials.push(trials::one("library::inputs", rounded_inputs_agree));
    trials.push(trials::one("library::refused", it_is_no_library_of_the_cpu));
    trials
}

const LIBRARY: ProductArithmetic = ProductArithmetic::Library;

/// Noise of another order of additions, as a share of the largest number: three times the largest that was measured.
pub(crate) fn share(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => 1e-5,
        Dtype::F16 => 5e-3,
        Dtype::Bf16 => 4e-2,
    }
}

/// Long chunks of two slots, one of them continued, and a step of single rows.
fn record(session: &mut dyn Session) -> Record {
    let vocab = session.model().vocab as u32;
    let tokens: Vec<u32> = (0..150).map(|n| (n * 37 + 5) % vocab).collect();
    let all = |slot, tokens| Chunk { slot, tokens, rows: OutputRows::All };
    let mut record = Record::new();
    let (one, two) = (session.open_slot(), session.open_slot());
    feed(&mut record, "first", session, &[all(one, &tokens[..60])]);
    feed(&mut record, "both", session, &[all(two, &tokens[60..100]), all(one, &tokens[60..110])]);
    feed(&mut record, "single", session, &[all(one, &tokens[110..111]), all(two, &tokens[9..10])]);
    record
}

/// Compares a session on the CPU with one on a device with the library.
pub(crate) fn compare(
    options: &SessionOptions,
    share: f32,
    open: impl Fn(NativeEngine, &SessionOptions) -> Box<dyn Session>,
    queue: DeviceQueue,
) {
    let host = record(&mut *open(NativeEngine::new(), options));
    let options = SessionOptions { arithmetic: LIBRARY, ..options.clone() };
    near(&host, &record(&mut *open(NativeEngine::on(queue), &options)), share);
}

/// Compares sessions on the emulated device, whose library must make so many products.
fn compare_emulated(
    options: &SessionOptions,
    share: f32,
    open: impl Fn(NativeEngine, &SessionOptions) -> Box<dyn Session>,
    least: usize,
) {
    let (queue, products) = emulation::counting(options.dtype == Dtype::F32);
    compare(options, share, open, queue);
    let made = products.load(Ordering::Relaxed);
    assert!(made >= least, "{made} products, expected {least}");
}

/// Options of sessions in a dtype.
pub(crate) fn plain(dtype: Dtype) -> SessionOptions {
    SessionOptions { dtype, finite: false, threads: Some(1), ..SessionOptions::default() }
}

fn long_chunks_agree(name: &str) {
    let (model, dir) = (Arc::new(sessions::model(name)), sessions::fixture(name));
    let least = model.graph.nodes.len() / 8;
    let source = ModelSource { model, dir: &dir };
    for dtype in Dtype::ALL {
        if name == "qwen3_next" && dtype != Dtype::F32 {
            continue; // in 16 bits noise decides between two of its experts
        }
        let open =
            |engine: NativeEngine, options: &SessionOptions| engine.open(&source, options).unwrap();
        compare_emulated(&plain(dtype), share(dtype), open, least);
    }
}

/// Experts in f32, where choices are the same. In bf16 decoded weights are rounded.
fn decoded_weights_agree(name: &str) {
    let ty = block_type(name);
    for (name, dtype) in [("lfm2_moe", Dtype::F32), ("lfm2", Dtype::Bf16)] {
        let model = Arc::new(wide_model(name));
        let open = |engine: NativeEngine, options: &SessionOptions| {
            let weights = Box::new(RandomWeights::new(&model, Some(ty), None));
            engine.open_with(Arc::clone(&model), weights, options).unwrap()
        };
        compare_emulated(&plain(dtype), share(dtype), open, 20);
    }
}

/// A number of 8 bits that falls to the other side is a hundredth of the largest.
fn rounded_inputs_agree() {
    let model = Arc::new(sessions::model("qwen3"));
    let codes = CodeType::Integer { bits: 8, symmetric: true };
    let rounding = Some(Rounding { codes, shared: ScaleSharing::Row });
    let rounds = onboard_engine::InputRounding::All;
    let open = |engine: NativeEngine, options: &SessionOptions| {
        let weights = Box::new(RandomWeights::new(&model, None, rounding));
        engine.open_with(Arc::clone(&model), weights, options).unwrap()
    };
    let options = SessionOptions { rounds, ..plain(Dtype::F32) };
    compare_emulated(&options, 2e-2, open, 10);
}

fn it_is_no_library_of_the_cpu() {
    let dir = sessions::fixture("lfm2");
    let source = ModelSource { model: Arc::new(sessions::model("lfm2")), dir: &dir };
    let options = SessionOptions { arithmetic: LIBRARY, ..SessionOptions::default() };
    let Err(why) = NativeEngine::new().open(&source, &options) else { panic!("the CPU has one") };
    assert!(why.to_string().contains("run on a GPU"), "{why}");
}
