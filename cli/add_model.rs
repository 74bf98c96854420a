//! Implements `onboard add-model`, which takes a checkpoint to a proof, or to a list of missing parts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use engine::{Chunk, InputRounding, NoProbe, OutputRows, SessionOptions};
use models::add::{AddOptions, AddedModel, add};
use models::config::ConfigFile;
use models::coverage::TensorCoverage;
use models::draft::{SpecDraft, free_name, summary};
use models::local_model::LocalModel;
use models::specs::Specs;
use models::{CheckpointFolder, is_gguf, open};
use parity::beside::{beside, open_dump};
use parity::mutate::{Fate, MutateOptions, MutationReport};
use parity::quantized::is_quantized;
use parity::{CheckOptions, Dump, Report, Verdict};
use proofs::{Card, ChatSummary, ProofResults, ProofStatus, WeightsSummary};
use registry::dtype::Dtype;
use registry::file;
use registry::quantity::{count, plural};
use registry::table::TextTable;

use crate::findings::{
    briefly_reported_error, check_error, engine_error, model_error, reported_error,
};
use crate::parity_check;
use crate::specs;
use crate::target::{self, ModelArgs, SpecArgs};
use crate::term::{Tone, paint};
use crate::{CommandOutcome, annotate, parity_mutate, schema, term, write};

mod derived;
mod draft_screen;

use derived::{DeriveArgs, LiftedRecord};

/// Origin of the spec of a model.
#[derive(Debug)]
enum SpecOrigin {
    /// The spec was given, or matches.
    Known,
    /// It was drafted from the headers.
    Drafted(Box<SpecDraft>),
    /// It was derived from a class, which is named.
    Derived(String),
}

/// Matches or drafts a spec, builds the model, runs it and proves it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard add-model MODEL                        a folder with a reference/ dump beside the weights
  onboard add-model owner/name                   from a hub (HF_TOKEN, HF_HOME, HF_ENDPOINT are read)
  onboard add-model MODEL --reference DUMP       made by `parity dump MODEL -o DUMP`
  onboard add-model MODEL --derive               write the spec from what the class computes
  onboard add-model MODEL --like SPEC            draft a spec for a cousin of a known family
  onboard add-model MODEL --spec my.yaml         a spec of your own
  onboard add-model FILE.gguf --reference DUMP   a GGUF file; what its types cost is said in place of a proof

A class that no spec matches is run once, if there is a Python with torch and transformers, and a spec is derived from
the record of what it computed; --derive does so for any class. What has no counterpart in the spec language is listed
with its file and line, and the spec is then a draft. Without such a Python, and with --like, a draft is made from the
config and the headers of the weights.

Exit codes: 0 proven, 1 differs, 2 could not run or nothing to prove it with.")]
pub(crate) struct AddModelArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    #[command(flatten)]
    derivation: DeriveArgs,
    /// Draft a spec that extends this one, even if another matches
    #[arg(long, value_name = "SPEC", conflicts_with = "spec")]
    like: Option<PathBuf>,
    /// The reference dump; default: MODEL/reference, then MODEL/dump
    #[arg(long, value_name = "DUMP")]
    reference: Option<PathBuf>,
    /// Inject mistakes into the proven model too, and write in the card which of them the check catches
    #[arg(long)]
    measure: bool,
    /// Folder of the card (and a drafted spec); default: ./onboard-out/NAME
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the card as JSON
    #[arg(long)]
    json: bool,
    /// Worker threads of the engine
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl AddModelArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        if is_gguf(&self.which.model) {
            return self.file();
        }
        let folder = target::folder(&self.which)?;
        let out = self.card_folder(&folder.name);
        let (target, origin) = self.target(&folder, &out)?;
        let checkpoint = target.checkpoint()?;
        let coverage = TensorCoverage::of(&target.model, &checkpoint);
        self.print_model(&target, &origin)?;
        match &origin {
            // Its findings are listed beside it.
            SpecOrigin::Drafted(_) => coverage.refuse(&target.dir).map_err(model_error)?,
            SpecOrigin::Known | SpecOrigin::Derived(_) => target::covered(&coverage, &target.dir)?,
        }
        self.print_progress("weights", &coverage.summary());
        let nonfinite = target.nonfinite()?;
        if !nonfinite.is_empty() {
            return Err(reported_error(&nonfinite, "the weights cannot be used"));
        }
        self.smoke(&target)?;
        let reference = self.reference.clone().or_else(|| beside(&target.dir));
        let report = match &reference {
            Some(path) => Some(self.compare(&target, path)?),
            None => None,
        };
        let weights =
            WeightsSummary { coverage: Some(coverage), fingerprint: target.fingerprint()? };
        let book = match (&reference, &report) {
            (Some(path), Some(report)) if self.measure && report.verdict() != Verdict::Fail => {
                Some(self.measure_mutants(&target, path)?)
            }
            _ => None,
        };
        let evidence = ProofResults { report: report.as_ref(), book: book.as_ref() };
        let outcome = self.write_card(&target, weights, evidence, &out)?;
        if let (SpecOrigin::Derived(_), CommandOutcome::Differs) = (&origin, outcome) {
            term::note(&format!(
                "hint: `parity diagnose {} --spec {}` looks for the edit of the spec that restores the reference",
                self.which.model.display(),
                target.spec.path
            ));
        }
        Ok(outcome)
    }

    /// Measures the check with injected mistakes.
    fn measure_mutants(&self, target: &LocalModel, reference: &Path) -> Result<MutationReport> {
        let (_, dump) = open_dump(&target.dir, Some(reference))?;
        let options = MutateOptions { threads: self.threads, ..MutateOptions::default() };
        let book =
            parity_mutate::measure(crate::engines::native()?.as_ref(), target, &dump, &options)?;
        let caught = count_of(&book, Fate::Caught);
        let missed = count_of(&book, Fate::Missed);
        self.print_progress("mistakes", &format!("{caught} of {} are caught", caught + missed));
        Ok(book)
    }

    /// Checks a GGUF file, which is opened only if every tensor is recognized.
    fn file(&self) -> Result<CommandOutcome> {
        let target = target::open(&self.which, &self.choice)?;
        ensure!(
            self.like.is_none() && !self.derivation.asks(),
            "--like and --derive write a spec for a checkpoint; a GGUF file has none to write it from"
        );
        let file = formats::gguf::GgufFile::open(&target.dir)?;
        self.print_model(&target, &SpecOrigin::Known)?;
        let tensors = plural(file.tensors().len(), "tensor");
        self.print_progress(
            "weights",
            &format!("{tensors} of the file, each as its keys and spec say"),
        );
        self.smoke(&target)?;
        let reference = self.reference.clone().or_else(|| beside(&target.dir));
        if let Some(reference) = &reference
            && is_quantized(&file)
        {
            term::note(&format!(
                "note: `{}` keeps numbers in blocks, so it is not proven but measured: what its types cost",
                target.dir.display()
            ));
            let which = self.which.clone();
            let choice = self.choice.clone();
            return parity_check::ParityCheckArgs::of_file(which, choice, reference, self.json)
                .run();
        }
        let report = match &reference {
            Some(path) => Some(self.compare(&target, path)?),
            None => None,
        };
        let weights = WeightsSummary { coverage: None, fingerprint: target.fingerprint()? };
        let out = self.card_folder(&target.name);
        self.write_card(
            &target,
            weights,
            ProofResults { report: report.as_ref(), book: None },
            &out,
        )
    }

    /// Returns the folder of the card.
    fn card_folder(&self, name: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| Path::new("onboard-out").join(name))
    }

    /// Prints the spec and the model.
    fn print_model(&self, target: &LocalModel, origin: &SpecOrigin) -> Result<()> {
        self.print_progress("spec", &spec_line(target, origin));
        let graph = &target.model.graph;
        let (_, parameters) = target.extent()?;
        self.print_progress(
            "model",
            &format!(
                "{}, {}, {}, {} parameters",
                target.model.architecture,
                plural(graph.layers.len(), "layer"),
                plural(graph.states.len(), "state"),
                count(parameters)
            ),
        );
        Ok(())
    }

    /// Writes the card and prints the result.
    fn write_card(
        &self,
        target: &LocalModel,
        weights: WeightsSummary,
        evidence: ProofResults<'_>,
        out: &Path,
    ) -> Result<CommandOutcome> {
        let report = evidence.report;
        let outcome = ProofStatus::of(report);
        let chat = ChatSummary::read(&target.dir, self.reference.as_deref());
        let card = Card::new(target, weights, evidence, chat, outcome)?;
        let paths = [("card.md", card.markdown()), ("card.json", card.json())];
        for (file, text) in &paths {
            write::report(&out.join(file), text)?;
        }
        if self.json {
            term::print(&card.json())?;
        } else {
            term::print("")?;
            match report {
                Some(report) if outcome == ProofStatus::Differs => {
                    term::print(&parity::report::text(report))?;
                }
                Some(report) => {
                    term::print(&card_table(report))?;
                    report.notes.iter().for_each(|note| self.print_progress("note", note));
                }
                None => {}
            }
            self.print_progress("verdict", &verdict_line(outcome, report));
            self.print_progress("card", &out.join("card.md").display().to_string());
        }
        if outcome == ProofStatus::NotProven {
            term::note(&format!(
                "nothing was proven: {}",
                parity::Error::NoReference { place: target.dir.clone() }
            ));
        }
        if let Some(report) = report {
            annotate::report(report, &target.model);
        }
        Ok(match outcome {
            ProofStatus::Proven | ProofStatus::ProvenInPart => CommandOutcome::Ok,
            ProofStatus::Differs => CommandOutcome::Differs,
            ProofStatus::NotProven => CommandOutcome::CouldNotRun,
        })
    }

    /// Prints a line of progress: to stdout, unless JSON is requested.
    fn print_progress(&self, what: &str, text: &str) {
        let line = format!("{what:<8} {text}");
        if self.json {
            term::note(&line);
        } else {
            // The next `?` on a print reports a closed stdout.
            term::print(&line).ok();
        }
    }

    /// Opens the checkpoint with the given spec, a matching one, or a drafted one.
    fn target(&self, folder: &CheckpointFolder, out: &Path) -> Result<(LocalModel, SpecOrigin)> {
        let mut specs = specs::open(self.choice.specs.as_deref())?;
        let config = ConfigFile::of_folder(&folder.dir).map_err(model_error)?;
        if let Some(lifted) = self.lift(folder, &config, &specs)? {
            return self.derive(folder, config, &mut specs, &lifted, out);
        }
        let options = AddOptions {
            spec: self.choice.spec.clone(),
            like: self.like.clone(),
            set: self.choice.set.clone(),
            out: out.to_owned(),
        };
        match add(folder, &mut specs, &options).map_err(model_error)? {
            AddedModel::Matched(opened) => Ok((target::shown(*opened), SpecOrigin::Known)),
            AddedModel::Drafted { draft, config } => {
                self.write_draft(&mut specs, &config, &folder.dir, &draft)?;
                let set = &self.choice.set;
                let opened = open::resolve(folder, config, &specs, &draft.name, set);
                let mut opened = opened.map_err(model_error)?;
                // The list beside the draft has them.
                opened.warnings.clear();
                Ok((target::shown(opened), SpecOrigin::Drafted(draft)))
            }
        }
    }

    /// Derives a spec if the options ask for it, or if no spec matches and nothing else is asked for.
    fn lift(
        &self,
        folder: &CheckpointFolder,
        config: &ConfigFile,
        specs: &Specs,
    ) -> Result<Option<LiftedRecord>> {
        let name = free_name(config, specs, "derived");
        if self.derivation.asks() {
            return self.derivation.lifted(&folder.dir, &name).map(Some);
        }
        if self.choice.spec.is_some() || self.like.is_some() {
            return Ok(None);
        }
        let known = specs.matching(config).map_err(model_error)?.is_some();
        Ok(if known { None } else { self.derivation.lifted_if_possible(&folder.dir, &name) })
    }

    /// Writes the spec that a record gives, and opens the checkpoint with it; an error lists the holes.
    fn derive(
        &self,
        folder: &CheckpointFolder,
        config: ConfigFile,
        specs: &mut Specs,
        lifted: &LiftedRecord,
        out: &Path,
    ) -> Result<(LocalModel, SpecOrigin)> {
        let LiftedRecord { record, derived, name } = lifted;
        let path = out.join(format!("{name}.yaml"));
        write_spec(&path, &derived::commented(record, derived))?;
        let class = derived::class_of(record);
        self.print_progress("recorded", &class);
        if self.derivation.explain {
            let lines = derived::explained(&derived.origins);
            for line in &lines {
                self.print_progress("explains", line);
            }
        }
        if !derived.holes.is_empty() {
            let screen = derived::holes_screen(record, derived, &path, &self.which.model);
            return Err(briefly_reported_error(&[], &screen));
        }
        specs.add(&path).map_err(model_error)?;
        let opened = open::resolve(folder, config, specs, name, &self.choice.set);
        let target = target::shown(opened.map_err(model_error)?);
        self.print_progress("derived", &path.display().to_string());
        for (heading, text) in derived::lines(specs, name, &target.model) {
            self.print_progress(heading, &text);
        }
        Ok((target, SpecOrigin::Derived(class)))
    }

    /// Writes a draft for a config that no spec matches; an error lists what is left to complete.
    fn write_draft(
        &self,
        specs: &mut Specs,
        config: &ConfigFile,
        dir: &Path,
        draft: &SpecDraft,
    ) -> Result<()> {
        let path = draft.path.display();
        write_spec(&draft.path, &commented(draft, dir))?;
        specs.add(&draft.path).map_err(model_error)?;
        if !draft.findings.is_empty() {
            let list = summary::list_path(&draft.path);
            let listed = summary::list(draft);
            write::report(&list, &listed).context("cannot write the list of findings")?;
        }
        if draft.is_whole() {
            term::note(&format!("drafted {path}; complete it, and give it with --spec {path}"));
            if !draft.findings.is_empty() {
                term::note(&format!(
                    "warning: {} of the draft: {}",
                    plural(draft.findings.len(), "finding"),
                    summary::list_path(&draft.path).display()
                ));
            }
            return Ok(());
        }
        let model = &self.which.model;
        let screen = draft_screen::screen(draft, &config.architecture(), model);
        Err(briefly_reported_error(&draft.findings, &screen))
    }

    /// Runs a few tokens in the checkpoint's own dtype: prefill, then decode.
    fn smoke(&self, target: &LocalModel) -> Result<()> {
        target::check_dtypes(target, &[target.dtype()])?;
        let options = SessionOptions {
            dtype: target.dtype(),
            threads: self.threads,
            ..SessionOptions::default()
        };
        let engine = crate::engines::native()?;
        let mut session = engine.open(&target::source(target), &options).map_err(engine_error)?;
        let vocab = target.model.vocab;
        let tokens: Vec<u32> = (0..5_usize).map(|n| ((n * 7 + 1) % vocab.max(1)) as u32).collect();
        let slot = session.open_slot();
        let (first, remaining) = tokens.split_at(3);
        session.step(&[Chunk { slot, tokens: first, rows: OutputRows::All }], &mut NoProbe)?;
        for token in remaining {
            let chunk = Chunk { slot, tokens: std::slice::from_ref(token), rows: OutputRows::All };
            session.step(&[chunk], &mut NoProbe)?;
        }
        self.print_progress(
            "runs",
            &format!(
                "prefill of {} tokens, decode of {}, in {}",
                first.len(),
                remaining.len(),
                target.dtype()
            ),
        );
        Ok(())
    }

    fn compare(&self, target: &LocalModel, path: &Path) -> Result<Report> {
        let dump = Dump::open_whole(path)
            .with_context(|| format!("cannot read the reference `{}`", path.display()))?;
        let dtypes: Vec<Dtype> = dump.runs();
        let dtypes = if target.is_gguf() { vec![Dtype::F32] } else { dtypes };
        target::check_dtypes(target, &dtypes)?;
        let names = dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
        let mut options = CheckOptions { dtypes, threads: self.threads, ..CheckOptions::default() };
        if target.is_gguf() {
            // A file's bytes differ from those of its source checkpoint, and it has no quantization
            // schemes.
            options.same_model = false;
            options.rounds = Some(InputRounding::None);
        }
        let report =
            parity::check(&target::source(target), &dump, &options).map_err(check_error)?;
        self.print_progress("compared", &format!("with {} in {names}", report.subject.producer));
        Ok(report)
    }
}

/// Writes a spec, unless the file is there with another text.
fn write_spec(path: &Path, text: &str) -> Result<()> {
    let shown = path.display();
    let differs = path.is_file() && file::read(path, file::SPEC)? != text.as_bytes();
    ensure!(
        !differs,
        "`{shown}` is there already and differs from this draft; continue with --spec {shown}, or remove the file"
    );
    write::atomic(path, text.as_bytes()).context("cannot write the draft")?;
    schema::beside(path)
}

/// Returns the number of mutants with this outcome.
fn count_of(book: &MutationReport, fate: Fate) -> usize {
    book.outcomes.iter().filter(|outcome| outcome.fate == fate).count()
}

/// Returns the text of a drafted spec with a comment for its reader.
fn commented(draft: &SpecDraft, dir: &Path) -> String {
    let folder =
        dir.file_name().map_or_else(|| "a checkpoint".into(), |name| name.to_string_lossy());
    let advice = format!(
        "Override by name what differs: a dim, a function, a layer program. `onboard help spec` explains\n\
         the language, `onboard show {} --source` shows what is inherited.",
        draft.base
    );
    format!("{}\n{}{}", schema::LINE, draft.comment(&folder, &advice), draft.body)
}

fn spec_line(target: &LocalModel, origin: &SpecOrigin) -> String {
    match origin {
        SpecOrigin::Drafted(draft) => {
            format!("{} (drafted: extends {})", target.spec.name, draft.base)
        }
        SpecOrigin::Derived(class) => format!("{} (derived from {class})", target.spec.name),
        SpecOrigin::Known if target.spec.builtin => format!("{} (built in)", target.spec.name),
        SpecOrigin::Known => format!("{} ({})", target.spec.name, target.spec.path),
    }
}

fn verdict_line(outcome: ProofStatus, report: Option<&Report>) -> String {
    let gates: usize =
        report.map_or(0, |report| report.runs.iter().map(|run| run.gates.len()).sum());
    match outcome {
        ProofStatus::Proven => format!("{}: {gates} gates hold", paint(Tone::Good, "proven")),
        ProofStatus::ProvenInPart => {
            let unproven = report.and_then(Report::unproven).unwrap_or_default();
            let word = paint(Tone::Strong, "proven in part");
            format!("{word}: {gates} gates hold, but not proven: {unproven}")
        }
        ProofStatus::Differs => paint(Tone::Bad, "differs"),
        ProofStatus::NotProven => paint(Tone::Strong, "not proven"),
    }
}

/// Formats the results as a table, one line per run and phase.
fn card_table(report: &Report) -> String {
    let mut table = TextTable::new(&[2, 3, 4, 5, 6]);
    table.row(["dtype", "phase", "rows", "|dlogp|", "bound", "mean", "KL", "verdict"]);
    for run in &report.runs {
        for phase in &run.phases {
            let verdict = match phase.verdict {
                Verdict::Pass => paint(Tone::Good, "pass"),
                Verdict::Skip => "skip".to_owned(),
                Verdict::Fail => paint(Tone::Bad, "FAIL"),
            };
            table.row([
                run.label(),
                phase.phase.to_string(),
                phase.rows.to_string(),
                format!("{:.1e}", phase.max),
                format!("{:.1e}", phase.limit),
                format!("{:.1e}", phase.mean),
                format!("{:.1e}", phase.kl),
                verdict,
            ]);
        }
    }
    let mut text = table.plain("  ");
    let held = report.schedules.iter().filter(|row| row.verdict == Verdict::Pass).count();
    if !report.schedules.is_empty() {
        let all = report.schedules.len();
        writeln!(text, "  {held} of {all} schedules give what one prefill gives")
            .expect("a string");
    }
    text
}
