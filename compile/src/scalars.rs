//! Scalars of a spec by name: which are the same in every config, which may be null, and what stands for each in the code.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use registry::diag::Finding;
use registry::scalar::Scalar;
use registry::spec::{DimSource, Spec};
use registry::syntax::{BinaryOp, Expr, ExprKind, Ident};

use crate::symbol::{self, constant, marked, rebuilt};

/// Scalars of one class of layers, resolved as far as they are the same in all of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerSymbols {
    /// Expressions by name, in order; `i` and `kind` are among them.
    pub(crate) each: IndexMap<String, Expr>,
}

/// The dims of a spec.
pub(crate) struct Scalars<'s> {
    pub(crate) spec: &'s Spec,
    /// The code of each dim: a constant, or its marked name.
    meant: BTreeMap<String, Expr>,
}

/// The longest chain of dims that are each other.
const MAX_CHAIN: usize = 32;

impl<'s> Scalars<'s> {
    pub(crate) fn new(spec: &'s Spec) -> Self {
        Self { spec, meant: BTreeMap::new() }
    }

    /// Returns what stands for a dim.
    pub(crate) fn dim(&mut self, name: &Ident, depth: usize) -> Result<Expr, Finding> {
        if let Some(known) = self.meant.get(&name.name) {
            return Ok(known.clone());
        }
        let Some(dim) = self.spec.dims.get(&name.name) else {
            return Err(Finding::error(&name.at, format!("`{}` is no scalar here", name.name)));
        };
        let at = Expr { kind: ExprKind::Null, at: name.at.clone() };
        let own = marked("D", &name.name, &at);
        let meant = match dim.sources.as_slice() {
            [DimSource::Compute(expr)] if depth < MAX_CHAIN => {
                let expr = self.resolve(expr, &mut Vec::new(), depth + 1)?;
                let simple = !matches!(expr.kind, ExprKind::List(_));
                let alias = matches!(&expr.kind, ExprKind::Path(_));
                if alias || (simple && constant(&expr).is_some()) { expr } else { own }
            }
            _ => own,
        };
        self.meant.insert(name.name.clone(), meant.clone());
        Ok(meant)
    }

    /// Resolves an expression over dims alone.
    pub(crate) fn resolve(
        &mut self,
        expr: &Expr,
        loops: &mut Vec<String>,
        depth: usize,
    ) -> Result<Expr, Finding> {
        if let ExprKind::Path(names) = &expr.kind {
            let [name] = names.as_slice() else {
                let path: Vec<&str> = names.iter().map(|name| name.name.as_str()).collect();
                let message = format!("`{}` is a path, expected a scalar", path.join("."));
                return Err(Finding::error(&expr.at, message));
            };
            if name.name.contains(':') || loops.contains(&name.name) {
                return Ok(expr.clone());
            }
            return self.dim(name, depth);
        }
        if let ExprKind::Comprehension { variable, .. } = &expr.kind {
            loops.push(variable.name.clone());
            let result = rebuilt(expr, &mut |part| self.resolve(part, loops, depth));
            loops.pop();
            return result;
        }
        rebuilt(expr, &mut |part| self.resolve(part, loops, depth))
    }

    /// True if an expression may be null in some config.
    pub(crate) fn nullable(&self, expr: &Expr, layer: &LayerSymbols) -> bool {
        self.may_be_null(expr, layer, 0)
    }

    fn may_be_null(&self, expr: &Expr, layer: &LayerSymbols, depth: usize) -> bool {
        if depth > MAX_CHAIN {
            return true;
        }
        let part = |expr: &Expr| self.may_be_null(expr, layer, depth + 1);
        match &expr.kind {
            ExprKind::Null => true,
            ExprKind::If { then, condition, otherwise } => {
                let guarded = guarded(condition);
                let then_null = guarded != Some(&then.kind) && part(then);
                then_null || part(otherwise)
            }
            ExprKind::Binary(BinaryOp::And | BinaryOp::Or, left, right) => {
                part(left) || part(right)
            }
            ExprKind::Path(names) => {
                let [name] = names.as_slice() else { return false };
                let (mark, plain) = name.name.split_once(':').unwrap_or(("D", &name.name));
                if mark == "E" {
                    return layer.each.get(plain).is_some_and(&part);
                }
                let source = self.spec.dims.get(plain).and_then(|dim| dim.sources.last());
                matches!(source, Some(DimSource::Compute(expr)) if part(expr))
            }
            ExprKind::Call(name, args) => match (name.name.as_str(), args.as_slice()) {
                ("config", [_]) => true,
                ("config", [_, default]) | ("get", [_, _, default]) => part(&default.value),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Returns what a condition says is not null.
fn guarded(condition: &Expr) -> Option<&ExprKind> {
    match &condition.kind {
        ExprKind::Binary(BinaryOp::Ne, left, right) if right.kind == ExprKind::Null => {
            Some(&left.kind)
        }
        ExprKind::Path(_) => Some(&condition.kind),
        _ => None,
    }
}

impl LayerSymbols {
    /// Returns what stands for a scalar of the layer: a constant or an expression over dims, else its marked name.
    pub(crate) fn meant(&self, name: &str, at: &Expr) -> Option<Expr> {
        let expr = self.each.get(name)?;
        let mut own = false;
        symbol::names(expr, &mut |name| own |= name.starts_with("E:"));
        let simple = constant(expr).is_some() || matches!(expr.kind, ExprKind::Path(_));
        if (!own && simple) && name != "i" {
            return Some(expr.clone());
        }
        Some(marked("E", name, at))
    }

    /// Sets the kind of the layers, if it is the same in all.
    pub(crate) fn kind(&mut self, kinds: &[String], given: Option<Expr>, at: &Expr) {
        let expr = match (kinds, given) {
            ([only], _) if only != "*" => symbol::with(at, ExprKind::Str(only.clone())),
            (_, Some(given)) => given,
            (_, None) => symbol::with(at, ExprKind::Str("layer".to_owned())),
        };
        self.each.insert("kind".to_owned(), expr);
    }
}

/// Returns a constant as an expression.
pub(crate) fn of_scalar(value: &Scalar, at: &Expr) -> Expr {
    let kind = match value {
        Scalar::Null | Scalar::Map(_) => ExprKind::Null,
        Scalar::Bool(flag) => ExprKind::Bool(*flag),
        Scalar::Int(n) => ExprKind::Int(*n),
        Scalar::Float(x) => ExprKind::Float(*x),
        Scalar::Str(text) => ExprKind::Str(text.clone()),
        Scalar::List(items) => {
            ExprKind::List(items.iter().map(|item| of_scalar(item, at)).collect())
        }
    };
    symbol::with(at, kind)
}
