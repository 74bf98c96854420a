//! Drafts: a head's tokens change nothing, and what a model does not confirm leaves no trace in
//! any state of any fixture.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onboard_engine::draft::{DraftCounts, generate, plain};
use onboard_engine::{
    Engine, ModelSource, NativeEngine, Session, SessionOptions, SlotId, StateValue,
};
use registry::dtype::Dtype;
use registry::graph::StateKind;
use registry::model::Model;

use crate::build::{feed, tokens};
use crate::fixtures::{folders, model, prompts};

fn open(dir: &Path, model: &Arc<Model>, dtype: Dtype) -> Box<dyn Session> {
    let source = ModelSource { model: Arc::clone(model), dir };
    NativeEngine::new()
        .open(&source, &SessionOptions { dtype, ..SessionOptions::default() })
        .unwrap()
}

/// Prompts of a model's vocabulary.
fn ids(model: &Model, count: usize, seed: usize) -> Vec<u32> {
    let spread = |n: usize| (n * 2_654_435_761 + seed * 40_503) % model.vocab;
    (0..count).map(|n| spread(n) as u32).collect()
}

/// Everything a slot remembers, and what it says next: the bits, so that zeros keep their signs.
fn trace(session: &mut dyn Session, slot: SlotId, next: &[u32]) -> (Vec<StateBits>, Vec<u32>) {
    let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect();
    let state = |s: StateValue| (s.layer, s.part, s.shape, bits(&s.data));
    let states = session.states(slot).unwrap().into_iter().map(state).collect();
    (states, bits(&feed(session, slot, next).data))
}

/// A layer, a part, its shape and its numbers' bits.
type StateBits = (usize, String, Vec<usize>, Vec<u32>);

/// Feeds `k` drafts of which `accepted` are right, takes the others back, and compares with a slot
/// that never saw them.
fn speculate(
    session: &mut dyn Session,
    all: &[u32],
    wrong: &[u32],
    k: usize,
    accepted: usize,
) -> bool {
    let (before, end) = (9, 9 + 1 + accepted);
    let (never, drafted) = (session.open_slot(), session.open_slot());
    for slot in [never, drafted] {
        feed(session, slot, &all[..before]);
    }
    for at in before..end {
        feed(session, never, &all[at..=at]);
    }
    let mut step = all[before..end].to_vec();
    step.extend(&wrong[..k - accepted]);
    feed(session, drafted, &step);
    session.truncate(drafted, end).unwrap();
    let rest = &all[end..end + 3];
    let same = trace(session, never, rest) == trace(session, drafted, rest);
    session.release(never).unwrap();
    session.release(drafted).unwrap();
    same
}

#[test]
fn rejected_drafts_leave_every_state_of_every_fixture_as_it_was() {
    let mut seen = std::collections::BTreeMap::<&str, usize>::new();
    let mut failed = Vec::new();
    for dir in folders() {
        let Ok(model) = model(&dir).map(Arc::new) else { continue };
        let kinds: std::collections::BTreeSet<&str> =
            model.graph.states.iter().map(|s| s.kind.name()).collect();
        let hybrid = |s: &registry::graph::State| {
            matches!(s.kind, StateKind::Conv | StateKind::Recurrent) || s.window.is_some()
        };
        if !model.graph.states.iter().any(hybrid) {
            continue;
        }
        for kind in kinds {
            *seen.entry(kind).or_default() += 1;
        }
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let mut session = open(&dir, &model, dtype);
            let (all, wrong) = (ids(&model, 24, 0), ids(&model, 24, 7));
            for (k, accepted) in (1..=4).flat_map(|k| (0..=k).map(move |accepted| (k, accepted))) {
                if !speculate(&mut *session, &all, &wrong, k, accepted) {
                    failed.push(format!("{} {dtype}, {accepted} of {k}", dir.display()));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(seen["conv"] >= 15 && seen["recurrent"] >= 15, "{seen:?}");
}

/// Models with the tensors of a head beside them.
fn heads() -> Vec<(PathBuf, Arc<Model>)> {
    let mut found = Vec::new();
    for dir in folders().into_iter().filter(|dir| dir.join("reference/nextn").is_dir()) {
        let model = Arc::new(model(&dir).unwrap());
        assert!(model.nextn.is_some(), "{}", dir.display());
        found.push((dir, model));
    }
    found
}

fn drafted(
    dir: &Path,
    model: &Arc<Model>,
    prompt: &[u32],
    count: usize,
    k: usize,
) -> (Vec<u32>, DraftCounts) {
    let mut session = open(dir, model, Dtype::F32);
    let mut head = open(dir, &model.nextn.as_ref().unwrap().layers[0], Dtype::F32);
    generate(&mut *session, &mut *head, prompt, count, k).unwrap()
}

#[test]
fn tokens_are_those_of_plain_decoding() {
    let heads = heads();
    assert!(heads.len() >= 4);
    for (dir, model) in heads {
        let prompt = ids(&model, 9, 3);
        let want = plain(&mut *open(&dir, &model, Dtype::F32), &prompt, 40).unwrap();
        for k in 1..=4 {
            let (got, tally) = drafted(&dir, &model, &prompt, 40, k);
            assert_eq!(got, want, "{}, {k} drafts", dir.display());
            assert_eq!(tally.drafted.len(), k);
            assert_eq!(tally.drafts(), tally.steps * k as u64);
        }
    }
}

/// The model that `fixtures/train.py` trained, and a prompt that counts in steps of 7.
fn counting() -> (PathBuf, Arc<Model>, Vec<u32>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/trained/counting");
    let model = Arc::new(model(&dir).unwrap());
    let numbers = (0..8).map(|n| 100 + 7 * n);
    (dir, model, numbers.flat_map(|n| [n / 32, 32 + n % 32]).collect())
}

#[test]
fn a_trained_head_is_mostly_right_over_a_thousand_tokens() {
    let (dir, model, prompt) = counting();
    let want = plain(&mut *open(&dir, &model, Dtype::F32), &prompt, 1000).unwrap();
    for k in [1, 3] {
        let (got, tally) = drafted(&dir, &model, &prompt, 1000, k);
        assert_eq!(got, want);
        let rate = tally.by_position()[0];
        assert!(rate > 0.5, "{k} drafts: {tally:?}");
    }
}

#[test]
fn a_head_that_joins_in_the_other_order_is_mostly_wrong() {
    let (dir, model, prompt) = counting();
    let mut swapped = (*model).clone();
    let nextn = swapped.nextn.as_mut().unwrap();
    let layer = Arc::make_mut(&mut nextn.layers[0]);
    let concat = layer.graph.nodes.iter_mut().find(|node| node.op == "concat").unwrap();
    concat.inputs.reverse();
    let want = plain(&mut *open(&dir, &model, Dtype::F32), &prompt, 300).unwrap();
    let (got, tally) = drafted(&dir, &Arc::new(swapped), &prompt, 300, 1);
    assert_eq!(got, want, "a bad head costs time and nothing else");
    assert!(tally.rate().unwrap() < 0.1, "{tally:?}");
}

#[test]
fn heads_are_fed_or_refuse() {
    let (dir, model) = heads().remove(0);
    let mut head = open(&dir, &model.nextn.as_ref().unwrap().layers[0], Dtype::F32);
    let slot = head.open_slot();
    let chunk =
        onboard_engine::Chunk { slot, tokens: &tokens(2), rows: onboard_engine::OutputRows::Last };
    let said = head.step(&[chunk], &mut onboard_engine::NoProbe).unwrap_err().to_string();
    assert!(said.contains("0 numbers are fed besides 2 tokens"), "{said}");
    let mut session = open(&dir, &model, Dtype::F32);
    let slot = session.open_slot();
    let chunk =
        onboard_engine::Chunk { slot, tokens: &[1], rows: onboard_engine::OutputRows::Last };
    assert!(session.step_with_hidden(&[chunk], &[0.0; 32], &mut onboard_engine::NoProbe).is_err());
    let options = SessionOptions { drafts: true, ranks: 2, ..SessionOptions::default() };
    let source = ModelSource { model, dir: &dir };
    let Err(error) = NativeEngine::new().open(&source, &options) else { panic!("it opens") };
    assert!(
        error.to_string().contains("has no `tensor_parallel`, alone or with `nextn`"),
        "{error}"
    );
}

/// Numbers of a dump, widened.
fn numbers(file: &formats::safetensors::SafetensorsFile, name: &str) -> Vec<f32> {
    let (entry, bytes) = file.tensor(name).unwrap().unwrap();
    assert_eq!(entry.dtype, formats::safetensors::FileDtype::F32, "{name}");
    let mut data = vec![0.0; bytes.len() / 4];
    formats::numbers::to_f32(entry.dtype, bytes, &mut data).unwrap();
    data
}

/// The largest difference of a log-probability of a head from its dump, prefill and decode.
fn off(dir: &Path, head: &Arc<Model>) -> f32 {
    let dump = dir.join("reference/nextn");
    let text = fs_err::read_to_string(dump.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let file =
        formats::safetensors::SafetensorsFile::open(&dump.join("reference.safetensors")).unwrap();
    let mut session = open(dir, head, Dtype::F32);
    let mut worst = 0.0_f32;
    for (name, tokens, split) in prompts(&manifest) {
        let hidden = numbers(&file, &format!("f32/{name}/hidden"));
        let width = hidden.len() / tokens.len();
        for (phase, sizes) in [("prefill", vec![tokens.len()]), ("decode", vec![split])] {
            let slot = session.open_slot();
            let (mut at, mut rows) = (0, Vec::new());
            while at < tokens.len() {
                let size = if at == 0 { sizes[0] } else { 1 };
                let chunk = onboard_engine::Chunk {
                    slot,
                    tokens: &tokens[at..at + size],
                    rows: onboard_engine::OutputRows::All,
                };
                let fed = &hidden[at * width..(at + size) * width];
                let found =
                    session.step_with_hidden(&[chunk], fed, &mut onboard_engine::NoProbe).unwrap();
                if phase == "prefill" || at > 0 {
                    (0..size).for_each(|row| rows.extend(logprobs(found[0].row(row))));
                }
                at += size;
            }
            session.release(slot).unwrap();
            if !rows.is_empty() {
                let want = numbers(&file, &format!("f32/{name}/{phase}/logits"));
                let want: Vec<f32> = want.chunks(head.vocab).flat_map(logprobs).collect();
                assert_eq!(rows.len(), want.len(), "{name} {phase}");
                let gaps = rows.iter().zip(&want).map(|(a, b)| (a - b).abs());
                worst = gaps.fold(worst, f32::max);
            }
        }
    }
    worst
}

fn logprobs(row: &[f32]) -> Vec<f32> {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - top).exp()).sum();
    row.iter().map(|x| x - top - sum.ln() as f32).collect()
}

#[test]
fn heads_agree_with_their_references() {
    for (dir, model) in heads() {
        let head = &model.nextn.as_ref().unwrap().layers[0];
        let right = off(&dir, head);
        let mut swapped = (**head).clone();
        let concat = swapped.graph.nodes.iter_mut().find(|node| node.op == "concat").unwrap();
        concat.inputs.reverse();
        let wrong = off(&dir, &Arc::new(swapped));
        assert!(right < 1e-4 && wrong > 0.1, "{}: {right:e}, swapped {wrong:e}", dir.display());
    }
}
