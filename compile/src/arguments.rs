//! Arguments of ops as templates see them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};
use registry::scalar::Scalar;
use registry::syntax::{Expr, ExprKind};

use crate::python::binding::{ADD, ATOM, COMPARE, MUL};
use crate::python::{enclosed, expression};
use crate::symbol;
use crate::value::CodeValue;

/// An argument: its text, and what is known of it.
///
/// `atom`, `mul`, `add` and `cmp` are the text in parentheses where it would not bind tightly enough; `null` says that there is none, `maybe` that
/// this depends on the config; `const` is its value where every config has the same; values have `rank`, `size` (of the last axis), `half` of it, `sizes` and `wide`.
#[derive(Debug, Clone)]
pub(crate) enum OpArgument {
    /// A value.
    Value(CodeValue),
    /// Several values.
    Values(Vec<CodeValue>),
    /// A number, word or list, and whether it may be null.
    Scalar(Expr, bool),
    /// A weight: its path, and whether it is f32 in every run.
    Path(String, bool),
    /// A weight that takes the place of another where a condition holds.
    PathIf(String, Expr),
    /// Text of the code: a table, the tokens.
    Text(String),
    /// A state: its text, its name, and its place in what a layer keeps.
    State { text: String, name: String, part: String },
    /// Nothing.
    Null,
}

/// Arguments of one call, by parameter.
pub(crate) type OpArguments = BTreeMap<&'static str, OpArgument>;

impl OpArgument {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Value(value) => value.text.clone(),
            Self::Values(values) => {
                values.iter().map(|value| value.text.as_str()).collect::<Vec<_>>().join(", ")
            }
            Self::Scalar(expr, _) => expression(expr).0,
            Self::Path(path, _) | Self::PathIf(path, _) => format!("«W:{path}»"),
            Self::Text(text) | Self::State { text, .. } => text.clone(),
            Self::Null => "None".to_owned(),
        }
    }

    fn at(&self, least: u8) -> String {
        match self {
            Self::Value(value) => value.at(least),
            Self::Scalar(expr, _) => enclosed(&expression(expr), least),
            _ => self.text(),
        }
    }

    /// True if nothing is given, in every config.
    pub(crate) fn is_null(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Scalar(expr, _) => symbol::constant(expr) == Some(Scalar::Null),
            _ => false,
        }
    }

    pub(crate) fn constant(&self) -> Option<Scalar> {
        match self {
            Self::Null => Some(Scalar::Null),
            Self::Scalar(expr, _) => symbol::constant(expr),
            _ => None,
        }
    }

    fn shape(&self) -> Option<&[Expr]> {
        match self {
            Self::Value(value) => Some(&value.shape),
            _ => None,
        }
    }
}

/// Converts a constant to a value of templates.
pub(crate) fn native(value: &Scalar) -> minijinja::Value {
    match value {
        Scalar::Null => minijinja::Value::from(()),
        Scalar::Bool(flag) => (*flag).into(),
        Scalar::Int(n) => (*n).into(),
        Scalar::Float(x) => (*x).into(),
        Scalar::Str(text) => text.as_str().into(),
        Scalar::List(items) => minijinja::Value::from(items.iter().map(native).collect::<Vec<_>>()),
        Scalar::Map(_) => minijinja::Value::UNDEFINED,
    }
}

impl Object for OpArgument {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &minijinja::Value) -> Option<minijinja::Value> {
        let size = |size: &Expr| enclosed(&expression(size), ATOM);
        Some(match key.as_str()? {
            "atom" => self.at(ATOM).into(),
            "mul" => self.at(MUL).into(),
            "factor" => self.at(MUL + 1).into(),
            "add" => self.at(ADD).into(),
            "term" => self.at(ADD + 1).into(),
            "cmp" => self.at(COMPARE + 1).into(),
            "null" => self.is_null().into(),
            "maybe" => matches!(&**self, Self::Scalar(_, true)).into(),
            "const" => self.constant().as_ref().map_or(minijinja::Value::UNDEFINED, native),
            "fixed" => self.constant().is_some().into(),
            "rank" => self.shape()?.len().into(),
            "size" => self.shape()?.last().map(|size| expression(size).0)?.into(),
            "half" => {
                let last = self.shape()?.last()?;
                expression(&crate::size::over(last, &symbol::with(last, ExprKind::Int(2)))).0.into()
            }
            "sizes" => minijinja::Value::from(self.shape()?.iter().map(size).collect::<Vec<_>>()),
            "numbers" => {
                let all =
                    self.shape()?.iter().cloned().reduce(|a, b| crate::size::times(&a, &b))?;
                expression(&all).0.into()
            }
            "items" => match &**self {
                Self::Values(values) => {
                    let items = values.iter().cloned().map(Self::Value);
                    minijinja::Value::from(
                        items.map(minijinja::Value::from_object).collect::<Vec<_>>(),
                    )
                }
                Self::Scalar(expr, _) => match &expr.kind {
                    ExprKind::List(items) => {
                        let items = items.iter().map(|item| Self::Scalar(item.clone(), false));
                        minijinja::Value::from(
                            items.map(minijinja::Value::from_object).collect::<Vec<_>>(),
                        )
                    }
                    _ => return None,
                },
                _ => return None,
            },
            "wide" => match &**self {
                Self::Value(value) => value.wide.into(),
                Self::Values(values) => values.iter().any(|value| value.wide).into(),
                Self::Path(_, wide) => (*wide).into(),
                _ => false.into(),
            },
            other => match &**self {
                Self::Path(path, _) => format!("«W:{path}.{other}»").into(),
                Self::PathIf(_, condition) if other == "condition" => {
                    expression(condition).0.into()
                }
                Self::State { name, .. } if other == "name" => name.as_str().into(),
                Self::State { part, .. } if other == "part" => part.as_str().into(),
                _ => return None,
            },
        })
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}
