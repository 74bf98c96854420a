//! Implements `onboard plugin`: a package that runs a model in an engine without support for its
//! architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use registry::alias::{Alias, AliasMismatch};
use serde_json::{Value, json};

use crate::findings::model_error;
use crate::launch::open_sheet;
use crate::specs;
use crate::target::{self, CheckpointArgs, SpecArgs};
use crate::{CommandOutcome, term, write};

/// Writes a package that runs a model in an engine that does not know its architecture
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard plugin MODEL --engine vllm -o PACKAGE
  pip install ./PACKAGE                   in the engine's environment; the engine finds it by itself
  parity check MODEL --engine vllm        whether the class in use computes what the reference computes

The package says that the architecture is another one which the engine knows: config keys and tensors get the other's
names. It is only written where both specs resolve to the same graph. Otherwise the first op in the way is named.

Exit codes: 0 written, 2 not possible.")]
pub(crate) struct PluginArgs {
    #[command(flatten)]
    weights: CheckpointArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The engine: the name of a sheet, or a sheet of yours (a .yaml file)
    #[arg(long, value_name = "ENGINE")]
    engine: String,
    /// The folder to write
    #[arg(short, long, value_name = "PACKAGE")]
    output: PathBuf,
    /// The name of the package; default: of the spec
    #[arg(long, value_name = "NAME")]
    package: Option<String>,
    /// Write over files that are there
    #[arg(long)]
    force: bool,
}

impl PluginArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let sheet = open_sheet(&self.engine)?;
        let engine = &sheet.engine;
        ensure!(
            !sheet.alias.is_empty(),
            "the sheet of engine `{engine}` has no package for other models (`alias:`); `onboard launch {} --engine \
             {engine}` says what the engine does with it",
            self.weights.model.display()
        );
        let which = self.weights.which("an engine's package is for a checkpoint")?;
        let target = target::open(&which, &self.choice)?;
        let architecture = &target.model.architecture;
        let known: BTreeSet<&str> =
            sheet.tables.get("architectures").into_iter().flatten().map(String::as_str).collect();
        ensure!(
            !known.contains(architecture.as_str()),
            "engine `{engine}` knows `{architecture}` by itself, so it needs no package; `onboard launch {} --engine \
             {engine}` prints the command",
            self.weights.model.display()
        );
        let mut specs = specs::open(self.choice.specs.as_deref())?;
        if let Some(spec) = &self.choice.spec {
            specs.named(spec).map_err(model_error)?;
        }
        let tensors = target.checkpoint()?.tensors().keys().cloned().collect();
        let alias = specs
            .alias(&target.model, &target.config, &known, &tensors)
            .map_err(|mismatches| refusal(engine, architecture, &mismatches))?;
        let model_type = target.config.text("model_type").with_context(|| {
            format!(
                "`{}/config.json` has no `model_type`, by which engines find the class of a config",
                target.dir.display()
            )
        })?;
        let package = match &self.package {
            Some(name) => name.clone(),
            None => format!("onboard_{}", word(&target.model.name)),
        };
        ensure!(
            word(&package) == package && !package.is_empty(),
            "`{package}` is no name of a Python package; use small letters, digits and `_`"
        );
        let files = files(&sheet.alias, &alias, architecture, &model_type, &package);
        for path in files.keys() {
            write::allowed(&self.output.join(path), &[], self.force)?;
        }
        for (path, text) in &files {
            write::atomic(&self.output.join(path), text.as_bytes())?;
        }
        term::print(&format!(
            "{architecture} is {} by other names: {} config keys, {} tensors\nwrote {}\n\
             install it in the environment of `{engine}`: pip install {}\n",
            alias.architecture,
            alias.keys.len(),
            alias.renames.len(),
            self.output.display(),
            shown(&self.output)
        ))?;
        Ok(CommandOutcome::Ok)
    }
}

/// Formats a path so that pip recognizes it as a path.
fn shown(path: &Path) -> String {
    if path.is_absolute() { path.display().to_string() } else { format!("./{}", path.display()) }
}

/// Returns the files of a package: those of the sheet, with names filled in.
fn files<'a>(
    texts: impl IntoIterator<Item = (&'a String, &'a String)>,
    alias: &Alias,
    architecture: &str,
    model_type: &str,
    package: &str,
) -> BTreeMap<String, String> {
    let words =
        [("@package@", package), ("@architecture@", architecture), ("@base@", &alias.architecture)];
    let mut files: BTreeMap<String, String> = texts
        .into_iter()
        .map(|(path, text)| (filled(path, &words), filled(text, &words)))
        .collect();
    let mut config = json!({});
    for (key, value) in &alias.keys {
        let mut at = &mut config;
        for part in key.split('.') {
            at = &mut at[part];
        }
        *at = value.clone();
    }
    let names = json!({
        "architecture": architecture,
        "base": alias.architecture,
        "model_type": model_type,
        "config": config,
        "renames": patterns(&alias.renames),
    });
    files.insert(format!("{package}/alias.json"), format!("{names:#}\n"));
    files
}

/// Returns a text with values in place of words.
fn filled(text: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
}

/// Returns regular expressions for renamed modules, one for all layers.
fn patterns(renames: &BTreeMap<String, String>) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    for (from, to) in renames {
        let pair = match (from.rsplit_once('.'), to.rsplit_once('.')) {
            // Scales and biases beside the weight follow its module.
            (Some((a, x)), Some((b, y))) if x == y => general(a, b, true),
            _ => general(from, to, false),
        };
        seen.insert(pair);
    }
    seen.into_iter().map(|(from, to)| json!([from, to])).collect()
}

/// Generalizes the numbers of a name to any number, if the other name has the same numbers.
fn general(from: &str, to: &str, module: bool) -> (String, String) {
    let same = numbers(from) == numbers(to);
    let mut group = 0;
    let mut holes = |name: &str, hole: &dyn Fn(usize) -> String, escape: bool| {
        group = 0;
        let parts = name.split('.').map(|part| {
            if same && part.parse::<u32>().is_ok() {
                group += 1;
                return hole(group);
            }
            if escape { regex_escape(part) } else { part.to_owned() }
        });
        let parts: Vec<String> = parts.collect();
        parts.join(if escape { "\\." } else { "." })
    };
    let mut left = holes(from, &|_| "(\\d+)".to_owned(), true);
    let mut right = holes(to, &|n| format!("\\{n}"), false);
    if module {
        left.push_str("(\\.[^.]+)");
        let last = if same { numbers(from).len() + 1 } else { 1 };
        right = format!("{right}\\{last}");
    }
    (left, right)
}

/// Returns the parts of a name that are numbers.
fn numbers(name: &str) -> Vec<&str> {
    name.split('.').filter(|part| part.parse::<u32>().is_ok()).collect()
}

/// Escapes all characters except letters, digits and `_`.
fn regex_escape(text: &str) -> String {
    text.chars()
        .map(
            |c: char| {
                if c.is_alphanumeric() || c == '_' { c.to_string() } else { format!("\\{c}") }
            },
        )
        .collect()
}

/// Returns a valid name for a Python package.
fn word(name: &str) -> String {
    name.chars()
        .map(|c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect()
}

/// Returns the error for an unsupported model, with the obstacle of each known relative.
fn refusal(engine: &str, architecture: &str, mismatches: &[AliasMismatch]) -> anyhow::Error {
    let mut text = format!(
        "engine `{engine}` does not know `{architecture}`, and no architecture that it knows computes the same"
    );
    for unlike in mismatches {
        let _ = write!(text, "\n  `{}`: {}", unlike.spec, unlike.why);
    }
    if mismatches.is_empty() {
        text += ": no spec that this one extends is among them";
    }
    anyhow::anyhow!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_are_patterns_over_layers() {
        let renames = [
            ("model.blocks.0.attn.query.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("model.blocks.1.attn.query.weight", "model.layers.1.self_attn.q_proj.weight"),
            ("tok.weight", "model.embed_tokens.weight"),
            ("a.0.w", "b.1.v"),
        ];
        let renames = renames.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let found = patterns(&renames);
        assert_eq!(
            found,
            [
                json!(["a\\.0\\.w", "b.1.v"]),
                json!([
                    "model\\.blocks\\.(\\d+)\\.attn\\.query(\\.[^.]+)",
                    "model.layers.\\1.self_attn.q_proj\\2"
                ]),
                json!(["tok(\\.[^.]+)", "model.embed_tokens\\1"]),
            ]
        );
    }
}
