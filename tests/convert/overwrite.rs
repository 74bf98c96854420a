//! Tests of a conversion over the output of another one. After a kill, a folder is the old model or the new
//! one; files are that or refused. Resuming gives the bytes of an uninterrupted run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::tool::{Ran, convert, copy, fixture, onboard, run};

/// Format of a conversion, and of the output it replaces.
struct Case {
    to: &'static str,
    /// Additional arguments, for several files.
    more: &'static [&'static str],
    /// Format of the older model.
    old: &'static str,
    /// File that is opened; none for the output itself.
    opens: Option<&'static str>,
}

const CASES: [Case; 5] = [
    Case { to: "gguf:bf16", more: &[], old: "gguf:q8_0", opens: None },
    Case {
        to: "gguf:q4_k_m",
        more: &["--split-max-size", "300k"],
        old: "gguf:q4_k_m",
        opens: Some("m-00001-of-"),
    },
    Case { to: "bf16", more: &["--split-max-size", "600k"], old: "bf16", opens: None },
    Case { to: "fp8", more: &[], old: "fp8:modelopt", opens: None },
    Case { to: "nvfp4", more: &["--split-max-size", "300k"], old: "fp8", opens: None },
];

impl Case {
    fn is_file(&self) -> bool {
        self.to.starts_with("gguf:")
    }

    fn output(&self, dir: &Path) -> PathBuf {
        dir.join(if self.is_file() { "out/m.gguf" } else { "out" })
    }

    fn command(&self, source: &Path, dir: &Path, to: &str) -> Command {
        let mut command = convert();
        command.arg(source).args(["--to", to, "--force", "-o"]).arg(self.output(dir));
        command.args(self.more);
        command
    }

    /// True if the output opens and runs.
    fn loads(&self, dir: &Path) -> bool {
        let mut model = self.output(dir);
        if let Some(begin) = self.opens {
            let entries = fs_err::read_dir(dir.join("out")).unwrap();
            let mut paths = entries.map(|entry| entry.unwrap().path());
            let first = paths.find(|path| {
                let name = path.file_name().unwrap().to_string_lossy();
                name.starts_with(begin) && name.ends_with(".gguf")
            });
            let Some(first) = first else { return false };
            model = first;
        }
        let ran = run(onboard().arg("run").arg(model).args(["--tokens", "1,2,3", "-n", "1"]));
        assert!(ran.code == 0 || ran.code == 2, "{ran:?}");
        ran.code == 0
    }

    /// Checks that a folder is old or new, and that files are old, new or refused.
    #[track_caller]
    fn obeys(&self, dir: &Path, old: &Files, new: &Files, when: &str) {
        let now = files(&dir.join("out"));
        if !self.is_file() {
            assert!(now == *old || now == *new, "{} {when}: {:?}", self.to, now.keys());
        } else if weights(&now) != weights(old) && weights(&now) != weights(new) {
            assert!(!self.loads(dir), "{} {when}: loads and is a mixture", self.to);
        }
        // Hashes never lie beside another file than their own.
        for name in now.keys().filter_map(|name| name.strip_suffix(".hashes")) {
            if now.contains_key(name) {
                let hashes = fs_err::read_to_string(dir.join("out").join(format!("{name}.hashes")));
                let of = [old, new].into_iter().filter(|all| all.get(name) == now.get(name));
                let mut texts = of.filter_map(|all| all.get(&format!("{name}.hashes")));
                let hashes = hashes.unwrap().into_bytes();
                assert!(texts.any(|text| *text == hashes), "{} {when}: {name}", self.to);
            }
        }
    }

    #[track_caller]
    fn resumes(&self, source: &Path, dir: &Path, new: &Files, when: &str) {
        run(self.command(source, dir, self.to).arg("--resume")).code(0);
        assert!(files(&dir.join("out")) == *new, "{} {when}: resumed to other bytes", self.to);
        let left = fs_err::read_dir(dir.join("out")).unwrap().count();
        assert_eq!(left, new.len(), "{} {when}: something is left", self.to);
        assert!(!dir.join(".out.onboard-new").exists(), "{} {when}: a folder is left", self.to);
    }
}

type Files = BTreeMap<String, Vec<u8>>;

/// Returns the files without their hashes.
fn weights(files: &Files) -> BTreeMap<&String, &Vec<u8>> {
    files.iter().filter(|(name, _)| !name.ends_with(".hashes")).collect()
}

/// Returns the files of a folder under their final names.
fn files(folder: &Path) -> Files {
    let entries = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .filter_map(|entry: fs_err::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (!name.contains(".part")).then(|| (name, fs_err::read(entry.path()).unwrap()))
        })
        .collect()
}

fn clone(from: &Files, dir: &Path) {
    fs_err::remove_dir_all(dir.join("out")).ok();
    fs_err::create_dir_all(dir.join("out")).unwrap();
    for (name, bytes) in from {
        fs_err::write(dir.join("out").join(name), bytes).unwrap();
    }
}

/// Copies `llama_256` with every value of one matrix changed: the same names and shapes.
fn other(dir: &Path) -> PathBuf {
    let folder = dir.join("llama_256");
    copy("llama_256", &folder);
    let path = folder.join("model.safetensors");
    let mut bytes = fs_err::read(&path).unwrap();
    let len = bytes.len();
    // Flip the signs of bf16 values.
    bytes[len / 2..].iter_mut().skip(1 - len / 2 % 2).step_by(2).for_each(|byte| *byte ^= 0x80);
    fs_err::write(path, bytes).unwrap();
    folder
}

/// Returns the old files, the new ones, and the time that writing the new ones takes.
fn old_and_new(case: &Case, dir: &Path) -> (Files, Files, Duration) {
    let old = other(dir);
    run(&mut case.command(&old, dir, case.old)).code(0);
    assert!(case.loads(dir));
    let before = files(&dir.join("out"));
    fs_err::remove_dir_all(dir.join("out")).unwrap();
    let started = Instant::now();
    run(&mut case.command(&fixture("llama_256"), dir, case.to)).code(0);
    let took = started.elapsed();
    assert!(case.loads(dir));
    let after = files(&dir.join("out"));
    assert!(before != after);
    (before, after, took)
}

#[test]
fn killed_at_every_change_of_names_a_folder_is_old_or_new_and_files_are_that_or_refused() {
    for case in &CASES {
        let dir = tempfile::tempdir().unwrap();
        let source = fixture("llama_256");
        let (old, new, _) = old_and_new(case, dir.path());
        let mut kills = 0;
        for at in 1.. {
            clone(&old, dir.path());
            let mut command = case.command(&source, dir.path(), case.to);
            let ran = run(command.env("ONBOARD_ABORT_AT", at.to_string()));
            case.obeys(dir.path(), &old, &new, &format!("killed at {at}"));
            if ran.code == 0 {
                break;
            }
            case.resumes(&source, dir.path(), &new, &format!("killed at {at}"));
            kills += 1;
        }
        // Files are renamed, or those of the old folder removed.
        assert!(kills >= new.len(), "{}: {kills} kills, {} files", case.to, new.len());
    }
}

#[test]
fn killed_at_random_moments_a_folder_is_old_or_new_and_files_are_that_or_refused() {
    const KILLS: u32 = 15;
    let mut seed = 11_u64;
    for case in &CASES {
        let dir = tempfile::tempdir().unwrap();
        let source = fixture("llama_256");
        let (old, new, took) = old_and_new(case, dir.path());
        for kill in 0..KILLS {
            clone(&old, dir.path());
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut command = case.command(&source, dir.path(), case.to);
            command.args(["--slab", "8"]).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            std::thread::sleep(took * u32::try_from(seed >> 48).unwrap() / (1 << 16));
            child.kill().unwrap();
            child.wait().unwrap();
            let when = format!("at random kill {kill}");
            case.obeys(dir.path(), &old, &new, &when);
            let mut again = case.command(&source, dir.path(), case.to);
            run(again.args(["--slab", "8", "--resume"])).code(0);
            assert!(files(&dir.path().join("out")) == new, "{} {when}", case.to);
        }
    }
}

fn write_shard(source: &Path, out: &Path, no: &str, more: &[&str]) -> Ran {
    let mut command = convert();
    command.arg(source).args(["--to", "bf16", "--shard", no, "-o"]).arg(out).args(more);
    run(&mut command)
}

#[test]
fn shards_of_two_models_in_one_folder_do_not_load() {
    let dir = tempfile::tempdir().unwrap();
    let old = other(dir.path());
    let new = fixture("llama_256");
    let out = dir.path().join("out");
    for no in ["1/2", "2/2"] {
        write_shard(&old, &out, no, &[]).code(0);
    }
    let mut generate = onboard();
    generate.arg("run").arg(&out).args(["--tokens", "1,2", "-n", "1"]);
    run(&mut generate).code(0);
    write_shard(&new, &out, "1/2", &[]).code(2).says("is there already");
    run(&mut generate).code(0);
    write_shard(&new, &out, "1/2", &["--force"]).code(0);
    run(&mut generate).code(2).says("not of one set");
    write_shard(&new, &out, "2/2", &["--force"]).code(0);
    run(&mut generate).code(0);
}

#[test]
fn what_cannot_be_written_is_found_before_anything_is() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let source = fixture("llama_256");
    run(convert().arg(&source).args(["--to", "bf16", "--force", "-o"]).arg(&out)).code(0);
    fs_err::remove_file(out.join("config.json")).unwrap();
    fs_err::create_dir(out.join("config.json")).unwrap();
    let before = fs_err::read(out.join("model.safetensors")).unwrap();
    run(convert().arg(&source).args(["--to", "fp8", "--force", "-o"]).arg(&out))
        .code(2)
        .says("config.json");
    assert!(fs_err::read(out.join("model.safetensors")).unwrap() == before);
    assert!(!out.join("model.safetensors.part").exists());
}

#[test]
fn files_of_the_older_model_that_loaders_read_go() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs_err::create_dir(&out).unwrap();
    for name in ["chat_template.jinja", "quantize_config.json", "notes.md", "adapter_config.json"] {
        fs_err::write(out.join(name), "{}").unwrap();
    }
    let to = ["--to", "bf16", "--force", "-o"];
    run(convert().arg(fixture("llama_256")).args(to).arg(&out)).code(0);
    let names: Vec<String> = files(&out).into_keys().collect();
    assert!(names.contains(&"notes.md".to_owned()), "{names:?}");
    for gone in ["chat_template.jinja", "quantize_config.json", "adapter_config.json"] {
        assert!(!names.contains(&gone.to_owned()), "{names:?}");
    }
}

/// A smaller limit gives more files under other names, beside which the earlier ones stay.
#[test]
fn files_of_an_earlier_set_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    for (limit, stale) in [("900k", 0), ("300k", 2)] {
        let to = ["--to", "gguf:q8_0", "--force", "--split-max-size", limit, "-o"];
        let ran = run(convert().arg(fixture("llama_256")).args(to).arg(&file)).code(0);
        assert_eq!(ran.err.matches("-of-").count(), stale, "{}", ran.err);
        assert_eq!(ran.err.contains("files of another set stay"), stale > 0, "{}", ran.err);
    }
}
