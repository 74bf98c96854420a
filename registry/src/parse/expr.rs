//! Expressions, by precedence climbing.

use super::{ExprTree, MAX_HEIGHT, Parser};
use crate::lexer::LexemeKind;
use crate::syntax::{Arg, BinaryOp, Expr, ExprKind, UnaryOp};

/// Binary operators by how tightly they bind, loosest first; `**` is apart.
const LEVELS: [&[(&str, BinaryOp)]; 5] = [
    &[("or", BinaryOp::Or)],
    &[("and", BinaryOp::And)],
    &[
        ("==", BinaryOp::Eq),
        ("!=", BinaryOp::Ne),
        ("<=", BinaryOp::Le),
        (">=", BinaryOp::Ge),
        ("<", BinaryOp::Lt),
        (">", BinaryOp::Gt),
        ("in", BinaryOp::In),
        ("not", BinaryOp::NotIn),
    ],
    &[("+", BinaryOp::Add), ("-", BinaryOp::Sub)],
    &[("*", BinaryOp::Mul), ("/", BinaryOp::Div), ("//", BinaryOp::FloorDiv), ("%", BinaryOp::Mod)],
];
/// The level whose operators do not chain, and above which `not` stands.
const COMPARISON: usize = 2;

/// Words that are values.
pub(super) fn literal(word: &str) -> Option<ExprKind> {
    match word {
        "null" | "none" | "None" => Some(ExprKind::Null),
        "true" | "True" => Some(ExprKind::Bool(true)),
        "false" | "False" => Some(ExprKind::Bool(false)),
        _ => None,
    }
}

impl Parser<'_> {
    /// Parses `a if condition else b`, or an expression that binds tighter.
    pub(super) fn expression(&mut self) -> Option<ExprTree> {
        self.enter()?;
        let tree = self.ternary();
        self.depth -= 1;
        tree
    }

    fn enter(&mut self) -> Option<()> {
        if self.depth >= MAX_HEIGHT {
            return self.too_deep();
        }
        self.depth += 1;
        Some(())
    }

    fn too_deep<T>(&mut self) -> Option<T> {
        let range = self.token().range.clone();
        let help = format!("at most {MAX_HEIGHT} levels; name parts of it");
        self.fail(range, "this expression is nested too deeply", &help)
    }

    /// Wraps `kind`, whose deepest part is `height`, from `start` to here.
    fn tree(&mut self, kind: ExprKind, start: usize, height: usize) -> Option<ExprTree> {
        if height >= MAX_HEIGHT {
            // What was built so far is dropped here, while it is still shallow.
            return self.too_deep();
        }
        let at = self.span(start, self.last_end());
        Some(ExprTree { expr: Expr { kind, at }, height: height + 1 })
    }

    fn ternary(&mut self) -> Option<ExprTree> {
        let start = self.token().range.start;
        let then = self.binary(0)?;
        if !self.eat("if") {
            return Some(then);
        }
        let condition = self.binary(0)?;
        if !self.eat("else") {
            return self.unexpected("`else`");
        }
        let otherwise = self.expression()?;
        let height = then.height.max(condition.height).max(otherwise.height);
        let kind = ExprKind::If {
            then: Box::new(then.expr),
            condition: Box::new(condition.expr),
            otherwise: Box::new(otherwise.expr),
        };
        self.tree(kind, start, height)
    }

    fn binary(&mut self, level: usize) -> Option<ExprTree> {
        let Some(ops) = LEVELS.get(level) else { return self.unary() };
        let start = self.token().range.start;
        if level == COMPARISON && self.eat("not") {
            self.enter()?;
            let operand = self.binary(COMPARISON);
            self.depth -= 1;
            let operand = operand?;
            let kind = ExprKind::Unary(UnaryOp::Not, Box::new(operand.expr));
            return self.tree(kind, start, operand.height);
        }
        let mut left = self.binary(level + 1)?;
        let mut compared = false;
        while let Some(op) = self.operator(ops) {
            if compared {
                let last = self.tokens[self.pos - 1].range.clone();
                return self.fail(last, "comparisons do not chain", "write `a < b and b < c`");
            }
            compared = level == COMPARISON;
            let right = self.binary(level + 1)?;
            let height = left.height.max(right.height);
            let kind = ExprKind::Binary(op, Box::new(left.expr), Box::new(right.expr));
            left = self.tree(kind, start, height)?;
        }
        Some(left)
    }

    /// Passes over one of `ops`; `not` only as part of `not in`.
    fn operator(&mut self, ops: &[(&str, BinaryOp)]) -> Option<BinaryOp> {
        let LexemeKind::Op(symbol) = self.token().kind else { return None };
        let (_, op) = ops.iter().find(|(word, _)| *word == symbol)?;
        if symbol == "not" {
            let next = &self.tokens[self.pos + 1].kind;
            if *next != LexemeKind::Op("in") {
                return None;
            }
            self.advance();
        }
        self.advance();
        Some(*op)
    }

    /// Parses `-x`, or a power; `-x ** y` is `-(x ** y)`.
    fn unary(&mut self) -> Option<ExprTree> {
        let start = self.token().range.start;
        if self.eat("-") {
            self.enter()?;
            let operand = self.unary();
            self.depth -= 1;
            let operand = operand?;
            let kind = ExprKind::Unary(UnaryOp::Neg, Box::new(operand.expr));
            return self.tree(kind, start, operand.height);
        }
        let base = self.postfix()?;
        if !self.eat("**") {
            return Some(base);
        }
        self.enter()?;
        let exponent = self.unary();
        self.depth -= 1;
        let exponent = exponent?;
        let height = base.height.max(exponent.height);
        let kind = ExprKind::Binary(BinaryOp::Pow, Box::new(base.expr), Box::new(exponent.expr));
        self.tree(kind, start, height)
    }

    /// Parses an atom and the `[...]` that follow it.
    fn postfix(&mut self) -> Option<ExprTree> {
        let start = self.token().range.start;
        let mut tree = self.atom()?;
        while self.at_op("[") {
            let open = self.advance().range;
            let list = Box::new(tree.expr);
            let mut height = tree.height;
            let from = if self.at_op(":") { None } else { Some(self.expression()?) };
            height = height.max(from.as_ref().map_or(0, |tree| tree.height));
            let kind = if self.eat(":") {
                let to = if self.at_op("]") { None } else { Some(self.expression()?) };
                height = height.max(to.as_ref().map_or(0, |tree| tree.height));
                ExprKind::Slice(list, boxed(from), boxed(to))
            } else {
                ExprKind::Index(list, Box::new(from.expect("only `:` leaves it out").expr))
            };
            self.close("]", open)?;
            tree = self.tree(kind, start, height)?;
        }
        Some(tree)
    }

    fn atom(&mut self) -> Option<ExprTree> {
        let token = self.token().clone();
        let start = token.range.start;
        let kind = match token.kind {
            LexemeKind::Int(value) => ExprKind::Int(value),
            LexemeKind::Float(value) => ExprKind::Float(value),
            LexemeKind::Str(value) => ExprKind::Str(value),
            LexemeKind::Path(segments) => {
                self.advance();
                if self.at_op("(") {
                    if segments.len() > 1 {
                        let help = "a call names a function or an op: `linear(x, mlp.w1, ffn)`";
                        return self.fail(token.range, "a path cannot be called", help);
                    }
                    return self.call(start, &segments[0]);
                }
                let path = segments.iter().map(|segment| self.ident(segment)).collect::<Vec<_>>();
                let kind = match path.as_slice() {
                    [word] => literal(&word.name),
                    _ => None,
                };
                return self.tree(kind.unwrap_or(ExprKind::Path(path)), start, 0);
            }
            LexemeKind::Op("(") => {
                self.advance();
                let tree = self.expression()?;
                self.close(")", token.range)?;
                return Some(tree);
            }
            LexemeKind::Op("[") => {
                self.advance();
                return self.list(start);
            }
            _ => return self.unexpected("a value"),
        };
        self.advance();
        self.tree(kind, start, 0)
    }

    fn call(&mut self, start: usize, name: &std::ops::Range<usize>) -> Option<ExprTree> {
        let function = self.ident(name);
        let open = self.advance().range;
        let mut args: Vec<Arg> = Vec::new();
        let mut height = 0;
        while !self.at_op(")") {
            let named = matches!(self.token().kind, LexemeKind::Path(_))
                && self.tokens[self.pos + 1].kind == LexemeKind::Op("=");
            let name = if named { Some(self.name("the argument's name")?) } else { None };
            let place = self.token().range.clone();
            if let Some(name) = &name {
                let mut names = args.iter().filter_map(|arg| arg.name.as_ref());
                if names.any(|earlier| earlier.name == name.name) {
                    let message = format!("argument `{}` is given twice", name.name);
                    return self.fail(self.tokens[self.pos - 1].range.clone(), message, "");
                }
                self.advance();
            } else if args.last().is_some_and(|arg| arg.name.is_some()) {
                let help = "arguments by position come first";
                return self.fail(place, "an argument without a name follows a named one", help);
            }
            let value = self.expression()?;
            height = height.max(value.height);
            args.push(Arg { name, value: value.expr });
            if !self.eat(",") {
                break;
            }
        }
        self.close(")", open)?;
        self.tree(ExprKind::Call(function, args), start, height)
    }

    /// Parses a list or a comprehension, after its `[`.
    fn list(&mut self, start: usize) -> Option<ExprTree> {
        let open = self.tokens[self.pos - 1].range.clone();
        let mut items = Vec::new();
        let mut height = 0;
        while !self.at_op("]") {
            let item = self.expression()?;
            height = height.max(item.height);
            if items.is_empty() && self.eat("for") {
                let variable = self.name("the name of an item")?;
                if !self.eat("in") {
                    return self.unexpected("`in`");
                }
                let over = self.binary(0)?;
                let filter = if self.eat("if") { Some(self.binary(0)?) } else { None };
                height = height.max(over.height);
                height = height.max(filter.as_ref().map_or(0, |tree| tree.height));
                self.close("]", open)?;
                let kind = ExprKind::Comprehension {
                    body: Box::new(item.expr),
                    variable,
                    over: Box::new(over.expr),
                    filter: filter.map(|tree| Box::new(tree.expr)),
                };
                return self.tree(kind, start, height);
            }
            items.push(item.expr);
            if !self.eat(",") {
                break;
            }
        }
        self.close("]", open)?;
        self.tree(ExprKind::List(items), start, height)
    }
}

/// Returns the expression of a tree in a box.
fn boxed(tree: Option<ExprTree>) -> Option<Box<Expr>> {
    tree.map(|tree| Box::new(tree.expr))
}
