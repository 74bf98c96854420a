//! Shows the pieces of a command of another program.
//!
//! `cargo run -p onboard-jobs --example pieces`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use onboard_jobs::{CommandHost, DividedCommand, DivisibleCommand, Error, ParsedWords};

/// Command that renders a film in shares.
const RENDER: DivisibleCommand = DivisibleCommand {
    name: &["render"],
    piece: &["part", "{i}/{n}"],
    piece_output: Some("{output}.{i}"),
    product: Some("{output}.{i}"),
    refused: &[],
    merge_writes: true,
    merge: &["join", "{products}", "-o", "{output}"],
    result: "the film is written",
};

/// Reads the output of a command.
fn parse(words: &[String]) -> Result<ParsedWords, Error> {
    let refusal = || Error::Refused { message: "expected `-o FILE`".to_owned() };
    let at = words.iter().position(|word| word == "-o").ok_or_else(refusal)?;
    let outputs = words.get(at + 1).cloned().into_iter().collect();
    Ok(ParsedWords { outputs, ..ParsedWords::default() })
}

fn main() -> Result<(), Error> {
    let host =
        CommandHost { kinds: &[RENDER], parse, write: |path, bytes| fs_err::write(path, bytes) };
    let words = ["render", "-o", "film"].map(str::to_owned);
    let divided = DividedCommand::new(host, &words, 3, None)?;
    for number in 1..=divided.count {
        println!("{}", divided.piece(number)?.join(" "));
    }
    println!("{}", divided.merge()?.join(" "));
    Ok(())
}
