//! Checks that every malformed file of fixtures/hostile gets the expected message, and never a panic.

use std::path::{Path, PathBuf};

use formats::gguf;
use onboard_checkpoints::Checkpoint;

/// Returns the message for a checkpoint: the error, or the first tensor with non-finite values.
fn of_checkpoint(path: &Path) -> Option<String> {
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Some(error.to_string()),
    };
    checkpoint.tensors().keys().find_map(|name| match checkpoint.scan_nonfinite(name) {
        Ok(None) => None,
        Ok(Some(found)) => Some(format!("tensor `{name}` has {found}")),
        Err(error) => Some(error.to_string()),
    })
}

/// Returns the message for the first GGUF file of a folder.
fn of_gguf(path: &Path) -> Option<String> {
    let files = fs_err::read_dir(path).expect("a folder");
    let mut files: Vec<PathBuf> = files.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "gguf"));
    gguf::GgufFile::open(files.iter().min().expect("a file")).err().map(|error| error.to_string())
}

fn check(folder: &str, least: usize, complaint: fn(&Path) -> Option<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/hostile").join(folder);
    let mut cases: Vec<_> = fs_err::read_dir(&root)
        .expect("made")
        .map(|entry| entry.expect("readable").path())
        .collect();
    cases.sort();
    assert!(cases.len() > least, "cases are missing: run fixtures/hostile/make*.py");
    let mut wrong = Vec::new();
    for case in &cases {
        let expected = fs_err::read_to_string(case.join("expect.txt")).expect("what to expect");
        let message = complaint(case).unwrap_or_else(|| "no complaint".into());
        let lacking: Vec<&str> = expected.lines().filter(|line| !message.contains(line)).collect();
        let name = case.file_name().expect("a case").to_string_lossy().into_owned();
        if !lacking.is_empty() {
            wrong.push(format!("{name}: {message}\n    lacks {lacking:?}"));
        }
        // A message names the file or folder at fault, and is one printable line.
        if !message.contains(&name)
            && !message.starts_with("tensor `")
            && !message.starts_with("shard `")
        {
            wrong.push(format!("{name}: {message}\n    does not name the file"));
        }
        assert!(!message.chars().any(char::is_control), "{name}: {message:?}");
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_lie_of_a_checkpoint_is_told_apart() {
    check("checkpoints", 50, of_checkpoint);
}

#[test]
fn every_lie_of_a_gguf_file_is_told_apart() {
    check("gguf", 90, of_gguf);
}
