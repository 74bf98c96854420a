//! Specs derived from a record of what a model's class computes
//! ([decision 115](../../docs/decisions/0115-specs-from-records.md)).

use std::fmt::{self, Write as _};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use derive::hole::Hole;
use derive::origin::{Origin, starred};
use derive::record::Record;
use derive::roll::Derived;
use models::specs::Specs;
use parity::reference_script;
use registry::file;
use registry::model::Model;
use registry::quantity::plural;
use registry::scalar::Scalar;

use crate::python::{PythonInterpreter, note_own_code, refuse_other_files};
use crate::{schema, term};

/// Holes that the screen shows; the comment in the draft lists all.
const SHOWN: usize = 12;

/// Options of a derivation.
#[derive(Debug, Args)]
pub(super) struct DeriveArgs {
    /// Derive a spec from a record of what the class computes, even if a spec matches
    #[arg(long, conflicts_with_all = ["spec", "like"])]
    pub derive: bool,
    /// Derive a spec from this record, made by `python dump.py MODEL --trace FILE.json`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["spec", "like"])]
    pub record: Option<PathBuf>,
    /// Print which modules of the class each function of a derived spec describes
    #[arg(long)]
    pub explain: bool,
    /// The Python that records the class; default: as for `parity dump`
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Record a class that the checkpoint brings: this runs its code (auto_map)
    #[arg(long)]
    trust_remote_code: bool,
    /// Import a file with classes of your own before the class is recorded (repeatable)
    #[arg(long, value_name = "FILE.py")]
    import: Vec<PathBuf>,
}

impl DeriveArgs {
    /// Returns true if a spec is derived although another may match.
    pub(super) fn asks(&self) -> bool {
        self.derive || self.record.is_some()
    }

    /// Returns the spec that the options ask for.
    pub(super) fn lifted(&self, dir: &Path, name: &str) -> Result<LiftedRecord> {
        if let Some(file) = &self.record {
            return LiftedRecord::of(read(file)?, name);
        }
        note_own_code(dir, self.trust_remote_code);
        let python = PythonInterpreter::find(self.python.as_deref());
        term::note(&format!("recording the class with {}", python.name()));
        LiftedRecord::of(self.run(&python, dir)?, name)
    }

    /// Returns a spec for a model that no spec matches; none if there is no Python for it, or if the class cannot
    /// be recorded or lifted.
    pub(super) fn lifted_if_possible(&self, dir: &Path, name: &str) -> Option<LiftedRecord> {
        let python = PythonInterpreter::find(self.python.as_deref());
        if !python.has_packages() {
            return None;
        }
        term::note(&format!("no spec matches; recording the class with {}", python.name()));
        match self.run(&python, dir).and_then(|record| LiftedRecord::of(record, name)) {
            Ok(lifted) => Some(lifted),
            Err(error) => {
                term::note(&format!(
                    "note: {error:#}; what follows is drafted from the config and the headers alone"
                ));
                None
            }
        }
    }

    /// Runs the script, and reads what it wrote.
    fn run(&self, python: &PythonInterpreter, dir: &Path) -> Result<Record> {
        refuse_other_files(&self.import)?;
        let folder = tempfile::Builder::new().prefix("onboard-record-").tempdir()?;
        // Python may leave compiled modules beside the script.
        let _watched = crate::interrupt::watch_whole(folder.path());
        let script = folder.path().join("dump.py");
        let record = folder.path().join("record.json");
        fs_err::write(&script, reference_script::text())?;
        let mut command = python.command();
        command.arg(&script).arg(dir).arg("--trace").arg(&record);
        if self.trust_remote_code {
            command.arg("--trust-remote-code");
        }
        for file in &self.import {
            command.arg("--import").arg(file);
        }
        // The script ends with this process, also if it is killed.
        command.env("ONBOARD_PARENT", std::process::id().to_string()).stdin(Stdio::null());
        let output = command
            .output()
            .with_context(|| format!("cannot start {}; give --python PATH", python.name()))?;
        if output.status.success() {
            return read(&record);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        match last.map(|line| line.strip_prefix("dump: error: ").unwrap_or(line)) {
            Some(line) if python.has_packages() => Err(anyhow!("{line}")),
            _ => Err(python.explain(output.status)),
        }
    }
}

/// Record of a class, with the spec that it gives.
#[derive(Debug)]
pub(super) struct LiftedRecord {
    pub record: Record,
    pub derived: Derived,
    /// Name of the spec.
    pub name: String,
}

impl LiftedRecord {
    fn of(record: Record, name: &str) -> Result<Self> {
        Ok(Self { derived: derived(&record, name)?, record, name: name.to_owned() })
    }
}

/// Reads a record.
fn read(path: &Path) -> Result<Record> {
    let bytes = file::read(path, file::REPORT)
        .with_context(|| format!("cannot read the record `{}`", path.display()))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("`{}` is no record of a class", path.display()))
}

/// Derives the text of a spec from a record.
fn derived(record: &Record, name: &str) -> Result<Derived> {
    let class = &record.class;
    let derived = catch_unwind(|| derive::roll::derive(record, name)).map_err(|_| {
        anyhow!("the record of `{class}` cannot be lifted to a spec; --like SPEC drafts one from a known spec")
    })?;
    let holes = listed(record, &derived.holes);
    let reasons = holes.iter().map(ToString::to_string).collect::<Vec<_>>();
    ensure!(
        !derived.spec.is_empty(),
        "no spec can be derived from `{class}`: {}; --like SPEC drafts one from a known spec",
        reasons.join("; ")
    );
    Ok(derived)
}

/// A module that could not be lifted whole: its class, its path with a star for each number, and the steps that no op explains.
#[derive(Debug)]
struct ModuleHole {
    class: String,
    module: String,
    steps: Vec<String>,
}

impl fmt::Display for ModuleHole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, module, steps } = self;
        write!(formatter, "`{class}`, in `{module}`: ")?;
        match steps.as_slice() {
            [step] => write!(formatter, "{step}"),
            steps => write!(formatter, "{}", plural(steps.len(), "step")),
        }
    }
}

impl ModuleHole {
    /// Returns the lines that tell of the hole: one, and one for each step where there are several.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("  - {self}")];
        if self.steps.len() > 1 {
            lines.extend(self.steps.iter().map(|step| format!("      {step}")));
        }
        lines
    }
}

/// Groups steps that no op explains by the class of their module; equal modules are one.
fn listed(record: &Record, holes: &[Hole]) -> Vec<ModuleHole> {
    let mut modules: Vec<ModuleHole> = Vec::new();
    for hole in holes {
        let class = record.modules.get(&hole.module).map_or(&record.class, |facts| &facts.class);
        let step = hole.to_string();
        match modules.iter_mut().find(|module| module.class == *class) {
            Some(module) if module.steps.contains(&step) => {}
            Some(module) => module.steps.push(step),
            None => modules.push(ModuleHole {
                class: class.clone(),
                module: starred(&hole.module),
                steps: vec![step],
            }),
        }
    }
    modules
}

/// Returns the text of a derived spec with comments on its origin and its holes.
pub(super) fn commented(record: &Record, derived: &Derived) -> String {
    let holes = listed(record, &derived.holes);
    let mut text = String::new();
    let class = class_of(record);
    if holes.is_empty() {
        let _ = writeln!(text, "# Derived from {class}, by a record of what it computes.");
        let _ = writeln!(
            text,
            "# Only a check against a reference proves it: `parity check MODEL --spec FILE`."
        );
    } else {
        let _ = writeln!(
            text,
            "# DRAFT, NOT PROVEN: derived from {class}, with {}.",
            plural(holes.len(), "hole")
        );
        let _ = writeln!(text, "# It cannot run until each `hole_...` in it is written by hand:");
        for line in holes.iter().flat_map(ModuleHole::lines) {
            let _ = writeln!(text, "# {line}");
        }
    }
    format!("{text}{}\n{}", schema::LINE, derived.spec)
}

/// Returns the name of a class, its file, and the release of transformers that ran it.
pub(super) fn class_of(record: &Record) -> String {
    let module = record.file.rsplit('.').next().unwrap_or(&record.file);
    let release = record.config.get("transformers_version").and_then(|version| version.as_str());
    let release = release.map_or_else(String::new, |version| format!(", transformers {version}"));
    format!("`{}` ({module}.py{release})", record.class)
}

/// Returns what a user has to know about a draft with holes.
pub(super) fn holes_screen(
    record: &Record,
    derived: &Derived,
    path: &Path,
    model: &Path,
) -> String {
    let holes = listed(record, &derived.holes);
    let draft = path.display();
    let mut text = format!(
        "no op explains steps of {} of `{}`; the draft `{draft}` is not proven and cannot run\n",
        plural(holes.len(), "module"),
        record.class
    );
    let lines: Vec<String> = holes.iter().flat_map(ModuleHole::lines).collect();
    for line in lines.iter().take(SHOWN) {
        let _ = writeln!(text, "{line}");
    }
    if lines.len() > SHOWN {
        let _ =
            writeln!(text, "  {} more lines are in the comment at its top", lines.len() - SHOWN);
    }
    let _ = write!(
        text,
        "next     write each `hole_...` of the draft by hand (`onboard help spec`, `onboard help ops`)\n         \
         onboard add-model {0} --spec {draft}\n         \
         onboard add-model {0} --like SPEC drafts from a known spec instead",
        model.display()
    );
    text
}

/// Returns lines on a derived spec and the model that it makes: a heading and a text each.
pub(super) fn lines(specs: &Specs, name: &str, model: &Model) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let Ok(spec) = specs.load(name, &[]) else { return lines };
    let sizes = spec.dims.keys().filter_map(|dim| match model.dims.get(dim)? {
        value @ (Scalar::Int(_) | Scalar::Float(_) | Scalar::Bool(_)) => {
            Some(format!("{dim} {value}"))
        }
        _ => None,
    });
    lines.push(("dims", sizes.collect::<Vec<_>>().join(", ")));
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for layer in &model.graph.layers {
        match kinds.iter_mut().find(|(kind, _)| *kind == layer.kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((&layer.kind, 1)),
        }
    }
    let kinds = match kinds.as_slice() {
        [(_, count)] => format!("{count} of one kind"),
        _ => kinds
            .iter()
            .map(|(kind, count)| format!("{count} `{kind}`"))
            .collect::<Vec<_>>()
            .join(", "),
    };
    lines.push(("layers", kinds));
    let states =
        spec.states.values().map(|state| format!("{} ({})", state.name.name, state.kind.name));
    lines.push(("states", states.collect::<Vec<_>>().join(", ")));
    let assumed = spec.assumes.keys().cloned().collect::<Vec<_>>();
    lines.push(("assumes", assumed.join("; ")));
    lines.retain(|(_, text)| !text.is_empty());
    lines
}

/// Returns a line for each function and layer program: the modules that it describes, with their class.
pub(super) fn explained(origins: &[Origin]) -> Vec<String> {
    let width = origins.iter().map(|origin| origin.name.len()).max().unwrap_or_default();
    origins.iter().map(|origin| origin_line(origin, width)).collect()
}

fn origin_line(origin: &Origin, width: usize) -> String {
    format!("{:<width$}  {} ({})", origin.name, joined(&origin.modules), origin.class)
}

/// Joins the paths of modules that differ by one number alone: `model.layers.{0,2}.mlp`.
fn joined(paths: &[String]) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for path in paths {
        let number = path.split('.').find(|part| part.parse::<usize>().is_ok()).unwrap_or_default();
        let general = starred(path);
        match groups.iter_mut().find(|(known, _)| *known == general) {
            Some((_, numbers)) => numbers.push(number),
            None => groups.push((general, vec![number])),
        }
    }
    let shown = groups.iter().map(|(general, numbers)| match numbers.as_slice() {
        [number] => general.replacen('*', number, 1),
        _ => general.replacen('*', &format!("{{{}}}", numbers.join(",")), 1),
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_several_layers_are_one_path() {
        let paths = ["model.layers.0.mlp", "model.layers.2.mlp", "model.norm"].map(str::to_owned);
        assert_eq!(joined(&paths), "model.layers.{0,2}.mlp, model.norm");
        assert_eq!(joined(&paths[..1]), "model.layers.0.mlp");
    }
}
