//! Functions of a spec as methods, and the statements of their programs.

use std::collections::BTreeSet;

use registry::diag::{Finding, Span};
use registry::syntax::{Arg, Expr, ExprKind, Function, Program};

use crate::loops::{holder, scalars_of};
use crate::python::binding::ATOM;
use crate::python::expression;
use crate::value::{
    BoundCode, CodeLine, CodeValue, Method, MethodCall, OWN, argument, assigned, common, parent,
    variable,
};
use crate::walk::{Locals, MethodFrame, Walk};

impl Walk<'_> {
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
    pub(crate) fn function(
        &mut self,
        function: &Function,
        args: &[Arg],
        expr: &Expr,
        locals: &Locals,
    ) -> Result<BoundCode, Finding> {
        if self.stack.contains(&function.name.name) || self.stack.len() > 32 {
            return Err(Finding::error(&expr.at, "this function calls itself"));
        }
        let bound = self.bind(function, args, &expr.at, locals)?;
        self.stack.push(function.name.name.clone());
        let result = self.called(function, bound);
        self.stack.pop();
        result
    }

    fn called(&mut self, function: &Function, bound: Locals) -> Result<BoundCode, Finding> {
        let (number, results) = self.method(function, &bound)?;
        if self.is_short(function, number, &bound) {
            return self.in_place(function, bound);
        }
        self.division.escapes(bound.values().filter_map(|bound| match bound {
            BoundCode::Value(value) => Some(value),
            _ => None,
        }));
        let context = self.methods[number].context.clone();
        let conditions = self.module_conditions();
        let frame = self.frame();
        frame.context.extend(context.iter().filter(|name| !name.starts_with("E:")).cloned());
        frame.calls.push(MethodCall { method: number, conditions });
        let mut given: Vec<String> = function
            .params
            .iter()
            .filter_map(|param| match bound.get(&param.name.name) {
                Some(BoundCode::Value(value)) => Some(value.text.clone()),
                Some(BoundCode::Tokens) => Some(self.target.word("tokens")),
                _ => None,
            })
            .collect();
        given.extend(context.iter().map(|name| argument(name, self.target)));
        let text = format!("«C:{number}»({})", given.join(", "));
        match results.as_slice() {
            [one] => Ok(BoundCode::Value(CodeValue { text, binds: ATOM, ..one.clone() })),
            several => {
                let names: Vec<String> = several.iter().map(|_| self.fresh("part")).collect();
                self.emit(assigned(&names.join(", "), &text));
                let values = names.into_iter().zip(several).map(|(text, value)| CodeValue {
                    text,
                    binds: ATOM,
                    ..value.clone()
                });
                let values: Vec<CodeValue> = values.collect();
                Ok(BoundCode::Values(values))
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
        let passes = bound
            .values()
            .any(|bound| matches!(bound, BoundCode::Name(name) if name.contains('.')));
        total <= 1 || (self.methods[number].uses.is_empty() && passes && program.result.len() == 1)
    }

    /// Evaluates the result of a function in the method under way.
    fn in_place(&mut self, function: &Function, mut bound: Locals) -> Result<BoundCode, Finding> {
        for (name, bound) in &mut bound {
            let BoundCode::Value(value) = bound else { continue };
            let simple = value.text.chars().all(crate::words::is_of_name);
            if !simple && count(&function.program, name) > 1 {
                let fresh = self.fresh(&variable(name));
                self.emit(assigned(&fresh, &value.text));
                *value = CodeValue { text: fresh, binds: ATOM, ..value.clone() };
            }
        }
        match function.program.result.as_slice() {
            [one] => self.eval(one, &bound),
            several => {
                let mut values = Vec::new();
                for part in several {
                    values.push(self.value(part, &bound)?);
                }
                Ok(BoundCode::Values(values))
            }
        }
    }

    /// Evaluates an expression that must be a value.
    pub(crate) fn value(&mut self, expr: &Expr, locals: &Locals) -> Result<CodeValue, Finding> {
        match self.eval(expr, locals)? {
            BoundCode::Value(value) => Ok(value),
            BoundCode::Values(values) if !values.is_empty() => Ok(values[0].clone()),
            _ => Err(Finding::error(&expr.at, "this is no value")),
        }
    }

    /// Walks a function as a method, or finds it if it was walked with the same arguments.
    fn method(
        &mut self,
        function: &Function,
        bound: &Locals,
    ) -> Result<(usize, Vec<CodeValue>), Finding> {
        let mut inner = Locals::new();
        let mut params = Vec::new();
        for param in &function.params {
            let name = &param.name.name;
            let value = match &bound[name] {
                BoundCode::Value(value) => {
                    params.push((variable(name), self.target.word("value")));
                    BoundCode::Value(CodeValue {
                        text: variable(name),
                        binds: ATOM,
                        sources: BTreeSet::new(),
                        ..value.clone()
                    })
                }
                BoundCode::Tokens => {
                    params.push((self.target.word("tokens"), self.target.word("value")));
                    BoundCode::Tokens
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
    ) -> Result<(Method, Vec<CodeValue>), Finding> {
        let mut frame = MethodFrame { blocks: vec![Vec::new()], ..MethodFrame::default() };
        frame.names.extend(method.params.iter().map(|(name, _)| name.clone()));
        frame.names.extend(locals.keys().map(|name| variable(name)));
        let given = method.params.iter().filter(|(_, ty)| !ty.ends_with("None"));
        frame.narrow = given.map(|(name, _)| name).find_map(|name| {
            let value = locals.get(name).filter(|bound| bound.is_narrow());
            value.map(|_| name.clone())
        });
        self.frames.push(frame);
        let results = self.program(program, locals);
        let mut frame = self.frames.pop().unwrap_or_default();
        let results = results?;
        method.body = frame.blocks.pop().unwrap_or_default();
        let texts: Vec<&str> = results.iter().map(|value| value.text.as_str()).collect();
        method.body.push(CodeLine::Text(format!("return {}", texts.join(", "))));
        method.results = results.len();
        method.uses = frame.uses;
        method.calls = frame.calls;
        method.context = frame.context;
        method.has_layers = frame.has_layers;
        let placed = || method.uses.iter().filter(|one| !one.path.starts_with(OWN));
        let mut paths: Vec<&str> = placed().map(|one| parent(&one.path)).collect();
        let owners: Vec<String> = method
            .calls
            .iter()
            .filter_map(|call| self.methods[call.method].owner.clone())
            .collect();
        paths.extend(owners.iter().map(String::as_str));
        let all: Vec<&str> = placed()
            .map(|one| one.path.as_str())
            .chain(owners.iter().map(String::as_str))
            .collect();
        method.owner = crate::value::outside_lists(common(paths), &all);
        if frame.has_layers {
            let layers = self.layers.list.clone();
            method.owner = common(method.owner.iter().map(String::as_str).chain([holder(&layers)]));
        }
        method.passes = self.passes(&method);
        if method.passes {
            let scalars = scalars_of(&method.body, &self.choices);
            method.context.extend(scalars.iter().map(|name| format!("E:{name}")));
        }
        Ok((method, results))
    }

    fn program(
        &mut self,
        program: &Program,
        mut locals: Locals,
    ) -> Result<Vec<CodeValue>, Finding> {
        for statement in &program.body {
            for comment in crate::comments::above(
                statement.targets.first().map_or(&statement.value.at, |target| &target.at),
            ) {
                self.emit(CodeLine::Text(format!("# {comment}")));
            }
            let names: Vec<&str> =
                statement.targets.iter().map(|target| target.name.as_str()).collect();
            let bound = self.eval(&statement.value, &locals)?;
            self.assign(&names, bound, &statement.value, &mut locals)?;
        }
        if let Some(first) = program.result.first() {
            for comment in crate::comments::above(&first.at) {
                self.emit(CodeLine::Text(format!("# {comment}")));
            }
        }
        if let [one] = program.result.as_slice() {
            return match self.eval(one, &locals)? {
                BoundCode::Value(value) => Ok(vec![value]),
                BoundCode::Values(values) => Ok(values),
                _ => Err(Finding::error(&one.at, "this is no value")),
            };
        }
        program.result.iter().map(|expr| self.value(expr, &locals)).collect()
    }

    fn assign(
        &mut self,
        names: &[&str],
        bound: BoundCode,
        at: &Expr,
        locals: &mut Locals,
    ) -> Result<(), Finding> {
        match (names, bound) {
            ([_], BoundCode::Values(values)) if values.len() > 1 => {
                let first = values.into_iter().take(1).map(BoundCode::Value).next();
                let first = first.ok_or_else(|| Finding::error(&at.at, "there is no result"))?;
                return self.assign(names, first, at, locals);
            }
            ([name], BoundCode::Value(value)) => {
                let text = variable(name);
                self.frame().names.insert(text.clone());
                self.frame().rewritten(&text, value.wide);
                if value.text != text {
                    self.emit_assigned(&text, &value.text);
                }
                locals.insert(
                    (*name).to_owned(),
                    BoundCode::Value(CodeValue { text, binds: ATOM, ..value }),
                );
            }
            (names, BoundCode::Values(values)) if names.len() == values.len() => {
                let targets: Vec<String> = names.iter().map(|name| variable(name)).collect();
                let texts: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
                self.frame().names.extend(targets.iter().cloned());
                self.emit_several(&targets, &texts.join(", "));
                for ((name, text), value) in names.iter().zip(targets).zip(values) {
                    self.frame().rewritten(&text, value.wide);
                    let value = CodeValue { text, binds: ATOM, ..value };
                    locals.insert((*name).to_owned(), BoundCode::Value(value));
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
            Some(CodeLine::Text(last)) if passing && last.starts_with(&start) => {
                *last = format!("{joined} = {}", &last[start.len()..]);
                return;
            }
            Some(CodeLine::If(_, yes, no)) if passing => {
                let ends = |lines: &[CodeLine]| matches!(lines.last(), Some(CodeLine::Text(last)) if last.starts_with(&start));
                if ends(yes) && ends(no) {
                    for block in [yes, no] {
                        if let Some(CodeLine::Text(last)) = block.last_mut() {
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

fn shown(locals: &Locals) -> String {
    let mut text = String::new();
    for (name, bound) in locals {
        for part in [name, "=", &shown_bound(bound), ";"] {
            text.push_str(part);
        }
    }
    text
}

fn shown_bound(bound: &BoundCode) -> String {
    match bound {
        BoundCode::Value(value) => format!(
            "value {:?} {}",
            value.shape.iter().map(|size| expression(size).0).collect::<Vec<_>>(),
            value.wide
        ),
        BoundCode::Values(values) => format!("{} values", values.len()),
        BoundCode::Scalar(expr) => expression(expr).0,
        BoundCode::Name(name) => name.clone(),
        BoundCode::Choice(condition, a, b) => {
            format!("{} if {} else {}", shown_bound(a), expression(condition).0, shown_bound(b))
        }
        BoundCode::Tokens => "tokens".to_owned(),
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
            *count += usize::from(names.first().is_some_and(|n| n.name == name));
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
