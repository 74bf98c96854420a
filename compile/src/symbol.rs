//! Scalars that are known by name: expressions over dims and per-layer scalars, folded where they are constant.
//!
//! Names are marked by what they are: `D:hidden` is a dim, `E:window` a scalar of the layer; a loop variable has no mark.

use registry::scalar::Scalar;
use registry::syntax::{Arg, BinaryOp, Expr, ExprKind, Ident, UnaryOp};

/// Returns a node with another kind at the same place.
pub(crate) fn with(expr: &Expr, kind: ExprKind) -> Expr {
    Expr { kind, at: expr.at.clone() }
}

/// Returns a marked name.
pub(crate) fn marked(mark: &str, name: &str, at: &Expr) -> Expr {
    let ident = Ident { name: format!("{mark}:{name}"), at: at.at.clone() };
    with(at, ExprKind::Path(vec![ident]))
}

/// Returns the value of a constant expression.
pub(crate) fn constant(expr: &Expr) -> Option<Scalar> {
    Some(match &expr.kind {
        ExprKind::Null => Scalar::Null,
        ExprKind::Bool(flag) => Scalar::Bool(*flag),
        ExprKind::Int(n) => Scalar::Int(*n),
        ExprKind::Float(x) => Scalar::Float(*x),
        ExprKind::Str(text) => Scalar::Str(text.clone()),
        ExprKind::List(items) => {
            Scalar::List(items.iter().map(constant).collect::<Option<Vec<_>>>()?)
        }
        ExprKind::Unary(UnaryOp::Neg, inner) => match constant(inner)? {
            Scalar::Int(n) => Scalar::Int(n.checked_neg()?),
            Scalar::Float(x) => Scalar::Float(-x),
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns the truth of a constant.
fn truth(value: &Scalar) -> bool {
    match value {
        Scalar::Null => false,
        Scalar::Bool(flag) => *flag,
        Scalar::Int(n) => *n != 0,
        Scalar::Float(x) => *x != 0.0,
        Scalar::Str(text) => !text.is_empty(),
        Scalar::List(items) => !items.is_empty(),
        Scalar::Map(entries) => !entries.is_empty(),
    }
}

/// Returns the truth of an expression, if it is the same in every config.
pub(crate) fn decided(expr: &Expr) -> Option<bool> {
    constant(expr).as_ref().map(truth)
}

fn same(left: &Scalar, right: &Scalar) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => left == right,
    }
}

/// Simplifies the outermost node of an expression whose parts are folded.
pub(crate) fn fold(expr: Expr) -> Expr {
    let kind = match &expr.kind {
        ExprKind::If { then, condition, otherwise } => match decided(condition) {
            Some(true) => return (**then).clone(),
            Some(false) => return (**otherwise).clone(),
            None => None,
        },
        ExprKind::Unary(UnaryOp::Not, inner) => decided(inner).map(|flag| ExprKind::Bool(!flag)),
        ExprKind::Binary(op, left, right) => return binary(&expr, *op, left, right),
        ExprKind::Index(base, key) => match (&base.kind, &key.kind) {
            (ExprKind::List(items), ExprKind::Int(n)) => {
                return usize::try_from(*n)
                    .ok()
                    .and_then(|n| items.get(n).cloned())
                    .unwrap_or(expr);
            }
            _ => None,
        },
        _ => None,
    };
    match kind {
        Some(kind) => with(&expr, kind),
        None => expr,
    }
}

fn binary(expr: &Expr, op: BinaryOp, left: &Expr, right: &Expr) -> Expr {
    let values = (constant(left), constant(right));
    match (op, decided(left), decided(right)) {
        (BinaryOp::And, Some(true), _) | (BinaryOp::Or, Some(false), _) => return right.clone(),
        (BinaryOp::And, Some(false), _)
        | (BinaryOp::Or, Some(true), _)
        | (BinaryOp::And, _, Some(true))
        | (BinaryOp::Or, _, Some(false)) => return left.clone(),
        _ => {}
    }
    let kind = match (op, values) {
        (BinaryOp::Eq, (Some(a), Some(b))) => Some(ExprKind::Bool(same(&a, &b))),
        (BinaryOp::Ne, (Some(a), Some(b))) => Some(ExprKind::Bool(!same(&a, &b))),
        (BinaryOp::In, (Some(a), Some(Scalar::List(items)))) => {
            Some(ExprKind::Bool(items.iter().any(|item| same(item, &a))))
        }
        (BinaryOp::NotIn, (Some(a), Some(Scalar::List(items)))) => {
            Some(ExprKind::Bool(!items.iter().any(|item| same(item, &a))))
        }
        (_, (Some(a), Some(b))) => arithmetic(op, &a, &b),
        (BinaryOp::Add | BinaryOp::Sub, (None, Some(Scalar::Int(n)))) => {
            let n = if op == BinaryOp::Add { Some(n) } else { n.checked_neg() };
            return n.and_then(|n| shifted(left, n, expr)).unwrap_or_else(|| expr.clone());
        }
        (BinaryOp::Mul, (Some(one), None)) if is_one(&one) => return right.clone(),
        (BinaryOp::Mul, (None, Some(one))) if is_one(&one) => return left.clone(),
        (BinaryOp::Add, (Some(Scalar::Int(0)), None)) => return right.clone(),
        _ => None,
    };
    kind.map_or_else(|| expr.clone(), |kind| with(expr, kind))
}

/// Adds an integer to an expression, or to one that it ends with; none if the sum is too large.
fn shifted(left: &Expr, n: i64, at: &Expr) -> Option<Expr> {
    let ended = match &left.kind {
        ExprKind::Binary(BinaryOp::Add, inner, last) => Some((inner, last, 1)),
        ExprKind::Binary(BinaryOp::Sub, inner, last) => Some((inner, last, -1)),
        _ => None,
    };
    let (inner, n) = match ended {
        Some((inner, last, sign)) if let ExprKind::Int(m) = last.kind => {
            (&**inner, m.checked_mul(sign)?.checked_add(n)?)
        }
        _ => (left, n),
    };
    let op = match n {
        0 => return Some(inner.clone()),
        1.. => BinaryOp::Add,
        _ => BinaryOp::Sub,
    };
    let size = with(at, ExprKind::Int(n.checked_abs()?));
    Some(with(at, ExprKind::Binary(op, Box::new(inner.clone()), Box::new(size))))
}

fn is_one(value: &Scalar) -> bool {
    *value == Scalar::Int(1)
}

fn arithmetic(op: BinaryOp, left: &Scalar, right: &Scalar) -> Option<ExprKind> {
    if let (Scalar::Int(a), Scalar::Int(b)) = (left, right) {
        return match op {
            BinaryOp::Add => a.checked_add(*b).map(ExprKind::Int),
            BinaryOp::Sub => a.checked_sub(*b).map(ExprKind::Int),
            BinaryOp::Mul => a.checked_mul(*b).map(ExprKind::Int),
            BinaryOp::Lt => Some(ExprKind::Bool(a < b)),
            BinaryOp::Le => Some(ExprKind::Bool(a <= b)),
            BinaryOp::Gt => Some(ExprKind::Bool(a > b)),
            BinaryOp::Ge => Some(ExprKind::Bool(a >= b)),
            _ => None,
        };
    }
    let (a, b) = (left.as_f64()?, right.as_f64()?);
    match op {
        BinaryOp::Mul => Some(ExprKind::Float(a * b)),
        BinaryOp::Lt => Some(ExprKind::Bool(a < b)),
        BinaryOp::Gt => Some(ExprKind::Bool(a > b)),
        _ => None,
    }
}

/// Rebuilds an expression from parts that a function gives, and folds it.
pub(crate) fn rebuilt<E>(
    expr: &Expr,
    part: &mut impl FnMut(&Expr) -> Result<Expr, E>,
) -> Result<Expr, E> {
    let mut boxed = |inner: &Expr| part(inner).map(Box::new);
    let kind = match &expr.kind {
        ExprKind::Index(base, key) => ExprKind::Index(boxed(base)?, boxed(key)?),
        ExprKind::Slice(base, from, to) => ExprKind::Slice(
            boxed(base)?,
            from.as_deref().map(&mut boxed).transpose()?,
            to.as_deref().map(&mut boxed).transpose()?,
        ),
        ExprKind::Unary(op, inner) => ExprKind::Unary(*op, boxed(inner)?),
        ExprKind::Binary(op, left, right) => ExprKind::Binary(*op, boxed(left)?, boxed(right)?),
        ExprKind::If { then, condition, otherwise } => {
            let condition = boxed(condition)?;
            match decided(&condition) {
                Some(true) => return part(then),
                Some(false) => return part(otherwise),
                None => {
                    ExprKind::If { then: boxed(then)?, condition, otherwise: boxed(otherwise)? }
                }
            }
        }
        ExprKind::List(items) => {
            ExprKind::List(items.iter().map(&mut *part).collect::<Result<_, _>>()?)
        }
        ExprKind::Call(name, args) => {
            let mut bound = Vec::new();
            for arg in args {
                bound.push(Arg { name: arg.name.clone(), value: part(&arg.value)? });
            }
            ExprKind::Call(name.clone(), bound)
        }
        ExprKind::Comprehension { body, variable, over, filter } => ExprKind::Comprehension {
            over: boxed(over)?,
            body: boxed(body)?,
            variable: variable.clone(),
            filter: filter.as_deref().map(&mut boxed).transpose()?,
        },
        other => other.clone(),
    };
    Ok(fold(with(expr, kind)))
}

/// Visits the names of an expression with their marks.
pub(crate) fn names<'e>(expr: &'e Expr, visit: &mut impl FnMut(&'e str)) {
    match &expr.kind {
        ExprKind::Path(path) => {
            if let [name] = path.as_slice() {
                visit(&name.name);
            }
        }
        ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) => {
            names(a, visit);
            names(b, visit);
        }
        ExprKind::Slice(a, from, to) => {
            names(a, visit);
            from.iter().chain(to).for_each(|part| names(part, visit));
        }
        ExprKind::Unary(_, a) => names(a, visit),
        ExprKind::Call(_, args) => args.iter().for_each(|arg| names(&arg.value, visit)),
        ExprKind::If { then, condition, otherwise } => {
            for part in [then, condition, otherwise] {
                names(part, visit);
            }
        }
        ExprKind::List(items) => items.iter().for_each(|item| names(item, visit)),
        ExprKind::Comprehension { body, over, filter, .. } => {
            names(body, visit);
            names(over, visit);
            if let Some(filter) = filter {
                names(filter, visit);
            }
        }
        _ => {}
    }
}

/// Returns the condition that two expressions are equal.
pub(crate) fn equal(left: Expr, right: Expr) -> Expr {
    let at = left.at.clone();
    Expr { kind: ExprKind::Binary(BinaryOp::Eq, Box::new(left), Box::new(right)), at }
}

/// Returns the list of which an expression is an item by the number of the layer.
pub(crate) fn is_item(expr: &Expr) -> Option<&Expr> {
    match &expr.kind {
        ExprKind::Index(list, key) => match &key.kind {
            ExprKind::Path(names) if names[0].name.starts_with("E:") => Some(list),
            _ => None,
        },
        _ => None,
    }
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
    with(condition, kind)
}
