//! Errors of comparisons of two result files.

use std::path::PathBuf;

/// Reason that nothing of two result files can be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum DiffError {
    #[error(
        "the files have no item in common: ids of `{}` begin with `{first_of_a}`, those of `{}` with `{first_of_b}`; \
         give two results of the same task",
        a.display(), b.display()
    )]
    NoPairs { a: PathBuf, first_of_a: String, b: PathBuf, first_of_b: String },
    #[error(
        "the files are of different tasks: of {all} items with the same id, {apart} have another document or another \
         right answer (item `{item}`){}; give two results of the same task and version",
        tasks.as_ref().map(|[a, b]| format!(": `{a}` and `{b}`")).unwrap_or_default()
    )]
    OtherTask { all: usize, apart: usize, item: String, tasks: Option<[String; 2]> },
    #[error("the files have no item in common")]
    NoItems,
    #[error(
        "`{}` has no metric `{metric}`; there are: {}",
        path.display(),
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    )]
    NoMetric { path: PathBuf, metric: String, known: Vec<String> },
    #[error(
        "the files share no scores, answers, texts or log-probabilities; nothing can be compared"
    )]
    NothingShared,
}
