//! Meaning of names inside a program.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::config::Config;
use crate::diag::{Finding, Span};
use crate::eval::{Env, EvalError, EvalResult, Fuel};
use crate::graph::ValueId;
use crate::scalar::Scalar;
use crate::syntax::Ident;

use super::dims::{self, DimTable};
use super::{LayerScalars, Resolver};

/// The meaning of an expression in a program.
#[derive(Debug, Clone)]
pub(super) enum Binding {
    /// A value of the graph.
    Value(ValueId),
    /// The results of an op or a function with several results.
    Values(Vec<Self>),
    /// A number, a text, a list.
    Scalar(Scalar),
    /// A name that no variable has. The parameter that receives it decides between a weight path, a dim, a
    /// state and a rotary table.
    Name(Ident),
    /// The result of something faulty that was reported.
    Poison,
}

/// The first character of a path that layers do not prefix; no name can begin with it.
pub(super) const ABSOLUTE: char = '/';

/// The variables of a program, and what the layer adds to the dims.
pub(super) struct Scope<'a> {
    pub(super) locals: BTreeMap<String, Binding>,
    pub(super) each: &'a LayerScalars,
    /// The prefix of weight paths, empty outside layers.
    pub(super) prefix: &'a str,
}

impl Scope<'_> {
    /// Creates the scope of a function that is called from here.
    pub(super) fn inner(&self, locals: BTreeMap<String, Binding>) -> Self {
        Self { locals, each: self.each, prefix: self.prefix }
    }

    /// Resolves a path: a variable if there is one, else a name for later.
    pub(super) fn path(&self, names: &[Ident], at: &Span) -> Binding {
        let Some(first) = names.first() else { return Binding::Poison };
        match self.locals.get(&first.name) {
            // Findings point to where the path was written, not to where it was passed on.
            Some(bound @ Binding::Name(_)) if names.len() == 1 => bound.clone(),
            Some(Binding::Name(path)) => joined(&path.name, names, at),
            Some(bound) if names.len() == 1 => bound.clone(),
            // A text is a path of its own, whatever layer this is.
            Some(Binding::Scalar(Scalar::Str(text))) => {
                joined(&format!("{ABSOLUTE}{text}"), names, at)
            }
            _ => joined(&first.name, names, at),
        }
    }
}

/// The environment of scalar expressions in a program.
pub(super) struct ProgramEnv<'a> {
    pub(super) scope: &'a Scope<'a>,
    pub(super) dims: &'a DimTable,
    pub(super) config: &'a Config,
    pub(super) fuel: &'a Fuel,
}

impl ProgramEnv<'_> {
    /// Returns a dim, or a scalar of the layer.
    pub(super) fn global(&self, name: &Ident) -> EvalResult<'_> {
        if let Some(value) = self.scope.each.get(&name.name) {
            return value.as_ref().map(Cow::Borrowed).ok_or(EvalError::Reported);
        }
        if let Some(value) = self.dims.get(&name.name) {
            return value.map(Cow::Borrowed);
        }
        let locals = self.scope.locals.keys().map(String::as_str);
        let each = self.scope.each.keys().map(String::as_str);
        let known = locals.chain(each).chain(self.dims.names());
        Err(dims::unknown(name, known, self.config).into())
    }
}

impl Env for ProgramEnv<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        match self.scope.locals.get(&name.name) {
            Some(Binding::Scalar(value)) => Ok(Cow::Borrowed(value)),
            Some(Binding::Name(path)) if !path.name.contains('.') => self.global(path),
            Some(Binding::Name(path)) => Err(Finding::error(
                &name.at,
                format!("`{}` is the path `{}` here, expected a number", name.name, path.name),
            )
            .into()),
            Some(Binding::Value(_)) => Err(not_static(&name.at, &name.name).into()),
            Some(Binding::Values(_)) => {
                Err(Finding::error(&name.at, format!("`{}` is several values", name.name)).into())
            }
            Some(Binding::Poison) => Err(EvalError::Reported),
            None => self.global(name),
        }
    }

    fn config(&self) -> &Config {
        self.config
    }

    fn fuel(&self) -> &Fuel {
        self.fuel
    }
}

fn not_static(at: &Span, name: &str) -> Finding {
    Finding::error(at, format!("`{name}` is a value, known only when the model runs"))
        .label("expected a number or a text that follows from the config")
}

impl Resolver<'_> {
    pub(super) fn env<'e>(&'e self, scope: &'e Scope<'e>) -> ProgramEnv<'e> {
        ProgramEnv { scope, dims: self.dims, config: self.config, fuel: self.fuel }
    }
}

/// Returns the path of `names` with another first segment.
fn joined(first: &str, names: &[Ident], at: &Span) -> Binding {
    let members = names.iter().skip(1).map(|name| name.name.as_str());
    let path: Vec<&str> = std::iter::once(first).chain(members).collect();
    Binding::Name(Ident { name: path.join("."), at: at.clone() })
}
