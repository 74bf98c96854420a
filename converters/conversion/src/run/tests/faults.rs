//! Faults of disks, of other processes, and of files that an earlier run left.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::*;

/// A disk that changes one byte of the longer file when it is synced.
#[derive(Debug)]
struct Flips {
    at: u64,
    len: u64,
}

impl Disk for Flips {
    fn sync(&self, file: &File) -> std::io::Result<()> {
        if file.metadata()?.len() == self.len {
            let mut byte = [0];
            file.read_exact_at(&mut byte, self.at)?;
            file.write_all_at(&[byte[0] ^ 1], self.at)?;
        }
        DirectDisk.sync(file)
    }
}

#[test]
fn a_byte_that_the_disk_changes_is_found_wherever_it_is() {
    let sources = [numbers(1), numbers(2)];
    let tensor = (ROWS * ROW * 4) as u64;
    let places = [
        (0, "its header"),
        (5, "its header"),
        (6, "its padding"),
        (31, "its padding"),
        (32, "tensor `t0`"),
        (31 + tensor, "tensor `t0`"),
        (32 + tensor, "tensor `t1`"),
        (31 + 2 * tensor, "tensor `t1`"),
    ];
    for (at, part) in places {
        let folder = tempfile::tempdir().unwrap();
        let work = work(folder.path(), &sources);
        let disk = Arc::new(Flips { at, len: work.files[0].len });
        let settings = RunOptions { disk, slab: 64, ..RunOptions::default() };
        let error = run(&work, &settings, &()).unwrap_err();
        let named = matches!(&error, Error::ReadBack { part: damaged, .. } if damaged == part);
        assert!(named, "byte {at}: {error}");
        assert!(!folder.path().join("a").exists() && !folder.path().join("b").exists());
        let settings = RunOptions { resume: true, slab: 64, ..RunOptions::default() };
        run(&work, &settings, &()).unwrap();
        assert_eq!(&outcome(folder.path())[0][32..32 + ROWS * ROW * 4], sources[0]);
    }
}

/// A disk that appends a byte to every file when it is synced.
#[derive(Debug)]
struct Grows;

impl Disk for Grows {
    fn sync(&self, file: &File) -> std::io::Result<()> {
        let metadata = file.metadata()?;
        if metadata.is_file() {
            file.write_all_at(&[0], metadata.len())?;
        }
        DirectDisk.sync(file)
    }
}

#[test]
fn a_file_of_another_length_is_found() {
    let sources = [numbers(1), numbers(2)];
    let folder = tempfile::tempdir().unwrap();
    let settings = RunOptions { disk: Arc::new(Grows), ..RunOptions::default() };
    let error = run(&work(folder.path(), &sources), &settings, &()).unwrap_err();
    assert!(
        matches!(&error, Error::ReadBack { part, .. } if part == "its length"),
        "expected a length that differs: {error}"
    );
}

#[test]
fn what_lies_between_tensors_is_made_anew_by_resuming() {
    let sources = [numbers(1), numbers(2)];
    let expected_folder = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    run(&work(expected_folder.path(), &sources), &RunOptions::default(), &()).unwrap();
    let work = work(folder.path(), &sources);
    let mut settings = RunOptions { slab: 64, ..RunOptions::default() };
    run(&work, &settings, &Until(AtomicI64::new(600))).unwrap_err();
    let part = part_path(&folder.path().join("a"));
    let mut bytes = fs_err::read(&part).unwrap();
    bytes[..32].fill(0xee);
    bytes.extend([0xee; 100]);
    fs_err::write(&part, bytes).unwrap();
    settings.resume = true;
    assert!(run(&work, &settings, &()).unwrap().resumed > 0);
    assert_eq!(outcome(folder.path()), outcome(expected_folder.path()));
}

/// Starts another conversion at the first progress report.
struct Meanwhile<'a> {
    other: &'a Work<'a>,
    journal: PathBuf,
    refused: AtomicUsize,
    resume: bool,
}

impl Progress for Meanwhile<'_> {
    fn advance(&self, _numbers: u64) {
        if self.refused.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        let before = fs_err::read(&self.journal).unwrap();
        let settings = RunOptions { resume: self.resume, force: true, ..RunOptions::default() };
        let error = run(self.other, &settings, &()).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert_eq!(fs_err::read(&self.journal).unwrap(), before, "the journal is untouched");
    }
}

#[test]
fn a_second_conversion_is_refused_and_changes_nothing() {
    let sources = [numbers(1), numbers(2)];
    for case in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let mut first = work(folder.path(), &sources);
        let mut other = work(folder.path(), &sources);
        match case {
            0 | 1 => {}
            // One file in common, journals of other names.
            2 => other.files.reverse(),
            // Nothing in common but the folder.
            _ => {
                for work in [&mut first, &mut other] {
                    work.folder = Some(OutFolder { path: folder.path().into(), shared: false });
                }
                for file in &mut other.files {
                    file.path.set_extension("other");
                }
            }
        }
        let meanwhile = Meanwhile {
            other: &other,
            journal: journal_path(&first.files[0].path),
            refused: AtomicUsize::new(0),
            resume: case == 1,
        };
        run(&first, &RunOptions { slab: 64, ..RunOptions::default() }, &meanwhile).unwrap();
        assert!(meanwhile.refused.into_inner() > 0);
        assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 2, "case {case}");
    }
}

#[test]
fn links_in_the_way_are_replaced_and_not_followed() {
    let sources = [numbers(1), numbers(2)];
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let precious = other.path().join("precious");
    for name in ["a.part", "b.part", "a.part.journal", "side.part", "side"] {
        for resume in [false, true] {
            fs_err::write(&precious, b"precious").unwrap();
            let mut work = work(folder.path(), &sources);
            let side = SideFile { path: folder.path().join("side"), bytes: b"side".to_vec() };
            work.beside = vec![side];
            let link = folder.path().join(name);
            fs_err::remove_file(&link).ok();
            std::os::unix::fs::symlink(&precious, &link).unwrap();
            let settings = RunOptions { force: true, resume, ..RunOptions::default() };
            run(&work, &settings, &()).unwrap();
            assert_eq!(fs_err::read(&precious).unwrap(), b"precious", "{name} {resume}");
            for output in ["a", "b", "side"] {
                assert!(folder.path().join(output).symlink_metadata().unwrap().is_file());
                fs_err::remove_file(folder.path().join(output)).unwrap();
            }
            assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0, "{name} {resume}");
        }
    }
}

#[test]
fn a_source_that_changes_while_it_is_read_leaves_the_output_unfinished() {
    let sources = [numbers(1), numbers(2)];
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs_err::write(&source, b"long").unwrap();
    let stamps = vec![Stamp::of(&source).unwrap()];
    let work = work(folder.path(), &sources);
    let settings = RunOptions { sources: stamps, ..RunOptions::default() };
    fs_err::write(&source, b"lon").unwrap();
    let error = run(&work, &settings, &()).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert!(!folder.path().join("a").exists() && folder.path().join("a.part").exists());
}
