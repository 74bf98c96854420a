//! Implements `onboard formats`: formats of tool calls and reasoning, and the reading of outputs.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use chat::{Format, OutputEvent, ParserOptions, ReasoningMode, Template};
use clap::{Args, Subcommand};
use registry::file;
use registry::suggest;
use registry::table::TextTable;
use serde_json::{Value, json};

use crate::{CommandOutcome, term};

/// Subcommands of `onboard formats`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  onboard formats list                               every format, and the parsers of engines
  onboard formats show hermes                        the file of one format
  onboard formats find checkpoints/mine              the format that a model's chat template writes
  onboard formats find model.gguf --json
  echo '<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>' | onboard formats parse --tool-format hermes
  onboard formats parse --model checkpoints/mine --tools tools.json < output.txt

`onboard help tool-calls` explains formats and the keys of their files.")]
pub(crate) enum FormatsCommand {
    List(ListFormatsArgs),
    Show(ShowFormatArgs),
    Find(FindFormatArgs),
    Parse(ParseOutputArgs),
}

/// Lists the formats of tool calls and reasoning
#[derive(Debug, Args)]
pub(crate) struct ListFormatsArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Prints the file of one format
#[derive(Debug, Args)]
pub(crate) struct ShowFormatArgs {
    /// Name of the format
    #[arg(value_name = "NAME")]
    name: String,
    /// The facts as JSON
    #[arg(long)]
    json: bool,
}

/// Finds the format that a model's chat template writes; exit code 1 if the format is none of the known ones
#[derive(Debug, Args)]
pub(crate) struct FindFormatArgs {
    /// A checkpoint, a GGUF file, or a chat template (a .jinja file)
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Reads a model's output from the standard input, and prints its parts as lines of JSON
///
/// Lines: `{"reasoning": TEXT}`, `{"content": TEXT}`, `{"call": {"index": N, "name": NAME}}`, `{"arguments": {"index": N, "piece": JSON}}`, and at
/// the end `{"end": {...}}` with the number of calls and the bytes by their use. The pieces of a call's arguments are one JSON object together.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct ParseOutputArgs {
    /// Name of the format
    #[arg(long, value_name = "NAME", group = "which")]
    tool_format: Option<String>,
    /// Use the format of this checkpoint, GGUF file or chat template
    #[arg(long, value_name = "MODEL", group = "which")]
    model: Option<PathBuf>,
    /// The tools of the request: a list in the form of the OpenAI API, or a map from names to JSON schemas
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// The prompt ended with the mark of reasoning, so the output begins inside it
    #[arg(long)]
    inside_reasoning: bool,
    /// Print a call when it is whole; a malformed call is then content
    #[arg(long)]
    whole_calls: bool,
}

impl FormatsCommand {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        match self {
            Self::List(args) => args.run(),
            Self::Show(args) => args.run(),
            Self::Find(args) => args.run(),
            Self::Parse(args) => args.run(),
        }
    }
}

impl ListFormatsArgs {
    fn run(self) -> Result<CommandOutcome> {
        if self.json {
            let formats: Vec<Value> = Format::all().iter().map(facts).collect();
            term::print(&serde_json::to_string_pretty(&json!({ "formats": formats }))?)?;
            return Ok(CommandOutcome::Ok);
        }
        let mut table = TextTable::new(&[]);
        table.row(["format", "calls", "reasoning", "engines", "models"]);
        for format in Format::all() {
            let engines: Vec<&str> = format.engines().map(|(name, _)| name).collect();
            table.row([
                format.name().to_owned(),
                yes_or_nothing(format.has_calls()).to_owned(),
                yes_or_nothing(format.reasoning().is_some()).to_owned(),
                engines.join(", "),
                format.about().to_owned(),
            ]);
        }
        term::print(&table.plain(""))?;
        Ok(CommandOutcome::Ok)
    }
}

/// Returns the cell of a table for a fact.
fn yes_or_nothing(has: bool) -> &'static str {
    if has { "yes" } else { "" }
}

impl ShowFormatArgs {
    fn run(self) -> Result<CommandOutcome> {
        let format = named(&self.name)?;
        if self.json {
            term::print(&serde_json::to_string_pretty(&facts(format))?)?;
            return Ok(CommandOutcome::Ok);
        }
        let source = registry::formats::builtin().find(|(name, _)| *name == format.name());
        let (_, source) = source.context("each format has a file")?;
        term::print(source.text.trim_end())?;
        Ok(CommandOutcome::Ok)
    }
}

impl FindFormatArgs {
    fn run(self) -> Result<CommandOutcome> {
        let template = template_at(&self.model)?;
        let format = template.format();
        if self.json {
            let places: Vec<Value> = template
                .variants()
                .iter()
                .map(|variant| {
                    let format = Format::find(&variant.text).map(Format::name);
                    json!({ "name": variant.name, "place": variant.place, "format": format })
                })
                .collect();
            let report = json!({ "format": format.map(facts), "templates": places });
            term::print(&serde_json::to_string_pretty(&report)?)?;
        } else if let Some(format) = format {
            let mut lines = vec![format!("{}: {}", format.name(), format.about())];
            for (engine, parsers) in format.engines() {
                let parts = [("tool calls", &parsers.tools), ("reasoning", &parsers.reasoning)];
                let parts = parts
                    .into_iter()
                    .filter_map(|(word, name)| Some(format!("{word} {}", name.as_ref()?)));
                let parts: Vec<String> = parts.collect();
                lines.push(format!("  {engine}: {}", parts.join(", ")));
            }
            term::print(&lines.join("\n"))?;
        } else {
            term::print(
                "no known format: the chat template writes no tool calls and no reasoning that \
                 `onboard formats list` has",
            )?;
        }
        Ok(if format.is_some() { CommandOutcome::Ok } else { CommandOutcome::Differs })
    }
}

impl ParseOutputArgs {
    fn run(self) -> Result<CommandOutcome> {
        let format = match (&self.tool_format, &self.model) {
            (Some(name), _) => named(name)?,
            (None, Some(model)) => template_at(model)?.format().with_context(|| {
                format!(
                    "the chat template of `{}` has no known format; name one with --tool-format",
                    model.display()
                )
            })?,
            (None, None) => bail!("which format? --tool-format NAME, or --model MODEL"),
        };
        let reasoning =
            if self.inside_reasoning { ReasoningMode::Inside } else { ReasoningMode::Marked };
        let tools = self.tools.as_deref().map(read_tools).transpose()?.unwrap_or_default();
        let options = ParserOptions {
            tools,
            reasoning,
            whole_calls: self.whole_calls,
            ..ParserOptions::default()
        };
        let mut parser = format.parser(&options);
        let mut input = std::io::stdin().lock();
        let mut buffer = [0; 8192];
        loop {
            let count = input.read(&mut buffer).context("cannot read the standard input")?;
            if count == 0 {
                break;
            }
            print(&parser.push_bytes(&buffer[..count]))?;
        }
        print(&parser.finish())?;
        let bytes = parser.bytes();
        let end = json!({ "end": {
            "calls": parser.calls(),
            "bytes": {
                "content": bytes.content,
                "reasoning": bytes.reasoning,
                "marks": bytes.marks,
                "calls": bytes.calls,
            },
        }});
        term::print_data(&end.to_string())?;
        Ok(CommandOutcome::Ok)
    }
}

/// Prints events, one on each line.
fn print(events: &[OutputEvent]) -> Result<()> {
    for event in events {
        let line = match event {
            OutputEvent::Content(text) => json!({ "content": text }),
            OutputEvent::Reasoning(text) => json!({ "reasoning": text }),
            OutputEvent::Call { index, name } => {
                json!({ "call": { "index": index, "name": name } })
            }
            OutputEvent::Arguments { index, piece } => {
                json!({ "arguments": { "index": index, "piece": piece } })
            }
        };
        term::print_data(&line.to_string())?;
    }
    Ok(())
}

fn named(name: &str) -> Result<&'static Format> {
    let Some(format) = Format::named(name) else {
        let names: Vec<&str> = Format::names().collect();
        let help = suggest::closest(name, names.iter().copied());
        let help = help.map_or_else(
            || format!("there are {}", names.join(", ")),
            |name| format!("did you mean `{name}`?"),
        );
        bail!("there is no format `{name}`; {help}");
    };
    Ok(format)
}

/// Returns the facts of a format as JSON.
fn facts(format: &Format) -> Value {
    let engines: serde_json::Map<String, Value> = format
        .engines()
        .map(|(name, parsers)| {
            let parsers = json!({ "tools": parsers.tools, "reasoning": parsers.reasoning });
            (name.to_owned(), parsers)
        })
        .collect();
    let reasoning = format.reasoning().map(|(open, close)| json!({ "open": open, "close": close }));
    json!({
        "name": format.name(),
        "about": format.about(),
        "calls": format.has_calls(),
        "reasoning": reasoning,
        "engines": engines,
    })
}

/// Reads the template of a model, or a file that holds nothing else (`*.jinja`).
fn template_at(path: &Path) -> Result<Template> {
    if path.extension().is_some_and(|end| end == "jinja") {
        let text = file::read_text(path, file::TEMPLATE)?;
        return Ok(Template::from_source(&path.display().to_string(), &text, []));
    }
    Ok(Template::of_model(path)?)
}

/// Reads the tools of a request: a list in the form of the OpenAI API, or a map from names to schemas.
fn read_tools(path: &Path) -> Result<BTreeMap<String, Value>> {
    let text = file::read_text(path, file::CONFIG)?;
    let place = path.display();
    let value: Value = serde_json::from_str(&text)
        .with_context(|| format!("`{place}` is no JSON; expected a list of tools"))?;
    match value {
        Value::Object(map) => Ok(map.into_iter().collect()),
        Value::Array(tools) => tools
            .into_iter()
            .enumerate()
            .map(|(at, tool)| {
                let function = tool.get("function").unwrap_or(&tool);
                let name = function.get("name").and_then(Value::as_str).with_context(|| {
                    format!("tool {at} of `{place}` has no name; expected `function.name`")
                })?;
                let schema = function.get("parameters").cloned().unwrap_or_else(|| json!({}));
                Ok((name.to_owned(), schema))
            })
            .collect(),
        _ => bail!("`{place}` holds neither a list of tools nor a map from names to schemas"),
    }
}
