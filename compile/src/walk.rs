//! Walks the programs of a spec and writes them as methods.

use std::collections::{BTreeMap, BTreeSet};

use registry::diag::{Finding, Span};
use registry::ops::OpSet;
use registry::spec::Spec;
use registry::syntax::{Arg, BinaryOp, Expr, ExprKind, Function, Ident, Program};

use crate::helpers::Helpers;
use crate::python::binding::{ATOM, IF};
use crate::python::expression;
use crate::scalars::{LayerScalars, Scalars};
use crate::symbol::{self, decided, rebuilt};
use crate::target::Target;
use crate::value::{Bound, Line, Method, MethodCall, Value, WeightUse, common, parent};

/// Variables of a program.
pub(crate) type Locals = BTreeMap<String, Bound>;

/// What a method is made of, while its body is walked.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    /// Blocks under way; statements go to the last.
    pub(crate) blocks: Vec<Vec<Line>>,
    /// Conditions of the blocks.
    pub(crate) conditions: Vec<Expr>,
    pub(crate) uses: Vec<WeightUse>,
    pub(crate) calls: Vec<MethodCall>,
    pub(crate) context: BTreeSet<String>,
    /// Names of variables so far.
    pub(crate) names: BTreeSet<String>,
    pub(crate) has_layers: bool,
}

/// A weight that is another's, and the condition for that.
#[derive(Debug, Clone)]
pub(crate) struct Tie {
    pub(crate) weight: String,
    pub(crate) other: String,
    pub(crate) condition: Option<Expr>,
}

/// The walker.
pub(crate) struct Walk<'s> {
    pub(crate) spec: &'s Spec,
    pub(crate) ops: &'s OpSet,
    pub(crate) target: &'s Target,
    pub(crate) scalars: Scalars<'s>,
    pub(crate) layer: LayerScalars,
    /// The prefix of weights in layers, with 0 for its holes; none outside layers.
    pub(crate) prefix: Option<String>,
    pub(crate) methods: Vec<Method>,
    pub(crate) known: BTreeMap<String, usize>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) helpers: Helpers,
    pub(crate) ties: Vec<Tie>,
    pub(crate) findings: Vec<Finding>,
    /// Functions under way.
    pub(crate) stack: Vec<String>,
    /// What the layers need from outside, and their class.
    pub(crate) layers: crate::layers::LayerClasses,
    /// Ops that were written.
    pub(crate) used: BTreeSet<String>,
    /// The trunk of the model, as a function.
    pub(crate) trunk: Option<Function>,
}

/// Names of Python that variables of specs may have.
const TAKEN: [&str; 12] =
    ["all", "input", "open", "lambda", "is", "from", "type", "range", "sum", "max", "min", "cache"];

/// Returns a name of a spec as a variable of Python.
pub(crate) fn variable(name: &str) -> String {
    if TAKEN.contains(&name) { format!("{name}_") } else { name.to_owned() }
}

impl Walk<'_> {
    pub(crate) fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a method is under way")
    }

    pub(crate) fn emit(&mut self, line: Line) {
        self.frame().blocks.last_mut().expect("a block is under way").push(line);
    }

    pub(crate) fn fail(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Returns a variable that nothing else has.
    pub(crate) fn fresh(&mut self, name: &str) -> String {
        let frame = self.frame();
        let mut fresh = name.to_owned();
        let mut n = 1;
        while frame.names.contains(&fresh) {
            n += 1;
            fresh = format!("{name}_{n}");
        }
        frame.names.insert(fresh.clone());
        fresh
    }

    /// Resolves a scalar expression.
    pub(crate) fn scalar(
        &mut self,
        expr: &Expr,
        locals: &Locals,
        loops: &mut Vec<String>,
    ) -> Result<Expr, Finding> {
        if let ExprKind::Path(names) = &expr.kind
            && let [name] = names.as_slice()
        {
            if name.name.contains(':') || loops.contains(&name.name) {
                return Ok(expr.clone());
            }
            return match locals.get(&name.name) {
                Some(Bound::Scalar(scalar)) => Ok(scalar.clone()),
                Some(Bound::Name(path)) => {
                    let ident = Ident { name: path.clone(), at: name.at.clone() };
                    self.global(&ident, expr)
                }
                Some(Bound::Choice(condition, a, b)) => {
                    let (condition, a, b) = (condition.clone(), (**a).clone(), (**b).clone());
                    let then = self.as_scalar(a, expr, locals)?;
                    let otherwise = self.as_scalar(b, expr, locals)?;
                    let kind = ExprKind::If {
                        then: Box::new(then),
                        condition: Box::new(condition),
                        otherwise: Box::new(otherwise),
                    };
                    Ok(symbol::with(expr, kind))
                }
                Some(_) => Err(Finding::error(
                    &name.at,
                    format!("`{}` is a value, known only when the model runs", name.name),
                )),
                None => self.global(name, expr),
            };
        }
        if let ExprKind::Comprehension { variable, .. } = &expr.kind {
            loops.push(variable.name.clone());
            let result = rebuilt(expr, &mut |part| self.scalar(part, locals, loops));
            loops.pop();
            return result;
        }
        rebuilt(expr, &mut |part| self.scalar(part, locals, loops))
    }

    fn global(&mut self, name: &Ident, at: &Expr) -> Result<Expr, Finding> {
        if let Some(scalar) = self.layer.meant(&name.name, at) {
            return Ok(scalar);
        }
        self.scalars.dim(name, 0)
    }

    pub(crate) fn as_scalar(
        &mut self,
        bound: Bound,
        at: &Expr,
        locals: &Locals,
    ) -> Result<Expr, Finding> {
        match bound {
            Bound::Scalar(expr) => Ok(expr),
            Bound::Name(name) => self.global(&Ident { name, at: at.at.clone() }, at),
            Bound::Choice(condition, a, b) => {
                let then = Box::new(self.as_scalar(*a, at, locals)?);
                let otherwise = Box::new(self.as_scalar(*b, at, locals)?);
                let condition = Box::new(condition);
                Ok(symbol::fold(symbol::with(at, ExprKind::If { then, condition, otherwise })))
            }
            _ => Err(Finding::error(&at.at, "this is a value, expected a number or a text")),
        }
    }

    /// Evaluates an expression of a program.
    pub(crate) fn eval(&mut self, expr: &Expr, locals: &Locals) -> Result<Bound, Finding> {
        match &expr.kind {
            ExprKind::Path(names) => path(names, locals, expr),
            ExprKind::Call(name, args) => self.call(name, args, expr, locals),
            ExprKind::Binary(op, left, right)
                if matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div) =>
            {
                let left_bound = self.eval(left, locals)?;
                let right_bound = self.eval(right, locals)?;
                self.operator(*op, (left_bound, left), (right_bound, right), expr, locals)
            }
            ExprKind::If { then, condition, otherwise } => {
                let condition = self.scalar(condition, locals, &mut Vec::new())?;
                match decided(&condition) {
                    Some(true) => self.eval(then, locals),
                    Some(false) => self.eval(otherwise, locals),
                    None => self.choice(condition, then, otherwise, locals),
                }
            }
            _ => self.scalar(expr, locals, &mut Vec::new()).map(Bound::Scalar),
        }
    }

    /// Evaluates in a block of its own, under a condition.
    pub(crate) fn branch<T>(
        &mut self,
        condition: Expr,
        run: impl FnOnce(&mut Self) -> Result<T, Finding>,
    ) -> Result<(T, Vec<Line>), Finding> {
        self.frame().blocks.push(Vec::new());
        self.frame().conditions.push(condition);
        let result = run(self);
        self.frame().conditions.pop();
        let lines = self.frame().blocks.pop().unwrap_or_default();
        result.map(|result| (result, lines))
    }

    fn choice(
        &mut self,
        condition: Expr,
        then: &Expr,
        otherwise: &Expr,
        locals: &Locals,
    ) -> Result<Bound, Finding> {
        if let (ExprKind::Call(a, with), ExprKind::Call(b, without)) = (&then.kind, &otherwise.kind)
            && a.name == "layers"
            && b.name == "layers"
            && without.len() == 1
        {
            return self.layers_if(condition, with, then, locals);
        }
        let (yes, yes_lines) = self.branch(condition.clone(), |walk| walk.eval(then, locals))?;
        let (no, no_lines) =
            self.branch(negated(&condition), |walk| walk.eval(otherwise, locals))?;
        self.chosen(condition, (yes, yes_lines), (no, no_lines), then)
    }

    /// Joins the results of two branches.
    pub(crate) fn chosen(
        &mut self,
        condition: Expr,
        (yes, mut yes_lines): (Bound, Vec<Line>),
        (no, mut no_lines): (Bound, Vec<Line>),
        at: &Expr,
    ) -> Result<Bound, Finding> {
        match (yes, no) {
            (Bound::Value(a), Bound::Value(b)) => {
                let wide = a.wide || b.wide;
                let equal = matches!(condition.kind, ExprKind::Binary(BinaryOp::Eq, ..));
                let shape = if equal { b.shape.clone() } else { a.shape.clone() };
                if a.text == b.text && yes_lines.is_empty() && no_lines.is_empty() {
                    return Ok(Bound::Value(a));
                }
                let text = if yes_lines.is_empty() && no_lines.is_empty() {
                    let condition = crate::python::enclosed(&expression(&condition), IF + 1);
                    let text = format!("‹{}¦{condition}¦{}›", a.at(IF + 1), b.text);
                    return Ok(Bound::Value(Value { text, binds: IF, shape, wide }));
                } else {
                    let name = self.fresh("y");
                    yes_lines.push(assigned(&name, &a.text));
                    no_lines.push(assigned(&name, &b.text));
                    name
                };
                self.emit(Line::If(expression(&condition).0, yes_lines, no_lines));
                Ok(Bound::Value(Value { text, binds: ATOM, shape, wide }))
            }
            (Bound::Values(a), Bound::Values(b)) if a.len() == b.len() => {
                let names: Vec<String> = a.iter().map(|_| self.fresh("part")).collect();
                let targets = names.join(", ");
                let texts = |values: &[Value]| {
                    values.iter().map(|value| value.text.as_str()).collect::<Vec<_>>().join(", ")
                };
                yes_lines.push(assigned(&targets, &texts(&a)));
                no_lines.push(assigned(&targets, &texts(&b)));
                self.emit(Line::If(expression(&condition).0, yes_lines, no_lines));
                let values = names.into_iter().zip(a).map(|(text, value)| Value {
                    text,
                    binds: ATOM,
                    ..value
                });
                Ok(Bound::Values(values.collect()))
            }
            (Bound::Value(_) | Bound::Values(_), _) | (_, Bound::Value(_) | Bound::Values(_)) => {
                Err(Finding::error(&at.at, "one branch is a value and the other is not"))
            }
            (a, b) => Ok(Bound::Choice(condition, Box::new(a), Box::new(b))),
        }
    }

    fn call(
        &mut self,
        name: &Ident,
        args: &[Arg],
        expr: &Expr,
        locals: &Locals,
    ) -> Result<Bound, Finding> {
        if name.name == "layers" {
            return self.run_layers(args, expr, locals);
        }
        let spec = self.spec;
        if let Some(function) = self.trunk.clone().filter(|one| one.name.name == name.name) {
            self.trunk = None;
            return self.function(&function, args, expr, locals);
        }
        if let Some(function) = spec.functions.get(&name.name) {
            return self.function(function, args, expr, locals);
        }
        if self.ops.get(&name.name).is_some() {
            return self.op_call(&name.name, args, &expr.at, locals);
        }
        self.scalar(expr, locals, &mut Vec::new()).map(Bound::Scalar)
    }

    /// Binds the parameters of a function.
    fn bind(
        &mut self,
        function: &Function,
        args: &[Arg],
        at: &Span,
        locals: &Locals,
    ) -> Result<Locals, Finding> {
        let mut bound = Locals::new();
        for (n, arg) in args.iter().enumerate() {
            let name = arg.name.as_ref().map(|name| name.name.clone());
            let name = name.or_else(|| function.params.get(n).map(|param| param.name.name.clone()));
            let name = name.ok_or_else(|| Finding::error(at, "too many arguments"))?;
            let value = self.eval(&arg.value, locals)?;
            bound.insert(name, value);
        }
        for param in &function.params {
            if !bound.contains_key(&param.name.name) {
                let default = param.default.as_ref();
                let default = default.ok_or_else(|| {
                    Finding::error(at, format!("`{}` is not given", param.name.name))
                })?;
                let value = self.eval(default, &bound.clone())?;
                bound.insert(param.name.name.clone(), value);
            }
        }
        Ok(bound)
    }

    /// Calls a function: in place if it is short, else as a method.
    fn function(
        &mut self,
        function: &Function,
        args: &[Arg],
        expr: &Expr,
        locals: &Locals,
    ) -> Result<Bound, Finding> {
        if self.stack.contains(&function.name.name) || self.stack.len() > 32 {
            return Err(Finding::error(&expr.at, "this function calls itself"));
        }
        let bound = self.bind(function, args, &expr.at, locals)?;
        self.stack.push(function.name.name.clone());
        let result = self.called(function, bound, expr);
        self.stack.pop();
        result
    }

    fn called(
        &mut self,
        function: &Function,
        bound: Locals,
        expr: &Expr,
    ) -> Result<Bound, Finding> {
        let (number, results) = self.method(function, &bound)?;
        if self.is_short(function, number, &bound) {
            return self.in_place(function, bound);
        }
        let (uses, context) = (self.total_uses(number), self.methods[number].context.clone());
        let frame = self.frame();
        frame.context.extend(context.iter().cloned());
        let conditions = frame.conditions.clone();
        frame.calls.push(MethodCall { method: number, conditions });
        let mut given: Vec<String> = function
            .params
            .iter()
            .filter_map(|param| match bound.get(&param.name.name) {
                Some(Bound::Value(value)) => Some(value.text.clone()),
                Some(Bound::Tokens) => Some("tokens".to_owned()),
                _ => None,
            })
            .collect();
        given.extend(context);
        let _ = uses;
        let text = format!("«C:{number}»({})", given.join(", "));
        match results.as_slice() {
            [one] => Ok(Bound::Value(Value { text, binds: ATOM, ..one.clone() })),
            several => {
                let names: Vec<String> = several.iter().map(|_| self.fresh("part")).collect();
                self.emit(assigned(&names.join(", "), &text));
                let values = names.into_iter().zip(several).map(|(text, value)| Value {
                    text,
                    binds: ATOM,
                    ..value.clone()
                });
                let values: Vec<Value> = values.collect();
                let _ = expr;
                Ok(Bound::Values(values))
            }
        }
    }

    /// Counts weights that a method uses, by itself and in methods that it calls.
    fn total_uses(&self, number: usize) -> usize {
        let method = &self.methods[number];
        let paths: BTreeSet<&str> = method.uses.iter().map(|one| one.path.as_str()).collect();
        let below: usize = method.calls.iter().map(|call| self.total_uses(call.method)).sum();
        paths.len() + below
    }

    fn is_short(&self, function: &Function, number: usize, bound: &Locals) -> bool {
        let program = &function.program;
        if !program.body.is_empty() || self.methods[number].body.len() > 1 {
            return false;
        }
        let total = self.total_uses(number);
        let passes =
            bound.values().any(|bound| matches!(bound, Bound::Name(name) if name.contains('.')));
        total <= 1 || (self.methods[number].uses.is_empty() && passes && program.result.len() == 1)
    }

    /// Evaluates the result of a function in the method under way.
    fn in_place(&mut self, function: &Function, mut bound: Locals) -> Result<Bound, Finding> {
        for (name, bound) in &mut bound {
            let Bound::Value(value) = bound else { continue };
            let simple = value.text.chars().all(|c| c.is_alphanumeric() || c == '_');
            if !simple && count(&function.program, name) > 1 {
                let fresh = self.fresh(&variable(name));
                self.emit(assigned(&fresh, &value.text));
                *value = Value { text: fresh, binds: ATOM, ..value.clone() };
            }
        }
        match function.program.result.as_slice() {
            [one] => self.eval(one, &bound),
            several => {
                let mut values = Vec::new();
                for part in several {
                    values.push(self.value(part, &bound)?);
                }
                Ok(Bound::Values(values))
            }
        }
    }

    /// Evaluates an expression that must be a value.
    pub(crate) fn value(&mut self, expr: &Expr, locals: &Locals) -> Result<Value, Finding> {
        match self.eval(expr, locals)? {
            Bound::Value(value) => Ok(value),
            Bound::Values(values) if !values.is_empty() => Ok(values[0].clone()),
            _ => Err(Finding::error(&expr.at, "this is no value")),
        }
    }

    /// Walks a function as a method, or finds it if it was walked with the same arguments.
    fn method(
        &mut self,
        function: &Function,
        bound: &Locals,
    ) -> Result<(usize, Vec<Value>), Finding> {
        let mut inner = Locals::new();
        let mut params = Vec::new();
        for param in &function.params {
            let name = &param.name.name;
            let value = match &bound[name] {
                Bound::Value(value) => {
                    params.push((variable(name), "Tensor".to_owned()));
                    Bound::Value(Value { text: variable(name), binds: ATOM, ..value.clone() })
                }
                Bound::Tokens => {
                    params.push(("tokens".to_owned(), "Tensor".to_owned()));
                    Bound::Tokens
                }
                other => other.clone(),
            };
            inner.insert(name.clone(), value);
        }
        let about = crate::comments::above(&function.name.at);
        let method =
            Method { name: function.name.name.clone(), about, params, ..Method::default() };
        let class = self.layers.classes.len();
        let key = format!("{:?} {class} {} {}", self.prefix, function.name.name, shown(&inner));
        let (method, results) = self.walked(method, &function.program, inner)?;
        if let Some(number) = self.known.get(&key) {
            return Ok((*number, results));
        }
        self.methods.push(method);
        let number = self.methods.len() - 1;
        self.known.insert(key, number);
        Ok((number, results))
    }

    /// Walks a program as the body of a method.
    pub(crate) fn walked(
        &mut self,
        mut method: Method,
        program: &Program,
        locals: Locals,
    ) -> Result<(Method, Vec<Value>), Finding> {
        let mut frame = Frame { blocks: vec![Vec::new()], ..Frame::default() };
        frame.names.extend(method.params.iter().map(|(name, _)| name.clone()));
        frame.names.extend(locals.keys().map(|name| variable(name)));
        self.frames.push(frame);
        let results = self.program(program, locals);
        let mut frame = self.frames.pop().unwrap_or_default();
        let results = results?;
        method.body = frame.blocks.pop().unwrap_or_default();
        let texts: Vec<&str> = results.iter().map(|value| value.text.as_str()).collect();
        method.body.push(Line::Text(format!("return {}", texts.join(", "))));
        method.results = results.len();
        method.uses = frame.uses;
        method.calls = frame.calls;
        method.context = frame.context;
        method.has_layers = frame.has_layers;
        let mut paths: Vec<&str> = method.uses.iter().map(|one| parent(&one.path)).collect();
        let owners: Vec<String> = method
            .calls
            .iter()
            .filter_map(|call| self.methods[call.method].owner.clone())
            .collect();
        paths.extend(owners.iter().map(String::as_str));
        let all: Vec<&str> = method
            .uses
            .iter()
            .map(|one| one.path.as_str())
            .chain(owners.iter().map(String::as_str))
            .collect();
        method.owner = crate::value::outside_lists(common(paths), &all);
        if frame.has_layers {
            let layers = self.layers.list.clone();
            method.owner = common(method.owner.iter().map(String::as_str).chain([parent(&layers)]));
        }
        Ok((method, results))
    }

    fn program(&mut self, program: &Program, mut locals: Locals) -> Result<Vec<Value>, Finding> {
        for statement in &program.body {
            for comment in crate::comments::above(
                statement.targets.first().map_or(&statement.value.at, |target| &target.at),
            ) {
                self.emit(Line::Text(format!("# {comment}")));
            }
            let names: Vec<&str> =
                statement.targets.iter().map(|target| target.name.as_str()).collect();
            let bound = self.eval(&statement.value, &locals)?;
            self.assign(&names, bound, &statement.value, &mut locals)?;
        }
        if let Some(first) = program.result.first() {
            for comment in crate::comments::above(&first.at) {
                self.emit(Line::Text(format!("# {comment}")));
            }
        }
        if let [one] = program.result.as_slice() {
            return match self.eval(one, &locals)? {
                Bound::Value(value) => Ok(vec![value]),
                Bound::Values(values) => Ok(values),
                _ => Err(Finding::error(&one.at, "this is no value")),
            };
        }
        program.result.iter().map(|expr| self.value(expr, &locals)).collect()
    }

    fn assign(
        &mut self,
        names: &[&str],
        bound: Bound,
        at: &Expr,
        locals: &mut Locals,
    ) -> Result<(), Finding> {
        match (names, bound) {
            ([_], Bound::Values(values)) if values.len() > 1 => {
                let first = values.into_iter().take(1).map(Bound::Value).next();
                let first = first.ok_or_else(|| Finding::error(&at.at, "there is no result"))?;
                return self.assign(names, first, at, locals);
            }
            ([name], Bound::Value(value)) => {
                let text = variable(name);
                self.frame().names.insert(text.clone());
                if value.text != text {
                    self.emit_assigned(&text, &value.text);
                }
                locals
                    .insert((*name).to_owned(), Bound::Value(Value { text, binds: ATOM, ..value }));
            }
            (names, Bound::Values(values)) if names.len() == values.len() => {
                let targets: Vec<String> = names.iter().map(|name| variable(name)).collect();
                let texts: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
                self.frame().names.extend(targets.iter().cloned());
                self.emit_several(&targets, &texts.join(", "));
                for ((name, text), value) in names.iter().zip(targets).zip(values) {
                    let value = Value { text, binds: ATOM, ..value };
                    locals.insert((*name).to_owned(), Bound::Value(value));
                }
            }
            ([name], other) => {
                locals.insert((*name).to_owned(), other);
            }
            _ => return Err(Finding::error(&at.at, "the numbers of names and results differ")),
        }
        Ok(())
    }

    /// Writes an assignment; a block that has just set the value under a passing name sets it under this one.
    fn emit_assigned(&mut self, name: &str, text: &str) {
        self.emit_several(&[name.to_owned()], text);
    }

    fn emit_several(&mut self, targets: &[String], text: &str) {
        let joined = targets.join(", ");
        if joined == text {
            return;
        }
        let passing = text.starts_with("part") || text == "y" || text.starts_with("y_");
        let lines = self.frame().blocks.last_mut().expect("a block is under way");
        let start = format!("{text} = ");
        match lines.last_mut() {
            Some(Line::Text(last)) if passing && last.starts_with(&start) => {
                *last = format!("{joined} = {}", &last[start.len()..]);
                return;
            }
            Some(Line::If(_, yes, no)) if passing => {
                let ends = |lines: &[Line]| matches!(lines.last(), Some(Line::Text(last)) if last.starts_with(&start));
                if ends(yes) && ends(no) {
                    for block in [yes, no] {
                        if let Some(Line::Text(last)) = block.last_mut() {
                            *last = format!("{joined} = {}", &last[start.len()..]);
                        }
                    }
                    return;
                }
            }
            _ => {}
        }
        lines.push(assigned(&joined, text));
    }
}

/// Returns an assignment.
pub(crate) fn assigned(name: &str, text: &str) -> Line {
    Line::Text(format!("{name} = {text}"))
}

/// Returns the opposite of a condition.
pub(crate) fn negated(condition: &Expr) -> Expr {
    let kind = match &condition.kind {
        ExprKind::Unary(registry::syntax::UnaryOp::Not, inner) => return (**inner).clone(),
        ExprKind::Binary(BinaryOp::Eq, a, b) => {
            ExprKind::Binary(BinaryOp::Ne, a.clone(), b.clone())
        }
        ExprKind::Binary(BinaryOp::Ne, a, b) => {
            ExprKind::Binary(BinaryOp::Eq, a.clone(), b.clone())
        }
        _ => ExprKind::Unary(registry::syntax::UnaryOp::Not, Box::new(condition.clone())),
    };
    symbol::with(condition, kind)
}

/// Returns the meaning of a path in a program.
fn path(names: &[Ident], locals: &Locals, at: &Expr) -> Result<Bound, Finding> {
    let rest: Vec<&str> = names.iter().skip(1).map(|name| name.name.as_str()).collect();
    let Some(first) = names.first() else { return Ok(Bound::Name(String::new())) };
    Ok(match locals.get(&first.name) {
        Some(bound) if rest.is_empty() => bound.clone(),
        Some(Bound::Name(path)) => {
            Bound::Name([&[path.as_str()], rest.as_slice()].concat().join("."))
        }
        Some(Bound::Scalar(Expr { kind: ExprKind::Str(text), .. })) => {
            Bound::Name([&[text.as_str()], rest.as_slice()].concat().join("."))
        }
        Some(_) => {
            let message = format!("`{}` is a path that depends on the config", first.name);
            return Err(Finding::error(&at.at, message)
                .help("code is written for modules of a layer's own"));
        }
        None => Bound::Name([&[first.name.as_str()], rest.as_slice()].concat().join(".")),
    })
}

fn shown(locals: &Locals) -> String {
    let mut text = String::new();
    for (name, bound) in locals {
        text += &format!("{name}={};", shown_bound(bound));
    }
    text
}

fn shown_bound(bound: &Bound) -> String {
    match bound {
        Bound::Value(value) => format!(
            "value {:?} {}",
            value.shape.iter().map(|size| expression(size).0).collect::<Vec<_>>(),
            value.wide
        ),
        Bound::Values(values) => format!("{} values", values.len()),
        Bound::Scalar(expr) => expression(expr).0,
        Bound::Name(name) => name.clone(),
        Bound::Choice(condition, a, b) => {
            format!("{} if {} else {}", shown_bound(a), expression(condition).0, shown_bound(b))
        }
        Bound::Tokens => "tokens".to_owned(),
    }
}

/// Counts the places where a program reads a variable.
fn count(program: &Program, name: &str) -> usize {
    let mut count = 0;
    for expr in &program.result {
        mentions(expr, name, &mut count);
    }
    count
}

fn mentions(expr: &Expr, name: &str, count: &mut usize) {
    match &expr.kind {
        ExprKind::Path(names) => {
            *count += usize::from(names.first().is_some_and(|n| n.name == name))
        }
        ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) => {
            mentions(a, name, count);
            mentions(b, name, count);
        }
        ExprKind::Unary(_, a) => mentions(a, name, count),
        ExprKind::Call(_, args) => args.iter().for_each(|arg| mentions(&arg.value, name, count)),
        ExprKind::If { then, condition, otherwise } => {
            let (mut yes, mut no) = (0, 0);
            mentions(then, name, &mut yes);
            mentions(otherwise, name, &mut no);
            mentions(condition, name, count);
            *count += yes + no;
        }
        ExprKind::List(items) => items.iter().for_each(|item| mentions(item, name, count)),
        _ => {}
    }
}

impl Walk<'_> {
    /// Walks with one more function, which the spec does not have.
    pub(crate) fn with_function<T>(
        &mut self,
        function: &Function,
        run: impl FnOnce(&mut Self) -> Result<T, Finding>,
    ) -> Result<T, Finding> {
        self.trunk = Some(function.clone());
        let result = run(self);
        self.trunk = None;
        result
    }
}
