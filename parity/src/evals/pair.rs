//! Pairs the samples of two files that have the same question.

use std::collections::BTreeMap;

use super::comparison::items;
use super::diff_error::DiffError;
use super::sample::{Results, Sample};

/// A sample of A with its counterpart in B.
pub(super) type SamplePair<'a> = (&'a Sample, &'a Sample);

/// Samples of the same question, and remarks about the others.
#[derive(Debug)]
pub(super) struct SamplePairs<'a> {
    pub pairs: Vec<SamplePair<'a>>,
    pub notes: Vec<String>,
}

/// Pairs samples by id, or by the hash of the document if ids are numbered differently. The error says why
/// nothing can be compared.
pub(super) fn pairs<'a>(a: &'a Results, b: &'a Results) -> Result<SamplePairs<'a>, DiffError> {
    let mut notes = Vec::new();
    let mut paired = by(a, b, |sample| Some(&sample.id));
    if paired.iter().filter(|pair| same(pair)).count() * 2 < paired.len() || paired.is_empty() {
        let hashed = by(a, b, |sample| sample.hash.as_ref());
        if hashed.len() > paired.iter().filter(|pair| same(pair)).count() {
            notes.push(
                "ids are numbered otherwise; items are paired by the hash of the document"
                    .to_owned(),
            );
            paired = hashed;
        }
    }
    if paired.is_empty() {
        return Err(DiffError::NoPairs {
            a: a.path.clone(),
            first_of_a: first_id(a),
            b: b.path.clone(),
            first_of_b: first_id(b),
        });
    }
    let all = paired.len();
    let other = paired.iter().find(|pair| !same(pair)).map(|pair| pair.0.id.clone());
    paired.retain(same);
    if let Some(other) = other {
        if paired.len() * 2 < all {
            let apart = all - paired.len();
            let tasks = tasks(a, b);
            return Err(DiffError::OtherTask { all, apart, item: other, tasks });
        }
        notes.push(format!(
            "{} with the same id and another document or right answer left out (`{other}`)",
            items(all - paired.len())
        ));
    }
    let alone =
        (a.samples.len() - all.min(a.samples.len()), b.samples.len() - all.min(b.samples.len()));
    if alone != (0, 0) {
        notes.push(format!("{} in A alone, {} in B alone", items(alone.0), alone.1));
    }
    Ok(SamplePairs { pairs: paired, notes })
}

/// Returns the id of the first sample; empty without samples.
fn first_id(results: &Results) -> String {
    results.samples.first().map(|sample| sample.id.clone()).unwrap_or_default()
}

fn tasks(a: &Results, b: &Results) -> Option<[String; 2]> {
    let both = [a.facts.get("task")?.clone(), b.facts.get("task")?.clone()];
    Some(both).filter(|[a, b]| a != b)
}

fn by<'a>(
    a: &'a Results,
    b: &'a Results,
    key: impl Fn(&Sample) -> Option<&String>,
) -> Vec<SamplePair<'a>> {
    let known: BTreeMap<&String, &Sample> =
        b.samples.iter().filter_map(|sample| Some((key(sample)?, sample))).collect();
    a.samples
        .iter()
        .filter_map(|sample: &'a Sample| Some((sample, *known.get(key(sample)?)?)))
        .collect()
}

/// True if both samples have the same question, as far as known.
fn same((a, b): &SamplePair<'_>) -> bool {
    if let (Some(a), Some(b)) = (&a.hash, &b.hash) {
        return a == b;
    }
    // Equal prompts have equal questions, whatever the form of the correct answer.
    if !a.prompts.is_empty() && a.prompts == b.prompts {
        return true;
    }
    match (&a.target, &b.target) {
        (Some(a), Some(b)) => a.trim() == b.trim(),
        _ => true,
    }
}
