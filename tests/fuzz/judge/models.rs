//! Judges of configs, specs and overrides: an accepted case runs, and its output is finite or reported.

use std::path::Path;
use std::sync::Arc;

use registry::config::Config;
use registry::diag::Finding;
use registry::library::Library;
use registry::render::{RenderStyle, render};
use registry::resolve::resolve;
use registry::{lint, print};

use super::{Judged, Trial, files, refused};
use crate::program::forward;

/// Arguments that run a case as a user would.
const RUN: [&str; 7] = ["--tokens", "1,5,9", "-n", "2", "--threads", "1", "--seed=1"];

/// Judges a checkpoint whose `config.json` is damaged.
pub(crate) fn config(trial: &Trial<'_>) -> Judged {
    let text = trial.case.text("config.json");
    let library = &trial.program.library;
    let judged = match Config::parse("config.json", &text) {
        Err(finding) => refuse(&[finding])?,
        Ok(config) => match library.find(&config).first().copied() {
            None => false,
            Some(name) => {
                let name = name.to_owned();
                model(trial, library, &name, &config, &[], trial.dir)?
            }
        },
    };
    command(trial, 12, &[])?;
    Ok(judged)
}

/// Judges a quantized checkpoint: config and weights are damaged.
pub(crate) fn quantization(trial: &Trial<'_>) -> Judged {
    let judged = match files::read_all(trial.dir) {
        Ok(()) => true,
        Err(text) => refused(&text)?,
    };
    if judged {
        command(trial, 10, &[])?;
    }
    if trial.sometimes(20) {
        let out = trial.beside("out");
        if out.exists() {
            fs_err::remove_dir_all(&out).map_err(|error| error.to_string())?;
        }
        let from = trial.dir.display().to_string();
        let to = out.display().to_string();
        let ran = trial.program.command(&["convert", &from, "--to", "bf16", "-o", &to])?;
        if ran.code == 0 {
            files::read_all(&out).map_err(|error| format!("converted, but {error}"))?;
        }
    }
    Ok(judged)
}

/// Judges a spec in YAML, with the checkpoint of the family it describes.
pub(crate) fn spec(trial: &Trial<'_>) -> Judged {
    let family = trial.case.words.first().ok_or("a case names its family")?;
    let home = trial.program.root.join("fixtures").join(family);
    let file = trial.dir.join("spec.yaml");
    let mut library = trial.program.library.clone();
    let name = match library.add_file(&file) {
        Ok(name) => name,
        Err(findings) => return refuse(&findings),
    };
    let config = Config::read(&home.join("config.json")).map_err(|f| f.message)?;
    let judged = model(trial, &library, &name, &config, &[], &home)?;
    if trial.sometimes(20) {
        let file = file.display().to_string();
        let home = home.display().to_string();
        trial.program.command(&["check", &file])?;
        trial.program.command(&["check", &file, "--model", &home])?;
        let ran = trial.program.command(&[&["run", &home, "--spec", &file][..], &RUN].concat())?;
        if judged && ran.code == 2 {
            return Err(format!("the libraries run it, the command does not: {}", ran.printed));
        }
    }
    Ok(judged)
}

/// Judges overrides on the command line, `--set KEY=VALUE`.
pub(crate) fn set(trial: &Trial<'_>) -> Judged {
    let (family, sets) = trial.case.words.split_first().ok_or("a case names its family")?;
    let home = trial.program.root.join("fixtures").join(family);
    let config = Config::read(&home.join("config.json")).map_err(|f| f.message)?;
    let library = &trial.program.library;
    let name = library.find(&config).first().copied().ok_or("no spec matches")?.to_owned();
    let judged = model(trial, library, &name, &config, sets, &home)?;
    if trial.sometimes(20) && sets.iter().all(|set| !set.contains('\0')) {
        let home = home.display().to_string();
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set.as_str()]).collect();
        trial.program.command(&[&["run", &home][..], &RUN, &sets].concat())?;
        trial.program.command(&[&["show", &home][..], &sets].concat())?;
    }
    Ok(judged)
}

/// Judges a GGUF file as a model.
pub(crate) fn gguf(trial: &Trial<'_>) -> Judged {
    let path = trial.path("model.gguf");
    let ran = trial.program.command(&[&["run", &path][..], &RUN].concat())?;
    if trial.sometimes(4) {
        trial.program.command(&["show", &path, "--graph"])?;
        trial.program.command(&["run", &path, "--prompt", "a b", "-n", "3", "--threads", "1"])?;
    }
    Ok(ran.code == 0)
}

/// Runs a checkpoint by its command, once in `n` cases.
fn command(trial: &Trial<'_>, n: u64, more: &[&str]) -> Result<(), String> {
    if trial.sometimes(n) {
        let dir = trial.dir.display().to_string();
        trial.program.command(&[&["run", &dir][..], &RUN, more].concat())?;
        trial.program.command(&["show", &dir])?;
    }
    Ok(())
}

/// Resolves a spec with a config and runs the model; the command has to report values that are not finite.
fn model(
    trial: &Trial<'_>,
    library: &Library,
    name: &str,
    config: &Config,
    sets: &[String],
    home: &Path,
) -> Judged {
    let spec = match library.load(name, sets) {
        Ok(spec) => spec,
        Err(findings) => return refuse(&findings),
    };
    let ops = &trial.program.ops;
    let faults = lint::lint(&spec, ops);
    shown(&faults)?;
    let (model, warnings) = match resolve(&spec, config, ops) {
        Ok(resolved) => resolved,
        Err(findings) => return refuse(&findings),
    };
    shown(&warnings)?;
    let model = Arc::new(model);
    // As `show` does.
    drop([print::dims(&model), print::weights(&model), print::graph(&model)]);
    match forward(Arc::clone(&model), home) {
        Err(text) => refused(&text),
        Ok(true) => Ok(true),
        Ok(false) => {
            let home = home.display().to_string();
            let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set.as_str()]).collect();
            let file = trial.path("spec.yaml");
            let spec = ["--spec", file.as_str()];
            let spec = if trial.case.files.contains_key("spec.yaml") { &spec[..] } else { &[] };
            let words = [&["run", &home, "--dtype", "f32"][..], &RUN, spec, &sets].concat();
            match trial.program.command(&words)?.code {
                0 => Err("logits that are not finite, and exit 0".to_owned()),
                _ => Ok(false),
            }
        }
    }
}

fn refuse(findings: &[Finding]) -> Judged {
    if findings.is_empty() {
        return Err("refused without a finding".to_owned());
    }
    shown(findings).map(|()| false)
}

/// Checks that findings can be shown with their source text.
fn shown(findings: &[Finding]) -> Result<(), String> {
    let text = render(findings, RenderStyle::Plain);
    if text.len() > 4_000_000 {
        return Err(format!("findings of {} bytes", text.len()));
    }
    Ok(())
}

/// Judges a sheet of an engine, as a list of abilities and in the launch of a model.
pub(crate) fn sheet(trial: &Trial<'_>) -> Judged {
    let text = trial.case.text("engine.yaml");
    let read = match engine::capability::EngineSheet::parse(&text) {
        Ok(_) => true,
        Err(error) => refused(&error.to_string())?,
    };
    let home = trial.program.root.join("fixtures/llama_256").display().to_string();
    let sheet = trial.path("engine.yaml");
    let ran = trial.program.command(&["launch", &home, "--engine", &sheet, "--gpu", "b200"])?;
    Ok(read && ran.code == 0)
}
