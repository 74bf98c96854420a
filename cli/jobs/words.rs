//! Parses the words of a command with the parser that runs them.

use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory as _, ValueHint};
use jobs::{ParsedWords, PathArgument, without_dots};

use crate::OnboardCli;

/// Parses words, which begin behind the program's name.
pub(super) fn parse(words: &[String]) -> Result<ParsedWords, jobs::Error> {
    let line = std::iter::once("onboard").chain(words.iter().map(String::as_str));
    let mut command = OnboardCli::command();
    let parsed = command.try_get_matches_from_mut(line).map_err(|error| {
        let text = error.to_string();
        // The first paragraph; usage and hints follow.
        let lines: Vec<&str> = text.lines().map(str::trim).take_while(|l| !l.is_empty()).collect();
        refused(lines.join(" ").trim_start_matches("error: "))
    })?;
    let mut matches: &ArgMatches = &parsed;
    let mut command: &Command = &command;
    while let Some((name, inner)) = matches.subcommand() {
        let inner_command = command.find_subcommand(name);
        command = inner_command.ok_or_else(|| refused("a command without declaration"))?;
        matches = inner;
    }
    let mut result = ParsedWords::default();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let raw = matches.get_raw(id).into_iter().flatten();
        let values: Vec<String> = raw.map(|value| value.to_string_lossy().into()).collect();
        let hint = argument.get_value_hint();
        let is_path = matches!(
            hint,
            ValueHint::AnyPath
                | ValueHint::FilePath
                | ValueHint::DirPath
                | ValueHint::ExecutablePath
        );
        if id == "output" {
            result.outputs.clone_from(&values);
        }
        let values: Vec<String> = values
            .into_iter()
            .map(|value: String| if is_path { without_dots(&value) } else { value })
            .collect();
        if id != "output" {
            let reads = values.iter().filter(|value| is_path || Path::new(value).exists());
            result.reads.extend(reads.map(|path| PathArgument {
                path: path.clone(),
                is_program: hint == ValueHint::ExecutablePath,
            }));
        }
        result.values.insert(argument.get_long().unwrap_or(id).to_owned(), values);
    }
    Ok(result)
}

/// Returns the error of words that are no command.
fn refused(message: &str) -> jobs::Error {
    jobs::Error::Refused { message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> ParsedWords {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn spellings_of_a_command_have_the_same_values() {
        let first = parsed("imatrix m --text t.txt -o out/a.gguf --chunk 4");
        let second = parsed("imatrix --chunk=4 --output=./out//a.gguf --text=./t.txt ./m/");
        assert_eq!(first.values, second.values);
        assert_ne!(first.values, parsed("imatrix m --text u.txt -o out/a.gguf --chunk 4").values);
    }

    #[test]
    fn paths_are_found_by_their_declaration() {
        let found =
            parsed("parity dump m -o d --python py --prompts=p.json --import a.py --dtypes f32");
        let paths: Vec<&str> = found.reads.iter().map(|read| read.path.as_str()).collect();
        for path in ["m", "p.json", "a.py", "py"] {
            assert!(paths.contains(&path), "{path}: {paths:?}");
        }
        assert_eq!(paths.len(), 4);
        assert_eq!(found.reads.iter().filter(|read| read.is_program).count(), 1);
    }

    #[test]
    fn errors_hold_their_whole_first_paragraph() {
        let words = ["imatrix", "m"].map(str::to_owned);
        let error = parse(&words).unwrap_err().to_string();
        assert!(error.contains("--output <FILE>") && error.contains("--text"), "{error}");
    }
}
