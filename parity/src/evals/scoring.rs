//! Finds sides without usable scores: servers that cannot compute the log-likelihood of a prompt return
//! constants.

use std::collections::BTreeMap;

use super::comparison::{EXAMPLES, EvalFinding, EvalVerdict, Example, items};
use super::pair::SamplePair;
use super::sample::{Results, Sample};

/// Minimum share of equal items of a side without scores.
const SHARE: f64 = 0.95;
/// Minimum number of items for which a constant choice is meaningful.
const FEWEST: usize = 20;

/// Searches for a side that has no usable scores.
pub(super) fn scoring(pairs: &[SamplePair<'_>], a: &Results, b: &Results) -> Option<EvalFinding> {
    let sides = [("A", a, 0), ("B", b, 1)].map(|(name, results, at)| {
        let samples: Vec<&Sample> =
            pairs.iter().map(|(a, b)| if at == 0 { *a } else { *b }).collect();
        (name, results, unusable(&samples))
    });
    let bad: Vec<_> = sides
        .iter()
        .filter_map(|(name, results, fault)| Some((*name, *results, fault.clone()?)))
        .collect();
    let (name, _, (what, _)) = bad.first()?;
    let headline = match bad.len() {
        1 => format!("{name} has no usable scores: {what}"),
        _ => format!("neither side has usable scores: {what}"),
    };
    let mut why = Vec::new();
    for (name, results, (what, score)) in &bad {
        why.push(format!("{name} ({}): {what}", results.format));
        if let Some(score) = score {
            why.push(format!(
                "{name}'s accuracy of {score:.3} is what one choice always taken gives: chance"
            ));
        }
    }
    let examples = pairs.iter().take(EXAMPLES).map(|(a, b)| Example {
        id: a.id.clone(),
        what: "scores of the choices".to_owned(),
        a: shown_scores(a),
        b: shown_scores(b),
    });
    Some(EvalFinding {
        verdict: EvalVerdict::Scoring,
        headline,
        why,
        examples: examples.collect(),
        todo: vec![
            "score on an engine that returns log-probabilities of prompts: vLLM with `echo` and `logprobs` (or \
             `prompt_logprobs` and `--max-logprobs -1`), SGLang's `/generate` with `logprob_start_len: 0`"
                .to_owned(),
            "llama-server ignores `echo` on /v1/completions, so lm-eval reads 0.0 for every choice; `parity eval MODEL \
             SAMPLES.jsonl` scores the same items natively"
                .to_owned(),
        ],
    })
}

/// Formats the first log-likelihoods of a sample, or its answer.
fn shown_scores(sample: &Sample) -> String {
    match (sample.logprobs.as_slice(), &sample.answer) {
        ([], Some(answer)) => format!("answer {answer}"),
        (numbers, _) => format!("{:?}", &numbers[..numbers.len().min(6)]),
    }
}

/// Returns the reason why a side has no scores, and its accuracy if that is chance.
fn unusable(samples: &[&Sample]) -> Option<(String, Option<f64>)> {
    let scored: Vec<&Sample> =
        samples.iter().copied().filter(|sample| !sample.logprobs.is_empty()).collect();
    let all = scored.len();
    if !scored.is_empty() {
        let zero = count(&scored, |sample| sample.logprobs.iter().all(|&number| number == 0.0));
        if is_most(zero, all) {
            let what = format!("every log-likelihood is 0 in {}", items(zero));
            return Some((what, one_choice(samples).map(|(_, score)| score)));
        }
        let missing =
            count(&scored, |sample| sample.logprobs.iter().all(|number| !number.is_finite()));
        if is_most(missing, all) {
            let what = format!("no log-likelihood is finite in {}", items(missing));
            return Some((what, one_choice(samples).map(|(_, score)| score)));
        }
        let constant = count(&scored, |sample| {
            sample.logprobs.len() > 1 && sample.logprobs.windows(2).all(|pair| pair[0] == pair[1])
        });
        if is_most(constant, all) {
            let what = format!("all choices have the same log-likelihood in {}", items(constant));
            return Some((what, one_choice(samples).map(|(_, score)| score)));
        }
        let first = scored[0].logprobs[0];
        let same = count(&scored, |sample| sample.logprobs.len() == 1);
        if is_most(same, all) && all >= FEWEST && scored.iter().all(|s| s.logprobs[0] == first) {
            return Some((format!("every item has the log-likelihood {first}"), None));
        }
        return None;
    }
    let (answer, score) = one_choice(samples)?;
    let what = format!(
        "the answer is `{answer}` in {} of {}, whatever the right one is",
        samples.iter().filter(|sample| sample.answer.as_deref() == Some(&answer)).count(),
        items(samples.len())
    );
    Some((what, Some(score)))
}

/// Counts the samples that pass a test.
fn count(samples: &[&Sample], test: fn(&Sample) -> bool) -> usize {
    samples.iter().filter(|sample| test(sample)).count()
}

/// True if `n` samples of several are nearly all of them.
fn is_most(n: usize, all: usize) -> bool {
    all > 1 && n as f64 >= SHARE * all as f64
}

/// Returns the constant answer and its accuracy, if the correct answers vary.
fn one_choice(samples: &[&Sample]) -> Option<(String, f64)> {
    if samples.len() < FEWEST || samples.iter().any(|sample| sample.text.is_some()) {
        return None;
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for answer in samples.iter().filter_map(|sample| sample.answer.as_deref()) {
        *counts.entry(answer).or_default() += 1;
    }
    let (answer, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    if (count as f64) < SHARE * samples.len() as f64 {
        return None;
    }
    let targets: Vec<&str> = samples.iter().filter_map(|sample| sample.target.as_deref()).collect();
    let right = targets.iter().filter(|target| target.trim() == answer).count() as f64;
    let score = right / targets.len().max(1) as f64;
    (!targets.is_empty() && score < 0.75).then(|| (answer.to_owned(), score))
}
