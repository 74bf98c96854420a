//! Rotary tables from declarations and the config's scaling object.
//!
//! Both spellings of the reference library are read: `rope_scaling` with `type`, and
//! `rope_parameters` with `rope_type`. Formulas are in `formulas`.

use super::{SourcedScalar, read_sources};
use crate::config::matches;
use crate::diag::{Finding, Span};
use crate::eval::{self, Env, EvalError, expected};
use crate::rope::{DynamicRope, LongRope, MAX_AXES, RopeTable, formulas};
use crate::scalar::Scalar;
use crate::spec::{RopeDecl, Spec};

mod parameters;

use parameters::Parameters;

/// The largest head that a table is computed for.
const MAX_DIM: usize = 1 << 16;

/// Rotary schemes by the names of configs.
pub(crate) const KINDS: &[&str] =
    &["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"];

/// Older names of schemes; positions of text are equal in all sections of `mrope`.
pub(crate) const OLDER: [(&str, &str); 2] = [("su", "longrope"), ("mrope", "default")];

/// Resolves every table of a spec, in order; a table that fails is `None`, and reported.
pub(crate) fn resolve(
    spec: &Spec,
    env: &dyn Env,
    report: &mut dyn FnMut(EvalError),
) -> Vec<Option<RopeTable>> {
    // What the spec passes over inside the scaling object counts as read.
    for key in env.config().keys().iter().filter(|key| key.contains('.')) {
        if spec.ignore.config.iter().any(|pattern| matches(&pattern.name, key)) {
            env.config().mark(key);
        }
    }
    spec.rope
        .values()
        .map(|decl| match table(decl, env, report) {
            Ok(table) => Some(table),
            Err(fail) => {
                report(fail);
                None
            }
        })
        .collect()
}

/// Computes a table.
fn table(
    decl: &RopeDecl,
    env: &dyn Env,
    report: &mut dyn FnMut(EvalError),
) -> Result<RopeTable, EvalError> {
    // Some schemes read these beside the parameters; with the others they mean nothing.
    env.config().mark("original_max_position_embeddings");
    env.config().mark("partial_rotary_factor");
    let head = size(decl, &decl.dim, env)?;
    let theta = theta(decl, env)?;
    let parameters = scaling(decl, env)?;
    for warning in parameters.unknown(decl, env) {
        report(warning.into());
    }
    let kind = parameters.kind(env)?;
    let partial = partial(decl, &parameters, kind, env)?;
    let context = decl.context.as_ref().map(|expr| eval::eval_owned(expr, env)).transpose()?;
    let context = context.as_ref().and_then(Scalar::as_usize).filter(|context| *context > 0);
    let scheme = RopeScheme { decl, env, parameters: &parameters, head, partial, theta, context };
    let mut table = RopeTable {
        name: decl.name.name.clone(),
        dim: scheme.dim(kind)?,
        inv_freq: Vec::new(),
        attention_factor: 1.0,
        long: None,
        dynamic: None,
        rounded: None,
        behind: behind(decl, env)?,
        axes: Vec::new(),
        kind: kind.to_owned(),
    };
    scheme.compute(&mut table)?;
    order(decl, &mut table, env)?;
    table.axes = axes(decl, table.inv_freq.len(), env)?;
    check_finite(decl, &table, theta)?;
    // Of an odd number the reference turns one number more, at the frequencies of the odd number.
    table.dim = table.dim.next_multiple_of(2);
    if table.dim > head {
        let message = format!("the table `{}` would rotate {} numbers", table.name, table.dim);
        return Err(Finding::error(&decl.at, message)
            .label(format!("a head has {head} numbers"))
            .into());
    }
    Ok(table)
}

/// Returns the number of positions that a table lies behind.
fn behind(decl: &RopeDecl, env: &dyn Env) -> Result<usize, EvalError> {
    let Some(expr) = &decl.behind else { return Ok(0) };
    let value = eval::eval_owned(expr, env)?;
    value.as_usize().ok_or_else(|| {
        Finding::error(&expr.at, "this is no number of positions")
            .label(eval::expected("an integer, 0 or above", &value))
            .into()
    })
}

/// Puts the frequencies of a table in the order that the spec lists, in which one may stand several times.
fn order(decl: &RopeDecl, table: &mut RopeTable, env: &dyn Env) -> Result<(), EvalError> {
    let Some(expr) = &decl.order else { return Ok(()) };
    if table.long.is_some() || table.dynamic.is_some() {
        return Err(
            Finding::error(&expr.at, "frequencies that follow the length have no `order`").into()
        );
    }
    let value = eval::eval_owned(expr, env)?;
    let count = table.inv_freq.len();
    let numbers: Option<Vec<usize>> = match &value {
        Scalar::List(items) => {
            items.iter().map(|item| item.as_usize().filter(|number| *number < count)).collect()
        }
        _ => None,
    };
    let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else {
        let message = format!("this is no order of the frequencies of the table `{}`", table.name);
        return Err(Finding::error(&expr.at, message)
            .label(expected(
                &format!("a list of numbers from 0 to {}", count.saturating_sub(1)),
                &value,
            ))
            .into());
    };
    table.dim = 2 * numbers.len();
    table.inv_freq = numbers.iter().map(|number| table.inv_freq[*number]).collect();
    Ok(())
}

/// Returns the axis of positions that each of `count` frequencies counts.
fn axes(decl: &RopeDecl, count: usize, env: &dyn Env) -> Result<Vec<usize>, EvalError> {
    let Some(expr) = &decl.axes else { return Ok(Vec::new()) };
    let value = eval::eval_owned(expr, env)?;
    let Scalar::List(items) = &value else {
        return Err(Finding::error(&expr.at, "this is no list of axes")
            .label(expected("an axis for each frequency", &value))
            .into());
    };
    let listed: Option<Vec<usize>> =
        items.iter().map(|item| item.as_usize().filter(|axis| *axis < MAX_AXES)).collect();
    match listed {
        Some(listed) if listed.len() == count => Ok(listed),
        _ => Err(Finding::error(
            &expr.at,
            format!("the axes of the table `{}` do not fit its frequencies", decl.name.name),
        )
        .label(expected(
            &format!("{count} numbers from 0 to {}, one for each frequency", MAX_AXES - 1),
            &value,
        ))
        .into()),
    }
}

/// Refuses a table with frequencies that are not finite.
fn check_finite(decl: &RopeDecl, table: &RopeTable, theta: f64) -> Result<(), EvalError> {
    if table
        .inv_freq
        .iter()
        .chain(table.long.iter().flat_map(|long| &long.inv_freq))
        .any(|f| !f.is_finite())
    {
        return Err(Finding::error(
            &decl.at,
            format!("the table `{}` has frequencies that are not finite", table.name),
        )
        .label(format!("theta is {theta}, the scheme is {}", table.kind))
        .into());
    }
    Ok(())
}

/// Numbers that the frequencies of a table are computed from.
struct RopeScheme<'a> {
    decl: &'a RopeDecl,
    env: &'a dyn Env,
    parameters: &'a Parameters,
    /// Numbers of a head.
    head: usize,
    /// Share of them that is rotated.
    partial: f64,
    theta: f64,
    context: Option<usize>,
}

impl RopeScheme<'_> {
    /// Returns the number of rotated numbers of a head.
    fn dim(&self, kind: &str) -> Result<usize, EvalError> {
        let Self { decl, head, partial, .. } = self;
        // Proportional tables keep the whole head and leave its end unrotated.
        let dim = if kind == "proportional" { *head } else { (*head as f64 * *partial) as usize };
        // Schemes that treat each pair apart divide by halves of an even number.
        let by_pair = !matches!(kind, "default" | "linear" | "dynamic" | "llama3");
        if dim == 0 || (dim % 2 != 0 && by_pair) {
            return Err(Finding::error(
                &decl.at,
                format!("the table `{}` would rotate {dim} numbers of a head", decl.name.name),
            )
            .label(format!(
                "expected an even number above 0 for `{kind}`: {head} numbers, {partial} of them rotated"
            ))
            .into());
        }
        Ok(dim)
    }

    /// Returns the length of the sequences that the model was first trained on.
    fn original(&self) -> Result<usize, EvalError> {
        self.parameters
            .original(self.context, self.env)
            .ok_or_else(|| Parameters::needs_context(self.decl))
    }

    /// Computes the frequencies and factors of a table by its kind.
    fn compute(&self, table: &mut RopeTable) -> Result<(), EvalError> {
        let Self { parameters, head, partial, theta, context, .. } = *self;
        let dim = table.dim;
        let base = theta as f32;
        match table.kind.as_str() {
            "linear" => {
                let factor = parameters.number("factor")? as f32;
                table.inv_freq =
                    formulas::default(dim, base).into_iter().map(|f| f / factor).collect();
            }
            "dynamic" => self.compute_dynamic(table)?,
            "yarn" => {
                let original = self.original()?;
                let yarn = parameters.yarn(context, original, self.env)?;
                table.attention_factor = yarn.attention_factor;
                table.inv_freq = formulas::yarn(dim, theta, &yarn);
            }
            "longrope" => self.compute_long(table)?,
            "llama3" => {
                let original = self.original()?;
                table.inv_freq = formulas::llama3(
                    formulas::default(dim, base),
                    parameters.number("factor")?,
                    parameters.number("low_freq_factor")?,
                    parameters.number("high_freq_factor")?,
                    original as f64,
                );
            }
            "proportional" => {
                let factor = parameters.optional("factor")?.unwrap_or(1.0) as f32;
                let rotated = ((partial * head as f64 / 2.0).floor() as usize).min(head / 2);
                table.inv_freq = formulas::proportional(head, base, rotated, factor);
            }
            _ => table.inv_freq = formulas::default(dim, base),
        }
        Ok(())
    }

    /// Computes a table whose base grows with the sequence.
    fn compute_dynamic(&self, table: &mut RopeTable) -> Result<(), EvalError> {
        let Self { decl, theta, .. } = *self;
        let factor = self.parameters.number("factor")?;
        let context = self.context.ok_or_else(|| Parameters::needs_context(decl))?;
        if table.dim <= 2 {
            return Err(Finding::error(
                &decl.at,
                "a dynamic table needs to rotate more than 2 numbers",
            )
            .into());
        }
        let base = formulas::grown_base(theta, factor, table.dim);
        table.inv_freq = formulas::default(table.dim, base);
        table.dynamic = Some(DynamicRope { context, theta, factor });
        Ok(())
    }

    /// Computes a table with divisors of its own for each frequency, and that for longer sequences.
    fn compute_long(&self, table: &mut RopeTable) -> Result<(), EvalError> {
        let Self { decl, parameters, .. } = *self;
        let dim = table.dim;
        let base = self.theta as f32;
        let original = self.original()?;
        let short = parameters.list("short_factor", dim / 2)?;
        let long = parameters.list("long_factor", dim / 2)?;
        table.inv_freq = formulas::divided(dim, base, &short);
        let mut beyond = LongRope {
            original_context: original,
            inv_freq: formulas::divided(dim, base, &long),
            attention_factor: 1.0,
        };
        if decl.long_by_scale {
            beyond.inv_freq.clone_from(&table.inv_freq);
            beyond.attention_factor = parameters.number("long_mscale")?;
            table.attention_factor = parameters.number("short_mscale")?;
        } else {
            table.attention_factor = parameters.long_attention(self.context, original, decl)?;
            beyond.attention_factor = table.attention_factor;
        }
        table.long = Some(beyond);
        Ok(())
    }
}

/// Describes a table as a map of its sources. The keys are `theta`, the `kind`, the number of rotated dims of
/// a head (`dim`), the `original` context, and every parameter, null where the config has none.
pub(crate) fn describe(decl: &RopeDecl, env: &dyn Env) -> Result<Scalar, EvalError> {
    let parameters = scaling(decl, env)?;
    let kind = parameters.kind(env)?;
    let head = size(decl, &decl.dim, env)?;
    let dim = (head as f64 * partial(decl, &parameters, kind, env)?) as i64;
    let context = decl.context.as_ref().map(|expr| eval::eval_owned(expr, env)).transpose()?;
    let context = context.as_ref().and_then(Scalar::as_usize);
    let original = parameters.original(context, env).and_then(|n| i64::try_from(n).ok());
    let mut entries = vec![
        ("theta".to_owned(), Scalar::Float(theta(decl, env)?)),
        ("kind".to_owned(), Scalar::Str(kind.to_owned())),
        ("dim".to_owned(), Scalar::Int(dim)),
        ("original".to_owned(), original.map_or(Scalar::Null, Scalar::Int)),
    ];
    entries.extend(parameters.all());
    Ok(Scalar::Map(entries))
}

fn size(decl: &RopeDecl, expr: &crate::syntax::Expr, env: &dyn Env) -> Result<usize, EvalError> {
    let value = eval::eval_owned(expr, env)?;
    value.as_usize().filter(|size| *size > 0 && *size <= MAX_DIM).ok_or_else(|| {
        Finding::error(&expr.at, format!("`dim` of the table `{}` is out of range", decl.name.name))
            .label(expected(&format!("an integer from 1 to {MAX_DIM}"), &value))
            .into()
    })
}

fn theta(decl: &RopeDecl, env: &dyn Env) -> Result<f64, EvalError> {
    let sourced = read_sources(&decl.name, &decl.theta, env)?;
    match sourced.value.as_f64() {
        Some(theta) if theta > 0.0 && theta.is_finite() => Ok(theta),
        _ => Err(wrong(&sourced, "theta", "a number above 0", env)),
    }
}

fn scaling(decl: &RopeDecl, env: &dyn Env) -> Result<Parameters, EvalError> {
    // Null means no scaling, and a config that has none of the keys has none either.
    let present = decl.parameters.iter().any(|source| match source {
        crate::spec::DimSource::Key(key) => {
            env.config().peek(&key.name).is_some_and(|value| *value != Scalar::Null)
        }
        crate::spec::DimSource::Compute(_) => true,
    });
    let path = env.config().path().to_owned();
    if !present {
        return Ok(Parameters { entries: Vec::new(), key: None, at: decl.at.clone(), path });
    }
    let sourced = read_sources(&decl.name, &decl.parameters, env)?;
    match &sourced.value {
        Scalar::Null => Ok(Parameters { entries: Vec::new(), key: None, at: sourced.at, path }),
        Scalar::Map(entries) => {
            if let Some((inner, _)) =
                entries.iter().find(|(_, value)| matches!(value, Scalar::Map(_)))
            {
                let key = sourced.key.as_deref().unwrap_or("rope_parameters");
                return Err(Finding::error(
                    &sourced.at,
                    format!("`{path}`: `{key}` holds a table per layer type"),
                )
                .label(format!("expected one table, found `{inner}` inside"))
                .help(format!("declare a table for each: `parameters: [{key}.{inner}]`"))
                .into());
            }
            Ok(Parameters { entries: entries.clone(), key: sourced.key, at: sourced.at, path })
        }
        _ => Err(wrong(&sourced, "parameters", "an object or null", env)),
    }
}

/// Returns the rotated share of a head. Classes compute the default table by themselves, and only some of
/// them (those whose specs have `partial:`) read a share there; the code that all share for the other kinds
/// does.
fn partial(
    decl: &RopeDecl,
    parameters: &Parameters,
    kind: &str,
    env: &dyn Env,
) -> Result<f64, EvalError> {
    let (value, at): (Scalar, &Span) = match &decl.partial {
        Some(expr) => (eval::eval_owned(expr, env)?, &expr.at),
        None if kind == "default" => return Ok(1.0),
        None => match parameters.get("partial_rotary_factor") {
            Some(value) => (value.clone(), &parameters.at),
            None => (
                env.config().get("partial_rotary_factor").cloned().unwrap_or(Scalar::Null),
                &decl.at,
            ),
        },
    };
    match value.as_f64() {
        None if value == Scalar::Null => Ok(1.0),
        Some(partial) if partial > 0.0 && partial <= 1.0 => Ok(partial),
        _ => Err(Finding::error(
            at,
            format!("the rotated share of the table `{}` is out of range", decl.name.name),
        )
        .label(expected("a number above 0, at most 1", &value))
        .into()),
    }
}

fn wrong(sourced: &SourcedScalar, what: &str, form: &str, env: &dyn Env) -> EvalError {
    let message = match &sourced.key {
        Some(key) => format!("`{}`: the key `{key}` is not {form}", env.config().path()),
        None => format!("`{what}` is not {form}"),
    };
    Finding::error(&sourced.at, message).label(expected(form, &sourced.value)).into()
}

#[cfg(test)]
mod tests;
