//! Worker process that makes cases, judges them, and reports one line for each.
//!
//! It communicates over a socket that is its standard input, because standard output and standard error
//! receive the output of the program under attack.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use registry::library::Library;
use registry::ops::OpSet;

use crate::case::Case;
use crate::judge::Trial;
use crate::kinds::{KINDS, Kind, make};
use crate::memory;
use crate::program::Program;
use crate::seeds::Sources;

/// Result of one case.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Report {
    pub(crate) number: u64,
    pub(crate) outcome: Outcome,
    /// Peak of memory beyond four times the input, in bytes.
    pub(crate) beyond: u64,
    pub(crate) micros: u64,
}

/// Outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Outcome {
    Accepted,
    Refused,
    /// The program violated a condition.
    Wrong(String),
}

/// Order for a worker.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) enum Order {
    /// Cases of a kind, made from the seed, each with a limit on the pieces of damage.
    Make { kind: String, from: u64, count: u64, most: usize, apart: bool },
    /// Case that was kept in a folder.
    Kept { kind: String, dir: PathBuf },
}

/// Folders of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The worker's own folder.
    pub(crate) dir: PathBuf,
    pub(crate) made: PathBuf,
    pub(crate) seed: u64,
}

/// Message and place of the last panic.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Serves orders until the other side has closed the socket.
pub(crate) fn serve(place: &Place) -> io::Result<()> {
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload().downcast_ref::<String>().cloned();
        let text = text.or_else(|| info.payload().downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let at = info.location().map(ToString::to_string).unwrap_or_default();
        let mut last = PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *last = Some(format!("panicked at {at}: {}", text.unwrap_or_default()));
    }));
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut answers = socket.try_clone()?;
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let sources = Sources {
        fixtures: root.join("fixtures"),
        specs: root.join("registry/specs"),
        made: place.made.clone(),
    };
    let mut program = Program {
        library: Library::builtin(),
        ops: OpSet::builtin(),
        output: place.dir.join("output"),
        made: place.made.clone(),
        root,
        apart: false,
    };
    let seeds: RefCell<BTreeMap<&str, Vec<Case>>> = RefCell::default();
    for line in BufReader::new(socket).lines() {
        match serde_json::from_str(&line?)? {
            Order::Make { kind, from, count, most: limit, apart } => {
                program.apart = apart;
                let Some(kind) = KINDS.iter().find(|known| known.name == kind) else { continue };
                let mut seeds = seeds.borrow_mut();
                if !seeds.contains_key(kind.name) {
                    seeds.insert(kind.name, (kind.seeds)(&sources)?);
                }
                let seeds = seeds.get(kind.name).map_or(&[][..], Vec::as_slice);
                for number in from..from + count {
                    let case = make(kind, seeds, place.seed, number, limit);
                    answer(&mut answers, &judge(kind, &case, place, &program, number)?)?;
                }
            }
            Order::Kept { kind, dir } => {
                let Some(kind) = KINDS.iter().find(|known| known.name == kind) else { continue };
                let case = Case::read(&dir)?;
                // Case 0 enables all checks that run only sometimes.
                answer(&mut answers, &judge(kind, &case, place, &program, 0)?)?;
            }
        }
    }
    Ok(())
}

fn answer(to: &mut UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    to.write_all(line.as_bytes())
}

fn take_panic() -> Option<String> {
    PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
}

fn judge(
    kind: &Kind,
    case: &Case,
    place: &Place,
    program: &Program,
    number: u64,
) -> io::Result<Report> {
    let dir = place.dir.join("case");
    clean(&place.dir)?;
    case.write(&dir)?;
    drop(take_panic());
    let started = Instant::now();
    let trial = Trial { case, dir: &dir, program, number };
    let (judged, peak) = memory::peak(|| catch_unwind(AssertUnwindSafe(|| (kind.judge)(&trial))));
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let beyond = peak.saturating_sub(4 * case.bytes());
    let outcome = match (judged, take_panic()) {
        (Err(_), panic) => Outcome::Wrong(panic.unwrap_or_default()),
        (Ok(Err(text)), _) => Outcome::Wrong(text.replace(&place.dir.display().to_string(), "DIR")),
        // A library's panic that was caught and reported as a rejection is a rejection.
        (Ok(Ok(_)), Some(panic)) if !panic.contains("/registry/src/") => Outcome::Wrong(panic),
        _ if beyond > kind.spare << 20 => Outcome::Wrong(format!(
            "held {} MiB beyond 4 times the input, {} are allowed",
            beyond >> 20,
            kind.spare
        )),
        _ if left_behind() > LEFT => Outcome::Wrong(format!(
            "threads and open files pile up: more than {LEFT} are left of the cases before"
        )),
        (Ok(Ok(true)), _) => Outcome::Accepted,
        (Ok(Ok(false)), _) => Outcome::Refused,
    };
    Ok(Report { number, outcome, beyond, micros })
}

/// Limit on threads and open files that a process may keep between cases: a pool of threads, its own files.
const LEFT: usize = 200;

/// Returns the number of threads and open files of this process, if the system lists them.
fn left_behind() -> usize {
    ["/proc/self/task", "/proc/self/fd"]
        .map(|dir| fs_err::read_dir(dir).map_or(0, |entries: fs_err::ReadDir| entries.count()))
        .into_iter()
        .sum()
}

/// Removes files that the previous case left beside its folder.
fn clean(dir: &Path) -> io::Result<()> {
    for entry in fs_err::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "output" {
            continue;
        }
        if path.is_dir() { fs_err::remove_dir_all(&path)? } else { fs_err::remove_file(&path)? }
    }
    Ok(())
}
