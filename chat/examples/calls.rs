//! Reads the output of a model from the standard input, and prints its text, reasoning and tool calls.
//!
//! `cargo run -p onboard-chat --example calls -- FORMAT < output.txt`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::io::Read as _;

use onboard_chat::{Format, ParserOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let known = Format::names().collect::<Vec<_>>().join(", ");
    let name = std::env::args().nth(1).ok_or_else(|| format!("give a format: {known}"))?;
    let format =
        Format::named(&name).ok_or_else(|| format!("no format `{name}`; known are {known}"))?;
    let mut parser = format.parser(&ParserOptions::default());
    let mut input = std::io::stdin().lock();
    let mut bytes = [0; 4096];
    loop {
        let read = input.read(&mut bytes)?;
        let events = if read == 0 { parser.finish() } else { parser.push_bytes(&bytes[..read]) };
        for event in events {
            println!("{event:?}");
        }
        if read == 0 {
            return Ok(());
        }
    }
}
