//! `--static-activations`, `--kv-scales`: scales calibrated on a text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail, ensure};
use checkpoints::Checkpoint;
use clap::Args;
use conversion::folder::calibrated::{CalibratedScales, PeakSite, scales};
use conversion::folder::{FolderFormat, ScaleKinds};
use engine::peaks::KvPeaks;
use engine::{OutputRows, SessionOptions};

use super::folder_plan::FolderPlan;
use super::several;
use crate::calibrate::{ChunkedText, watched};
use crate::term;

/// Scales of activations, and the text that they are measured on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scales measured on a text (checkpoints of 8 and 4 bits)")]
pub(super) struct CalibrationArgs {
    /// Give all that a matrix multiplies one scale; without, engines scale each row as it comes
    #[arg(long)]
    static_activations: bool,
    /// Write scales for keys and values of 8 bits, one per layer each
    #[arg(long)]
    kv_scales: bool,
    /// The text to measure on
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "calibrate")]
    calibrate_tokens: Vec<u32>,
    /// Leave out the scales of activations, keys and values that a quantized source has
    #[arg(long)]
    drop_scales: bool,
    /// Tokens in a chunk, of this text and of that of --target-kl; default: 512, or all that the model handles
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// At most so many chunks
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
}

/// Result of a calibration run over the text.
pub(super) struct CalibrationRun {
    peaks: Arc<KvPeaks>,
    chunk: usize,
    chunks: usize,
}

impl CalibrationArgs {
    /// Returns the kinds of scales that are requested.
    pub(super) fn asked(&self) -> ScaleKinds {
        ScaleKinds { inputs: self.static_activations, caches: self.kv_scales }
    }

    /// Returns the path of the text, if there is one.
    pub(super) fn text(&self) -> Option<&Path> {
        self.calibrate.as_deref()
    }

    /// Returns the number of tokens in a chunk, and the maximum number of chunks.
    pub(super) fn cut(&self) -> (Option<usize>, Option<usize>) {
        (self.chunk, self.chunks)
    }

    /// Returns an error for options that a single file does not support.
    pub(super) fn refuse(&self) -> Result<()> {
        ensure!(
            self.asked() == ScaleKinds::default() && !self.has_text(),
            "--static-activations, --kv-scales and --calibrate are for checkpoints of 8 and 4 bits \
             (--to fp8, ...); a GGUF file has no such scales"
        );
        Ok(())
    }

    /// Returns an error if calibrated scales of the source would be dropped without a flag. Prints a note
    /// if no format can store them.
    pub(super) fn refuse_lost(
        &self,
        format: Option<FolderFormat>,
        checkpoint: &Checkpoint,
    ) -> Result<()> {
        let format = format.filter(|format| format.quantizes());
        let chosen = self.asked();
        let measured = checkpoint.measured_scales();
        let kinds = [
            ("activations", "--static-activations", chosen.inputs, measured.inputs),
            ("keys and values", "--kv-scales", chosen.caches, measured.caches),
        ];
        for (what, flag, again, names) in kinds {
            let Some(first) = names.first().filter(|_| !again && !self.drop_scales) else {
                continue;
            };
            let first = format!("{} scales of {what}, the first is `{first}`", names.len());
            if let Some(format) = format {
                bail!(
                    "the checkpoint has {first}: a conversion to `{}` would leave them out; measure them again with \
                     {flag} --calibrate FILE, or allow it with --drop-scales",
                    format.name()
                );
            }
            term::note(&format!("note: {first}: the format has none, they are left out"));
        }
        Ok(())
    }

    fn has_text(&self) -> bool {
        self.calibrate.is_some() || !self.calibrate_tokens.is_empty()
    }

    /// Returns the variant of the format that stores these scales.
    pub(super) fn format(&self, format: FolderFormat) -> Result<FolderFormat> {
        let kinds = self.asked();
        ensure!(
            kinds == ScaleKinds::default() || self.has_text(),
            "--static-activations and --kv-scales are measured on a text: give --calibrate FILE, or \
             --calibrate-tokens IDS where there is no tokenizer"
        );
        ensure!(
            kinds != ScaleKinds::default() || !self.has_text(),
            "--calibrate measures for --static-activations or --kv-scales; give one of them"
        );
        ensure!(
            !kinds.caches || format.quantizes(),
            "--kv-scales: `{}` has no scales; expected a format of 8 or 4 bits, as fp8",
            format.name()
        );
        if !kinds.inputs {
            return Ok(format);
        }
        format.with_inputs().map_err(|why| {
            anyhow!(
                "--static-activations: `{}` cannot have it: {why}; use fp8, fp8:tensor or \
                 fp8:modelopt, or leave it out (--kv-scales goes with every format)",
                format.name()
            )
        })
    }

    /// Returns the names of the scales, before anything is measured.
    pub(super) fn planned(&self, plan: &FolderPlan<'_>) -> Result<CalibratedScales> {
        self.scales(plan, &|_| Some(0.0))
    }

    /// Returns the calibrated scales. The text is run at most once, because its peaks do not depend on the
    /// quantized matrices.
    pub(super) fn measure(
        &self,
        plan: &FolderPlan<'_>,
        seen: &mut Option<CalibrationRun>,
        threads: usize,
    ) -> Result<CalibratedScales> {
        if self.asked() == ScaleKinds::default() {
            return Ok(CalibratedScales::default());
        }
        let CalibrationRun { peaks, chunk, chunks } = match seen {
            Some(measured) => measured,
            None => seen.insert(self.run(plan, threads)?),
        };
        let scales = self.scales(plan, &|seen| match seen {
            PeakSite::Input(weight) => peaks.input(weight),
            PeakSite::Cache(state, part) => peaks.cached(state, part),
        })?;
        term::note(&format!(
            "{} scales measured on {chunks} chunks of {chunk} tokens",
            scales.all.len()
        ));
        if !scales.skipped.is_empty() {
            term::note(&format!(
                "no keys and values, so no scales of them: {}",
                scales.skipped.join(", ")
            ));
        }
        Ok(scales)
    }

    fn run(&self, plan: &FolderPlan<'_>, threads: usize) -> Result<CalibrationRun> {
        let target = plan.target;
        let path = self.calibrate.as_deref();
        let text =
            ChunkedText::read(target, path, &self.calibrate_tokens, self.chunk, self.chunks)?;
        let peaks = Arc::new(KvPeaks::default());
        let options = SessionOptions {
            dtype: target.dtype(),
            threads: Some(threads),
            ..SessionOptions::default()
        };
        let all = 0..text.count;
        let engine = crate::engines::native()?;
        let mut session = watched(engine.as_ref(), target, peaks.clone(), &options)?;
        text.run(session.as_mut(), OutputRows::None, &all, |_| Ok(()))?;
        Ok(CalibrationRun { peaks, chunk: text.chunk, chunks: text.count })
    }

    fn scales(
        &self,
        plan: &FolderPlan<'_>,
        peak: &dyn Fn(PeakSite) -> Option<f32>,
    ) -> Result<CalibratedScales> {
        let planned = (&plan.tensors[..], &plan.choices[..]);
        scales(plan.format, self.asked(), &plan.target.model, planned, peak).map_err(several)
    }
}
