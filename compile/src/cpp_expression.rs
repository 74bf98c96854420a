//! Expressions of written code, whose grammar is Python's, as expressions of C++.

use crate::cpp_code::{CodeExpr, CppNames, is_truth};
use crate::cpp_types::written_type;
use crate::words::mentions;

impl CodeExpr {
    /// True for this name.
    pub(crate) fn is_name(&self, name: &str) -> bool {
        matches!(self, Self::Name(text) if text == name)
    }
}

use CodeExpr::{
    Attribute, Binary, Call, Each, Form, If, Index, List, Map, Name, Number, Slice, Text, Unary,
};

/// Operators of two sides, the loosest first.
const LEVELS: [&[&str]; 6] = [
    &["or"],
    &["and"],
    &["not in", "in", "is not", "is", "==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "//", "/", "%"],
    &["**"],
];

/// Reads an expression from its words.
struct CodeParser {
    words: Vec<String>,
    at: usize,
}

/// Splits a text into names, numbers, texts and signs.
fn words(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let mut words = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let start = at;
        let letter = letters[at];
        at += 1;
        if letter.is_whitespace() {
            continue;
        }
        let is_form = letter == 'f' && letters.get(at) == Some(&'"');
        if letter == '"' || is_form {
            at += usize::from(is_form);
            while at < letters.len() && letters[at] != '"' {
                at += if letters[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if letter.is_ascii_digit() {
            while at < letters.len()
                && (letters[at].is_alphanumeric()
                    || letters[at] == '.'
                    || ("+-".contains(letters[at]) && letters[at - 1] == 'e'))
            {
                at += 1;
            }
        } else if letter.is_alphanumeric() || letter == '_' {
            while at < letters.len() && (letters[at].is_alphanumeric() || letters[at] == '_') {
                at += 1;
            }
        } else {
            let pair: String = letters[start..letters.len().min(start + 2)].iter().collect();
            at += usize::from(["//", "**", "==", "!=", "<=", ">="].contains(&pair.as_str()));
        }
        words.push(letters[start..at.min(letters.len())].iter().collect());
    }
    words
}

/// Reads an expression; none if it is not one.
pub(crate) fn parsed(text: &str) -> Option<CodeExpr> {
    let mut parser = CodeParser { words: words(text), at: 0 };
    let items = parser.items("")?;
    (parser.at == parser.words.len()).then_some(())?;
    match <[CodeExpr; 1]>::try_from(items) {
        Ok([one]) => Some(one),
        Err(items) => Some(List(items)),
    }
}

impl CodeParser {
    fn peek(&self) -> &str {
        self.words.get(self.at).map_or("", String::as_str)
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.peek() == word && !word.is_empty();
        self.at += usize::from(is_next);
        is_next
    }

    /// Reads expressions up to a closing sign.
    fn items(&mut self, close: &str) -> Option<Vec<CodeExpr>> {
        let mut items = Vec::new();
        while self.at < self.words.len() && self.peek() != close {
            let item = self.expr()?;
            items.push(self.each(item)?);
            if !self.takes(",") {
                break;
            }
        }
        (close.is_empty() || self.takes(close)).then_some(items)
    }

    /// Reads `for NAMES in EXPR if EXPR` behind an expression, if it is there.
    fn each(&mut self, body: CodeExpr) -> Option<CodeExpr> {
        if !self.takes("for") {
            return Some(body);
        }
        let mut names = Vec::new();
        while !self.takes("in") {
            names.push(self.peek().to_owned());
            self.at += 1;
            self.takes(",");
            (self.at < self.words.len()).then_some(())?;
        }
        let over = Box::new(self.level(0)?);
        let filter = if self.takes("if") { Some(Box::new(self.level(0)?)) } else { None };
        Some(Each { body: Box::new(body), names, over, filter })
    }

    fn expr(&mut self) -> Option<CodeExpr> {
        let then = self.level(0)?;
        if !self.takes("if") {
            return Some(then);
        }
        let condition = Box::new(self.level(0)?);
        self.takes("else").then_some(())?;
        Some(If(condition, Box::new(then), Box::new(self.expr()?)))
    }

    fn level(&mut self, level: usize) -> Option<CodeExpr> {
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        if level == 2 && self.takes("not") {
            return Some(Unary("!", Box::new(self.level(2)?)));
        }
        if level == 5 {
            let base = self.unary()?;
            if self.takes("**") {
                return Some(Binary("**", Box::new(base), Box::new(self.level(5)?)));
            }
            return Some(base);
        }
        let mut left = self.level(level + 1)?;
        'more: loop {
            for sign in *signs {
                let start = self.at;
                if sign.split(' ').all(|word| self.takes(word)) {
                    let right = self.level(level + 1)?;
                    left = Binary(sign, Box::new(left), Box::new(right));
                    continue 'more;
                }
                self.at = start;
            }
            return Some(left);
        }
    }

    fn unary(&mut self) -> Option<CodeExpr> {
        if self.takes("-") {
            return Some(Unary("-", Box::new(self.level(5)?)));
        }
        let mut base = self.atom()?;
        loop {
            if self.takes(".") {
                base = Attribute(Box::new(base), self.peek().to_owned());
                self.at += 1;
            } else if self.takes("(") {
                base = Call(Box::new(base), self.arguments()?);
            } else if self.takes("[") {
                base = self.index(base)?;
            } else {
                return Some(base);
            }
        }
    }

    fn arguments(&mut self) -> Option<Vec<(Option<String>, CodeExpr)>> {
        let mut arguments = Vec::new();
        while !self.takes(")") {
            let has_name = self.words.get(self.at + 1).is_some_and(|word| word == "=");
            let name = has_name.then(|| self.peek().to_owned());
            self.at += if has_name { 2 } else { 0 };
            let value = self.expr()?;
            arguments.push((name, self.each(value)?));
            (self.takes(",") || self.peek() == ")").then_some(())?;
        }
        Some(arguments)
    }

    fn index(&mut self, base: CodeExpr) -> Option<CodeExpr> {
        let from = if self.peek() == ":" { None } else { Some(Box::new(self.expr()?)) };
        if self.takes(":") {
            let to = if self.peek() == "]" { None } else { Some(Box::new(self.expr()?)) };
            return self.takes("]").then(|| Slice(Box::new(base), from, to));
        }
        let key = from?;
        self.takes("]").then(|| Index(Box::new(base), key))
    }

    fn atom(&mut self) -> Option<CodeExpr> {
        let word = self.peek().to_owned();
        self.at += 1;
        let first = word.chars().next()?;
        match first {
            '(' => {
                let mut items = self.items(")")?;
                if items.len() == 1 { items.pop() } else { Some(List(items)) }
            }
            '[' => self.items("]").map(List),
            '{' => {
                let mut pairs = Vec::new();
                while !self.takes("}") {
                    let key = self.expr()?;
                    self.takes(":").then_some(())?;
                    pairs.push((key, self.expr()?));
                    self.takes(",");
                }
                Some(Map(pairs))
            }
            '"' => Some(Text(word)),
            'f' if word.ends_with('"') => Some(Form(word[1..].to_owned())),
            _ if first.is_ascii_digit() => Some(Number(word)),
            _ if first.is_alphabetic() || first == '_' => Some(Name(word)),
            _ => None,
        }
    }
}

/// Returns how tightly an operator of C++ binds.
fn strength(sign: &str) -> u8 {
    match sign {
        "or" => 2,
        "and" => 3,
        "==" | "!=" | "is" | "is not" => 4,
        "<" | "<=" | ">" | ">=" => 5,
        "+" | "-" => 6,
        "*" | "/" | "%" => 7,
        _ => 9,
    }
}

/// Returns the condition that holds if both do.
pub(crate) fn all_of(a: CodeExpr, b: CodeExpr) -> CodeExpr {
    Binary("and", Box::new(a), Box::new(b))
}

/// Returns the condition that holds if another does not.
pub(crate) fn negated(test: &CodeExpr) -> CodeExpr {
    match test {
        Unary("!", inner) => (**inner).clone(),
        Binary("is", a, b) => Binary("is not", a.clone(), b.clone()),
        Binary("is not", a, b) => Binary("is", a.clone(), b.clone()),
        Binary("==", a, b) => Binary("!=", a.clone(), b.clone()),
        Binary("!=", a, b) => Binary("==", a.clone(), b.clone()),
        other => Unary("!", Box::new(other.clone())),
    }
}

/// Writes an expression as C++.
pub(crate) fn written(expr: &CodeExpr, names: &impl CppNames) -> String {
    shown(expr, names).0
}

/// Writes a condition as C++.
pub(crate) fn condition(expr: &CodeExpr, names: &impl CppNames) -> String {
    truth(expr, names).0
}

fn truth(expr: &CodeExpr, names: &impl CppNames) -> (String, u8) {
    match expr {
        Binary(sign @ ("and" | "or"), a, b) => {
            let bound = strength(sign);
            let sides = [a, b]
                .map(|side| at(truth(side, names), if is_truth(side) { bound + 1 } else { bound }));
            (sides.join(if *sign == "and" { " && " } else { " || " }), bound)
        }
        Unary("!", inner) => (format!("!{}", at(truth(inner, names), 8)), 8),
        _ => shown(expr, names),
    }
}

/// Writes an expression so that a method of it can be called.
pub(crate) fn enclosed(expr: &CodeExpr, names: &impl CppNames) -> String {
    at(shown(expr, names), 9)
}

fn at((text, bound): (String, u8), least: u8) -> String {
    if bound < least { format!("({text})") } else { text }
}

/// Writes one side of a choice, whose sides must have one type.
fn side(expr: &CodeExpr, names: &impl CppNames) -> String {
    let text = shown(expr, names);
    if written_type(expr, names).is_some() {
        return format!("Value({})", text.0);
    }
    match expr {
        Number(_) | Text(_) | List(_) | Unary(..) => format!("Value({})", text.0),
        Name(name) if name == "True" || name == "False" => format!("Value({})", text.0),
        Binary(..) if is_truth(expr) => format!("Value({})", text.0),
        _ => at(text, 2),
    }
}

fn listed<'e>(items: impl Iterator<Item = &'e CodeExpr>, names: &impl CppNames) -> String {
    items.map(|item| written(item, names)).collect::<Vec<_>>().join(", ")
}

/// Writes a list of tensors.
pub(crate) fn tensors(items: &[CodeExpr], names: &impl CppNames) -> String {
    format!("tensors{{{}}}", listed(items.iter(), names))
}

fn shown(expr: &CodeExpr, names: &impl CppNames) -> (String, u8) {
    const ATOM: u8 = 10;
    match expr {
        Name(name) => match name.as_str() {
            "None" => ("nullptr".to_owned(), ATOM),
            "True" => ("true".to_owned(), ATOM),
            "False" => ("false".to_owned(), ATOM),
            other => (other.to_owned(), ATOM),
        },
        Number(text) | Text(text) => (text.clone(), ATOM),
        Form(text) => {
            let mut given = Vec::new();
            let mut form = String::new();
            for (n, part) in text.split('{').enumerate() {
                let tail = if n == 0 { None } else { part.split_once('}') };
                if let Some((name, _)) = tail {
                    given.push(format!(", {name}"));
                    form += "{}";
                }
                form += tail.map_or(part, |(_, tail)| tail);
            }
            (format!("filled({form}{})", given.concat()), ATOM)
        }
        List(items) => match items.as_slice() {
            [each @ Each { .. }] => shown(each, names),
            items => (format!("list({{{}}})", listed(items.iter(), names)), ATOM),
        },
        Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| {
                format!("{{{}, {}}}", written(key, names), written(value, names))
            });
            (format!("map({{{}}})", pairs.collect::<Vec<_>>().join(", ")), ATOM)
        }
        Each { body, names: variables, over, filter } => {
            let over = written(over, names);
            let body = lambda(variables, body, names);
            let filter = filter.as_ref().map(|filter| lambda(variables, filter, names));
            let parts: Vec<String> = [over, body].into_iter().chain(filter).collect();
            (format!("each({})", parts.join(", ")), ATOM)
        }
        Unary("!", inner) => (format!("!{}", at(truth(inner, names), 8)), 8),
        Unary(sign, inner) => (format!("{sign}{}", at(shown(inner, names), 8)), 8),
        Binary(sign, a, b) => binary(sign, a, b, names),
        If(test, a, b) => {
            let test = at(truth(test, names), 2);
            if written_type(expr, names).is_some() {
                let sides = [a, b].map(|side| at(shown(side, names), 2));
                return (format!("{test} ? {}", sides.join(" : ")), 1);
            }
            (format!("{test} ? {} : {}", side(a, names), side(b, names)), 1)
        }
        Call(function, arguments) => (call(function, arguments, names), ATOM),
        Index(base, key) => {
            (format!("{}[{}]", at(shown(base, names), 9), written(key, names)), ATOM)
        }
        Slice(base, from, to) => {
            let bounds = [from, to].map(|bound| match bound {
                Some(bound) => written(bound, names),
                None => "nullptr".to_owned(),
            });
            (format!("slice({}, {})", written(base, names), bounds.join(", ")), ATOM)
        }
        Attribute(base, name) => {
            let mut path = vec![name.as_str()];
            let mut root = &**base;
            while let Attribute(inner, name) = root {
                path.insert(0, name);
                root = inner;
            }
            match root {
                Name(name) if name == "self" => (names.member(&path), ATOM),
                Name(name) if name == "math" => (format!("math::{}", path.join(".")), ATOM),
                _ => (format!("{}.{name}", at(shown(base, names), 9)), ATOM),
            }
        }
    }
}

/// Writes a parameter, without its name if a body does not read it.
fn parameter(name: &str, body: &str) -> String {
    let name = if mentions(body, name) { name } else { "" };
    format!("const Value & {name}").trim_end().to_owned()
}

/// Writes a function of C++ over the variables of a loop.
fn lambda(variables: &[String], body: &CodeExpr, names: &impl CppNames) -> String {
    let body = written(body, names);
    let params: Vec<String> = variables.iter().map(|name| parameter(name, &body)).collect();
    format!("[&]({}) -> Value {{ return {body}; }}", params.join(", "))
}

/// Writes a call of a function for two sides.
fn call_of_two(function: &str, a: &CodeExpr, b: &CodeExpr, names: &impl CppNames) -> String {
    format!("{function}({}, {})", written(a, names), written(b, names))
}

fn binary(sign: &'static str, a: &CodeExpr, b: &CodeExpr, names: &impl CppNames) -> (String, u8) {
    let word = match sign {
        "and" | "or" if is_truth(a) && is_truth(b) => {
            return truth(&Binary(sign, Box::new(a.clone()), Box::new(b.clone())), names);
        }
        "and" => return (call_of_two("both", a, b, names), 10),
        "or" => return (call_of_two("either", a, b, names), 10),
        "in" => return (call_of_two("contains", b, a, names), 10),
        "not in" => return (format!("!{}", call_of_two("contains", b, a, names)), 8),
        "//" => return (call_of_two("floor_div", a, b, names), 10),
        "**" => return (call_of_two("power", a, b, names), 10),
        "is" => "==",
        "is not" => "!=",
        other => other,
    };
    let bound = strength(sign);
    let types = [a, b].map(|side| written_type(side, names));
    if types[0].is_some() && b.is_name("None") {
        return ((word == "!=").to_string(), 10);
    }
    // Two numbers of C++ are divided otherwise than two of the config.
    let left = match (sign, types) {
        ("/" | "%", [Some(_), Some(_)]) => format!("Value({})", written(a, names)),
        _ => at(shown(a, names), bound),
    };
    (format!("{left} {word} {}", at(shown(b, names), bound + 1)), bound)
}

fn call(
    function: &CodeExpr,
    arguments: &[(Option<String>, CodeExpr)],
    names: &impl CppNames,
) -> String {
    let values: Vec<&CodeExpr> =
        arguments.iter().filter(|(name, _)| name.is_none()).map(|(_, value)| value).collect();
    let all = listed(values.iter().copied(), names);
    let name = match function {
        Name(name) => name.as_str(),
        Attribute(form, name) if name == "format" => {
            return format!("filled({}, {all})", written(form, names));
        }
        Attribute(_, name) if name == "concat" && matches!(values.as_slice(), [List(_)]) => {
            let [List(items)] = values.as_slice() else { return String::new() };
            return format!("{}({})", written(function, names), tensors(items, names));
        }
        Attribute(map, name) if name == "get" => {
            return format!("entry({}, {all})", written(map, names));
        }
        _ => "",
    };
    if name == "read" {
        let keys = listed(values.iter().skip(1).copied(), names);
        let default = arguments.iter().find(|(name, _)| name.is_some());
        let default = default.map(|(_, value)| format!(", {}", written(value, names)));
        return format!("read({}, {{{keys}}}{})", names.config(), default.unwrap_or_default());
    }
    if let ("has", [_, key]) = (name, values.as_slice()) {
        return format!("has({}, {})", names.config(), written(key, names));
    }
    let renamed = match name {
        "int" => "integer".to_owned(),
        "float" => "number".to_owned(),
        "list" | "str" | "min" | "max" | "abs" | "round" | "all" | "any" | "len" | "sum"
        | "bool" => {
            format!("{name}_of")
        }
        "isinstance" => {
            return format!("is_list({})", listed(values.iter().take(1).copied(), names));
        }
        _ => written(function, names),
    };
    let chained: String = arguments
        .iter()
        .filter_map(|(name, value)| Some(format!(".{}({})", name.as_ref()?, written(value, names))))
        .collect();
    format!("{renamed}({all}){chained}")
}
