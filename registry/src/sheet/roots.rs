//! Names of expressions in sheets: facts, tables, settings and planned values by root.

use std::borrow::Cow;

use super::facts::{ModelFacts, map};
use crate::config::Config;
use crate::eval::{Env, EvalError, EvalResult, Fuel};
use crate::scalar::Scalar;
use crate::syntax::Ident;

/// Bytes of one number, by every name of a format that settings use.
const BYTES: [(&str, f64); 14] = [
    ("f32", 4.0),
    ("bf16", 2.0),
    ("f16", 2.0),
    ("float32", 4.0),
    ("bfloat16", 2.0),
    ("float16", 2.0),
    ("fp8", 1.0),
    ("fp8_e4m3", 1.0),
    ("fp8_e5m2", 1.0),
    ("fp8_inc", 1.0),
    ("int8_per_token_head", 1.0),
    ("fp8_per_token_head", 1.0),
    // Sixteen numbers of 4 bits share a scale of 8.
    ("nvfp4", 0.5625),
    ("q8_0", 1.0625),
];

/// Returns a number, as an integer if it is one.
fn number(x: f64) -> Scalar {
    if x.fract() == 0.0 { Scalar::Int(x as i64) } else { Scalar::Float(x) }
}

/// Names by root.
pub(super) struct FactRoots<'a> {
    facts: Vec<(String, Scalar)>,
    config: &'a Config,
    fuel: Fuel,
}

impl<'a> FactRoots<'a> {
    /// Creates the roots from the facts of a model and the bytes of formats.
    pub(super) fn new(facts: &ModelFacts, config: &'a Config) -> Self {
        let mut env = Self { facts: facts.0.clone(), config, fuel: Fuel::default() };
        env.set("bytes", map(BYTES.map(|(name, n)| (name, number(n)))));
        env
    }

    /// Gives a root another value.
    pub(super) fn set(&mut self, name: &str, value: Scalar) {
        match self.facts.iter_mut().find(|(root, _)| root == name) {
            Some(root) => root.1 = value,
            None => self.facts.push((name.to_owned(), value)),
        }
    }
}

impl Env for FactRoots<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        let entry = self.facts.iter().find(|(root, _)| *root == name.name);
        // Sheets are checked for unknown words: one that is not there is not there yet.
        entry.map(|(_, value)| Cow::Borrowed(value)).ok_or(EvalError::Reported)
    }

    fn config(&self) -> &Config {
        self.config
    }

    fn fuel(&self) -> &Fuel {
        &self.fuel
    }
}
