//! Laws of slots: however a sequence is fed, moved and copied, it gives the same logits.

use std::sync::Arc;

use crate::build::{feed, hybrid, open, options, tokens};
use onboard_engine::weights::WeightsInMemory;
use onboard_engine::{
    Chunk, Error, NativeEngine, NoProbe, OutputRows, Probe, SessionOptions, SlotId, StateValue,
};
use proptest::prelude::*;
use registry::dtype::Dtype;
use registry::dtype::DtypeRule::{self, Activation, Fixed};
use registry::model::Model;

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

fn assert_same(got: &[f32], want: &[f32], why: &str) {
    assert!(got.iter().all(|x| x.is_finite()), "{why}: a number is not finite");
    assert_eq!(bits(got), bits(want), "{why}");
}

#[test]
fn chunks_of_any_size_give_the_bits_of_one_forward() {
    for dtype in Dtype::ALL {
        for window in [None, Some(1), Some(5)] {
            let ids = tokens(90);
            let mut session = open(hybrid(window), &options(dtype));
            let slot = session.open_slot();
            let want = feed(&mut *session, slot, &ids);
            let states = session.states(slot).unwrap();
            for size in [1, 2, 3, 4, 5, 6, 64, 89] {
                let slot = session.open_slot();
                let mut got = Vec::new();
                for part in ids.chunks(size) {
                    got.extend(feed(&mut *session, slot, part).data);
                }
                assert_same(
                    &got,
                    &want.data,
                    &format!("{dtype}, window {window:?}, chunks of {size}"),
                );
                assert_eq!(session.states(slot).unwrap(), states);
            }
        }
    }
}

#[test]
fn rewrites_and_thread_counts_do_not_change_a_bit() {
    let ids = tokens(70);
    for dtype in Dtype::ALL {
        let plain = hybrid_logits(&SessionOptions { rewrites: false, ..options(dtype) }, &ids);
        assert_same(
            &hybrid_logits(&SessionOptions { threads: Some(1), ..options(dtype) }, &ids),
            &plain,
            "rewritten, 1 thread",
        );
        assert_same(
            &hybrid_logits(&SessionOptions { threads: Some(3), ..options(dtype) }, &ids),
            &plain,
            "rewritten, 3 threads",
        );
    }
}

fn hybrid_logits(options: &SessionOptions, ids: &[u32]) -> Vec<f32> {
    let mut session = open(hybrid(Some(4)), options);
    let slot = session.open_slot();
    feed(&mut *session, slot, ids).data
}

#[test]
fn a_batch_gives_each_slot_what_it_gets_alone() {
    let mut session = open(hybrid(Some(5)), &options(Dtype::Bf16));
    let ids = tokens(40);
    let alone: Vec<_> = [7, 1, 12]
        .map(|n| {
            let slot = session.open_slot();
            feed(&mut *session, slot, &ids[..n]).data
        })
        .into();
    let slots: Vec<SlotId> = (0..3).map(|_| session.open_slot()).collect();
    let got = session
        .step(
            &[
                Chunk { slot: slots[2], tokens: &ids[..12], rows: OutputRows::Last },
                Chunk { slot: slots[0], tokens: &ids[..7], rows: OutputRows::All },
                Chunk { slot: slots[1], tokens: &ids[..1], rows: OutputRows::None },
            ],
            &mut NoProbe,
        )
        .unwrap();
    assert_same(&got[0].data, &alone[2][11 * 23..], "the last of 12");
    assert_same(&got[1].data, &alone[0], "all of 7");
    assert_eq!((got[2].rows, got[2].data.len()), (0, 0));
    // The slot that wanted nothing went on all the same.
    assert_eq!(session.position(slots[1]).unwrap(), 1);
}

#[test]
fn a_fork_is_a_copy_and_truncation_goes_back() {
    let mut session = open(hybrid(Some(5)), &options(Dtype::F16));
    let ids = tokens(60);
    let slot = session.open_slot();
    let want = feed(&mut *session, slot, &ids).data;
    let other = session.open_slot();
    feed(&mut *session, other, &ids[..37]);
    let fork = session.fork(other).unwrap();
    // Wrong tokens, taken back, leave no trace.
    feed(&mut *session, fork, &[1, 2, 3, 4, 5, 6, 7]);
    session.truncate(fork, 37).unwrap();
    assert_same(&feed(&mut *session, fork, &ids[37..]).data, &want[37 * 23..], "after going back");
    assert_same(&feed(&mut *session, other, &ids[37..]).data, &want[37 * 23..], "the original");
    // Too far: said so, and nothing happened.
    let error = session.truncate(other, 3).unwrap_err().to_string();
    assert!(error.contains("cannot be truncated to 3") && error.contains("rollback"), "{error}");
    assert!(session.truncate(other, 61).unwrap_err().to_string().contains("60 tokens"));
    assert_eq!(session.position(other).unwrap(), 60);
    session.truncate(other, 60).unwrap();
}

#[test]
fn without_windows_every_length_can_be_returned_to_once_convolutions_allow() {
    let mut session = open(hybrid(None), &SessionOptions { rollback: 100, ..options(Dtype::F32) });
    let ids = tokens(50);
    let slot = session.open_slot();
    let want = feed(&mut *session, slot, &ids).data;
    for length in [49, 20, 1, 0] {
        session.truncate(slot, length).unwrap();
        let fork = session.fork(slot).unwrap();
        assert_same(&feed(&mut *session, fork, &ids[length..]).data, &want[length * 23..], "again");
    }
}

#[test]
fn a_saved_slot_goes_on_in_another_session() {
    for dtype in Dtype::ALL {
        let ids = tokens(140);
        let mut session = open(hybrid(Some(5)), &options(dtype));
        let slot = session.open_slot();
        feed(&mut *session, slot, &ids[..101]);
        let bytes = session.save(slot).unwrap();
        let want = feed(&mut *session, slot, &ids[101..]).data;
        let mut second = open(hybrid(Some(5)), &options(dtype));
        let slot = second.restore(&bytes).unwrap();
        assert_eq!(second.save(slot).unwrap(), bytes);
        second.truncate(slot, 100).unwrap();
        feed(&mut *second, slot, &ids[100..101]);
        assert_same(&feed(&mut *second, slot, &ids[101..]).data, &want, "restored");
        // Another model, and another dtype, refuse it.
        let mut other = open(hybrid(Some(6)), &options(dtype));
        assert!(other.restore(&bytes).unwrap_err().to_string().contains("another model"));
    }
}

#[test]
fn a_released_slot_is_poisoned_and_its_memory_serves_the_next() {
    let mut session = open(hybrid(Some(5)), &options(Dtype::F32));
    let ids = tokens(30);
    let slot = session.open_slot();
    let want = feed(&mut *session, slot, &ids).data;
    session.release(slot).unwrap();
    assert!(matches!(session.position(slot), Err(Error::UnknownSlot(0))));
    let slot = session.open_slot();
    assert!(session.states(slot).unwrap()[1].data.is_empty());
    // A read of what lay there would be NaN, and NaN would reach the logits.
    assert_same(&feed(&mut *session, slot, &ids).data, &want, "reused");
}

#[test]
fn bad_steps_are_refused_and_change_nothing() {
    let mut session = open(hybrid(None), &options(Dtype::F32));
    let slot = session.open_slot();
    let ids = tokens(10);
    feed(&mut *session, slot, &ids);
    let before = session.states(slot).unwrap();
    let long = vec![0; 291];
    for (chunks, want) in [
        (
            vec![last_row(slot, &[1, 23][..])],
            "token 23 at position 11 of slot 0 is not below the vocabulary size 23",
        ),
        (vec![last_row(slot, &[])], "the chunk for slot 0 has no tokens; leave it out of the step"),
        (
            vec![last_row(slot, &[1]), last_row(slot, &[2])],
            "slot 0 appears twice in one step; feed its tokens as one chunk",
        ),
        (vec![last_row(SlotId(9), &[1])], "slot 9 is not open"),
        (vec![last_row(slot, &long)], "slot 0 would reach 301 positions; the model handles 300"),
    ] {
        assert_eq!(session.step(&chunks, &mut NoProbe).unwrap_err().to_string(), want);
    }
    assert_eq!(session.states(slot).unwrap(), before);
    assert_eq!(session.step(&[], &mut NoProbe).unwrap(), []);
}

fn last_row(slot: SlotId, tokens: &[u32]) -> Chunk<'_> {
    Chunk { slot, tokens, rows: OutputRows::Last }
}

/// Writes over a tap.
struct Overwrite(Vec<(Vec<usize>, f32)>);

impl Probe for Overwrite {
    fn wants(&self, tap: &str) -> bool {
        tap == "layers.0"
    }

    fn tap(&mut self, _tap: &str, shape: &[usize], data: &mut [f32]) {
        self.0.push((shape.to_vec(), data[0]));
        data.fill(0.25);
    }
}

#[test]
fn a_probe_sees_and_overwrites_taps() {
    let mut session = open(hybrid(None), &options(Dtype::F32));
    let slot = session.open_slot();
    let mut probe = Overwrite(Vec::new());
    let chunk = Chunk { slot, tokens: &tokens(4), rows: OutputRows::All };
    let logits = session.step(&[chunk], &mut probe).unwrap().remove(0);
    assert_eq!(probe.0.len(), 1);
    assert_eq!(probe.0[0].0, [4, 32]);
    assert_eq!(logits.row(0), logits.row(3), "all rows were made equal in the middle");
}

#[test]
fn an_unknown_op_is_refused_by_name() {
    let (mut model, tensors) = hybrid(None);
    model.graph.nodes[1].op = "wavelet".into();
    let opened = NativeEngine::new().open_with(
        Arc::new(model),
        Box::new(tensors),
        &SessionOptions::default(),
    );
    let Err(error) = opened else { panic!("it opened") };
    assert!(error.to_string().contains("engine `native` has no op `wavelet`"), "{error}");
}

#[test]
fn another_crate_can_add_an_op() {
    let (mut model, tensors) = hybrid(None);
    model.graph.nodes[1].op = "half".into();
    let mut engine = NativeEngine::new();
    engine.kernels.add("half", |ctx: &mut onboard_engine::ops::Ctx<'_>| {
        let x = ctx.input(0)?;
        let half = x.view().iter().map(|x| x / 2.0).collect();
        ctx.set(0, half)
    });
    let mut session =
        engine.open_with(Arc::new(model), Box::new(tensors), &SessionOptions::default()).unwrap();
    let slot = session.open_slot();
    assert!(feed(&mut *session, slot, &[1, 2]).data.iter().all(|x| x.is_finite()));
}

#[test]
fn a_divided_step_that_fails_leaves_nothing() {
    for window in [None, Some(5)] {
        let (mut model, tensors) = hybrid(window);
        model.graph.nodes[1].op = "strict".into();
        let mut engine = NativeEngine::new();
        engine.kernels.add("strict", |ctx: &mut onboard_engine::ops::Ctx<'_>| {
            if ctx.tokens().contains(&22) {
                return Err(ctx.error("token 22"));
            }
            let x = ctx.input(0)?.to_vec();
            ctx.set(0, x)
        });
        let options = SessionOptions { part: 4, rollback: 1, ..options(Dtype::F32) };
        let mut session = engine.open_with(Arc::new(model), Box::new(tensors), &options).unwrap();
        let ids: Vec<u32> = tokens(60).into_iter().map(|id| id % 22).collect();
        let slot = session.open_slot();
        let want = feed(&mut *session, slot, &ids).data;
        let other = session.open_slot();
        feed(&mut *session, other, &ids[..23]);
        // The token comes after parts that were run, and slots with a window have dropped rows by then.
        let mut wrong = tokens(30);
        wrong.push(22);
        wrong.iter_mut().take(30).for_each(|id| *id %= 22);
        let chunk = Chunk { slot: other, tokens: &wrong, rows: OutputRows::Last };
        assert!(session.step(&[chunk], &mut NoProbe).is_err());
        assert_eq!(session.position(other).unwrap(), 23);
        assert_same(&feed(&mut *session, other, &ids[23..]).data, &want[23 * 23..], "afterwards");
    }
}

#[test]
fn a_state_of_another_dtype_rounds_what_it_keeps() {
    let (model, tensors) = hybrid_with_state(Fixed(Dtype::Bf16));
    let opened =
        NativeEngine::new().open_with(Arc::new(model), Box::new(tensors), &options(Dtype::F16));
    let Err(error) = opened else { panic!("it opened") };
    let want = "state `conv` is kept in bf16, but op `causal_conv` feeds it f16 in a run in f16";
    assert!(error.to_string().contains(want), "{error}");
    let (right, _) = run_with_state(Activation);
    let (wrong, state) = run_with_state(Fixed(Dtype::Bf16));
    assert_ne!(right, wrong);
    assert!(state.data.iter().all(|&x| half::bf16::from_f32(x).to_f32() == x));
}

fn hybrid_with_state(rule: DtypeRule) -> (Model, WeightsInMemory) {
    let (mut model, tensors) = hybrid(None);
    model.graph.states[0].dtype = rule;
    (model, tensors)
}

fn run_with_state(rule: DtypeRule) -> (Vec<f32>, StateValue) {
    let allowed = SessionOptions { allow_dtype_mismatch: true, ..options(Dtype::F16) };
    let mut session = open(hybrid_with_state(rule), &allowed);
    let slot = session.open_slot();
    let ids = tokens(9);
    feed(&mut *session, slot, &ids[..5]);
    (feed(&mut *session, slot, &ids[5..]).data, session.states(slot).unwrap().swap_remove(0))
}

proptest! {
    #[test]
    fn restore_survives_anything(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut session = open(hybrid(Some(3)), &options(Dtype::F32));
        prop_assert!(session.restore(&bytes).is_err());
    }

    #[test]
    fn restore_survives_damage(at in 0usize..2000, flip in 1u8..=255, cut in 0usize..2000) {
        let mut session = open(hybrid(Some(3)), &options(Dtype::F32));
        let slot = session.open_slot();
        feed(&mut *session, slot, &tokens(9));
        let mut bytes = session.save(slot).unwrap();
        let len = bytes.len();
        bytes[at % len] ^= flip;
        prop_assert!(session.restore(&bytes).is_err());
        bytes.truncate(cut % len);
        prop_assert!(session.restore(&bytes).is_err());
    }
}
