use std::sync::atomic::AtomicI64;

use super::*;
use crate::work::BlockEncoder;
use crate::{OutFile, OutFolder, SideFile, TaskTarget};
use checkpoints::flow::Flow;
use formats::codec::BlockType;
use formats::output::part_path;
use formats::safetensors::FileDtype;

const ROWS: usize = 12;
const ROW: usize = 64;

fn numbers(seed: u32) -> Vec<u8> {
    let numbers = (0..ROWS * ROW).map(|n| {
        ((n as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 1e6 - 8.0
    });
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// Returns the work for two tensors, each as f32 in one file and as bf16 in another.
fn work<'a>(folder: &Path, sources: &'a [Vec<u8>]) -> Work<'a> {
    let header = b"header".to_vec();
    let tensor = (ROWS * ROW) as u64;
    let types = [(BlockType::F32, 4), (BlockType::Bf16, 2)];
    let tasks = sources.iter().enumerate().map(|(n, source)| Task {
        flow: Flow::plain(&[ROWS, ROW], FileDtype::F32, source).unwrap(),
        targets: types
            .into_iter()
            .enumerate()
            .map(|(file, (ty, size)): (usize, (BlockType, u64))| TaskTarget {
                file,
                name: format!("t{n}"),
                offset: 32 + n as u64 * tensor * size,
                encode: Arc::new(BlockEncoder { matrix: ROWS, ..BlockEncoder::plain(ty) }),
            })
            .collect(),
        place: (0, 9 - n as u64),
    });
    let tasks = tasks.collect();
    let files = [("a", 4), ("b", 2)].map(|(name, size)| OutFile {
        path: folder.join(name),
        header: header.clone(),
        len: 32 + 2 * tensor * size,
    });
    Work { files: files.into(), tasks, fingerprint: "f".into(), ..Work::default() }
}

/// Stops after a number of values.
struct Until(AtomicI64);

impl Progress for Until {
    fn advance(&self, numbers: u64) {
        self.0.fetch_sub(numbers as i64, Ordering::Relaxed);
    }

    fn stop(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

fn outcome(folder: &Path) -> [Vec<u8>; 2] {
    ["a", "b"].map(|name| fs_err::read(folder.join(name)).unwrap())
}

#[test]
fn threads_slabs_and_interruptions_change_no_byte() {
    let sources = [numbers(1), numbers(2)];
    let first = tempfile::tempdir().unwrap();
    let first_work = work(first.path(), &sources);
    let done = run(&first_work, &RunOptions::default(), &()).unwrap();
    let expected = outcome(first.path());
    assert_eq!(&expected[0][32..32 + ROWS * ROW * 4], sources[0]);
    assert_eq!(done.tensors[0][0].error, 0.0);
    assert!(done.tensors[0][1].relative() > 0.0 && done.tensors[0][1].relative() < 0.004);
    for (threads, slab, stops) in [(2, 64, 0), (3, 1, 5), (1, 100, 11), (2, 192, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let work = work(folder.path(), &sources);
        let mut settings = RunOptions { threads, slab, ..RunOptions::default() };
        for stop in 0..stops {
            let until = Until((stop * 120 + 1).into());
            let error = run(&work, &settings, &until).unwrap_err();
            assert!(matches!(error, Error::Stopped { .. }), "{error}");
            assert!(!folder.path().join("a").exists());
            settings.resume = true;
        }
        let again = run(&work, &settings, &()).unwrap();
        assert_eq!(again.resumed > 0, stops > 0);
        // Sums are the same but for the order of additions, which slabs decide.
        for (one, other) in again.tensors.iter().flatten().zip(done.tensors.iter().flatten()) {
            assert!((one.relative() - other.relative()).abs() < 1e-9);
            assert_eq!((one.count, one.largest), (other.count, other.largest));
        }
        assert_eq!(outcome(folder.path()), expected, "{threads} threads, slab {slab}");
        let names: Vec<_> = fs_err::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 2, "nothing else is left");
    }
}

#[test]
fn a_slab_that_is_not_in_the_file_is_done_again() {
    let sources = [numbers(1), numbers(2)];
    let folder = tempfile::tempdir().unwrap();
    let work = work(folder.path(), &sources);
    let mut settings = RunOptions { slab: 64, ..RunOptions::default() };
    run(&work, &settings, &Until(AtomicI64::new(600))).unwrap_err();
    let part = part_path(&folder.path().join("a"));
    let mut bytes = fs_err::read(&part).unwrap();
    bytes[40..].fill(0xee);
    fs_err::write(&part, bytes).unwrap();
    settings.resume = true;
    run(&work, &settings, &()).unwrap();
    assert_eq!(outcome(folder.path())[0][32..32 + ROWS * ROW * 4], sources[0]);
}

#[test]
fn what_never_began_is_begun_by_resuming_it() {
    let sources = [numbers(1), numbers(2)];
    let fresh = tempfile::tempdir().unwrap();
    let resumed = tempfile::tempdir().unwrap();
    run(&work(fresh.path(), &sources), &RunOptions::default(), &()).unwrap();
    let settings = RunOptions { resume: true, ..RunOptions::default() };
    run(&work(resumed.path(), &sources), &settings, &()).unwrap();
    assert_eq!(outcome(resumed.path()), outcome(fresh.path()));
}

#[test]
fn what_would_go_wrong_is_refused_first() {
    let sources = [numbers(1), numbers(2)];
    let folder = tempfile::tempdir().unwrap();
    let mut plan = work(folder.path(), &sources);
    let mut settings = RunOptions::default();
    run(&plan, &settings, &Until(AtomicI64::new(1))).unwrap_err();
    settings.resume = true;
    let slab = settings.slab;
    settings.slab += 1;
    let error = run(&plan, &settings, &()).unwrap_err().to_string();
    assert!(error.contains(&format!("begun with slabs of {slab} numbers")), "{error}");
    settings.slab = slab;
    plan.fingerprint = "other".into();
    assert!(run(&plan, &settings, &()).unwrap_err().to_string().contains("other weights"));
    settings.resume = false;
    run(&plan, &settings, &()).unwrap();
    let names: Vec<_> = fs_err::read_dir(folder.path()).unwrap().collect();
    assert!(matches!(run(&plan, &settings, &()).unwrap_err(), Error::Exists { .. }));
    let after = fs_err::read_dir(folder.path()).unwrap().count();
    assert_eq!(after, names.len(), "a refused run leaves nothing");
    settings.force = true;
    settings.inputs = vec![folder.path().join("b")];
    assert!(matches!(run(&plan, &settings, &()).unwrap_err(), Error::Overwrites { .. }));
    plan.files[0].len = 1 << 60;
    settings.inputs = vec![];
    assert!(matches!(run(&plan, &settings, &()).unwrap_err(), Error::Disk { .. }));
}

#[test]
fn a_number_that_is_not_finite_is_named() {
    let mut sources = [numbers(1), numbers(2)];
    sources[1][8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let work = work(folder.path(), &sources);
    let error = run(&work, &RunOptions::default(), &()).unwrap_err().to_string();
    assert!(error.contains("`t1`") && error.contains("finite"), "{error}");
    assert!(!folder.path().join("a").exists());
}

mod faults;
mod names;
