//! Values of the flags of `convert`: formats, sizes and shards.

use std::ffi::OsStr;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use conversion::mix;

/// Parser of the value of `--to`; `help` works without the other arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let word = StringValueParser::new().parse_ref(command, arg, value)?;
        if word == "help" {
            return Err(clap::Error::raw(ErrorKind::DisplayHelp, help()));
        }
        Ok(word)
    }
}

/// Returns the output of `--to help`.
fn help() -> String {
    let mut text =
        "GGUF types, as in --to gguf:q4_k_m (a mix: most tensors are of the type named)\n"
            .to_owned();
    for target in mix::MixTarget::all() {
        let ty = target.default_type();
        let bits = ty.bytes() as f64 * 8.0 / ty.elements() as f64;
        let needs = if ty.needs_importance() { "  needs --imatrix" } else { "" };
        let name = target.name().to_lowercase();
        let ty = ty.name();
        text.extend([format!("  {name:<10} {ty:<8} {bits:.2} bits{needs}\n")]);
    }
    text.push_str("Checkpoints, as in --to fp8 -o DIR\n");
    for (name, _, what) in conversion::folder::FolderFormat::all() {
        text.extend([format!("  {name:<16} {what}\n")]);
    }
    text
}

/// Parses `4G`, `500M`, `100000`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let count: Option<u64> = digits.parse().ok();
    let size = count.and_then(|count| count.checked_mul(unit)).filter(|&size| size > 0);
    size.ok_or_else(|| format!("`{text}` is no size; write 4G, 500M or a number of bytes"))
}

/// Parses `2/8`, the second of eight files, and returns its index counted from zero.
pub(crate) fn parse_shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/');
    let numbers = parts
        .and_then(|(no, count)| Some((no.parse::<usize>().ok()?, count.parse::<usize>().ok()?)));
    match numbers {
        Some((no, count)) if no > 0 && no <= count && count <= 9999 => Ok((no - 1, count)),
        _ => Err(format!("`{text}` is not I/N with I from 1 to N, as in 2/8")),
    }
}
