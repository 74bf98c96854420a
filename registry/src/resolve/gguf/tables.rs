//! Rotary tables as expressions of the `gguf:` section see them.

use std::borrow::Cow;

use crate::config::Config;
use crate::eval::{Env, Evaluated, Fail, Fuel};
use crate::rope_resolve;
use crate::scalar::Scalar;
use crate::spec::Spec;
use crate::syntax::Ident;

/// The dims, and each rotary table as a map of what it is made from.
pub(super) struct Tables<'a> {
    dims: &'a dyn Env,
    tables: Vec<(&'a str, Option<Scalar>)>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(spec: &'a Spec, dims: &'a dyn Env) -> Self {
        // A table that cannot be described was reported when it was computed.
        let described = |decl| rope_resolve::describe(decl, dims).ok();
        let tables = spec.rope.iter().map(|(name, decl)| (name.as_str(), described(decl)));
        Self { dims, tables: tables.collect() }
    }
}

impl Env for Tables<'_> {
    fn lookup(&self, name: &Ident) -> Evaluated<'_> {
        match self.tables.iter().find(|(table, _)| *table == name.name) {
            Some((_, Some(table))) => Ok(Cow::Borrowed(table)),
            Some((_, None)) => Err(Fail::Reported),
            None => self.dims.lookup(name),
        }
    }

    fn config(&self) -> &Config {
        self.dims.config()
    }

    fn fuel(&self) -> &Fuel {
        self.dims.fuel()
    }
}
