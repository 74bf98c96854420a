//! Engine sheets: facts about an engine, and the rules for launching a model on it.
//!
//! A sheet is `registry/engines/NAME.yaml`. Its expressions are those of specs, over facts of the
//! model, the settings of the launch, and the sheet's own tables (docs/launch.md). This module
//! reads and checks sheets; [`apply`] evaluates the rules for one model.
//!
//! A rule quotes its source ([decision 47](../../docs/decisions/0047-engine-rules-with-quotes.md)).

use std::sync::Arc;

use indexmap::IndexMap;

use crate::diag::{Finding, SourceText};
use crate::listing::beginning;
use crate::scalar::Scalar;
use crate::suggest;
use crate::syntax::{Expr, Ident};

pub mod apply;
pub mod config_keys;
pub mod facts;
pub mod gpus;
pub mod versions;

mod decode;
mod lint;
mod roots;
mod settings;
mod template;

pub use decode::CAPABILITY;
pub use settings::SettingError;
pub use template::{SheetText, shown};
use versions::VersionRange;

/// The sheet of one engine, as far as launching goes.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// The engine's name.
    pub engine: String,
    /// Files of a package that runs a model under the name of a known architecture, by path.
    pub alias: IndexMap<String, String>,
    /// The package whose versions count.
    pub package: Option<String>,
    /// Versions that the sheet is true for.
    pub versions: Option<VersionRange>,
    /// The version that its facts were read from.
    pub checked: Option<String>,
    /// The container image, `{}` standing for the version.
    pub image: Option<String>,
    /// The words that start the engine; none if it cannot be launched.
    pub command: Vec<String>,
    /// The flag before the model; empty where the model stands alone.
    pub model_flag: String,
    /// The port it listens on.
    pub port: Option<u16>,
    /// Settings by name.
    pub settings: IndexMap<String, EngineSetting>,
    /// Named lists of the engine.
    pub tables: IndexMap<String, Vec<String>>,
    /// Values worked out one after another.
    pub plan: Vec<MemoryTerm>,
    /// Rules, in order.
    pub rules: Vec<SheetRule>,
    /// Config keys that the engine reads and newer writers leave out.
    pub config_keys: Vec<ConfigKey>,
    /// Places at which a running server reports the settings in force.
    pub reports: Vec<SettingsReport>,
}

/// A setting of a launch.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSetting {
    /// The name in the sheet and behind `--set`.
    pub name: Ident,
    /// The flag that passes it.
    pub flag: Option<String>,
    /// The flag that passes `false`, for a switch.
    pub off: Option<String>,
    /// The environment variable that passes it.
    pub env: Option<String>,
    /// The default value.
    pub default: Scalar,
    /// The kind of value.
    pub kind: SettingKind,
    /// Allowed texts; empty if any will do.
    pub choices: Vec<String>,
    /// The engine's spelling of values, by ours.
    pub values: IndexMap<String, String>,
    /// The source.
    pub source: Option<SourceReference>,
    /// The reason to pass the setting, for a value that only the user asked for.
    pub about: String,
}

/// The kinds of value that a setting has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// An integer.
    Int,
    /// Any number.
    Number,
    /// A text.
    Text,
    /// On or off.
    Switch,
}

/// A place in the engine's sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceReference {
    /// `FILE:LINE`, or `FILE:NAME`.
    pub place: String,
    /// A part of the text at that place.
    pub quote: Option<String>,
}

/// A rule of a sheet.
#[derive(Debug, Clone)]
pub struct SheetRule {
    /// The name.
    pub id: Ident,
    /// The condition under which the rule holds; always, if there is none.
    pub when: Option<Expr>,
    /// Versions of the engine that it is for; all of the sheet's, if it has none of its own.
    pub versions: Option<VersionRange>,
    /// The consequence.
    pub then: RuleAction,
    /// The source.
    pub source: SourceReference,
}

/// Consequence of a rule.
#[derive(Debug, Clone)]
pub enum RuleAction {
    /// Settings that must have these values: one that was asked for otherwise is a refusal.
    Set(Vec<(Ident, Expr)>, SheetText),
    /// Settings that get these values where nothing was asked for.
    Default(Vec<(Ident, Expr)>, SheetText),
    /// The launch is possible, but not what was expected.
    Warn(SheetText),
    /// The launch is impossible or wrong.
    Refuse(SheetText),
    /// Something worth knowing that follows.
    Fact(SheetText),
}

/// A value of the memory plan.
#[derive(Debug, Clone)]
pub struct MemoryTerm {
    /// The name by which later ones read it: `plan.NAME`.
    pub name: Ident,
    /// The condition under which the value exists; always, if there is none.
    pub when: Option<Expr>,
    /// The figure.
    pub value: Expr,
    /// The unit: `bytes`, `tokens`, `share`, ...
    pub unit: String,
    /// The meaning.
    pub why: SheetText,
    /// Source of the formula.
    pub source: SourceReference,
    /// True for a number that no source gives.
    pub assumed: bool,
}

/// A config key for readers that know no newer form.
#[derive(Debug, Clone)]
pub struct ConfigKey {
    /// The key.
    pub key: Ident,
    /// The condition under which the key is written; always, if there is none.
    pub when: Option<Expr>,
    /// The value.
    pub value: Expr,
    /// The place in the engine's sources that reads the key.
    pub source: SourceReference,
    /// The sheet.
    pub engine: String,
}

/// An address at which a server reports its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingsReport {
    /// The path, `/server_info`.
    pub path: String,
    /// Settings (or `version`, `class`, `model`) and where they stand in the answer.
    pub fields: IndexMap<String, String>,
    /// True if a server may not have it.
    pub optional: bool,
    /// The source.
    pub source: Option<SourceReference>,
}

impl Sheet {
    /// Reads a sheet, or returns everything that is wrong with it.
    pub fn read(source: &Arc<SourceText>) -> Result<Self, Vec<Finding>> {
        let tree = crate::yaml::read(source)?;
        let (sheet, mut findings) = decode::decode(&tree);
        findings.extend(lint::lint(&sheet));
        if findings.is_empty() { Ok(sheet) } else { Err(findings) }
    }

    /// Returns the setting of a name, or the finding that there is none.
    pub(crate) fn setting(&self, name: &Ident) -> Result<&EngineSetting, Finding> {
        self.settings.get(&name.name).ok_or_else(|| {
            let mut finding = Finding::error(
                &name.at,
                format!(
                    "sheet `{}` has no setting `{}`",
                    beginning(&self.engine),
                    beginning(&name.name)
                ),
            );
            finding.help = suggest::help(&name.name, self.settings.keys().map(String::as_str));
            finding
        })
    }
}

/// Returns the sheets that the program embeds, by file name without its end.
pub fn builtin() -> impl Iterator<Item = (&'static str, Arc<SourceText>)> {
    crate::builtin::SHEETS.iter().map(|(path, text)| {
        let name = path.rsplit('/').next().and_then(|name| name.strip_suffix(".yaml"));
        let source = SourceText { path: (*path).to_owned(), text: (*text).to_owned() };
        (name.unwrap_or(path), Arc::new(source))
    })
}

/// Returns the keys that a sheet may have.
pub fn known_keys() -> Vec<&'static str> {
    decode::KEYS.iter().chain(&CAPABILITY).copied().collect()
}

#[cfg(test)]
pub(crate) mod tests;
