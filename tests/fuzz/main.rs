//! Attack on everything that reads files: damages files and counts outcomes.
//!
//! `cargo test --test fuzz` runs for a few seconds. For a longer run, of one kind, from another seed:
//! `cargo test --test fuzz -- --seconds 300 --kind config --seed 7 --jobs 2 --keep DIR`. A case that went
//! wrong is kept in a folder; `-- --kept DIR --kind KIND` judges it again.
//!
//! Accepting and rejecting are both fine. Faults are: a panic, an abort, a hang, memory beyond four times
//! the input and a constant, and an exit code of 0 for invalid input. `judge` defines invalid input.

#![allow(missing_docs, reason = "a program of tests")]
#![allow(clippy::print_stdout, reason = "it prints what it found")]

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod attack;
mod bytes;
mod case;
mod child;
mod finding;
mod formats;
mod json;
mod judge;
mod kinds;
mod memory;
mod program;
mod random;
mod seeds;
mod words;
mod worker;

use attack::{Plan, Seen};
use child::{Silence, Worker};
use kinds::KINDS;
use seeds::Sources;
use worker::{Order, Outcome, Place};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Default number of cases of a run.
const FEW: u64 = 800;

fn main() -> ExitCode {
    match start(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(error) => {
            println!("the attack cannot run: {error}");
            ExitCode::from(2)
        }
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.parse::<u64>().map_err(io::Error::other)
}

fn start(words: Vec<String>) -> io::Result<ExitCode> {
    let mut plan = Plan {
        seed: 1,
        runs: None,
        seconds: None,
        kinds: Vec::new(),
        jobs: 2,
        keep: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz"),
        from: 0,
    };
    let mut kept_folder = None;
    let mut work = None;
    let mut filters = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| io::Error::other(format!("{word} what?")));
        match word.as_str() {
            "--seed" => plan.seed = number(&value()?)?,
            "--runs" => plan.runs = Some(number(&value()?)?),
            "--seconds" => plan.seconds = Some(number(&value()?)?),
            "--from" => plan.from = number(&value()?)?,
            "--jobs" => plan.jobs = number(&value()?)?.clamp(1, 64) as usize,
            "--kind" => plan.kinds.push(value()?),
            "--keep" => plan.keep = value()?.into(),
            "--kept" => kept_folder = Some(PathBuf::from(value()?)),
            "--worker" => work = Some((PathBuf::from(value()?), PathBuf::from(value()?))),
            "--list-kinds" => {
                for kind in KINDS {
                    println!("{}", kind.name);
                }
                return Ok(ExitCode::SUCCESS);
            }
            // Arguments that `cargo test` passes to every test: a filter, or an option.
            "--list" => {
                println!("fuzz: test");
                return Ok(ExitCode::SUCCESS);
            }
            word if word.starts_with('-') => {}
            filter => filters.push(filter.to_owned()),
        }
    }
    if let Some((dir, prepared)) = work {
        worker::serve(&Place { dir, made: prepared, seed: plan.seed })?;
        return Ok(ExitCode::SUCCESS);
    }
    if !filters.is_empty() && !filters.iter().any(|filter| "fuzz".contains(filter.as_str())) {
        return Ok(ExitCode::SUCCESS);
    }
    let dir = tempfile::Builder::new().prefix("onboard-fuzz-").tempdir_in(scratch())?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let prepared = dir.path().join("made");
    let fixtures = root.join("fixtures");
    seeds::made::make(&prepared, &fixtures)?;
    let place = Place { dir: dir.path().join("again"), made: prepared.clone(), seed: plan.seed };
    if let Some(kept_folder) = kept_folder {
        return judge_kept(&plan, &place, kept_folder);
    }
    if plan.runs.is_none() && plan.seconds.is_none() {
        plan.runs = Some(FEW);
    }
    let (seen, findings) = attack::run(&plan, dir.path())?;
    println!("{}", table(&seen));
    if findings.len() == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let sources = Sources { fixtures, specs: root.join("registry/specs"), made: prepared };
    println!("{}", findings.keep(&place, &sources)?);
    println!("again: cargo test --test fuzz -- --kept FOLDER --kind KIND");
    Ok(ExitCode::FAILURE)
}

/// Returns the folder for cases: in memory if possible, because conversions wait for the disk.
fn scratch() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if tempfile::tempfile_in(&memory).is_ok() { memory } else { std::env::temp_dir() }
}

/// Judges a case that was kept.
fn judge_kept(plan: &Plan, place: &Place, dir: PathBuf) -> io::Result<ExitCode> {
    let kind = plan.kinds.first().cloned().ok_or_else(|| io::Error::other("of which --kind?"))?;
    let mut worker = Worker::start(place)?;
    worker.order(&Order::Kept { kind, dir })?;
    let text = match worker.report()? {
        Ok(report) => match report.outcome {
            Outcome::Wrong(text) => text,
            fine => {
                println!("{fine:?}, {} bytes beyond 4 times the input", report.beyond);
                return Ok(ExitCode::SUCCESS);
            }
        },
        Err(Silence::Died(text)) => text,
        Err(Silence::Hangs) => "hangs".to_owned(),
    };
    println!("wrong: {text}");
    Ok(ExitCode::FAILURE)
}

/// Formats the counts of a kind as a row of a Markdown table.
fn row(name: &str, seen: &Seen) -> String {
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} | {} |",
        seen.accepted + seen.refused + seen.wrong,
        seen.accepted,
        seen.refused,
        seen.wrong,
        seen.apart,
        seen.beyond >> 10,
        seen.micros / 1000
    )
}

/// Formats the counts as a Markdown table.
fn table(seen: &BTreeMap<&'static str, Seen>) -> String {
    let head = "| kind | runs | accepted | refused | wrong | own processes | most beyond 4x, KiB | slowest, ms |";
    let mut lines = vec![head.to_owned(), "|---|---|---|---|---|---|---|---|".to_owned()];
    let mut total = Seen::default();
    for (name, one) in seen {
        lines.push(row(name, one));
        total.accepted += one.accepted;
        total.refused += one.refused;
        total.wrong += one.wrong;
        total.apart += one.apart;
        total.beyond = total.beyond.max(one.beyond);
        total.micros = total.micros.max(one.micros);
    }
    lines.push(row("all", &total));
    lines.join("\n")
}
