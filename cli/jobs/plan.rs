//! Shows a division: the commands of its pieces, the shared paths, and the merge.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::division::DividedCommand;
use super::{SchedulerArgs, scripts};
use crate::launch::shell;

/// Returns a command as a line for a shell.
pub(super) fn line(words: &[String]) -> String {
    words.iter().map(|word| shell(word)).collect::<Vec<_>>().join(" ")
}

/// Formats a division for people.
pub(super) fn text(divided: &DividedCommand, args: &SchedulerArgs) -> Result<String> {
    let mut text = String::new();
    for number in 1..=divided.count {
        let words = line(&divided.piece(number)?);
        let _ = writeln!(text, "piece {number} of {}: onboard {words}", divided.count);
    }
    let (reads, writes) = divided.shared();
    let _ = writeln!(text, "directory, the same on all machines: {}", shell(&args.directory()?));
    let _ = writeln!(text, "shared paths that are read: {}", list(&reads));
    let _ = writeln!(text, "shared paths that are written: {}", list(&writes));
    let _ =
        write!(text, "at the end ({}): {}", divided.kind.result, super::merge_line(divided, args)?);
    Ok(text)
}

/// Returns paths as words of a shell, with commas.
fn list(paths: &[String]) -> String {
    paths.iter().map(|path| shell(path)).collect::<Vec<_>>().join(", ")
}

/// Formats a division for programs. The words of a piece record that the piece is made.
pub(super) fn json(divided: &DividedCommand, args: &SchedulerArgs) -> Result<Value> {
    let mut pieces = Vec::with_capacity(divided.count);
    for number in 1..=divided.count {
        let words = scripts::task(divided, args, &["--piece", &number.to_string()])?;
        pieces.push(json!({
            "piece": number,
            "words": words,
            "shell": line(&words),
            "command": divided.piece(number)?,
            "product": divided.product(number),
        }));
    }
    let (reads, writes) = divided.shared();
    Ok(json!({
        "schema": "onboard-jobs/1",
        "command": divided.words,
        "identity": divided.identity(),
        "directory": args.directory()?,
        "reads": reads,
        "writes": writes,
        "state": divided.state,
        "pieces": pieces,
        "merge": super::merge_words(divided, args)?,
    }))
}
