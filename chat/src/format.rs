//! Formats of tool calls and reasoning in a model's output.
//!
//! A format is a file `registry/formats/NAME.yaml`; docs/tool-calls.md describes its words. [`Format::find`] finds
//! the format of a model by its chat template, and [`Format::parser`] gives a parser that reads the output as it comes.
//!
//! The parser never goes back ([decision 79](../../docs/decisions/0079-output-formats-as-patterns.md)).

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
mod tags;
mod value;

pub(crate) use data::ValueTrim;
pub use data::{EngineParsers, Format};
pub use parser::{OutputBytes, OutputParser, ParserOptions, ReasoningMode};
pub(crate) use pattern::{CallPattern, Hole, PatternStep};
pub(crate) use value::{ValueType, coerced, pointer};

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
        let template = &without_comments(template);
        let mut best = None;
        for format in builtin() {
            let Some(length) = format.is_in(template) else { continue };
            if best.is_none_or(|(other, _)| length > other) {
                best = Some((length, format));
            }
        }
        best.map(|(_, format)| format)
    }

    /// True if a template has the words of the format's marks of reasoning. A format of calls may have marks that only
    /// some of its models write.
    pub fn has_reasoning(&self, template: &str) -> bool {
        let template = &without_comments(template);
        self.reasoning.as_ref().is_some_and(|marks| {
            let words = marks.open.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.filter(|word| !word.is_empty()).all(|word| template.contains(word))
        })
    }

    /// Returns the format of forced calls where a model's own cannot express them: with the reasoning of the own format.
    pub(crate) fn fallback(model_format: Option<&'static Self>) -> Option<&'static Self> {
        static JOINED: OnceLock<Vec<Format>> = OnceLock::new();
        let plain = builtin().iter().find(|format| format.fallback)?;
        let Some(model_format) = model_format else { return Some(plain) };
        let joined = JOINED.get_or_init(|| {
            let joined = builtin().iter().map(|format| Self {
                name: format.name.clone(),
                reasoning: format.reasoning.clone(),
                drop: format.drop.clone(),
                ..plain.clone()
            });
            joined.collect()
        });
        joined.iter().find(|format| format.name == model_format.name)
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

/// Returns a template without its comments, which no model ever sees.
fn without_comments(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut after = template;
    while let Some((before, comment)) = after.split_once("{#") {
        text.push_str(before);
        after = comment.split_once("#}").map_or("", |(_, after)| after);
    }
    text.push_str(after);
    text
}

/// Returns the formats that the program embeds. Tests read each of them, so none is left out.
fn builtin() -> &'static [Format] {
    static FORMATS: OnceLock<Vec<Format>> = OnceLock::new();
    FORMATS.get_or_init(|| {
        registry::formats::builtin().filter_map(|(_, source)| read::read(&source).ok()).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use registry::diag::SourceText;

    use super::*;

    fn read(text: &str) -> Result<Format, Vec<String>> {
        let source = SourceText { path: "mine.yaml".to_owned(), text: text.to_owned() };
        Format::read(&Arc::new(source)).map_err(|findings| {
            findings
                .iter()
                .map(|finding| {
                    let at = finding.at.as_ref();
                    let place = at.map(|at| (at.line(), at.column())).unwrap_or_default();
                    format!("{place:?} {}", finding.message)
                })
                .collect()
        })
    }

    #[test]
    fn each_file_is_a_format() {
        for (name, source) in registry::formats::builtin() {
            let format =
                Format::read(&source).unwrap_or_else(|findings| panic!("{name}: {findings:?}"));
            assert_eq!(format.name(), name);
            assert_eq!(Format::named(name), Some(&format));
            assert!(!format.about().is_empty(), "{name} needs `about`");
        }
        assert_eq!(Format::names().count(), registry::formats::builtin().count());
    }

    /// Sheets of engines list the parsers of their version, so a name that an engine lacks is found here.
    #[test]
    fn engines_have_the_parsers_that_formats_name() {
        let mut seen = 0;
        for (_, source) in registry::sheet::builtin() {
            let sheet = registry::sheet::Sheet::read(&source).unwrap();
            for format in Format::all() {
                let Some(parsers) = format.engine(&sheet.engine) else { continue };
                for (table, name) in
                    [("tool_parsers", &parsers.tools), ("reasoning_parsers", &parsers.reasoning)]
                {
                    let Some(name) = name else { continue };
                    assert!(
                        sheet.tables[table].contains(name),
                        "{}: {} has no {name} in {table}",
                        format.name(),
                        sheet.engine
                    );
                    seen += 1;
                }
            }
        }
        let named = Format::all().iter().flat_map(Format::engines);
        let named: usize = named
            .map(|(_, p)| usize::from(p.tools.is_some()) + usize::from(p.reasoning.is_some()))
            .sum();
        assert_eq!(seen, named, "each engine has a sheet");
    }

    #[test]
    fn all_mistakes_of_a_file_come_at_once() {
        let text = "format: mine\ncals: []\ncalls:\n  - \"<a>{nam}\"\n  - \"<a>{name}{pairs}\"\n  - \"{arguments}\"\n\
                    pair: \"{key}{value}\"\nreasoning: { open: \"<t>\", shut: \"</t>\" }\nvalue: { trim: all }\n";
        let findings = read(text).unwrap_err();
        assert_eq!(
            findings,
            [
                "(2, 1) a format has no key `cals`",
                "(7, 7) this pattern of a pair needs a text between two holes, and directly behind `{value}` and `{tags}`",
                "(4, 5) patterns have no hole `{nam}`",
                "(5, 5) this pattern of a call needs a text at its end",
                "(6, 5) this pattern of a call needs one of `{call}`, `{calls}`, `{python}`, or `{name}` with one of \
                 `{arguments}`, `{object}`, `{pairs}`, `{tags}`",
                "(8, 27) reasoning has no key `shut`",
                "(8, 12) reasoning needs `close`",
                "(9, 16) `trim` cannot be `all`",
            ]
        );
    }

    #[test]
    fn a_format_is_found_by_the_marks_in_a_template() {
        for format in Format::all() {
            for texts in &format.find {
                let template = texts.join("\n{{ x }}\n");
                let name = Format::find(&template).map(Format::name);
                assert_eq!(name, Some(format.name()), "{template}");
            }
        }
        assert_eq!(Format::find("{{ messages }}"), None);
        // The longer marks decide: a template of tags has the marks of JSON calls and of reasoning too.
        let tags = "<think></think><tool_call><function=f><parameter=p></parameter></function></tool_call>";
        let json = "<think></think><tool_call>{\"name\"}</tool_call>";
        // A comment is no part of what is written.
        assert_eq!(Format::find(&format!("{{#- {tags} #}}{{{{ messages }}}}{{# {json}")), None);
        assert!(
            !Format::find(json).unwrap().has_reasoning("{# <think> #}{{ messages }}<tool_call>")
        );
        let sections = [tags, json]
            .map(|template| Format::find(template).map(|format| format.section.is_some()));
        assert_eq!(sections, [Some(true), Some(false)]);
    }

    #[test]
    fn prompts_may_end_inside_reasoning() {
        let format = Format::find("<think></think>").unwrap();
        assert!(format.reasons_after("<|assistant|>\n<think>\n"));
        assert!(!format.reasons_after("<think></think>"));
        assert!(!format.reasons_after("<|assistant|>"));
    }
}
