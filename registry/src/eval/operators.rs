//! Operators, indexing and truth.

use super::{MAX_ITEMS, expected};
use crate::diag::{Finding, Span};
use crate::scalar::Scalar;
use crate::syntax::{BinaryOp, UnaryOp};

/// A number, as arithmetic sees it. Booleans count as 0 and 1, as in Python.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Scalar) -> Option<Self> {
        match value {
            Scalar::Bool(b) => Some(Self::Int(i64::from(*b))),
            Scalar::Int(n) => Some(Self::Int(*n)),
            Scalar::Float(x) => Some(Self::Float(*x)),
            _ => None,
        }
    }

    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(n) => n as f64,
            Self::Float(x) => x,
        }
    }
}

/// True if a value counts as true.
pub fn truth(value: &Scalar) -> bool {
    match value {
        Scalar::Null => false,
        Scalar::Bool(b) => *b,
        Scalar::Int(n) => *n != 0,
        Scalar::Float(x) => *x != 0.0,
        Scalar::Str(s) => !s.is_empty(),
        Scalar::List(items) => !items.is_empty(),
        Scalar::Map(entries) => !entries.is_empty(),
    }
}

/// Evaluates `-x` and `not x`.
pub fn unary(op: UnaryOp, value: &Scalar, at: &Span) -> Result<Scalar, Finding> {
    match (op, Number::of(value)) {
        (UnaryOp::Not, _) => Ok(Scalar::Bool(!truth(value))),
        (UnaryOp::Neg, Some(Number::Int(n))) => {
            n.checked_neg().map(Scalar::Int).ok_or_else(|| too_large(at))
        }
        (UnaryOp::Neg, Some(Number::Float(x))) => Ok(Scalar::Float(-x)),
        (UnaryOp::Neg, None) => {
            Err(Finding::error(at, "`-` needs a number").label(expected("a number", value)))
        }
    }
}

/// Evaluates every infix operator, with both sides already evaluated for `and` and `or`.
pub fn binary(op: BinaryOp, left: &Scalar, right: &Scalar, at: &Span) -> Result<Scalar, Finding> {
    match op {
        BinaryOp::And => Ok(if truth(left) { right.clone() } else { left.clone() }),
        BinaryOp::Or => Ok(if truth(left) { left.clone() } else { right.clone() }),
        BinaryOp::Eq => Ok(Scalar::Bool(equal(left, right))),
        BinaryOp::Ne => Ok(Scalar::Bool(!equal(left, right))),
        BinaryOp::In => contains(left, right, at).map(Scalar::Bool),
        BinaryOp::NotIn => contains(left, right, at).map(|contained| Scalar::Bool(!contained)),
        BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => compare(op, left, right, at),
        _ => arithmetic(op, left, right, at),
    }
}

/// Compares numbers of any kind by value, and lists item by item.
pub(super) fn equal(left: &Scalar, right: &Scalar) -> bool {
    match (left, right) {
        (Scalar::List(a), Scalar::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        _ => match (Number::of(left), Number::of(right)) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => a == b,
            (Some(a), Some(b)) => a.float() == b.float(),
            _ => left == right,
        },
    }
}

fn contains(item: &Scalar, within: &Scalar, at: &Span) -> Result<bool, Finding> {
    match (within, item) {
        (Scalar::List(items), _) => Ok(items.iter().any(|other| equal(item, other))),
        (Scalar::Str(text), Scalar::Str(part)) => Ok(text.contains(part.as_str())),
        (Scalar::Map(entries), Scalar::Str(key)) => Ok(entries.iter().any(|(name, _)| name == key)),
        _ => {
            Err(Finding::error(at, "`in` needs a list on its right")
                .label(expected("a list", within)))
        }
    }
}

pub(super) fn order(left: &Scalar, right: &Scalar) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (Scalar::Str(a), Scalar::Str(b)) => Some(a.cmp(b)),
        _ => match (Number::of(left)?, Number::of(right)?) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (a, b) => a.float().partial_cmp(&b.float()),
        },
    }
}

fn compare(op: BinaryOp, left: &Scalar, right: &Scalar, at: &Span) -> Result<Scalar, Finding> {
    let Some(order) = order(left, right) else {
        return Err(Finding::error(
            at,
            format!("cannot compare {} with {}", left.kind(), right.kind()),
        )
        .label(format!("`{}` needs two numbers or two texts", symbol(op))));
    };
    Ok(Scalar::Bool(match op {
        BinaryOp::Lt => order.is_lt(),
        BinaryOp::Le => order.is_le(),
        BinaryOp::Gt => order.is_gt(),
        _ => order.is_ge(),
    }))
}

fn arithmetic(op: BinaryOp, left: &Scalar, right: &Scalar, at: &Span) -> Result<Scalar, Finding> {
    match (op, left, right) {
        (BinaryOp::Add, Scalar::Str(a), Scalar::Str(b)) => {
            capped(a.len().saturating_add(b.len()), at)?;
            return Ok(Scalar::Str(format!("{a}{b}")));
        }
        (BinaryOp::Add, Scalar::List(a), Scalar::List(b)) => {
            capped(a.len().saturating_add(b.len()), at)?;
            return Ok(Scalar::List(a.iter().chain(b).cloned().collect()));
        }
        (BinaryOp::Mul, list @ (Scalar::Str(_) | Scalar::List(_)), Scalar::Int(n))
        | (BinaryOp::Mul, Scalar::Int(n), list @ (Scalar::Str(_) | Scalar::List(_))) => {
            return repeat(list, *n, at);
        }
        _ => {}
    }
    let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) else {
        let (side, value) =
            if Number::of(left).is_none() { ("left", left) } else { ("right", right) };
        return Err(Finding::error(at, format!("`{}` needs numbers", symbol(op)))
            .label(format!("on the {side}: {}", expected("a number", value))));
    };
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => whole(op, a, b, at),
        (a, b) => floating(op, a.float(), b.float(), at),
    }
}

/// Evaluates `list * n` and `'text' * n`.
pub(super) fn repeat(value: &Scalar, n: i64, at: &Span) -> Result<Scalar, Finding> {
    let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
    match value {
        Scalar::Str(text) => {
            capped(text.len().saturating_mul(n), at)?;
            Ok(Scalar::Str(if text.is_empty() { String::new() } else { text.repeat(n) }))
        }
        Scalar::List(items) => {
            // Nested lists are copied too.
            capped(super::size(value).saturating_mul(n), at)?;
            let n = if items.is_empty() { 0 } else { n };
            Ok(Scalar::List(std::iter::repeat_n(items, n).flatten().cloned().collect()))
        }
        _ => {
            Err(Finding::error(at, "only lists and texts repeat").label(expected("a list", value)))
        }
    }
}

pub(super) fn capped(length: usize, at: &Span) -> Result<(), Finding> {
    if length > MAX_ITEMS {
        return Err(Finding::error(at, format!("this would have {length} items"))
            .label(format!("at most {MAX_ITEMS} are allowed")));
    }
    Ok(())
}

fn whole(op: BinaryOp, a: i64, b: i64, at: &Span) -> Result<Scalar, Finding> {
    if b == 0 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Mod) {
        return Err(by_zero(at));
    }
    let result = match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div if a.checked_rem(b) != Some(0) => {
            return floating(op, a as f64, b as f64, at);
        }
        BinaryOp::Div => a.checked_div(b),
        BinaryOp::FloorDiv => a
            .checked_div_euclid(b)
            .and_then(|q| if b < 0 && a.rem_euclid(b) != 0 { q.checked_sub(1) } else { Some(q) }),
        BinaryOp::Mod => a.checked_rem_euclid(b).map(|r| if b < 0 && r != 0 { r + b } else { r }),
        _ if b < 0 => return floating(op, a as f64, b as f64, at),
        _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)).or(match a {
            0 | 1 => Some(a),
            -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
            _ => None,
        }),
    };
    result.map(Scalar::Int).ok_or_else(|| too_large(at))
}

fn floating(op: BinaryOp, a: f64, b: f64, at: &Span) -> Result<Scalar, Finding> {
    if b == 0.0 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Mod) {
        return Err(by_zero(at));
    }
    let result = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::FloorDiv => (a / b).floor(),
        BinaryOp::Mod => {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        _ => {
            if a == 0.0 && b < 0.0 {
                return Err(by_zero(at));
            }
            a.powf(b)
        }
    };
    finite(result, at)
}

/// Returns a float, unless it is infinite or not a number.
pub(super) fn finite(x: f64, at: &Span) -> Result<Scalar, Finding> {
    if x.is_finite() {
        return Ok(Scalar::Float(x));
    }
    Err(Finding::error(at, "the result is not a finite number").label(format!("this gives {x}")))
}

fn by_zero(at: &Span) -> Finding {
    Finding::error(at, "division by zero").label("the right side is 0")
}

pub(super) fn too_large(at: &Span) -> Finding {
    Finding::error(at, "the result does not fit a 64-bit integer")
}

/// Returns an operator as it is written.
pub(crate) fn symbol(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Or => "or",
        BinaryOp::And => "and",
        BinaryOp::In => "in",
        BinaryOp::NotIn => "not in",
        BinaryOp::Eq => "==",
        BinaryOp::Ne => "!=",
        BinaryOp::Lt => "<",
        BinaryOp::Le => "<=",
        BinaryOp::Gt => ">",
        BinaryOp::Ge => ">=",
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::FloorDiv => "//",
        BinaryOp::Mod => "%",
        BinaryOp::Pow => "**",
    }
}

/// Evaluates `list[i]`, `'text'[i]` and `map['key']`; a negative index counts from the end.
pub fn index(base: &Scalar, key: &Scalar, at: &Span) -> Result<Scalar, Finding> {
    match (base, key) {
        (Scalar::Map(entries), Scalar::Str(key)) => {
            match entries.iter().find(|(name, _)| name == key) {
                Some((_, value)) => Ok(value.clone()),
                None => Err(Finding::error(at, format!("there is no key `{key}`"))),
            }
        }
        (Scalar::List(items), Scalar::Int(i)) => {
            place(*i, items.len(), at).map(|place| items[place].clone())
        }
        (Scalar::Str(text), Scalar::Int(i)) => {
            let place = place(*i, text.chars().count(), at)?;
            Ok(Scalar::Str(text.chars().skip(place).take(1).collect()))
        }
        (Scalar::List(_) | Scalar::Str(_), _) => {
            Err(Finding::error(at, "an index is an integer").label(expected("an integer", key)))
        }
        _ => Err(Finding::error(at, "only lists, texts and maps have items")
            .label(expected("a list", base))),
    }
}

fn place(i: i64, length: usize, at: &Span) -> Result<usize, Finding> {
    let place = if i < 0 { i.checked_add(length as i64) } else { Some(i) };
    place.and_then(|place| usize::try_from(place).ok()).filter(|&place| place < length).ok_or_else(
        || {
            Finding::error(at, format!("the index {i} is out of range"))
                .label(format!("there are {length} items"))
        },
    )
}

/// Evaluates `list[from:to]`; as in Python, bounds beyond the ends are the ends.
pub fn slice(
    base: &Scalar,
    from: Option<&Scalar>,
    to: Option<&Scalar>,
    at: &Span,
) -> Result<Scalar, Finding> {
    let length = match base {
        Scalar::List(items) => items.len(),
        Scalar::Str(text) => text.chars().count(),
        _ => {
            return Err(Finding::error(at, "only lists and texts have slices")
                .label(expected("a list", base)));
        }
    };
    let from = slice_bound(from, 0, length, at)?;
    let to = slice_bound(to, length, length, at)?.max(from);
    Ok(match base {
        Scalar::List(items) => Scalar::List(items[from..to].to_vec()),
        Scalar::Str(text) => Scalar::Str(text.chars().skip(from).take(to - from).collect()),
        _ => Scalar::Null,
    })
}

/// Returns a bound of a slice of `length` items as a position; a negative one counts from the end.
fn slice_bound(
    value: Option<&Scalar>,
    default: usize,
    length: usize,
    at: &Span,
) -> Result<usize, Finding> {
    match value {
        None | Some(Scalar::Null) => Ok(default),
        Some(Scalar::Int(i)) => {
            let i = if *i < 0 { i.saturating_add(length as i64) } else { *i };
            Ok(usize::try_from(i.max(0)).unwrap_or(usize::MAX).min(length))
        }
        Some(other) => {
            Err(Finding::error(at, "a bound is an integer").label(expected("an integer", other)))
        }
    }
}
