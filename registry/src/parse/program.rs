//! Statements, programs and function headers.

use std::ops::Range;

use super::Parser;
use crate::lexer::LexemeKind;
use crate::syntax::{Expr, FunctionParam, Ident, Program, Stmt};

/// Statements of Python that a static graph has no place for.
const LOOPS: [&str; 6] = ["while", "def", "class", "import", "with", "assert"];

impl Parser<'_> {
    pub(super) fn program(&mut self) -> Option<Program> {
        let mut program = Program { body: Vec::new(), result: Vec::new(), at: self.text.span() };
        let mut returned = false;
        let mut too_late = false;
        // A broken last line may have been the `return`.
        let mut broken = false;
        loop {
            while self.token().kind == LexemeKind::Newline {
                self.advance();
            }
            let start = self.token().range.start;
            if self.token().kind == LexemeKind::End {
                break;
            }
            if returned && !too_late {
                too_late = true;
                let range = start..start;
                let _: Option<()> = self.fail(range, "nothing may follow the result", "");
            }
            broken = match self.statement() {
                Some(ProgramLine::Assign(stmt)) => {
                    program.body.push(stmt);
                    false
                }
                Some(ProgramLine::Result(result)) => {
                    returned = true;
                    program.result = result;
                    false
                }
                None => {
                    self.skip_line();
                    true
                }
            };
        }
        if !returned && !broken {
            let end = self.last_end();
            let (range, message) = if program.body.is_empty() {
                (0..self.text.value().len(), "this program is empty")
            } else {
                (end..end, "this program gives nothing")
            };
            return self.fail(range, message, "end it with `return x`");
        }
        Some(program)
    }

    fn skip_line(&mut self) {
        while !matches!(self.token().kind, LexemeKind::End | LexemeKind::Newline) {
            self.advance();
        }
    }

    fn statement(&mut self) -> Option<ProgramLine> {
        let first = self.token().clone();
        if let Some(targets) = self.targets() {
            let targets = self.bound(targets)?;
            let value = self.expression()?.expr;
            self.line_end()?;
            return Some(ProgramLine::Assign(Stmt { targets, value }));
        }
        let word = &self.text.value()[first.range.clone()];
        if matches!(first.kind, LexemeKind::Op("for" | "if")) || LOOPS.contains(&word) {
            let message = format!("there is no `{word}` statement");
            let help = "programs are straight-line; `a if dim else b` chooses";
            return self.fail(first.range, message, help);
        }
        let explicit = self.eat("return");
        let mut result = vec![self.expression()?.expr];
        while self.eat(",") {
            result.push(self.expression()?.expr);
        }
        self.line_end()?;
        if !explicit && self.more_lines() {
            let range = first.range.start..self.last_end();
            let help = "assign it to a name, or remove it";
            return self.fail(range, "the value of this line goes nowhere", help);
        }
        Some(ProgramLine::Result(result))
    }

    /// True if a statement follows this one.
    fn more_lines(&self) -> bool {
        let remaining = &self.tokens[self.pos..];
        remaining.iter().any(|token| !matches!(token.kind, LexemeKind::Newline | LexemeKind::End))
    }

    fn line_end(&mut self) -> Option<()> {
        match self.token().kind {
            LexemeKind::Newline | LexemeKind::End => Some(()),
            _ => self.unexpected("the end of the line"),
        }
    }

    /// Parses the targets of `a, b =`, if an assignment comes next.
    fn targets(&mut self) -> Option<Vec<Range<usize>>> {
        let mut pos = self.pos;
        let mut targets = Vec::new();
        loop {
            let LexemeKind::Path(_) = self.tokens[pos].kind else { return None };
            targets.push(self.tokens[pos].range.clone());
            match self.tokens[pos + 1].kind {
                LexemeKind::Op(",") => pos += 2,
                LexemeKind::Op("=") => {
                    self.pos = pos + 2;
                    return Some(targets);
                }
                // `x += y`
                LexemeKind::Op("+" | "-" | "*" | "/") if targets.len() == 1 => {
                    let op = self.tokens[pos + 1].range.clone();
                    let next = &self.tokens[pos + 2];
                    if next.kind == LexemeKind::Op("=") && next.range.start == op.end {
                        let x = &self.text.value()[targets[0].clone()];
                        let sign = &self.text.value()[op.clone()];
                        let help = format!("write `{x} = {x} {sign} ...`");
                        let range = op.start..next.range.end;
                        let _: Option<()> = self.fail(range, "there is no such assignment", &help);
                        self.pos = pos + 3;
                        return Some(targets);
                    }
                    return None;
                }
                _ => return None,
            }
        }
    }

    /// Returns the names that an assignment binds.
    fn bound(&mut self, targets: Vec<Range<usize>>) -> Option<Vec<Ident>> {
        let mut names: Vec<Ident> = Vec::new();
        for range in targets {
            let name = self.ident(&range);
            if name.name.contains('.') {
                let message = "a path cannot be assigned";
                return self.fail(range, message, "names of values have no dots");
            }
            if super::expr::literal(&name.name).is_some() {
                let message = format!("`{}` is a value, not a name", name.name);
                return self.fail(range, message, "");
            }
            if name.name != "_" && names.iter().any(|other| other.name == name.name) {
                let message = format!("`{}` is assigned twice at once", name.name);
                return self.fail(range, message, "");
            }
            names.push(name);
        }
        Some(names)
    }

    pub(super) fn header(&mut self) -> Option<(Ident, Vec<FunctionParam>)> {
        let name = self.name("the function's name")?;
        if !self.at_op("(") {
            let help = format!("write `{}(x)`", name.name);
            let range = self.token().range.clone();
            return self.fail(range, "a function says its parameters", &help);
        }
        let open = self.advance().range;
        let mut params: Vec<FunctionParam> = Vec::new();
        while !self.at_op(")") {
            let range = self.token().range.clone();
            let name = self.name("the name of a parameter")?;
            if params.iter().any(|param| param.name.name == name.name) {
                return self.fail(range, format!("parameter `{}` stands twice", name.name), "");
            }
            let default = if self.eat("=") { Some(self.expression()?.expr) } else { None };
            if default.is_none() && params.last().is_some_and(|param| param.default.is_some()) {
                let message = "a parameter without a default follows one that has one";
                return self.fail(range, message, "put it before them, or give it a default");
            }
            params.push(FunctionParam { name, default });
            if !self.eat(",") {
                break;
            }
        }
        self.close(")", open)?;
        self.expect_end("the end of the header").then_some((name, params))
    }
}

enum ProgramLine {
    Assign(Stmt),
    Result(Vec<Expr>),
}
