//! Reasons of differences from the readings of the engines.

use serde_json::Value;

use super::{Golden, Reading, canonical, same, same_calls};

/// Reading of one output beside those of the engines.
pub(super) enum Verdict {
    /// Engines with the same reading.
    Same(Vec<&'static str>),
    /// Reason of a difference from all of them.
    Differs(&'static str),
}

/// Reasons of differences, with the relation to an engine's reading that each one claims.
pub(super) const REASONS: [(&str, &str, Relation); 8] = [
    ("text_kept", "text beside the calls that the engine drops", text_kept),
    ("marks_dropped", "marks that the engine leaves in the text", marks_dropped),
    ("typed", "values that the engine returns as strings: numbers, `null`, `true`", typed),
    ("values_kept", "arguments that the engine drops", values_kept),
    ("call_kept", "calls that the engine drops", call_kept),
    ("malformed_is_text", "a malformed call, which the engine repairs or drops", malformed_is_text),
    ("guessed", "a damaged call, of which the engine makes another one", guessed),
    ("raises", "the engine's parser raises", |_, _, _| false),
];

pub(super) type Relation = fn(&Golden, &Reading, &Reading) -> bool;

fn text_kept(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    same_calls(ours, theirs) && within(&theirs.content, &ours.content)
}

fn marks_dropped(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    same_calls(ours, theirs) && within(&ours.content, &theirs.content)
}

/// True if the characters of `part` stand in `text` in the same order, but for white space.
pub(super) fn within(part: &str, text: &str) -> bool {
    let mut remaining = text.chars();
    part.chars().filter(|c| !c.is_whitespace()).all(|c| remaining.any(|other| other == c))
}

fn typed(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    ours.calls.len() == theirs.calls.len()
        && ours
            .calls
            .iter()
            .zip(&theirs.calls)
            .all(|(a, b)| a.0 == b.0 && loose_values(&a.1) == loose_values(&b.1))
        && within(&theirs.content, &ours.content)
}

/// Values of a text without quotation marks, numbers in one spelling.
fn loose_values(text: &str) -> Vec<String> {
    canonical(text)
        .replace(['"', '\\'], "")
        .split(['{', '}', '[', ']', ',', ':'])
        .map(|text: &str| {
            text.parse::<f64>().map_or_else(|_| text.to_owned(), |value| format!("{value:?}"))
        })
        .collect()
}

fn values_kept(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    ours.calls.len() == theirs.calls.len()
        && within(&theirs.content, &ours.content)
        && ours.calls.iter().zip(&theirs.calls).all(|(a, b)| a.0 == b.0)
        && ours
            .calls
            .iter()
            .zip(&theirs.calls)
            .any(|(a, b)| object_of(&a.1).keys().any(|key| !object_of(&b.1).contains_key(key)))
}

fn object_of(text: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str::<serde_json::Map<String, Value>>(text).unwrap_or_default()
}

fn call_kept(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    ours.calls.len() > theirs.calls.len() && subset(&theirs.calls, &ours.calls)
}

fn malformed_is_text(case: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    is_damaged(case)
        && subset(&ours.calls, &theirs.calls)
        && ours.content.len() >= theirs.content.trim().len()
}

fn guessed(case: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    is_damaged(case) && !same_calls(ours, theirs)
}

/// True if calls are among others in the same order.
fn subset(part: &[(String, String)], all_calls: &[(String, String)]) -> bool {
    let mut remaining = all_calls.iter();
    part.iter().all(|call| {
        remaining.any(|other| call.0 == other.0 && canonical(&call.1) == canonical(&other.1))
    })
}

fn is_damaged(case: &Golden) -> bool {
    ["cut", "left_out", "put_in", "doubled"].contains(&case.kind.as_str())
}

pub(super) fn verdict(case: &Golden, ours: &Reading) -> Option<Verdict> {
    let with: Vec<_> =
        readings(case).filter(|(_, theirs)| same(ours, theirs)).map(|(name, _)| name).collect();
    if !with.is_empty() {
        return Some(Verdict::Same(with));
    }
    if readings(case).next().is_none() {
        return Some(Verdict::Differs("raises"));
    }
    let reason = REASONS
        .iter()
        .find(|(_, _, holds)| readings(case).any(|(_, theirs)| holds(case, ours, theirs)))?;
    Some(Verdict::Differs(reason.0))
}

pub(super) fn readings(case: &Golden) -> impl Iterator<Item = (&'static str, &Reading)> {
    case.engines.iter().filter_map(|(name, reading)| Some((*name, reading.as_ref()?)))
}
