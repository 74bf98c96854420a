//! Findings for texts of a config that nothing knows.

use crate::config::Config;
use crate::diag::Finding;
use crate::suggest;

/// Creates a finding for a text of the config that is none of the known words.
pub(crate) fn unknown_word<'a>(
    config: &Config,
    key: &str,
    path: &[usize],
    text: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Finding {
    let message = format!("`{}` is the unknown word `{text}`", shown(key, path));
    let mut finding =
        at(config, key, path, message).label(format!("expected {}", listed(known.clone())));
    finding.help = suggest::closest(text, known).map(|close| format!("did you mean `{close}`?"));
    finding.help.get_or_insert_with(|| {
        "if the reference knows the word, compare it in the spec".to_owned()
    });
    finding
}

/// Creates a finding at a value of the config.
pub(super) fn at(config: &Config, key: &str, path: &[usize], message: String) -> Finding {
    match config.place(key, path) {
        Some(span) => Finding::error(&span, message),
        None => Finding::unplaced(format!("`{}`: {message}", config.path())),
    }
}

/// Names an item of a key.
pub(super) fn shown(key: &str, path: &[usize]) -> String {
    path.iter().fold(key.to_owned(), |shown, n| format!("{shown}[{n}]"))
}

/// Formats the words as a list in a sentence.
pub(super) fn listed<'a>(known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<String> = known.map(|word| format!("`{word}`")).collect();
    match known.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, earlier)) => format!("{} or {last}", earlier.join(", ")),
        None => "nothing".to_owned(),
    }
}
