//! Shapes of results, from the words of a sheet.

use registry::diag::Finding;
use registry::syntax::{BinaryOp, Expr, ExprKind};

use crate::arguments::{OpArgument, OpArguments};
use crate::scalars::LayerSymbols;
use crate::size::{minus, over, plus, times};
use crate::symbol;
use crate::walk::Walk;

/// The value of an expression of shapes.
enum Shaped {
    Size(Expr),
    List(Vec<Expr>),
    Many(Vec<Vec<Expr>>),
}

/// Computes the shapes of all results.
pub(crate) fn given(gives: &Expr, args: &OpArguments) -> Result<Vec<Vec<Expr>>, Finding> {
    Ok(match shaped(gives, args)? {
        Shaped::Size(size) => vec![vec![size]],
        Shaped::List(list) => vec![list],
        Shaped::Many(many) => many,
    })
}

fn list(shaped: Shaped) -> Vec<Expr> {
    match shaped {
        Shaped::Size(size) => vec![size],
        Shaped::List(list) => list,
        Shaped::Many(many) => many.into_iter().next().unwrap_or_default(),
    }
}

fn size(shaped: Shaped, at: &Expr) -> Expr {
    match shaped {
        Shaped::Size(size) => size,
        other => list(other).pop().unwrap_or_else(|| symbol::with(at, ExprKind::Int(1))),
    }
}

fn shaped(expr: &Expr, args: &OpArguments) -> Result<Shaped, Finding> {
    let unknown = || Finding::error(&expr.at, "this is no shape");
    match &expr.kind {
        ExprKind::Int(_) => Ok(Shaped::Size(expr.clone())),
        ExprKind::Path(names) => {
            let name = names.first().map(|name| name.name.as_str()).unwrap_or_default();
            match args.get(name).ok_or_else(unknown)? {
                OpArgument::Value(value) => Ok(Shaped::List(value.shape.clone())),
                OpArgument::Values(values) => {
                    Ok(Shaped::Many(values.iter().map(|value| value.shape.clone()).collect()))
                }
                OpArgument::Scalar(scalar, _) => Ok(match &scalar.kind {
                    ExprKind::List(items) => Shaped::List(items.clone()),
                    _ => Shaped::Size(scalar.clone()),
                }),
                _ => Err(unknown()),
            }
        }
        ExprKind::List(items) => {
            let mut sizes = Vec::new();
            for item in items {
                sizes.push(size(shaped(item, args)?, item));
            }
            Ok(Shaped::List(sizes))
        }
        ExprKind::If { then, condition, otherwise } => {
            let name = match &condition.kind {
                ExprKind::Path(names) => names.first().map(|name| name.name.as_str()),
                _ => None,
            };
            let there = name.and_then(|name| args.get(name)).is_some_and(|arg| !arg.is_null());
            shaped(if there { then } else { otherwise }, args)
        }
        ExprKind::Call(name, call) => {
            let mut parts = Vec::new();
            for arg in call {
                parts.push(shaped(&arg.value, args)?);
            }
            word(&name.name, parts, expr).ok_or_else(unknown)
        }
        _ => Err(unknown()),
    }
}

fn word(name: &str, parts: Vec<Shaped>, at: &Expr) -> Option<Shaped> {
    let mut parts = parts.into_iter();
    let first = parts.next()?;
    let mut next = || parts.next();
    Some(match name {
        // All axes but the last, and a new last one.
        "last" => {
            let mut axes = list(first);
            axes.pop();
            axes.push(size(next()?, at));
            Shaped::List(axes)
        }
        // A new first axis.
        "before" => Shaped::List([vec![size(first, at)], list(next()?)].concat()),
        // The last axis as n heads.
        "heads" => {
            let mut axes = list(first);
            let (last, n) = (axes.pop()?, size(next()?, at));
            axes.extend([n.clone(), over(&last, &n)]);
            Shaped::List(axes)
        }
        // The last two axes as one.
        "merge" => {
            let mut axes = list(first);
            let last = axes.pop()?;
            let merged = match axes.pop() {
                Some(heads) => times(&heads, &last),
                None => last,
            };
            axes.push(merged);
            Shaped::List(axes)
        }
        // A first axis turned into others: [n * m, d] is [m * n, d].
        "parts" => {
            let axes = list(first);
            let last = axes.last()?.clone();
            let sizes = match next()? {
                Shaped::List(sizes) => sizes,
                other => {
                    let n = size(other, at);
                    let ExprKind::Int(count) = n.kind else { return None };
                    vec![over(&last, &n); usize::try_from(count).ok()?]
                }
            };
            let part = |size: Expr| [&axes[..axes.len() - 1], &[size]].concat();
            Shaped::Many(sizes.into_iter().map(part).collect())
        }
        // Values side by side.
        "joined" => {
            let Shaped::Many(values) = first else { return None };
            let mut axes = values.first()?.clone();
            let sum = values.iter().filter_map(|value| value.last().cloned());
            let sum = sum.reduce(|a, b| plus(&a, &b))?;
            axes.pop();
            axes.push(sum);
            Shaped::List(axes)
        }
        // The larger of two.
        "wider" => {
            let (a, b) = (list(first), list(next()?));
            let one = |size: &Expr| size.kind == ExprKind::Int(1);
            if a.len() == b.len() {
                let axes = a.into_iter().zip(b).map(|(a, b)| if one(&a) { b } else { a });
                Shaped::List(axes.collect())
            } else {
                Shaped::List(if a.len() > b.len() { a } else { b })
            }
        }
        "minus" => Shaped::Size(minus(&size(first, at), &size(next()?, at))),
        "times" => Shaped::Size(times(&size(first, at), &size(next()?, at))),
        "over" => Shaped::Size(over(&size(first, at), &size(next()?, at))),
        "end" => Shaped::Size(list(first).pop()?),
        "first" => Shaped::Size(list(first).first()?.clone()),
        "all" => Shaped::Size(list(first).into_iter().reduce(|a, b| times(&a, &b))?),
        "without_heads" => {
            let mut axes = list(first);
            let last = axes.pop()?;
            axes.pop();
            axes.push(last);
            Shaped::List(axes)
        }
        _ => return None,
    })
}

impl Walk<'_> {
    /// Notes the dims that a size is made of. One that may be null is none in every config.
    pub(crate) fn note_size(&mut self, size: &Expr) {
        match &size.kind {
            ExprKind::Binary(
                BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::FloorDiv,
                a,
                b,
            ) => {
                self.note_size(a);
                self.note_size(b);
            }
            ExprKind::Path(names) => {
                let [name] = names.as_slice() else { return };
                if let Some(dim) = name.name.strip_prefix("D:")
                    && !self.scalars.nullable(size, &LayerSymbols::default())
                {
                    self.sizes.insert(dim.to_owned());
                }
            }
            _ => {}
        }
    }
}
