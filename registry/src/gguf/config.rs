//! The `config.json` that a file's keys tell of: the spec's `gguf: metadata:` read backwards.
//!
//! A key whose value is one dim, or one entry of a rotary table, gives back the config key that
//! this is read from. What is said in another way (a list of layer types as the number of heads
//! of each) stands in `gguf: config:`, as expressions over the file. Nothing here is believed: the
//! model that comes out must give the file's keys, tensors and shapes ([`differences`](super::differences)).

use super::absent::with_absent_keys;
use super::file_metadata::{FileMetadata, MetadataEnv, set};
use crate::config::Config;
use crate::diag::{Finding, Severity};
use crate::eval::{self, EvalError, Fuel};
use crate::scalar::Scalar;
use crate::spec::{DimSource, GgufDecl, Spec};
use crate::syntax::{BinaryOp, Expr, ExprKind, Ident};

/// True if a spec's files may carry this `general.architecture`.
pub fn may_have_arch(spec: &Spec, arch: &str) -> bool {
    match spec.gguf.as_ref().and_then(|decl| decl.arch.as_ref()) {
        Some(DimSource::Key(word)) => word.name == arch,
        // Which one depends on the config.
        Some(DimSource::Compute(expr)) => mentions(expr, arch),
        None => false,
    }
}

fn mentions(expr: &Expr, text: &str) -> bool {
    match &expr.kind {
        ExprKind::Str(word) => word == text,
        ExprKind::If { then, otherwise, .. } => mentions(then, text) || mentions(otherwise, text),
        _ => false,
    }
}

/// Returns the config of the model of a file, as far as the file determines it.
pub fn config_of(spec: &Spec, header: &FileMetadata) -> Result<Config, Vec<Finding>> {
    let Some(decl) = &spec.gguf else { return Err(Vec::new()) };
    let header = &with_absent_keys(&decl.absent, &super::head::without_head(header)).header;
    let mut reader = ConfigInverter { spec, entries: Vec::new() };
    let architecture = spec.matches.iter().map(|word| Scalar::Str(word.name.clone())).take(1);
    reader.put("architectures", Scalar::List(architecture.collect()));
    for entry in decl.metadata.values() {
        if let Some(value) = header.keys.peek(&entry.name.name).filter(|v| **v != Scalar::Null) {
            reader.invert(&entry.value, value);
        }
    }
    // Not every architecture has a key for it.
    if let Some(Scalar::List(shape)) = header.keys.peek("shapes.token_embd.weight")
        && let Some(dim) = spec.dims.get("input_vocab").or_else(|| spec.dims.get("vocab"))
        && let Some(rows) = shape.first()
    {
        reader.dim(&dim.name, rows);
    }
    let findings = explicit(decl, header, &mut reader.entries);
    let path = header.keys.path();
    if findings.is_empty() {
        Ok(Config::of(path, Scalar::Map(reader.entries)))
    } else {
        Err(findings)
    }
}

/// Evaluates `gguf: config:`, whose values win over keys that were read backwards.
fn explicit(
    decl: &GgufDecl,
    header: &FileMetadata,
    entries: &mut Vec<(String, Scalar)>,
) -> Vec<Finding> {
    let fuel = Fuel::default();
    let env = MetadataEnv { keys: &header.keys, fuel: &fuel };
    let mut findings = Vec::new();
    for entry in decl.config.values() {
        match eval::eval_owned(&entry.value, &env) {
            Ok(value) => set(entries, &entry.name.name, value, true),
            Err(EvalError::Finding(finding)) => findings.push(*finding),
            Err(EvalError::Reported) => {}
        }
    }
    findings
}

/// The name that the `gguf:` section gives the number of the head's layers in the file.
pub(crate) const AHEAD: &str = "ahead";

struct ConfigInverter<'a> {
    spec: &'a Spec,
    entries: Vec<(String, Scalar)>,
}

impl ConfigInverter<'_> {
    fn put(&mut self, key: &str, value: Scalar) {
        set(&mut self.entries, key, value, false);
    }

    /// Finds the config key that an expression is the value of; a computed one has none.
    fn invert(&mut self, expr: &Expr, value: &Scalar) {
        match &expr.kind {
            ExprKind::Path(names) => match names.as_slice() {
                [dim] => self.dim(dim, value),
                [table, entry] => self.table(table, entry, value),
                _ => {}
            },
            ExprKind::Call(name, args) => match (name.name.as_str(), args.as_slice()) {
                ("float", [arg]) => self.invert(&arg.value, value),
                ("config", [arg, ..]) => {
                    if let ExprKind::Str(key) = &arg.value.kind {
                        self.put(key, value.clone());
                    }
                }
                _ => {}
            },
            ExprKind::If { then, otherwise, .. } if otherwise.kind == ExprKind::Null => {
                self.invert(then, value);
            }
            ExprKind::Binary(BinaryOp::Or, first, _) => self.invert(first, value),
            // The layers of a head were taken off.
            ExprKind::Binary(BinaryOp::Add, first, second) if is_ahead(second) => {
                self.invert(first, value);
            }
            _ => {}
        }
    }

    fn dim(&mut self, name: &Ident, value: &Scalar) {
        match self.spec.dims.get(&name.name).and_then(|dim| dim.sources.first()) {
            Some(DimSource::Key(key)) => self.put(&key.name, value.clone()),
            Some(DimSource::Compute(expr)) if matches!(expr.kind, ExprKind::Path(_)) => {
                self.invert(expr, value);
            }
            _ => {}
        }
    }

    fn table(&mut self, table: &Ident, entry: &Ident, value: &Scalar) {
        let Some(decl) = self.spec.rope.get(&table.name) else { return };
        let key = match entry.name.as_str() {
            "theta" => first_key(&decl.theta),
            // It follows from the size of a head and the rotated part of it.
            "dim" => None,
            name => first_key(&decl.parameters).map(|parameters| {
                let name = match name {
                    "kind" => "rope_type",
                    "original" => "original_max_position_embeddings",
                    name => name,
                };
                format!("{parameters}.{name}")
            }),
        };
        if let Some(key) = key {
            self.put(&key, value.clone());
        }
    }
}

/// Returns the config key that a value is read from first; none if it is computed.
fn first_key(sources: &[DimSource]) -> Option<String> {
    match sources.first() {
        Some(DimSource::Key(key)) => Some(key.name.clone()),
        _ => None,
    }
}

fn is_ahead(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Path(names) if names.len() == 1 && names[0].name == AHEAD)
}

/// Returns the findings that are errors, as text.
pub(crate) fn errors(findings: &[Finding]) -> Vec<String> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    errors
        .map(|finding| format!("{} {}", finding.message, finding.label).trim().to_owned())
        .collect()
}

/// Dotted keys as a tree.
#[derive(Debug, Default)]
pub struct KeyTree(Vec<(String, Scalar)>);

impl KeyTree {
    /// Adds a key; a second one of the same name, or one below a value, is left out.
    pub fn add(&mut self, key: &str, value: Scalar) {
        set(&mut self.0, key, value, false);
    }

    /// Returns the keys as expressions read them.
    pub fn into_config(self, path: &str) -> Config {
        Config::of(path, Scalar::Map(self.0))
    }
}
