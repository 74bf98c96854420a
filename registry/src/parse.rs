//! Parses expressions, programs and function headers.
//!
//! Python's grammar, cut down to what stays static: no statements but
//! assignments and one `return`, no attributes, no lambdas. A program reports
//! one finding per broken statement, not only the first.

use std::ops::Range;

use crate::diag::{Finding, Span};
use crate::lexer::{Lexeme, LexemeKind, lex};
use crate::syntax::{Expr, FunctionParam, Ident, Program};
use crate::text::MappedText;

mod expr;
mod program;

/// The deepest tree of an expression. Whoever walks a tree recurses, so
/// untrusted text must not decide how far.
pub const MAX_HEIGHT: usize = 64;

/// Parses one expression.
pub fn parse_expr(text: &MappedText) -> Result<Expr, Vec<Finding>> {
    let mut findings = Vec::new();
    let mut parser = Parser::new(text, &mut findings, false);
    let expr = parser.expression();
    let expr = expr.filter(|_| parser.expect_end("the end of the expression"));
    finish(expr.map(|tree| tree.expr), findings)
}

/// Parses straight-line statements and a `return`.
pub fn parse_program(text: &MappedText) -> Result<Program, Vec<Finding>> {
    let mut findings = Vec::new();
    let mut parser = Parser::new(text, &mut findings, true);
    let program = parser.program();
    finish(program, findings)
}

/// Parses `name(x, bias=false)`.
pub fn parse_function_header(
    text: &MappedText,
) -> Result<(Ident, Vec<FunctionParam>), Vec<Finding>> {
    let mut findings = Vec::new();
    let mut parser = Parser::new(text, &mut findings, false);
    let header = parser.header();
    finish(header, findings)
}

fn finish<T>(parsed: Option<T>, findings: Vec<Finding>) -> Result<T, Vec<Finding>> {
    match parsed {
        Some(parsed) if findings.is_empty() => Ok(parsed),
        _ => Err(findings),
    }
}

/// An expression and how deep it is.
struct ExprTree {
    expr: Expr,
    height: usize,
}

/// Functions return `None` after they have reported why.
struct Parser<'a> {
    text: &'a MappedText,
    tokens: Vec<Lexeme>,
    pos: usize,
    /// Calls of `expression` and `unary` under way.
    depth: usize,
    findings: &'a mut Vec<Finding>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a MappedText, findings: &'a mut Vec<Finding>, newlines: bool) -> Self {
        let mut tokens = lex(text, findings);
        if !newlines {
            tokens.retain(|token| token.kind != LexemeKind::Newline);
        }
        Self { text, tokens, pos: 0, depth: 0, findings }
    }

    fn token(&self) -> &Lexeme {
        &self.tokens[self.pos]
    }

    /// True if the next token is this operator, bracket or keyword.
    fn at_op(&self, op: &str) -> bool {
        matches!(self.token().kind, LexemeKind::Op(symbol) if symbol == op)
    }

    /// Passes over `op` if it is next.
    fn eat(&mut self, op: &str) -> bool {
        let is_next = self.at_op(op);
        if is_next {
            self.advance();
        }
        is_next
    }

    fn advance(&mut self) -> Lexeme {
        let token = self.tokens[self.pos].clone();
        if token.kind != LexemeKind::End {
            self.pos += 1;
        }
        token
    }

    /// Passes over the bracket that closes the one at `open`.
    fn close(&mut self, op: &str, open: Range<usize>) -> Option<()> {
        if self.eat(op) {
            return Some(());
        }
        if matches!(self.token().kind, LexemeKind::End | LexemeKind::Op("return")) {
            let shown = self.text.value()[open.clone()].to_owned();
            let message = format!("this `{shown}` is never closed");
            return self.fail(open, message, "");
        }
        self.unexpected(&format!("`,` or `{op}`"))
    }

    fn expect_end(&mut self, what: &str) -> bool {
        self.token().kind == LexemeKind::End || self.unexpected::<()>(what).is_some()
    }

    /// Reports the next token. Text that the lexer has already refused is not
    /// reported again as a syntax error.
    fn unexpected<T>(&mut self, expected: &str) -> Option<T> {
        let token = self.token();
        let shown = match &token.kind {
            LexemeKind::End => "the text ends here".to_owned(),
            LexemeKind::Newline => "the line ends here".to_owned(),
            _ => format!("found `{}`", &self.text.value()[token.range.clone()]),
        };
        let mut finding = Finding::error(&self.text.at(token.range.clone()), "syntax error")
            .label(format!("{shown}; expected {expected}"));
        finding.help = match self.token().kind {
            LexemeKind::Op("=") => Some("`==` compares; `=` stands only after a name".into()),
            LexemeKind::Op(".") => Some("a path has no spaces: `conv.in_proj`".into()),
            LexemeKind::Op("{") => Some("there are no sets or maps in the language".into()),
            _ => None,
        };
        self.findings.push(finding);
        None
    }

    fn fail<T>(
        &mut self,
        range: Range<usize>,
        message: impl Into<String>,
        help: &str,
    ) -> Option<T> {
        let mut finding = Finding::error(&self.text.at(range), message);
        finding.help = (!help.is_empty()).then(|| help.to_owned());
        self.findings.push(finding);
        None
    }

    fn ident(&self, range: &Range<usize>) -> Ident {
        Ident { name: self.text.value()[range.clone()].to_owned(), at: self.text.at(range.clone()) }
    }

    /// Parses a single name that can be bound.
    fn name(&mut self, what: &str) -> Option<Ident> {
        match &self.token().kind {
            LexemeKind::Path(segments) if segments.len() == 1 => {
                let name = self.ident(&segments[0].clone());
                if expr::literal(&name.name).is_some() {
                    let range = self.token().range.clone();
                    return self.fail(range, format!("`{}` is a value, not a name", name.name), "");
                }
                self.advance();
                Some(name)
            }
            _ => self.unexpected(what),
        }
    }

    fn span(&self, start: usize, end: usize) -> Span {
        self.text.at(start..end)
    }

    /// Returns the end of the last token passed.
    fn last_end(&self) -> usize {
        self.pos.checked_sub(1).map_or(0, |last| self.tokens[last].range.end)
    }
}

#[cfg(test)]
mod tests;
