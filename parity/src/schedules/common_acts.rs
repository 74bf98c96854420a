//! Acts that all failing schedules have, and no schedule that agrees.

use std::collections::{BTreeMap, BTreeSet};

use super::{Act, Schedule, ScheduleRow};
use crate::gate::Verdict;

/// Describes the kinds of acts of a schedule that depend on states.
fn kinds(schedule: &Schedule) -> BTreeSet<&'static str> {
    let mut kinds = BTreeSet::new();
    let mut seen = BTreeMap::<usize, usize>::new();
    let mut released = false;
    for act in &schedule.acts {
        match act {
            Act::Open(slot, _) => {
                seen.insert(*slot, 0);
                if released {
                    kinds.insert("begins a slot after another was released");
                }
            }
            Act::Feed(fed) => {
                if fed.len() > 1 {
                    kinds.insert("feeds several slots in one step");
                }
                for (slot, count) in fed {
                    let seen = seen.entry(*slot).or_default();
                    match (*seen, *count) {
                        (0, _) => {}
                        (_, 1) => _ = kinds.insert("continues a slot with a single token"),
                        _ => _ = kinds.insert("continues a slot with several tokens"),
                    }
                    *seen += count;
                }
            }
            Act::Fork(from, to) => {
                let count = seen.get(from).copied().unwrap_or(0);
                seen.insert(*to, count);
                kinds.insert("forks a slot");
            }
            Act::Rewind(_) => _ = kinds.insert("rewinds tokens"),
            Act::Reload(_) => _ = kinds.insert("restores a saved slot"),
            Act::Release(_) => released = true,
            Act::Stray(..) => {}
        }
    }
    kinds
}

/// Notes at the first schedule that fails what all such schedules do and no other does. Two must fail, and one
/// agree.
pub(crate) fn note_common_acts(schedules: &[Schedule], rows: &mut [ScheduleRow]) {
    let failing = kinds_of(schedules, rows, Verdict::Fail);
    let agreeing = kinds_of(schedules, rows, Verdict::Pass);
    if failing.len() < 2 || agreeing.is_empty() {
        return;
    }
    let all: BTreeSet<&str> = failing.iter().flatten().copied().collect();
    let common: Vec<&str> = all
        .into_iter()
        .filter(|kind| failing.iter().all(|kinds| kinds.contains(kind)))
        .filter(|kind| !agreeing.iter().any(|kinds| kinds.contains(kind)))
        .collect();
    if common.is_empty() {
        return;
    }
    if let Some(row) = rows.iter_mut().find(|row| row.verdict == Verdict::Fail) {
        let words =
            format!("each schedule that fails, and none that agrees, {}", common.join(", and "));
        row.note = Some(match row.note.take() {
            Some(note) => format!("{note}; {words}"),
            None => words,
        });
    }
}

/// Returns the kinds of acts of each schedule with a verdict.
fn kinds_of(
    schedules: &[Schedule],
    rows: &[ScheduleRow],
    verdict: Verdict,
) -> Vec<BTreeSet<&'static str>> {
    let pairs = schedules.iter().zip(rows).filter(|(_, row)| row.verdict == verdict);
    pairs.map(|(schedule, _)| kinds(schedule)).collect()
}

#[cfg(test)]
mod tests {
    use registry::dtype::Dtype;

    use super::*;

    fn schedule(name: &str, acts: Vec<Act>) -> Schedule {
        Schedule { name: name.to_owned(), why: "", acts }
    }

    fn row(verdict: Verdict) -> ScheduleRow {
        ScheduleRow {
            dtype: Dtype::F32,
            name: String::new(),
            why: "",
            steps: 1,
            max: 0.0,
            distance: 0.0,
            limit: 0.0,
            position: None,
            note: None,
            verdict,
        }
    }

    #[test]
    fn what_only_failing_schedules_do_is_named() {
        let all =
            [chunks_of(&[1, 1, 1]), chunks_of(&[2, 2]), chunks_of(&[3, 2, 1]), chunks_of(&[4])];
        let pass = Verdict::Pass;
        let fail = Verdict::Fail;
        let skip = Verdict::Skip;
        for (verdicts, words) in [
            ([pass, fail, fail, pass], Some("continues a slot with several tokens")),
            ([fail, pass, fail, pass], Some("continues a slot with a single token")),
            ([fail, fail, fail, pass], None),
            ([fail, fail, skip, skip], None),
            ([pass, fail, pass, pass], None),
        ] {
            let mut rows = verdicts.map(row);
            note_common_acts(&all, &mut rows);
            let note = rows.iter().find_map(|row| row.note.clone());
            let expected = words
                .map(|words| format!("each schedule that fails, and none that agrees, {words}"));
            assert_eq!(note, expected, "{verdicts:?}");
        }
    }

    fn chunks_of(counts: &[usize]) -> Schedule {
        let mut acts = vec![Act::Open(0, 0)];
        acts.extend(counts.iter().map(|n| Act::Feed(vec![(0, *n)])));
        schedule("", acts)
    }
}
