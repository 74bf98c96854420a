//! The divergence that a conversion has to meet, and its measurement.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Engine, InputRounding, ModelSource, NativeEngine, ProductArithmetic, SessionOptions};
use models::local_model::LocalModel;
use parity::Dump;
use parity::beside::open_dump;
use parity::cost::{ReferenceLogprobs, cost};
use parity::recorded_logprobs::RecordedLogprobs;
use registry::dtype::Dtype;
use sha2::{Digest as _, Sha256};

use crate::chunked_text::{self, ChunkedText};
use crate::error::{Error, Result, bail, ensure, refused};
use crate::measured::MeasuredDivergences;
use crate::observer::ConversionObserver;
use crate::options::{GoalOptions, MeasuringDevice};
use crate::run::ConversionRun;
use crate::trial_folder::TrialFolder;

/// Maximum divergence, and the means to measure it.
pub(crate) struct DivergenceGoal {
    pub(crate) most: f64,
    /// Folder for trial conversions.
    pub(crate) trial: TrialFolder,
    reference: Box<dyn ReferenceLogprobs>,
    /// Hash of the reference and of how outputs are measured against it.
    identity: String,
    options: SessionOptions,
    /// Engine of all measurements.
    pub(crate) engine: NativeEngine,
}

impl GoalOptions {
    /// True if a target divergence is given.
    pub(crate) fn is_set(&self) -> bool {
        self.target_kl.is_some()
    }

    /// Returns the path of the text, if there is one.
    pub(crate) fn text(&self) -> Option<&Path> {
        self.text.as_deref()
    }

    /// Returns an error for options that only checkpoints support.
    pub(crate) fn refuse_eight_bits(&self) -> Result<()> {
        ensure!(
            !self.w8a8,
            "the option `w8a8` is for checkpoints of 8 bits (the option `to fp8, ...`); what the matrices of a GGUF file are \
             multiplied with is not rounded"
        );
        Ok(())
    }

    /// Returns the goal, if the options set one. A text is run here.
    pub(crate) fn goal(
        &self,
        run: ConversionRun<'_>,
        target: &LocalModel,
        output: &Path,
    ) -> Result<Option<DivergenceGoal>> {
        let Some(limit) = self.target_kl else { return Ok(None) };
        ensure!(
            !run.options.plan,
            "the option `target-kl` measures weights, and the option `plan` reads none"
        );
        let options = SessionOptions {
            dtype: Dtype::F32,
            threads: run.options.threads,
            arithmetic: if self.device == MeasuringDevice::Cpu {
                ProductArithmetic::Exact
            } else {
                ProductArithmetic::Library
            },
            ..SessionOptions::default()
        };
        target.check_dtypes(&[Dtype::F32])?;
        let engine = self.device.engine()?;
        let mut hash = Sha256::new();
        if self.device != MeasuringDevice::Cpu {
            hash.update(engine.name());
            hash.update(format!("{:?}", options.arithmetic));
        }
        hash.update([u8::from(self.w8a8)]);
        let (trial, reference): (TrialFolder, Box<dyn ReferenceLogprobs>) =
            if let Some(text) = self.read_text(run, target)? {
                for id in text.chunks().flatten() {
                    hash.update(id.to_le_bytes());
                }
                hash.update(text.chunk.to_le_bytes());
                let trial = TrialFolder::begin(run.observer, output, run.options.shard)?;
                let recorded = record(run.observer, &engine, target, &text, &options, &trial)?;
                (trial, Box::new(recorded))
            } else {
                let dump = self.dump(target)?;
                hash.update(dump.sha256()?);
                (TrialFolder::begin(run.observer, output, run.options.shard)?, Box::new(dump))
            };
        let identity = format!("{:x}", hash.finalize());
        let rounds = if self.w8a8 { InputRounding::All } else { InputRounding::None };
        // Codes that give NaN count as infinite divergence, so that others are chosen.
        let options = SessionOptions { rounds, finite: false, ..options };
        Ok(Some(DivergenceGoal { most: limit, trial, reference, identity, options, engine }))
    }

    fn read_text(
        &self,
        run: ConversionRun<'_>,
        target: &LocalModel,
    ) -> Result<Option<ChunkedText>> {
        if self.text.is_none() && self.tokens.is_empty() {
            return Ok(None);
        }
        let (chunk, chunks) = run.options.calibration.cut();
        ChunkedText::read(run.observer, target, self.text.as_deref(), &self.tokens, chunk, chunks)
            .map(Some)
    }

    fn dump(&self, target: &LocalModel) -> Result<Dump> {
        let opened = open_dump(&target.dir, self.reference.as_deref());
        let (path, dump) = opened.map_err(with_text_instead)?;
        let rows = dump.manifest.vocab;
        let vocab = target.model.vocab;
        ensure!(
            dump.runs().contains(&Dtype::F32),
            "the dump `{}` has no f32 run, which is what is measured against; write it again with \
             `parity dump` and the option `dtypes f32`, or give the option `text FILE`",
            path.display()
        );
        ensure!(
            rows == vocab,
            "the dump `{}` has rows of {rows} log-probabilities; the model gives {vocab}",
            path.display()
        );
        Ok(dump)
    }
}

/// Names the text that may stand in place of a missing dump.
fn with_text_instead(error: parity::Error) -> Error {
    match error {
        parity::Error::NoReference { .. } => {
            refused(format!("{error}; or measure against the model itself: the option `text FILE`"))
        }
        other => other.into(),
    }
}

/// Runs a text with unquantized weights.
fn record(
    observer: &dyn ConversionObserver,
    engine: &NativeEngine,
    target: &LocalModel,
    text: &ChunkedText,
    options: &SessionOptions,
    trial: &TrialFolder,
) -> Result<RecordedLogprobs> {
    let source = chunked_text::source(target);
    let bar = observer.count(text.count as u64, "chunks");
    let path = trial.path.join("text.f32");
    let chunks = text.chunks().collect();
    let recorded =
        RecordedLogprobs::record(engine, &source, chunks, options, &path, &|| bar.advance(1));
    drop(bar);
    let recorded = recorded?;
    observer.note(&format!(
        "measured against the model's own f32 run on {} chunks of {} tokens",
        text.count, text.chunk
    ));
    Ok(recorded)
}

impl DivergenceGoal {
    /// Returns the divergences of a search, of which an earlier run may have measured some. `search` identifies
    /// its inputs besides the reference.
    pub(crate) fn measured(
        &self,
        observer: &dyn ConversionObserver,
        search: &str,
    ) -> Result<MeasuredDivergences> {
        MeasuredDivergences::open(observer, self.journal(), &format!("{} {search}", self.identity))
    }

    /// Removes the measured divergences when the output is written.
    pub(crate) fn end(&self, observer: &dyn ConversionObserver) {
        fs_err::remove_file(self.journal()).ok();
        observer.resumable("");
    }

    /// Returns the path of the measured divergences.
    fn journal(&self) -> PathBuf {
        self.trial.path.with_extension("measured.part")
    }

    /// Returns an error if even the weights as they are miss the goal. `why` is added to its text.
    pub(crate) fn ensure_met(
        &self,
        observer: &dyn ConversionObserver,
        none: f64,
        why: impl FnOnce() -> String,
    ) -> Result<()> {
        let limit = self.most;
        if none > limit {
            self.end(observer);
            bail!(
                "the option `target-kl {limit:e}` cannot be met: with every matrix as it is the divergence is \
                 {none:.3e} already{}",
                why()
            );
        }
        Ok(())
    }

    /// Returns the mean divergence of a model's weights in a folder or file, or of an engine's own.
    pub(crate) fn measure(
        &self,
        engine: &dyn Engine,
        target: &LocalModel,
        at: &Path,
    ) -> Result<f64> {
        let source = ModelSource { model: Arc::clone(&target.model), dir: at };
        let cost = cost(engine, &source, &*self.reference, &self.options)?;
        ensure!(cost.positions > 0, "the reference has no position to measure at");
        Ok(cost.kl.mean)
    }

    /// Measures the output in the engine that opens it. A single shard cannot run.
    pub(crate) fn confirm(
        &self,
        run: ConversionRun<'_>,
        target: &LocalModel,
        written: &Path,
        open: impl FnOnce(&Path) -> Result<Box<dyn Engine>>,
    ) -> Result<Option<f64>> {
        self.end(run.observer);
        if let Some((_, count)) = run.options.shard {
            run.observer.note(&format!(
                "one of {count} files cannot be run: when all are there, `parity check` measures them"
            ));
            return Ok(None);
        }
        let kl = self.measure(&*open(written)?, target, written)?;
        let limit = self.most;
        let place = written.display();
        ensure!(
            kl <= limit,
            "`{place}` was written, and its divergence is {kl:.3e}, more than {limit:e}"
        );
        run.observer.print(&format!(
            "divergence from the reference {kl:.3e}, asked for at most {limit:e}"
        ))?;
        Ok(Some(kl))
    }
}

/// Returns the smallest number of `count` items to give up that suffices, by bisection. The caller knows
/// that all suffice and none does not.
pub(crate) fn smallest_sufficient(
    count: usize,
    mut enough: impl FnMut(usize) -> Result<bool>,
) -> Result<usize> {
    let mut low = 0;
    let mut high = count;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if enough(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_asks_seldom() {
        for (count, wanted) in [(1, 1), (2, 1), (2, 2), (100, 1), (100, 37), (100, 100)] {
            let mut asked = 0;
            let found = smallest_sufficient(count, |n| {
                asked += 1;
                Ok(n >= wanted)
            });
            assert_eq!(found.unwrap(), wanted, "{count}");
            assert!(asked <= 7, "{count} {wanted}: {asked}");
        }
    }
}
