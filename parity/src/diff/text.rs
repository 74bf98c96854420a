//! Formats the difference of two dumps as text.

use std::fmt::Write as _;

use super::{DumpDiff, RowsDiff, RunDiff};
use crate::dump::Phase;
use crate::gate::Verdict;

/// Formats a difference. `names` are the sides as the user named them.
pub fn text(difference: &DumpDiff, names: [&str; 2]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "A  {}\nB  {}", names[0], names[1]);
    for run in &difference.runs {
        let _ = writeln!(out, "\n{}", run.dtype);
        rows(&mut out, run);
        parts(&mut out, run);
        for (side, distance) in run.unstable_sides() {
            let side = if side == 0 { "A" } else { "B" };
            let _ = writeln!(
                out,
                "  {side}'s decode is {distance:.1e} nats away from its own prefill, more than roundings explain"
            );
        }
        for greedy in &run.greedy {
            let _ = writeln!(
                out,
                "  greedy tokens after `{}` part at token {}: A has {}, B has {}",
                greedy.prompt,
                greedy.at,
                first(&greedy.tokens[0]),
                first(&greedy.tokens[1])
            );
        }
    }
    for note in &difference.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let _ =
        writeln!(out, "\n{}", if difference.verdict == Verdict::Fail { "DIFFER" } else { "AGREE" });
    out
}

fn first(tokens: &[u32]) -> String {
    tokens.first().map_or_else(|| "none".to_owned(), u32::to_string)
}

fn rows(out: &mut String, run: &RunDiff) {
    for rows in &run.rows {
        let _ = write!(
            out,
            "  {:<8} {:<8} {:>4} rows  max |dlogp| {:.1e}  rms {:.1e}, may be {:.1e}  same top {}/{}",
            rows.prompt,
            rows.phase,
            rows.rows,
            rows.max,
            rows.rms,
            rows.limit,
            rows.same_top,
            rows.rows
        );
        match rows.first {
            Some(position) => {
                let _ = writeln!(out, "  DIFFERS from position {position} on");
            }
            None => out.push('\n'),
        }
    }
    match (first_rows(run, Phase::Prefill), first_rows(run, Phase::Decode)) {
        (Some(rows), _) if rows.first > Some(0) => out.push_str(
            "  The first positions agree: what reads other positions differs (attention, positions, states), not the \
             embedding, the head or what each position does alone\n",
        ),
        (None, Some(_)) => out.push_str(
            "  Prefill agrees and decode does not: a state, what it is kept in, or how a step reads it\n",
        ),
        _ => {}
    }
}

/// Returns the first rows of a phase with a position beyond the limit.
fn first_rows(run: &RunDiff, phase: Phase) -> Option<&RowsDiff> {
    run.rows.iter().find(|rows| rows.phase == phase && rows.first.is_some())
}

/// Writes the first tap and the first state that differ, or the largest difference of all if the rows agree.
fn parts(out: &mut String, run: &RunDiff) {
    let [tap, state] = [false, true].map(|state| run.first(state));
    if tap.or(state).is_none() || run.rows.iter().all(|rows| rows.verdict != Verdict::Fail) {
        if !run.parts.is_empty() {
            let worst = run.parts.iter().map(|part| part.error).fold(0.0, f64::max);
            let _ = writeln!(
                out,
                "  {} taps and states are at most {worst:.1e} of their rms apart",
                run.parts.len()
            );
        }
        return;
    }
    for part in [tap, state].into_iter().flatten() {
        let same = run.parts.iter().filter(|p| p.state == part.state);
        let before = same.take_while(|p| p.first.is_none());
        let (count, worst) = before.fold((0, 0.0), |(n, largest), p| (n + 1, p.error.max(largest)));
        let at = match part.first.filter(|_| !part.state) {
            Some(at) => format!(", position {at}"),
            None => String::new(),
        };
        let what = if part.state { "state" } else { "tap" };
        let _ = write!(out, "  first {what}: {}{at}, `{}`", part.phase, part.name);
        match &part.shapes {
            Some([a, b]) => {
                let _ = writeln!(out, " is {a:?} in A and {b:?} in B");
            }
            None => {
                let _ = writeln!(
                    out,
                    " is {:.1e} of its rms apart (rounding explains {:.1e}); {count} before it agree to {worst:.1e}",
                    part.error, part.limit
                );
            }
        }
        if let Some(bits) = part.bits {
            let _ = writeln!(
                out,
                "    its numbers have {} bits of mantissa in A and {} in B: one side keeps it {}",
                bits[0],
                bits[1],
                match bits[0].min(bits[1]) {
                    0..=7 => "in bf16 or less",
                    8..=10 => "in f16",
                    _ => "in fewer bits",
                }
            );
        }
    }
}
