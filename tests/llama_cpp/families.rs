//! Tests every fixture in llama.cpp, a trial for each. Our f32 file gives the reference's log-probabilities there, and our
//! Q8_0 file costs no more there than elsewhere.
//!
//! Fixtures whose conversion warns are excluded: an architecture that llama.cpp does not support, or a
//! model that it would run differently. A fixture therefore differs here only after a warning to the user.
//! A family of the second kind has a checkpoint in `fixtures/peer` with settings that llama.cpp runs.
//!
//! Every known difference is announced ([decision 24](../../docs/decisions/0024-llama-cpp-differences-warned.md)).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::Trial;
use serde_json::Value;

use crate::tool::{convert, fixture, parity};
use crate::trials;

/// Entry of `families.txt` for a fixture.
#[derive(Clone, Default)]
struct Known {
    /// Limit on the difference of a log-probability.
    bound: Option<&'static str>,
    /// Limit on the difference from the dump with the same GELU.
    gelu: Option<&'static str>,
    odd: Option<Odd>,
}

#[derive(Clone, Copy, PartialEq)]
enum Odd {
    /// llama.cpp does not open it, or gives other values without a warning.
    Differs,
    /// llama.cpp aborts the process.
    Aborts,
    /// There is no file: its names or its tokenizer do not fit the format.
    Refused,
    /// Its conversion warns, and `peer` has no checkpoint for it.
    Alone,
}

/// Result of a fixture.
enum Fate {
    Agrees,
    Warned,
    Left,
}

fn known() -> BTreeMap<&'static str, Known> {
    let lines = include_str!("families.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut known = BTreeMap::<_, Known>::new();
    for line in lines {
        let (name, what) = line.split_once(' ').unwrap();
        let of = known.entry(name).or_default();
        match what.split_once(' ') {
            Some(("bound", nats)) => of.bound = Some(nats),
            Some(("gelu", nats)) => of.gelu = Some(nats),
            None if what == "differs" => of.odd = Some(Odd::Differs),
            None if what == "aborts" => of.odd = Some(Odd::Aborts),
            None if what == "refused" => of.odd = Some(Odd::Refused),
            None if what == "alone" => of.odd = Some(Odd::Alone),
            _ => panic!("families.txt: `{line}`"),
        }
    }
    known
}

fn printed(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Returns the folders below one of `fixtures` that have a dump; those of `peer` as `peer/NAME`.
fn dumped(below: &str) -> Vec<String> {
    let all = fs_err::read_dir(fixture(below)).unwrap().map(|entry| entry.unwrap().path());
    let dumped = all.filter(|folder| folder.join("reference/manifest.json").exists());
    let mut names: Vec<String> = dumped
        .map(|folder: PathBuf| format!("{below}{}", folder.file_name().unwrap().to_string_lossy()))
        .collect();
    names.sort();
    names
}

/// Returns the checkpoint of a fixture. One of `peer` lacks the files that it shares with the family's,
/// which are added.
fn checkpoint(name: &str, scratch: &Path) -> PathBuf {
    let Some(family) = name.strip_prefix("peer/") else { return fixture(name) };
    let folder = scratch.join(family);
    fs_err::create_dir(&folder).unwrap();
    for from in [fixture(family), fixture(name)] {
        for entry in fs_err::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                fs_err::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    folder
}

/// Returns the failures of a report: gates, and schedules by name.
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

/// Runs `parity check` of a file against one of the fixture's dumps.
fn check(file: &Path, dump: &Path, more: &[&str]) -> Output {
    let mut command = parity();
    command.arg("check").arg(file).args(["--threads", "1", "--json"]).args(more);
    command.arg("--reference").arg(dump).output().unwrap()
}

fn reference(name: &str) -> PathBuf {
    fixture(name).join("reference")
}

fn check_wide(file: &Path, name: &str, known: &Known) -> Result<(), String> {
    /// Default limit on the difference of a log-probability.
    const USUAL: &str = "1e-3";
    let out = wide(file, &reference(name), known.bound.unwrap_or(USUAL), &[]);
    if known.odd == Some(Odd::Aborts) {
        let ended = out.status.code().is_none_or(|code| code > 2);
        return if ended { Ok(()) } else { Err("does not abort any more".to_owned()) };
    }
    if known.odd == Some(Odd::Differs) {
        let agrees = out.status.success();
        return if agrees { Err("does not differ any more".to_owned()) } else { Ok(()) };
    }
    agrees(&out)?;
    // A reference with the same GELU shows that nothing else differs.
    let same = fixture(name).join("gelu");
    if known.bound.is_some()
        && (name.starts_with("peer/") || !fixture(&format!("peer/{name}")).is_dir())
    {
        return Err("has a bound of its own, and nothing in `peer` that needs none".to_owned());
    }
    if known.bound.is_some() != same.is_dir() {
        return Err("has a bound of its own, or a dump `gelu`, and not both".to_owned());
    }
    if !same.is_dir() {
        return Ok(());
    }
    // Schedules do not depend on the reference.
    agrees(&wide(file, &same, known.gelu.unwrap_or(USUAL), &["--no-schedules"]))
}

fn wide(file: &Path, dump: &Path, bound: &str, more: &[&str]) -> Output {
    check(file, dump, &[&["--engine", "llama.cpp", "--bound", bound], more].concat())
}

fn agrees(out: &Output) -> Result<(), String> {
    let Ok(report) = serde_json::from_slice::<Value>(&out.stdout) else {
        return Err(printed(out));
    };
    let failed = failures(&report);
    let agrees = failed.is_empty() && out.status.success();
    if agrees { Ok(()) } else { Err(format!("differs: {}", failed.join(", "))) }
}

/// Returns the mean divergence of a Q8_0 file in an engine, and true if it is within its band. Returns none
/// if no row of the file is as long as a block.
fn cost(file: &Path, name: &str, engine: &str) -> Result<Option<(f64, bool)>, String> {
    let out = check(file, &reference(name), &["--engine", engine]);
    let Ok(costs) = serde_json::from_slice::<Value>(&out.stdout) else {
        let words = printed(&out);
        return if words.contains("give --bound NATS") { Ok(None) } else { Err(words) };
    };
    let mean = costs["cost"]["kl"]["mean"].as_f64().unwrap();
    let verdict = costs["verdict"].as_str().unwrap();
    Ok(Some((mean, verdict.starts_with("within its bands"))))
}

/// Checks that the Q8_0 file is within its band. For a model too sensitive to rounding, it may only be a
/// little worse than in the native engine.
fn check_q8_0(file: &Path, name: &str) -> Result<(), String> {
    /// Additional rounding of inputs doubles a divergence, and small samples vary.
    const MORE: f64 = 3.0;
    let Some((mean, well)) = cost(file, name, "llama.cpp")? else { return Ok(()) };
    if well {
        return Ok(());
    }
    match cost(file, name, "native")? {
        Some((native, _)) if mean <= MORE * native => Ok(()),
        native => {
            Err(format!("as Q8_0 it is {mean} nats off, and {native:?} in the native engine"))
        }
    }
}

fn run(name: &str, known: &Known) -> Result<Fate, String> {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = convert();
    command.arg(checkpoint(name, scratch.path())).args(["--to", "gguf:f32", "--to", "gguf:q8_0"]);
    let out = scratch.path().join("out");
    let conversion = command.arg("-o").arg(&out).output().unwrap();
    let words = printed(&conversion);
    if !conversion.status.success() {
        let refused = known.odd == Some(Odd::Refused);
        return if refused { Ok(Fate::Left) } else { Err(format!("is not converted:\n{words}")) };
    }
    let unknown = words.contains("llama.cpp does not know the architecture");
    let doubted = words.contains("llama.cpp does not know") || words.contains("llama.cpp will not");
    if doubted && name.starts_with("peer/") {
        return Err(format!("its conversion warns:\n{words}"));
    }
    if doubted {
        return match known.odd {
            None if unknown => Ok(Fate::Left),
            None => Ok(Fate::Warned),
            Some(Odd::Alone) if !unknown => Ok(Fate::Left),
            Some(_) => Err("is in families.txt, and its conversion warns".to_owned()),
        };
    }
    let family = name.strip_prefix("peer/").unwrap_or(name);
    check_wide(&out.join(format!("{family}-f32.gguf")), name, known)?;
    match known.odd {
        None => check_q8_0(&out.join(format!("{family}-q8_0.gguf")), name)?,
        Some(Odd::Differs | Odd::Aborts) => {}
        Some(Odd::Refused | Odd::Alone) => return Err("runs".to_owned()),
    }
    Ok(Fate::Agrees)
}

/// Number of fixtures that agree in this run.
static AGREE: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn trials() -> Vec<Trial> {
    let known = known();
    let peers = dumped("peer/");
    let names: Vec<String> = dumped("").into_iter().chain(peers.iter().cloned()).collect();
    let left: Vec<_> = known.keys().filter(|name| !names.iter().any(|n| n == *name)).collect();
    assert!(left.is_empty(), "families.txt names no fixtures: {left:?}");
    trials::each("families", names, move |name| {
        match run(name, known.get(name).unwrap_or(&Known::default())) {
            Ok(Fate::Agrees) => drop(AGREE.fetch_add(1, Ordering::Relaxed)),
            Ok(Fate::Warned) => assert!(
                peers.contains(&format!("peer/{name}")),
                "its conversion warns; give it settings that llama.cpp runs in fixtures/peers.py"
            ),
            Ok(Fate::Left) => {}
            Err(why) => panic!("{why}"),
        }
    })
}

/// Checks after a run of all trials that most fixtures were compared.
pub(crate) fn enough() {
    let agree = AGREE.load(Ordering::Relaxed);
    assert!(agree > 80, "only {agree} fixtures ran");
}
