//! Shows a division: the commands of its pieces, the shared paths, and the merge.

use std::fmt::Write as _;

use registry::shell::{flag, shell_line, shell_word};
use serde_json::{Value, json};

use crate::division::DividedCommand;
use crate::error::Error;
use crate::scripts::SchedulerOptions;

/// Formats a division for people.
pub fn plan_text(divided: &DividedCommand, options: &SchedulerOptions) -> Result<String, Error> {
    let mut text = String::new();
    for number in 1..=divided.count {
        let words = shell_line(&divided.piece(number)?);
        let _ = writeln!(text, "piece {number} of {}: onboard {words}", divided.count);
    }
    let (reads, writes) = divided.shared();
    let _ =
        writeln!(text, "directory, the same on all machines: {}", shell_word(&options.directory));
    let _ = writeln!(text, "shared paths that are read: {}", list(&reads));
    let _ = writeln!(text, "shared paths that are written: {}", list(&writes));
    let _ = write!(
        text,
        "at the end ({}): {}",
        divided.kind.result,
        divided.merge_line(&options.program)
    );
    Ok(text)
}

/// Returns paths as words of a shell, with commas.
fn list(paths: &[String]) -> String {
    paths.iter().map(|path| shell_word(path)).collect::<Vec<_>>().join(", ")
}

/// Formats a division for programs. The words of a piece record that the piece is made.
pub fn plan_json(divided: &DividedCommand, options: &SchedulerOptions) -> Result<Value, Error> {
    let mut pieces = Vec::with_capacity(divided.count);
    for number in 1..=divided.count {
        let words = divided.task(&options.program, &[&flag("piece"), &number.to_string()]);
        pieces.push(json!({
            "piece": number,
            "words": words,
            "shell": shell_line(&words),
            "command": divided.piece(number)?,
            "product": divided.product(number),
        }));
    }
    let (reads, writes) = divided.shared();
    Ok(json!({
        "schema": "onboard-jobs/1",
        "command": divided.words,
        "identity": divided.identity(),
        "directory": options.directory,
        "reads": reads,
        "writes": writes,
        "state": divided.state,
        "pieces": pieces,
        "merge": divided.merge_words(&options.program),
    }))
}
