//! Products by the library of the device: within the noise of another order of additions.

use std::sync::Arc;

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use libtest_mimic::Trial;
use onboard_engine::device::{DeviceQueue, blocks};
use onboard_engine::{
    Engine, ModelSource, NativeEngine, ProductArithmetic, Session, SessionOptions,
};
use registry::dtype::Dtype;

use crate::quantized::{RandomWeights, block_type, wide_model};
use crate::sessions::{self, Record, all_rows, apart, feed, near};
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
    let types = blocks::decoded().map(|ty| ty.name().to_owned());
    trials.extend(trials::each("library::blocks", types, decoded_weights_agree));
    trials.push(trials::one("library::inputs", rounded_inputs_agree));
    trials.push(trials::one("library::refused", it_is_no_library_of_the_cpu));
    trials
}

const LIBRARY: ProductArithmetic = ProductArithmetic::Library;

/// Long chunks of two slots, one of them continued, and a step of single rows.
fn record(session: &mut dyn Session) -> Record {
    let vocab = session.model().vocab as u32;
    let tokens: Vec<u32> = (0..150).map(|n| (n * 37 + 5) % vocab).collect();
    let mut record = Record::new();
    let one = session.open_slot();
    let two = session.open_slot();
    feed(&mut record, "first", session, &[all_rows(one, &tokens[..60])]);
    feed(
        &mut record,
        "both",
        session,
        &[all_rows(two, &tokens[60..100]), all_rows(one, &tokens[60..110])],
    );
    feed(
        &mut record,
        "single",
        session,
        &[all_rows(one, &tokens[110..111]), all_rows(two, &tokens[9..10])],
    );
    record
}

type Open<'a> = dyn Fn(NativeEngine, &SessionOptions) -> Box<dyn Session> + 'a;

/// Records a session on the CPU.
pub(crate) fn of_cpu(options: &SessionOptions, open: &Open<'_>) -> Record {
    record(&mut *open(NativeEngine::new(), options))
}

/// Records a session on a device with the library.
pub(crate) fn of_library(options: &SessionOptions, open: &Open<'_>, queue: DeviceQueue) -> Record {
    let options = SessionOptions { arithmetic: LIBRARY, ..options.clone() };
    record(&mut *open(NativeEngine::on(queue), &options))
}

/// Compares the library of the emulated device with the CPU. They may be three times as far apart as two orders of
/// additions of the library are.
fn compare(options: &SessionOptions, least: usize, open: &Open<'_>) {
    let [(one, calls), (other, _)] = [true, false].map(emulation::counted);
    let [one, other] = [one, other].map(|queue| of_library(options, open, queue));
    let products = calls.take().get("multiply").copied().unwrap_or(0);
    assert!(products >= least, "{products} products, expected {least}");
    let (noise, _) = apart(&one, &other);
    assert!((1e-8..0.1).contains(&noise), "two orders are {noise} apart");
    // In 16 bits few numbers fall to the other side, so the noise may be less than a unit by chance.
    let unit = match options.dtype {
        Dtype::F32 => 0.0,
        Dtype::F16 => 2.0_f32.powi(-11),
        Dtype::Bf16 => 2.0_f32.powi(-8),
    };
    near(&of_cpu(options, open), &one, 3.0 * noise.max(unit));
}

/// Options of sessions in a dtype.
pub(crate) fn plain(dtype: Dtype) -> SessionOptions {
    SessionOptions { dtype, finite: false, threads: Some(1), ..SessionOptions::default() }
}

fn long_chunks_agree(name: &str) {
    let model = Arc::new(sessions::model(name));
    let dir = sessions::fixture(name);
    let least = model.graph.nodes.len() / 8;
    let source = ModelSource { model, dir: &dir };
    for dtype in Dtype::ALL {
        if name == "qwen3_next" && dtype != Dtype::F32 {
            continue; // in 16 bits noise decides between two of its experts
        }
        compare(&plain(dtype), least, &|engine: NativeEngine, options: &SessionOptions| {
            engine.open(&source, options).unwrap()
        });
    }
}

/// Experts in f32, where choices are the same. In bf16 decoded weights are rounded.
fn decoded_weights_agree(name: &str) {
    let ty = block_type(name);
    for (name, dtype) in [("lfm2_moe", Dtype::F32), ("lfm2", Dtype::Bf16)] {
        let model = Arc::new(wide_model(name));
        compare(&plain(dtype), 20, &|engine: NativeEngine, options: &SessionOptions| {
            let weights = Box::new(RandomWeights::new(&model, Some(ty), None));
            engine.open_with(Arc::clone(&model), weights, options).unwrap()
        });
    }
}

fn rounded_inputs_agree() {
    let model = Arc::new(sessions::model("qwen3"));
    let codes = CodeType::Integer { bits: 8, symmetric: true };
    let rounding = Some(Rounding { codes, shared: ScaleSharing::Row });
    let rounds = onboard_engine::InputRounding::All;
    let options = SessionOptions { rounds, ..plain(Dtype::F32) };
    compare(&options, 10, &|engine: NativeEngine, options: &SessionOptions| {
        let weights = Box::new(RandomWeights::new(&model, None, rounding));
        engine.open_with(Arc::clone(&model), weights, options).unwrap()
    });
}

fn it_is_no_library_of_the_cpu() {
    let dir = sessions::fixture("lfm2");
    let source = ModelSource { model: Arc::new(sessions::model("lfm2")), dir: &dir };
    let options = SessionOptions { arithmetic: LIBRARY, ..SessionOptions::default() };
    let Err(why) = NativeEngine::new().open(&source, &options) else { panic!("the CPU has one") };
    assert!(why.to_string().contains("run on a GPU"), "{why}");
}
