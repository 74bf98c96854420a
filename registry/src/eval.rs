//! Evaluates expressions over scalars, with Python's meaning.
//!
//! Nothing here can run away: every step costs fuel, lists and texts are
//! capped, integers are checked, and results that are not finite are
//! findings rather than values.

use std::borrow::Cow;
use std::cell::Cell;

use crate::config::Config;
use crate::diag::{Finding, Span};
use crate::listing::beginning;
use crate::scalar::Scalar;
use crate::suggest;
use crate::syntax::{Arg, BinaryOp, Expr, ExprKind, Ident};

mod functions;
mod operators;

pub use functions::NAMES as FUNCTIONS;
pub use operators::{binary, index, slice, truth, unary};

/// The longest list or text an expression can make.
pub const MAX_ITEMS: usize = 65_536;

/// The reason that an expression has no value.
#[derive(Debug, Clone, PartialEq)]
pub enum EvalError {
    /// A fault that was not reported yet.
    Finding(Box<Finding>),
    /// A consequence of a fault that was reported already.
    Reported,
}

impl From<Finding> for EvalError {
    fn from(finding: Finding) -> Self {
        Self::Finding(Box::new(finding))
    }
}

/// The result of evaluation: a value that may be borrowed from the environment.
pub type EvalResult<'e> = Result<Cow<'e, Scalar>, EvalError>;

/// The meaning of names and config keys at the place of an expression.
pub trait Env {
    /// Returns the value of a name.
    fn lookup(&self, name: &Ident) -> EvalResult<'_>;
    /// Returns the config that `config('key')` reads.
    fn config(&self) -> &Config;
    /// Returns the remaining budget of evaluation.
    fn fuel(&self) -> &Fuel;
}

/// A budget of steps and of depth.
#[derive(Debug)]
pub struct Fuel {
    steps: Cell<u64>,
    depth: Cell<usize>,
}

impl Default for Fuel {
    fn default() -> Self {
        Self::new(50_000_000)
    }
}

impl Fuel {
    /// The deepest nesting of expressions.
    const MAX_DEPTH: usize = 512;

    /// Creates a budget of this many steps.
    pub fn new(steps: u64) -> Self {
        Self { steps: Cell::new(steps), depth: Cell::new(0) }
    }

    /// Spends some; a finding when it is gone.
    pub fn spend(&self, at: &Span, steps: usize) -> Result<(), Finding> {
        let left = self.steps.get().checked_sub(steps as u64);
        self.steps.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or_else(|| {
            Finding::error(at, "the spec computes for too long")
                .help("beginning the lists, or nest fewer of them")
        })
    }

    pub(crate) fn deeper<T>(
        &self,
        at: &Span,
        body: impl FnOnce() -> Result<T, EvalError>,
    ) -> Result<T, EvalError> {
        let depth = self.depth.get();
        if depth >= Self::MAX_DEPTH {
            return Err(Finding::error(at, "the expression is nested too deeply").into());
        }
        self.depth.set(depth + 1);
        let result = body();
        self.depth.set(depth);
        result
    }
}

/// Evaluates an expression.
pub fn eval<'e>(expr: &Expr, env: &'e dyn Env) -> EvalResult<'e> {
    env.fuel().spend(&expr.at, 1)?;
    env.fuel().deeper(&expr.at, || step(expr, env))
}

/// Evaluates an expression to a value of its own.
pub fn eval_owned(expr: &Expr, env: &dyn Env) -> Result<Scalar, EvalError> {
    eval(expr, env).map(Cow::into_owned)
}

fn step<'e>(expr: &Expr, env: &'e dyn Env) -> EvalResult<'e> {
    let at = &expr.at;
    let value = match &expr.kind {
        ExprKind::Null => Scalar::Null,
        ExprKind::Bool(b) => Scalar::Bool(*b),
        ExprKind::Int(n) => Scalar::Int(*n),
        ExprKind::Float(x) => Scalar::Float(*x),
        ExprKind::Str(s) => Scalar::Str(s.clone()),
        ExprKind::Path(names) => return path(names, at, env),
        ExprKind::Index(base, key) => {
            let base = eval(base, env)?;
            index(&base, &*eval(key, env)?, at)?
        }
        ExprKind::Slice(base, from, to) => {
            let base = eval(base, env)?;
            let from = from.as_deref().map(|from| eval(from, env)).transpose()?;
            let to = to.as_deref().map(|to| eval(to, env)).transpose()?;
            let part = slice(&base, from.as_deref(), to.as_deref(), at)?;
            env.fuel().spend(at, size(&part))?;
            part
        }
        ExprKind::Call(name, args) => call(name, args, at, env)?,
        ExprKind::Unary(op, operand) => unary(*op, &*eval(operand, env)?, at)?,
        ExprKind::Binary(op, left, right) => {
            let left = eval(left, env)?;
            match op {
                BinaryOp::And if !truth(&left) => return Ok(left),
                BinaryOp::Or if truth(&left) => return Ok(left),
                BinaryOp::And | BinaryOp::Or => return eval(right, env),
                _ => {}
            }
            let right = eval(right, env)?;
            env.fuel().spend(at, size(&left).saturating_add(size(&right)))?;
            let value = binary(*op, &left, &right, at)?;
            env.fuel().spend(at, size(&value))?;
            value
        }
        ExprKind::If { then, condition, otherwise } => {
            return if truth(&*eval(condition, env)?) {
                eval(then, env)
            } else {
                eval(otherwise, env)
            };
        }
        ExprKind::List(items) => {
            Scalar::List(items.iter().map(|item| eval_owned(item, env)).collect::<Result<_, _>>()?)
        }
        ExprKind::Comprehension { body, variable, over, filter } => {
            comprehension(body, variable, over, filter.as_deref(), env)?
        }
    };
    Ok(Cow::Owned(value))
}

fn path<'e>(names: &[Ident], at: &Span, env: &'e dyn Env) -> EvalResult<'e> {
    if let [name] = names {
        return env.lookup(name);
    }
    if let Some((first, members)) = names.split_first() {
        match env.lookup(first) {
            Ok(Cow::Borrowed(map @ Scalar::Map(_))) => {
                return member(map, members).map(Cow::Borrowed);
            }
            Ok(Cow::Owned(map @ Scalar::Map(_))) => {
                let part = member(&map, members)?.clone();
                env.fuel().spend(at, size(&part))?;
                return Ok(Cow::Owned(part));
            }
            Err(EvalError::Reported) => return Err(EvalError::Reported),
            _ => {}
        }
    }
    let path: Vec<&str> = names.iter().map(|name| name.name.as_str()).collect();
    let path = path.join(".");
    Err(Finding::error(at, format!("`{path}` is a path, and a number or text is needed here"))
        .help(format!("a config key in an expression is written `config('{path}')`"))
        .into())
}

/// Evaluates `map.key.key`.
fn member<'s>(scalar: &'s Scalar, path: &[Ident]) -> Result<&'s Scalar, EvalError> {
    let Some((name, tail)) = path.split_first() else { return Ok(scalar) };
    let Scalar::Map(entries) = scalar else {
        return Err(Finding::error(&name.at, "only maps have named members")
            .label(expected("a map", scalar))
            .into());
    };
    if let Some((_, value)) = entries.iter().find(|(key, _)| *key == name.name) {
        return member(value, tail);
    }
    let mut finding = Finding::error(&name.at, format!("there is no member `{}`", name.name));
    finding.help = suggest::help(&name.name, entries.iter().map(|(key, _)| key.as_str()));
    Err(finding.into())
}

fn call(name: &Ident, args: &[Arg], at: &Span, env: &dyn Env) -> Result<Scalar, EvalError> {
    if let Some(named) = args.iter().find_map(|arg| arg.name.as_ref()) {
        return Err(
            Finding::error(&named.at, format!("`{}` takes no named arguments", name.name)).into()
        );
    }
    let values = args.iter().map(|arg| eval(&arg.value, env)).collect::<Result<Vec<_>, _>>()?;
    let cost = values.iter().fold(1, |sum: usize, value| sum.saturating_add(size(value)));
    env.fuel().spend(at, cost)?;
    let value = functions::call(name, &values, at, env.config())?;
    env.fuel().spend(at, size(&value))?;
    Ok(value)
}

fn comprehension(
    body: &Expr,
    variable: &Ident,
    over: &Expr,
    filter: Option<&Expr>,
    env: &dyn Env,
) -> Result<Scalar, EvalError> {
    let list = eval(over, env)?;
    let Scalar::List(items) = &*list else {
        return Err(Finding::error(&over.at, "this cannot be iterated")
            .label(expected("a list", &list))
            .into());
    };
    let mut results = Vec::new();
    for item in items {
        let scope = LoopEnv { outer: env, variable: &variable.name, value: item };
        if let Some(filter) = filter
            && !truth(&*eval(filter, &scope)?)
        {
            continue;
        }
        results.push(eval_owned(body, &scope)?);
    }
    Ok(Scalar::List(results))
}

/// An environment with one more name.
struct LoopEnv<'a> {
    outer: &'a dyn Env,
    variable: &'a str,
    value: &'a Scalar,
}

impl Env for LoopEnv<'_> {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        if name.name == self.variable {
            Ok(Cow::Borrowed(self.value))
        } else {
            self.outer.lookup(name)
        }
    }

    fn config(&self) -> &Config {
        self.outer.config()
    }

    fn fuel(&self) -> &Fuel {
        self.outer.fuel()
    }
}

/// Counts the items of a value, nested ones included: the cost of copying the value.
fn size(value: &Scalar) -> usize {
    match value {
        Scalar::Str(text) => text.len() / 16,
        Scalar::List(items) => {
            items.iter().fold(items.len(), |sum, item| sum.saturating_add(size(item)))
        }
        Scalar::Map(entries) => {
            entries.iter().fold(entries.len(), |sum, entry| sum.saturating_add(size(&entry.1)))
        }
        _ => 0,
    }
}

/// Returns the words under a caret: what was expected there, and what was found.
pub(crate) fn expected(what: &str, value: &Scalar) -> String {
    let shown = beginning(&value.to_string());
    match value {
        Scalar::Null => format!("expected {what}, found null"),
        Scalar::List(_) | Scalar::Map(_) => {
            format!("expected {what}, found {}: {shown}", value.kind())
        }
        Scalar::Str(_) => format!("expected {what}, found the text {shown}"),
        _ => format!("expected {what}, found {shown}"),
    }
}

#[cfg(test)]
mod tests;
