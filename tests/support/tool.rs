//! Runs the built binaries.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Folders of the program's sources.
pub(crate) const SOURCES: [&str; 20] = [
    "chat/src",
    "compile/src",
    "serve/src",
    "registry/src",
    "converters/formats/src",
    "converters/checkpoints/src",
    "converters/tokenizers/src",
    "converters/conversion/src",
    "converters/converter/src",
    "engine/src",
    "endpoints/src",
    "parity/src",
    "models/src",
    "hub/src",
    "images/src",
    "vision/src",
    "jobs/src",
    "lanes/src",
    "proofs/src",
    "cli",
];

/// Returns the repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a fixture's folder.
pub(crate) fn fixture(name: &str) -> PathBuf {
    root().join("fixtures").join(name)
}

/// Output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Fails unless the exit code is `code`, showing the output.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked at"), "it panicked:\n{}", self.err);
        self
    }

    /// Fails unless stderr contains `words`.
    #[track_caller]
    pub(crate) fn says(self, words: &str) -> Self {
        assert!(self.err.contains(words), "no `{words}` in stderr:\n{}", self.err);
        self
    }

    /// Fails unless stdout contains `words`.
    #[track_caller]
    pub(crate) fn prints(self, words: &str) -> Self {
        assert!(
            self.out.contains(words),
            "no `{words}` in stdout:\n{}\nstderr:\n{}",
            self.out,
            self.err
        );
        self
    }
}

/// Returns the `onboard` command with a neutral environment.
pub(crate) fn onboard() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onboard"));
    quiet(&mut command);
    command
}

/// Returns the `parity` command.
pub(crate) fn parity() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_parity"));
    quiet(&mut command);
    command
}

/// Returns the `convert` command.
pub(crate) fn convert() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convert"));
    quiet(&mut command);
    command
}

fn quiet(command: &mut Command) {
    for key in [
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HUB_CACHE",
        "HF_TOKEN_PATH",
        "ONBOARD_PYTHON",
        "ONBOARD_ENGINES",
    ] {
        command.env_remove(key);
    }
    // Tests never use the cache of the user who runs them.
    command.env("HF_HOME", "/nonexistent/hf-home").env("HF_HUB_OFFLINE", "1");
    command.current_dir(root());
}

/// Copies a fixture's folder, without its reference.
pub(crate) fn copy(name: &str, to: &Path) {
    copy_folder(&fixture(name), to);
}

/// Removes the checksums of a dump, so that a changed one is read.
pub(crate) fn remove_checksums(dump: &Path) {
    let file = dump.join("manifest.json");
    let text = fs_err::read_to_string(&file).unwrap();
    let (before, _) = text.split_once(",\n \"sha256\": ").unwrap();
    fs_err::write(file, format!("{before}\n}}\n")).unwrap();
}

/// Copies the files of a folder, without subfolders.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs_err::create_dir_all(to).unwrap();
    for entry in fs_err::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs_err::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

/// Parses the JSON output of a command.
pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("the binary starts");
    Ran {
        code: status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}
