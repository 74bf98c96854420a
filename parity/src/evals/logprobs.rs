//! Log-probabilities of equal inputs: the noise bound, and the values beyond it.

use std::collections::BTreeMap;

use registry::dtype::Dtype;

use super::comparison::{EXAMPLES, EvalFinding, EvalVerdict, Example, LogprobDistances};
use super::pair::SamplePair;
use super::sample::Results;
use super::stats::quantile;

/// Returns the standard deviation of one token's log-probability between correct engines, in nats.
///
/// f32: engines agree to 5e-6 to 2e-5 on the same folder. f16 and bf16 round by 2^-11 and 2^-8: their spread is that of
/// one rounding of a logit of 8, and runs of two fixtures measure as much (docs/evals.md).
pub fn unit(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2e-5,
        Dtype::F16 => 4e-3,
        Dtype::Bf16 => 3e-2,
    }
}

/// Expected noise, from the best available source.
#[derive(Debug, Clone, PartialEq)]
pub struct Noise {
    /// The standard deviation of one token, in nats.
    pub unit: f64,
    /// Source of the value.
    pub source: String,
}

impl Noise {
    /// Returns the noise of the given dtype, else of the coarser one that the files state, else of bf16.
    pub fn new(given: Option<Dtype>, a: &Results, b: &Results) -> Self {
        let (dtype, source) = match (given, stated_dtype(a), stated_dtype(b)) {
            (Some(dtype), ..) => (dtype, "as given"),
            (None, Some(x), Some(y)) => {
                (if unit(x) >= unit(y) { x } else { y }, "as the files state")
            }
            (None, ..) => (Dtype::Bf16, "assumed; the option `dtype` states it"),
        };
        Self { unit: unit(dtype), source: format!("{dtype}, {source}") }
    }
}

/// Returns the dtype that a file states.
fn stated_dtype(results: &Results) -> Option<Dtype> {
    let name = results.facts.get("dtype")?;
    Dtype::parse(name.trim_start_matches("torch."))
}

/// Bound on a log-likelihood difference, in units of the data's own spread.
const BULK: f64 = 10.0;
/// Bound on a log-likelihood difference, in units of the dtype's noise.
const UNITS: f64 = 4.0;
/// Bound on the overall spread, in units of the dtype's noise.
const SPREAD: f64 = 4.0;
/// Share of log-likelihoods that may exceed their bound: routers and near ties flip.
const SHARE: f64 = 0.01;
/// Factor on its bound from which a single log-likelihood counts as a difference.
const ALONE: f64 = 4.0;
/// Assumed number of tokens of a choice of unknown length.
const TOKENS: f64 = 16.0;
/// Assumed bytes of text per token, if tokens were not counted.
const BYTES: f64 = 4.0;

/// Log-likelihood of both sides.
struct LikelihoodPair<'a> {
    id: &'a str,
    choice: usize,
    a: f64,
    b: f64,
    /// Square root of the number of tokens.
    root: f64,
    tokens: f64,
}

impl LikelihoodPair<'_> {
    fn difference(&self) -> f64 {
        (self.a - self.b).abs()
    }
}

/// Compares the log-likelihoods of samples with equal inputs; none if they have none.
pub(super) fn logprobs(
    pairs: &[SamplePair<'_>],
    noise: &Noise,
) -> Option<(LogprobDistances, Option<EvalFinding>)> {
    let mut all = Vec::new();
    let mut equal = 0;
    let mut nonfinite = 0;
    let mut compared = 0;
    let mut lost = Vec::new();
    for (a, b) in pairs {
        for (choice, (&one, &other)) in a.logprobs.iter().zip(&b.logprobs).enumerate() {
            compared += 1;
            equal += usize::from(one.to_bits() == other.to_bits());
            if !one.is_finite() || !other.is_finite() {
                if one.is_finite() != other.is_finite() {
                    nonfinite += 1;
                    lost.push(example(&a.id, choice, one, other));
                    lost.truncate(EXAMPLES);
                }
                continue;
            }
            let counted = a.tokens.get(choice).or_else(|| b.tokens.get(choice));
            let text = a.choices.get(choice).or_else(|| b.choices.get(choice));
            let guessed = text.map_or(TOKENS, |text| (text.len() as f64 / BYTES).ceil());
            let tokens = counted.map_or(guessed, |&n| n as f64).max(1.0);
            all.push(LikelihoodPair {
                id: &a.id,
                choice,
                a: one,
                b: other,
                root: tokens.sqrt(),
                tokens,
            });
        }
    }
    if compared == 0 {
        return None;
    }
    let mut off: Vec<f64> = all.iter().map(LikelihoodPair::difference).collect();
    off.sort_by(f64::total_cmp);
    let mut spread: Vec<f64> = all.iter().map(|both| both.difference() / both.root).collect();
    spread.sort_by(f64::total_cmp);
    // In a normal distribution, the median of the absolute value is 0.6745 standard deviations.
    let bulk = quantile(&spread, 0.5).unwrap_or(0.0) * 1.4826;
    // Bound of a single token.
    let bound = (BULK * bulk).max(UNITS * noise.unit);
    let mut beyond: Vec<&LikelihoodPair<'_>> =
        all.iter().filter(|both| both.difference() > bound * both.root).collect();
    let alone = beyond.iter().any(|both| both.difference() > ALONE * (bound * both.root));
    let allowed = (SHARE * all.len() as f64).max(1.0);
    let broad = bulk > SPREAD * noise.unit;
    let differs = broad || alone || beyond.len() as f64 > allowed || nonfinite as f64 > allowed;
    let facts = LogprobDistances {
        compared,
        equal,
        nonfinite,
        median: quantile(&off, 0.5).unwrap_or(0.0),
        p99: quantile(&off, 0.99).unwrap_or(0.0),
        max: off.last().copied().unwrap_or(0.0),
        bulk,
        unit: noise.unit,
        source: noise.source.clone(),
        beyond: beyond.len(),
        kind: if differs { kind(&all) } else { None },
        differs,
    };
    if !differs {
        return Some((facts, None));
    }
    let mut worst: Vec<&LikelihoodPair<'_>> =
        if broad { all.iter().collect() } else { std::mem::take(&mut beyond) };
    worst.sort_by(|x, y| y.difference().total_cmp(&x.difference()));
    let examples = worst.iter().map(|both| example(both.id, both.choice, both.a, both.b));
    let finding = found(&facts, broad, lost.into_iter().chain(examples).take(EXAMPLES).collect());
    Some((facts, Some(finding)))
}

fn example(id: &str, choice: usize, a: f64, b: f64) -> Example {
    let what = format!("log-likelihood of choice {choice}");
    Example { id: id.to_owned(), what, a: format!("{a:.4}"), b: format!("{b:.4}") }
}

fn found(facts: &LogprobDistances, broad: bool, examples: Vec<Example>) -> EvalFinding {
    let compared = facts.compared;
    let headline = if facts.nonfinite > 0 && !broad && facts.beyond == 0 {
        format!("{} of {compared} log-likelihoods are finite on one side alone", facts.nonfinite)
    } else if broad {
        format!(
            "the log-likelihoods of equal inputs are {:.2e} nats apart in the median, noise is {:.0e} for each token",
            facts.median, facts.unit
        )
    } else {
        format!("{} of {compared} log-likelihoods of equal inputs are beyond noise", facts.beyond)
    };
    let mut why = Vec::new();
    why.extend(facts.kind.clone());
    why.push(format!(
        "differences in nats: median {:.2e}, 99 % below {:.2e}, largest {:.2e}; {} of {compared} equal in every bit",
        facts.median, facts.p99, facts.max, facts.equal
    ));
    let beyond = match facts.beyond {
        0 => String::new(),
        beyond => format!("; {beyond} beyond their bound"),
    };
    why.push(format!(
        "spread for each token {:.2e}, the dtype explains {:.0e} ({}){beyond}",
        facts.bulk, facts.unit, facts.source
    ));
    if facts.nonfinite > 0 {
        why.push(format!("{} log-likelihoods are finite on one side alone", facts.nonfinite));
    }
    if !broad && facts.beyond > 0 {
        why.push(
            "most agree, some do not: look for what those items share (length, batch, cache)"
                .to_owned(),
        );
    }
    EvalFinding {
        verdict: EvalVerdict::Implementation,
        headline,
        why,
        examples,
        todo: vec![
            "take a third opinion: `parity eval MODEL TASKS.jsonl` with the option `output C.jsonl`, then `parity eval-diff` of each with it"
                .to_owned(),
            "find the op: `parity check MODEL` compares an engine with the reference, layer by layer".to_owned(),
        ],
    }
}

/// Detects values in another scale, and items whose choices all differ by the same amount.
fn kind(all: &[LikelihoodPair<'_>]) -> Option<String> {
    let apart: Vec<&LikelihoodPair<'_>> =
        all.iter().filter(|both| both.b.abs() > 0.1 && both.a.abs() > 0.1).collect();
    if apart.len() >= 8 {
        let mut ratios: Vec<f64> = apart.iter().map(|both| both.a / both.b).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = quantile(&ratios, 0.5)?;
        if !is_close(ratio, 1.0) && apart.iter().all(|both| is_close(both.a, both.b * ratio)) {
            let known = [
                (std::f64::consts::LOG2_E, "A's are in base 2"),
                (std::f64::consts::LN_2, "B's are in base 2"),
                (std::f64::consts::LOG10_E, "A's are in base 10"),
                (std::f64::consts::LN_10, "B's are in base 10"),
            ];
            let name = known
                .iter()
                .find(|(known, _)| is_close(*known, ratio))
                .map_or("", |(_, name)| name);
            let name = if name.is_empty() { "a temperature or another unit" } else { name };
            return Some(format!("A's log-likelihoods are B's times {ratio:.4}: {name}"));
        }
        let longer = apart.iter().any(|both| both.tokens > 1.0);
        for (name, a, b) in [("A", 1.0, 0.0), ("B", 0.0, 1.0)] {
            if longer
                && apart.iter().all(|both: &&LikelihoodPair<'_>| {
                    is_close(both.a * both.tokens.powf(a), both.b * both.tokens.powf(b))
                })
            {
                return Some(format!(
                    "{name}'s log-likelihoods are means over tokens, the other's are sums"
                ));
            }
        }
    }
    let mut items: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for both in all {
        items.entry(both.id).or_default().push(both.a - both.b);
    }
    items.retain(|_, off| off.len() > 1);
    let shifted = items.values().filter(|off| {
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        mean.abs() > 1e-3 && off.iter().all(|x| (x - mean).abs() < 0.02 * mean.abs())
    });
    let shifted = shifted.count();
    (items.len() >= 4 && shifted * 5 > items.len() * 4).then(|| {
        "all choices of an item are off by the same: one side counts a token of the prompt, and the choice that wins is not changed"
            .to_owned()
    })
}

/// True if two values differ by at most a thousandth.
fn is_close(x: f64, y: f64) -> bool {
    (x - y).abs() <= 1e-3 * x.abs().max(y.abs())
}
