//! Values of settings: read from the command line, and spelled as the engine does.

use super::{EngineSetting, SettingKind};
use crate::listing::beginning;
use crate::scalar::Scalar;
use crate::suggest;

/// Reason that a setting cannot have a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum SettingError {
    #[error("setting `{name}` is given `{found}`; expected {}", expected.name())]
    Kind { name: String, found: String, expected: SettingKind },
    #[error("setting `{name}` has no value `{found}`{}", help.as_ref().map(|help| format!("; {help}")).unwrap_or_default())]
    Choice { name: String, found: String, help: Option<String> },
}

impl EngineSetting {
    /// Reads a value as `--set` gives it, or returns the reason that it is invalid.
    pub fn read(&self, text: &str) -> Result<Scalar, SettingError> {
        let value = match self.kind {
            SettingKind::Int => text.parse().ok().map(Scalar::Int),
            SettingKind::Number => {
                text.parse().ok().filter(|x: &f64| x.is_finite()).map(Scalar::Float)
            }
            SettingKind::Text => Some(Scalar::Str(text.to_owned())),
            SettingKind::Switch => text.parse().ok().map(Scalar::Bool),
        };
        let Some(value) = value else {
            let name = beginning(&self.name.name);
            return Err(SettingError::Kind { name, found: beginning(text), expected: self.kind });
        };
        self.allows(&value).map(|()| value)
    }

    /// Refuses a value that the engine does not know.
    pub fn allows(&self, value: &Scalar) -> Result<(), SettingError> {
        let Scalar::Str(text) = value else { return Ok(()) };
        let known = self.choices.contains(text) || self.values.contains_key(text);
        if (self.choices.is_empty() && self.values.is_empty()) || known {
            return Ok(());
        }
        let all = self.values.keys().chain(&self.choices).map(String::as_str);
        let name = beginning(&self.name.name);
        let help = suggest::help(text, all);
        Err(SettingError::Choice { name, found: beginning(text), help })
    }

    /// Formats a value as the engine spells it.
    pub fn spell(&self, value: &Scalar) -> String {
        match value {
            Scalar::Str(text) => self.values.get(text).unwrap_or(text).clone(),
            other => other.to_string(),
        }
    }

    /// Returns the words that pass a value on a command line; none if it is passed otherwise.
    pub fn words(&self, value: &Scalar) -> Vec<String> {
        match (&self.flag, value) {
            (Some(flag), Scalar::Bool(true)) => vec![flag.clone()],
            (_, Scalar::Bool(false)) => self.off.clone().into_iter().collect(),
            (Some(flag), value) => vec![flag.clone(), self.spell(value)],
            (None, _) => Vec::new(),
        }
    }

    /// True if the engine can be given the setting at all.
    pub fn passes(&self) -> bool {
        self.flag.is_some() || self.env.is_some() || self.off.is_some()
    }
}

impl SettingKind {
    /// Reads the word of a sheet.
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "int" => Some(Self::Int),
            "number" => Some(Self::Number),
            "text" => Some(Self::Text),
            "switch" => Some(Self::Switch),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Int => "an integer",
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Switch => "`true` or `false`",
        }
    }
}
