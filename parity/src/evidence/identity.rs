//! Distinguishes another model from a faulty engine: rows of another model are unrelated to ours.

use std::collections::BTreeSet;

use endpoints::{LogprobRow, ServerFacts};
use engine::ModelSource;

use super::distance::top;
use super::{Error, name_of};
use crate::check::Error as CheckError;
use crate::dump::Dump;
use crate::metrics::top1;

/// Number of most likely tokens of a row that are looked up in our row.
const TOKENS: usize = 16;
/// Maximum and minimum number of rows that are examined.
const MOST_ROWS: usize = 256;
const LEAST_ROWS: usize = 8;
/// Limit of the mean rank of such tokens in our own order, as a share of the vocabulary: by chance 0.5.
/// Even a faulty engine carries the embedding to the output, so its most likely tokens rank well before the
/// middle.
const UNRELATED: f64 = 0.42;
/// Limit of the mean rank at position 0, where neither positions nor attention matter.
const UNRELATED_FIRST: f64 = 0.33;

/// Returns an error for a server, or a dump, with another vocabulary.
pub(super) fn vocabulary(
    facts: &ServerFacts,
    source: &ModelSource<'_>,
    dump: Option<&Dump>,
) -> Result<(), Error> {
    let model = source.model.vocab;
    if let Some(dump) = dump.map(|dump| dump.manifest.vocab).filter(|dump| *dump != model) {
        return Err(CheckError::Vocab { dump, model }.into());
    }
    match facts.vocab.filter(|served| *served != model) {
        Some(served) => Err(other(
            facts,
            source,
            format!("its vocabulary has {served} tokens, and this one {model}"),
        )),
        None => Ok(()),
    }
}

fn other(facts: &ServerFacts, source: &ModelSource<'_>, evidence: String) -> Error {
    Error::OtherModel { url: facts.url.clone(), model: name_of(source.dir), found: evidence }
}

/// Fingerprint of a server's rows.
#[derive(Debug, Default)]
pub(super) struct RowFingerprint {
    places: Vec<f64>,
    first: Vec<f64>,
    same_top: usize,
    /// Most likely tokens of generated rows so far.
    generated: BTreeSet<usize>,
}

impl RowFingerprint {
    /// Looks up the most likely tokens of rows in our own.
    pub(super) fn add(&mut self, positions: &[usize], rows: &[LogprobRow], full: &[LogprobRow]) {
        for ((row, reference), position) in rows.iter().zip(full).zip(positions) {
            if self.places.len() >= MOST_ROWS || row.values.len() < 2 {
                return;
            }
            let mut best: Vec<(usize, f32)> = row.entries().collect();
            best.sort_by(|a, b| b.1.total_cmp(&a.1));
            best.truncate(TOKENS.min(row.values.len().div_ceil(4)));
            let places = best.iter().map(|(id, _)| place_in(&reference.values, *id));
            let mean = places.sum::<f64>() / best.len() as f64;
            self.same_top +=
                usize::from(best.first().is_some_and(|best| best.0 == top1(&reference.values)));
            self.places.push(mean);
            if *position == 0 {
                self.first.push(mean);
            }
        }
    }

    /// Looks up the most likely tokens of generated rows, each token once: a server may repeat the same one
    /// forever.
    pub(super) fn add_generated(&mut self, rows: &[LogprobRow], full: &[LogprobRow]) {
        for (row, reference) in rows.iter().zip(full) {
            if row.values.len() > 1 && self.generated.insert(top(row)) {
                self.add(&[usize::MAX], std::slice::from_ref(row), std::slice::from_ref(reference));
            }
        }
    }

    /// Returns an error if the rows are those of another model.
    pub(super) fn refuse(
        &self,
        facts: &ServerFacts,
        source: &ModelSource<'_>,
    ) -> Result<(), Error> {
        if self.places.len() < LEAST_ROWS || mean(&self.places) < UNRELATED {
            return Ok(());
        }
        if !self.first.is_empty() && mean(&self.first) < UNRELATED_FIRST {
            return Ok(());
        }
        let named = facts.root.as_ref().unwrap_or(&facts.model);
        let evidence = format!(
            "its rows have nothing in common with this model's (its likeliest tokens stand at {:.0} % of our order on the \
             average, by chance at 50 %, and {} of {} rows have the same likeliest token); it says that it serves `{named}`",
            100.0 * mean(&self.places),
            self.same_top,
            self.places.len()
        );
        Err(other(facts, source, evidence))
    }
}

/// Returns the share of tokens that are likelier than this one.
fn place_in(values: &[f32], id: usize) -> f64 {
    let value = values.get(id).copied().unwrap_or(f32::NEG_INFINITY);
    let before = values.iter().filter(|x| **x > value).count();
    before as f64 / values.len().max(1) as f64
}

/// Returns the mean of numbers.
fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}
