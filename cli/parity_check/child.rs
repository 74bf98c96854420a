//! `parity check MODEL --engine NAME` for an engine in a process of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use engine::Source;
use engine::capability::Sheet;
use parity::{CheckOptions, Dump};
use registry::dtype::Dtype;
use registry::model::Model;

use super::Check;
use crate::engines::{self, Child};
use crate::specs::{Config, Specs, check_error};
use crate::target::{self, SpecId};
use crate::{Ended, gguf_target, term};

/// Positions past the longest schedule, which windows make longer than prompts.
const SCHEDULES: usize = 160;

impl Check {
    pub(super) fn run_child(&self, child: &Child) -> Result<Ended> {
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
        ensure!(
            !gguf_target::is_gguf(&self.which.model),
            "engine `{name}` opens the folder of a checkpoint; `{}` is a GGUF file",
            self.which.model.display()
        );
        let (dir, _) = target::folder(&self.which)?;
        let path = self.reference.clone().or_else(|| beside(&dir)).with_context(|| {
            let dir = dir.display();
            format!(
                "`{dir}` has no reference dump (reference/ or dump/); make one: parity dump {dir} -o DUMP, then give \
                 --reference DUMP"
            )
        })?;
        let dump = Dump::open(&path)
            .with_context(|| format!("cannot read the reference `{}`", path.display()))?;
        let (model, spec) = self.model_of(&dir, &dump)?;
        let dtypes = self.dtypes_of(child.sheet(), &dump)?;
        let engine = child.engine(engines::room(&dump).max(SCHEDULES));
        let source = Source { model: Arc::new(model), dir: &dir };
        let options = CheckOptions { own_caches: true, ..self.options(dtypes) };
        let mut report = parity::check(&engine, &source, &dump, &options).map_err(check_error)?;
        report.subject.sha256.spec = spec.map(|spec| spec.sha256);
        report.notes.extend(engine.facts());
        self.conclude(&report, &source.model)
    }

    /// The model, so that taps and states have places; without a spec only rows can be compared.
    fn model_of(&self, dir: &Path, dump: &Dump) -> Result<(Model, Option<SpecId>)> {
        let config = Config::read(&dir.join("config.json"))?;
        let known = Specs::open(self.choice.specs.as_deref())?.matching(&config)?;
        if self.choice.spec.is_some() || known.is_some() {
            let target = target::open(&self.which, &self.choice)?;
            return Ok((Arc::unwrap_or_clone(target.model), Some(target.spec)));
        }
        let architecture = config.architecture();
        term::note(&format!(
            "note: no spec matches the architecture `{architecture}`: taps and states have no places, and schedules do \
             not know its states"
        ));
        let value = config.value()?;
        let context = value.get("max_position_embeddings").and_then(serde_json::Value::as_u64);
        let context = context.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        Ok((Model::opaque(architecture.clone(), architecture, dump.manifest.vocab, context), None))
    }

    /// The dtypes that were asked for, or those of the dump that the engine has.
    fn dtypes_of(&self, sheet: Option<&Sheet>, dump: &Dump) -> Result<Vec<Dtype>> {
        let has = |dtype: &Dtype| sheet.is_none_or(|sheet| sheet.dtypes.contains(dtype.name()));
        let asked = if self.dtype.is_empty() { dump.runs() } else { self.dtype.clone() };
        let (can, cannot): (Vec<Dtype>, Vec<Dtype>) = asked.into_iter().partition(has);
        match cannot.first() {
            Some(dtype) if !self.dtype.is_empty() || can.is_empty() => {
                bail!("engine `{}` does not run in {dtype}", self.engine.engine)
            }
            Some(dtype) => {
                term::note(&format!(
                    "note: engine `{}` does not run in {dtype}",
                    self.engine.engine
                ));
                Ok(can)
            }
            None => Ok(can),
        }
    }
}

fn beside(dir: &Path) -> Option<PathBuf> {
    let places = ["reference", "dump"].map(|name| dir.join(name));
    places.into_iter().find(|place| place.join("manifest.json").is_file())
}
