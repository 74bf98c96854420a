//! Classes of written code as structs of C++: members with their types, constructors and methods.

use std::collections::{BTreeMap, BTreeSet};

use crate::classes::{Class, WrittenMethod};
use crate::cpp_expression::{CodeExpr, CppNames, condition, parsed, tensors, written};
use crate::value::CodeLine;

/// A struct of C++ for templates.
#[derive(Debug, Default)]
pub(crate) struct CppClass {
    pub(crate) members: Vec<String>,
    pub(crate) init: Vec<String>,
    pub(crate) methods: Vec<CppMethod>,
}

/// A method of a struct: its name, parameters and lines.
#[derive(Debug, Default)]
pub(crate) struct CppMethod {
    pub(crate) name: String,
    pub(crate) returns: String,
    pub(crate) params: String,
    pub(crate) body: Vec<String>,
}

/// Writes the lines of one class.
#[derive(Default)]
struct CppWriter {
    /// Members by name, with their types.
    members: BTreeMap<String, String>,
    order: Vec<String>,
    /// Names of the scope under way.
    locals: BTreeSet<String>,
    pointers: BTreeSet<String>,
    /// The type of new variables.
    local_type: &'static str,
    /// Classes by the names of kinds of layers.
    kinds: Vec<(String, String)>,
    counted: usize,
    /// Code that has no form in C++.
    unwritable: Vec<String>,
}

impl CppNames for CppWriter {
    fn member(&self, path: &[&str]) -> String {
        // Attributes of a module, unless the class has made it by a line of its own.
        let mut count = path.len();
        while count > 1 && !self.members.contains_key(&path[..count].join("_")) {
            count -= 1;
        }
        let member = path[..count].join("_");
        let this = if self.locals.contains(&member) { "this->" } else { "" };
        let attributes: String = path[count..].iter().flat_map(|name| [".", *name]).collect();
        format!("{this}{member}{attributes}")
    }

    fn is_pointer(&self, name: &str) -> bool {
        self.pointers.contains(name)
    }
}

/// Returns the type of a member by the call that makes it.
fn type_of(value: &str) -> String {
    match parsed(value) {
        Some(CodeExpr::Call(name, arguments)) if name.is_name("modules") => {
            let Some((_, CodeExpr::List(items))) = arguments.first() else {
                return "Layers".to_owned();
            };
            match items.iter().find(|item| !is_gap(item)) {
                Some(CodeExpr::Each { .. }) | None => "Layers".to_owned(),
                Some(item) => format!("std::vector<{}>", constructed(item)),
            }
        }
        Some(expr) => constructed(&expr),
        None => "Value".to_owned(),
    }
}

/// Returns the type that an expression constructs; a value of the config if it constructs none.
fn constructed(expr: &CodeExpr) -> String {
    if let CodeExpr::Call(name, _) = expr
        && let CodeExpr::Name(name) = &**name
        && name.starts_with(char::is_uppercase)
    {
        return name.clone();
    }
    "Value".to_owned()
}

/// Returns the line that appends a layer of a class to a list.
fn layer_line(list: &str, class: &str, arguments: &str) -> String {
    format!("{list}.push_back(std::make_shared<{class}>({arguments}));")
}

fn indent(depth: usize, text: &str) -> String {
    format!("{}{text}", "    ".repeat(depth))
}

/// True for what fills a gap in a list of modules.
fn is_gap(item: &CodeExpr) -> bool {
    matches!(item, CodeExpr::Call(name, _) if name.is_name("Gap"))
}

/// Returns a name or a literal text as it stands; empty for anything else.
fn word(expr: &CodeExpr) -> String {
    match expr {
        CodeExpr::Name(text) | CodeExpr::Text(text) => text.clone(),
        _ => String::new(),
    }
}

/// Splits `name = value`.
fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(" = ")?;
    name.chars().all(|c| c.is_alphanumeric() || "_., ".contains(c)).then_some((name, value))
}

impl CppWriter {
    /// Notes code that has no form in C++, unless it has one.
    fn known<T>(&mut self, text: &str, form: Option<T>) -> Option<T> {
        if form.is_none() {
            self.unwritable.push(text.to_owned());
        }
        form
    }

    fn expr(&mut self, text: &str) -> String {
        self.known(text, parsed(text)).map(|expr| written(&expr, self)).unwrap_or_default()
    }

    fn condition(&mut self, text: &str) -> String {
        self.known(text, parsed(text)).map(|expr| condition(&expr, self)).unwrap_or_default()
    }

    fn declare(&mut self, name: &str, ty: &str) {
        // A module that is of one class or of another.
        match self.members.get_mut(name) {
            Some(known)
                if known == ty
                    || known.contains(&format!("<{ty},"))
                    || known.contains(&format!(", {ty}")) => {}
            Some(known) => {
                let listed = known.strip_prefix("OneOf<").and_then(|known| known.strip_suffix('>'));
                *known = format!("OneOf<{}, {ty}>", listed.unwrap_or(known));
            }
            None => {
                self.members.insert(name.to_owned(), ty.to_owned());
                self.order.push(name.to_owned());
            }
        }
    }

    /// Finds the members that lines assign.
    fn find_members(&mut self, lines: &[CodeLine]) {
        for line in lines {
            match line {
                CodeLine::Text(text) => {
                    let Some((name, value)) = assignment(text) else { continue };
                    let Some(name) = name.strip_prefix("self.") else {
                        self.note_kinds(name, value);
                        continue;
                    };
                    if value != "Empty()" && !name.ends_with(".weight") {
                        let ty = type_of(value);
                        self.declare(&name.replace('.', "_"), &ty);
                    }
                }
                CodeLine::If(_, yes, no) => {
                    self.find_members(yes);
                    self.find_members(no);
                }
                CodeLine::For(_, body) => self.find_members(body),
            }
        }
    }

    fn note_kinds(&mut self, name: &str, value: &str) {
        if let (Some(CodeExpr::Map(pairs)), "kinds") = (parsed(value), name) {
            self.kinds = pairs.iter().map(|(key, value)| (word(key), word(value))).collect();
        }
    }

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
                    out.push(indent(depth, &format!("for (const auto & {name} : {over}) {{")));
                    self.pointers.insert(name.to_owned());
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
                            let ty =
                                if self.local_type == "auto" { "ggml_tensor *" } else { "Value" };
                            let null = if ty == "Value" { "" } else { " = nullptr" };
                            out.push(indent(depth, &format!("{ty} {name}{null};")));
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
            out.push(indent(depth, &format!("{};", self.expr(text))));
            return;
        };
        if names == "kinds" || value == "Empty()" {
            return;
        }
        if let Some(member) = names.strip_prefix("self.") {
            self.member_line(member, value, depth, out);
            return;
        }
        let names: Vec<&str> = names.split(", ").collect();
        // A member of the same name is not the variable.
        let is_new: Vec<bool> =
            names.iter().map(|name| self.locals.insert((*name).to_owned())).collect();
        let value = match parsed(value) {
            Some(CodeExpr::List(items)) if names.len() > 1 => tensors(&items, self),
            _ => self.expr(value),
        };
        let declared: Vec<String> =
            names
                .iter()
                .zip(is_new)
                .map(|(name, is_new)| {
                    if is_new { format!("{} {name}", self.local_type) } else { (*name).to_owned() }
                })
                .collect();
        if let [name] = declared.as_slice() {
            out.push(indent(depth, &format!("{name} = {value};")));
            return;
        }
        self.counted += 1;
        let parts = format!("several_{}", self.counted);
        out.push(indent(depth, &format!("const tensors {parts} = {value};")));
        for (n, name) in declared.iter().enumerate() {
            out.push(indent(depth, &format!("{name} = {parts}[{n}];")));
        }
    }

    /// Writes the line of a constructor that sets a member.
    fn member_line(&mut self, member: &str, value: &str, depth: usize, out: &mut Vec<String>) {
        let path: Vec<&str> = member.split('.').collect();
        let name = self.member(&path);
        let expr = parsed(value);
        if let Some(CodeExpr::Call(function, arguments)) = &expr
            && function.is_name("modules")
            && let Some((_, CodeExpr::List(items))) = arguments.first()
        {
            if let Some(CodeExpr::Each { body, names, over, .. }) = items.first() {
                let layers = self.layer_lines(&name, body, names, over);
                let lines = self.known(value, layers).unwrap_or_default();
                out.extend(lines.iter().map(|line| indent(depth, line)));
                return;
            }
            for item in items {
                let module = if is_gap(item) { "{}".to_owned() } else { written(item, self) };
                out.push(indent(depth, &format!("{name}.push_back({module});")));
            }
            return;
        }
        if path.last() == Some(&"weight") && path.len() > 1 {
            out.push(indent(
                depth,
                &format!("tie(prefix, \"{member}\", {name}, {});", self.expr(value)),
            ));
            return;
        }
        out.push(indent(depth, &format!("{name} = {};", self.expr(value))));
    }

    /// Returns the lines that make all layers, each of the class for its kind; none if the loop has another form.
    fn layer_lines(
        &self,
        list: &str,
        body: &CodeExpr,
        names: &[String],
        over: &CodeExpr,
    ) -> Option<Vec<String>> {
        let number = names.first()?;
        let (count, kinds) = match over {
            CodeExpr::Call(_, arguments) => match (names.len(), &arguments.first()?.1) {
                (1, count) => (written(count, self), None),
                (_, CodeExpr::Slice(list, _, Some(count))) => {
                    (written(count, self), Some(written(list, self)))
                }
                (_, list) => {
                    (format!("len_of({})", written(list, self)), Some(written(list, self)))
                }
            },
            other => (written(other, self), None),
        };
        let mut lines = vec![format!("for (int {number} = 0; {number} < {count}; ++{number}) {{")];
        if let Some(kinds) = kinds {
            lines.push(indent(1, &format!("const Value {} = {kinds}[{number}];", names.get(1)?)));
        }
        let CodeExpr::Call(class, arguments) = body else { return None };
        let arguments: Vec<String> =
            arguments.iter().map(|(_, value)| written(value, self)).collect();
        let arguments = arguments.join(", ");
        let (key, otherwise) = match &**class {
            CodeExpr::Name(class) => {
                lines.push(indent(1, &layer_line(list, class, &arguments)));
                lines.push("}".to_owned());
                return Some(lines);
            }
            CodeExpr::Index(_, key) => {
                let key = written(key, self);
                let refusal = format!("unknown_kind({key});");
                (key, refusal)
            }
            CodeExpr::Call(_, choice) => {
                let [(_, key), (_, class)] = choice.as_slice() else { return None };
                (written(key, self), layer_line(list, &written(class, self), &arguments))
            }
            _ => return None,
        };
        for (n, (kind, class)) in self.kinds.iter().enumerate() {
            let start = if n == 0 { "if" } else { "} else if" };
            lines.push(indent(1, &format!("{start} ({key} == {kind}) {{")));
            lines.push(indent(2, &layer_line(list, class, &arguments)));
        }
        lines.push(indent(1, "} else {"));
        lines.push(indent(2, &otherwise));
        lines.push(indent(1, "}"));
        lines.push("}".to_owned());
        Some(lines)
    }

    fn finish(self, init: Vec<String>, methods: Vec<CppMethod>) -> Result<CppClass, Vec<String>> {
        if !self.unwritable.is_empty() {
            return Err(self.unwritable);
        }
        let members = self.order.iter().map(|name| format!("{} {name};", self.members[name]));
        Ok(CppClass { members: members.collect(), init, methods })
    }

    fn method(&mut self, method: &WrittenMethod) -> CppMethod {
        self.locals = method.params.iter().map(|(name, _)| name.clone()).collect();
        self.pointers.clear();
        self.local_type = "auto";
        self.counted = 0;
        let mut body = Vec::new();
        self.lines(&method.body, 2, &mut body);
        let params: Vec<String> = method
            .params
            .iter()
            .map(|(name, ty)| {
                let ty = ty.strip_suffix(" | None").unwrap_or(ty);
                let ty =
                    if ["Any", "int", "str", "bool"].contains(&ty) { "const Value &" } else { ty };
                let gap = if ty.ends_with(['*', '&']) { "" } else { " " };
                format!("{ty}{gap}{name}")
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

/// Writes a class, or returns code of it that has no form in C++.
pub(crate) fn class(class: &Class) -> Result<CppClass, Vec<String>> {
    let mut writer = CppWriter { local_type: "Value", ..CppWriter::default() };
    writer.find_members(&class.init);
    let mut init = Vec::new();
    writer.locals = class.params.iter().map(|name| crate::value::parameter(name)).collect();
    writer.locals.extend(["config".to_owned(), "prefix".to_owned()]);
    writer.lines(&class.init, 2, &mut init);
    let methods = class.methods.iter().map(|method| writer.method(method)).collect();
    writer.finish(init, methods)
}

/// Writes the settings: members and the lines that read them.
pub(crate) fn settings(lines: &[CodeLine]) -> Result<CppClass, Vec<String>> {
    let mut writer = CppWriter { local_type: "Value", ..CppWriter::default() };
    writer.find_members(lines);
    for ty in writer.members.values_mut() {
        "Value".clone_into(ty);
    }
    let mut init = Vec::new();
    writer.locals = BTreeSet::from(["config".to_owned()]);
    writer.lines(lines, 2, &mut init);
    writer.finish(init, Vec::new())
}
