//! Formats a report for a terminal.

use std::fmt::Write as _;

use super::{Divergence, Report, RunReport, causes};
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::schedules::ScheduleRow;

/// Number of findings that are listed in full; the others are counted.
const LISTED: usize = 8;

/// Formats a report as text of a width that fits most terminals.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let s = &report.subject;
    line(&mut out, format_args!("{} ({}) on {}", s.spec, s.architecture, s.engine));
    line(&mut out, format_args!("  model      {}", s.model));
    if let Some(layers) = &s.layers {
        line(&mut out, format_args!("  only       {layers}, with embedding, last norm and head"));
    }
    line(&mut out, format_args!("  reference  {} by {}", s.reference, s.producer));
    out.push('\n');
    out.push_str(&phases(report));
    out.push_str(&states(report));
    out.push_str(&ops(report));
    out.push_str(&routers(report));
    out.push_str(&greedy(report));
    out.push_str(&schedules(&report.schedules));
    for run in &report.runs {
        if run.verdict() == Verdict::Fail {
            out.push_str(&failure(run));
        }
    }
    if let Some(diagnosis) = &report.diagnosis {
        out.push_str(&causes(diagnosis));
        out.push('\n');
    }
    for note in &report.notes {
        line(&mut out, format_args!("note: {note}"));
    }
    if let Some(run) = report.runs.first()
        && !run.uncovered.ours.is_empty()
    {
        let names = &run.uncovered.ours;
        line(
            &mut out,
            format_args!(
                "note: {} taps of the engine are not in the dump: {}",
                names.len(),
                some(names)
            ),
        );
    }
    let failed = report.runs.iter().filter(|r| r.verdict() == Verdict::Fail).count();
    let broken = report.schedules.iter().filter(|r| r.verdict == Verdict::Fail).count();
    let runs = match report.runs.len() {
        1 => "1 run".to_owned(),
        count => format!("{count} runs"),
    };
    let runs = match &s.layers {
        Some(layers) => format!("{runs} of {layers} alone"),
        None => runs,
    };
    match report.verdict() {
        Verdict::Fail if failed == 0 => {
            line(
                &mut out,
                format_args!("DIFFER: {broken} schedules do not give what one prefill gives"),
            );
        }
        Verdict::Fail => {
            line(&mut out, format_args!("DIFFER in {failed} of {runs}"));
        }
        _ => line(&mut out, format_args!("{}", agreement(report, &runs))),
    }
    out
}

/// Returns the last line of a report without a difference.
fn agreement(report: &Report, runs: &str) -> String {
    let place = if report.is_prefill_only() {
        format!("AGREE in prefill only, in {runs}")
    } else {
        format!("AGREE in {runs}")
    };
    match report.unproven() {
        Some(unproven) => format!("{place}, but not proven: {unproven}"),
        None => place,
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.push_str(text.to_string().trim_end());
    out.push('\n');
}

fn some(names: &[String]) -> String {
    let mut text = names.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 4 {
        text.push_str(", ...");
    }
    text
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Skip => "skip",
        Verdict::Fail => "FAIL",
    }
}

/// Formats rows of cells, with each column as wide as its widest cell; the last is left ragged.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| {
            let cells = rows.iter().filter_map(|row| row.get(c));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut text = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, "{cell:<width$}  ");
        }
        line(&mut out, format_args!("{text}"));
    }
    out
}

fn cells<const N: usize>(row: [&str; N]) -> Vec<String> {
    row.iter().map(|c| (*c).to_owned()).collect()
}

fn phases(report: &Report) -> String {
    let mut rows = vec![cells([
        "run",
        "phase",
        "|dlogp|",
        "bound",
        "mean",
        "KL",
        "top-1",
        "worst tap",
        "",
        "verdict",
    ])];
    for run in &report.runs {
        for p in &run.phases {
            let (tap, error) =
                p.worst_tap.as_ref().map_or((String::new(), String::new()), |(tap, e)| {
                    (tap.clone(), format!("{e:.1e}"))
                });
            rows.push(vec![
                run.label(),
                p.phase.to_string(),
                format!("{:.1e}", p.max),
                format!("{:.1e}", p.limit),
                format!("{:.1e}", p.mean),
                format!("{:.1e}", p.kl),
                format!("{:.1}%", p.top1 * 100.0),
                tap,
                error,
                word(p.verdict).to_owned(),
            ]);
        }
    }
    table(&rows) + "\n"
}

fn is_state(gate: &Gate) -> bool {
    matches!(gate.subject, Subject::State { .. })
}

/// Returns one line per run if all states agree; the failed ones by name.
fn states(report: &Report) -> String {
    let mut rows = Vec::new();
    for run in &report.runs {
        let all: Vec<&Gate> =
            run.gates.iter().filter(|g| is_state(g) && g.mode == Mode::Cumulative).collect();
        if all.is_empty() {
            continue;
        }
        let failed: Vec<&&Gate> = all.iter().filter(|g| g.fails()).collect();
        let worst = all.iter().max_by(|a, b| a.error.max.total_cmp(&b.error.max));
        if failed.is_empty() {
            rows.push(vec![
                run.label(),
                format!("{} comparisons", all.len()),
                worst
                    .map_or(String::new(), |w| format!("worst {:.1e}, {}", w.error.max, w.subject)),
                "pass".to_owned(),
            ]);
        }
        for gate in failed.iter().take(LISTED) {
            rows.push(vec![
                run.label(),
                gate.subject.to_string().trim_start_matches("state ").to_owned(),
                place_in_sequence(gate.phase, gate.step.unwrap_or(0), gate.moment),
                "FAIL".to_owned(),
                gate.message(),
            ]);
        }
        if failed.len() > LISTED {
            rows.push(vec![run.label(), format!("and {} more", failed.len() - LISTED)]);
        }
    }
    if rows.is_empty() { String::new() } else { format!("states\n{}\n", indent(&table(&rows))) }
}

/// Returns one line per run: the coverage of single ops, and the error that could have been missed.
fn ops(report: &Report) -> String {
    let mut rows = Vec::new();
    for run in report.runs.iter().filter(|run| run.part.is_none_or(|part| part == "nextn")) {
        let coverage = &run.coverage;
        let Some((weakest, error)) = &coverage.weakest else { continue };
        let mut reach = String::new();
        if let Some((reached, all)) = coverage.experts {
            let _ = write!(reach, "{reached} of {all} experts reached");
        }
        for window in &coverage.windows {
            let _ = write!(reach, " window of {window} not reached");
        }
        if coverage.strays > 0 {
            let _ = write!(reach, " rows off by a single rounding: {}", coverage.strays);
        }
        rows.push(vec![
            run.label(),
            extent(Phase::Prefill, coverage.prefill),
            extent(Phase::Decode, coverage.decode),
            format!("weakest sees {error:.1e} of the rms: {weakest}"),
            reach.trim().to_owned(),
        ]);
    }
    let title = "ops on the reference's own inputs";
    if rows.is_empty() { String::new() } else { format!("{title}\n{}\n", indent(&table(&rows))) }
}

/// Describes the positions of a phase that were compared.
fn extent(phase: Phase, last: Option<usize>) -> String {
    match last {
        Some(last) => format!("{phase} to position {last}"),
        None => format!("{phase} not compared"),
    }
}

fn indent(text: &str) -> String {
    text.lines().fold(String::new(), |out, l| out + "  " + l + "\n")
}

/// Describes the place of an error in a sequence. In decode, steps after the prefix are counted: the first step feeds the
/// token behind the prefix.
pub(crate) fn place_in_sequence(phase: Phase, position: usize, moment: Option<&str>) -> String {
    match (phase, position, moment) {
        (Phase::Prefill, position, _) => format!("prefill, position {position}"),
        (Phase::Decode, _, Some(_)) => "decode, position 0 (what the prefill left)".to_owned(),
        (Phase::Decode, 0, _) => "decode, position 0 (what the prefix left)".to_owned(),
        (Phase::Decode, step, _) => format!("decode, step {step} after the prefix"),
    }
}

fn routers(report: &Report) -> String {
    let mut rows = Vec::new();
    for run in &report.runs {
        for row in &run.routers {
            let flip = row.widest().map_or(String::new(), |f| {
                let width =
                    if f.margin > f.bound { "more than rounding" } else { "within rounding" };
                format!(
                    "widest margin {:.1e}, {width} ({:.1e}): {}, {}, row {}",
                    f.margin, f.bound, f.router, f.place, f.row
                )
            });
            rows.push(vec![
                run.label(),
                row.mode.name().to_owned(),
                format!("{} of {} choices agree", row.agree, row.choices),
                flip,
                word(row.verdict).to_owned(),
            ]);
        }
    }
    if rows.is_empty() { String::new() } else { format!("routers\n{}\n", indent(&table(&rows))) }
}

fn greedy(report: &Report) -> String {
    let mut rows = Vec::new();
    for run in &report.runs {
        for g in &run.greedy {
            let flip = g.first_flip.map_or(String::new(), |f| {
                let width = if f.margin > f.noise { "more than noise" } else { "within noise" };
                format!(
                    "first flip at {}: margin {:.1e}, {width} ({:.1e})",
                    f.index, f.margin, f.noise
                )
            });
            rows.push(vec![
                run.label(),
                g.prompt.clone(),
                format!("{} of {}", g.agree, g.tokens),
                flip,
                word(g.verdict).to_owned(),
            ]);
        }
    }
    if rows.is_empty() {
        String::new()
    } else {
        format!("greedy tokens\n{}\n", indent(&table(&rows)))
    }
}

/// Formats only the schedules.
pub fn schedules(all: &[ScheduleRow]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut rows = Vec::new();
    let mut dtypes: Vec<_> = all.iter().map(|r| r.dtype).collect();
    dtypes.dedup();
    for dtype in dtypes {
        let of: Vec<&ScheduleRow> = all.iter().filter(|r| r.dtype == dtype).collect();
        let passed = of.iter().filter(|r| r.verdict == Verdict::Pass).count();
        let worst = of.iter().map(|r| r.max).fold(0.0, f64::max);
        rows.push(vec![
            dtype.to_string(),
            format!("{passed} of {} agree with one prefill", of.len()),
            if worst == 0.0 { "exactly".to_owned() } else { format!("worst {worst:.1e}") },
        ]);
        for row in of.iter().filter(|r| r.verdict != Verdict::Pass) {
            let at = row.position.map_or(String::new(), |p| {
                format!("from position {p}: {:.1e}, bound {:.1e}", row.distance, row.limit)
            });
            rows.push(vec![
                dtype.to_string(),
                row.name.clone(),
                word(row.verdict).to_owned(),
                [at, row.note.clone().unwrap_or_default()].join(" ").trim().to_owned(),
                format!("({})", row.why),
            ]);
        }
    }
    format!("schedules\n{}\n", indent(&table(&rows)))
}

fn failure(run: &RunReport) -> String {
    let mut out = String::new();
    if let Some(first) = run.headline() {
        line(&mut out, format_args!("{}: first divergence: {}", run.label(), first.subject));
        out.push_str(&divergence(first));
        let other = if first.mode == Mode::Local { &run.first } else { &run.first_local };
        if let Some(other) = other
            && other.subject != first.subject
        {
            line(
                &mut out,
                format_args!(
                    "  {}: first beyond its bound is {}",
                    other.mode.name(),
                    other.subject
                ),
            );
            line(&mut out, format_args!("    {}: {}", other.place(), other.message));
        }
    }
    let failed: Vec<&Gate> = run.gates.iter().filter(|g| g.fails()).collect();
    let local = failed.iter().filter(|g| g.mode == Mode::Local).count();
    line(
        &mut out,
        format_args!(
            "  {} of {} gates fail, {local} of them on the reference's own inputs",
            failed.len(),
            run.gates.len()
        ),
    );
    out.push('\n');
    out
}

fn divergence(d: &Divergence) -> String {
    let mut out = String::new();
    let fed = d.mode.inputs();
    line(&mut out, format_args!("  {}, prompt `{}`, {fed}", d.place(), d.prompt));
    line(&mut out, format_args!("  {}", d.message));
    for hint in &d.hints {
        line(&mut out, format_args!("  hint: {hint}"));
    }
    out
}
