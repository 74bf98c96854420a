//! Runs the text cases of `tests/suite`, hostile models, every fixture (`models.rs`, `wrappers.rs`, `images.rs`, `encoders.rs`) and
//! every mutant (`mutants.rs`), a trial for each.
//!
//! A text case is a command line, its files, and its expected output:
//!
//! ```text
//! # What this case is about.
//! file spec.yaml
//! spec: 1
//! end
//! test onboard check spec.yaml
//! ----
//! what is printed to stdout
//! stderr:
//! what is printed to stderr
//! exit 2
//!
//! test ...
//! ```
//!
//! A case ends at an empty line, so an empty line of output is written as `.`. Commands run in a fresh
//! folder with the case's files, where `fixtures` links to the fixtures.
//! `UPDATE=1 cargo test --test suite` writes the current output.

#![allow(clippy::unwrap_used, reason = "a trial stops where it is surprised")]

mod encoders;
mod images;
mod models;
mod mutants;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../support/tool.rs"]
mod tool;
#[expect(dead_code, reason = "other targets run nothing else")]
#[path = "../support/trials.rs"]
mod trials;
mod wrappers;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut trials = models::trials();
    trials.extend(mutants::trials());
    trials.extend(wrappers::trials());
    trials.extend(encoders::trials());
    trials.extend(images::trials());
    for path in files(&root.join("tests/suite")) {
        let name = path.strip_prefix(root.join("tests/suite")).expect("it was found there");
        trials.push(Trial::test(name.display().to_string(), move || file(&path)));
    }
    for kind in ["models", "checkpoints"] {
        for folder in folders(&root.join("fixtures/hostile").join(kind)) {
            let name = folder.file_name().expect("a folder has a name").to_string_lossy();
            let name = format!("hostile/{kind}/{name}");
            trials.push(Trial::test(name, move || hostile(&folder, kind == "checkpoints")));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    models::update();
    wrappers::update();
    conclusion.exit();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs_err::read_dir(folder).expect("tests/suite is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            paths.extend(files(&path));
        } else if path.extension().is_some_and(|end| end == "test") {
            paths.push(path);
        }
    }
    paths.sort();
    paths
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(folder).expect("the fixtures are there");
    let paths = entries.map(|entry| entry.expect("the folder can be listed").path());
    let mut folders: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// Runs every case of a file.
fn file(path: &Path) -> Result<(), Failed> {
    let text = fs_err::read_to_string(path)?;
    let now = rerun(&text)?;
    if now == text {
        return Ok(());
    }
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(path, now)?;
        return Ok(());
    }
    let diff = similar_asserts::SimpleDiff::from_str(&text, &now, "expected", "printed");
    Err(format!("{}\n{diff}\nUPDATE=1 writes what is printed now", path.display()).into())
}

/// Returns the file's text with every expectation replaced by the current output.
fn rerun(text: &str) -> Result<String, Failed> {
    let mut out = String::new();
    let mut lines = text.lines();
    let mut case = tempfile::tempdir()?;
    link_fixtures(case.path())?;
    while let Some(line) = lines.next() {
        writeln!(out, "{line}")?;
        if let Some(name) = line.strip_prefix("file ") {
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "end").collect();
            let path = case.path().join(name);
            fs_err::create_dir_all(path.parent().expect("it lies in the case's folder"))?;
            fs_err::write(&path, body.join("\n") + "\n")?;
            writeln!(out, "{}\nend", body.join("\n"))?;
        } else if let Some(command) = line.strip_prefix("test ") {
            if lines.next() != Some("----") {
                return Err(format!("no `----` after `{line}`").into());
            }
            let _expected: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            writeln!(out, "----\n{}", printed(command, case.path())?)?;
            case = tempfile::tempdir()?;
            link_fixtures(case.path())?;
        }
    }
    Ok(out.trim_end().to_owned() + "\n")
}

fn link_fixtures(folder: &Path) -> Result<(), Failed> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    #[cfg(unix)]
    fs_err::os::unix::fs::symlink(fixtures, folder.join("fixtures"))?;
    Ok(())
}

fn printed(line: &str, folder: &Path) -> Result<String, Failed> {
    let mut words = words(line).into_iter();
    let mut command = binary(&words.next().unwrap_or_default())?;
    let output = command.args(words).current_dir(folder).output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.stderr.is_empty() {
        text.push_str("stderr:\n");
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    if text.contains("panicked at") {
        return Err(format!("it panicked:\n{text}").into());
    }
    let mut shown = String::new();
    for line in text.lines() {
        writeln!(shown, "{}", if line.is_empty() { "." } else { line })?;
    }
    match output.status.code() {
        Some(0) => {}
        Some(code) => writeln!(shown, "exit {code}")?,
        None => writeln!(shown, "ended by a signal")?,
    }
    Ok(shown)
}

/// Splits a command line at spaces; single quotes keep words together.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    let mut begun = false;
    for c in line.chars() {
        match c {
            '\'' => (quoted, begun) = (!quoted, true),
            ' ' if !quoted => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

fn binary(name: &str) -> Result<Command, Failed> {
    let path = match name {
        "onboard" => env!("CARGO_BIN_EXE_onboard"),
        "parity" => env!("CARGO_BIN_EXE_parity"),
        "convert" => env!("CARGO_BIN_EXE_convert"),
        other => return Err(format!("`{other}` is none of the binaries").into()),
    };
    let mut command = Command::new(path);
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf-home");
    for key in ["HF_TOKEN", "HF_ENDPOINT", "HF_HUB_CACHE", "ONBOARD_PYTHON"] {
        command.env_remove(key);
    }
    Ok(command)
}

/// Checkpoints whose faults are values: the weights of an unknown model are refused before they are read.
const OF_NO_MODEL: [&str; 2] = ["nan_in_f8", "nan_weights"];

/// Checks that a faulty model is rejected with the text of its `expect.txt`, without a panic. `good` is not
/// faulty. Faulty weights without a config get the config of the good model.
fn hostile(folder: &Path, weights_alone: bool) -> Result<(), Failed> {
    let expected = fs_err::read_to_string(folder.join("expect.txt"))?;
    let place = tempfile::tempdir()?;
    let model = place.path().join("model");
    fs_err::create_dir(&model)?;
    if weights_alone {
        let config = folder.with_file_name("").join("../models/good/config.json");
        fs_err::copy(config, model.join("config.json"))?;
    }
    for entry in fs_err::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs_err::copy(entry.path(), model.join(entry.file_name()))?;
        }
    }
    let output =
        binary("onboard")?.arg("add-model").arg(&model).arg("--out").arg(place.path()).output()?;
    let printed = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    if printed.contains("panicked at") {
        return Err(format!("it panicked:\n{printed}").into());
    }
    // The good model lacks a reference, so it runs but nothing is proven.
    if output.status.code() != Some(2) {
        return Err(format!("{} instead of exit code 2:\n{printed}", output.status).into());
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let expected = if weights_alone && OF_NO_MODEL.contains(&&*name) {
        "do not explain each other"
    } else {
        expected.trim()
    };
    for words in expected.lines() {
        if !printed.contains(words) {
            return Err(format!("`{words}` is not named:\n{printed}").into());
        }
    }
    if expected.is_empty() && !weights_alone && !printed.contains("nothing was proven") {
        return Err(format!("the good model was refused:\n{printed}").into());
    }
    Ok(())
}
