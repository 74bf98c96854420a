//! Walks the programs of a spec and writes them as methods.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use registry::diag::Finding;
use registry::ops::OpSet;
use registry::spec::Spec;
use registry::syntax::{Arg, BinaryOp, Expr, ExprKind, Function, Ident};

use crate::division::Division;
use crate::helpers::Helpers;
use crate::modules::{LentModule, ModuleChoice};
use crate::python::binding::{ATOM, IF};
use crate::python::expression;
use crate::scalars::{LayerSymbols, Scalars};
use crate::symbol::{self, decided, negated, rebuilt};
use crate::target::Target;
use crate::value::{BoundCode, CodeLine, CodeValue, Method, MethodCall, ModuleUse, assigned};

/// Variables of a program.
pub(crate) type Locals = BTreeMap<String, BoundCode>;

/// Parts of a method whose body is being walked.
#[derive(Debug, Default)]
pub(crate) struct MethodFrame {
    /// Blocks under way; statements go to the last.
    pub(crate) blocks: Vec<Vec<CodeLine>>,
    /// Conditions of the blocks.
    pub(crate) conditions: Vec<Expr>,
    pub(crate) uses: Vec<ModuleUse>,
    pub(crate) calls: Vec<MethodCall>,
    pub(crate) context: BTreeSet<String>,
    /// Names of variables so far.
    pub(crate) names: BTreeSet<String>,
    /// A variable of the dtype that the model computes in.
    pub(crate) narrow: Option<String>,
    pub(crate) has_layers: bool,
}

impl MethodFrame {
    /// Notes that a variable has another value.
    pub(crate) fn rewritten(&mut self, name: &str, wide: bool) {
        if wide && self.narrow.as_deref() == Some(name) {
            self.narrow = None;
        } else if !wide && self.narrow.is_none() && self.blocks.len() == 1 {
            self.narrow = Some(name.to_owned());
        }
    }
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
    pub(crate) layer: LayerSymbols,
    /// The prefix of weights in layers, with 0 for its holes; none outside layers.
    pub(crate) prefix: Option<String>,
    pub(crate) methods: Vec<Method>,
    pub(crate) known: BTreeMap<String, usize>,
    pub(crate) frames: Vec<MethodFrame>,
    pub(crate) helpers: Helpers,
    pub(crate) ties: Vec<Tie>,
    /// Tensors that change rotary tables, by table.
    pub(crate) stretches: BTreeMap<String, String>,
    /// Modules that layers take from elsewhere.
    pub(crate) lent: Vec<LentModule>,
    pub(crate) choices: Vec<ModuleChoice>,
    pub(crate) findings: Vec<Finding>,
    /// Functions under way.
    pub(crate) stack: Vec<String>,
    /// Classes of the layers, and the values that they take from outside.
    pub(crate) layers: crate::modules::LayerClasses,
    /// Code that makes the caches of the layers under way, by state.
    pub(crate) kept: IndexMap<String, String>,
    /// Ops that were written.
    pub(crate) used: BTreeSet<String>,
    /// Dims that are sizes of values in every config.
    pub(crate) sizes: BTreeSet<String>,
    /// The trunk of the model, as a function.
    pub(crate) trunk: Option<Function>,
    /// Matrices that ranks can divide.
    pub(crate) division: Division,
    /// Expressions that were evaluated.
    pub(crate) evaluated: usize,
}

/// The most expressions that are evaluated for one spec; each of those here has fewer than 3,000.
const MAX_EXPRESSIONS: usize = 50_000;

/// The most bytes in the code of one value; each of those here has fewer than 1,500.
const MAX_TEXT: usize = 10_000;

impl Walk<'_> {
    pub(crate) fn frame(&mut self) -> &mut MethodFrame {
        self.frames.last_mut().expect("a method is under way")
    }

    pub(crate) fn emit(&mut self, line: CodeLine) {
        self.frame().blocks.last_mut().expect("a block is under way").push(line);
    }

    pub(crate) fn fail(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Notes that the model has a form, of which the target has to be capable.
    pub(crate) fn needs(&mut self, form: &str, what: &str, at: &Expr) {
        if !self.target.forms.iter().any(|name| name == form) {
            let message = format!("the target `{}` has no {what}", self.target.name);
            self.fail(Finding::error(&at.at, message));
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
                Some(BoundCode::Scalar(scalar)) => Ok(scalar.clone()),
                Some(BoundCode::Name(path)) => {
                    let ident = Ident { name: path.clone(), at: name.at.clone() };
                    self.global(&ident, expr)
                }
                Some(BoundCode::Choice(condition, a, b)) => {
                    let (condition, a, b) = (condition.clone(), (**a).clone(), (**b).clone());
                    let then = self.as_scalar(a, expr)?;
                    let otherwise = self.as_scalar(b, expr)?;
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

    pub(crate) fn as_scalar(&mut self, bound: BoundCode, at: &Expr) -> Result<Expr, Finding> {
        match bound {
            BoundCode::Scalar(expr) => Ok(expr),
            BoundCode::Name(name) => self.global(&Ident { name, at: at.at.clone() }, at),
            BoundCode::Choice(condition, a, b) => {
                let then = Box::new(self.as_scalar(*a, at)?);
                let otherwise = Box::new(self.as_scalar(*b, at)?);
                let condition = Box::new(condition);
                Ok(symbol::fold(symbol::with(at, ExprKind::If { then, condition, otherwise })))
            }
            _ => Err(Finding::error(&at.at, "this is a value, expected a number or a text")),
        }
    }

    /// Evaluates an expression of a program.
    pub(crate) fn eval(&mut self, expr: &Expr, locals: &Locals) -> Result<BoundCode, Finding> {
        self.evaluated += 1;
        if self.evaluated > MAX_EXPRESSIONS {
            let message = format!("the programs have more than {MAX_EXPRESSIONS} expressions");
            return Err(Finding::error(&expr.at, message)
                .help("functions that call functions twice each multiply them"));
        }
        let bound = self.evaluate(expr, locals)?;
        match &bound {
            BoundCode::Value(value) if value.text.len() > MAX_TEXT => {
                let message = format!("the code of this value has more than {MAX_TEXT} bytes");
                Err(Finding::error(&expr.at, message).help("give parts of it names"))
            }
            _ => Ok(bound),
        }
    }

    fn evaluate(&mut self, expr: &Expr, locals: &Locals) -> Result<BoundCode, Finding> {
        match &expr.kind {
            ExprKind::Path(names) => self.path(names, locals, expr),
            ExprKind::Call(name, args) => self.call(name, args, expr, locals),
            ExprKind::Binary(op, left, right)
                if matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div) =>
            {
                let left_bound = self.eval(left, locals)?;
                let right_bound = self.eval(right, locals)?;
                self.operator(*op, (left_bound, left), (right_bound, right), expr)
            }
            ExprKind::If { then, condition, otherwise } => {
                let condition = self.scalar(condition, locals, &mut Vec::new())?;
                match decided(&condition) {
                    Some(true) => self.eval(then, locals),
                    Some(false) => self.eval(otherwise, locals),
                    None => self.choice(condition, then, otherwise, locals),
                }
            }
            _ => self.scalar(expr, locals, &mut Vec::new()).map(BoundCode::Scalar),
        }
    }

    /// Evaluates in a block of its own, under a condition.
    pub(crate) fn branch<T>(
        &mut self,
        condition: Expr,
        run: impl FnOnce(&mut Self) -> Result<T, Finding>,
    ) -> Result<(T, Vec<CodeLine>), Finding> {
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
    ) -> Result<BoundCode, Finding> {
        if let (ExprKind::Call(a, with), ExprKind::Call(b, without)) = (&then.kind, &otherwise.kind)
            && a.name == "layers"
            && b.name == "layers"
            && without.len() == 1
        {
            return self.layers_if(&condition, with, then, locals);
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
        (yes, mut yes_lines): (BoundCode, Vec<CodeLine>),
        (no, mut no_lines): (BoundCode, Vec<CodeLine>),
        at: &Expr,
    ) -> Result<BoundCode, Finding> {
        match (yes, no) {
            (BoundCode::Value(a), BoundCode::Value(b)) => {
                let wide = a.wide || b.wide;
                let sources = self.division.meet(&[&a, &b]);
                let equal = matches!(condition.kind, ExprKind::Binary(BinaryOp::Eq, ..));
                let shape = if equal { b.shape.clone() } else { a.shape.clone() };
                if a.text == b.text && yes_lines.is_empty() && no_lines.is_empty() {
                    return Ok(BoundCode::Value(a));
                }
                let text = if yes_lines.is_empty() && no_lines.is_empty() {
                    let condition = crate::python::enclosed(&expression(&condition), IF + 1);
                    let text = format!("‹{}¦{condition}¦{}›", a.at(IF + 1), b.text);
                    return Ok(BoundCode::Value(CodeValue {
                        text,
                        binds: IF,
                        shape,
                        wide,
                        sources,
                    }));
                } else {
                    let name = self.fresh("y");
                    yes_lines.push(assigned(&name, &a.text));
                    no_lines.push(assigned(&name, &b.text));
                    name
                };
                self.emit(CodeLine::If(expression(&condition).0, yes_lines, no_lines));
                Ok(BoundCode::Value(CodeValue { text, binds: ATOM, shape, wide, sources }))
            }
            (BoundCode::Values(a), BoundCode::Values(b)) if a.len() == b.len() => {
                let names: Vec<String> = a.iter().map(|_| self.fresh("part")).collect();
                let targets = names.join(", ");
                let texts = |values: &[CodeValue]| {
                    values.iter().map(|value| value.text.as_str()).collect::<Vec<_>>().join(", ")
                };
                yes_lines.push(assigned(&targets, &texts(&a)));
                no_lines.push(assigned(&targets, &texts(&b)));
                self.emit(CodeLine::If(expression(&condition).0, yes_lines, no_lines));
                let values = names.into_iter().zip(a.into_iter().zip(b)).map(|(text, (a, b))| {
                    let shape = shape_of_either(&condition, &a.shape, &b.shape);
                    let sources = self.division.meet(&[&a, &b]);
                    CodeValue { text, binds: ATOM, shape, sources, ..a }
                });
                Ok(BoundCode::Values(values.collect()))
            }
            (BoundCode::Value(_) | BoundCode::Values(_), _)
            | (_, BoundCode::Value(_) | BoundCode::Values(_)) => {
                Err(Finding::error(&at.at, "one branch is a value and the other is not"))
            }
            (a, b) => Ok(BoundCode::Choice(condition, Box::new(a), Box::new(b))),
        }
    }

    fn call(
        &mut self,
        name: &Ident,
        args: &[Arg],
        expr: &Expr,
        locals: &Locals,
    ) -> Result<BoundCode, Finding> {
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
        self.scalar(expr, locals, &mut Vec::new()).map(BoundCode::Scalar)
    }

    /// Returns the meaning of a path in a program.
    fn path(&mut self, names: &[Ident], locals: &Locals, at: &Expr) -> Result<BoundCode, Finding> {
        let rest: Vec<&str> = names.iter().skip(1).map(|name| name.name.as_str()).collect();
        let Some(first) = names.first() else { return Ok(BoundCode::Name(String::new())) };
        let path = match locals.get(&first.name) {
            Some(bound) if rest.is_empty() => return Ok(bound.clone()),
            Some(BoundCode::Name(path)) => path.clone(),
            Some(BoundCode::Scalar(text)) => self.path_of(text)?,
            Some(_) => {
                let message = format!("`{}` is a path that depends on the config", first.name);
                return Err(Finding::error(&at.at, message)
                    .help("code is written for modules of a layer's own"));
            }
            None => first.name.clone(),
        };
        Ok(BoundCode::Name([&[path.as_str()], rest.as_slice()].concat().join(".")))
    }
}

/// Returns the shape of one of two values by a condition. Two expressions may be the same size, a number and an expression are not.
fn shape_of_either(condition: &Expr, a: &[Expr], b: &[Expr]) -> Vec<Expr> {
    if a.len() != b.len() {
        return a.to_vec();
    }
    let either = |(a, b): (&Expr, &Expr)| {
        let is_number = |size: &Expr| matches!(size.kind, ExprKind::Int(_));
        if a.kind == b.kind || is_number(a) == is_number(b) {
            return a.clone();
        }
        let then = Box::new(a.clone());
        let otherwise = Box::new(b.clone());
        let condition = Box::new(condition.clone());
        symbol::fold(symbol::with(a, ExprKind::If { then, condition, otherwise }))
    };
    a.iter().zip(b).map(either).collect()
}
