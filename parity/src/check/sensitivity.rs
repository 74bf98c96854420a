//! What rounding is worth to a model, as its reference tells.

use registry::dtype::Dtype;

use crate::dump::{self, Dump, Phase};
use crate::tolerance::{self, F32_LOGPROB};

/// The bound on an f32 run's log-probabilities where the usual one is too tight, as the reference's
/// own runs tell; none where it is not.
pub(super) fn sensitivity(dump: &Dump) -> Result<Option<f64>, dump::Error> {
    let shaken = dump.manifest.audit.f32.and_then(|run| run.shaken);
    let shaken = shaken.map(tolerance::f32_logprob_shaken).filter(|&bound| bound > F32_LOGPROB);
    let narrow = narrow_sensitivity(dump)?;
    Ok(shaken.into_iter().chain(narrow).reduce(f64::max))
}

/// The same, told by a 16-bit run.
fn narrow_sensitivity(dump: &Dump) -> Result<Option<f64>, dump::Error> {
    let runs = dump.runs();
    let narrow = runs.iter().find(|&&dtype| dtype != Dtype::F32);
    let Some(&dtype) = narrow.filter(|_| runs.contains(&Dtype::F32)) else { return Ok(None) };
    let (mut sum, mut count) = (0.0, 0_usize);
    for prompt in &dump.manifest.prompts {
        let rows = |run| dump.logprobs(run, prompt, Phase::Prefill);
        let (Some(narrow), Some(wide)) = (rows(dtype)?, rows(Dtype::F32)?) else { continue };
        // Of large vocabularies the likeliest tokens are stored, which need not be the same.
        if narrow.ids.is_some() || narrow.values.len() != wide.values.len() {
            return Ok(None);
        }
        let pairs = narrow.values.iter().zip(&wide.values);
        let gaps = pairs.map(|(a, b)| f64::from((a - b).abs())).filter(|gap| gap.is_finite());
        let (all, n) = gaps.fold((0.0, 0), |(sum, n), gap| (sum + gap, n + 1));
        (sum, count) = (sum + all, count + n);
    }
    let bound = tolerance::f32_logprob(dtype, sum / count.max(1) as f64);
    Ok(Some(bound).filter(|&bound| bound > F32_LOGPROB))
}
