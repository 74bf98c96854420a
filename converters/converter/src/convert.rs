//! Conversions and verifications from an opened model, in one call each.

use std::path::Path;

use conversion::folder::FolderFormat;
use conversion::gguf::{self as plan, GgufOutput, GgufPlan};
use formats::gguf::split;
use models::coverage::TensorCoverage;
use models::local_model::LocalModel;
use registry::listing;

use crate::deviations::{loader_rules, verify_file};
use crate::error::{Result, bail, ensure};
use crate::folder;
use crate::folder_verify::verify_folder;
use crate::format::{self, GgufFormat};
use crate::gguf_model::GgufModel;
use crate::gguf_source;
use crate::observer::ConversionObserver;
use crate::options::{ConvertOptions, NO_CONFIG};
use crate::outcome::ConversionOutcome;
use crate::raise;
use crate::run::ConversionRun;
use crate::set_id;
use crate::show_plan;

/// Formats of a conversion.
enum RequestedFormats {
    Folder(FolderFormat),
    Gguf(Vec<GgufFormat>),
}

impl ConvertOptions {
    /// Returns an error for options that do not fit each other, whatever the model.
    pub fn check(&self) -> Result<()> {
        self.formats().map(drop)
    }

    fn formats(&self) -> Result<RequestedFormats> {
        ensure!(!self.to.is_empty(), "no format is given; expected one, as `gguf:q4_k_m`");
        if let [to] = &self.to[..]
            && let Some(format) = FolderFormat::parse(to)
        {
            self.types.refuse()?;
            let [output] = &self.output[..] else {
                bail!("where to? give one folder: -o DIR");
            };
            let format = self.calibration.format(format)?;
            ensure!(
                !output.is_file(),
                "`{}` is a file; `{}` is a folder",
                output.display(),
                format.name()
            );
            return Ok(RequestedFormats::Folder(format));
        }
        ensure!(!self.compat, "{NO_CONFIG}");
        ensure!(
            !self.quantize_output,
            "the option `quantize-output` is for checkpoints (the option `to fp8` and its kin); in GGUF files the output \
             matrix has a type, which the option `output-tensor-type` chooses"
        );
        self.calibration.refuse()?;
        self.goal.refuse_eight_bits()?;
        let formats: Vec<GgufFormat> =
            self.to.iter().map(|to| GgufFormat::parse(to)).collect::<Result<_>>()?;
        if self.goal.is_set() {
            let [format] = &formats[..] else {
                bail!(
                    "the option `target-kl` chooses the types of one file; give the option `to` once"
                );
            };
            let name = &format.name;
            ensure!(
                format.quantizes(),
                "the option `target-kl`: `gguf:{name}` has nothing that could be finer"
            );
        }
        Ok(RequestedFormats::Gguf(formats))
    }
}

/// Converts an opened model as the options say, in one pass and bounded memory.
///
/// Files appear under their names when they are whole and were read back. Until then they are `NAME.part` with a journal,
/// which the same conversion goes on with if [`ConvertOptions::resume`] is set.
///
/// A checkpoint becomes a GGUF file, whatever the size of the model:
///
/// ```
/// use std::path::Path;
///
/// use models::open::{OpenOptions, open};
/// use models::specs::Specs;
/// use onboard_converter::{ConvertOptions, convert};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/llama_256");
/// # let into = tempfile::tempdir()?;
/// let opened = open(&folder, &mut Specs::builtin(), &OpenOptions::default())?;
/// let output = into.path().join("model.gguf");
/// let options = ConvertOptions::new("gguf:q4_k_m", &output);
/// let outcome = convert(&opened.target, &options, &())?;
/// assert_eq!(outcome.files, [output]);
/// # Ok(())
/// # }
/// ```
pub fn convert(
    target: &LocalModel,
    options: &ConvertOptions,
    observer: &dyn ConversionObserver,
) -> Result<ConversionOutcome> {
    let run = ConversionRun { options, observer };
    match options.formats()? {
        RequestedFormats::Folder(format) => folder::run(run, target, format),
        RequestedFormats::Gguf(formats) => run.write_files(target, &formats),
    }
}

/// Compares a written file or folder with the model that it was made of, and returns its faults.
///
/// The options are those that it was made with, as far as they matter: the importance matrix, the route of llama.cpp, the
/// quantized output matrix.
pub fn verify(
    target: &LocalModel,
    written: &Path,
    options: &ConvertOptions,
    observer: &dyn ConversionObserver,
) -> Result<Vec<String>> {
    let run = ConversionRun { options, observer };
    if written.is_dir() {
        verify_folder(run, target, written)
    } else {
        verify_file(run, target, written)
    }
}

impl ConversionRun<'_> {
    /// Plans and writes GGUF files from one read of the checkpoint.
    fn write_files(
        &self,
        target: &LocalModel,
        formats: &[GgufFormat],
    ) -> Result<ConversionOutcome> {
        let ConversionRun { options, observer } = *self;
        let checkpoint = target.checkpoint()?;
        let coverage = TensorCoverage::of(&target.model, &checkpoint);
        coverage.refuse(&target.dir)?;
        observer.findings(&coverage.findings);
        options.calibration.refuse_lost(observer, None, &checkpoint)?;
        let quantizes = formats.iter().any(GgufFormat::quantizes);
        gguf_source::refuse_twice(target, &checkpoint, quantizes, options.requantize)?;
        let outputs = format::paths(formats, &options.output, &target.name)?;
        let source = GgufModel::new(observer, target, &checkpoint, options.types.arithmetic())?;
        if coverage.head > 0 && source.gguf.ahead == 0 {
            observer.note(&format!(
                "warning: the head that predicts further tokens ({} weights) is left out: files of \
                 `{}` have no place for it",
                coverage.head, source.gguf.arch
            ));
        }
        for warning in &source.warnings {
            observer.note(&format!("warning: {warning}"));
        }
        let mut planned = Vec::with_capacity(formats.len());
        let imatrix = options.types.read_imatrix()?;
        let mut goal = None;
        for (format, path) in formats.iter().zip(outputs) {
            let mut draft = self.draft(&source, format, path, imatrix.as_ref())?;
            if options.goal.is_set() {
                self.refuse_taken(&self.lay_out(&source, &mut draft)?)?;
                goal = raise::choose(*self, &source, target, &mut draft)?;
            }
            let files = self.lay_out(&source, &mut draft)?;
            planned.push((draft.output, files));
        }
        let planned_files = planned
            .iter()
            .flat_map(|(_, files)| options.of_shard(files.iter().map(|file| file.path.clone())));
        let files = planned_files.collect();
        let mut outcome = ConversionOutcome { files, divergence: None };
        if options.plan {
            let text = if options.json {
                show_plan::json(&source, &planned)?
            } else {
                show_plan::text(&source, &planned)
            };
            observer.print(&text)?;
            return Ok(outcome);
        }
        self.write(&source, target, &planned)?;
        match (goal, planned.first().and_then(|(_, files)| files.first())) {
            (Some(goal), Some(file)) => {
                outcome.divergence = goal.confirm(*self, target, &file.path, |path| {
                    Ok(Box::new(raise::written(goal.engine.clone(), target, path)?))
                })?;
            }
            (Some(goal), None) => goal.end(observer),
            (None, _) => {}
        }
        Ok(outcome)
    }

    fn write(
        &self,
        source: &GgufModel<'_>,
        target: &LocalModel,
        planned: &[(GgufOutput, Vec<GgufPlan>)],
    ) -> Result<()> {
        let fingerprint = set_id::of_gguf_run(source, planned, self.options.types.identity())?;
        for (output, _) in planned {
            plan::measure(&source.tensors, output, self.options.threads())?;
        }
        let mut work = plan::work(&source.tensors, planned, fingerprint);
        work.hashed = true;
        for (_, files) in planned {
            self.note_fewer(files.len())?;
        }
        if work.files.is_empty() {
            return Ok(());
        }
        self.execute(&work, source.checkpoint, target, || {
            work.files.iter().try_for_each(|file| loader_rules(&file.path))
        })?;
        for (output, files) in planned {
            self.note_other_sets(output, files)?;
        }
        Ok(())
    }

    /// Names the files of an earlier set with the same name and another count of files, which nothing replaces.
    fn note_other_sets(&self, output: &GgufOutput, files: &[GgufPlan]) -> Result<()> {
        let mut stale = split::files_of_sets(&plan::prefix(&output.path))?;
        stale.retain(|path| files.iter().all(|file| file.path != *path));
        if !stale.is_empty() {
            let names = stale.iter().map(|path| format!("`{}`", path.display()));
            self.observer.note(&format!(
                "note: files of another set stay: {}; remove them if nothing reads them",
                listing::items(names)
            ));
        }
        Ok(())
    }
}
