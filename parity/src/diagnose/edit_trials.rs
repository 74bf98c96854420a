//! Runs of edited models, until a point in time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use registry::model::Model;

use super::phase_trial::{PhaseTrial, TrialDifferences};
use super::score::{ComparisonTarget, Score, score};
use crate::edit::{Edit, TokenEdit};

/// Runs models and returns their differences; none if the engine does not expose the values.
pub(super) trait Trial {
    fn numbers(
        &self,
        model: &Arc<Model>,
        tokens: &TokenEdit,
    ) -> Result<Option<TrialDifferences>, engine::Error>;
}

impl Trial for PhaseTrial<'_> {
    fn numbers(
        &self,
        model: &Arc<Model>,
        _: &TokenEdit,
    ) -> Result<Option<TrialDifferences>, engine::Error> {
        PhaseTrial::numbers(self, model)
    }
}

/// Search among edits.
pub(super) struct EditSearch<'a> {
    pub(super) trial: &'a dyn Trial,
    pub(super) model: &'a Arc<Model>,
    pub(super) targets: &'a [ComparisonTarget],
    /// Differences of the unedited model.
    pub(super) unedited: TrialDifferences,
    pub(super) until: Instant,
    pub(super) tried: usize,
    pub(super) cut: bool,
}

impl EditSearch<'_> {
    /// Runs one edit; none if the engine refuses it.
    pub(super) fn attempt(&mut self, edit: &Edit) -> Option<(TrialDifferences, Score)> {
        if Instant::now() > self.until {
            self.cut = true;
            return None;
        }
        self.tried += 1;
        let mut model = Model::clone(self.model);
        edit.change.apply(&mut model);
        let model = Arc::new(model);
        // An edited graph may violate assumptions of an engine.
        let tokens = edit.tokens();
        let run = catch_unwind(AssertUnwindSafe(|| self.trial.numbers(&model, &tokens)));
        let numbers = run.ok()?.ok()??;
        let score = score(&numbers, self.targets);
        Some((numbers, score))
    }
}
