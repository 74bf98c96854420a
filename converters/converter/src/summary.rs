//! Summary of a conversion, with the error of each tensor.

use std::fmt::Write as _;
use std::time::Duration;

use conversion::{ConversionResult, Measure, Work};
use registry::quantity::{bytes as size, rate};

/// Number of tensors that a warning names; the others are counted.
const NAMED: usize = 3;

/// Warns of tensors whose error is as large as that of all zeros. Their values are too small for the scales
/// of a type, which no other check of a conversion detects.
pub(crate) fn lost_tensors(work: &Work<'_>, done: &ConversionResult) -> Option<String> {
    let all = work.tasks.iter().zip(&done.tensors);
    let all = all.flat_map(|(task, measures)| task.targets.iter().zip(measures));
    let lost: Vec<&str> = all
        .filter(|(_, measure)| measure.relative() >= 0.9)
        .map(|(target, _)| target.name.as_str())
        .collect();
    if lost.is_empty() {
        return None;
    }
    let more = match lost.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = lost.iter().take(NAMED).map(|name| format!("`{name}`"));
    Some(format!(
        "warning: nothing is left of {}{more}: their numbers are too small for the scales of the type; give them another one",
        named.collect::<Vec<_>>().join(", ")
    ))
}

/// Returns the message that an earlier run has finished.
pub(crate) fn finished_before(work: &Work<'_>) -> String {
    let mut text = String::new();
    for file in &work.files {
        let _ = writeln!(
            text,
            "{} was finished before: {}, with the header and the first and last rows of each tensor that \
             this conversion writes; the option `verify` compares the rest",
            file.path.display(),
            size(file.len)
        );
    }
    text
}

/// Returns one line per file, and the tensors with the largest errors.
pub(crate) fn text(work: &Work<'_>, done: &ConversionResult, took: Duration) -> String {
    const SHOWN: usize = 5;
    let mut text = String::new();
    for (n, file) in work.files.iter().enumerate() {
        let mut tensors: Vec<(&str, Measure)> = Vec::new();
        for (task, measures) in work.tasks.iter().zip(&done.tensors) {
            let mine = task.targets.iter().zip(measures).filter(|(target, _)| target.file == n);
            tensors.extend(mine.map(|(target, measure)| (target.name.as_str(), *measure)));
        }
        let count: u64 = tensors.iter().map(|(_, measure)| measure.count).sum();
        let bits = file.len as f64 * 8.0 / count.max(1) as f64;
        let _ = writeln!(
            text,
            "wrote {}  {}, {} tensors, {bits:.2} bits per weight, every byte read back",
            file.path.display(),
            size(file.len),
            tensors.len()
        );
        tensors.sort_by(|a, b| b.1.relative().total_cmp(&a.1.relative()));
        for (name, measure) in tensors.iter().take(SHOWN).filter(|(_, measure)| measure.error > 0.0)
        {
            let _ = writeln!(
                text,
                "  {name:<36} relative error {:.5}  cosine {:.6}  largest {:.3e}",
                measure.relative(),
                measure.cosine(),
                measure.largest
            );
        }
    }
    let seconds = took.as_secs_f64();
    let pace = if done.resumed > 0 {
        format!("{} of {} slabs were there", done.resumed, done.slabs)
    } else {
        let weights: usize = work.tasks.iter().map(|task| task.flow.len()).sum();
        rate(weights as f64 / seconds, "weights")
    };
    let _ = writeln!(text, "in {seconds:.2} s, {pace}");
    text
}
