//! Local exactness in 16 bits: on the reference's own inputs an op gives the reference's numbers bit for bit, but for the
//! few whose sum in f32 fell on the other side of a rounding, or it is another op.
//!
//! One principle serves every op: elements that differ have to be those that rounding in f32 changes. The check
//! measures these by moving the inputs by a few units in the last place of f32. A rounding more or less, or in
//! another order, changes a quarter to a half of all elements, and changes them in every place of its kind.

use std::collections::BTreeMap;

use engine::Session;
use registry::dtype::Dtype;
use registry::weight_map::without_numbers;

use super::Agreement;
use super::condition::apart;
use crate::compare::Comparison;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Verdict};
use crate::route::{RouterRow, Steer};
use crate::run::{Feed, Shake, Trace, trace};
use crate::tolerance::{EXACT_LEAST, EXACT_PLACES, EXACT_SHAKES, EXACT_SHARE, EXACT_UNITS};

/// Counts the elements that depend on rounding in f32, of gates where many are unequal. `clean` is the run that the
/// gates are of.
pub(super) fn witness(
    session: &mut dyn Session,
    comparison: &Comparison<'_>,
    phase: Phase,
    clean: &Trace,
    gates: &mut [Gate],
    agreement: &Agreement<'_>,
) -> Result<(), engine::Error> {
    let mut many: Vec<&mut Gate> = gates.iter_mut().filter(|gate| is_unequal(gate)).collect();
    if many.is_empty() {
        return Ok(());
    }
    for seed in 0..EXACT_SHAKES {
        let taps = &comparison.own.taps;
        let mut row = RouterRow::new(Mode::Local);
        let mut steer = Steer::new(agreement.routers, comparison.dtype, String::new(), &mut row);
        let feed = Feed::Shaken(taps, Shake { dtype: Dtype::F32, units: EXACT_UNITS, seed });
        let moved = trace(session, comparison.prompt, phase, taps, feed, &mut steer)?;
        for gate in &mut many {
            let Some(error) = apart(&gate.subject, clean, &moved) else { continue };
            let share = error.unequal as f64 / error.spread.count.max(1) as f64;
            let changed = (share * gate.error.count as f64).round() as usize;
            gate.unsteady = Some(gate.unsteady.unwrap_or(0).max(changed));
        }
    }
    Ok(())
}

/// True if more elements are unequal than rounding in f32 explains.
fn is_unequal(gate: &Gate) -> bool {
    let unexplained = gate.unequal.unwrap_or(0).saturating_sub(gate.unsteady.unwrap_or(0));
    unexplained as f64 >= EXACT_SHARE * gate.error.count.max(1) as f64
}

/// Fails the gates of every kind of op that is not the reference's, and says which single places are unequal without
/// their kind being so.
pub(super) fn judge(dtype: Dtype, gates: &mut [Gate]) -> Vec<String> {
    let mut kinds: BTreeMap<String, Vec<&mut Gate>> = BTreeMap::new();
    for gate in gates.iter_mut().filter(|gate| gate.unequal.is_some() && gate.error.count > 0) {
        kinds.entry(without_numbers(&gate.subject.to_string())).or_default().push(gate);
    }
    let wrong = |gates: &[&mut Gate]| gates.iter().filter(|gate| is_unequal(gate)).count();
    // Where most ops are unequal, the reference's arithmetic is another: of another device, or of other kernels.
    let inexact = kinds.values().filter(|gates| wrong(gates) > 0).count();
    let comparable = 2 * inexact <= kinds.len();
    let mut notes = Vec::new();
    for (kind, mut gates) in kinds {
        let (unequal, all) = (wrong(&gates), gates.len());
        let count: usize = gates.iter().map(|gate| gate.error.count).sum();
        if unequal == 0 || count < EXACT_LEAST {
            continue;
        }
        let everywhere = unequal >= 2 && unequal * EXACT_PLACES >= all;
        // An op that is exact in one phase is the right op: the reference rounds it otherwise in the other.
        let exact_in = |phase: Phase| {
            let mut gates = gates.iter().filter(|gate| gate.phase == phase).peekable();
            gates.peek().is_some() && gates.all(|gate| !is_unequal(gate))
        };
        let exact = Phase::ALL.into_iter().find(|phase| exact_in(*phase));
        if !everywhere || !comparable || exact.is_some() {
            let phase = exact.map_or(String::new(), |phase| format!(", and exact in {phase}"));
            notes.push(format!(
                "{dtype}: `{kind}` is not the reference's bit for bit in {unequal} of {all} comparisons on the reference's \
                 own inputs, by more than rounding in f32 explains{phase}"
            ));
            continue;
        }
        for gate in gates.iter_mut().filter(|gate| is_unequal(gate)) {
            let finding = format!(
                "{} of {} elements are not the reference's bit for bit, and rounding in f32 explains {}; so in {unequal} of \
                 {all} comparisons of this kind",
                gate.unequal.unwrap_or(0),
                gate.error.count,
                gate.unsteady.unwrap_or(0),
            );
            gate.finding.get_or_insert(finding);
            gate.inexact = true;
            gate.verdict = Verdict::Fail;
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Subject;
    use crate::metrics::Spread;
    use crate::order::LAST;

    /// Gates of one kind, each of 100 elements of which so many are unequal and so many unsteady.
    fn gates(name: &str, counts: &[(usize, usize)]) -> Vec<Gate> {
        let gate = |(layer, &(unequal, unsteady)): (usize, &(usize, usize))| {
            let subject = Subject::Tap { name: name.replace('*', &(layer / 2).to_string()) };
            let phase = Phase::ALL[layer % 2];
            let mut gate = Gate::new(subject, "main", phase, Mode::Local, LAST);
            gate.error = Spread { count: 100, ..Spread::default() };
            (gate.unequal, gate.unsteady) = (Some(unequal), Some(unsteady));
            gate
        };
        counts.iter().enumerate().map(gate).collect()
    }

    #[test]
    fn a_kind_that_is_unequal_in_most_places_fails_and_one_place_is_a_note() {
        for (counts, fails, notes) in [
            (&[(0, 0), (1, 0), (3, 2)][..], 0, 0),
            (&[(25, 0), (30, 2), (20, 0)], 3, 0),
            // The numbers that differ are those that depend on rounding in f32.
            (&[(50, 60), (40, 55), (60, 90)], 0, 0),
            (&[(48, 0), (0, 0), (0, 0)], 0, 1),
            (&[(25, 0), (25, 0), (0, 0), (0, 0)], 2, 0),
            (&[(25, 0)], 0, 1),
            // The reference rounds otherwise in one of its phases.
            (&[(25, 0), (0, 0), (25, 0), (0, 0)], 0, 1),
        ] {
            let mut all = gates("m.*.norm", counts);
            // The neighbours are exact.
            all.extend(gates("m.*.q_proj", &[(0, 0); 3]));
            all.extend(gates("m.*.o_proj", &[(1, 0); 3]));
            let said = judge(Dtype::Bf16, &mut all);
            let failed = all.iter().filter(|gate| gate.fails()).count();
            assert_eq!((failed, said.len()), (fails, notes), "{counts:?}: {said:?}");
        }
        // Where nothing is exact, nothing follows from it.
        let mut all = gates("m.*.norm", &[(25, 0); 3]);
        assert_eq!(judge(Dtype::Bf16, &mut all).len(), 1);
        assert!(!all.iter().any(Gate::fails));
    }
}
