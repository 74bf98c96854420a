//! Every malformed checkpoint of fixtures/hostile gets the message it should, and never a panic.

use std::path::Path;

use converters::Checkpoint;

/// What a user is told about a checkpoint: the error, or the first tensor with bad numbers.
fn complaint(path: &Path) -> Option<String> {
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

#[test]
fn every_lie_is_told_apart() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/hostile/checkpoints");
    let mut cases: Vec<_> =
        fs_err::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(cases.len() > 50, "cases are missing: run fixtures/hostile/make.py");
    let mut wrong = Vec::new();
    for case in &cases {
        let expected = fs_err::read_to_string(case.join("expect.txt")).unwrap();
        let message = complaint(case).unwrap_or_else(|| "no complaint".into());
        let lacking: Vec<&str> = expected.lines().filter(|line| !message.contains(line)).collect();
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        if !lacking.is_empty() {
            wrong.push(format!("{name}: {message}\n    lacks {lacking:?}"));
        }
        // A message names the file or folder at fault, and is one line that can be printed.
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
