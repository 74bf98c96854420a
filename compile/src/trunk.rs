//! Divides the program of a model into its trunk, whose weights lie in one module, and its head.

use std::collections::BTreeSet;

use registry::spec::Spec;
use registry::syntax::{Arg, Expr, ExprKind, Function, FunctionParam, Ident, Program, Stmt};

/// The name of the function that the trunk becomes.
pub(crate) const TRUNK: &str = "model";

/// Names that an expression touches.
#[derive(Debug, Default, Clone, Copy)]
struct Touches {
    trunk: bool,
    head: bool,
}

struct Divider<'s> {
    spec: &'s Spec,
    root: String,
}

/// Returns the trunk as a function of the tokens, and the program that calls it; none where the two cannot be told apart.
pub(crate) fn divided(spec: &Spec) -> Option<(Function, Program)> {
    let prefix = &spec.layers.as_ref()?.prefix.name;
    let (root, rest) = prefix.split_once('.')?;
    if rest == "{i}" || root.contains('{') {
        return None;
    }
    let divider = Divider { spec, root: root.to_owned() };
    let program = &spec.model;
    let [result] = program.result.as_slice() else { return None };
    let mut locals = BTreeSet::from(["tokens".to_owned()]);
    let mut last = None;
    for (n, statement) in program.body.iter().enumerate() {
        let touches = divider.touches(&statement.value, &locals, 0);
        if touches.trunk {
            last = Some(n);
        }
        locals.extend(statement.targets.iter().map(|target| target.name.clone()));
    }
    let in_result = divider.touches(result, &locals, 0).trunk;
    let cut = if in_result { program.body.len() } else { last? };
    let early = &program.body[..cut];
    let known: BTreeSet<String> = early
        .iter()
        .flat_map(|statement| &statement.targets)
        .map(|target| target.name.clone())
        .collect();
    if early.iter().any(|statement| divider.touches(&statement.value, &locals, 0).head) {
        return None;
    }
    let whole = if in_result { result } else { &program.body[cut].value };
    let touched = divider.touches(whole, &locals, 0);
    let part = if touched.head { divider.only_trunk(whole, &locals)? } else { whole.clone() };
    let at = part.at.clone();
    let ident = |name: &str| Ident { name: name.to_owned(), at: at.clone() };
    let call = Expr {
        kind: ExprKind::Call(
            ident(TRUNK),
            vec![Arg {
                name: None,
                value: Expr { kind: ExprKind::Path(vec![ident("tokens")]), at: at.clone() },
            }],
        ),
        at: at.clone(),
    };
    let name = match (in_result || touched.head, program.body.get(cut)) {
        (false, Some(statement)) => match statement.targets.as_slice() {
            [target] => target.name.clone(),
            _ => return None,
        },
        _ => "x".to_owned(),
    };
    let variable = Expr { kind: ExprKind::Path(vec![ident(&name)]), at: at.clone() };
    let mut body = vec![Stmt { targets: vec![ident(&name)], value: call }];
    let mut results = program.result.clone();
    if touched.head && in_result {
        results = vec![replaced(result, &part, &variable)];
    } else if touched.head {
        let statement = &program.body[cut];
        let value = replaced(&statement.value, &part, &variable);
        body.push(Stmt { targets: statement.targets.clone(), value });
    } else if in_result {
        results = vec![variable];
    }
    body.extend(program.body.iter().skip(cut + 1).cloned());
    // Nothing behind the trunk may read a variable of it.
    let mut defined = BTreeSet::from([name]);
    for statement in &body[1..] {
        if reads(&statement.value)
            .iter()
            .any(|read| known.contains(read) && !defined.contains(read))
        {
            return None;
        }
        defined.extend(statement.targets.iter().map(|target| target.name.clone()));
    }
    if results.iter().any(|result| {
        reads(result).iter().any(|read| known.contains(read) && !defined.contains(read))
    }) {
        return None;
    }
    let function = Function {
        name: ident(TRUNK),
        params: vec![FunctionParam { name: ident("tokens"), default: None }],
        program: Program { body: early.to_vec(), result: vec![part], at: program.at.clone() },
    };
    Some((function, Program { body, result: results, at: program.at.clone() }))
}

impl Divider<'_> {
    /// Returns what an expression touches; `tied=` names a weight that another module has.
    fn touches(&self, expr: &Expr, locals: &BTreeSet<String>, depth: usize) -> Touches {
        let mut all = Touches::default();
        let mut add = |one: Touches| {
            all.trunk |= one.trunk;
            all.head |= one.head;
        };
        match &expr.kind {
            ExprKind::Path(names) => add(self.path(names, locals)),
            ExprKind::Call(name, args) => {
                if name.name == "layers" {
                    add(Touches { trunk: true, head: false });
                }
                for arg in args
                    .iter()
                    .filter(|arg| arg.name.as_ref().is_none_or(|name| name.name != "tied"))
                {
                    add(self.touches(&arg.value, locals, depth));
                }
                if let Some(function) = self.spec.functions.get(&name.name).filter(|_| depth < 8) {
                    let mut inner: BTreeSet<String> =
                        function.params.iter().map(|param| param.name.name.clone()).collect();
                    for statement in &function.program.body {
                        add(self.touches(&statement.value, &inner, depth + 1));
                        inner.extend(statement.targets.iter().map(|target| target.name.clone()));
                    }
                    for result in &function.program.result {
                        add(self.touches(result, &inner, depth + 1));
                    }
                }
            }
            ExprKind::If { then, otherwise, .. } => {
                add(self.touches(then, locals, depth));
                add(self.touches(otherwise, locals, depth));
            }
            ExprKind::Binary(_, a, b) => {
                add(self.touches(a, locals, depth));
                add(self.touches(b, locals, depth));
            }
            ExprKind::Unary(_, a) => add(self.touches(a, locals, depth)),
            _ => {}
        }
        all
    }

    fn path(&self, names: &[Ident], locals: &BTreeSet<String>) -> Touches {
        let Some(first) = names.first() else { return Touches::default() };
        let spec = self.spec;
        let known = locals.contains(&first.name)
            || (names.len() == 1
                && (spec.dims.contains_key(&first.name)
                    || spec.states.contains_key(&first.name)
                    || spec.rope.contains_key(&first.name)
                    || spec.layers.as_ref().is_some_and(|layers| {
                        layers.each.contains_key(&first.name)
                            || ["i", "kind"].contains(&first.name.as_str())
                    })));
        if known {
            return Touches::default();
        }
        let trunk = first.name == self.root;
        Touches { trunk, head: !trunk }
    }

    /// Returns the one largest part that touches the trunk alone.
    fn only_trunk(&self, expr: &Expr, locals: &BTreeSet<String>) -> Option<Expr> {
        let mut parts = Vec::new();
        self.collect(expr, locals, &mut parts);
        match parts.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    fn collect(&self, expr: &Expr, locals: &BTreeSet<String>, parts: &mut Vec<Expr>) {
        let touches = self.touches(expr, locals, 0);
        if touches.trunk && !touches.head {
            parts.push(expr.clone());
            return;
        }
        match &expr.kind {
            ExprKind::Call(_, args) => {
                for arg in args
                    .iter()
                    .filter(|arg| arg.name.as_ref().is_none_or(|name| name.name != "tied"))
                {
                    self.collect(&arg.value, locals, parts);
                }
            }
            ExprKind::If { then, otherwise, .. } => {
                self.collect(then, locals, parts);
                self.collect(otherwise, locals, parts);
            }
            ExprKind::Binary(_, a, b) => {
                self.collect(a, locals, parts);
                self.collect(b, locals, parts);
            }
            _ => {}
        }
    }
}

fn replaced(expr: &Expr, part: &Expr, by: &Expr) -> Expr {
    if expr == part {
        return by.clone();
    }
    let kind = match &expr.kind {
        ExprKind::Call(name, args) => ExprKind::Call(
            name.clone(),
            args.iter()
                .map(|arg| Arg { name: arg.name.clone(), value: replaced(&arg.value, part, by) })
                .collect(),
        ),
        ExprKind::Binary(op, a, b) => {
            ExprKind::Binary(*op, Box::new(replaced(a, part, by)), Box::new(replaced(b, part, by)))
        }
        ExprKind::If { then, condition, otherwise } => ExprKind::If {
            then: Box::new(replaced(then, part, by)),
            condition: condition.clone(),
            otherwise: Box::new(replaced(otherwise, part, by)),
        },
        other => other.clone(),
    };
    Expr { kind, at: expr.at.clone() }
}

/// Returns the variables that an expression may read.
fn reads(expr: &Expr) -> Vec<String> {
    let mut names = Vec::new();
    crate::symbol::names(expr, &mut |name| names.push(name.to_owned()));
    names
}
