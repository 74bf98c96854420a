//! Recurrences: against values computed by hand, and the laws of slots for what they keep.

use onboard_engine::weights::WeightsInMemory;
use onboard_engine::{Session, StateValue};
use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{StateKind, ValueId};
use registry::model::Model;
use registry::scalar::Scalar;

use crate::build::{Build, feed, open, options, tokens};

/// Pieces of a value along its last axis, each of its own shape.
fn pieces(b: &mut Build, x: ValueId, shapes: &[&[usize]]) -> Vec<ValueId> {
    let (_, first) = b.node("split", &[x], &[width(shapes[0])]);
    let mut flat = vec![first];
    for shape in &shapes[1..] {
        flat.push(b.value("piece", &[width(shape)]));
    }
    b.graph.nodes.last_mut().unwrap().outputs.clone_from(&flat);
    flat.iter().zip(shapes).map(|(x, shape)| b.node("heads", &[*x], shape).1).collect()
}

fn width(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Mamba-2 over a table of tokens: 4 heads of 3 in 2 groups, 5 numbers each.
fn mamba2(seed: usize) -> (Model, WeightsInMemory) {
    let mut b = Build::new(23);
    let width = 12 + 4 + 10 + 10;
    let table = b.random(&[23, width], 1.5 + seed as f32);
    let x = b.embed(table, width);
    let parts = pieces(&mut b, x, &[&[4, 3], &[4], &[2, 5], &[2, 5]]);
    let state = b.state(StateKind::Recurrent, &[("recurrent", &[4, 3, 5])], None);
    b.graph.states[state.0].dtype = DtypeRule::Fixed(Dtype::F32);
    let weights = ["A_log", "D", "dt_bias"].map(|role| (role.to_owned(), b.random(&[4], 1.0)));
    let (node, y) = b.node("ssd_scan", &parts, &[12]);
    node.state = Some(state);
    node.weights.extend(weights);
    node.attrs.insert("stepwise".into(), Scalar::Bool(true));
    b.graph.values[y.0].dtype = DtypeRule::Fixed(Dtype::F32);
    b.model(y)
}

fn one(session: &mut dyn Session, ids: &[u32]) -> (Vec<f32>, Vec<f32>) {
    let slot = session.open_slot();
    let y = feed(session, slot, ids).data;
    (y, session.states(slot).unwrap().remove(0).data)
}

#[test]
fn a_head_of_one_number_follows_its_formula() {
    let mut b = Build::new(2);
    // x, dt, b, c of two tokens.
    let table = b.weight(&[2, 4], &[2.0, 0.5, 3.0, 0.25, -1.0, -0.5, 1.0, 2.0]);
    let x = b.embed(table, 4);
    let parts = pieces(&mut b, x, &[&[1, 1], &[1], &[1, 1], &[1, 1]]);
    let state = b.state(StateKind::Recurrent, &[("recurrent", &[1, 1, 1])], None);
    let weights =
        [("A_log", 0.5f32), ("D", 0.7), ("dt_bias", 0.1)].map(|(r, v)| (r, b.weight(&[1], &[v])));
    let (node, y) = b.node("ssd_scan", &parts, &[1]);
    node.state = Some(state);
    node.weights.extend(weights.map(|(r, w)| (r.to_owned(), w)));
    node.attrs.insert("dt_min".into(), Scalar::Float(0.6));
    b.graph.values[y.0].dtype = DtypeRule::Fixed(Dtype::F32);
    let mut session = open(b.model(y), &options(Dtype::F32));
    let (got, state_numbers) = one(&mut *session, &[0, 1]);
    let a = -0.5f64.exp();
    // The second step is below the bound.
    let first = bounded_softplus(0.6) * 2.0 * 3.0;
    let second = (bounded_softplus(-0.4) * a).exp() * first - bounded_softplus(-0.4);
    for (got, want) in
        got.iter().chain(&state_numbers).zip([first * 0.25 + 0.7 * 2.0, second * 2.0 - 0.7, second])
    {
        assert!((f64::from(*got) - want).abs() < 1e-5, "{got}, not {want}");
    }
}

fn bounded_softplus(x: f64) -> f64 {
    x.exp().ln_1p().max(0.6)
}

#[test]
fn how_a_sequence_is_fed_leaves_the_same_state() {
    for dtype in Dtype::ALL {
        let ids = tokens(40);
        let mut session = open(mamba2(0), &options(dtype));
        let want = feed_in_chunks(&mut *session, &ids, 1);
        assert!(want.0.iter().all(|x| x.is_finite()));
        for size in [2, 3, 5, 17, 33] {
            assert_eq!(
                feed_in_chunks(&mut *session, &ids, size),
                want,
                "{dtype}, chunks of {size}"
            );
        }
    }
}

/// Feeds a sequence in chunks of a size. Its first step may round otherwise, so it is always the same.
fn feed_in_chunks(
    session: &mut dyn Session,
    ids: &[u32],
    size: usize,
) -> (Vec<f32>, Vec<StateValue>) {
    let slot = session.open_slot();
    let mut y = feed(session, slot, &ids[..7]).data;
    for part in ids[7..].chunks(size) {
        y.extend(feed(session, slot, part).data);
    }
    (y, session.states(slot).unwrap())
}

#[test]
fn a_rejected_draft_leaves_no_trace() {
    for dtype in Dtype::ALL {
        for accepted in 0..=4 {
            let ids = tokens(30);
            let mut session = open(mamba2(0), &options(dtype));
            let plain = session.open_slot();
            let drafted = session.open_slot();
            for slot in [plain, drafted] {
                feed(&mut *session, slot, &ids[..11]);
            }
            for at in 11..11 + accepted {
                feed(&mut *session, plain, &ids[at..=at]);
            }
            let mut draft = ids[11..11 + accepted].to_vec();
            draft.extend([22, 21, 20, 19, 18].iter().take(5 - accepted));
            feed(&mut *session, drafted, &draft);
            session.truncate(drafted, 11 + accepted).unwrap();
            assert_eq!(session.states(plain).unwrap(), session.states(drafted).unwrap());
            let a = feed(&mut *session, plain, &ids[20..]);
            let b = feed(&mut *session, drafted, &ids[20..]);
            assert_eq!(a, b, "{dtype}, {accepted} accepted");
        }
    }
}

#[test]
fn forks_files_and_reuse_keep_it() {
    let ids = tokens(30);
    let mut session = open(mamba2(0), &options(Dtype::F16));
    let slot = session.open_slot();
    feed(&mut *session, slot, &ids[..13]);
    let fork = session.fork(slot).unwrap();
    feed(&mut *session, fork, &[1, 2, 3]);
    let bytes = session.save(slot).unwrap();
    let want = feed(&mut *session, slot, &ids[13..]).data;
    let mut second = open(mamba2(0), &options(Dtype::F16));
    let restored = second.restore(&bytes).unwrap();
    assert_eq!(second.save(restored).unwrap(), bytes);
    assert_eq!(feed(&mut *second, restored, &ids[13..]).data, want);
    session.truncate(fork, 13).unwrap();
    assert_eq!(feed(&mut *session, fork, &ids[13..]).data, want);
    let far = session.truncate(fork, 3).unwrap_err().to_string();
    assert!(far.contains("recurrence") && far.contains("rollback"), "{far}");
    // What a released slot leaves is NaN, and must not reach the next.
    let alone = one(&mut *session, &ids[..5]);
    session.release(fork).unwrap();
    assert_eq!(one(&mut *session, &ids[..5]), alone);
}

#[test]
fn a_state_kept_narrow_is_rounded_after_each_step() {
    let (mut model, tensors) = mamba2(0);
    model.graph.states[0].dtype = DtypeRule::Fixed(Dtype::Bf16);
    let mut session = open((model, tensors), &options(Dtype::F32));
    let (_, state_numbers) = one(&mut *session, &tokens(9));
    assert!(state_numbers.iter().all(|x| x.to_bits().trailing_zeros() >= 16));
}
