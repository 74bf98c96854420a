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
        .filter_map(|(name, results, found)| Some((*name, *results, found.clone()?)))
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
    let shown = |sample: &Sample| match (sample.logprobs.as_slice(), &sample.answer) {
        ([], Some(answer)) => format!("answer {answer}"),
        (numbers, _) => format!("{:?}", &numbers[..numbers.len().min(6)]),
    };
    let examples = pairs.iter().take(EXAMPLES).map(|(a, b)| Example {
        id: a.id.clone(),
        what: "scores of the choices".to_owned(),
        a: shown(a),
        b: shown(b),
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

/// Returns the reason why a side has no scores, and its accuracy if that is chance.
fn unusable(samples: &[&Sample]) -> Option<(String, Option<f64>)> {
    let scored: Vec<_> = samples.iter().filter(|sample| !sample.logprobs.is_empty()).collect();
    let most = |n: usize| scored.len() > 1 && n as f64 >= SHARE * scored.len() as f64;
    if !scored.is_empty() {
        let count = |test: fn(&Sample) -> bool| scored.iter().filter(|sample| test(sample)).count();
        let chance = || one_choice(samples).map(|(_, score)| score);
        let zero = count(|sample| sample.logprobs.iter().all(|&number| number == 0.0));
        if most(zero) {
            let what = format!("every log-likelihood is 0 in {}", items(zero));
            return Some((what, chance()));
        }
        let missing = count(|sample| sample.logprobs.iter().all(|number| !number.is_finite()));
        if most(missing) {
            let what = format!("no log-likelihood is finite in {}", items(missing));
            return Some((what, chance()));
        }
        let constant = count(|sample| {
            sample.logprobs.len() > 1 && sample.logprobs.windows(2).all(|pair| pair[0] == pair[1])
        });
        if most(constant) {
            let what = format!("all choices have the same log-likelihood in {}", items(constant));
            return Some((what, chance()));
        }
        let first = scored[0].logprobs[0];
        let same = count(|sample| sample.logprobs.len() == 1);
        if most(same) && scored.len() >= FEWEST && scored.iter().all(|s| s.logprobs[0] == first) {
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
