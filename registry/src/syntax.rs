//! The syntax tree of the spec language: expressions, and programs of them.
//!
//! One grammar serves dims (`hidden / heads`) and programs
//! (`x + mlp(rms_norm(x, ffn_norm, eps))`); what a path means is decided by
//! the resolver from the place it stands in.

use crate::diag::Span;

/// A name and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Ident {
    /// The name.
    pub name: String,
    /// The place of the name.
    pub at: Span,
}

/// An expression and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    /// The kind of expression.
    pub kind: ExprKind,
    /// The place of the expression.
    pub at: Span,
}

impl Expr {
    /// Returns the expressions it consists of.
    pub fn parts(&self) -> Vec<&Self> {
        match &self.kind {
            ExprKind::Null
            | ExprKind::Bool(_)
            | ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Str(_)
            | ExprKind::Path(_) => Vec::new(),
            ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) => vec![a, b],
            ExprKind::Slice(base, from, to) => {
                [base].into_iter().chain(from).chain(to).map(|part| &**part).collect()
            }
            ExprKind::Unary(_, a) => vec![a],
            ExprKind::Call(_, args) => args.iter().map(|arg| &arg.value).collect(),
            ExprKind::If { then, condition, otherwise } => vec![condition, then, otherwise],
            ExprKind::List(items) => items.iter().collect(),
            ExprKind::Comprehension { body, over, filter, .. } => {
                [over, body].into_iter().chain(filter).map(|part| &**part).collect()
            }
        }
    }

    /// Visits it and all expressions inside of it.
    pub fn walk<'e>(&'e self, visit: &mut impl FnMut(&'e Self)) {
        visit(self);
        self.parts().into_iter().for_each(|part| part.walk(visit));
    }

    /// Returns true if it reads the variable of this name.
    pub fn mentions(&self, name: &str) -> bool {
        let mut is_read = false;
        self.walk(&mut |expr| {
            let first = match &expr.kind {
                ExprKind::Path(names) => names.first(),
                _ => None,
            };
            is_read |= first.is_some_and(|first| first.name == name);
        });
        is_read
    }
}

/// The forms of an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    /// `null`, `none`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// `3`.
    Int(i64),
    /// `1e-6`.
    Float(f64),
    /// `'conv'`.
    Str(String),
    /// `x`, `conv.in_proj`, `norms.0`: a variable, a dim, a weight path or a state.
    Path(Vec<Ident>),
    /// `layer_types[i]`.
    Index(Box<Expr>, Box<Expr>),
    /// `list[a:b]`.
    Slice(Box<Expr>, Option<Box<Expr>>, Option<Box<Expr>>),
    /// `linear(x, conv.in_proj, hidden, bias=bias)`.
    Call(Ident, Vec<Arg>),
    /// `-x`, `not x`.
    Unary(UnaryOp, Box<Expr>),
    /// `a + b`, `a == b`, `a and b`, `a in b`.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `a if condition else b`.
    If {
        /// Chosen when `condition` holds.
        then: Box<Expr>,
        /// Over dims only, so a resolved graph is static.
        condition: Box<Expr>,
        /// Chosen otherwise.
        otherwise: Box<Expr>,
    },
    /// `[a, b]`.
    List(Vec<Expr>),
    /// `[expr for name in list if filter]`.
    Comprehension {
        /// Evaluated for each item.
        body: Box<Expr>,
        /// Bound to the item.
        variable: Ident,
        /// The list.
        over: Box<Expr>,
        /// Keeps items for which it holds.
        filter: Option<Box<Expr>>,
    },
}

/// An argument of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Arg {
    /// `bias` in `bias=true`.
    pub name: Option<Ident>,
    /// The value.
    pub value: Expr,
}

/// Prefix operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnaryOp {
    /// `-x`.
    Neg,
    /// `not x`.
    Not,
}

/// Infix operators, Python's precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum BinaryOp {
    Or,
    And,
    In,
    NotIn,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

/// `a, b = expr`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stmt {
    /// Names assigned, one per output.
    pub targets: Vec<Ident>,
    /// The value.
    pub value: Expr,
}

/// Straight-line statements and a final `return`.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Assignments in order.
    pub body: Vec<Stmt>,
    /// The values that `return` gives; a bare expression as the last line is the same.
    pub result: Vec<Expr>,
    /// The whole text.
    pub at: Span,
}

/// `short_conv(x, width): |` and its program.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// The name it is called by.
    pub name: Ident,
    /// Parameters; each binds a value, a scalar, a weight path or a state.
    pub params: Vec<FunctionParam>,
    /// The body of the function.
    pub program: Program,
}

/// A parameter, with a default if it has one.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionParam {
    /// The name.
    pub name: Ident,
    /// `bias=false`.
    pub default: Option<Expr>,
}
