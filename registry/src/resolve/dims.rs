//! Dims: computed on demand, so that order does not matter, and cycles are found.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::config::Config;
use crate::diag::{Finding, Span};
use crate::eval::{self, Env, EvalError, EvalResult, Fuel};
use crate::scalar::Scalar;
use crate::spec::{Dim, DimSource, Spec};
use crate::suggest;
use crate::syntax::Ident;

use super::FindingSet;
use super::explain::explain;

/// A dim that was computed, and where from.
#[derive(Debug, Clone)]
struct ComputedDim {
    /// `None` if that failed; why was reported.
    value: Option<Scalar>,
    /// The config key it was read from.
    key: Option<String>,
    at: Span,
}

/// All dims of a spec.
#[derive(Debug, Default)]
pub(super) struct DimTable {
    known: BTreeMap<String, ComputedDim>,
    config: String,
}

impl DimTable {
    pub(super) fn resolve(
        spec: &Spec,
        config: &Config,
        fuel: &Fuel,
        report: &mut FindingSet,
    ) -> Self {
        let solver = Solver { spec, config, fuel, cells: RefCell::default() };
        for (name, dim) in &spec.dims {
            if let Err(EvalError::Finding(finding)) = solver.solve(name, dim) {
                report.add(*finding);
            }
        }
        let known = solver.cells.into_inner().into_iter().filter_map(|(name, cell)| match cell {
            DimCell::Computed(known) => Some((name, known)),
            DimCell::Pending => None,
        });
        let dims = Self { known: known.collect(), config: config.path().to_owned() };
        if dims.known.values().any(|known| known.value.is_none()) {
            report.failed = true;
        }
        dims
    }

    /// Dims as the environment of an expression outside any program.
    pub(super) fn env<'a>(&'a self, config: &'a Config, fuel: &'a Fuel) -> DimsEnv<'a> {
        DimsEnv { dims: self, config, fuel }
    }

    /// Returns every dim that has a value.
    pub(super) fn values(&self) -> BTreeMap<String, Scalar> {
        self.known
            .iter()
            .filter_map(|(name, known)| Some((name.clone(), known.value.clone()?)))
            .collect()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.known.keys().map(String::as_str)
    }

    /// Returns the value of a dim: none if there is no such dim, `Reported` if it failed.
    pub(super) fn get(&self, name: &str) -> Option<Result<&Scalar, EvalError>> {
        self.known.get(name).map(|known| known.value.as_ref().ok_or(EvalError::Reported))
    }

    /// Returns the config key that a dim was read from.
    pub(super) fn key(&self, name: &str) -> Option<&str> {
        self.known.get(name)?.key.as_deref()
    }

    /// Returns the number of layers, if there is a sound one.
    pub(super) fn layers(&self) -> Option<usize> {
        self.count("layers", super::MAX_LAYERS).ok().flatten()
    }

    /// Returns a dim as a count of at least 1; none if it is null or failed.
    pub(super) fn count(&self, name: &str, limit: usize) -> Result<Option<usize>, Finding> {
        let Some(known) = self.known.get(name) else { return Ok(None) };
        let what = match &known.key {
            Some(key) => format!("`{}`: the key `{key}`", self.config),
            None => format!("the dim `{name}`"),
        };
        match &known.value {
            None => Ok(None),
            Some(Scalar::Null) if name == "context" => Ok(None),
            Some(value) => match value.as_usize() {
                Some(count) if count > 0 && count <= limit => Ok(Some(count)),
                Some(count) => Err(Finding::error(&known.at, format!("{what} is {count}")).label(
                    if count == 0 {
                        "expected at least 1".to_owned()
                    } else {
                        format!("at most {limit} are allowed")
                    },
                )),
                None => {
                    let what_is = if matches!(value, Scalar::Int(_)) {
                        "out of range"
                    } else {
                        "not an integer"
                    };
                    Err(Finding::error(&known.at, format!("{what} is {what_is}"))
                        .label(eval::expected("an integer above 0", value)))
                }
            },
        }
    }
}

enum DimCell {
    Pending,
    Computed(ComputedDim),
}

struct Solver<'a> {
    spec: &'a Spec,
    config: &'a Config,
    fuel: &'a Fuel,
    cells: RefCell<BTreeMap<String, DimCell>>,
}

impl Solver<'_> {
    fn solve(&self, name: &str, dim: &Dim) -> Result<Scalar, EvalError> {
        match self.cells.borrow().get(name) {
            Some(DimCell::Computed(known)) => {
                return known.value.clone().ok_or(EvalError::Reported);
            }
            Some(DimCell::Pending) => {
                let open: Vec<String> = self
                    .cells
                    .borrow()
                    .iter()
                    .filter(|(_, cell)| matches!(cell, DimCell::Pending))
                    .map(|(name, _)| format!("`{name}`"))
                    .collect();
                return Err(Finding::error(
                    &dim.name.at,
                    format!("the dim `{name}` is computed from itself"),
                )
                .label(format!("by way of {}", open.join(", ")))
                .into());
            }
            None => {}
        }
        self.cells.borrow_mut().insert(name.to_owned(), DimCell::Pending);
        let result = read(&dim.name, &dim.sources, self).map_err(|fail| self.explain(fail, dim));
        let (value, key, at) = match &result {
            Ok(sourced) => (Some(sourced.value.clone()), sourced.key.clone(), sourced.at.clone()),
            Err(_) => (None, None, dim.name.at.clone()),
        };
        self.cells
            .borrow_mut()
            .insert(name.to_owned(), DimCell::Computed(ComputedDim { value, key, at }));
        result.map(|sourced| sourced.value)
    }
}

impl Solver<'_> {
    fn explain(&self, fail: EvalError, dim: &Dim) -> EvalError {
        match dim.sources.last() {
            Some(DimSource::Compute(expr)) => {
                explain(fail, expr, self.config, &|name: &str| self.key_and_value(name))
            }
            _ => fail,
        }
    }

    /// Returns the config key and the value of a dim that was read from a key.
    fn key_and_value(&self, name: &str) -> Option<(String, Scalar)> {
        match self.cells.borrow().get(name)? {
            DimCell::Computed(ComputedDim { value: Some(value), key: Some(key), .. }) => {
                Some((key.clone(), value.clone()))
            }
            _ => None,
        }
    }
}

impl Env for Solver<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        match self.spec.dims.get(&name.name) {
            Some(dim) => self.solve(&name.name, dim).map(Cow::Owned),
            None => {
                Err(unknown(name, self.spec.dims.keys().map(String::as_str), self.config).into())
            }
        }
    }

    fn config(&self) -> &Config {
        self.config
    }

    fn fuel(&self) -> &Fuel {
        self.fuel
    }
}

/// Dims, and nothing else.
pub(super) struct DimsEnv<'a> {
    dims: &'a DimTable,
    config: &'a Config,
    fuel: &'a Fuel,
}

impl Env for DimsEnv<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        match self.dims.get(&name.name) {
            Some(value) => value.map(Cow::Borrowed),
            None => Err(unknown(name, self.dims.names(), self.config).into()),
        }
    }

    fn config(&self) -> &Config {
        self.config
    }

    fn fuel(&self) -> &Fuel {
        self.fuel
    }
}

/// Creates the finding for a name that no dim has.
pub(super) fn unknown<'a>(
    name: &Ident,
    known: impl IntoIterator<Item = &'a str> + Clone,
    config: &Config,
) -> Finding {
    let mut finding =
        Finding::error(&name.at, format!("there is no dim or variable `{}`", name.name));
    finding.help = if config.peek(&name.name).is_some() {
        Some(format!("a key of `{}` is written `config('{}')`", config.path(), name.name))
    } else {
        suggest::help(&name.name, known)
    };
    finding
}

/// The value found by a list of alternatives.
pub(crate) struct SourcedScalar {
    pub(crate) value: Scalar,
    pub(crate) key: Option<String>,
    pub(crate) at: Span,
}

/// Returns the first alternative that is present and not null.
pub(crate) fn read(
    what: &Ident,
    sources: &[DimSource],
    env: &dyn Env,
) -> Result<SourcedScalar, EvalError> {
    let config = env.config();
    let mut sourced = None;
    for source in sources {
        match source {
            // Later keys are looked at too, so that none of them counts as unread.
            DimSource::Key(key) => match config.get(&key.name) {
                Some(value) if *value != Scalar::Null && sourced.is_none() => {
                    sourced = Some(SourcedScalar {
                        value: value.clone(),
                        key: Some(key.name.clone()),
                        at: key.at.clone(),
                    });
                }
                _ => {}
            },
            DimSource::Compute(expr) if sourced.is_none() => {
                let value = eval::eval_owned(expr, env)?;
                sourced = Some(SourcedScalar { value, key: None, at: expr.at.clone() });
            }
            DimSource::Compute(_) => {}
        }
    }
    sourced.ok_or_else(|| missing(what, sources, config).into())
}

fn missing(what: &Ident, sources: &[DimSource], config: &Config) -> Finding {
    let keys: Vec<&Ident> = sources
        .iter()
        .filter_map(|source| match source {
            DimSource::Key(key) => Some(key),
            DimSource::Compute(_) => None,
        })
        .collect();
    let listed: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
    let at = keys.first().map_or(&what.at, |key| &key.at);
    let null = keys.iter().find(|key| config.peek(&key.name) == Some(&Scalar::Null));
    let message = match null {
        Some(key) => format!("`{}`: the key `{}` is null", config.path(), key.name),
        None => format!("`{}` has no key {}", config.path(), listed.join(" or ")),
    };
    let names = config.keys();
    let close =
        keys.iter().find_map(|key| suggest::closest(&key.name, names.iter().map(String::as_str)));
    Finding::error(at, message).label(format!("`{}` is read from here", what.name)).help(
        match close {
            Some(close) => format!(
                "the config has `{close}`; or give a default: `[{}, = ...]`",
                key_list(&keys)
            ),
            None => format!("give a default: `[{}, = ...]`", key_list(&keys)),
        },
    )
}

fn key_list(keys: &[&Ident]) -> String {
    let names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
    names.join(", ")
}
