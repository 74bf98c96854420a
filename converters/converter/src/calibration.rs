//! Scales of activations, keys and values, calibrated on a text.

use std::path::Path;
use std::sync::Arc;

use checkpoints::Checkpoint;
use conversion::folder::calibrated::{CalibratedScales, PeakSite, scales};
use conversion::folder::{FolderFormat, NoInputs, ScaleKinds};
use engine::peaks::KvPeaks;
use engine::{NativeEngine, OutputRows, SessionOptions};

use crate::chunked_text::{ChunkedText, watched};
use crate::error::{Result, bail, ensure, refused, several};
use crate::folder_plan::FolderPlan;
use crate::observer::ConversionObserver;
use crate::options::CalibrationOptions;
use crate::run::ConversionRun;

/// Result of a calibration run over the text.
pub(crate) struct CalibrationRun {
    peaks: Arc<KvPeaks>,
    chunk: usize,
    chunks: usize,
}

impl CalibrationOptions {
    /// Returns the kinds of scales that are requested.
    pub(crate) fn asked(&self) -> ScaleKinds {
        ScaleKinds { inputs: self.static_activations, caches: self.kv_scales }
    }

    /// Returns the path of the text, if there is one.
    pub(crate) fn text(&self) -> Option<&Path> {
        self.calibrate.as_deref()
    }

    /// Returns the number of tokens in a chunk, and the maximum number of chunks.
    pub(crate) fn cut(&self) -> (Option<usize>, Option<usize>) {
        (self.chunk, self.chunks)
    }

    /// Returns an error for options that a single file does not support.
    pub(crate) fn refuse(&self) -> Result<()> {
        ensure!(
            self.asked() == ScaleKinds::default() && !self.has_text(),
            "the option `static-activations`, the option `kv-scales` and the option `calibrate` are for checkpoints of 8 and \
             4 bits (the option `to fp8, ...`); a GGUF file has no such scales"
        );
        Ok(())
    }

    /// Returns an error if calibrated scales of the source would be dropped without an option that allows it. Notes
    /// if no format can store them.
    pub(crate) fn refuse_lost(
        &self,
        observer: &dyn ConversionObserver,
        format: Option<FolderFormat>,
        checkpoint: &Checkpoint,
    ) -> Result<()> {
        let format = format.filter(|format| format.quantizes());
        let chosen = self.asked();
        let measured = checkpoint.measured_scales();
        let kinds = [
            ("activations", "the option `static-activations`", chosen.inputs, measured.inputs),
            ("keys and values", "the option `kv-scales`", chosen.caches, measured.caches),
        ];
        for (what, flag, again, names) in kinds {
            let Some(first) = names.first().filter(|_| !again && !self.drop_scales) else {
                continue;
            };
            let first = format!("{} scales of {what}, the first is `{first}`", names.len());
            if let Some(format) = format {
                bail!(
                    "the checkpoint has {first}: a conversion to `{}` would leave them out; measure them again with \
                     {flag} and the option `calibrate FILE`, or allow it with the option `drop-scales`",
                    format.name()
                );
            }
            observer.note(&format!("note: {first}: the format has none, they are left out"));
        }
        Ok(())
    }

    fn has_text(&self) -> bool {
        self.calibrate.is_some() || !self.calibrate_tokens.is_empty()
    }

    /// Returns the variant of the format that stores these scales.
    pub(crate) fn format(&self, format: FolderFormat) -> Result<FolderFormat> {
        let kinds = self.asked();
        ensure!(
            kinds == ScaleKinds::default() || self.has_text(),
            "the option `static-activations` and the option `kv-scales` are measured on a text: give the option \
             `calibrate FILE`, or the option `calibrate-tokens IDS` where there is no tokenizer"
        );
        ensure!(
            kinds != ScaleKinds::default() || !self.has_text(),
            "the option `calibrate` measures for the option `static-activations` or the option `kv-scales`; give one of them"
        );
        ensure!(
            !kinds.caches || format.quantizes(),
            "the option `kv-scales`: `{}` has no scales; expected a format of 8 or 4 bits, as fp8",
            format.name()
        );
        self.stored(format).map_err(|why| {
            refused(format!(
                "the option `static-activations`: `{}` cannot have it: {why}; use fp8, fp8:tensor or \
                 fp8:modelopt, or leave it out (the option `kv-scales` goes with every format)",
                format.name()
            ))
        })
    }

    /// Returns the variant of a format that stores these scales, whether they can be measured or not; or the reason why there
    /// is none.
    pub(crate) fn stored(&self, format: FolderFormat) -> Result<FolderFormat, NoInputs> {
        if self.static_activations { format.with_inputs() } else { Ok(format) }
    }

    /// Returns the names of the scales, before anything is measured.
    pub(crate) fn planned(&self, plan: &FolderPlan<'_>) -> Result<CalibratedScales> {
        self.scales(plan, &|_| Some(0.0))
    }

    /// Returns the calibrated scales. The text is run at most once, because its peaks do not depend on the
    /// quantized matrices.
    pub(crate) fn measure(
        &self,
        plan: &FolderPlan<'_>,
        seen: &mut Option<CalibrationRun>,
        run: ConversionRun<'_>,
    ) -> Result<CalibratedScales> {
        if self.asked() == ScaleKinds::default() {
            return Ok(CalibratedScales::default());
        }
        let CalibrationRun { peaks, chunk, chunks } = match seen {
            Some(measured) => measured,
            None => seen.insert(self.run(plan, run)?),
        };
        let scales = self.scales(plan, &|seen| match seen {
            PeakSite::Input(weight) => peaks.input(weight),
            PeakSite::Cache(state, part) => peaks.cached(state, part),
        })?;
        run.observer.note(&format!(
            "{} scales measured on {chunks} chunks of {chunk} tokens",
            scales.all.len()
        ));
        if !scales.skipped.is_empty() {
            run.observer.note(&format!(
                "no keys and values, so no scales of them: {}",
                scales.skipped.join(", ")
            ));
        }
        Ok(scales)
    }

    fn run(&self, plan: &FolderPlan<'_>, run: ConversionRun<'_>) -> Result<CalibrationRun> {
        let target = plan.target;
        let path = self.calibrate.as_deref();
        let text = ChunkedText::read(
            run.observer,
            target,
            path,
            &self.calibrate_tokens,
            self.chunk,
            self.chunks,
        )?;
        let peaks = Arc::new(KvPeaks::default());
        let options = SessionOptions {
            dtype: target.dtype(),
            threads: Some(run.options.threads()),
            ..SessionOptions::default()
        };
        let all = 0..text.count;
        let engine = NativeEngine::new();
        let mut session = watched(&engine, target, peaks.clone(), &options)?;
        text.run(run.observer, session.as_mut(), OutputRows::None, &all, |_| Ok(()))?;
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
