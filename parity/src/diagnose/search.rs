//! Runs edits one after another, groups those with equal results, and ranks them.

use registry::model::Model;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::edit_trials::EditSearch;
use super::phase_trial::TrialDifferences;
use super::score::{ComparisonTarget, Score, distance};
use super::{Cause, EditSummary, fit};
use crate::edit::{Candidate, Edit, TokenEdit};

/// Factor on the noise of the best edit within which another one counts as equally good. The simpler one is
/// then named.
const AS_GOOD: f64 = 1.5;

/// Share of the noise within which the results of two edits count as equal.
const ALIKE: f64 = 0.125;

/// Maximum remaining difference, as a share, of edits that are reported although they do not explain
/// everything.
pub(super) const PARTIAL: f64 = 0.9;

/// Edits with bit-identical results.
pub(super) struct EditGroup {
    pub(super) edits: Vec<Edit>,
    bits: u64,
    /// Differences, for edits that explain everything.
    numbers: Option<TrialDifferences>,
    pub(super) score: Score,
    /// Index of its first edit among the candidates.
    order: usize,
}

impl EditGroup {
    /// Returns the model with the group's first edit.
    pub(super) fn model(&self, model: &Model) -> Model {
        let mut model = model.clone();
        if let Some(edit) = self.edits.first() {
            edit.change.apply(&mut model);
        }
        model
    }

    /// Returns the edit of the tokens that the group's first edit makes.
    pub(super) fn tokens(&self) -> TokenEdit {
        self.edits.first().map(Edit::tokens).unwrap_or_default()
    }
}

impl EditSearch<'_> {
    /// Runs all candidates and groups them by their results, best first. The candidates follow on `before`
    /// others.
    pub(super) fn run(
        &mut self,
        candidates: &[Candidate],
        before: usize,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Vec<EditGroup> {
        let unedited = bits(&self.unedited);
        let mut groups: Vec<EditGroup> = Vec::new();
        for (order, candidate) in candidates.iter().enumerate() {
            if self.cut {
                break;
            }
            let (order, outcome) = match candidate {
                Candidate::Edit(edit) => {
                    progress(order, candidates.len(), &edit.words);
                    let outcome = self.attempt(edit);
                    (before + order, outcome.map(|(numbers, score)| (edit.clone(), numbers, score)))
                }
                Candidate::Knob(knob) => {
                    progress(order, candidates.len(), "a number to fit");
                    // A value that is written somewhere is likelier than a fitted one.
                    (before + order + candidates.len(), fit::fit(self, knob))
                }
            };
            let Some((edit, numbers, score)) = outcome else { continue };
            let bits = bits(&numbers);
            if bits == unedited {
                continue;
            }
            match groups.iter_mut().find(|group| group.bits == bits) {
                Some(group) if group.edits.iter().all(|other| other.change != edit.change) => {
                    group.edits.push(edit);
                }
                Some(_) => {}
                None => {
                    let numbers = score.exact().then_some(numbers);
                    groups.push(EditGroup { edits: vec![edit], bits, numbers, score, order });
                }
            }
        }
        rank(&mut groups);
        merge(groups, self.targets)
    }
}

/// Returns a key of results, for comparisons within one search alone: its value may change with the compiler.
fn bits(numbers: &TrialDifferences) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in numbers {
        part.is_some().hash(&mut hasher);
        for x in part.iter().flatten() {
            // Positive and negative zero compare equal.
            (x + 0.0).to_bits().hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Sorts groups: those that explain everything first, and the simplest among equally good ones; then by the
/// remaining difference.
pub(super) fn rank(groups: &mut [EditGroup]) {
    let exact = groups.iter().filter(|group| group.score.exact());
    let best = exact.map(|group| group.score.noise).fold(f64::INFINITY, f64::min);
    let limit = best * AS_GOOD + 0.02;
    groups.sort_by(|a, b| {
        rank_class(a, limit).cmp(&rank_class(b, limit)).then_with(|| match rank_class(a, limit) {
            0 => a.order.cmp(&b.order),
            1 => a.score.noise.total_cmp(&b.score.noise),
            _ => a.score.rest.total_cmp(&b.score.rest).then(a.order.cmp(&b.order)),
        })
    });
}

/// Returns 0 for a group that explains everything with noise up to a limit, 1 for one with more noise, and 2 for others.
fn rank_class(group: &EditGroup, limit: f64) -> u8 {
    match group.score.exact() {
        true if group.score.noise <= limit => 0,
        true => 1,
        false => 2,
    }
}

/// Merges groups that explain everything and differ by less than noise: forms of one function. The nearest
/// is named first.
fn merge(groups: Vec<EditGroup>, targets: &[ComparisonTarget]) -> Vec<EditGroup> {
    let mut merged: Vec<EditGroup> = Vec::new();
    for group in groups {
        match merged.iter_mut().find(|other| is_alike(other, &group, targets)) {
            Some(other) if group.score.noise < other.score.noise / AS_GOOD => {
                let mut edits = group.edits;
                edits.append(&mut other.edits);
                (other.edits, other.score) = (edits, group.score);
            }
            Some(other) => other.edits.extend(group.edits),
            None => merged.push(group),
        }
    }
    merged
}

/// True if two groups explain everything and differ by less than noise.
fn is_alike(a: &EditGroup, b: &EditGroup, targets: &[ComparisonTarget]) -> bool {
    let Some(a) = &a.numbers else { return false };
    let Some(b) = &b.numbers else { return false };
    a.iter().zip(b).zip(targets).all(|((a, b), target)| match (a, b) {
        (Some(a), Some(b)) => distance(a, b) <= ALIKE * target.limit,
        (a, b) => a.is_none() && b.is_none(),
    })
}

/// Describes the edits of a group.
pub(super) fn described(group: &EditGroup) -> impl Iterator<Item = EditSummary> + '_ {
    group.edits.iter().map(|edit| EditSummary {
        edit: edit.words.clone(),
        place: edit.place.clone(),
        change: edit.change.clone(),
    })
}

/// Turns a group into a cause.
pub(super) fn cause(group: &EditGroup, verified: Option<bool>) -> Cause {
    Cause {
        edits: described(group).collect(),
        with: Vec::new(),
        restored: 1.0 - group.score.rest.min(1.0),
        left: group.score.left,
        exact: group.score.exact(),
        verified,
    }
}

/// Returns the groups that are run in full: those that explain everything, else the best whose remaining
/// difference is less than `partial`.
pub(super) fn shortlist(
    groups: &[EditGroup],
    limit: usize,
    partial: f64,
) -> impl Iterator<Item = &EditGroup> {
    groups.iter().filter(move |group| group.score.rest < partial).take(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simplest_of_those_that_explain_everything_is_first() {
        let mut all = vec![
            group(0, 0.5, 100.0, 200.0),
            group(1, 1e-5, 0.9, 1.0),
            group(2, 1e-6, 0.012, 0.1),
            group(3, 1e-6, 0.010, 0.1),
            group(4, 0.1, 10.0, 20.0),
        ];
        rank(&mut all);
        let order: Vec<usize> = all.iter().map(|group| group.order).collect();
        assert_eq!(order, [2, 3, 1, 4, 0]);
    }

    fn group(order: usize, rest: f64, noise: f64, worst: f64) -> EditGroup {
        EditGroup {
            edits: Vec::new(),
            bits: order as u64,
            numbers: None,
            score: Score { rest, noise, worst, left: 0.0, first: 0.0 },
            order,
        }
    }
}
