//! Cost of a lossy conversion: an engine on the converted weights, compared with the f32 run of the
//! reference.
//!
//! The results are expected to differ, so no gate passes or fails by the noise of the reference. The
//! measures are the usual ones for quantization: divergence in nats with its quantiles, the share of
//! unchanged most likely tokens, and the change of the perplexity of the prompts.

use engine::{Chunk, ChunkMask, Engine, ModelSource, NoProbe, OutputRows, SessionOptions};
use registry::dtype::Dtype;
use serde::Serialize;

use crate::check::Error;
use crate::dump::{Dump, Logprobs, Phase};
use crate::metrics::{ReferenceRow, log_softmax, row_error};
use crate::rule::roundoff;
use crate::run;

/// Cost of a conversion, over all positions of all prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// Name of the engine.
    pub engine: String,
    /// Number of positions compared.
    pub positions: usize,
    /// Divergence from the reference, in nats.
    pub kl: Quantiles,
    /// Share of positions whose most likely token is the reference's.
    pub same_top: f64,
    /// Perplexity of the prompts over that of the reference.
    pub perplexity_ratio: f64,
    /// Largest difference of a log-probability.
    pub largest: f64,
    /// Mean decrease of the probability of the reference's most likely token.
    pub top_probability_drop: f64,
}

/// Summary of a distribution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Quantiles {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Self {
            mean,
            p50: quantile(&values, 0.5),
            p90: quantile(&values, 0.9),
            p99: quantile(&values, 0.99),
            max: quantile(&values, 1.0),
        }
    }
}

/// f32 run that converted weights are compared with.
pub trait ReferenceLogprobs {
    /// Returns the tokens of each prompt, with their mask.
    fn prompts(&self) -> Vec<(&[u32], ChunkMask<'_>)>;

    /// Returns the log-probabilities of a prompt with the positions of their rows; none if it has none.
    fn logprobs(&self, prompt: usize) -> Result<Option<(Vec<usize>, Logprobs)>, Error>;
}

impl ReferenceLogprobs for Dump {
    fn prompts(&self) -> Vec<(&[u32], ChunkMask<'_>)> {
        let prompts = self.manifest.prompts.iter().filter(|prompt| !prompt.has_rows());
        prompts.map(|prompt| (&prompt.tokens[..], prompt.mask(prompt.tokens.len()))).collect()
    }

    fn logprobs(&self, prompt: usize) -> Result<Option<(Vec<usize>, Logprobs)>, Error> {
        let mut prompts = self.manifest.prompts.iter().filter(|prompt| !prompt.has_rows());
        let Some(prompt) = prompts.nth(prompt) else { return Ok(None) };
        let rows = Self::logprobs(self, Dtype::F32, prompt, Phase::Prefill)?;
        Ok(rows.map(|rows| (prompt.positions(Phase::Prefill), rows)))
    }
}

/// Returns a quantile by nearest rank; 0 without values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

/// Measures the cost of the weights of `source` against a reference.
pub fn cost(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    reference: &dyn ReferenceLogprobs,
    options: &SessionOptions,
) -> Result<Cost, Error> {
    let mut session = engine.open(source, options)?;
    let vocab = source.model.vocab;
    let mut kl = Vec::new();
    let mut same = 0_usize;
    let mut drops = 0.0;
    let mut largest = 0.0_f64;
    let mut ours_nats = 0.0;
    let mut their_nats = 0.0;
    let mut scored = 0_usize;
    for (n, (tokens, mask)) in reference.prompts().into_iter().enumerate() {
        let slot = session.open_slot();
        let chunk = Chunk { slot, tokens, rows: OutputRows::All };
        let logits = run::feed_masked(session.as_mut(), chunk, mask, &mut NoProbe);
        session.release(slot)?;
        let logits = logits?.data;
        let Some((positions, rows)) = reference.logprobs(n)? else { continue };
        let mut ours = vec![0.0; vocab];
        for (n, position) in positions.into_iter().enumerate() {
            let Some(row) = logits.get(position * vocab..(position + 1) * vocab) else { continue };
            log_softmax(row, &mut ours);
            let theirs = rows.row(n);
            let error =
                row_error(ReferenceRow { ids: None, values: &ours }, theirs, &mut Vec::new());
            // Rounding can make a divergence of zero slightly negative.
            kl.push(error.kl.max(0.0));
            same += usize::from(error.agrees);
            largest = largest.max(error.max.into());
            let top = theirs.top();
            if let (Some(a), Some(b)) = (ours.get(top), theirs.at(top)) {
                drops += (f64::from(b).exp() - f64::from(*a).exp()).max(0.0);
            }
            if let Some(&next) = tokens.get(position + 1)
                && let (Some(a), Some(b)) = (ours.get(next as usize), theirs.at(next as usize))
            {
                ours_nats -= f64::from(*a);
                their_nats -= f64::from(b);
                scored += 1;
            }
        }
    }
    let positions = kl.len();
    Ok(Cost {
        engine: engine.name().to_owned(),
        positions,
        kl: Quantiles::of(kl),
        same_top: same as f64 / positions.max(1) as f64,
        perplexity_ratio: ((ours_nats - their_nats) / scored.max(1) as f64).exp(),
        largest,
        top_probability_drop: drops / positions.max(1) as f64,
    })
}

/// Returns the cost of a constant prediction: the mean divergence of the reference from the mean of its own
/// distributions. Returns none if a dump stores only a part of each distribution.
pub fn constant_prediction_cost(dump: &Dump) -> Result<Option<f64>, crate::dump::Error> {
    // The mean of sum(p ln(p / mean)) is the mean of sum(p ln p) less sum(mean ln mean).
    let mut sums = Vec::new();
    let mut negative_entropy = 0.0;
    let mut count = 0_usize;
    for prompt in &dump.manifest.prompts {
        let Some(rows) = dump.logprobs(Dtype::F32, prompt, Phase::Prefill)? else { continue };
        if rows.ids.is_some() {
            return Ok(None);
        }
        sums.resize(rows.width, 0.0);
        for row in rows.values.chunks_exact(rows.width.max(1)) {
            for (sum, x) in sums.iter_mut().zip(row) {
                let logprob = f64::from(*x);
                let p = logprob.exp();
                *sum += p;
                negative_entropy += if p > 0.0 { p * logprob } else { 0.0 };
            }
            count += 1;
        }
    }
    let n = count as f64;
    let shared: f64 = sums.iter().map(|sum| sum / n).filter(|p| *p > 0.0).map(|p| p * p.ln()).sum();
    Ok((count > 1).then(|| negative_entropy / n - shared))
}

/// Returns the cost of rounding alone, and the rounding unit of its dtype. The cost is the mean divergence
/// of the reference's own bf16 or f16 run from its f32 run. Returns none if there is no such run.
pub fn rounding(dump: &Dump) -> Result<Option<(f64, f64)>, crate::dump::Error> {
    let runs = dump.runs();
    let narrow = [Dtype::Bf16, Dtype::F16].into_iter().find(|dtype| runs.contains(dtype));
    let Some(dtype) = narrow.filter(|_| runs.contains(&Dtype::F32)) else { return Ok(None) };
    let mut sum = 0.0;
    let mut count = 0_usize;
    for prompt in &dump.manifest.prompts {
        let narrow = dump.logprobs(dtype, prompt, Phase::Prefill)?;
        let wide = dump.logprobs(Dtype::F32, prompt, Phase::Prefill)?;
        let (Some(narrow), Some(wide)) = (narrow, wide) else { continue };
        for row in 0..wide.rows.min(narrow.rows) {
            sum += row_error(narrow.row(row), wide.row(row), &mut Vec::new()).kl.max(0.0);
            count += 1;
        }
    }
    Ok((count > 0).then(|| (sum / count as f64, roundoff(dtype))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let q = Quantiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((q.mean, q.p50, q.p90, q.p99, q.max), (50.5, 50.0, 90.0, 99.0, 100.0));
        assert_eq!(Quantiles::of(vec![]), Quantiles::default());
    }
}
