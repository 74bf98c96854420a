//! Methods of written classes as functions of C++.

use crate::classes::WrittenMethod;
use crate::cpp::{CppMethod, CppWriter, assignment, indent};
use crate::cpp_code::CodeExpr;
use crate::cpp_expression::{parsed, tensors};
use crate::value::CodeLine;
use crate::words::mentions;

impl CppWriter<'_> {
    fn lines(&mut self, lines: &[CodeLine], depth: usize, out: &mut Vec<String>) {
        for line in lines {
            match line {
                CodeLine::Text(text) if text.starts_with('#') => {
                    out.push(indent(depth, &format!("//{}", &text[1..])));
                }
                CodeLine::Text(text) => self.statement(text, depth, out),
                CodeLine::For(head, body) => {
                    let (name, over) = head.split_once(" in ").unwrap_or((head, ""));
                    let over = self.expr(over);
                    out.push(indent(depth, &format!("for (auto & {name} : {over}) {{")));
                    self.lines(body, depth + 1, out);
                    out.push(indent(depth, "}"));
                }
                CodeLine::If(condition, yes, no) => {
                    self.hoist(yes, depth, out);
                    self.hoist(no, depth, out);
                    let condition = self.condition(condition);
                    out.push(indent(depth, &format!("if ({condition}) {{")));
                    self.lines(yes, depth + 1, out);
                    if !no.is_empty() {
                        out.push(indent(depth, "} else {"));
                        self.lines(no, depth + 1, out);
                    }
                    out.push(indent(depth, "}"));
                }
            }
        }
    }

    /// Declares the variables that a block sets for the lines behind it.
    fn hoist(&mut self, lines: &[CodeLine], depth: usize, out: &mut Vec<String>) {
        for line in lines {
            match line {
                CodeLine::Text(text) => {
                    let Some((names, _)) = assignment(text) else { continue };
                    for name in names.split(", ").filter(|name| !name.contains('.')) {
                        if self.locals.insert(name.to_owned()) {
                            out.push(indent(depth, &format!("ggml_tensor * {name} = nullptr;")));
                        }
                    }
                }
                CodeLine::If(_, yes, no) => {
                    self.hoist(yes, depth, out);
                    self.hoist(no, depth, out);
                }
                CodeLine::For(_, body) => self.hoist(body, depth, out),
            }
        }
    }

    /// True for a call of a rotary table.
    fn is_table(&self, value: &CodeExpr) -> bool {
        let CodeExpr::Call(callee, _) = value else { return false };
        let CodeExpr::Attribute(base, name) = &**callee else { return false };
        base.is_name("self") && self.members.get(name).is_some_and(|ty| ty == "Rotary")
    }

    fn statement(&mut self, text: &str, depth: usize, out: &mut Vec<String>) {
        if let Some(result) = text.strip_prefix("return ") {
            let value = match parsed(result) {
                Some(CodeExpr::List(items)) => tensors(&items, self),
                _ => self.expr(result),
            };
            out.push(indent(depth, &format!("return {value};")));
            return;
        }
        let Some((names, value)) = assignment(text) else {
            let line = format!("{};", self.expr(text));
            out.push(indent(depth, &line));
            return;
        };
        let names: Vec<&str> = names.split(", ").collect();
        // A member of the same name is not the variable.
        let is_new: Vec<bool> =
            names.iter().map(|name| self.locals.insert((*name).to_owned())).collect();
        let parsed = parsed(value);
        let ty = match &parsed {
            Some(value) if self.is_table(value) => "const auto",
            _ => "ggml_tensor *",
        };
        let value = match parsed {
            Some(CodeExpr::List(items)) if names.len() > 1 => tensors(&items, self),
            _ => self.expr(value),
        };
        if let [name] = names.as_slice() {
            let declared = if is_new[0] { format!("{ty} {name}") } else { (*name).to_owned() };
            out.push(indent(depth, &format!("{declared} = {value};")));
            return;
        }
        let count = names.len();
        if is_new.iter().all(|is_new| *is_new) {
            let line = format!("auto [{}] = unpacked<{count}>({value});", names.join(", "));
            out.push(indent(depth, &line));
            return;
        }
        for name in names.iter().zip(is_new).filter_map(|(name, is_new)| is_new.then_some(name)) {
            out.push(indent(depth, &format!("ggml_tensor * {name};")));
        }
        let line = format!("std::tie({}) = unpacked<{count}>({value});", names.join(", "));
        out.push(indent(depth, &line));
    }

    /// Writes a method.
    pub(crate) fn method(&mut self, method: &WrittenMethod) -> CppMethod {
        self.locals = method.params.iter().map(|(name, _)| name.clone()).collect();
        let mut body = Vec::new();
        self.lines(&method.body, 2, &mut body);
        let params: Vec<String> = method
            .params
            .iter()
            .map(|(name, ty)| {
                let ty = ty.strip_suffix(" | None").unwrap_or(ty);
                let ty =
                    if ["Any", "int", "str", "bool"].contains(&ty) { "const Value &" } else { ty };
                // Parameters that other classes of layers need.
                let is_read = body.iter().any(|line| mentions(line, name));
                if is_read { format!("{ty} {name}") } else { format!("{ty} /* {name} */") }
            })
            .collect();
        let returns = if method.results == 1 { "ggml_tensor *" } else { "tensors" };
        CppMethod {
            name: method.name.clone(),
            returns: returns.to_owned(),
            params: params.join(", "),
            body,
        }
    }
}
