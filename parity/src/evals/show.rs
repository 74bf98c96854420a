//! Formats a comparison as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::comparison::{EvalComparison, ResultFile};

/// Formats a comparison as text: the verdict, the reasons, and the next steps.
pub fn text(outcome: &EvalComparison) -> String {
    let mut out = format!("{}: {}\n\n", outcome.verdict, outcome.headline);
    for (name, side) in [("A", &outcome.a), ("B", &outcome.b)] {
        let _ = writeln!(
            out,
            "{name}  {}  ({}, {} items)  {}",
            side.path,
            side.format,
            side.items,
            shown_score(side)
        );
    }
    let _ = write!(out, "   {} items in both", outcome.items);
    if let Some(equal) = outcome.equal_inputs {
        let _ = write!(out, ", {equal} with equal inputs");
    }
    if let Some(paired) = &outcome.paired {
        let _ = write!(out, "; {} A - B {:+.3}", paired.metric, paired.difference);
        if let Some((low, high)) = paired.interval {
            let _ = write!(out, " (95 % {low:+.3} to {high:+.3})");
        }
    }
    out.push('\n');
    section(&mut out, "why", &outcome.why);
    if !outcome.examples.is_empty() {
        out.push_str("\nexamples\n");
        for example in &outcome.examples {
            let _ = write!(
                out,
                "  item {}: {}\n    A  {}\n    B  {}\n",
                example.id, example.what, example.a, example.b
            );
        }
    }
    section(&mut out, "what to do", &outcome.todo);
    let notes = [("A", &outcome.a), ("B", &outcome.b)];
    let notes = notes
        .iter()
        .flat_map(|(name, side)| side.notes.iter().map(move |n| format!("{name}: {n}")));
    let notes: Vec<String> = outcome.notes.iter().cloned().chain(notes).collect();
    section(&mut out, "notes", &notes);
    out
}

/// Formats the score of a file with its standard error.
fn shown_score(side: &ResultFile) -> String {
    match (side.score, side.error) {
        (Some(score), Some(error)) => format!("{score:.3} ± {error:.3}"),
        (Some(score), None) => format!("{score:.3}"),
        _ => "no scores".to_owned(),
    }
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(out, "\n{title}");
        for line in lines {
            let _ = writeln!(out, "  {line}");
        }
    }
}

/// Formats a comparison as JSON, in the form of `docs/evals.md`.
pub fn json(outcome: &EvalComparison) -> Value {
    json!({
        "schema": "onboard-eval-diff/1",
        "verdict": outcome.verdict.id(),
        "differs": outcome.verdict.differs(),
        "headline": outcome.headline,
        "why": outcome.why,
        "examples": outcome.examples.iter().map(|example| json!({
            "id": example.id, "what": example.what, "a": example.a, "b": example.b,
        })).collect::<Vec<_>>(),
        "todo": outcome.todo,
        "a": file_entry(&outcome.a),
        "b": file_entry(&outcome.b),
        "items": outcome.items,
        "equal_inputs": outcome.equal_inputs,
        "scores": outcome.paired.as_ref().map(|paired| json!({
            "metric": paired.metric,
            "items": paired.items,
            "only_a": paired.only_a,
            "only_b": paired.only_b,
            "mcnemar_p": paired.p,
            "difference": paired.difference,
            "interval": paired.interval.map(|(low, high)| [low, high]),
            "significant": paired.significant,
        })),
        "logprobs": outcome.logprobs.as_ref().map(|facts| json!({
            "compared": facts.compared,
            "equal": facts.equal,
            "finite_on_one_side": facts.nonfinite,
            "median": facts.median,
            "p99": facts.p99,
            "max": facts.max,
            "bulk_per_token": facts.bulk,
            "noise_per_token": facts.unit,
            "noise_source": facts.source,
            "beyond": facts.beyond,
            "kind": facts.kind,
            "differs": facts.differs,
        })),
        "notes": outcome.notes,
    })
}

/// Formats one of the files as JSON.
fn file_entry(side: &ResultFile) -> Value {
    json!({
        "path": side.path,
        "format": side.format.to_string(),
        "items": side.items,
        "score": side.score,
        "standard_error": side.error,
        "notes": side.notes,
    })
}
