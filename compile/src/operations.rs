//! Calls of ops: arguments by the signature, shapes by the sheet, code by the templates.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Environment;
use registry::diag::{Finding, Span};
use registry::ops::{DIVIDE, INVERSE, OFFSET, Param, ParamKind, SCALE, of_values};
use registry::parse::parse_expr;
use registry::scalar::Scalar;
use registry::syntax::{Arg, BinaryOp, Expr, ExprKind};
use registry::text::MappedText;

use crate::arguments::{OpArgument, OpArguments};
use crate::helpers::{ArgumentPresence, REFUSAL};
use crate::python::binding::ATOM;
use crate::scalars::of_scalar;
use crate::symbol::{self, negated};
use crate::target::OpSheet;
use crate::trunk::TRUNK;
use crate::value::{BoundCode, CodeLine, CodeValue, ModuleUse, OWN};
use crate::walk::{Locals, Tie, Walk};

impl Walk<'_> {
    /// Binds the arguments of a call of an op, and applies it.
    pub(crate) fn op_call(
        &mut self,
        name: &str,
        args: &[Arg],
        at: &Span,
        locals: &Locals,
    ) -> Result<BoundCode, Finding> {
        let op = self.ops.get(name).expect("the caller has looked").clone();
        let params = &op.signature().params;
        let mut given: BTreeMap<&'static str, (BoundCode, Expr)> = BTreeMap::new();
        if let [Param { name, kind: ParamKind::Values, .. }] = params.as_slice() {
            let mut values = Vec::new();
            for arg in args {
                values.push(self.value(&arg.value, locals)?);
            }
            let empty = Expr { kind: ExprKind::Null, at: at.clone() };
            given.insert(name, (BoundCode::Values(values), empty));
        } else {
            for (n, arg) in args.iter().enumerate() {
                let param = match &arg.name {
                    Some(name) => params.iter().find(|param| param.name == name.name),
                    None => params.get(n),
                };
                let param = param.ok_or_else(|| Finding::error(at, "no such parameter"))?;
                given.insert(param.name, (self.eval(&arg.value, locals)?, arg.value.clone()));
            }
        }
        self.apply(name, given, at)
    }

    /// Applies an operator.
    pub(crate) fn operator(
        &mut self,
        op: BinaryOp,
        (left, left_at): (BoundCode, &Expr),
        (right, right_at): (BoundCode, &Expr),
        expr: &Expr,
    ) -> Result<BoundCode, Finding> {
        let is_value = |bound: &BoundCode| matches!(bound, BoundCode::Value(_));
        let (name, x, y) = match (is_value(&left), is_value(&right)) {
            (true, true) => {
                let args = BTreeMap::from([
                    ("x", (left, left_at.clone())),
                    ("y", (right, right_at.clone())),
                ]);
                return self.apply(of_values(op), args, &expr.at);
            }
            (false, false) => {
                let left = Box::new(self.as_scalar(left, left_at)?);
                let right = Box::new(self.as_scalar(right, right_at)?);
                let kind = ExprKind::Binary(op, left, right);
                return Ok(BoundCode::Scalar(symbol::fold(symbol::with(expr, kind))));
            }
            (true, false) => {
                let name = match op {
                    BinaryOp::Add | BinaryOp::Sub => OFFSET,
                    BinaryOp::Mul => SCALE,
                    _ => DIVIDE,
                };
                (name, (left, left_at), (right, right_at))
            }
            (false, true) => {
                let name = match op {
                    BinaryOp::Add | BinaryOp::Sub => OFFSET,
                    BinaryOp::Mul => SCALE,
                    _ => INVERSE,
                };
                (name, (right, right_at), (left, left_at))
            }
        };
        let mut number = self.as_scalar(y.0, y.1)?;
        let mut value = x.0;
        if op == BinaryOp::Sub {
            if is_value(&value) && std::ptr::eq(x.1, left_at) {
                number = negative(&number);
            } else {
                let minus = of_scalar(&Scalar::Float(-1.0), expr);
                let args = BTreeMap::from([
                    ("x", (value, x.1.clone())),
                    ("s", (BoundCode::Scalar(minus), expr.clone())),
                ]);
                value = self.apply("scale", args, &expr.at)?;
            }
        }
        let args = BTreeMap::from([
            ("x", (value, x.1.clone())),
            ("s", (BoundCode::Scalar(number), y.1.clone())),
        ]);
        self.apply(name, args, &expr.at)
    }

    fn apply(
        &mut self,
        name: &str,
        mut given: BTreeMap<&'static str, (BoundCode, Expr)>,
        at: &Span,
    ) -> Result<BoundCode, Finding> {
        let op = self.ops.get(name).expect("ops of operators exist").clone();
        let target = self.target;
        let Some(sheet) = target.ops.get(name) else {
            return Err(Finding::error(
                at,
                format!("the target `{}` has no op `{name}`", target.name),
            )
            .help(format!("write a template for it in `registry/targets/{}/ops`", target.name)));
        };
        // One of two modules or words: the op of each, by the condition.
        let params = &op.signature().params;
        for param in params {
            let choice = given.get(param.name).filter(|(bound, _)| parts(param, sheet, bound));
            if let Some((BoundCode::Choice(condition, yes, no), expr)) = choice.cloned() {
                let mut other = given.clone();
                given.insert(param.name, (*yes, expr.clone()));
                other.insert(param.name, (*no, expr.clone()));
                let yes = self.branch(condition.clone(), |w| w.apply(name, given, at))?;
                let no = self.branch(negated(&condition), |w| w.apply(name, other, at))?;
                return self.chosen(condition, yes, no, &expr);
            }
        }
        let mut args = OpArguments::new();
        let empty = Expr { kind: ExprKind::Null, at: at.clone() };
        for param in params {
            let (bound, expr) = given.remove(param.name).unwrap_or_else(|| {
                let default = param.default.clone().unwrap_or(Scalar::Null);
                (BoundCode::Scalar(of_scalar(&default, &empty)), empty.clone())
            });
            let argument = self.argument(param, bound, &expr)?;
            args.insert(param.name, argument);
        }
        self.tie(params, &args);
        self.stretch(params, &args);
        self.written(name, sheet, params, &args, at)
    }

    fn argument(
        &mut self,
        param: &Param,
        bound: BoundCode,
        expr: &Expr,
    ) -> Result<OpArgument, Finding> {
        if let BoundCode::Scalar(scalar) = &bound
            && scalar.kind == ExprKind::Null
        {
            return Ok(OpArgument::Null);
        }
        let wrong = || Finding::error(&expr.at, format!("`{}` is something else", param.name));
        Ok(match (param.kind, bound) {
            (ParamKind::Tokens, BoundCode::Tokens) => OpArgument::Text(self.target.word("tokens")),
            (ParamKind::Value, BoundCode::Value(value)) => OpArgument::Value(value),
            (ParamKind::Value, BoundCode::Values(values)) if !values.is_empty() => {
                OpArgument::Value(values[0].clone())
            }
            (ParamKind::Values, BoundCode::Values(values)) => OpArgument::Values(values),
            (ParamKind::Module | ParamKind::Tensor, BoundCode::Scalar(text)) => {
                let path = self.path_of(&text)?;
                self.weight(param, path)
            }
            (ParamKind::Module | ParamKind::Tensor, BoundCode::Name(path)) => {
                self.weight(param, path)
            }
            (ParamKind::Module, BoundCode::Choice(condition, yes, _)) => {
                // Only a weight that is another's can be chosen so: `tied=`.
                let BoundCode::Name(path) = *yes else { return Err(wrong()) };
                self.ties.push(Tie {
                    weight: String::new(),
                    other: path.clone(),
                    condition: Some(condition.clone()),
                });
                OpArgument::PathIf(path, condition)
            }
            (ParamKind::State, bound) => {
                if self.target.words.get("state").is_none_or(|word| !word.is_empty()) {
                    self.frame().context.insert("cache".to_owned());
                }
                self.state(&bound).ok_or_else(wrong)?
            }
            (ParamKind::Rope, bound) => OpArgument::Text(self.table(bound).ok_or_else(wrong)?),
            (_, bound) => {
                let scalar = self.as_scalar(bound, expr)?;
                let nullable = self.scalars.nullable(&scalar, &self.layer.clone());
                OpArgument::Scalar(scalar, nullable)
            }
        })
    }

    fn state(&mut self, bound: &BoundCode) -> Option<OpArgument> {
        let name = self.state_text(bound, &crate::python::quoted)?;
        let part = self.state_text(bound, &|name| format!("«P:{name}»"))?;
        let values = [("layer", "«E:i»"), ("name", &name), ("part", &part)];
        Some(OpArgument::State { text: self.target.spelled("state", &values), name, part })
    }

    /// Returns a text of a state, or one of two by a condition.
    fn state_text(&mut self, bound: &BoundCode, text: &impl Fn(&str) -> String) -> Option<String> {
        match bound {
            BoundCode::Name(name) => {
                let kind = &self.spec.states.get(name)?.kind;
                if !self.target.states.contains(&kind.name) {
                    let message = format!(
                        "the target `{}` keeps no state of kind `{}`",
                        self.target.name, kind.name
                    );
                    let finding = Finding::error(&kind.at.clone(), message);
                    self.fail(finding);
                }
                Some(text(name))
            }
            BoundCode::Choice(condition, a, b) => {
                let a = self.state_text(a, text)?;
                let b = self.state_text(b, text)?;
                let condition = crate::python::expression(condition).0;
                Some(format!("{a} if {condition} else {b}"))
            }
            _ => None,
        }
    }

    fn table(&mut self, bound: BoundCode) -> Option<String> {
        match bound {
            BoundCode::Name(name) => {
                self.spec.rope.get(&name)?;
                let shown = if self.spec.rope.len() == 1 {
                    "rope".to_owned()
                } else {
                    format!("rope_{name}")
                };
                self.frame().context.insert(shown.clone());
                Some(shown)
            }
            BoundCode::Choice(condition, a, b) => {
                let (a, b) = (self.table(*a)?, self.table(*b)?);
                let condition = crate::python::expression(&condition).0;
                Some(format!("{a} if {condition} else {b}"))
            }
            _ => None,
        }
    }

    /// Returns the path of a weight as an argument, which knows if it is f32 in every run.
    fn weight(&self, param: &Param, path: String) -> OpArgument {
        let suffix = if param.kind == ParamKind::Module { ".weight" } else { "" };
        let wide = self.is_wide(&format!("{path}{suffix}"));
        OpArgument::Path(path, wide)
    }

    /// True if a weight is f32 in every run.
    fn is_wide(&self, path: &str) -> bool {
        let full = self.full_path(path);
        self.spec.kept.f32.iter().any(|pattern| matches(&pattern.name, &full))
    }

    /// Notes a tensor of the model that changes a rotary table.
    fn stretch(&mut self, params: &[Param], args: &OpArguments) {
        let of =
            |kind: ParamKind| params.iter().find(|one| one.kind == kind).map(|one| &args[one.name]);
        if let (Some(OpArgument::Text(table)), Some(OpArgument::Path(path, _))) =
            (of(ParamKind::Rope), of(ParamKind::Tensor))
        {
            self.stretches.insert(table.clone(), path.clone());
        }
    }

    /// Notes a weight that is another's: the optional module of an op is that whose weight its first module takes.
    fn tie(&mut self, params: &[Param], args: &OpArguments) {
        let modules = || params.iter().filter(|param| param.kind == ParamKind::Module);
        let Some(own) = modules().find(|param| param.default.is_none()) else { return };
        let Some(OpArgument::Path(weight, _)) = args.get(own.name) else { return };
        if let Some(tie) = self.ties.last_mut()
            && tie.weight.is_empty()
        {
            tie.weight.clone_from(weight);
        }
        let other = modules().find(|param| param.default.is_some());
        if let Some(OpArgument::Path(other, _)) = other.and_then(|param| args.get(param.name)) {
            let (weight, other) = (weight.clone(), other.clone());
            self.ties.push(Tie { weight, other, condition: None });
        }
    }

    /// Returns what the templates of an op see.
    fn op_context(
        &mut self,
        sheet: &OpSheet,
        params: &[Param],
        args: &OpArguments,
    ) -> BTreeMap<String, minijinja::Value> {
        let mut context: BTreeMap<String, minijinja::Value> = args
            .iter()
            .map(|(name, arg)| ((*name).to_owned(), minijinja::Value::from_object(arg.clone())))
            .collect();
        let mut variant = BTreeMap::new();
        for param in &sheet.variant {
            let value = args.get(param.as_str()).and_then(OpArgument::constant);
            variant.insert(param.clone(), value.unwrap_or(Scalar::Str("any".to_owned())));
        }
        let given: Vec<(String, ArgumentPresence)> =
            params.iter().map(|param| presence(param, &args[param.name])).collect();
        for (n, helper) in sheet.helpers.iter().enumerate().rev() {
            let none = BTreeMap::new();
            let varies = n == 0 || helper.starts_with('*');
            let helper = helper.trim_start_matches('*');
            let shown = self.helpers.note(helper, if varies { &variant } else { &none }, &given);
            let word = if n == 0 { "helper" } else { helper };
            context.insert(word.to_owned(), shown.into());
        }
        for fresh in &sheet.fresh {
            let name = self.fresh(fresh);
            context.insert(fresh.clone(), name.into());
        }
        self.frame().context.extend(sheet.context.iter().cloned());
        if let Some(like) = self.frame().narrow.clone() {
            context.insert("like".to_owned(), like.into());
        }
        let in_trunk = self.prefix.is_some() || self.stack.iter().any(|name| name == TRUNK);
        context.insert("in_head".to_owned(), (!in_trunk).into());
        context
    }

    /// Notes the modules that an op needs, and what keeps its states.
    fn op_modules(
        &mut self,
        sheet: &OpSheet,
        args: &OpArguments,
        rendered: &dyn Fn(&str) -> Result<String, Finding>,
        at: &Span,
    ) -> Result<(), Finding> {
        let mut made = Vec::new();
        for (param, template) in &sheet.modules {
            let (root, suffix) = param.split_once('.').unwrap_or((param, ""));
            let text = rendered(template)?;
            if let (Some(OpArgument::Path(path, _)), false) = (args.get(root), text.is_empty()) {
                let dot = if suffix.is_empty() { "" } else { "." };
                made.push((format!("{path}{dot}{suffix}"), text));
            } else if param.starts_with(OWN) {
                made.push((param.clone(), text));
            }
        }
        let keeps = rendered(&sheet.keeps)?;
        for arg in args.values() {
            if let OpArgument::State { part, .. } = arg {
                self.keep(part, &keeps);
            }
        }
        let mut conditions = self.module_conditions();
        match args.get(rendered(&sheet.takes)?.as_str()) {
            Some(OpArgument::Path(..)) => {
                made.clear();
                self.ties.pop();
            }
            Some(OpArgument::PathIf(_, condition)) => {
                conditions.push(negated(condition));
                self.ties.pop();
            }
            _ => {}
        }
        for (path, made) in made {
            if self.is_outside(&path) {
                let message = format!("`{path}` is no module of the layer");
                return Err(Finding::error(at, message));
            }
            let conditions = conditions.clone();
            self.frame().uses.push(ModuleUse { path, made, conditions });
        }
        Ok(())
    }

    /// Writes the code of a call.
    fn written(
        &mut self,
        name: &str,
        sheet: &OpSheet,
        params: &[Param],
        args: &OpArguments,
        at: &Span,
    ) -> Result<BoundCode, Finding> {
        self.used.insert(name.to_owned());
        let mut context = self.op_context(sheet, params, args);
        let divides = rendered(&sheet.divides, &context, name, at)?;
        let divided = self.division.call(&divides, args);
        context.insert("divided".to_owned(), divided.is_divided.into());
        context.insert("division".to_owned(), divided.matrix.into());
        let context = context;
        let rendered = |template: &str| rendered(template, &context, name, at);
        let before = rendered(&sheet.before)?;
        let call = rendered(&sheet.call)?;
        let dtype = rendered(&sheet.dtype)?;
        self.op_modules(sheet, args, &rendered, at)?;
        for line in before.lines().filter(|line| !line.trim().is_empty()) {
            self.emit(CodeLine::Text(line.to_owned()));
        }
        let wide = is_wide(&dtype, args);
        let gives = rendered(&sheet.gives)?;
        let gives = parse_expr(&MappedText::whole(format!("`gives` of `{name}`"), gives));
        let gives = gives.map_err(|findings| {
            findings.into_iter().next().unwrap_or_else(|| Finding::error(at, "no shape"))
        })?;
        let shapes = crate::shapes::given(&gives, args)?;
        for size in shapes.iter().flatten() {
            self.note_size(size);
        }
        // What an op leaves as it is binds as before.
        let as_before = args.values().find_map(|arg| match arg {
            OpArgument::Value(value) if value.text == call => Some(value.binds),
            _ => None,
        });
        let binds = match as_before {
            Some(binds) => binds,
            None => CodeValue::binds(&rendered(&sheet.binds)?),
        };
        let mut shapes = shapes.into_iter();
        match (shapes.next(), shapes.len()) {
            (Some(shape), 0) => {
                let sources = divided.sources;
                Ok(BoundCode::Value(CodeValue { text: call, binds, shape, wide, sources }))
            }
            (first, _) => {
                let shapes = first.into_iter().chain(shapes).collect();
                Ok(self.several(&call, shapes, wide, &divided.sources))
            }
        }
    }

    /// Notes what keeps a state of the layers under way; of several ways the shortest, which is the most general.
    fn keep(&mut self, part: &str, keeps: &str) {
        let names = part.split("«P:").skip(1).filter_map(|text| text.split_once('»'));
        for (name, _) in names.filter(|_| !keeps.is_empty()) {
            let kept = self.kept.entry(name.to_owned()).or_insert_with(|| keeps.to_owned());
            if keeps.len() < kept.len() {
                keeps.clone_into(kept);
            }
        }
    }

    /// Assigns the results of a call with several.
    fn several(
        &mut self,
        call: &str,
        shapes: Vec<Vec<Expr>>,
        wide: bool,
        sources: &BTreeSet<String>,
    ) -> BoundCode {
        let names: Vec<String> = shapes.iter().map(|_| self.fresh("part")).collect();
        self.emit(crate::value::assigned(&names.join(", "), call));
        let values = names.into_iter().zip(shapes);
        let values = values.map(|(text, shape)| {
            let sources = sources.clone();
            CodeValue { text, binds: ATOM, shape, wide, sources }
        });
        BoundCode::Values(values.collect())
    }
}

/// True if an op is written once for each of the two arguments that a condition chooses from: modules, and words that make variants of a helper.
fn parts(param: &Param, sheet: &OpSheet, bound: &BoundCode) -> bool {
    let BoundCode::Choice(_, yes, no) = bound else { return false };
    match param.kind {
        ParamKind::Tensor => true,
        ParamKind::Module => param.default.is_none(),
        _ => {
            sheet.variant.iter().any(|name| name == param.name)
                && [yes, no].into_iter().all(|one| is_word(one))
        }
    }
}

fn is_word(bound: &BoundCode) -> bool {
    matches!(bound, BoundCode::Scalar(Expr { kind: ExprKind::Str(_), .. }))
}

/// Returns how an argument is given; one that equals its default is not given.
fn presence(param: &Param, arg: &OpArgument) -> (String, ArgumentPresence) {
    let maybe = matches!(arg, OpArgument::Scalar(_, true));
    let usual = param.default.is_some() && arg.constant() == param.default;
    let null = arg.is_null() || usual;
    (param.name.to_owned(), ArgumentPresence { some: !null, null: null || maybe })
}

/// True if a result is f32 in every run.
fn is_wide(dtype: &str, args: &OpArguments) -> bool {
    match dtype {
        "f32" => true,
        "activation" => false,
        _ => args.values().any(|arg| match arg {
            OpArgument::Value(value) => value.wide,
            OpArgument::Values(values) => values.iter().any(|value| value.wide),
            _ => false,
        }),
    }
}

/// Fills a template of a sheet.
fn rendered(
    template: &str,
    context: &BTreeMap<String, minijinja::Value>,
    op: &str,
    at: &Span,
) -> Result<String, Finding> {
    if !template.contains('{') {
        return Ok(template.trim_end().to_owned());
    }
    let mut environment = Environment::new();
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Lenient);
    environment.add_function("refuse", crate::helpers::refuse);
    let text = environment.render_str(template, context).map_err(|error| {
        let detail = error.detail().filter(|_| error.kind() == REFUSAL);
        let message = match detail {
            Some(form) => format!("the target has no code for the op `{op}` with {form}"),
            None => format!("the template of the op `{op}` fails: {error}"),
        };
        Finding::error(at, message)
    })?;
    Ok(text.trim_end().to_owned())
}

/// Returns a number with the other sign.
fn negative(number: &Expr) -> Expr {
    match &number.kind {
        ExprKind::Int(n) => symbol::with(number, ExprKind::Int(-n)),
        ExprKind::Float(x) => symbol::with(number, ExprKind::Float(-x)),
        _ => {
            let inner = Box::new(number.clone());
            symbol::with(number, ExprKind::Unary(registry::syntax::UnaryOp::Neg, inner))
        }
    }
}

/// True if a pattern, in which `*` is any text, matches a name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            (0..=tail.len()).any(|n| tail.is_char_boundary(n) && matches(rest, &tail[n..]))
        }),
    }
}
