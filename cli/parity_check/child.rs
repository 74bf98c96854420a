//! `parity check MODEL --engine NAME` for an engine in a child process.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use engine::capability::EngineSheet;
use engine::{Engine as _, ModelSource};
use models::is_gguf;
use parity::beside::open_dump;
use parity::{CheckOptions, Dump};
use registry::dtype::Dtype;

use super::{ParityCheckArgs, check};
use crate::dump::model_of;
use crate::engines::{self, ChildCommand};
use crate::target;
use crate::{CommandOutcome, term};

/// Positions past the longest schedule, whose length depends on windows and can exceed the prompts.
pub(super) const SCHEDULES: usize = 160;

/// Remark on a difference that a diagnosis cannot explain.
const WHOLE_PROMPTS_AGREE: &str = "no diagnosis: prompts that are fed whole agree, so no edit of the model explains the difference; \
                                   compare what decode steps and later chunks do with states and positions";

impl ParityCheckArgs {
    pub(super) fn run_child(&self, child: &ChildCommand) -> Result<CommandOutcome> {
        let name = &child.launch.name;
        let choice = &self.choice;
        for (flag, given) in [
            ("--set", !choice.set.is_empty()),
            ("--plain-graph", self.plain_graph),
            ("--allow-dtype-mismatch", self.allow_dtype_mismatch),
            ("--w8a8", self.w8a8),
            ("--w8a16", self.w8a16),
            ("--threads", self.threads.is_some()),
        ] {
            ensure!(
                !given,
                "engine `{name}` builds its own graph, so {flag} has no effect on it; its settings are --engine-option"
            );
        }
        if is_gguf(&self.which.model) {
            ensure!(
                child.sheet().is_none_or(|sheet| !sheet.formats.is_empty()),
                "engine `{name}` opens the folder of a checkpoint; `{}` is a GGUF file",
                self.which.model.display()
            );
            return self.run_child_file(child);
        }
        let dir = target::folder(&self.which)?.dir;
        let (_, dump) = open_dump(&dir, self.reference.as_deref())?;
        let vocab = Some(dump.manifest.vocab);
        let (model, spec) = model_of(&self.which, &self.choice, &dir, vocab)?;
        let dtypes = self.dtypes_of(child.sheet(), &dump)?;
        let engine = child.engine(engines::room(&dump).max(SCHEDULES));
        let source = ModelSource { model: Arc::new(model), dir: &dir };
        let options = CheckOptions { own_caches: true, ..self.options(dtypes) };
        let mut report = check(&engine, &source, &dump, &options)?;
        report.subject.sha256.spec = spec.map(|spec| spec.sha256);
        report.notes.extend(engine.facts());
        if self.diagnose && report.first_failing().is_some() {
            ensure!(
                source.model.graph.output.is_some(),
                "no spec matches this architecture, so there is no model whose edits could be tried; leave out --diagnose"
            );
            report.diagnosis = self.explanation(&engine, &source, &dump, &report, &options)?;
            if report.diagnosis.is_none() {
                report.notes.push(WHOLE_PROMPTS_AGREE.to_owned());
            }
        }
        self.conclude(&report, &source.model)
    }

    /// Returns the requested dtypes, or those of the dump that the engine supports.
    fn dtypes_of(&self, sheet: Option<&EngineSheet>, dump: &Dump) -> Result<Vec<Dtype>> {
        let requested = match sheet {
            _ if !self.dtype.is_empty() => self.dtype.clone(),
            None if dump.runs().contains(&Dtype::F32) => {
                term::note(
                    "note: the engine has no sheet that lists its dtypes, so f32 alone is checked; --dtype f32,bf16 asks for \
                     more",
                );
                vec![Dtype::F32]
            }
            _ => dump.runs(),
        };
        let (can, cannot): (Vec<Dtype>, Vec<Dtype>) = requested
            .into_iter()
            .partition(|dtype| sheet.is_none_or(|sheet| sheet.dtypes.contains(dtype.name())));
        match cannot.first() {
            Some(dtype) if !self.dtype.is_empty() || can.is_empty() => {
                bail!("engine `{}` does not run in {dtype}", self.engine.name())
            }
            Some(dtype) => {
                term::note(&format!(
                    "note: engine `{}` does not run in {dtype}",
                    self.engine.name()
                ));
                Ok(can)
            }
            None => Ok(can),
        }
    }
}
