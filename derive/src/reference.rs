//! Words of the reference library: classes of activations, and functions with a state that classes share.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// Words of the library that are ops as a whole.
#[derive(Debug, Deserialize)]
pub(crate) struct Reference {
    /// Ops of activation classes.
    pub(crate) activations: BTreeMap<String, String>,
    /// Functions by name.
    pub(crate) functions: BTreeMap<String, Function>,
    /// Other names of parameters.
    pub(crate) synonyms: BTreeMap<String, String>,
}

/// A function of the library that is an op, with the names of its arguments in order.
#[derive(Debug, Deserialize)]
pub(crate) struct Function {
    pub(crate) op: String,
    pub(crate) parameters: Vec<String>,
}

/// The words, read once.
pub(crate) static REFERENCE: LazyLock<Reference> = LazyLock::new(|| {
    serde_json::from_str(include_str!("reference.json")).expect("a test reads the file")
});

#[cfg(test)]
mod tests {
    use super::REFERENCE;

    #[test]
    fn the_words_are_readable() {
        assert!(REFERENCE.functions.values().all(|function| !function.parameters.is_empty()));
        assert!(!REFERENCE.activations.is_empty());
    }
}
