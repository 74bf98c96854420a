//! Formats of tool calls and reasoning in a model's output.
//!
//! A format is a file `registry/formats/NAME.yaml`; docs/tool-calls.md describes its words. [`Format::find`] finds
//! the format of a model by its chat template, and [`Format::parser`] gives a parser that reads the output as it comes.

use std::sync::OnceLock;

use registry::diag::Finding;

mod data;
mod json;
mod json_call;
mod machine;
mod object;
mod parser;
mod parts;
mod pattern;
mod python;
mod read;
mod value;

pub use data::{EngineParsers, Format};
pub use parser::{OutputBytes, OutputParser, ParserOptions, ReasoningMode};

impl Format {
    /// Returns the names of all formats.
    pub fn names() -> impl Iterator<Item = &'static str> {
        builtin().iter().map(Self::name)
    }

    /// Returns all formats.
    pub fn all() -> &'static [Self] {
        builtin()
    }

    /// Returns the format of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        builtin().iter().find(|format| format.name() == name)
    }

    /// Finds the format that a chat template writes: the one with most text of its marks in the template.
    pub fn find(template: &str) -> Option<&'static Self> {
        let mut best = None;
        for format in builtin() {
            let Some(length) = format.is_in(template) else { continue };
            if best.is_none_or(|(other, _)| length > other) {
                best = Some((length, format));
            }
        }
        best.map(|(_, format)| format)
    }

    /// Reads a format's file, or returns everything that is wrong with it.
    pub fn read(source: &std::sync::Arc<registry::diag::SourceText>) -> Result<Self, Vec<Finding>> {
        read::read(source)
    }

    /// Creates a parser of one output.
    pub fn parser(&'static self, options: &ParserOptions) -> OutputParser {
        OutputParser::new(self, options)
    }
}

/// Returns the formats that the program embeds. Tests read each of them, so none is left out.
fn builtin() -> &'static [Format] {
    static FORMATS: OnceLock<Vec<Format>> = OnceLock::new();
    FORMATS.get_or_init(|| {
        registry::formats::builtin().filter_map(|(_, source)| read::read(&source).ok()).collect()
    })
}
