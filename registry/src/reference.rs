//! The keys of a spec as help texts show them, made from the decoder's own table.

use crate::spec::keys::{KeyForm, KeyTable, SPEC};

/// A key that a spec may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyReference {
    /// The path from the top, `<name>` where the author chooses: `states.<name>.dtype`.
    pub path: String,
    /// True if a spec that extends nothing must have it.
    pub required: bool,
    /// The form of its value, in words.
    pub takes: &'static str,
    /// One line.
    pub doc: &'static str,
}

impl KeyReference {
    /// Returns the last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

/// Lists all keys in the order of the table, each before those below it.
pub fn keys() -> Vec<KeyReference> {
    let mut all = Vec::new();
    below(&SPEC, "", &mut all);
    all
}

fn below(table: &KeyTable, prefix: &str, all: &mut Vec<KeyReference>) {
    for key in table.keys {
        let path = format!("{prefix}{}", key.name);
        let doc = key.doc;
        let required = key.required;
        all.push(KeyReference { path: path.clone(), required, takes: words(key.form), doc });
        match key.form {
            KeyForm::Table(inner) | KeyForm::Tables(inner) => {
                below(inner, &format!("{path}."), all);
            }
            KeyForm::Names(KeyForm::Table(inner) | KeyForm::WordOr(inner)) => {
                below(inner, &format!("{path}.<name>."), all);
            }
            _ => {}
        }
    }
}

fn words(form: KeyForm) -> &'static str {
    match form {
        KeyForm::Version => "a number",
        KeyForm::Word => "a word",
        KeyForm::Words => "a word or a list of words",
        KeyForm::Sources => "a config key, `= expression`, or a list of them",
        KeyForm::Expr => "an expression",
        KeyForm::Exprs => "a list of expressions",
        KeyForm::Steps => "a step or a list of steps",
        KeyForm::Program => "a program",
        KeyForm::Names(KeyForm::Expr) => "names, each with an expression",
        KeyForm::Names(KeyForm::Sources) => "names, each with a config key or `= expression`",
        KeyForm::Names(KeyForm::Program) => "names, each with a program",
        KeyForm::Names(KeyForm::Word) => "names, each with a word",
        KeyForm::Names(_) => "names, each with a map",
        KeyForm::Table(_) => "a map",
        KeyForm::Tables(_) => "a list of maps",
        KeyForm::WordOr(_) => "a word or a map",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_with_those_below_them() {
        let keys = keys();
        assert!(
            key_at(&keys, "dims").doc.contains("config.json") && !key_at(&keys, "dims").required
        );
        assert!(key_at(&keys, "states.<name>.dtype").required);
        assert_eq!(key_at(&keys, "gguf.weights.<name>.when").name(), "when");
        assert_eq!(key_at(&keys, "layers.each").takes, "names, each with an expression");
    }

    fn key_at<'a>(keys: &'a [KeyReference], path: &str) -> &'a KeyReference {
        keys.iter().find(|key| key.path == path).unwrap()
    }
}
