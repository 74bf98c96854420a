//! `--target-kl`: the divergence that a conversion has to meet, and its measurement.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use engine::{Engine, InputRounding, ModelSource, NativeEngine, ProductArithmetic, SessionOptions};
use models::local_model::LocalModel;
use parity::Dump;
use parity::cost::{ReferenceLogprobs, cost};
use parity::recorded_logprobs::RecordedLogprobs;
use registry::dtype::Dtype;
use sha2::{Digest as _, Sha256};

use super::ConvertArgs;
use super::measured::MeasuredDivergences;
use super::trial_folder::TrialFolder;
use crate::calibrate::ChunkedText;
use crate::engines::DeviceArgs;
use crate::findings::check_error;
use crate::reference::{beside, no_reference};
use crate::target;
use crate::{CommandOutcome, interrupt, term};

/// A divergence, and what it is measured against.
#[derive(Debug, Args)]
#[command(next_help_heading = "A divergence to meet")]
pub(super) struct DivergenceArgs {
    /// Choose by measurement, so that the mean divergence from the reference is at most so many nats: GGUF
    /// tensors get finer types, matrices of checkpoints stay as they are, the ones that matter most for their size
    /// first. Takes the room of another output or two while it measures. After an interruption, the same command
    /// goes on with what it measured
    #[arg(long, value_name = "NATS", value_parser = parse_kl)]
    target_kl: Option<f64>,
    /// The dump to measure against; default: MODEL/reference, then MODEL/dump
    #[arg(long, value_name = "DUMP", requires = "target_kl", conflicts_with_all = ["text", "tokens"])]
    reference: Option<PathBuf>,
    /// A text to measure on where there is no dump, against MODEL's own f32 run; cut as --chunk and --chunks say
    #[arg(long, value_name = "FILE", requires = "target_kl")]
    text: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        requires = "target_kl",
        conflicts_with = "text"
    )]
    tokens: Vec<u32>,
    /// Measure with activations of 8 bits too (checkpoints of 8 bits)
    #[arg(long, requires = "target_kl")]
    w8a8: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Parses a divergence in nats.
fn parse_kl(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|nats: &f64| nats.is_finite() && *nats > 0.0);
    number.ok_or_else(|| format!("`{text}` is no divergence; expected nats above 0, as 1e-3"))
}

/// Maximum divergence, and the means to measure it.
pub(super) struct DivergenceGoal {
    pub(super) most: f64,
    /// Folder for trial conversions.
    pub(super) trial: TrialFolder,
    reference: Box<dyn ReferenceLogprobs>,
    /// Hash of the reference and of how outputs are measured against it.
    identity: String,
    options: SessionOptions,
    /// Engine of all measurements.
    pub(super) engine: NativeEngine,
}

impl DivergenceArgs {
    /// True if a target divergence is given.
    pub(super) fn is_set(&self) -> bool {
        self.target_kl.is_some()
    }

    /// Returns the path of the text, if there is one.
    pub(super) fn text(&self) -> Option<&Path> {
        self.text.as_deref()
    }

    /// Returns an error for options that only checkpoints support.
    pub(super) fn refuse_eight_bits(&self) -> Result<()> {
        ensure!(
            !self.w8a8,
            "--w8a8 is for checkpoints of 8 bits (--to fp8, ...); what the matrices of a GGUF file are \
             multiplied with is not rounded"
        );
        Ok(())
    }

    /// Returns the goal, if the flags set one. A text is run here.
    pub(super) fn goal(
        &self,
        args: &ConvertArgs,
        target: &LocalModel,
        output: &Path,
    ) -> Result<Option<DivergenceGoal>> {
        let Some(limit) = self.target_kl else { return Ok(None) };
        ensure!(!args.plan, "--target-kl measures weights, and --plan reads none");
        let options = SessionOptions {
            dtype: Dtype::F32,
            threads: args.threads,
            arithmetic: if self.device.is_cpu() {
                ProductArithmetic::Exact
            } else {
                ProductArithmetic::Library
            },
            ..SessionOptions::default()
        };
        target::check_dtypes(target, &[Dtype::F32])?;
        let engine = self.device.engine()?;
        let mut hash = Sha256::new();
        if !self.device.is_cpu() {
            hash.update(engine.name());
            hash.update(format!("{:?}", options.arithmetic));
        }
        hash.update([u8::from(self.w8a8)]);
        let (trial, reference): (TrialFolder, Box<dyn ReferenceLogprobs>) =
            if let Some(text) = self.read_text(args, target)? {
                for id in text.chunks().flatten() {
                    hash.update(id.to_le_bytes());
                }
                hash.update(text.chunk.to_le_bytes());
                let trial = TrialFolder::begin(output, args.shard)?;
                let recorded = record(&engine, target, &text, &options, &trial)?;
                (trial, Box::new(recorded))
            } else {
                let dump = self.dump(target)?;
                hash.update(dump.sha256()?);
                (TrialFolder::begin(output, args.shard)?, Box::new(dump))
            };
        let identity = format!("{:x}", hash.finalize());
        let rounds = if self.w8a8 { InputRounding::All } else { InputRounding::None };
        // Codes that give NaN count as infinite divergence, so that others are chosen.
        let options = SessionOptions { rounds, finite: false, ..options };
        Ok(Some(DivergenceGoal { most: limit, trial, reference, identity, options, engine }))
    }

    fn read_text(&self, args: &ConvertArgs, target: &LocalModel) -> Result<Option<ChunkedText>> {
        if self.text.is_none() && self.tokens.is_empty() {
            return Ok(None);
        }
        let (chunk, chunks) = args.calibration.cut();
        ChunkedText::read(target, self.text.as_deref(), &self.tokens, chunk, chunks).map(Some)
    }

    fn dump(&self, target: &LocalModel) -> Result<Dump> {
        let path = self.reference.clone().or_else(|| beside(&target.dir));
        let path = path.with_context(|| {
            format!(
                "{}; or measure against the model itself: --text FILE",
                no_reference(&target.dir)
            )
        })?;
        let dump = Dump::open_whole(&path)
            .with_context(|| format!("cannot read the reference `{}`", path.display()))?;
        let rows = dump.manifest.vocab;
        let vocab = target.model.vocab;
        ensure!(
            dump.runs().contains(&Dtype::F32),
            "the dump `{}` has no f32 run, which is what is measured against; write it again with \
             `parity dump --dtypes f32`, or give --text FILE",
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

/// Runs a text with unquantized weights.
fn record(
    engine: &NativeEngine,
    target: &LocalModel,
    text: &ChunkedText,
    options: &SessionOptions,
    trial: &TrialFolder,
) -> Result<RecordedLogprobs> {
    let source = target::source(target);
    let bar = term::count_bar(text.count as u64, "chunks");
    let path = trial.path.join("text.f32");
    let chunks = text.chunks().collect();
    let recorded =
        RecordedLogprobs::record(engine, &source, chunks, options, &path, &|| bar.inc(1));
    bar.finish_and_clear();
    let recorded = recorded.map_err(check_error)?;
    term::note(&format!(
        "measured against the model's own f32 run on {} chunks of {} tokens",
        text.count, text.chunk
    ));
    Ok(recorded)
}

impl DivergenceGoal {
    /// Returns the divergences of a search, of which an earlier run may have measured some. `search` identifies
    /// its inputs besides the reference.
    pub(super) fn measured(&self, search: &str) -> Result<MeasuredDivergences> {
        MeasuredDivergences::open(self.journal(), &format!("{} {search}", self.identity))
    }

    /// Removes the measured divergences when the output is written.
    pub(super) fn end(&self) {
        fs_err::remove_file(self.journal()).ok();
        interrupt::hint("");
    }

    /// Returns the path of the measured divergences.
    fn journal(&self) -> PathBuf {
        self.trial.path.with_extension("measured.part")
    }

    /// Returns an error if even the weights as they are miss the goal. `why` is added to its text.
    pub(super) fn ensure_met(&self, none: f64, why: impl FnOnce() -> String) -> Result<()> {
        let limit = self.most;
        if none > limit {
            self.end();
            bail!(
                "--target-kl {limit:e} cannot be met: with every matrix as it is the divergence is \
                 {none:.3e} already{}",
                why()
            );
        }
        Ok(())
    }

    /// Returns the mean divergence of a model's weights in a folder or file, or of an engine's own.
    pub(super) fn measure(
        &self,
        engine: &dyn Engine,
        target: &LocalModel,
        at: &Path,
    ) -> Result<f64> {
        let source = ModelSource { model: Arc::clone(&target.model), dir: at };
        let cost = cost(engine, &source, &*self.reference, &self.options).map_err(check_error)?;
        ensure!(cost.positions > 0, "the reference has no position to measure at");
        Ok(cost.kl.mean)
    }

    /// Measures the output in the engine that opens it. A single shard cannot run.
    pub(super) fn confirm(
        &self,
        args: &ConvertArgs,
        target: &LocalModel,
        written: &Path,
        open: impl FnOnce(&Path) -> Result<Box<dyn Engine>>,
    ) -> Result<CommandOutcome> {
        self.end();
        if let Some((_, count)) = args.shard {
            term::note(&format!(
                "one of {count} files cannot be run: when all are there, `parity check` measures them"
            ));
            return Ok(CommandOutcome::Ok);
        }
        let kl = self.measure(&*open(written)?, target, written)?;
        let limit = self.most;
        let place = written.display();
        ensure!(
            kl <= limit,
            "`{place}` was written, and its divergence is {kl:.3e}, more than {limit:e}"
        );
        term::print(&format!(
            "divergence from the reference {kl:.3e}, asked for at most {limit:e}"
        ))?;
        Ok(CommandOutcome::Ok)
    }
}

/// Returns the smallest number of `count` items to give up that suffices, by bisection. The caller knows
/// that all suffice and none does not.
pub(super) fn smallest_sufficient(
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
