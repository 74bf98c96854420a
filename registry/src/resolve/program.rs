//! Runs programs: statements, operators on values, and the inlining of functions.

use std::collections::BTreeMap;

use crate::diag::{Finding, Span};
use crate::eval::{self, Fail};
use crate::graph::ValueId;
use crate::ops::Argument;
use crate::scalar::Scalar;
use crate::suggest;
use crate::syntax::{Arg, BinaryOp, Expr, ExprKind, Function, Ident, Program, UnaryOp};

use super::Resolver;
use super::scope::{Bound, Scope};

/// The deepest nesting of calls and expressions together.
const MAX_DEPTH: usize = 200;

impl Resolver<'_> {
    /// Runs a program; gives what it returns.
    pub(super) fn program(&mut self, program: &Program, mut scope: Scope<'_>) -> Vec<Bound> {
        for stmt in &program.body {
            let value = self.bound_or_poison(&stmt.value, &scope);
            self.assign(&stmt.targets, value, &stmt.value.at, &mut scope);
        }
        program.result.iter().map(|expr| self.bound_or_poison(expr, &scope)).collect()
    }

    fn assign(&mut self, targets: &[Ident], value: Bound, at: &Span, scope: &mut Scope<'_>) {
        let values = match value {
            Bound::Poison => vec![Bound::Poison; targets.len()],
            Bound::Many(values) => values,
            one => vec![one],
        };
        if values.len() != targets.len() {
            let names = if targets.len() == 1 { "name" } else { "names" };
            self.report.add(
                Finding::error(at, format!("{} results are assigned to {} {names}", values.len(), targets.len()))
                    .label(format!("this gives {}", values.len())),
            );
        }
        let poison = std::iter::repeat(Bound::Poison);
        for (target, value) in targets.iter().zip(values.into_iter().chain(poison)) {
            if let Bound::Value(id) = value {
                self.builder.name(id, &target.name);
            }
            scope.locals.insert(target.name.clone(), value);
        }
    }

    fn bound_or_poison(&mut self, expr: &Expr, scope: &Scope<'_>) -> Bound {
        self.bound(expr, scope).unwrap_or_else(|fail| {
            self.report.fail(fail);
            Bound::Poison
        })
    }

    /// What an expression stands for.
    pub(super) fn bound(&mut self, expr: &Expr, scope: &Scope<'_>) -> Result<Bound, Fail> {
        self.fuel.spend(&expr.at, 1)?;
        if self.depth >= MAX_DEPTH {
            return Err(Finding::error(&expr.at, "calls are nested too deeply").into());
        }
        self.depth += 1;
        let bound = self.step(expr, scope);
        self.depth -= 1;
        bound
    }

    fn step(&mut self, expr: &Expr, scope: &Scope<'_>) -> Result<Bound, Fail> {
        match &expr.kind {
            ExprKind::Path(names) => Ok(scope.path(names, &expr.at)),
            ExprKind::If { then, condition, otherwise } => {
                let condition = self.scalar_of(condition, scope)?;
                self.bound(if eval::truth(&condition) { then } else { otherwise }, scope)
            }
            ExprKind::Call(name, args) if !self.is_scalar_call(&name.name) => self.call(name, args, &expr.at, scope),
            ExprKind::Unary(op, operand) => match (op, self.bound(operand, scope)?) {
                (_, Bound::Poison) => Ok(Bound::Poison),
                (UnaryOp::Neg, Bound::Value(x)) => self.with_number("scale", x, Scalar::Float(-1.0), &expr.at),
                (op, other) => {
                    let value = self.to_scalar(other, &operand.at, scope)?;
                    Ok(Bound::Scalar(eval::unary(*op, &value, &expr.at)?))
                }
            },
            ExprKind::Binary(op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div), left, right) => {
                let a = self.bound_or_poison(left, scope);
                let b = self.bound_or_poison(right, scope);
                self.operator(*op, (a, &left.at), (b, &right.at), &expr.at, scope)
            }
            _ => self.scalar_of(expr, scope).map(Bound::Scalar),
        }
    }

    /// A scalar expression; what stands behind its names is added to a finding.
    fn scalar_of(&mut self, expr: &Expr, scope: &Scope<'_>) -> Result<Scalar, Fail> {
        let result = match &expr.kind {
            ExprKind::Call(name, _) if !self.is_scalar_call(&name.name) => {
                let bound = self.bound(expr, scope)?;
                return self.to_scalar(bound, &expr.at, scope);
            }
            _ => eval::eval_owned(expr, &self.env(scope)),
        };
        result.map_err(|fail| self.explain(fail, expr))
    }

    /// Adds where the dims of a failed expression come from.
    fn explain(&self, fail: Fail, expr: &Expr) -> Fail {
        let Fail::Finding(mut finding) = fail else { return fail };
        if finding.help.is_none() {
            let mut names = Vec::new();
            names_of(expr, &mut names);
            let told: Vec<String> = names
                .iter()
                .filter_map(|name| {
                    let key = self.dims.key(name)?;
                    let value = self.dims.get(name)?.ok()?;
                    let shown = eval::shorten(&value.to_string());
                    Some(format!("`{name}` is {shown}, the key `{key}` of `{}`", self.config.path()))
                })
                .take(3)
                .collect();
            if !told.is_empty() {
                finding.help = Some(told.join("; "));
            }
        }
        Fail::Finding(finding)
    }

    /// A bound thing where a scalar is needed.
    pub(super) fn to_scalar(&self, bound: Bound, at: &Span, scope: &Scope<'_>) -> Result<Scalar, Fail> {
        match bound {
            Bound::Scalar(value) => Ok(value),
            Bound::Name(path) if !path.name.contains('.') => {
                self.env(scope).global(&path).map(std::borrow::Cow::into_owned)
            }
            Bound::Name(path) => {
                Err(Finding::error(&path.at, format!("`{}` is a path", path.name)).label("expected a number or a text").into())
            }
            Bound::Poison => Err(Fail::Reported),
            Bound::Value(_) | Bound::Many(_) => {
                Err(Finding::error(at, "this is a value, known only when the model runs")
                    .label("expected a number or a text that follows from the config")
                    .into())
            }
        }
    }

    /// A call that only expressions know. A function of the spec and an op come first.
    fn is_scalar_call(&self, name: &str) -> bool {
        name != "layers"
            && !self.spec.functions.contains_key(name)
            && self.ops.get(name).is_none()
            && eval::FUNCTIONS.contains(&name)
    }

    fn operator(
        &mut self,
        op: BinaryOp,
        (a, a_at): (Bound, &Span),
        (b, b_at): (Bound, &Span),
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Bound, Fail> {
        match (a, b) {
            (Bound::Poison, _) | (_, Bound::Poison) => Err(Fail::Reported),
            (Bound::Value(x), Bound::Value(y)) => {
                let name = match op {
                    BinaryOp::Add => "add",
                    BinaryOp::Sub => "sub",
                    BinaryOp::Mul => "mul",
                    _ => "div",
                };
                let args = BTreeMap::from([
                    ("x", (Argument::Values(vec![x]), a_at.clone())),
                    ("y", (Argument::Values(vec![y]), b_at.clone())),
                ]);
                self.apply(name, args, at)
            }
            (Bound::Value(x), b) => {
                let number = self.number(b, b_at, scope)?;
                match op {
                    BinaryOp::Add => self.with_number("offset", x, number, at),
                    BinaryOp::Sub => {
                        let negated = eval::unary(UnaryOp::Neg, &number, at)?;
                        self.with_number("offset", x, negated, at)
                    }
                    BinaryOp::Mul => self.with_number("scale", x, number, at),
                    _ => self.with_number("divide", x, number, at),
                }
            }
            (a, Bound::Value(y)) => {
                let number = self.number(a, a_at, scope)?;
                match op {
                    BinaryOp::Add => self.with_number("offset", y, number, at),
                    BinaryOp::Mul => self.with_number("scale", y, number, at),
                    BinaryOp::Sub => match self.with_number("scale", y, Scalar::Float(-1.0), at)? {
                        // Negating is exact, so there is one rounding, as in `s - y`.
                        Bound::Value(negated) => self.with_number("offset", negated, number, at),
                        other => Ok(other),
                    },
                    _ => self.with_number("inverse", y, number, at),
                }
            }
            (a, b) => {
                let (a, b) = (self.to_scalar(a, a_at, scope)?, self.to_scalar(b, b_at, scope)?);
                self.fuel.spend(at, 1)?;
                Ok(Bound::Scalar(eval::binary(op, &a, &b, at).map_err(Fail::from)?))
            }
        }
    }

    fn number(&self, bound: Bound, at: &Span, scope: &Scope<'_>) -> Result<Scalar, Fail> {
        let value = self.to_scalar(bound, at, scope)?;
        match value.as_f64() {
            Some(_) => Ok(value),
            None => Err(Finding::error(at, "a value is combined with something that is no number")
                .label(eval::expected("a value or a number", &value))
                .into()),
        }
    }

    fn with_number(&mut self, op: &str, x: ValueId, number: Scalar, at: &Span) -> Result<Bound, Fail> {
        let float = Scalar::Float(number.as_f64().unwrap_or_default());
        let mut args = BTreeMap::from([
            ("x", (Argument::Values(vec![x]), at.clone())),
            ("s", (Argument::Scalar(float), at.clone())),
        ]);
        if op == "scale" {
            args.insert("round", (Argument::Scalar(Scalar::Str("none".to_owned())), at.clone()));
        }
        self.apply(op, args, at)
    }

    fn call(&mut self, name: &Ident, args: &[Arg], at: &Span, scope: &Scope<'_>) -> Result<Bound, Fail> {
        let spec = self.spec;
        let mut bound = Vec::new();
        for arg in args {
            // A word such as `layout='half'` is a scalar like any other.
            bound.push((arg.name.as_ref(), self.bound_or_poison(&arg.value, scope), &arg.value.at));
        }
        if name.name == "layers" {
            return match bound.as_slice() {
                [(None, Bound::Value(x), _)] => self.layers(*x, at, scope),
                [(None, Bound::Poison, _)] => Err(Fail::Reported),
                _ => Err(Finding::error(at, "`layers` takes one value").into()),
            };
        }
        if let Some(function) = spec.functions.get(&name.name) {
            if self.ops.get(&name.name).is_some() {
                self.report.add(
                    Finding::error(&function.name.at, format!("the function `{}` has the name of an op", name.name))
                        .help("give it another name"),
                );
            }
            return self.inline(function, bound, at, scope);
        }
        let ops = self.ops;
        let Some(rule) = ops.get(&name.name) else {
            let mut finding = Finding::error(&name.at, format!("there is no op or function `{}`", name.name));
            let functions = spec.functions.keys().map(String::as_str);
            finding.help = suggest::closest(&name.name, functions.chain(ops.names()).chain(["layers"]))
                .map(|close| format!("did you mean `{close}`?"))
                .or_else(|| Some("`docs/spec.md` lists the ops; a new one made of those is written under `functions:`".into()));
            return Err(finding.into());
        };
        let args = self.bind(rule, bound, at, scope)?;
        self.apply(&name.name, args, at)
    }

    /// Adds a node for a call whose arguments are bound.
    fn apply(&mut self, op: &str, args: BTreeMap<&'static str, (Argument, Span)>, at: &Span) -> Result<Bound, Fail> {
        let ops = self.ops;
        let Some(rule) = ops.get(op) else {
            return Err(Finding::error(at, format!("the op `{op}` is not registered")).into());
        };
        let mut call = crate::ops::Infer::new(op, args, &mut self.builder, at);
        rule.infer(&mut call)?;
        let outputs = call.finish()?;
        Ok(match outputs.as_slice() {
            [one] => Bound::Value(*one),
            many => Bound::Many(many.iter().map(|id| Bound::Value(*id)).collect()),
        })
    }

    fn inline(
        &mut self,
        function: &Function,
        args: Vec<(Option<&Ident>, Bound, &Span)>,
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Bound, Fail> {
        let name = &function.name.name;
        if let Some(start) = self.stack.iter().position(|open| open == name) {
            let mut circle: Vec<String> = self.stack[start..].iter().map(|open| format!("`{open}`")).collect();
            circle.push(format!("`{name}`"));
            return Err(Finding::error(at, "functions call each other in a circle")
                .label(circle.join(" calls "))
                .help("programs are straight lines; layers are what repeats")
                .into());
        }
        let locals = self.bind_function(function, args, at, scope)?;
        self.stack.push(name.clone());
        let mut results = self.program(&function.program, scope.inner(locals));
        self.stack.pop();
        if let [_] = results.as_slice() {
            return Ok(results.remove(0));
        }
        if results.iter().any(|result| matches!(result, Bound::Poison)) {
            return Ok(Bound::Poison);
        }
        Ok(Bound::Many(results))
    }
}

/// Names in an expression that may be dims.
fn names_of<'e>(expr: &'e Expr, names: &mut Vec<&'e str>) {
    match &expr.kind {
        ExprKind::Path(path) => {
            if let [name] = path.as_slice()
                && !names.contains(&name.name.as_str())
            {
                names.push(&name.name);
            }
        }
        ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) => {
            names_of(a, names);
            names_of(b, names);
        }
        ExprKind::Unary(_, a) | ExprKind::Slice(a, _, _) => names_of(a, names),
        ExprKind::If { then, condition, otherwise } => {
            [condition, then, otherwise].into_iter().for_each(|part| names_of(part, names));
        }
        ExprKind::List(items) => items.iter().for_each(|item| names_of(item, names)),
        ExprKind::Call(_, args) => args.iter().for_each(|arg| names_of(&arg.value, names)),
        ExprKind::Comprehension { body, over, .. } => {
            names_of(over, names);
            names_of(body, names);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_collected_once() {
        let text = crate::text::Text::whole("t", "a * b + [a for a in c][d] if e else f(a)");
        let expr = crate::parse::parse_expr(&text).unwrap();
        let mut names = Vec::new();
        names_of(&expr, &mut names);
        assert_eq!(names, ["e", "a", "b", "c", "d"]);
    }
}
