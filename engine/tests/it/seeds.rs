//! Slots that begin with given states go on as those do whose states they are.

use std::sync::Arc;

use onboard_engine::{
    Chunk, Engine, ModelSource, NativeEngine, NoProbe, OutputRows, Session, SessionOptions, SlotId,
};
use registry::dtype::Dtype;

use crate::fixtures::{folders, model};

fn feed(session: &mut dyn Session, slot: SlotId, tokens: &[u32]) -> Vec<u32> {
    let chunk = Chunk { slot, tokens, rows: OutputRows::All };
    let logits = session.step(&[chunk], &mut NoProbe).unwrap().remove(0);
    logits.data.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_seeded_slot_goes_on_as_the_one_it_was_read_from() {
    let mut kinds = std::collections::BTreeSet::new();
    for dir in folders() {
        let model = Arc::new(model(&dir).unwrap());
        kinds.extend(model.graph.states.iter().map(|state| state.kind.name()));
        let source = ModelSource { model: Arc::clone(&model), dir: &dir };
        for dtype in [Dtype::F32, Dtype::F16] {
            let options = SessionOptions { dtype, poison: true, ..SessionOptions::default() };
            let mut session = NativeEngine::new().open(&source, &options).unwrap();
            let tokens: Vec<u32> = (0..12).map(|n| (n * 37 + 5) % model.vocab as u32).collect();
            for at in [1, 2, 9] {
                let slot = session.open_slot();
                feed(&mut *session, slot, &tokens[..at]);
                let states = session.states(slot).unwrap();
                let seeded = session.seed(at, &states).unwrap();
                assert_eq!(session.position(seeded).unwrap(), at);
                assert_eq!(session.states(seeded).unwrap(), states, "{} at {at}", dir.display());
                for token in &tokens[at..] {
                    let [ours, theirs] =
                        [seeded, slot].map(|slot| feed(&mut *session, slot, &[*token]));
                    assert_eq!(ours, theirs, "{} in {dtype} at {at}", dir.display());
                }
                for slot in [slot, seeded] {
                    session.release(slot).unwrap();
                }
            }
        }
    }
    assert!(kinds.len() >= 5, "{kinds:?}");
}

type Edit = fn(&mut Vec<onboard_engine::StateValue>);

#[test]
fn states_that_do_not_fit_are_refused_and_leave_nothing() {
    let dir = folders().into_iter().find(|dir| dir.ends_with("lfm2")).unwrap();
    let source = ModelSource { model: Arc::new(model(&dir).unwrap()), dir: &dir };
    let mut session = NativeEngine::new().open(&source, &SessionOptions::default()).unwrap();
    let slot = session.open_slot();
    feed(&mut *session, slot, &[1, 2, 3]);
    let states = session.states(slot).unwrap();
    let edits: [(usize, Edit, &str); 4] = [
        (3, |states| states.truncate(states.len() - 1), "there is no `conv` of layer 5"),
        (3, |states| states[0].data.truncate(1), "numbers; expected 1 to 1 times"),
        (4, |_| {}, "expected 4 to 4 times"),
        (2, |_| {}, "expected 2 to 2 times"),
    ];
    for (position, edit, want) in edits {
        let mut wrong = states.clone();
        edit(&mut wrong);
        let said = session.seed(position, &wrong).unwrap_err().to_string();
        assert!(said.contains(want), "{said}");
    }
    // The memory of the slot that was refused is empty again.
    let fresh = session.open_slot();
    let ours = feed(&mut *session, fresh, &[1, 2, 3, 4]);
    let mut whole = NativeEngine::new().open(&source, &SessionOptions::default()).unwrap();
    let slot = whole.open_slot();
    assert_eq!(ours, feed(&mut *whole, slot, &[1, 2, 3, 4]));
}
