//! The keys of a spec as help texts show them, made from the decoder's own table.

use crate::spec::keys::{Form, SPEC, Table};

/// A key that a spec may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The path from the top, `<name>` where the author chooses: `states.<name>.dtype`.
    pub path: String,
    /// True if a spec that extends nothing must have it.
    pub required: bool,
    /// The form of its value, in words.
    pub takes: &'static str,
    /// One line.
    pub doc: &'static str,
}

impl Key {
    /// Returns the last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

/// Lists all keys in the order of the table, each before those below it.
pub fn keys() -> Vec<Key> {
    let mut all = Vec::new();
    below(&SPEC, "", &mut all);
    all
}

fn below(table: &Table, prefix: &str, all: &mut Vec<Key>) {
    for key in table.keys {
        let path = format!("{prefix}{}", key.name);
        let (doc, required) = (key.doc, key.required);
        all.push(Key { path: path.clone(), required, takes: words(key.form), doc });
        match key.form {
            Form::Table(inner) | Form::Tables(inner) => below(inner, &format!("{path}."), all),
            Form::Names(Form::Table(inner) | Form::WordOr(inner)) => {
                below(inner, &format!("{path}.<name>."), all);
            }
            _ => {}
        }
    }
}

fn words(form: Form) -> &'static str {
    match form {
        Form::Version => "a number",
        Form::Word => "a word",
        Form::Words => "a word or a list of words",
        Form::Sources => "a config key, `= expression`, or a list of them",
        Form::Expr => "an expression",
        Form::Exprs => "a list of expressions",
        Form::Steps => "a step or a list of steps",
        Form::Program => "a program",
        Form::Names(Form::Expr) => "names, each with an expression",
        Form::Names(Form::Sources) => "names, each with a config key or `= expression`",
        Form::Names(Form::Program) => "names, each with a program",
        Form::Names(Form::Word) => "names, each with a word",
        Form::Names(_) => "names, each with a map",
        Form::Table(_) => "a map",
        Form::Tables(_) => "a list of maps",
        Form::WordOr(_) => "a word or a map",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_with_those_below_them() {
        let keys = keys();
        let key = |path: &str| keys.iter().find(|key| key.path == path).unwrap();
        assert!(key("dims").doc.contains("config.json") && !key("dims").required);
        assert!(key("states.<name>.dtype").required);
        assert_eq!(key("gguf.weights.<name>.when").name(), "when");
        assert_eq!(key("layers.each").takes, "names, each with an expression");
    }
}
