//! Tests that a conversion killed at any moment leaves nothing that looks finished. Resuming it gives the
//! same bytes, with any number of threads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::tool::{convert, copy, fixture, run};

/// Number of kills, at moments spread over the whole conversion.
const KILLS: usize = 10;

/// Source and format of a conversion.
struct Case {
    fixture: &'static str,
    to: &'static str,
    /// Number of values in the source.
    numbers: usize,
    /// File of weights in the output folder; none if it is the output itself.
    inside: Option<&'static str>,
}

impl Case {
    fn command(&self, output: &Path, threads: usize, slab: usize) -> Command {
        let mut command = convert();
        command.arg(fixture(self.fixture)).args(["--to", self.to, "-o"]).arg(output);
        command.args(["--slab", &slab.to_string(), "--threads", &threads.to_string()]);
        command
    }

    /// Returns the file of weights.
    fn file(&self, output: &Path) -> PathBuf {
        self.inside.map_or_else(|| output.to_owned(), |name| output.join(name))
    }

    /// True if an output looks finished: a folder is finished once it has a config.
    fn finished(&self, output: &Path) -> bool {
        if self.inside.is_some() { output.join("config.json").exists() } else { output.exists() }
    }
}

fn lines(journal: &Path) -> usize {
    fs_err::read_to_string(journal).map_or(0, |text| text.lines().count())
}

/// Waits until the journal has `enough` lines, or the process has ended.
fn wait(child: &mut Child, journal: &Path, enough: usize) {
    while lines(journal) < enough && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Returns every file below a folder, or a single file.
fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    if path.is_file() {
        return BTreeMap::from([(String::new(), fs_err::read(path).unwrap())]);
    }
    let entries = fs_err::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry: fs_err::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs_err::read(entry.path()).unwrap())
        })
        .collect()
}

fn killed(case: &Case) {
    let dir = tempfile::tempdir().unwrap();
    let uninterrupted = dir.path().join("whole");
    run(&mut case.command(&uninterrupted, 1, 1)).code(0);
    let expected = contents(&uninterrupted);
    // Slabs of another size give the same bytes too.
    let other = dir.path().join("other");
    run(&mut case.command(&other, 2, 64)).code(0);
    assert!(contents(&other) == expected, "other slabs, other bytes");
    let mut unfinished = 0;
    let mut seed = 7_usize;
    for kill in 0..KILLS {
        let output = dir.path().join(format!("killed-{kill}"));
        let journal = PathBuf::from(format!("{}.part.journal", case.file(&output).display()));
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let enough = kill * case.numbers / 1000 / KILLS + (seed >> 33) % 97;
        let mut child = case
            .command(&output, 1 + kill % 2, 1)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait(&mut child, &journal, enough);
        child.kill().unwrap();
        child.wait().unwrap();
        if !case.finished(&output) {
            unfinished += 1;
            let again = if journal.exists() { "--resume" } else { "--force" };
            run(case.command(&output, 2 - kill % 2, 1).arg(again)).code(0);
        }
        assert!(contents(&output) == expected, "kill {kill} after {enough} slabs");
    }
    assert!(unfinished >= KILLS / 2, "only {unfinished} of {KILLS} were killed in time");
}

#[test]
fn killed_conversions_resume_to_the_same_bytes() {
    let fixture = "lfm2_256";
    let to = "gguf:q4_k_m";
    killed(&Case { fixture, to, numbers: 1_361_280, inside: None });
}

#[test]
fn killed_checkpoints_resume_to_the_same_bytes() {
    for to in ["fp8", "nvfp4"] {
        let inside = Some("model.safetensors");
        killed(&Case { fixture: "llama_256", to, numbers: 1_200_000, inside });
    }
}

/// Weights that changed in place keep the length of their file, and archives can restore its time.
#[test]
fn other_weights_with_the_stamps_of_the_first_are_not_resumed() {
    changed(|bytes| bytes.iter_mut().step_by(2).for_each(|byte| *byte ^= 1), "other weights");
}

/// A single byte, of the values that were read first.
#[test]
fn one_changed_byte_of_the_source_is_not_resumed() {
    changed(|bytes| bytes[0] ^= 1, "was changed since it was read");
}

/// Returns a conversion that writes small slabs.
fn slow_conversion(model: &Path, output: &Path) -> Command {
    let mut command = convert();
    command.arg(model).args(["--to", "gguf:q4_k_m", "--slab", "1", "--threads", "1", "-o"]);
    command.arg(output);
    command
}

/// Stops a conversion, changes its source without its stamps, and resumes it.
#[track_caller]
fn changed(change: fn(&mut [u8]), says: &str) {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    let output = dir.path().join("model.gguf");
    copy("lfm2_256", &model);
    let mut command = slow_conversion(&model, &output);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let journal = dir.path().join("model.gguf.part.journal");
    wait(&mut child, &journal, 5);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!output.exists() && journal.exists());

    let weights = model.join("model.safetensors");
    let modified = fs_err::metadata(&weights).unwrap().modified().unwrap();
    let mut bytes = fs_err::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    change(&mut bytes[header..]);
    fs_err::write(&weights, bytes).unwrap();
    std::fs::File::options().write(true).open(&weights).unwrap().set_modified(modified).unwrap();
    run(slow_conversion(&model, &output).arg("--resume")).code(2).says(says);
}
