//! Implements `onboard help`: commands, the spec language, its keys and its ops.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use clap::{Args, CommandFactory as _, Parser as _};
use registry::ops::{Declaration, OpSet};
use registry::reference::{self, KeyReference};
use registry::suggest;
use registry::table::TextTable;

use crate::{CommandOutcome, OnboardCli, docs, schema, term};

/// Explains a command, or a topic: ops, spec, and every key and op of the spec language
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard help ops            every op that a spec can call
  onboard help attend         one op: its parameters, their defaults, what it gives
  onboard help spec           the keys of a spec
  onboard help states         one key: what it takes, and the section of the manual
  onboard help states.dtype   a key below another
  onboard help expressions    the expressions of dims
  onboard help schema         the JSON Schema of a spec, for editors
  onboard help parity check   a command, like `onboard parity check --help`")]
pub(crate) struct HelpArgs {
    /// A command, `ops`, `spec`, an op, a key, or a page: dump, report, diagnose, ci, evals, launch, engines, engine-protocol, endpoints
    #[arg(value_name = "TOPIC")]
    topic: Vec<String>,
}

impl HelpArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let words: Vec<&str> = self.topic.iter().map(String::as_str).collect();
        if is_command(&words) {
            let line = ["onboard"].iter().chain(&words).copied().chain(["--help"]);
            if let Err(help) = OnboardCli::try_parse_from(line) {
                term::print(help.render().to_string().trim_end())?;
            }
            if words.is_empty() {
                term::print(&format!("\nTopics: ops, spec, an op, a key of a spec, {}", pages()))?;
            }
            return Ok(CommandOutcome::Ok);
        }
        let topic = words.join(".");
        match text(&topic) {
            Some(text) => term::print(text.trim_end())?,
            None => bail!("{}", unknown(&topic)),
        }
        Ok(CommandOutcome::Ok)
    }
}

fn is_command(words: &[&str]) -> bool {
    let mut command = &OnboardCli::command();
    words.iter().all(|word| {
        let inner = command.find_subcommand(word);
        command = inner.unwrap_or(command);
        inner.is_some()
    })
}

/// Returns the help on a topic. If a name is both an op and a key (`rope`), both are shown.
fn text(topic: &str) -> Option<String> {
    let ops = OpSet::builtin();
    let texts: Vec<String> = match topic {
        "ops" => vec![all_ops(&ops)],
        "spec" => vec![all_keys()],
        "schema" => vec![schema::text().ok()?],
        "expressions" => vec![docs::section("dims")?.to_owned()],
        "programs" => vec![docs::section("functions")?.to_owned()],
        _ => {
            let op = ops.get(topic).map(|op| op_text(op));
            let step = docs::row("weights", topic).map(|row| {
                let calls = row.calls.join(", ");
                format!("step of `weights:`  {calls}\n\n{}\n", row.cells.join("\nundone by: "))
            });
            let page = docs::PAGES.iter().find(|(name, ..)| *name == topic);
            let page = page.map(|(_, _, text)| (*text).to_owned());
            [op, step, key_text(topic), page].into_iter().flatten().collect()
        }
    };
    (!texts.is_empty()).then(|| texts.join("\n"))
}

fn all_ops(ops: &OpSet) -> String {
    let mut table = TextTable::new(&[]);
    for name in ops.names() {
        let Some(op) = ops.get(name) else { continue };
        let required = op.signature().params.iter().filter(|param| param.default.is_none());
        let required: Vec<&str> = required.map(|param| param.name).collect();
        let gives = op.output_doc().replace('`', "");
        table.row([format!("{name}({})", required.join(", ")), gives]);
    }
    format!(
        "Ops, with the parameters that a call must give, and the shape of what one row gives.\n\n{}\n\
         `onboard help OP` shows all parameters. Operators: + - * / between values and with numbers.\n\
         A function of a spec is called like an op: `onboard help functions`.\n",
        table.plain("  ")
    )
}

fn op_text(op: &Declaration) -> String {
    let mut text = format!("op  {}\n\n", registry::ops::table::call(op));
    let mut table = TextTable::new(&[]);
    for param in &op.signature().params {
        let default = param.default.as_ref().map(|value| format!("default {value}"));
        table.row([param.name.to_owned(), param.kind.describe(), default.unwrap_or_default()]);
    }
    text.push_str(&table.plain("  "));
    for (label, doc) in [("gives  ", op.output_doc()), ("", op.notes_doc())] {
        if !doc.is_empty() {
            let _ = writeln!(text, "\n{label}{doc}");
        }
    }
    text.push_str(
        "\nx are values, W is a module path (its tensors are W.weight, W.bias), P is a tensor path.\n",
    );
    text
}

fn all_keys() -> String {
    let mut table = TextTable::new(&[]);
    for key in reference::keys().iter().filter(|key| !key.path.contains('.')) {
        let name = if key.required { format!("{} *", key.path) } else { key.path.clone() };
        table.row([name, key.doc.to_owned()]);
    }
    let (overview, _) = docs::SPEC.split_once("\n## ").unwrap_or((docs::SPEC, ""));
    let (_, overview) = overview.split_once('\n').unwrap_or(("", overview));
    let topics: Vec<&str> = docs::headings().collect();
    format!(
        "Keys of a spec; * are needed where nothing is extended.\n\n{}\n\
         `onboard help KEY` explains one, `onboard new NAME --like SPEC` writes a file to begin with.\n\
         {overview}\nSections: {}\n",
        table.plain("  "),
        topics.join(", ")
    )
}

/// Returns the help on a key: by its path, by its path without user-chosen names, or by its last part.
fn key_text(topic: &str) -> Option<String> {
    let keys = reference::keys();
    let mut matching: Vec<&KeyReference> =
        keys.iter().filter(|key| key.path.replace(".<name>", "") == topic).collect();
    if matching.is_empty() && !topic.contains('.') {
        matching = keys.iter().filter(|key| key.name() == topic).collect();
    }
    let section = docs::section(topic);
    if matching.is_empty() && section.is_none() {
        return None;
    }
    let mut text = String::new();
    for key in matching {
        let needed = if key.required { ", needed" } else { "" };
        let _ = writeln!(text, "key  {}: {}{needed}\n\n  {}\n", key.path, key.takes, key.doc);
        let prefix = format!("{}.", key.path);
        let mut table = TextTable::new(&[]);
        for below in keys.iter().filter(|other| other.path.starts_with(&prefix)) {
            let name = below.path[prefix.len()..].to_owned();
            let name = if below.required { format!("{name} *") } else { name };
            table.row([name, below.doc.to_owned()]);
        }
        let below = table.plain("  ");
        if !below.is_empty() {
            let _ = writeln!(text, "{below}");
        }
    }
    text.push_str(section.unwrap_or_default());
    Some(text)
}

fn unknown(topic: &str) -> String {
    let ops = OpSet::builtin();
    let keys = reference::keys();
    let known = ops.names().chain(keys.iter().map(KeyReference::name)).chain(["ops", "spec"]);
    let close = suggest::closest(topic, known);
    let close = close.map(|close| format!(" (did you mean `{close}`?)")).unwrap_or_default();
    format!(
        "there is no help on `{topic}`{close}; topics are ops, spec, the name of an op or of a key, {}, and the \
         commands that `onboard --help` lists",
        pages()
    )
}

/// Returns the names of all pages.
fn pages() -> String {
    docs::PAGES.map(|(name, ..)| name).join(", ")
}
