//! Rotary tables and layers as expressions of the `gguf:` section see them.

use std::borrow::Cow;

use crate::config::Config;
use crate::eval::{Env, EvalError, EvalResult, Fuel};
use crate::gguf::AHEAD;
use crate::resolve::ropes;
use crate::scalar::Scalar;
use crate::spec::Spec;
use crate::syntax::Ident;

/// The dims, each rotary table as a map of what it is made from, and `ahead`, the layers of a head.
pub(super) struct GgufEnv<'a> {
    dims: &'a dyn Env,
    ropes: Vec<(&'a str, Option<Scalar>)>,
    ahead: Scalar,
}

impl<'a> GgufEnv<'a> {
    pub(super) fn new(spec: &'a Spec, dims: &'a dyn Env, ahead: usize) -> Self {
        // A table that cannot be described was reported when it was computed.
        let ropes = spec.rope.iter();
        let ropes = ropes.map(|(name, decl)| (name.as_str(), ropes::describe(decl, dims).ok()));
        Self { dims, ropes: ropes.collect(), ahead: Scalar::Int(ahead as i64) }
    }
}

impl Env for GgufEnv<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        match self.ropes.iter().find(|(table, _)| *table == name.name) {
            Some((_, Some(table))) => Ok(Cow::Borrowed(table)),
            Some((_, None)) => Err(EvalError::Reported),
            None if name.name == AHEAD => Ok(Cow::Borrowed(&self.ahead)),
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

/// The dims, and the number of one layer under a name.
pub(super) struct LayerEnv<'a> {
    dims: &'a dyn Env,
    name: &'static str,
    number: Scalar,
}

impl<'a> LayerEnv<'a> {
    pub(super) fn new(dims: &'a dyn Env, name: &'static str, number: i64) -> Self {
        Self { dims, name, number: Scalar::Int(number) }
    }
}

impl Env for LayerEnv<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        if name.name == self.name {
            Ok(Cow::Borrowed(&self.number))
        } else {
            self.dims.lookup(name)
        }
    }

    fn config(&self) -> &Config {
        self.dims.config()
    }

    fn fuel(&self) -> &Fuel {
        self.dims.fuel()
    }
}
