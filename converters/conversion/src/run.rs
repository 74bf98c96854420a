//! Runs a conversion.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::hashes;
use super::journal::SlabRecord;
use super::{EncodeError, Journal, Measure, Task, Work};
use checkpoints::checkpoint::Stamp;
use formats::mmap::FileMap;
use formats::output::{DirectDisk, Disk, with_end};
use formats::shown;

mod checksums;
mod commit;
mod compare;
mod exchange;
mod files;
mod finished;
mod lock;
mod queue;
mod slab;
mod sources;

pub use compare::compare;
use files::PartFile;
use lock::ConversionLock;
use queue::{EncodedSlab, WriteQueue};

/// Reason why a conversion produced no files.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("tensor `{tensor}` cannot be encoded for `{}`: {why}", file.display())]
    Encode { file: PathBuf, tensor: String, why: EncodeError },
    #[error(
        "`{}` would overwrite `{}`, which is read; choose another name", output.display(), input.display()
    )]
    Overwrites { output: PathBuf, input: PathBuf },
    #[error("`{}` is there already; remove it, choose another name, or allow it with the option `force`", output.display())]
    Exists { output: PathBuf },
    #[error(
        "`{}` is older than its source `{}`, so nothing says that it is finished: compare it by the option `verify`, \
         or make it anew by the option `force`", output.display(), input.display()
    )]
    Older { output: PathBuf, input: PathBuf },
    #[error("`{}` is no file that could be replaced; choose another name", output.display())]
    NoFile { output: PathBuf },
    #[error(
        "`{}` has {} free and the files need {}; free some space or write elsewhere",
        folder.display(), registry::quantity::bytes(*free), registry::quantity::bytes(*needed)
    )]
    Disk { folder: PathBuf, free: u64, needed: u64 },
    #[error(
        "`{}` cannot be resumed: {why}; remove it to start over", journal.display()
    )]
    Resume { journal: PathBuf, why: String },
    #[error(
        "`{}` does not hold what was written to it ({part}); the disk may be faulty", file.display()
    )]
    ReadBack { file: PathBuf, part: String },
    #[error("stopped; `{}` and its journal stay, go on with the option `resume`", part.display())]
    Stopped { part: PathBuf },
    #[error(
        "`{}` was changed while it was read; the output is unfinished and has no name: \
         convert again when nothing writes to the file", input.display()
    )]
    Changed { input: PathBuf },
    #[error(
        "another conversion is writing `{}`; wait for it, or choose another name", output.display()
    )]
    Busy { output: PathBuf },
}

/// Execution options of a conversion; none of them changes a byte of the result.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Number of worker threads.
    pub threads: usize,
    /// Number of values that a worker holds at a time.
    pub slab: usize,
    /// True if a stopped conversion is resumed.
    pub resume: bool,
    /// True if existing files are overwritten.
    pub force: bool,
    /// Input files, which must not be overwritten.
    pub inputs: Vec<PathBuf>,
    /// Stamps of the tensor files taken at opening: they must be unchanged at the end.
    pub sources: Vec<Stamp>,
    /// True if every byte is read back before the files are renamed.
    pub read_back: bool,
    /// Disk operations that make files and names durable.
    pub disk: Arc<dyn Disk>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            threads: 1,
            slab: 1 << 20,
            resume: false,
            force: false,
            inputs: Vec::new(),
            sources: Vec::new(),
            read_back: true,
            disk: Arc::new(DirectDisk),
        }
    }
}

/// Observer of a conversion.
pub trait Progress: Sync {
    /// Reports that `numbers` more values are done.
    fn advance(&self, numbers: u64);

    /// True if the conversion should stop as soon as possible.
    fn stop(&self) -> bool {
        false
    }
}

impl Progress for () {
    fn advance(&self, _numbers: u64) {}
}

/// Result of a conversion.
#[derive(Debug, Clone, PartialEq)]
pub struct ConversionResult {
    /// Measure of each target of each task: the error of the tensor against its source.
    pub tensors: Vec<Vec<Measure>>,
    /// Number of slabs that an earlier run had written.
    pub resumed: usize,
    /// Total number of slabs.
    pub slabs: usize,
    /// True if an earlier run had finished, so nothing was written.
    pub already: bool,
}

/// Slab of rows of a task.
struct SlabJob {
    task: usize,
    first: usize,
    rows: usize,
    /// Number of rows in a piece of the hashes.
    piece: usize,
}

/// Writes the files of `work`.
///
/// The order of steps keeps one invariant: at any moment, even if the process is killed, an output is the
/// old one, the new one, or one that readers refuse.
///
/// 1. Take the locks. A refused run has changed nothing.
/// 2. Write `NAME.part` and a journal of slabs; sync, read back, compare sources with their stamps.
/// 3. Write the files beside them as `NAME.part` too, and sync.
/// 4. Record in the journal that renames start.
/// 5. If the output is a folder that replaces another output, build the new folder beside it, exchange the two, and
///    remove the old one.
/// 6. Else, and where the file system cannot: remove gates and stale files (nothing loads now), rename everything else,
///    then the gates: the last rename makes the output readable. Remove the journal.
///
/// A run that was killed after step 4 is resumed by completing it.
pub fn run(
    work: &Work<'_>,
    settings: &RunOptions,
    progress: &dyn Progress,
) -> Result<ConversionResult, Error> {
    files::check(work, settings)?;
    let jobs = cut(&work.tasks, settings.slab);
    let head = format!("{HEAD}{} work {}", settings.slab, work.fingerprint);
    let mut held = ConversionLock::take(work, &*settings.disk)?;
    let notes = if settings.resume { held.notes(&head)? } else { None };
    if settings.resume && notes.is_none() && is_finished(work, settings)? {
        let tensors = work.tasks.iter().map(|task| vec![Measure::default(); task.targets.len()]);
        return Ok(ConversionResult {
            tensors: tensors.collect(),
            resumed: 0,
            slabs: jobs.len(),
            already: true,
        });
    }
    let naming = notes.as_ref().is_some_and(|notes| notes.naming);
    if !settings.force && !naming {
        files::refuse_taken(work)?;
    }
    let (journal, parts, known) = held.begin(work, notes, &jobs, &head)?;
    sources::check(work, settings.threads, &jobs, &known)?;
    for slab in known.keys() {
        progress.advance(slab::numbers(work, &jobs[*slab]));
    }
    let resumed = known.len();
    let done = encode_all(work, settings, progress, (&jobs, &parts, &journal), known)?;
    for part in &parts {
        part.sync(&*settings.disk)?;
    }
    if settings.read_back {
        read_back(work, settings.threads, &jobs, &parts, &done)?;
    }
    if let Some(changed) = settings.sources.iter().find(|stamp| stamp.has_changed()) {
        return Err(Error::Changed { input: changed.path.clone() });
    }
    let hashed = if work.hashed { checksums::files(work, &jobs, &done) } else { Vec::new() };
    commit::commit(work, &hashed, &parts, journal, naming, &*settings.disk)?;
    drop(held);
    Ok(ConversionResult {
        tensors: measures(work, &jobs, &done),
        resumed,
        slabs: jobs.len(),
        already: false,
    })
}

/// True if the output is finished already; with `force`, one that is older than its source is not.
fn is_finished(work: &Work<'_>, settings: &RunOptions) -> Result<bool, Error> {
    match finished::is_finished(work, &settings.sources) {
        Err(Error::Older { .. }) if settings.force => Ok(false),
        result => result,
    }
}

/// Writes all slabs that an earlier run has not written.
fn encode_all(
    work: &Work<'_>,
    settings: &RunOptions,
    progress: &dyn Progress,
    (jobs, parts, journal): (&[SlabJob], &[PartFile], &Journal),
    known: BTreeMap<usize, Vec<SlabRecord>>,
) -> Result<BTreeMap<usize, Vec<SlabRecord>>, Error> {
    let done = Mutex::new(known);
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let fail = |error: Error| {
        stop.store(true, Ordering::Relaxed);
        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    };
    let queue = WriteQueue::new(parts.len().min(settings.threads).max(1), settings.threads);
    let write = |slab: &EncodedSlab| {
        let job = &jobs[slab.number];
        slab::write(work, job, parts, &slab.bytes)?;
        journal.note(slab.number, &slab.records)?;
        progress.advance(slab::numbers(work, job));
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.insert(slab.number, slab.records.clone());
        Ok(())
    };
    on_threads(settings.threads, || {
        let mut buffers = slab::Buffers::default();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(n) else { return };
            if done.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&n) {
                continue;
            }
            if progress.stop() {
                let part = parts.first().map(|part| part.path.clone()).unwrap_or_default();
                fail(Error::Stopped { part });
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let pushed = slab::encode(work, job, &mut buffers).and_then(|records| {
                let bytes = std::mem::take(&mut buffers.bytes);
                queue.push(EncodedSlab { number: n, bytes, records }, write)
            });
            match pushed {
                Ok(bytes) => buffers.bytes = bytes,
                Err(error) => return fail(error),
            }
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Runs a worker on this and other threads, which take slabs until none is left.
fn on_threads(threads: usize, worker: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(&worker);
        }
        worker();
    });
}

/// Returns the slabs in the order in which their sources lie on the disk.
fn cut(tasks: &[Task<'_>], slab: usize) -> Vec<SlabJob> {
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(|&n| (tasks[n].place, n));
    let mut jobs = Vec::new();
    for task in order {
        let rows = tasks[task].rows();
        let step = tasks[task].slab_rows(slab);
        let piece = tasks[task].piece_rows(slab);
        jobs.extend((0..rows).step_by(step).map(|first: usize| SlabJob {
            task,
            first,
            rows: step.min(rows - first),
            piece,
        }));
    }
    jobs
}

fn measures(
    work: &Work<'_>,
    jobs: &[SlabJob],
    done: &BTreeMap<usize, Vec<SlabRecord>>,
) -> Vec<Vec<Measure>> {
    let mut tensors: Vec<Vec<Measure>> =
        work.tasks.iter().map(|task| vec![Measure::default(); task.targets.len()]).collect();
    for (job, written) in jobs.iter().enumerate().filter_map(|(n, job)| Some((job, done.get(&n)?)))
    {
        for (sum, one) in tensors[job.task].iter_mut().zip(written) {
            *sum = sum.and(one.measure);
        }
    }
    tensors
}

/// Number of bytes that are read back at a time: they stay in the cache of a core.
const COPY: usize = 1 << 17;

/// Checks the files against the hashes of the written bytes.
fn read_back(
    work: &Work<'_>,
    threads: usize,
    jobs: &[SlabJob],
    parts: &[PartFile],
    done: &BTreeMap<usize, Vec<SlabRecord>>,
) -> Result<(), Error> {
    let maps: Vec<FileMap> =
        parts.iter().map(|part| FileMap::open(&part.path)).collect::<Result<_, _>>()?;
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    on_threads(threads, || {
        let mut copied = vec![0; COPY];
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= jobs.len() {
                return;
            }
            let result = check_slab(work, (&jobs[n], &done[&n]), parts, &maps, &mut copied);
            if let Err(error) = result {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                // The first place is reported, whichever thread is faster.
                if failed.as_ref().is_none_or(|(at, _)| n < *at) {
                    *failed = Some((n, error));
                }
                return;
            }
        }
    });
    if let Some((_, error)) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    for ((map, file), gaps) in maps.iter().zip(&work.files).zip(slab::padding(work)) {
        if map.len() as u64 != file.len {
            return Err(other_bytes(&file.path, "its length"));
        }
        if !map.starts_with(&file.header) {
            return Err(other_bytes(&file.path, "its header"));
        }
        if !gaps.iter().all(|&(from, len): &(u64, u64)| {
            let bytes = map.get(from as usize..(from + len) as usize);
            bytes.is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
        }) {
            return Err(other_bytes(&file.path, "its padding"));
        }
    }
    Ok(())
}

/// Checks one slab in the files against the hashes of its written bytes. `copied` is a buffer.
fn check_slab(
    work: &Work<'_>,
    (job, written): (&SlabJob, &[SlabRecord]),
    parts: &[PartFile],
    maps: &[FileMap],
    copied: &mut Vec<u8>,
) -> Result<(), Error> {
    let task = &work.tasks[job.task];
    for (target, written) in task.targets.iter().zip(written) {
        let (from, len) = slab::place(task, target, job);
        let file = &parts[target.file].path;
        let part = format!("tensor `{}`", shown(&target.name));
        let range = maps[target.file].range(from as usize..from as usize + len);
        let range = range.ok_or_else(|| other_bytes(file, &part))?;
        let piece = slab::piece(task, target, job);
        let step = (COPY / piece).max(1) * piece;
        if copied.len() < step {
            copied.resize(step, 0);
        }
        let mut sum = 0_u64;
        for at in (0..len).step_by(step) {
            let copied = &mut copied[..step.min(len - at)];
            range.copy(at, copied);
            let place = job.first / job.piece + at / piece;
            sum = sum.wrapping_add(hashes::hash(copied, piece, place as u64));
        }
        if sum != written.hash {
            return Err(other_bytes(file, &part));
        }
    }
    Ok(())
}

/// Returns the error for a part of a file that has other bytes than were written.
fn other_bytes(file: &Path, part: &str) -> Error {
    Error::ReadBack { file: file.to_owned(), part: part.to_owned() }
}

/// Returns the path of the journal for a conversion whose first file has this path.
fn journal_path(path: &Path) -> PathBuf {
    with_end(path, ".part.journal")
}

/// Prefix of the first line of a journal.
const HEAD: &str = "onboard conversion 2 slab ";

/// Splits the first line of a journal into the slab size and the fingerprint of the work.
fn slab_and_work(head: &str) -> Option<(&str, &str)> {
    head.strip_prefix(HEAD)?.split_once(" work ")
}

/// Returns the reason why a journal with this head does not fit the current run; none if the heads are
/// equal.
fn other_work(old_head: &str, head: &str) -> Option<String> {
    if old_head == head {
        return None;
    }
    Some(match (slab_and_work(old_head), slab_and_work(head)) {
        (Some((was, work)), Some((now, same))) if work == same => format!(
            "it was begun with slabs of {was} numbers, and this run has {now}: repeat the option `slab`"
        ),
        _ => "it belongs to a conversion of other weights, or with other settings".to_owned(),
    })
}

#[cfg(test)]
mod tests;
