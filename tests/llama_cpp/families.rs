//! Every fixture inside llama.cpp: our f32 file gives the reference's log-probabilities there.
//!
//! Left out is what a conversion warns of: an architecture that llama.cpp does not know, or a model
//! that it would run otherwise. So a fixture differs here only if the person who converted it was told.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::tool::{convert, fixture, parity};

/// What a line of `families.txt` says of a fixture.
enum Known {
    /// How far a log-probability may be off.
    Bound(&'static str),
    /// A schedule that llama.cpp does not keep.
    Schedule(&'static str),
    /// llama.cpp does not open it, or gives other numbers, and no warning says so.
    Differs,
    /// llama.cpp ends the process.
    Aborts,
    /// There is no file: its names or its tokenizer do not fit the format.
    Refused,
}

fn known() -> BTreeMap<&'static str, Known> {
    let lines = include_str!("families.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &'static str| {
        let (name, what) = line.split_once(' ').unwrap();
        let known = match what.split_once(' ') {
            Some(("bound", nats)) => Known::Bound(nats),
            Some(("schedule", name)) => Known::Schedule(name),
            None if what == "differs" => Known::Differs,
            None if what == "aborts" => Known::Aborts,
            None if what == "refused" => Known::Refused,
            _ => panic!("families.txt: `{line}`"),
        };
        (name, known)
    };
    lines.map(read).collect()
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// The fixtures that have a dump.
fn fixtures() -> Vec<String> {
    let all = fs_err::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
    let dumped = all.filter(|folder| folder.join("reference/manifest.json").exists());
    let mut names: Vec<String> =
        dumped.map(|folder| folder.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// What failed of a report: gates, and schedules by name.
fn failures(report: &Value) -> Vec<String> {
    let mut failed = Vec::new();
    for run in report["runs"].as_array().unwrap() {
        for phase in run["phases"].as_array().unwrap() {
            if phase["verdict"] != "pass" {
                failed.push(format!("{} is off by {}", phase["phase"], phase["max"]));
            }
        }
        for greedy in run["greedy"].as_array().unwrap() {
            if greedy["verdict"] == "fail" {
                failed.push(format!("greedy tokens of `{}`", greedy["prompt"]));
            }
        }
    }
    for schedule in report["schedules"].as_array().unwrap() {
        if schedule["verdict"] == "fail" {
            failed.push(schedule["name"].as_str().unwrap().to_owned());
        }
    }
    failed
}

fn check(file: &Path, family: &str, known: Option<&Known>) -> Result<(), String> {
    let bound = if let Some(Known::Bound(nats)) = known { nats } else { "1e-3" };
    let mut command = parity();
    command.arg("check").arg(file).args(["--engine", "llama.cpp", "--threads", "1", "--json"]);
    command.args(["--bound", bound, "--reference"]).arg(fixture(family).join("reference"));
    let out = command.output().unwrap();
    if matches!(known, Some(Known::Aborts)) {
        let ended = out.status.code().is_none_or(|code| code > 2);
        return if ended { Ok(()) } else { Err("does not abort any more".to_owned()) };
    }
    if matches!(known, Some(Known::Differs)) {
        let agrees = out.status.success();
        return if agrees { Err("does not differ any more".to_owned()) } else { Ok(()) };
    }
    let Ok(report) = serde_json::from_slice::<Value>(&out.stdout) else {
        return Err(said(&out));
    };
    let failed = failures(&report);
    match known {
        Some(Known::Schedule(name)) if failed == [*name] => Ok(()),
        Some(Known::Schedule(name)) => Err(format!("fails at {failed:?}, not at `{name}`")),
        _ if failed.is_empty() && out.status.success() => Ok(()),
        _ => Err(format!("differs: {}", failed.join(", "))),
    }
}

#[test]
fn files_of_every_family_agree_with_the_reference_in_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let (mut faults, mut agree, mut known) = (Vec::new(), 0, known());
    for family in fixtures() {
        let file = folder.path().join(format!("{family}.gguf"));
        let known = known.remove(family.as_str());
        let mut command = convert();
        command.arg(fixture(&family)).args(["--to", "gguf:f32", "-o"]).arg(&file);
        let made = command.output().unwrap();
        let said = said(&made);
        match (&known, made.status.success()) {
            (Some(Known::Refused), false) => continue,
            (_, false) => faults.push(format!("{family} is not converted:\n{said}")),
            _ if said.contains("llama.cpp does not know")
                || said.contains("llama.cpp will not run") =>
            {
                if known.is_some() {
                    faults.push(format!("{family} is in families.txt, and its conversion warns"));
                }
            }
            _ => match check(&file, &family, known.as_ref()) {
                Ok(()) => agree += 1,
                Err(why) => faults.push(format!("{family}: {why}")),
            },
        }
        fs_err::remove_file(&file).ok();
    }
    let left: Vec<&str> = known.into_keys().collect();
    assert!(left.is_empty(), "families.txt names no fixtures: {left:?}");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(agree > 30, "only {agree} fixtures ran");
}
