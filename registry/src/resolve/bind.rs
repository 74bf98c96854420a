//! Fits the arguments of a call to parameters.

use std::collections::BTreeMap;

use crate::diag::{Finding, Span};
use crate::eval::{EvalError, expected};
use crate::graph::ValueId;
use crate::ops::{Argument, Declaration, Param, ParamKind, PathArg};
use crate::scalar::Scalar;
use crate::suggest;
use crate::syntax::{Function, Ident};

use super::scope::{ABSOLUTE, Binding, Scope};
use super::unknown_word::unknown_word;
use super::{MAX_DIM, Resolver};

/// An argument as the call has it: its name if it was given one, what it is, where it stands.
pub(super) type CallArg<'c> = (Option<&'c Ident>, Binding, &'c Span);

impl Resolver<'_> {
    /// Binds the parameters of a function.
    pub(super) fn bind_function(
        &mut self,
        function: &Function,
        args: Vec<CallArg<'_>>,
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<BTreeMap<String, Binding>, EvalError> {
        let name = &function.name.name;
        let params: Vec<&str> =
            function.params.iter().map(|param| param.name.name.as_str()).collect();
        let mut places = place(name, &params, args, at, &listed(&params))?;
        let mut locals = BTreeMap::new();
        let mut missing = Vec::new();
        for param in &function.params {
            let bound = match (places.remove(param.name.name.as_str()), &param.default) {
                (Some((bound, _)), _) => bound,
                (None, Some(default)) => {
                    // Defaults see the dims and the parameters before them.
                    let inner = scope.inner(locals.clone());
                    self.bound(default, &inner)?
                }
                (None, None) => {
                    missing.push(format!("`{}`", param.name.name));
                    Binding::Poison
                }
            };
            locals.insert(param.name.name.clone(), bound);
        }
        if !missing.is_empty() {
            return Err(too_few(name, &missing, at, &listed(&params)).into());
        }
        Ok(locals)
    }

    /// Binds the parameters of an op, each of the kind that its signature asks for.
    pub(super) fn bind(
        &mut self,
        rule: &Declaration,
        args: Vec<CallArg<'_>>,
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<BTreeMap<&'static str, (Argument, Span)>, EvalError> {
        let signature = rule.signature();
        let takes = signature.to_string();
        if let [Param { name, kind: ParamKind::Values, .. }] = signature.params.as_slice() {
            return Ok(BTreeMap::from([(*name, (values(rule.name(), args, at)?, at.clone()))]));
        }
        let params: Vec<&str> = signature.params.iter().map(|param| param.name).collect();
        let mut places = place(rule.name(), &params, args, at, &takes)?;
        let mut bound = BTreeMap::new();
        let mut missing = Vec::new();
        let mut failed = false;
        for param in &signature.params {
            let (given, place) = match (places.remove(param.name), &param.default) {
                (Some((given, place)), _) => (given, place),
                (None, Some(default)) => (Binding::Scalar(default.clone()), at),
                (None, None) => {
                    missing.push(format!("`{}`", param.name));
                    continue;
                }
            };
            match self.argument(rule.name(), param, given, place, scope) {
                Ok(argument) => {
                    bound.insert(param.name, (argument, place.clone()));
                }
                Err(fail) => {
                    failed = true;
                    self.report.fail(fail);
                }
            }
        }
        if !missing.is_empty() {
            return Err(too_few(rule.name(), &missing, at, &takes).into());
        }
        if failed { Err(EvalError::Reported) } else { Ok(bound) }
    }

    /// Converts an argument to the kind of its parameter.
    fn argument(
        &self,
        op: &str,
        param: &Param,
        given: Binding,
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Argument, EvalError> {
        let place = ParamPlace { op, param, at };
        match (param.kind, given) {
            (_, Binding::Poison) => Err(EvalError::Reported),
            (_, Binding::Values(values)) => Err(place
                .wrong(format!("these are {} results", values.len()))
                .help("assign them to names first")
                .into()),
            (_, Binding::Scalar(Scalar::Null)) if place.is_optional() => {
                Ok(Argument::Scalar(Scalar::Null))
            }
            (ParamKind::Tokens, Binding::Value(ValueId(0))) => {
                Ok(Argument::Values(vec![ValueId(0)]))
            }
            (ParamKind::Value | ParamKind::Values, given) => place.value(given, scope),
            (ParamKind::Module | ParamKind::Tensor, given) => place.path(given, scope),
            (ParamKind::State, given) => self.state_argument(&place, given),
            (ParamKind::Rope, given) => self.rope_argument(&place, given),
            (ParamKind::Tokens, given) => Err(place.of_other_kind(given)),
            (_, Binding::Value(_)) => {
                Err(place.wrong("this is a value, known only when the model runs".into()).into())
            }
            (_, given) => self.scalar_argument(&place, given, scope),
        }
    }

    /// Returns the state of a name.
    fn state_argument(
        &self,
        place: &ParamPlace<'_>,
        given: Binding,
    ) -> Result<Argument, EvalError> {
        let Binding::Name(name) = given else { return Err(place.of_other_kind(given)) };
        if self.spec.states.contains_key(&name.name) {
            return Ok(Argument::State(name.name));
        }
        let mut finding = place.wrong(format!("there is no state `{}`", name.name));
        finding.help = suggest::help(&name.name, self.spec.states.keys().map(String::as_str));
        Err(finding.into())
    }

    /// Returns the rotary table of a name.
    fn rope_argument(&self, place: &ParamPlace<'_>, given: Binding) -> Result<Argument, EvalError> {
        let Binding::Name(name) = given else { return Err(place.of_other_kind(given)) };
        if let Some(index) = self.spec.rope.get_index_of(&name.name) {
            return self.builder.rope_id(index).map(Argument::Rope).ok_or(EvalError::Reported);
        }
        let mut finding = place.wrong(format!("there is no rotary table `{}`", name.name));
        finding.help = suggest::help(&name.name, self.spec.rope.keys().map(String::as_str));
        Err(finding.into())
    }

    /// Returns the number, flag, word or list that an argument is.
    fn scalar_argument(
        &self,
        place: &ParamPlace<'_>,
        given: Binding,
        scope: &Scope<'_>,
    ) -> Result<Argument, EvalError> {
        let kind = place.param.kind;
        let name = match &given {
            Binding::Name(name) => Some(name.name.clone()),
            _ => None,
        };
        let value = self.to_scalar(given, place.at, scope)?;
        if value == Scalar::Null && place.is_optional() {
            return Ok(Argument::Scalar(Scalar::Null));
        }
        check(kind, value).map(Argument::Scalar).map_err(|value| {
            let key = name.as_deref().and_then(|name| self.dims.key(name));
            if let (ParamKind::Word(words), Scalar::Str(word), Some(key)) = (kind, &value, key) {
                let known = words.iter().copied();
                return unknown_word(self.config, key, &[], word, known).into();
            }
            let label = match value {
                Scalar::Int(n) if n > MAX_DIM as i64 => {
                    format!("this is {n}, at most {MAX_DIM} is allowed")
                }
                _ => expected(&kind.describe(), &value),
            };
            let mut finding = place.wrong(label);
            if let Some(key) = key {
                finding =
                    finding.help(format!("it is the key `{key}` of `{}`", self.config.path()));
            } else if let (ParamKind::Word(words), Scalar::Str(word)) = (kind, &value) {
                finding.help = suggest::closest(word, words.iter().copied())
                    .map(|close| format!("did you mean '{close}'?"));
            }
            finding.into()
        })
    }
}

/// A parameter of an op, and where the call has its argument.
struct ParamPlace<'a> {
    op: &'a str,
    param: &'a Param,
    at: &'a Span,
}

impl ParamPlace<'_> {
    /// True if the parameter may be null.
    fn is_optional(&self) -> bool {
        self.param.default == Some(Scalar::Null)
    }

    /// Returns the finding of an argument that does not fit.
    fn wrong(&self, label: String) -> Finding {
        let Self { op, param, at } = self;
        Finding::error(at, format!("`{}` of `{op}` is {}", param.name, param.kind.describe()))
            .label(label)
    }

    /// Returns the error of an argument that is not of the parameter's kind.
    fn of_other_kind(&self, given: Binding) -> EvalError {
        self.wrong(match given {
            Binding::Scalar(value) => format!("this is {value}"),
            Binding::Name(name) => format!("this is the name `{}`", name.name),
            _ => "this is a value".to_owned(),
        })
        .into()
    }

    /// Returns the value that an argument is.
    fn value(&self, given: Binding, scope: &Scope<'_>) -> Result<Argument, EvalError> {
        match given {
            Binding::Value(ValueId(0)) => Err(self
                .wrong("these are the token ids".into())
                .help("only `embed` takes `tokens`")
                .into()),
            Binding::Value(id) => Ok(Argument::Values(vec![id])),
            Binding::Name(name) => {
                let locals =
                    scope.locals.iter().filter(|(_, bound)| matches!(bound, Binding::Value(_)));
                let mut finding =
                    Finding::error(&name.at, format!("there is no value `{}`", name.name))
                        .label(format!("`{}` of `{}` is a value", self.param.name, self.op));
                finding.help = suggest::help(&name.name, locals.map(|(name, _)| name.as_str()));
                Err(finding.into())
            }
            given => Err(self.of_other_kind(given)),
        }
    }

    /// Returns the path of a module or tensor that an argument names.
    fn path(&self, given: Binding, scope: &Scope<'_>) -> Result<Argument, EvalError> {
        match given {
            Binding::Scalar(Scalar::Str(name)) => {
                Ok(Argument::Path(PathArg { name, at: self.at.clone() }))
            }
            Binding::Name(path) => {
                let name = match path.name.strip_prefix(ABSOLUTE) {
                    Some(absolute_path) => absolute_path.to_owned(),
                    None if scope.prefix.is_empty() => path.name,
                    None => format!("{}.{}", scope.prefix, path.name),
                };
                Ok(Argument::Path(PathArg { name, at: path.at }))
            }
            given => Err(self.of_other_kind(given)),
        }
    }
}

/// Converts all arguments to values.
fn values(op: &str, args: Vec<CallArg<'_>>, at: &Span) -> Result<Argument, EvalError> {
    let mut ids = Vec::new();
    for (name, bound, place) in args {
        if let Some(name) = name {
            return Err(Finding::error(&name.at, format!("`{op}` takes no named arguments")).into());
        }
        match bound {
            Binding::Value(id) if id != ValueId(0) => ids.push(id),
            Binding::Values(values) => {
                ids.extend(values.into_iter().filter_map(|value| match value {
                    Binding::Value(id) => Some(id),
                    _ => None,
                }));
            }
            Binding::Poison => return Err(EvalError::Reported),
            _ => return Err(Finding::error(place, format!("`{op}` needs values")).into()),
        }
    }
    if ids.len() < 2 {
        return Err(Finding::error(at, format!("`{op}` needs two values or more")).into());
    }
    Ok(Argument::Values(ids))
}

/// The longest list of numbers that an op takes.
const MAX_NUMBERS: usize = 1 << 16;

/// Returns a scalar of the right kind, or gives the scalar back as an error.
fn check(kind: ParamKind, value: Scalar) -> Result<Scalar, Scalar> {
    let fits = match (kind, &value) {
        (ParamKind::Dim | ParamKind::Sizes, value) if is_size(value) => true,
        (ParamKind::Sizes | ParamKind::Shape, Scalar::List(items)) => {
            !items.is_empty() && items.len() <= 4096 && items.iter().all(is_size)
        }
        (ParamKind::Int, Scalar::Int(_)) | (ParamKind::Flag, Scalar::Bool(_)) => true,
        (ParamKind::Numbers, Scalar::List(items))
            if !items.is_empty() && items.len() <= MAX_NUMBERS =>
        {
            items.iter().all(|item| item.as_f64().is_some_and(f64::is_finite))
        }
        (ParamKind::Float, Scalar::Int(n)) => return Ok(Scalar::Float(*n as f64)),
        (ParamKind::Float, Scalar::Float(x)) => x.is_finite(),
        (ParamKind::Word(words), Scalar::Str(word)) => words.contains(&word.as_str()),
        _ => false,
    };
    if fits { Ok(value) } else { Err(value) }
}

/// True if a scalar can be the size of an axis.
fn is_size(value: &Scalar) -> bool {
    value.as_usize().is_some_and(|n| n > 0 && n <= MAX_DIM)
}

/// Puts arguments to their parameters by position and by name.
fn place<'c>(
    callee: &str,
    params: &[&str],
    args: Vec<CallArg<'c>>,
    at: &Span,
    takes: &str,
) -> Result<BTreeMap<String, (Binding, &'c Span)>, EvalError> {
    let mut placed = BTreeMap::new();
    let given = args.len();
    let mut named = false;
    for (n, (name, bound, place)) in args.into_iter().enumerate() {
        let param = match name {
            Some(name) => {
                named = true;
                let Some(param) = params.iter().find(|param| **param == name.name) else {
                    let mut finding = Finding::error(
                        &name.at,
                        format!("`{callee}` has no parameter `{}`", name.name),
                    )
                    .label(format!("`{callee}{takes}`"));
                    finding.help = suggest::closest(&name.name, params.iter().copied())
                        .map(|close| format!("did you mean `{close}`?"));
                    return Err(finding.into());
                };
                param
            }
            None if named => {
                return Err(
                    Finding::error(place, "a positional argument follows a named one").into()
                );
            }
            None => match params.get(n) {
                Some(param) => param,
                None => {
                    return Err(Finding::error(
                        at,
                        format!("`{callee}` is given {given} arguments and takes {}", params.len()),
                    )
                    .label(format!("`{callee}{takes}`"))
                    .into());
                }
            },
        };
        if placed.insert((*param).to_owned(), (bound, place)).is_some() {
            return Err(
                Finding::error(place, format!("`{param}` of `{callee}` is given twice")).into()
            );
        }
    }
    Ok(placed)
}

fn too_few(callee: &str, missing: &[String], at: &Span, takes: &str) -> Finding {
    Finding::error(at, format!("`{callee}` is not given {}", missing.join(", ")))
        .label(format!("`{callee}{takes}`"))
}

fn listed(params: &[&str]) -> String {
    format!("({})", params.join(", "))
}
