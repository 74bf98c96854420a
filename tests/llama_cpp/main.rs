//! Tests of llama.cpp as an engine: the services of a session, and the requests it rejects.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod coded;
mod families;
mod tiny;
#[expect(dead_code, reason = "shared with the other tests")]
#[path = "../support/tool.rs"]
mod tool;
#[expect(dead_code, reason = "other targets run nothing else")]
#[path = "../support/trials.rs"]
mod trials;

use std::path::Path;
use std::sync::Arc;

use engine::llama_cpp::LlamaCpp;
use engine::{Chunk, Engine, Error, ModelSource, NoProbe, OutputRows, Session, SessionOptions};
use libtest_mimic::Arguments;
use parity::{CheckOptions, Verdict, check_schedules};
use registry::dtype::Dtype;

use tiny::{CONTEXT, VOCAB, write};
use tool::{Ran, fixture, parity, run};

fn main() {
    let arguments = Arguments::from_args();
    let mut all = families::trials();
    all.extend(coded::trials());
    all.extend([
        trials::one("engine::schedules", every_schedule_gives_what_one_prefill_gives),
        trials::one("engine::rows", a_step_gives_the_rows_that_were_asked_for),
        trials::one("engine::refusals", what_cannot_be_done_is_refused_and_changes_nothing),
        trials::one("engine::files", files_that_it_does_not_run_are_refused_with_a_reason),
        trials::one("engine::command", the_command_says_what_is_missing),
    ]);
    let conclusion = libtest_mimic::run(&arguments, all);
    if !arguments.list && conclusion.num_filtered_out == 0 && !conclusion.has_failed() {
        families::enough();
    }
    conclusion.exit()
}

/// Returns options with one thread: several wait for each other in busy loops, which is slow on a loaded
/// machine.
fn options() -> SessionOptions {
    SessionOptions { threads: Some(1), ..SessionOptions::default() }
}

fn open(engine: LlamaCpp, path: &Path) -> Box<dyn Session> {
    let model = Arc::new(engine.describe(path).unwrap().model);
    engine.open(&ModelSource { model, dir: path }, &options()).unwrap()
}

fn tokens(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).map(|n| n * 7 % VOCAB as u32).collect()
}

fn every_schedule_gives_what_one_prefill_gives() {
    let file = write(|_, _| {});
    let engine = LlamaCpp::default();
    let described = engine.describe(file.path()).unwrap();
    assert!(described.f32_weights);
    assert_eq!((described.model.vocab, described.model.context), (VOCAB, Some(CONTEXT)));
    let source = ModelSource { model: Arc::new(described.model), dir: file.path() };
    let options = CheckOptions { threads: Some(1), ..CheckOptions::default() };
    let rows = check_schedules(&engine, &source, &[], &options).unwrap();
    assert!(rows.len() >= 6);
    for row in rows {
        let want = if row.name == "save and restore" { Verdict::Skip } else { Verdict::Pass };
        assert_eq!(row.verdict, want, "{row:?}");
    }
}

fn is_near(x: &[f32], y: &[f32]) -> bool {
    x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-4)
}

fn a_step_gives_the_rows_that_were_asked_for() {
    let file = write(|_, _| {});
    let mut session = open(LlamaCpp::default(), file.path());
    let a = session.open_slot();
    let b = session.open_slot();
    let c = session.open_slot();
    let prompt = tokens(1, 9);
    let chunks = [(a, OutputRows::All), (b, OutputRows::None), (c, OutputRows::Last)];
    let chunks = chunks.map(|(slot, rows)| Chunk { slot, tokens: &prompt, rows });
    let logits = session.step(&chunks, &mut NoProbe).unwrap();
    assert_eq!(logits.iter().map(|l| l.rows).collect::<Vec<_>>(), [9, 0, 1]);
    assert!(is_near(logits[0].row(8), logits[2].row(0)));
    assert!(!is_near(logits[0].row(7), logits[2].row(0)));
    assert_eq!(session.position(b).unwrap(), 9);
}

fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let file = write(|_, _| {});
    let engine = LlamaCpp { context: 1, slots: 2 };
    let mut session = open(engine, file.path());
    let a = session.open_slot();
    let b = session.open_slot();
    let c = session.open_slot();
    let mut step = |slot, tokens: &[u32]| {
        session.step(&[Chunk { slot, tokens, rows: OutputRows::Last }], &mut NoProbe)
    };
    let before = step(a, &tokens(0, 5)).unwrap();
    assert!(matches!(step(a, &[]), Err(Error::EmptyChunk(0))));
    assert!(matches!(step(a, &[VOCAB as u32]), Err(Error::Token { position: 5, .. })));
    // Room is allocated in blocks of 256.
    let error = step(a, &tokens(0, 252)).unwrap_err();
    assert!(matches!(error, Error::Context { wanted: 257, context: 256, .. }), "{error}");
    step(b, &[1]).unwrap();
    let error = step(c, &[1]).unwrap_err().to_string();
    assert_eq!(error, "llama.cpp was opened for 2 slots and all have tokens; release one first");
    let error = session.fork(a).unwrap_err().to_string();
    assert!(error.contains("release one first"), "{error}");
    assert!(session.truncate(a, 6).unwrap_err().to_string().contains("shorter than that already"));
    assert!(session.save(a).unwrap_err().to_string().contains("as bytes"));
    assert!(matches!(session.restore(&[]), Err(Error::Restore(_))));
    assert!(!session.features().taps && !session.features().states && session.states(a).is_err());

    // None of these calls has changed the slot.
    assert_eq!(session.position(a).unwrap(), 5);
    session.truncate(a, 4).unwrap();
    let chunk = Chunk { slot: a, tokens: &tokens(4, 1), rows: OutputRows::Last };
    let after = session.step(&[chunk], &mut NoProbe).unwrap();
    let furthest = before[0].data.iter().zip(&after[0].data).map(|(x, y)| (x - y).abs());
    assert!(furthest.fold(0.0, f32::max) < 1e-4);
    session.release(b).unwrap();
    session.step(&[Chunk { slot: c, ..chunk }], &mut NoProbe).unwrap();
    assert!(matches!(session.position(b), Err(Error::UnknownSlot(1))));
}

fn refusal(engine: &LlamaCpp, path: &Path) -> String {
    engine.describe(path).unwrap_err().to_string()
}

fn files_that_it_does_not_run_are_refused_with_a_reason() {
    let engine = LlamaCpp::default();
    let file = write(|keys, _| keys.set("general.architecture", "bert"));
    let error = refusal(&engine, file.path());
    assert!(error.contains("no log-probabilities for the architecture `bert`"));
    let file = write(|keys, _| drop(keys.remove("general.architecture")));
    assert!(refusal(&engine, file.path()).contains("has no key `general.architecture`"));
    // llama.cpp's own message is passed on.
    let file = write(|_, tensors| tensors.retain(|t| t.name != "blk.1.ffn_up.weight"));
    assert!(refusal(&engine, file.path()).contains("'blk.1.ffn_up.weight'"));
    let file = write(|keys, _| keys.set("llama.block_count", 600_u32));
    assert!(refusal(&engine, file.path()).contains("runs 1 to 512 layers"));
    fs_err::write(file.path(), "no model").unwrap();
    assert!(refusal(&engine, file.path()).contains("begins with"));
    assert!(refusal(&engine, Path::new("/nowhere.gguf")).contains("/nowhere.gguf"));

    let file = write(|_, _| {});
    let model = Arc::new(engine.describe(file.path()).unwrap().model);
    let source = ModelSource { model, dir: file.path() };
    let options = SessionOptions { dtype: Dtype::Bf16, ..options() };
    let error = engine.open(&source, &options).err().unwrap().to_string();
    assert!(error.contains("engine `llama.cpp` does not run in bf16"), "{error}");
}

/// Runs a check that cannot judge.
fn refused_check(path: &Path, more: &[&str]) -> Ran {
    let mut command = parity();
    command.arg("check").arg(path).args(["--engine", "llama.cpp"]).args(more);
    run(&mut command).code(2)
}

fn the_command_says_what_is_missing() {
    let file = write(|_, _| {});
    let dump = fixture("llama").join("reference");
    let dump = ["--reference", dump.to_str().unwrap()];
    refused_check(file.path(), &[]).says("say what to compare");
    refused_check(file.path(), &dump).says("the model gives 50");
    let flags = [&dump[..], &["--set", "dims.eps=1"]].concat();
    refused_check(file.path(), &flags).says("--set has no effect on it");
    refused_check(&fixture("llama"), &dump).says("--to gguf:f32 -o FILE");
    let narrow = write(|_, tensors| tensors[1].ty = formats::codec::BlockType::F16);
    refused_check(narrow.path(), &dump).says("give --bound NATS");
    for (bound, words) in [("0.1", "the model gives 50"), ("0", "`0` is no bound")] {
        refused_check(narrow.path(), &[&dump[..], &["--bound", bound]].concat()).says(words);
    }
}
