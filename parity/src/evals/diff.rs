//! Compares two result files and gives one verdict.
//!
//! It names the earliest cause alone ([decision 46](../../../docs/decisions/0046-one-cause-of-a-score-difference.md)).

use super::answers::{AnswerComparison, answers};
use super::comparison::{
    EvalComparison, EvalFinding, EvalVerdict, PairedScores, ResultFile, items,
};
use super::diff_error::DiffError;
use super::inputs::inputs;
use super::logprobs::{Noise, logprobs};
use super::pair::{SamplePair, pairs};
use super::sample::Results;
use super::scoring::scoring;
use super::stats::{bootstrap, mcnemar, mean, standard_error, wilson_upper};

/// Significance level: below this p value a difference of scores is real.
const LEVEL: f64 = 0.05;
/// Metrics in order of preference.
const METRICS: [&str; 4] = ["acc", "exact_match", "correct", "acc_norm"];

/// Compares two result files.
pub fn diff(
    a: &Results,
    b: &Results,
    noise: &Noise,
    metric: Option<&str>,
) -> Result<EvalComparison, DiffError> {
    let matched = pairs(a, b)?;
    let mut notes = matched.notes;
    let all = matched.pairs;
    let metrics = metrics(a, b, metric)?;
    let chosen = metrics.as_ref().map(|(a, b)| (a.as_str(), b.as_str()));
    let scores = scores(&all, chosen);
    let paired = chosen.and_then(|metrics| paired(&scores, metrics));
    let compared_inputs = inputs(&all, a, b);
    let missing = a.samples.len().max(b.samples.len()) - all.len();
    let stage = ComparisonStage { a, b, noise, chosen, missing };
    let result = if compared_inputs.found.is_some() && compared_inputs.equal.is_empty() {
        None
    } else {
        Some(stage.compare_answers(
            &compared_inputs.equal,
            if compared_inputs.found.is_some() { None } else { paired.as_ref() },
        ))
    };
    let facts = result.as_ref().and_then(|result| result.logprobs.clone());
    let finding = match (compared_inputs.found, result) {
        (Some(finding), result) => {
            if let Some(scoring) = scoring(&all, a, b) {
                notes.push(scoring.headline);
            } else if let Some(Ok(other)) = result.map(|result| result.found) {
                let equal = items(compared_inputs.equal.len());
                notes.push(format!("on the {equal} with equal inputs: {}", other.headline));
            }
            finding
        }
        (None, Some(result)) => {
            notes.extend(result.notes);
            result.found?
        }
        (None, None) => return Err(DiffError::NoItems),
    };
    if compared_inputs.known == 0 {
        notes.push("the files do not hold the inputs of both sides, so it is not known that they are equal".to_owned());
    }
    let mut why = finding.why;
    why.extend(paired.as_ref().map(counts));
    Ok(EvalComparison {
        verdict: finding.verdict,
        headline: finding.headline,
        why,
        examples: finding.examples,
        todo: finding.todo,
        a: result_file(a, &scores, 0),
        b: result_file(b, &scores, 1),
        items: all.len(),
        equal_inputs: (compared_inputs.known > 0).then_some(compared_inputs.equal.len()),
        paired,
        logprobs: facts,
        notes,
    })
}

/// Describes one of the files; `side` is its index in the pairs of scores.
fn result_file(results: &Results, scores: &[[f64; 2]], side: usize) -> ResultFile {
    let values: Vec<f64> = scores.iter().map(|pair| pair[side]).collect();
    ResultFile {
        path: results.path.display().to_string(),
        format: results.format,
        items: results.samples.len(),
        score: mean(&values),
        error: standard_error(&values),
        notes: results.notes.clone(),
    }
}

struct ComparisonStage<'b> {
    a: &'b Results,
    b: &'b Results,
    noise: &'b Noise,
    chosen: Option<(&'b str, &'b str)>,
    /// Number of items of one file that the other lacks.
    missing: usize,
}

/// Result of all stages after the comparison of inputs.
struct StageResult {
    found: Result<EvalFinding, DiffError>,
    logprobs: Option<super::comparison::LogprobDistances>,
    notes: Vec<String>,
}

impl ComparisonStage<'_> {
    /// Runs the stages after the comparison of inputs, on pairs with equal inputs.
    fn compare_answers(
        &self,
        equal: &[SamplePair<'_>],
        paired_of_all: Option<&PairedScores>,
    ) -> StageResult {
        let paired_of_equal;
        let paired = match (paired_of_all, self.chosen) {
            (Some(paired), _) => Some(paired),
            (None, Some(metrics)) => {
                paired_of_equal = paired(&scores(equal, self.chosen), metrics);
                paired_of_equal.as_ref()
            }
            (None, None) => None,
        };
        let compared = logprobs(equal, self.noise);
        let (facts, apart) = match compared {
            Some((facts, finding)) => (Some(facts), finding),
            None => (None, None),
        };
        if let Some(finding) = scoring(equal, self.a, self.b) {
            return StageResult { found: Ok(finding), logprobs: facts, notes: Vec::new() };
        }
        if let Some(finding) = apart {
            return StageResult { found: Ok(finding), logprobs: facts, notes: Vec::new() };
        }
        let findings = answers(&AnswerComparison {
            pairs: equal,
            metrics: self.chosen,
            paired,
            scored: facts.is_some(),
            a: self.a,
            b: self.b,
        });
        if let Some(finding) = findings.found {
            return StageResult { found: Ok(finding), logprobs: facts, notes: findings.notes };
        }
        let comparable = paired.is_some()
            || facts.is_some()
            || equal.iter().any(|(a, b)| a.answer.is_some() && b.answer.is_some())
            || equal.iter().any(|(a, b)| a.text.is_some() && b.text.is_some());
        if !comparable {
            return StageResult {
                found: Err(DiffError::NothingShared),
                logprobs: facts,
                notes: Vec::new(),
            };
        }
        let sampled = self.a.sampled() == Some(true) && self.b.sampled() == Some(true);
        let unrelated = paired.filter(|_| !sampled).and_then(unrelated);
        let finding = match unrelated {
            Some(headline) => found(EvalVerdict::Unexplained, headline, Some(SAMPLES.to_owned())),
            None => remaining(equal.len(), self.missing, findings.disagree, paired, facts.as_ref()),
        };
        StageResult { found: Ok(finding), logprobs: facts, notes: findings.notes }
    }
}

/// Advice for files with too little data.
const SAMPLES: &str = "write samples with inputs, texts and log-probabilities (lm-eval: --log_samples; `parity eval` with the option `output`), and \
     compare those";
/// Minimum agreement beyond chance (Cohen's kappa) of two runs of one model. Unrelated runs have 0. Runs of one model
/// in 16 and 8 bits have 0.97 or more, in 4 bits 0.84 or more (docs/evals.md).
const KAPPA: f64 = 0.4;

/// Returns the finding that two runs agree too rarely to be of one model: equal scores on different items.
fn unrelated(paired: &PairedScores) -> Option<String> {
    let apart = usize::try_from(paired.only_a + paired.only_b).ok()?;
    let expected = paired.chance?;
    let share = wilson_upper(paired.items.checked_sub(apart)?, paired.items)?;
    let kappa = (share - expected) / (1.0 - expected);
    (kappa < KAPPA).then(|| {
        format!(
            "the scores are alike, but of other items: the runs agree on {} of {}, and unrelated runs with these scores \
             on {:.0}",
            paired.items - apart,
            items(paired.items),
            expected * paired.items as f64
        )
    })
}

/// Returns the verdict if no stage found a cause, for `n` items. `missing` more items are in one file only.
fn remaining(
    n: usize,
    missing: usize,
    disagree: usize,
    paired: Option<&PairedScores>,
    facts: Option<&super::comparison::LogprobDistances>,
) -> EvalFinding {
    let mut why = Vec::new();
    if let Some(facts) = facts {
        why.push(format!(
            "log-likelihoods: largest difference {:.2e} nats, {} of {} equal in every bit; within noise ({})",
            facts.max, facts.equal, facts.compared, facts.source
        ));
    }
    let (verdict, headline, todo) = if let Some(paired) = paired.filter(|paired| paired.significant)
    {
        (
            EvalVerdict::Unexplained,
            format!(
                "the scores differ by {:+.3}, beyond noise, and the files do not hold the cause",
                paired.difference
            ),
            Some(SAMPLES.to_owned()),
        )
    } else if disagree > 0 {
        let headline = match paired {
            Some(paired) => format!(
                "{} of {n} differ, no more than chance makes: {:+.3}{}",
                items(disagree),
                paired.difference,
                interval(paired)
            ),
            None => format!("{} of {n} differ", items(disagree)),
        };
        let more = "to see a smaller difference, compare more items".to_owned();
        (EvalVerdict::Noise, headline, Some(more))
    } else {
        let which = if missing > 0 { "that both files hold " } else { "" };
        let todo = (missing > 0)
            .then(|| format!("not compared: {}; compare runs of the same items", items(missing)));
        (EvalVerdict::Agree, format!("all {} {which}agree", items(n)), todo)
    };
    EvalFinding { why, ..found(verdict, headline, todo) }
}

fn found(verdict: EvalVerdict, headline: String, todo: Option<String>) -> EvalFinding {
    EvalFinding {
        verdict,
        headline,
        why: Vec::new(),
        examples: Vec::new(),
        todo: Vec::from_iter(todo),
    }
}

fn interval(paired: &PairedScores) -> String {
    paired
        .interval
        .map_or_else(String::new, |(low, high)| format!(", 95 % interval {low:+.3} to {high:+.3}"))
}

/// Describes the counts of correct answers, the last reason of every verdict.
fn counts(paired: &PairedScores) -> String {
    let p = match paired.p {
        Some(p) if p < 1e-3 => format!("; McNemar's exact test: p = {p:.1e}"),
        Some(p) => format!("; McNemar's exact test: p = {p:.3}"),
        None => String::new(),
    };
    let items = items(paired.items);
    let PairedScores { metric, only_a, only_b, .. } = paired;
    format!("{items} by `{metric}`: A alone is better in {only_a}, B alone in {only_b}{p}")
}

/// Chooses the metric of each side.
fn metrics(
    a: &Results,
    b: &Results,
    requested: Option<&str>,
) -> Result<Option<(String, String)>, DiffError> {
    let one = metric_names(a);
    let other = metric_names(b);
    if let Some(requested) = requested {
        for (known, results) in [(&one, a), (&other, b)] {
            if !known.iter().any(|name| name == requested) {
                let path = results.path.clone();
                let known = known.clone();
                return Err(DiffError::NoMetric { path, metric: requested.to_owned(), known });
            }
        }
        return Ok(Some((requested.to_owned(), requested.to_owned())));
    }
    if let Some(shared) = one.iter().find(|name| other.contains(name)) {
        return Ok(Some((shared.clone(), shared.clone())));
    }
    Ok(one.into_iter().next().zip(other.into_iter().next()))
}

/// Returns the names of the metrics of a file, the usual ones first.
fn metric_names(results: &Results) -> Vec<String> {
    let samples = results.samples.iter().take(64);
    let mut names: Vec<String> = samples.flat_map(|sample| sample.scores.keys().cloned()).collect();
    names.sort_by_key(|name| {
        (METRICS.iter().position(|known| known == name).unwrap_or(METRICS.len()), name.clone())
    });
    names.dedup();
    names
}

/// Returns the scores of the pairs that have them on both sides.
fn scores(pairs: &[SamplePair<'_>], metrics: Option<(&str, &str)>) -> Vec<[f64; 2]> {
    let Some((one, other)) = metrics else { return Vec::new() };
    pairs
        .iter()
        .filter_map(|(a, b): &SamplePair<'_>| Some([*a.scores.get(one)?, *b.scores.get(other)?]))
        .filter(|pair| pair.iter().all(|score| score.is_finite()))
        .collect()
}

fn paired(scores: &[[f64; 2]], metrics: (&str, &str)) -> Option<PairedScores> {
    let differences: Vec<f64> = scores.iter().map(|[a, b]| a - b).collect();
    let difference = mean(&differences)?;
    let binary = scores.iter().flatten().all(|score| *score == 0.0 || *score == 1.0);
    let only_a = differences.iter().filter(|d| **d > 0.0).count() as u64;
    let only_b = differences.iter().filter(|d| **d < 0.0).count() as u64;
    let interval = bootstrap(&differences);
    let chance = mean_score(scores, 0)
        .zip(mean_score(scores, 1))
        .map(|(a, b)| a * b + (1.0 - a) * (1.0 - b));
    let chance = chance.filter(|chance| binary && *chance < 1.0);
    let p = binary.then(|| mcnemar(only_a, only_b));
    let significant = match p {
        Some(p) => p < LEVEL,
        None => interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0),
    };
    let metric = if metrics.0 == metrics.1 {
        metrics.0.to_owned()
    } else {
        format!("{} and {}", metrics.0, metrics.1)
    };
    Some(PairedScores {
        metric,
        items: scores.len(),
        only_a,
        only_b,
        p,
        difference,
        interval,
        significant,
        chance,
    })
}

/// Returns the mean score of one side.
fn mean_score(scores: &[[f64; 2]], side: usize) -> Option<f64> {
    mean(&scores.iter().map(|pair| pair[side]).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
