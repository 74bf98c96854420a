//! Runs programs: statements, operators on values, and the inlining of functions.

use std::collections::BTreeMap;

use crate::diag::{Finding, Span};
use crate::eval::{self, EvalError};
use crate::ops::{Argument, SCALE};
use crate::scalar::Scalar;
use crate::syntax::{Arg, BinaryOp, Expr, ExprKind, Function, Ident, Program, UnaryOp};

use super::Resolver;
use super::scope::{Binding, Scope};

/// The deepest nesting of calls and expressions together.
const MAX_DEPTH: usize = 200;

impl Resolver<'_> {
    /// Runs a program; gives what it returns.
    pub(super) fn program(&mut self, program: &Program, mut scope: Scope<'_>) -> Vec<Binding> {
        for stmt in &program.body {
            let mut value = self.bound_or_poison(&stmt.value, &scope);
            if stmt.targets.len() > 1 && is_layers(&stmt.value) {
                value = self.with_carried(value);
            }
            self.assign(&stmt.targets, value, &stmt.value.at, &mut scope);
        }
        program.result.iter().map(|expr| self.bound_or_poison(expr, &scope)).collect()
    }

    /// Returns the result of the layers, and behind it what the last of them carries.
    fn with_carried(&self, result: Binding) -> Binding {
        if matches!(result, Binding::Poison) {
            return result;
        }
        Binding::Values(std::iter::once(result).chain(self.carried.iter().cloned()).collect())
    }

    fn assign(&mut self, targets: &[Ident], value: Binding, at: &Span, scope: &mut Scope<'_>) {
        let values = match value {
            Binding::Poison => vec![Binding::Poison; targets.len()],
            Binding::Values(values) => values,
            one => vec![one],
        };
        if values.len() != targets.len() {
            let names = if targets.len() == 1 { "name" } else { "names" };
            self.report.add(
                Finding::error(
                    at,
                    format!("{} results are assigned to {} {names}", values.len(), targets.len()),
                )
                .label(format!("this gives {}", values.len())),
            );
        }
        let poison = std::iter::repeat(Binding::Poison);
        for (target, value) in targets.iter().zip(values.into_iter().chain(poison)) {
            if let Binding::Value(id) = value {
                self.builder.name(id, &target.name);
            }
            scope.locals.insert(target.name.clone(), value);
        }
    }

    fn bound_or_poison(&mut self, expr: &Expr, scope: &Scope<'_>) -> Binding {
        self.bound(expr, scope).unwrap_or_else(|fail| {
            self.report.fail(fail);
            Binding::Poison
        })
    }

    /// Evaluates an expression to the value, scalar or name that it means.
    pub(super) fn bound(&mut self, expr: &Expr, scope: &Scope<'_>) -> Result<Binding, EvalError> {
        self.fuel.spend(&expr.at, 1)?;
        if self.depth >= MAX_DEPTH {
            return Err(Finding::error(&expr.at, "calls are nested too deeply").into());
        }
        self.depth += 1;
        let bound = self.step(expr, scope);
        self.depth -= 1;
        bound
    }

    fn step(&mut self, expr: &Expr, scope: &Scope<'_>) -> Result<Binding, EvalError> {
        match &expr.kind {
            ExprKind::Path(names) => Ok(scope.path(names, &expr.at)),
            ExprKind::If { then, condition, otherwise } => {
                let condition = self.scalar_of(condition, scope)?;
                self.bound(if eval::truth(&condition) { then } else { otherwise }, scope)
            }
            ExprKind::Call(name, args) if !self.is_scalar_call(&name.name) => {
                self.call(name, args, &expr.at, scope)
            }
            ExprKind::Unary(op, operand) => match (op, self.bound(operand, scope)?) {
                (_, Binding::Poison) => Ok(Binding::Poison),
                (UnaryOp::Neg, Binding::Value(x)) => {
                    self.with_number(SCALE, x, &Scalar::Float(-1.0), &expr.at)
                }
                (op, other) => {
                    let value = self.to_scalar(other, &operand.at, scope)?;
                    Ok(Binding::Scalar(eval::unary(*op, &value, &expr.at)?))
                }
            },
            ExprKind::Binary(
                op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div),
                left,
                right,
            ) => {
                let a = self.bound_or_poison(left, scope);
                let b = self.bound_or_poison(right, scope);
                self.operator(*op, (a, &left.at), (b, &right.at), &expr.at, scope)
            }
            _ => self.scalar_of(expr, scope).map(Binding::Scalar),
        }
    }

    /// Evaluates a scalar expression; the values behind its names are added to a finding.
    fn scalar_of(&mut self, expr: &Expr, scope: &Scope<'_>) -> Result<Scalar, EvalError> {
        let result = match &expr.kind {
            ExprKind::Call(name, _) if !self.is_scalar_call(&name.name) => {
                let bound = self.bound(expr, scope)?;
                return self.to_scalar(bound, &expr.at, scope);
            }
            _ => eval::eval_owned(expr, &self.env(scope)),
        };
        result.map_err(|fail| self.explain(fail, expr))
    }

    /// Converts a bound operand to a scalar.
    pub(super) fn to_scalar(
        &self,
        bound: Binding,
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Scalar, EvalError> {
        match bound {
            Binding::Scalar(value) => Ok(value),
            Binding::Name(path) if !path.name.contains('.') => {
                self.env(scope).global(&path).map(std::borrow::Cow::into_owned)
            }
            Binding::Name(path) => {
                Err(Finding::error(&path.at, format!("`{}` is a path", path.name))
                    .label("expected a number or a text")
                    .into())
            }
            Binding::Poison => Err(EvalError::Reported),
            Binding::Value(_) | Binding::Values(_) => {
                Err(Finding::error(at, "this is a value, known only when the model runs")
                    .label("expected a number or a text that follows from the config")
                    .into())
            }
        }
    }

    /// True for a call that only expressions know. A function of the spec and an op come first.
    fn is_scalar_call(&self, name: &str) -> bool {
        name != "layers"
            && !self.spec.functions.contains_key(name)
            && self.ops.get(name).is_none()
            && eval::FUNCTIONS.contains(&name)
    }

    fn call(
        &mut self,
        name: &Ident,
        args: &[Arg],
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Binding, EvalError> {
        let spec = self.spec;
        let mut bound = Vec::new();
        for arg in args {
            // A word such as `layout='half'` is a scalar like any other.
            bound.push((arg.name.as_ref(), self.bound_or_poison(&arg.value, scope), &arg.value.at));
        }
        if name.name == "layers" {
            let mut carried = BTreeMap::new();
            for (name, bound, place) in bound.get(1..).unwrap_or_default() {
                match (name, bound) {
                    (Some(name), Binding::Value(_) | Binding::Poison) => {
                        carried.insert(name.name.clone(), bound.clone());
                    }
                    _ => {
                        return Err(Finding::error(place, "layers see values by their names")
                            .help("say what it is called there: `layers(x, first=x)`")
                            .into());
                    }
                }
            }
            return match bound.first() {
                Some((None, Binding::Value(x), _)) => self.layers(*x, &carried, at, scope),
                Some((None, Binding::Poison, _)) => Err(EvalError::Reported),
                _ => Err(Finding::error(at, "`layers` takes a value").into()),
            };
        }
        if let Some(function) = spec.functions.get(&name.name) {
            if self.ops.get(&name.name).is_some() {
                self.report.add(
                    Finding::error(
                        &function.name.at,
                        format!("the function `{}` has the name of an op", name.name),
                    )
                    .help("give it another name"),
                );
            }
            return self.inline(function, bound, at, scope);
        }
        let ops = self.ops;
        let Some(rule) = ops.get(&name.name) else {
            let functions: Vec<&str> = spec.functions.keys().map(String::as_str).collect();
            return Err(ops.unknown(name, &functions).into());
        };
        let args = self.bind(rule, bound, at, scope)?;
        self.apply(&name.name, args, at)
    }

    /// Adds a node for a call whose arguments are bound.
    pub(super) fn apply(
        &mut self,
        op: &str,
        args: BTreeMap<&'static str, (Argument, Span)>,
        at: &Span,
    ) -> Result<Binding, EvalError> {
        let ops = self.ops;
        let Some(rule) = ops.rule(op) else {
            return Err(Finding::error(at, format!("the op `{op}` is not registered")).into());
        };
        let mut call = crate::ops::Infer::new(rule.op(), args, &mut self.builder, at);
        rule.infer(&mut call)?;
        let outputs = call.finish()?;
        Ok(match outputs.as_slice() {
            [one] => Binding::Value(*one),
            many => Binding::Values(many.iter().map(|id| Binding::Value(*id)).collect()),
        })
    }

    fn inline(
        &mut self,
        function: &Function,
        args: Vec<(Option<&Ident>, Binding, &Span)>,
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Binding, EvalError> {
        let name = &function.name.name;
        if let Some(start) = self.stack.iter().position(|open| open == name) {
            let mut circle: Vec<String> =
                self.stack[start..].iter().map(|open| format!("`{open}`")).collect();
            circle.push(format!("`{name}`"));
            return Err(Finding::error(at, "functions call each other in a circle")
                .label(circle.join(" calls "))
                .help("programs are straight lines; layers are what repeats")
                .into());
        }
        // Dear, so that functions that call others twice end soon.
        self.fuel.spend(at, 100)?;
        let locals = self.bind_function(function, args, at, scope)?;
        self.stack.push(name.clone());
        let mut results = self.program(&function.program, scope.inner(locals));
        self.stack.pop();
        if let [_] = results.as_slice() {
            return Ok(results.remove(0));
        }
        if results.iter().any(|result| matches!(result, Binding::Poison)) {
            return Ok(Binding::Poison);
        }
        Ok(Binding::Values(results))
    }
}

/// True for a call of the layers.
fn is_layers(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Call(name, _) if name.name == "layers")
}
