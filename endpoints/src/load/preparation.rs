//! Requests before a load test, which are not measured.

use super::client::{LoadClient, LoadPlan, LoadRun};
use super::failure::{LoadFailure, LoadFailureKind};
use super::prompt_file::LoadPrompt;
use super::prompts::{LoadPromptError, PromptForm, PromptSource};

/// Maximum number of generated tokens of a request that only warms up.
const WARM_TOKENS: usize = 32;
/// Maximum attempts of requests that are not measured.
const MOST_ATTEMPTS: usize = 10;

/// Reason why a load test cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreparationError {
    /// The request that finds out the form of prompts failed.
    #[error("the first request failed: {0}")]
    First(LoadFailure),
    /// All requests that warm up failed.
    #[error("no request to warm up succeeded: {0}")]
    WarmUp(LoadFailure),
    /// The prompts cannot be made.
    #[error(transparent)]
    Prompts(#[from] LoadPromptError),
}

impl LoadClient {
    /// Finds out whether the server takes token ids, if random prompts may be either. Returns the failure for which they
    /// are sent as text.
    pub fn choose_form(
        &self,
        prompts: &mut PromptSource<'_>,
        seed: u64,
    ) -> Result<Option<LoadFailure>, PreparationError> {
        if prompts.file.is_some() || prompts.form != PromptForm::Auto {
            return Ok(None);
        }
        prompts.form = PromptForm::Ids;
        let plan = LoadPlan::at_once(vec![prompts.probe(seed)], 1);
        let Some(failure) = self.until_success(&plan) else { return Ok(None) };
        match failure.kind {
            LoadFailureKind::Status(400 | 405..=428 | 430..=501) | LoadFailureKind::ErrorEvent => {
                prompts.form = PromptForm::Text;
                Ok(Some(failure))
            }
            _ => Err(PreparationError::First(failure)),
        }
    }

    /// Sends `count` requests to warm the server up, at most `concurrency` at a time. One has to succeed.
    pub fn warm_up(
        &self,
        prompts: &PromptSource<'_>,
        count: usize,
        seed: u64,
        concurrency: Option<usize>,
    ) -> Result<(), PreparationError> {
        // Other prompts than those that are measured, so that no prefix is cached.
        let mut requests = prompts.requests(count, seed.wrapping_add(1 << 32))?;
        for request in &mut requests {
            request.output = Some(request.output.unwrap_or(WARM_TOKENS).min(WARM_TOKENS));
        }
        let plan = LoadPlan { concurrency, ..LoadPlan::at_once(requests, WARM_TOKENS) };
        self.until_success(&plan).map_or(Ok(()), |failure| Err(PreparationError::WarmUp(failure)))
    }

    /// Repeats unmeasured requests until one succeeds. Returns the first failure of the last attempt if none does, at
    /// once if it has a reason that does not pass.
    fn until_success(&self, plan: &LoadPlan) -> Option<LoadFailure> {
        let mut attempts = 0;
        loop {
            let run: LoadRun = self.run(plan.clone(), &mut |_| true);
            attempts += 1;
            if run.records.iter().any(|record| record.failure.is_none()) {
                return None;
            }
            let failure = run.records.into_iter().find_map(|record| record.failure)?;
            let passes = matches!(
                failure.kind,
                LoadFailureKind::BrokenOff | LoadFailureKind::Status(429 | 502..=599)
            );
            if !passes || attempts == MOST_ATTEMPTS {
                return Some(failure);
            }
        }
    }
}

impl LoadPlan {
    /// Returns a plan that sends all prompts at once, with `output` tokens where a prompt names none.
    pub fn at_once(prompts: Vec<LoadPrompt>, output: usize) -> Self {
        Self { prompts, output, ..Self::default() }
    }
}
