//! Sessions of every fixture on the CPU and on the emulated device.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use onboard_engine::{
    Chunk, ChunkMask, Engine, Error, ExtraInputs, InputObserver, ModelSource, NativeEngine,
    NoProbe, OutputRows, Probe, Session, SessionOptions, SlotId, StateValue,
};
use registry::config::Config;
use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{ScaleGranularity, StateId, StateKind, WeightId};
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::scalar::Scalar;

use crate::{emulation, trials};

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// Returns the fixtures that have a reference, and a graph.
fn models() -> Vec<(String, Model)> {
    let entries = fs_err::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = entries
        .filter(|path| path.join("reference/manifest.json").exists())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), model(&name))).collect()
}

pub(crate) fn model(name: &str) -> Model {
    let config = Config::read(&fixture(name).join("config.json")).unwrap();
    let library = Library::builtin();
    let spec = library.load(library.find(&config).first().expect("a spec"), &[]).unwrap();
    registry::resolve::resolve(&spec, &config, &OpSet::builtin()).unwrap().0
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut models = models();
    models.retain(|(_, model)| {
        model.graph.nodes.iter().all(|node| !WITHOUT_KERNEL.contains(&node.op.as_str()))
    });
    let exact = models.iter().filter(|(_, model)| !uses_erf(model)).count();
    let count = (models.len(), exact);
    let names: Vec<String> = models.into_iter().map(|(name, _)| name).collect();
    let mut trials = trials::each("sessions", names, a_device_gives_the_bits_of_the_cpu);
    trials.push(trials::one("sessions::eight_bits", caches_in_8_bits_have_the_bits_of_the_cpu));
    trials.push(trials::one("sessions::recurrences", recurrences_in_16_bits_with_bounds));
    trials.push(trials::one("sessions::heads", heads_have_the_bits_of_the_cpu));
    trials.push(trials::one("sessions::observers", observers_see_what_they_see_on_the_cpu));
    trials.push(trials::one("sessions::masks", masks_have_the_bits_of_the_cpu));
    trials.push(trials::one("sessions::missing", missing_kernels_are_refused_by_name));
    trials.push(trials::one("sessions::ops", devices_have_every_op));
    trials.push(trials::one("sessions::calls", a_step_of_many_slots_has_the_calls_of_one));
    trials.push(trials::one("sessions::memory", weights_that_do_not_fit_are_refused_first));
    trials.push(trials::one("sessions::count", move || assert!(count >= LEAST, "{count:?}")));
    trials
}

/// The least number of fixtures, and of those that are compared bit for bit: fewer means that some were lost.
const LEAST: (usize, usize) = (158, 147);

/// Ops that have no kernel on devices: those of encoders of images alone. Fixtures that need one are not compared.
const WITHOUT_KERNEL: &[&str] = &["grid_embed", "join_rows"];

/// Keeps every tap.
#[derive(Default)]
pub(crate) struct Taps(BTreeMap<String, Vec<u32>>);

impl Probe for Taps {
    fn wants(&self, _tap: &str) -> bool {
        true
    }

    fn tap(&mut self, tap: &str, _shape: &[usize], data: &mut [f32]) {
        self.0.insert(tap.to_owned(), bits(data));
    }
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// The name of a step, and the bits of something that it shows.
pub(crate) type Step = (String, Vec<u32>);

/// Everything that a session shows of some steps.
pub(crate) type Record = Vec<Step>;

fn keep_states(record: &mut Record, step: &str, states: &[StateValue]) {
    for state in states {
        let name = format!("{step}: state {} {} {:?}", state.layer, state.part, state.shape);
        record.push((name, bits(&state.data)));
    }
}

pub(crate) fn feed(
    record: &mut Record,
    step: &str,
    session: &mut dyn Session,
    chunks: &[Chunk<'_>],
) {
    let mut taps = Taps::default();
    let logits = session.step(chunks, &mut taps).unwrap();
    record.extend(taps.0.into_iter().map(|(tap, data)| (format!("{step}: {tap}"), data)));
    for (n, logits) in logits.into_iter().enumerate() {
        record.push((format!("{step}: logits {n}"), bits(&logits.data)));
    }
}

/// Runs prefill, decode and every operation of slots.
pub(crate) fn record(session: &mut dyn Session, vocab: usize) -> Record {
    let mut record = Record::new();
    let tokens: Vec<u32> = (0..40).map(|n| (n * 37 + 5) % vocab as u32).collect();
    let one = session.open_slot();
    feed(&mut record, "prefill", session, &[all_rows(one, &tokens[..21])]);
    keep_states(&mut record, "prefill", &session.states(one).unwrap());
    let two = session.open_slot();
    feed(
        &mut record,
        "two",
        session,
        &[last_row(one, &tokens[21..22]), all_rows(two, &tokens[..3])],
    );
    feed(
        &mut record,
        "decode",
        session,
        &[last_row(two, &tokens[3..4]), last_row(one, &tokens[22..23])],
    );
    keep_states(&mut record, "decode", &session.states(two).unwrap());
    let copy = session.fork(one).unwrap();
    feed(
        &mut record,
        "fork",
        session,
        &[last_row(copy, &tokens[23..26]), last_row(one, &tokens[30..31])],
    );
    session.truncate(copy, 24).unwrap();
    feed(&mut record, "truncate", session, &[last_row(copy, &tokens[31..32])]);
    keep_states(&mut record, "truncate", &session.states(copy).unwrap());
    let bytes = session.save(copy).unwrap();
    record.push(("save".to_owned(), bytes.iter().map(|b| u32::from(*b)).collect()));
    session.release(copy).unwrap();
    let restored = session.restore(&bytes).unwrap();
    feed(&mut record, "restore", session, &[last_row(restored, &tokens[32..34])]);
    let states = session.states(restored).unwrap();
    let seeded = session.seed(session.position(restored).unwrap(), &states).unwrap();
    feed(&mut record, "seed", session, &[last_row(seeded, &tokens[34..35])]);
    // No logits: states alone move on.
    session
        .step(
            &[Chunk { slot: two, tokens: &tokens[4..6], rows: OutputRows::None }],
            &mut Taps::default(),
        )
        .unwrap();
    keep_states(&mut record, "no logits", &session.states(two).unwrap());
    record
}

/// A chunk with the logits of all its tokens.
pub(crate) fn all_rows(slot: SlotId, tokens: &[u32]) -> Chunk<'_> {
    Chunk { slot, tokens, rows: OutputRows::All }
}

/// A chunk with the logits of its last token.
fn last_row(slot: SlotId, tokens: &[u32]) -> Chunk<'_> {
    Chunk { slot, tokens, rows: OutputRows::Last }
}

fn a_device_gives_the_bits_of_the_cpu(name: &str) {
    compare(name, model(name));
}

/// Caches in 8 bits: a scale for each head, for each part, and one that is known.
fn caches_in_8_bits_have_the_bits_of_the_cpu() {
    for (name, sharing, fixed) in [
        ("lfm2", ScaleGranularity::Head, None),
        ("lfm2", ScaleGranularity::Tensor, None),
        ("gemma3_text", ScaleGranularity::Head, None),
        ("lfm2", ScaleGranularity::Head, Some([0.05, 0.013])),
    ] {
        let mut model = model(name);
        let kind = StateKind::Attention;
        for state in model.graph.states.iter_mut().filter(|state| state.kind == kind) {
            (state.eight, state.fixed) = (Some(sharing), fixed);
        }
        compare(name, model);
    }
}

/// States of recurrences in 16 bits, and steps of time between bounds.
fn recurrences_in_16_bits_with_bounds() {
    let mut model = model("mamba2");
    for state in model.graph.states.iter_mut().filter(|s| s.kind == StateKind::Recurrent) {
        state.dtype = DtypeRule::Fixed(Dtype::Bf16);
    }
    for node in model.graph.nodes.iter_mut().filter(|node| node.op.as_str() == "ssd_scan") {
        for (bound, x) in [("dt_min", 0.65), ("dt_max", 0.75)] {
            node.attrs.insert(bound.to_owned(), Scalar::Float(x));
        }
    }
    compare("mamba2", model);
}

/// Heads that read rows besides tokens, two slots at once.
fn heads_have_the_bits_of_the_cpu() {
    let all: Vec<(String, Model)> = models()
        .into_iter()
        .filter(|(name, _): &(String, Model)| fixture(name).join("reference/nextn").is_dir())
        .collect();
    assert!(all.len() >= 2, "{}", all.len());
    for (name, model) in all {
        let head = &model.nextn.as_ref().unwrap().layers[0];
        let dir = fixture(&name);
        let source = ModelSource { model: Arc::clone(head), dir: &dir };
        let fed = head.graph.fed.unwrap();
        let width: usize = head.graph.values[fed.value.0].shape.iter().product();
        let hidden: Vec<f32> =
            (0..8 * width).map(|n| (n * 37 % 101) as f32 / 64.0 - 0.75).collect();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let options = SessionOptions { dtype, finite: false, ..SessionOptions::default() };
            let mut host = NativeEngine::new().open(&source, &options).unwrap();
            let engine = NativeEngine::on(emulation::device(true));
            let mut device = engine.open(&source, &options).unwrap();
            assert_eq!(
                head_steps(&mut *host, &hidden[..4 * width]),
                head_steps(&mut *device, &hidden[..4 * width]),
                "{name} {dtype}"
            );
        }
    }
}

fn head_steps(session: &mut dyn Session, hidden: &[f32]) -> Record {
    let mut record = Record::new();
    let one = session.open_slot();
    let two = session.open_slot();
    for tokens in [[3, 5, 7], [2, 4, 6]] {
        let chunks = [all_rows(one, &tokens), all_rows(two, &tokens[1..2])];
        let extra = ExtraInputs { hidden, ..ExtraInputs::default() };
        for logits in session.step_with(&chunks, extra, &mut Taps::default()).unwrap() {
            record.push(("logits".to_owned(), bits(&logits.data)));
        }
    }
    record
}

/// Rows that an observer saw, by weight and by state.
#[derive(Debug, Default)]
struct Seen(Mutex<BTreeMap<String, Vec<u32>>>);

impl InputObserver for Seen {
    fn product(&self, weight: WeightId, inputs: usize, rows: &[f32]) {
        let mut seen = self.0.lock().unwrap();
        seen.entry(format!("{weight:?} of {inputs}")).or_default().extend(bits(rows));
    }

    fn cached(&self, state: StateId, part: usize, rows: &[f32]) {
        let mut seen = self.0.lock().unwrap();
        seen.entry(format!("{state:?} {part}")).or_default().extend(bits(rows));
    }
}

/// Inputs of matrices, of experts too, and what caches keep.
fn observers_see_what_they_see_on_the_cpu() {
    for name in ["lfm2", "qwen3_moe", "gpt_oss", "deepseek_v3"] {
        let model = Arc::new(model(name));
        let dir = fixture(name);
        let source = ModelSource { model, dir: &dir };
        let host = seen_inputs(&NativeEngine::new(), &source, false);
        let device = seen_inputs(&NativeEngine::on(emulation::device(true)), &source, false);
        assert!(host.len() > 10, "{name}: {:?}", host.keys());
        assert_eq!(host.keys().collect::<Vec<_>>(), device.keys().collect::<Vec<_>>(), "{name}");
        for (key, rows) in host {
            assert!(rows == device[&key], "{name}: {key}");
        }
    }
}

fn seen_inputs(
    engine: &NativeEngine,
    source: &ModelSource<'_>,
    rewrites: bool,
) -> BTreeMap<String, Vec<u32>> {
    let seen = Arc::new(Seen::default());
    let observer = Some(Arc::clone(&seen) as Arc<dyn InputObserver>);
    let options = SessionOptions { rewrites, observer, ..SessionOptions::default() };
    record(&mut *engine.open(source, &options).unwrap(), source.model.vocab);
    std::mem::take(&mut *seen.0.lock().unwrap())
}

/// Compares sessions of a model in every dtype, with the weights of a fixture.
fn compare(name: &str, model: Model) {
    let model = Arc::new(model);
    let dir = fixture(name);
    let source = ModelSource { model: Arc::clone(&model), dir: &dir };
    for (dtype, reversed) in [(Dtype::F32, true), (Dtype::Bf16, false), (Dtype::F16, true)] {
        let options = SessionOptions {
            dtype,
            poison: true,
            finite: false,
            threads: Some(1),
            ..SessionOptions::default()
        };
        let mut host = match NativeEngine::new().open(&source, &options) {
            Ok(session) => session,
            Err(Error::Refused(_)) if dtype != Dtype::F32 => continue, // not in this dtype
            Err(error) => panic!("{error}"),
        };
        let engine = NativeEngine::on(emulation::device(reversed));
        let mut device = engine.open(&source, &options).unwrap();
        if uses_erf(&model) {
            let vocab = model.vocab;
            near_by_erf(&record(&mut *host, vocab), &record(&mut *device, vocab), dtype);
        } else {
            compare_opened(dtype.name(), &mut *host, &mut *device);
        }
    }
}

/// Compares two sessions of a model bit for bit.
pub(crate) fn compare_opened(name: &str, host: &mut dyn Session, device: &mut dyn Session) {
    let vocab = host.model().vocab;
    let want = record(host, vocab);
    let got = record(device, vocab);
    assert_eq!(want.len(), got.len());
    for ((step, want), (same, got)) in want.iter().zip(&got) {
        assert_eq!((step, want.len()), (same, got.len()), "{name}");
        let wrong = want.iter().zip(got).filter(|(a, b)| a != b).count();
        let at = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
        let pair = [want, got].map(|list| list.get(at).copied().map(f32::from_bits));
        assert_eq!(wrong, 0, "{name} {step}: of {} numbers, first {at}: {pair:?}", want.len());
    }
    assert_eq!(resumed(host, device), resumed(device, host), "{name}");
}

/// Saves a slot of a session, and goes on in another one.
fn resumed(from: &mut dyn Session, to: &mut dyn Session) -> Record {
    let tokens: Vec<u32> = (0..9).map(|n| (n * 41 + 2) % from.model().vocab as u32).collect();
    let slot = from.open_slot();
    from.step(&[last_row(slot, &tokens[..7])], &mut Taps::default()).unwrap();
    let slot = to.restore(&from.save(slot).unwrap()).unwrap();
    let mut record = Record::new();
    feed(&mut record, "resumed", to, &[last_row(slot, &tokens[7..])]);
    keep_states(&mut record, "resumed", &to.states(slot).unwrap());
    record
}

/// True if a model uses `erf`, which the system's library computes on devices, and libm on the CPU.
fn uses_erf(model: &Model) -> bool {
    model.graph.nodes.iter().any(|node| {
        let word = node.attrs.get("activation");
        node.op.as_str() == "gelu"
            || word.is_some_and(|word: &Scalar| matches!(word, Scalar::Str(word) if word == "gelu"))
    })
}

/// Compares numbers where the units of `erf` differ: rounding noise, which layers add up.
fn near_by_erf(want: &[Step], got: &[Step], dtype: Dtype) {
    let share = match dtype {
        Dtype::F32 => 2e-6,
        Dtype::F16 => 5e-3,
        Dtype::Bf16 => 4e-2,
    };
    near(want, got, share);
}

/// Compares numbers within a share of the largest one.
pub(crate) fn near(want: &[Step], got: &[Step], share: f32) {
    let (distance, step) = apart(want, got);
    assert!(distance <= share, "{step}: {distance}, expected at most {share}");
}

/// Returns the largest difference, as a share of the largest number of its step, and where it is.
pub(crate) fn apart(want: &[Step], got: &[Step]) -> (f32, String) {
    assert_eq!(want.len(), got.len());
    let mut all = (0.0, String::new());
    for ((step, want), (same, got)) in want.iter().zip(got) {
        assert_eq!((step, want.len()), (same, got.len()));
        if step == "save" {
            continue; // bytes of the states that are compared as numbers
        }
        let want = numbers(want);
        let got = numbers(got);
        let top = want.iter().fold(f32::MIN_POSITIVE, |top, x| top.max(x.abs()));
        let apart = want.iter().zip(&got).map(|(a, b)| (a - b).abs() / top);
        let largest = apart.map(|x| if x.is_nan() { f32::INFINITY } else { x }).fold(0.0, f32::max);
        if largest > all.0 {
            all = (largest, step.clone());
        }
    }
    all
}

fn numbers(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|b| f32::from_bits(*b)).collect()
}

/// Each op that a model needs, without its kernel.
fn missing_kernels_are_refused_by_name() {
    let name = "lfm2_moe";
    let dir = fixture("lfm2_moe");
    let source = ModelSource { model: Arc::new(model(name)), dir: &dir };
    let ops: BTreeSet<&str> =
        source.model.graph.nodes.iter().map(|node| node.op.as_str()).collect();
    assert!(ops.contains("experts") && ops.len() > 10, "{ops:?}");
    for op in ops {
        let mut engine = NativeEngine::on(emulation::device(false));
        engine.kernels.remove(op);
        let Err(Error::Refused(findings)) = engine.open(&source, &SessionOptions::default()) else {
            panic!("`{op}` has no kernel")
        };
        let message = &findings[0].message;
        assert!(findings.len() == 1 && message.contains(&format!("no op `{op}`")), "{message}");
    }
}

/// A prefix that sees itself, and packed documents, in one chunk and in several; windows count within a document.
fn masks_have_the_bits_of_the_cpu() {
    let prefix = ChunkMask { prefix: 5, ..ChunkMask::default() };
    let packed = ChunkMask { documents: &[2, 9], ..ChunkMask::default() };
    let mut compared = 0;
    for (name, mask) in [
        ("paligemma2", prefix),
        ("hrm_text_prefix", prefix),
        ("qwen3", packed),
        ("gemma3_text", packed),
        ("deepseek_v2", packed),
    ] {
        let model = Arc::new(model(name));
        let dir = fixture(name);
        let source = ModelSource { model: Arc::clone(&model), dir: &dir };
        let options = SessionOptions {
            prefix: mask.prefix > 0,
            documents: mask.prefix == 0,
            dtype: Dtype::Bf16,
            ..SessionOptions::default()
        };
        let tokens: Vec<u32> = (0..16).map(|n| (n * 29 + 3) % model.vocab as u32).collect();
        let mut host = NativeEngine::new().open(&source, &options).unwrap();
        let engine = NativeEngine::on(emulation::device(false));
        let mut device = engine.open(&source, &options).unwrap();
        let want = masked_steps(&mut *host, &tokens, mask);
        let got = masked_steps(&mut *device, &tokens, mask);
        for (want, got) in want.iter().zip(&got) {
            assert_eq!(want, got, "{name}");
        }
        assert_eq!(want.len(), got.len());
        compared += want.len();
    }
    assert!(compared > 100, "{compared}");
}

fn masked_steps(session: &mut dyn Session, tokens: &[u32], mask: ChunkMask<'_>) -> Record {
    let mut record = Record::new();
    let slot = session.open_slot();
    let first = Chunk { slot, tokens: &tokens[..12], rows: OutputRows::All };
    let masks = ExtraInputs { masks: &[mask], ..ExtraInputs::default() };
    let mut taps = Taps::default();
    let logits = session.step_with(&[first], masks, &mut taps).unwrap();
    record.extend(taps.0);
    record.push(("logits".to_owned(), bits(&logits[0].data)));
    let restored = session.restore(&session.save(slot).unwrap()).unwrap();
    feed(
        &mut record,
        "restored",
        session,
        &[slot, restored].map(|slot| all_rows(slot, &tokens[12..])),
    );
    record
}

fn devices_have_every_op() {
    let device = NativeEngine::on(emulation::device(false));
    let host = NativeEngine::new();
    let device = device.sheet().ops;
    let host = host.sheet().ops;
    let lacking: Vec<&str> = host.difference(&device).map(String::as_str).collect();
    assert_eq!(lacking, WITHOUT_KERNEL, "list what has no kernel");
    assert!(device.is_subset(&host));
}

/// A session with slots of different lengths.
struct FilledSlots {
    session: Box<dyn Session>,
    slots: Vec<SlotId>,
    calls: emulation::Calls,
}

impl FilledSlots {
    /// Opens a session whose caches have room for some more tokens.
    fn open(name: &str, model: &Arc<Model>, dtype: Dtype) -> Result<Self, Error> {
        let dir = fixture(name);
        let source = ModelSource { model: Arc::clone(model), dir: &dir };
        let (queue, calls) = emulation::counted(false);
        let options =
            SessionOptions { dtype, rollback: 0, finite: false, ..SessionOptions::default() };
        let mut session = NativeEngine::on(queue).open(&source, &options)?;
        let slots: Vec<SlotId> = (0..5).map(|_| session.open_slot()).collect();
        let tokens: Vec<u32> = (0..16).map(|n| (n * 37 + 5) % model.vocab as u32).collect();
        for (n, slot) in slots.iter().enumerate() {
            let prompt =
                Chunk { slot: *slot, tokens: &tokens[..12 + n % 3], rows: OutputRows::Last };
            session.step(&[prompt], &mut Taps::default())?;
        }
        let mut filled = Self { session, slots, calls };
        // Caches grow in the first step, and blocks of recurrences are used again after it.
        filled.decode(5);
        filled.decode(5);
        Ok(filled)
    }

    /// Decodes one token in some slots, and returns the calls of the device.
    fn decode(&mut self, slots: usize) -> BTreeMap<String, usize> {
        self.calls.take();
        let chunks: Vec<Chunk<'_>> = self.slots[..slots]
            .iter()
            .map(|slot| Chunk { slot: *slot, tokens: &[3], rows: OutputRows::Last })
            .collect();
        self.session.step(&chunks, &mut NoProbe).unwrap();
        self.calls.take()
    }
}

/// Launches, copies and allocations of a step do not depend on the number of its slots.
fn a_step_of_many_slots_has_the_calls_of_one() {
    let mut models = models();
    let mut narrow = model("mamba2");
    for state in narrow.graph.states.iter_mut().filter(|s| s.kind == StateKind::Recurrent) {
        state.dtype = DtypeRule::Fixed(Dtype::Bf16);
    }
    models.push(model_in_8_bits("lfm2", None));
    models.push(model_in_8_bits("gemma3_text", Some([0.05, 0.013])));
    models.push(("mamba2".to_owned(), narrow));
    let mut seen = BTreeSet::new();
    for (name, model) in models {
        let mut filled = FilledSlots::open(&name, &Arc::new(model), Dtype::F32).unwrap();
        let one = filled.decode(1);
        let five = filled.decode(5);
        assert_eq!(one, five, "{name}: calls of one slot and of five");
        seen.extend(one.into_keys());
    }
    for kernel in ["attend_values", "latent_values", "picked_keys", "index_select", "causal_conv"] {
        assert!(seen.contains(kernel), "no fixture runs `{kernel}`");
    }
    for kernel in ["ssd_scan", "ssm1_scan", "delta_rule", "rg_lru", "lightning", "key_salience"] {
        assert!(seen.contains(kernel), "no fixture runs `{kernel}`");
    }
    for kernel in ["keep_rows", "keep_groups", "keep_fixed", "round_numbers"] {
        assert!(seen.contains(kernel), "no fixture runs `{kernel}`");
    }
}

fn model_in_8_bits(name: &str, fixed: Option<[f32; 2]>) -> (String, Model) {
    let mut model = model(name);
    for state in model.graph.states.iter_mut().filter(|s| s.kind == StateKind::Attention) {
        (state.eight, state.fixed) = (Some(ScaleGranularity::Head), fixed);
    }
    (name.to_owned(), model)
}

fn weights_that_do_not_fit_are_refused_first() {
    let name = "lfm2";
    let dir = fixture("lfm2");
    let source = ModelSource { model: Arc::new(model(name)), dir: &dir };
    let engine = NativeEngine::on(emulation::with_memory(false, 100_000));
    let Err(why) = engine.open(&source, &SessionOptions::default()) else {
        panic!("100 kB hold the weights")
    };
    let why = why.to_string();
    assert!(why.contains("MiB free") && why.contains("emulated device"), "{why}");
}
