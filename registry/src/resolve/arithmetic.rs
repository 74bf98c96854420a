//! Operators in programs: between values, and between a value and a number.

use std::collections::BTreeMap;

use crate::diag::{Finding, Span};
use crate::eval::{self, EvalError};
use crate::graph::ValueId;
use crate::ops::{self, Argument, DIVIDE, INVERSE, OFFSET, SCALE};
use crate::scalar::Scalar;
use crate::syntax::{BinaryOp, UnaryOp};

use super::Resolver;
use super::scope::{Binding, Scope};

impl Resolver<'_> {
    /// Applies `+ - * /` to two bound operands.
    pub(super) fn operator(
        &mut self,
        op: BinaryOp,
        (a, a_at): (Binding, &Span),
        (b, b_at): (Binding, &Span),
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Binding, EvalError> {
        match (a, b) {
            (Binding::Poison, _) | (_, Binding::Poison) => Err(EvalError::Reported),
            (Binding::Value(x), Binding::Value(y)) => {
                let name = ops::of_values(op);
                let args = BTreeMap::from([
                    ("x", (Argument::Values(vec![x]), a_at.clone())),
                    ("y", (Argument::Values(vec![y]), b_at.clone())),
                ]);
                self.apply(name, args, at)
            }
            (Binding::Value(x), b) => {
                let number = self.number(b, b_at, scope)?;
                match op {
                    BinaryOp::Add => self.with_number(OFFSET, x, &number, at),
                    BinaryOp::Sub => {
                        let negated = eval::unary(UnaryOp::Neg, &number, at)?;
                        self.with_number(OFFSET, x, &negated, at)
                    }
                    BinaryOp::Mul => self.with_number(SCALE, x, &number, at),
                    _ => self.with_number(DIVIDE, x, &number, at),
                }
            }
            (a, Binding::Value(y)) => {
                let number = self.number(a, a_at, scope)?;
                match op {
                    BinaryOp::Add => self.with_number(OFFSET, y, &number, at),
                    BinaryOp::Mul => self.with_number(SCALE, y, &number, at),
                    BinaryOp::Sub => {
                        match self.with_number(SCALE, y, &Scalar::Float(-1.0), at)? {
                            // Negating is exact, so there is one rounding, as in `s - y`.
                            Binding::Value(negated) => {
                                self.with_number(OFFSET, negated, &number, at)
                            }
                            other => Ok(other),
                        }
                    }
                    _ => self.with_number(INVERSE, y, &number, at),
                }
            }
            (a, b) => {
                let a = self.to_scalar(a, a_at, scope)?;
                let b = self.to_scalar(b, b_at, scope)?;
                self.fuel.spend(at, 1)?;
                Ok(Binding::Scalar(eval::binary(op, &a, &b, at).map_err(EvalError::from)?))
            }
        }
    }

    fn number(&self, bound: Binding, at: &Span, scope: &Scope<'_>) -> Result<Scalar, EvalError> {
        let value = self.to_scalar(bound, at, scope)?;
        match value.as_f64() {
            Some(_) => Ok(value),
            None => Err(Finding::error(at, "a value is combined with something that is no number")
                .label(eval::expected("a value or a number", &value))
                .into()),
        }
    }

    /// Applies an op to a value and a number.
    pub(super) fn with_number(
        &mut self,
        op: &str,
        x: ValueId,
        number: &Scalar,
        at: &Span,
    ) -> Result<Binding, EvalError> {
        let float = Scalar::Float(number.as_f64().unwrap_or_default());
        let mut args = BTreeMap::from([
            ("x", (Argument::Values(vec![x]), at.clone())),
            ("s", (Argument::Scalar(float), at.clone())),
        ]);
        if op == SCALE {
            args.insert("round", (Argument::Scalar(Scalar::Str("none".to_owned())), at.clone()));
        }
        self.apply(op, args, at)
    }
}
