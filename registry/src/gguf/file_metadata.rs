//! Metadata of a GGUF file, as expressions read it.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::diag::Finding;
use crate::eval::{Env, EvalResult, Fuel};
use crate::scalar::Scalar;
use crate::syntax::Ident;

/// The metadata and tensors of a file, as expressions of `gguf: config:` read them.
#[derive(Debug, Clone)]
pub struct FileMetadata {
    /// Keys below the architecture's name, the shapes of tensors below `shapes`, and the numbers of
    /// small tensors of one axis below `numbers`.
    pub keys: Config,
    /// The tensors of the file and their shapes.
    pub tensors: BTreeMap<String, Vec<usize>>,
    /// Tensors that may accompany a tensor of a type that needs them; the model need not use them.
    pub companions: BTreeSet<String>,
}

pub(super) struct MetadataEnv<'a> {
    pub(super) keys: &'a Config,
    pub(super) fuel: &'a Fuel,
}

impl Env for MetadataEnv<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        Err(Finding::error(&name.at, format!("`{}` is not known here", name.name))
            .help("expressions of `gguf: config:` read the file: `config('attention.head_count')`")
            .into())
    }

    fn config(&self) -> &Config {
        self.keys
    }

    fn fuel(&self) -> &Fuel {
        self.fuel
    }
}

/// Sets a dotted key; `over` replaces what is there.
pub(super) fn set(entries: &mut Vec<(String, Scalar)>, key: &str, value: Scalar, over: bool) {
    let (first, suffix) = match key.split_once('.') {
        Some((first, suffix)) => (first, Some(suffix)),
        None => (key, None),
    };
    let place = entries.iter().position(|(name, _)| name == first);
    match (suffix, place) {
        (None, Some(place)) if over => entries[place].1 = value,
        (None, Some(_)) => {}
        (None, None) => entries.push((first.to_owned(), value)),
        (Some(suffix), Some(place)) => {
            if let Scalar::Map(inner) = &mut entries[place].1 {
                set(inner, suffix, value, over);
            }
        }
        (Some(suffix), None) => {
            let mut inner = Vec::new();
            set(&mut inner, suffix, value, over);
            entries.push((first.to_owned(), Scalar::Map(inner)));
        }
    }
}
