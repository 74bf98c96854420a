//! Implements `onboard new`, which writes a starting point for a spec.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use models::spec_text::sections;
use models::specs::Specs;
use registry::reference;

use crate::findings::model_error;
use crate::specs;
use crate::{CommandOutcome, schema, term, write};

/// Keys that each spec defines itself.
const OWN: [&str; 8] = ["spec", "name", "matches", "inside", "kinds", "defaults", "extends", "use"];

/// Writes a commented spec that extends a known one, to be edited
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard new mine                              writes mine.yaml
  onboard new mine --like SPEC --matches MineForCausalLM -o specs/mine.yaml

What the known spec says stands in the file as comments, under the key it belongs to. Uncomment and
change what differs; the rest is inherited. Then: onboard check mine.yaml --model MODEL")]
pub(crate) struct NewArgs {
    /// The name of the family: letters, digits and underscores
    name: String,
    /// The known spec that comes nearest, as `onboard list` shows them; default: what most others extend
    #[arg(long, value_name = "SPEC")]
    like: Option<PathBuf>,
    /// The class that `architectures` of config.json names; default: made from the name
    #[arg(long, value_name = "CLASS")]
    matches: Option<String>,
    /// The file to write; default: NAME.yaml
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Look for specs in this folder too; default: ONBOARD_SPECS
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
}

impl NewArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let name = &self.name;
        ensure!(
            name.chars().all(is_word) && name.starts_with(|c: char| c.is_ascii_alphabetic()),
            "`{name}` is no name of a spec; expected letters, digits and underscores, as in `my_model`"
        );
        let mut specs = specs::open(self.specs.as_deref())?;
        let base = match &self.like {
            Some(like) => specs.named(like).map_err(model_error)?,
            None => specs.most_extended(),
        };
        ensure!(base != *name, "a spec cannot extend itself; name it otherwise than `{base}`");
        let path = self.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.yaml")));
        ensure!(
            !path.exists(),
            "`{}` is there already; remove it, or name another file with -o",
            path.display()
        );
        let class = self.matches.clone().unwrap_or_else(|| class(name));
        ensure!(!class.is_empty() && class.chars().all(is_word), "`{class}` is no name of a class");
        write::atomic(&path, skeleton(name, &class, &base, &specs).as_bytes())?;
        schema::beside(&path)?;
        term::print(&format!("wrote {}, which extends {base}", path.display()))?;
        term::note(&next(&path));
        Ok(CommandOutcome::Ok)
    }
}

fn next(path: &Path) -> String {
    let path = path.display();
    format!(
        "edit it (`onboard help spec` explains the language), then:\n  \
         onboard check {path} --model MODEL\n  \
         parity dump MODEL -o DUMP\n  \
         onboard add-model MODEL --spec {path} --reference DUMP"
    )
}

/// Returns the transformers class name for `my_model`: `MyModelForCausalLM`.
fn class(name: &str) -> String {
    name.split('_')
        .map(|part: &str| -> String {
            let mut letters = part.chars();
            letters.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(letters).collect()
        })
        .collect::<String>()
        + "ForCausalLM"
}

/// True for the characters of names.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the text of the file: its own keys, then each key as inherited.
fn skeleton(name: &str, class: &str, base: &str, specs: &Specs) -> String {
    let mut text = format!(
        "{}\n# {name}: what differs from `{base}`. Lines behind `#` show what `{base}` says: uncomment and change\n\
         # what differs, and leave the rest, which is inherited. Maps merge by key; `key: ~` removes an entry.\n\
         # `onboard help spec` explains the language, `onboard help ops` lists the ops.\n\
         spec: 1\nname: {name}\nmatches: [{class}]  # `architectures` of config.json\nextends: {base}\n",
        schema::LINE
    );
    let (chain, libs) = specs.origins(base);
    if !libs.is_empty() {
        let shown: Vec<String> =
            libs.iter().map(|lib| format!("`onboard show lib/{lib} --source`")).collect();
        let _ = writeln!(text, "# Its functions come also from: {}", shown.join(", "));
    }
    let sources: Vec<(&String, &str)> =
        chain.iter().filter_map(|spec| Some((spec, specs.source(spec)?))).collect();
    for key in reference::keys().iter().filter(|key| !key.path.contains('.')) {
        if OWN.contains(&key.name()) {
            continue;
        }
        let _ = writeln!(text, "\n# --- {}: {}", key.path, key.doc);
        for (spec, source) in &sources {
            for section in sections(source).iter().filter(|section| section.key == key.path) {
                if *spec != base {
                    let _ =
                        writeln!(text, "# --- {} of `{spec}`, which `{base}` extends:", key.path);
                }
                for line in &section.lines {
                    let _ = writeln!(text, "#{line}");
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_named_as_transformers_names_them() {
        assert_eq!(class("my_model2"), "MyModel2ForCausalLM");
    }
}
