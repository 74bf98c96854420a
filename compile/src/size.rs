//! Sizes of axes as expressions, with the little algebra that splitting and merging axes needs.

use std::collections::BTreeMap;

use registry::syntax::{BinaryOp, Expr, ExprKind};

use crate::symbol;

/// A sum of products: factors, sorted, and how often each product counts.
type Sum = BTreeMap<Vec<String>, i64>;

/// Factors by their text.
#[derive(Default)]
struct SizeFactors(BTreeMap<String, Expr>);

impl SizeFactors {
    /// Returns an expression as a sum; none if a number or the sum itself is too large.
    fn sum(&mut self, expr: &Expr) -> Option<Sum> {
        match &expr.kind {
            ExprKind::Int(n) => Some(Sum::from([(Vec::new(), *n)])),
            ExprKind::Binary(BinaryOp::Add, a, b) => added(self.sum(a)?, &self.sum(b)?, 1),
            ExprKind::Binary(BinaryOp::Sub, a, b) => added(self.sum(a)?, &self.sum(b)?, -1),
            ExprKind::Binary(BinaryOp::Mul, a, b) => product(&self.sum(a)?, &self.sum(b)?),
            _ => {
                let key = shown(expr);
                self.0.insert(key.clone(), expr.clone());
                Some(Sum::from([(vec![key], 1)]))
            }
        }
    }

    /// Writes a sum as an expression.
    fn expr(&self, sum: &Sum, at: &Expr) -> Expr {
        let mut total: Option<Expr> = None;
        for (factors, count) in sum.iter().filter(|(_, count)| **count != 0) {
            let mut term = (*count != 1 || factors.is_empty())
                .then(|| symbol::with(at, ExprKind::Int(*count)));
            for factor in factors {
                let factor = self.0[factor].clone();
                term = Some(match term {
                    Some(term) => joined(BinaryOp::Mul, term, factor),
                    None => factor,
                });
            }
            let term = term.unwrap_or_else(|| symbol::with(at, ExprKind::Int(0)));
            total = Some(match total {
                Some(total) => joined(BinaryOp::Add, total, term),
                None => term,
            });
        }
        total.unwrap_or_else(|| symbol::with(at, ExprKind::Int(0)))
    }
}

/// Returns the text of an expression, by which equal ones are found.
fn shown(expr: &Expr) -> String {
    crate::python::expression(expr).0
}

fn joined(op: BinaryOp, left: Expr, right: Expr) -> Expr {
    let at = left.at.clone();
    Expr { kind: ExprKind::Binary(op, Box::new(left), Box::new(right)), at }
}

/// The most products in a sum.
const MAX_PRODUCTS: usize = 100;

fn added(mut left: Sum, right: &Sum, sign: i64) -> Option<Sum> {
    for (factors, count) in right {
        let total = left.entry(factors.clone()).or_default();
        *total = count.checked_mul(sign)?.checked_add(*total)?;
    }
    left.retain(|_, count| *count != 0);
    Some(left)
}

fn product(left: &Sum, right: &Sum) -> Option<Sum> {
    if left.len() * right.len() > MAX_PRODUCTS {
        return None;
    }
    let mut sum = Sum::new();
    for (a, m) in left {
        for (b, n) in right {
            let mut factors = [a.as_slice(), b.as_slice()].concat();
            factors.sort();
            let total = sum.entry(factors).or_default();
            *total = m.checked_mul(*n)?.checked_add(*total)?;
        }
    }
    Some(sum)
}

/// Multiplies two sizes.
pub(crate) fn times(left: &Expr, right: &Expr) -> Expr {
    symbol::fold(joined(BinaryOp::Mul, left.clone(), right.clone()))
}

/// Adds two sizes.
pub(crate) fn plus(left: &Expr, right: &Expr) -> Expr {
    simplified(BinaryOp::Add, 1, left, right)
}

/// Subtracts a size.
pub(crate) fn minus(left: &Expr, right: &Expr) -> Expr {
    simplified(BinaryOp::Sub, -1, left, right)
}

/// Returns a sum or a difference with each product once, or as it is if it is too large for that.
fn simplified(op: BinaryOp, sign: i64, left: &Expr, right: &Expr) -> Expr {
    let mut factors = SizeFactors::default();
    let sums = factors.sum(left).zip(factors.sum(right));
    match sums.and_then(|(left, right)| added(left, &right, sign)) {
        Some(sum) => factors.expr(&sum, left),
        None => joined(op, left.clone(), right.clone()),
    }
}

/// Divides a size, exactly where every product has the factors of the divisor.
pub(crate) fn over(left: &Expr, right: &Expr) -> Expr {
    let mut factors = SizeFactors::default();
    if let Some((dividend, divisor)) = factors.sum(left).zip(factors.sum(right)) {
        if dividend == divisor {
            return symbol::with(left, ExprKind::Int(1));
        }
        if let Some(quotient) = quotient(&dividend, &divisor) {
            return factors.expr(&quotient, left);
        }
    }
    joined(BinaryOp::FloorDiv, left.clone(), right.clone())
}

/// Divides a sum by one of a single product, or of as many products as it has itself.
fn quotient(dividend: &Sum, divisor: &Sum) -> Option<Sum> {
    let (taken, by) = divisor.iter().next()?;
    if divisor.len() == 1 {
        return each_over(dividend, taken, *by);
    }
    let terms = dividend.iter().map(|(factors, count)| Sum::from([(factors.clone(), *count)]));
    let mut quotients = terms.filter_map(|term| each_over(&term, taken, *by));
    quotients.find(|quotient| product(quotient, divisor).as_ref() == Some(dividend))
}

/// Divides each product of a sum by one product.
fn each_over(dividend: &Sum, taken: &[String], by: i64) -> Option<Sum> {
    let mut quotient = Sum::new();
    for (factors, count) in dividend {
        let mut left = factors.clone();
        for factor in taken {
            let place = left.iter().position(|other| other == factor)?;
            left.remove(place);
        }
        if count.checked_rem(by)? != 0 {
            return None;
        }
        quotient.insert(left, count.checked_div(by)?);
    }
    Some(quotient)
}
