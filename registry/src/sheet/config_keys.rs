//! Config keys that engines read and newer writers of configs leave out.

use super::facts::ModelFacts;
use super::roots::FactRoots;
use super::{ConfigKey, Sheet, SourceReference};
use crate::config::Config;
use crate::diag::Finding;
use crate::eval::{EvalError, eval, eval_owned, truth};
use crate::scalar::Scalar;

/// A key to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct AddedKey {
    /// The key, at the top of the config.
    pub key: String,
    /// The value.
    pub value: Scalar,
    /// The engine that reads it.
    pub engine: String,
    /// Source of the rule.
    pub source: SourceReference,
}

/// Lists the keys that a config lacks, by the sheets. A key that is there is left alone, also one
/// that is null.
pub fn lacking(
    sheets: &[Sheet],
    facts: &ModelFacts,
    config: &Config,
) -> Result<Vec<AddedKey>, Vec<Finding>> {
    let env = FactRoots::new(facts, config);
    let mut added: Vec<AddedKey> = Vec::new();
    let mut findings = Vec::new();
    for key in sheets.iter().flat_map(|sheet| &sheet.config_keys) {
        let value = match value_of(key, &env) {
            Ok(Some(value)) => value,
            Ok(None) | Err(EvalError::Reported) => continue,
            Err(EvalError::Finding(finding)) => {
                findings.push(*finding);
                continue;
            }
        };
        if value == Scalar::Null || config.peek(&key.key.name).is_some() {
            continue;
        }
        match added.iter().find(|other| other.key == key.key.name) {
            Some(other) if other.value != value => {
                let message = format!(
                    "`{}` is {value} for `{}`, and {} for `{}`",
                    key.key.name, key.engine, other.value, other.engine
                );
                findings.push(Finding::error(&key.key.at, message));
            }
            Some(_) => {}
            None => added.push(AddedKey {
                key: key.key.name.clone(),
                value,
                engine: key.engine.clone(),
                source: key.source.clone(),
            }),
        }
    }
    if findings.is_empty() { Ok(added) } else { Err(findings) }
}

/// Evaluates the value of a key; none if its condition does not hold.
fn value_of(key: &ConfigKey, env: &FactRoots<'_>) -> Result<Option<Scalar>, EvalError> {
    if let Some(when) = &key.when
        && !truth(&*eval(when, env)?)
    {
        return Ok(None);
    }
    eval_owned(&key.value, env).map(Some)
}
