//! Runs the planned work of a conversion, and reports it.

use std::sync::Arc;
use std::time::Instant;

use checkpoints::Checkpoint;
use conversion::Work;
use formats::output::part_path;
use models::local_model::LocalModel;

use crate::error::Result;
use crate::observer::ConversionObserver;
use crate::options::ConvertOptions;
use crate::summary;

/// Options of a conversion, and its observer.
#[derive(Clone, Copy)]
pub(crate) struct ConversionRun<'a> {
    pub(crate) options: &'a ConvertOptions,
    pub(crate) observer: &'a dyn ConversionObserver,
}

impl ConversionRun<'_> {
    /// Returns the text that identifies a set in its files. A plan does not read the weights, so it uses a
    /// text of the same length.
    pub(crate) fn set_key(&self, set_id: impl FnOnce() -> Result<String>) -> Result<String> {
        if self.options.plan { Ok("0".repeat(64)) } else { set_id() }
    }

    /// Notes that there are fewer files than the set of a shard counts: a set has no file without tensors.
    pub(crate) fn note_fewer(&self, files: usize) -> Result<()> {
        if let Some((no, count)) = self.options.shard.filter(|(_, count)| files < *count) {
            let suffix = if no < files { "" } else { "; nothing is left to write for this one" };
            self.observer.print(&format!(
                "the tensors make {files} files, so file {} of {count} is counted of {files}{suffix}",
                no + 1
            ))?;
        }
        Ok(())
    }

    /// Runs the work, then a final step, and reports the result.
    pub(crate) fn execute(
        &self,
        work: &Work<'_>,
        checkpoint: &Checkpoint,
        target: &LocalModel,
        then: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut inputs = checkpoint.files().to_vec();
        inputs.extend(target.inputs()?);
        inputs.extend(self.options.types.imatrix().map(Into::into));
        inputs.extend(self.options.calibration.text().map(Into::into));
        inputs.extend(self.options.goal.text().map(Into::into));
        let settings = conversion::RunOptions {
            threads: self.options.threads(),
            slab: self.options.slab,
            resume: self.options.resume,
            force: self.options.force,
            inputs,
            sources: checkpoint.stamps().to_vec(),
            read_back: true,
            disk: Arc::clone(&self.options.disk),
        };
        let numbers = work.tasks.iter().map(|task| task.flow.len() as u64).sum();
        let begun = work.files.first().map(|file| part_path(&file.path));
        if let Some(part) = begun.filter(|part| part.exists() && !self.options.resume) {
            self.observer.note(&format!(
                "note: `{}` of an earlier run is begun anew; the option `resume` would go on with it",
                part.display()
            ));
        }
        let bar = self.observer.count(numbers, "weights");
        let started = Instant::now();
        self.observer.resumable("; the same command with the option `resume` goes on from here");
        let done = conversion::run(work, &settings, &*bar)?;
        self.observer.resumable("");
        drop(bar);
        then()?;
        let beside = work.beside.iter().map(|side| side.path.clone());
        let files = work.files.iter().map(|file| file.path.clone());
        let hashes = work.hash_paths();
        files.chain(beside).chain(hashes).for_each(|path| self.observer.product(&path));
        if done.already {
            self.observer.print(&summary::finished_before(work))?;
            return Ok(());
        }
        self.observer.print(&summary::text(work, &done, started.elapsed()))?;
        if let Some(warning) = summary::lost_tensors(work, &done) {
            self.observer.note(&warning);
        }
        Ok(())
    }
}
