//! Tests the order of final renames, and the recovery of a run that was killed between two of them.

use super::*;
use formats::output::DiskRecorder;

/// Returns the work for two files of tensors, a text and a gate, over a folder of an older output.
fn folder<'a>(path: &Path, sources: &'a [Vec<u8>]) -> Work<'a> {
    let mut work = work(path, sources);
    let beside = [("text", "new text"), ("gate", "new gate")];
    work.beside =
        beside.map(|(name, text)| SideFile { path: path.join(name), bytes: text.into() }).into();
    work.gates = vec![path.join("gate")];
    work.stale = vec![path.join("stale")];
    work.folder = Some(OutFolder { path: path.into(), shared: false });
    work
}

const OLD: [(&str, &str); 5] =
    [("a", "old a"), ("b", "old b"), ("text", "old text"), ("gate", "old gate"), ("stale", "old")];

fn old(path: &Path) {
    for (name, text) in OLD {
        fs_err::write(path.join(name), text).unwrap();
    }
}

/// Returns the files of a folder that have their final name.
fn named(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs_err::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let named = entries.filter(|entry| !entry.file_name().to_string_lossy().contains(".part"));
    named
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), fs_err::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn everything_is_durable_before_the_next_step_depends_on_it() {
    let sources = [numbers(1), numbers(2)];
    let dir = tempfile::tempdir().unwrap();
    old(dir.path());
    let disk = Arc::new(DiskRecorder::default());
    let settings = RunOptions { disk: disk.clone(), force: true, ..RunOptions::default() };
    run(&folder(dir.path(), &sources), &settings, &()).unwrap();
    let expected = [
        // a, b, text, gate, journal.
        &["sync file"; 5][..],
        // The old folder, the new one, and the one that holds both.
        &["sync folder", "sync folder", "sync folder", "exchange", "sync folder"],
        &["remove a", "remove a.part", "remove a.part.journal", "remove b", "remove b.part"],
        &["remove gate", "remove gate.part", "remove stale", "remove text", "remove text.part"],
        &["remove .replaced.part", "sync folder"],
    ];
    assert_eq!(disk.take(), expected.concat());
    // Without an older output, names follow each other.
    let dir = tempfile::tempdir().unwrap();
    run(&folder(dir.path(), &sources), &settings, &()).unwrap();
    let expected = [
        &["sync file"; 5][..],
        &["sync folder", "sync folder", "rename a", "rename b", "rename text", "sync folder"],
        &["rename gate", "sync folder", "remove a.part.journal"],
    ];
    assert_eq!(disk.take(), expected.concat());
}

/// Disk that fails at one rename or removal, as if the process were killed there.
#[derive(Debug)]
struct Fails {
    at: usize,
    count: AtomicUsize,
}

impl Fails {
    fn step(&self) -> std::io::Result<()> {
        let now = self.count.fetch_add(1, Ordering::Relaxed);
        if now >= self.at { Err(std::io::Error::other("killed")) } else { Ok(()) }
    }
}

impl Disk for Fails {
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.step().and_then(|()| DirectDisk.rename(from, to))
    }

    fn exchange(&self, one: &Path, other: &Path) -> std::io::Result<()> {
        self.step().and_then(|()| DirectDisk.exchange(one, other))
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        if path.exists() {
            self.step()?;
        }
        DirectDisk.remove(path)
    }
}

#[test]
fn a_run_that_ends_between_two_names_leaves_the_old_or_the_new() {
    let sources = [numbers(1), numbers(2)];
    let expected_folder = tempfile::tempdir().unwrap();
    run(&folder(expected_folder.path(), &sources), &RunOptions::default(), &()).unwrap();
    let new = named(expected_folder.path());
    assert_eq!(new.len(), 4);
    let mut steps = 0;
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        old(dir.path());
        let before = named(dir.path());
        let work = folder(dir.path(), &sources);
        let disk = Arc::new(Fails { at, count: AtomicUsize::new(0) });
        let mut settings = RunOptions { disk, force: true, slab: 64, ..RunOptions::default() };
        let ended = run(&work, &settings, &());
        let files = named(dir.path());
        assert!(files == before || files == new, "step {at}: {:?}", files.keys());
        settings.disk = Arc::new(DirectDisk);
        settings.resume = true;
        // Also without --force: a run that had started renaming may be resumed.
        settings.force = false;
        let again = run(&work, &settings, &()).unwrap();
        assert!(again.resumed == again.slabs || again.already, "step {at}");
        assert_eq!(named(dir.path()), new, "step {at}");
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), new.len(), "step {at}");
        if ended.is_ok() {
            break;
        }
        steps += 1;
    }
    // The exchange, and eleven removals.
    assert_eq!(steps, 12);
}

/// Disk that cannot exchange names.
#[derive(Debug)]
struct Plain;

impl Disk for Plain {
    fn exchange(&self, _one: &Path, _other: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn files_of_the_user_stay_whether_folders_can_be_exchanged_or_not() {
    let sources = [numbers(1), numbers(2)];
    let disks: [Arc<dyn Disk>; 2] = [Arc::new(DirectDisk), Arc::new(Plain)];
    for disk in disks {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs_err::create_dir_all(path.join("notes/more")).unwrap();
        old(&path);
        fs_err::write(path.join("notes/more/mine"), "mine").unwrap();
        std::os::unix::fs::symlink("notes/more/mine", path.join("link")).unwrap();
        let settings = RunOptions { disk, force: true, ..RunOptions::default() };
        run(&folder(&path, &sources), &settings, &()).unwrap();
        assert_eq!(fs_err::read(path.join("notes/more/mine")).unwrap(), b"mine");
        assert_eq!(fs_err::read(path.join("link")).unwrap(), b"mine");
        assert_eq!(fs_err::read(path.join("gate")).unwrap(), b"new gate");
        assert!(!path.join("stale").exists());
        assert_eq!(fs_err::read_dir(&path).unwrap().count(), 6);
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside");
    }
}

/// Puts a file into the old folder just before it is removed, as another program may.
#[derive(Debug)]
struct Writes(PathBuf);

impl Disk for Writes {
    fn exchange(&self, one: &Path, other: &Path) -> std::io::Result<()> {
        fs_err::write(self.0.join("late"), "late")?;
        DirectDisk.exchange(one, other)
    }
}

#[test]
fn a_file_that_appears_in_the_old_folder_is_moved() {
    let sources = [numbers(1), numbers(2)];
    let dir = tempfile::tempdir().unwrap();
    old(dir.path());
    let disk = Arc::new(Writes(dir.path().to_owned()));
    let settings = RunOptions { disk, force: true, ..RunOptions::default() };
    run(&folder(dir.path(), &sources), &settings, &()).unwrap();
    assert_eq!(fs_err::read(dir.path().join("late")).unwrap(), b"late");
}

#[test]
fn hashes_do_not_depend_on_slabs_and_a_changed_output_is_not_finished() {
    let sources = [numbers(1), numbers(2)];
    let mut texts = Vec::new();
    for (threads, slab) in [(1, 1 << 20), (2, 5000)] {
        let dir = tempfile::tempdir().unwrap();
        let work = Work { hashed: true, ..folder(dir.path(), &sources) };
        let mut settings = RunOptions { threads, slab, ..RunOptions::default() };
        run(&work, &settings, &()).unwrap();
        let path = dir.path().join(crate::hashes::FOLDER);
        texts.push(fs_err::read_to_string(&path).unwrap());
        let files = crate::hashes::read(&path).unwrap();
        assert_eq!(files.len(), 4);
        assert!(files.iter().all(|file| file.check(dir.path()).unwrap().is_empty()));
        settings.resume = true;
        assert!(run(&work, &settings, &()).unwrap().already);
        let file = dir.path().join("a");
        let mut bytes = fs_err::read(&file).unwrap();
        // In the middle, where only the hashes look.
        bytes[32 + ROWS * ROW * 2] ^= 1;
        fs_err::write(&file, bytes).unwrap();
        assert!(matches!(run(&work, &settings, &()).unwrap_err(), Error::Exists { .. }));
    }
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn a_source_that_changed_since_it_was_read_is_refused() {
    let sources = [numbers(1), numbers(2)];
    let mut changed = [numbers(1), numbers(2)];
    // The values that are read first, and slabs of copies as well as of rounded values.
    changed[1][8] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let mut settings = RunOptions { slab: 64, ..RunOptions::default() };
    run(&work(dir.path(), &sources), &settings, &Until(AtomicI64::new(400))).unwrap_err();
    settings.resume = true;
    let error = run(&work(dir.path(), &changed), &settings, &()).unwrap_err().to_string();
    assert!(error.contains("the source of `t1` was changed"), "{error}");
    assert!(run(&work(dir.path(), &sources), &settings, &()).unwrap().resumed > 0);
}

#[test]
fn a_named_file_that_was_damaged_since_is_made_anew() {
    let sources = [numbers(1), numbers(2)];
    let expected_folder = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    run(&folder(expected_folder.path(), &sources), &RunOptions::default(), &()).unwrap();
    let work = folder(dir.path(), &sources);
    let disk = Arc::new(Fails { at: 1, count: AtomicUsize::new(0) });
    let mut settings = RunOptions { disk, slab: 64, ..RunOptions::default() };
    run(&work, &settings, &()).unwrap_err();
    let path = dir.path().join("a");
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[100] ^= 1;
    fs_err::write(&path, bytes).unwrap();
    (settings.disk, settings.resume) = (Arc::new(DirectDisk), true);
    run(&work, &settings, &()).unwrap();
    assert_eq!(named(dir.path()), named(expected_folder.path()));
}

#[test]
fn resuming_what_is_finished_says_so_and_other_weights_are_refused() {
    let sources = [numbers(1), numbers(2)];
    let mut changed = [numbers(1), numbers(2)];
    changed[1][0] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let settings = RunOptions { resume: true, ..RunOptions::default() };
    assert!(!run(&folder(dir.path(), &sources), &settings, &()).unwrap().already);
    let before = named(dir.path());
    assert!(run(&folder(dir.path(), &sources), &settings, &()).unwrap().already);
    let error = run(&folder(dir.path(), &changed), &settings, &()).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    let mut text = folder(dir.path(), &sources);
    text.beside[1].bytes.push(b'!');
    assert!(run(&text, &settings, &()).is_err());
    assert_eq!(named(dir.path()), before);
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), before.len());
}

#[test]
fn files_beside_tensors_are_not_written_over_without_force() {
    let sources = [numbers(1), numbers(2)];
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("text"), "somebody's").unwrap();
    let work = folder(dir.path(), &sources);
    let error = run(&work, &RunOptions::default(), &()).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    fs_err::remove_file(dir.path().join("text")).unwrap();
    fs_err::create_dir(dir.path().join("gate")).unwrap();
    let settings = RunOptions { force: true, ..RunOptions::default() };
    let error = run(&work, &settings, &()).unwrap_err();
    assert!(matches!(error, Error::NoFile { .. }), "{error}");
    assert_eq!(
        fs_err::read_dir(dir.path()).unwrap().count(),
        1,
        "found before anything is written"
    );
}
