//! Expressions of specs as expressions of Python, whose grammar they share.

use registry::syntax::{Arg, BinaryOp, Expr, ExprKind, UnaryOp};

/// Binding strengths of expressions, by Python's grammar.
pub(crate) mod binding {
    /// `a if c else b`.
    pub(crate) const IF: u8 = 1;
    /// `or`.
    pub(crate) const OR: u8 = 2;
    /// `and`.
    pub(crate) const AND: u8 = 3;
    /// `not`.
    pub(crate) const NOT: u8 = 4;
    /// Comparisons.
    pub(crate) const COMPARE: u8 = 5;
    /// `+`, `-`.
    pub(crate) const ADD: u8 = 9;
    /// `*`, `/`, `//`, `%`, `@`.
    pub(crate) const MUL: u8 = 10;
    /// `-x`.
    pub(crate) const UNARY: u8 = 11;
    /// `**`.
    pub(crate) const POWER: u8 = 12;
    /// Names, calls, literals.
    pub(crate) const ATOM: u8 = 15;
}

use binding::{ADD, AND, ATOM, COMPARE, IF, MUL, NOT, OR, POWER, UNARY};

/// Encloses a text that binds less tightly than its place needs.
pub(crate) fn enclosed((text, bound): &(String, u8), least: u8) -> String {
    if *bound < least { format!("({text})") } else { text.clone() }
}

/// Returns an expression as Python, and how tightly it binds. Marked names become `«D:name»`.
pub(crate) fn expression(expr: &Expr) -> (String, u8) {
    match &expr.kind {
        ExprKind::Null => ("None".to_owned(), ATOM),
        ExprKind::Bool(flag) => (if *flag { "True" } else { "False" }.to_owned(), ATOM),
        ExprKind::Int(n) => (n.to_string(), if *n < 0 { UNARY } else { ATOM }),
        ExprKind::Float(x) => (float(*x), if *x < 0.0 { UNARY } else { ATOM }),
        ExprKind::Str(text) => (quoted(text), ATOM),
        ExprKind::Path(names) => {
            let path: Vec<&str> = names.iter().map(|name| name.name.as_str()).collect();
            let path = path.join(".");
            (if path.contains(':') { format!("«{path}»") } else { path }, ATOM)
        }
        ExprKind::Index(base, key) => (format!("{}[{}]", at(base, ATOM), expression(key).0), ATOM),
        ExprKind::Slice(base, from, to) => {
            let bound = |part: &Option<Box<Expr>>| {
                part.as_deref().map(|part| expression(part).0).unwrap_or_default()
            };
            let ends = [bound(from), bound(to)];
            let simple = ends.iter().all(|end| end.chars().all(char::is_alphanumeric));
            let colon = if simple { ":" } else { " : " };
            (format!("{}[{}]", at(base, ATOM), ends.join(colon).trim()), ATOM)
        }
        ExprKind::Unary(UnaryOp::Neg, inner) => (format!("-{}", at(inner, UNARY)), UNARY),
        ExprKind::Unary(UnaryOp::Not, inner) => (format!("not {}", at(inner, NOT)), NOT),
        ExprKind::Binary(op, left, right) => infix(*op, left, right),
        ExprKind::If { then, condition, otherwise } => {
            (format!("{} if {} else {}", at(then, OR), at(condition, OR), at(otherwise, IF)), IF)
        }
        ExprKind::List(items) => (format!("[{}]", listed(items.iter())), ATOM),
        ExprKind::Comprehension { body, variable, over, filter } => {
            let filter = filter.as_ref().map(|filter| format!(" if {}", expression(filter).0));
            let filter = filter.unwrap_or_default();
            let (body, over) = (expression(body).0, at(over, OR));
            (format!("[{body} for {} in {over}{filter}]", variable.name), ATOM)
        }
        ExprKind::Call(name, args) => call(&name.name, args),
    }
}

fn at(expr: &Expr, least: u8) -> String {
    enclosed(&expression(expr), least)
}

fn listed<'e>(items: impl Iterator<Item = &'e Expr>) -> String {
    items.map(|item| expression(item).0).collect::<Vec<_>>().join(", ")
}

fn float(x: f64) -> String {
    if x.is_infinite() {
        return format!("float(\"{}inf\")", if x < 0.0 { "-" } else { "" });
    }
    let text = format!("{x:?}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let digits = digits.strip_suffix(".0").unwrap_or(digits);
            let (sign, power) = power.strip_prefix('-').map_or(("+", power), |power| ("-", power));
            format!("{digits}e{sign}{power:0>2}").replace("e+", "e")
        }
        None => text,
    }
}

/// Returns a text as a literal, in the quotes that formatters prefer.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn infix(op: BinaryOp, left: &Expr, right: &Expr) -> (String, u8) {
    let null = |side: &Expr| side.kind == ExprKind::Null || matches!(side.kind, ExprKind::Bool(_));
    let (word, bound) = match op {
        BinaryOp::Or => ("or", OR),
        BinaryOp::And => ("and", AND),
        BinaryOp::In => ("in", COMPARE),
        BinaryOp::NotIn => ("not in", COMPARE),
        BinaryOp::Eq if null(right) => ("is", COMPARE),
        BinaryOp::Ne if null(right) => ("is not", COMPARE),
        BinaryOp::Eq => ("==", COMPARE),
        BinaryOp::Ne => ("!=", COMPARE),
        BinaryOp::Lt => ("<", COMPARE),
        BinaryOp::Le => ("<=", COMPARE),
        BinaryOp::Gt => (">", COMPARE),
        BinaryOp::Ge => (">=", COMPARE),
        BinaryOp::Add => ("+", ADD),
        BinaryOp::Sub => ("-", ADD),
        BinaryOp::Mul => ("*", MUL),
        BinaryOp::Div => ("/", MUL),
        BinaryOp::FloorDiv => ("//", MUL),
        BinaryOp::Mod => ("%", MUL),
        BinaryOp::Pow => {
            let simple = |side: &Expr| {
                matches!(side.kind, ExprKind::Path(_) | ExprKind::Int(_) | ExprKind::Float(_))
                    || matches!(&side.kind, ExprKind::Unary(UnaryOp::Neg, inner)
                        if matches!(inner.kind, ExprKind::Path(_) | ExprKind::Int(_) | ExprKind::Float(_)))
            };
            let space = if simple(left) && simple(right) { "" } else { " " };
            return (format!("{}{space}**{space}{}", at(left, ATOM), at(right, UNARY)), POWER);
        }
    };
    let (least, most) = match op {
        BinaryOp::Or | BinaryOp::And | BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul => {
            (bound, bound + 1)
        }
        _ if bound == COMPARE => (COMPARE + 1, COMPARE + 1),
        _ => (bound, bound + 1),
    };
    (format!("{} {word} {}", at(left, least), at(right, most)), bound)
}

fn call(name: &str, args: &[Arg]) -> (String, u8) {
    let given: Vec<&Expr> = args.iter().map(|arg| &arg.value).collect();
    let all = listed(given.iter().copied());
    match (name, given.as_slice()) {
        ("any" | "max", [list]) if matches!(list.kind, ExprKind::Comprehension { .. }) => {
            let items = expression(list).0;
            (format!("{name}({})", &items[1..items.len() - 1]), ATOM)
        }
        ("config", [key]) => (format!("read(config, {})", expression(key).0), ATOM),
        ("config", [key, default]) if default.kind == ExprKind::Null => {
            (format!("read(config, {})", expression(key).0), ATOM)
        }
        ("config", [key, default]) => (
            format!("read(config, {}, default={})", expression(key).0, expression(default).0),
            ATOM,
        ),
        ("has", [key]) => (format!("has(config, {})", expression(key).0), ATOM),
        ("round_up", [x, m]) => {
            (format!("-(-{} // {}) * {}", at(x, UNARY), at(m, UNARY), at(m, UNARY)), MUL)
        }
        ("get", [map, key, default]) => {
            let key = expression(key).0;
            (format!("entry({}, {key}, {})", expression(map).0, expression(default).0), ATOM)
        }
        ("map", _) => {
            let pairs = given.chunks(2).map(|pair| {
                let [key, value] = pair else { return String::new() };
                format!("{}: {}", expression(key).0, expression(value).0)
            });
            (format!("{{{}}}", pairs.collect::<Vec<_>>().join(", ")), ATOM)
        }
        ("fill", [form, ..]) => {
            let rest = listed(given.iter().skip(1).copied());
            (format!("{}.format({rest})", at(form, ATOM)), ATOM)
        }
        ("listed", [x, n]) => {
            let (x, n) = (at(x, OR), at(n, MUL));
            (format!("{x} if isinstance({x}, list) else [{x}] * {n}"), IF)
        }
        ("repeat", [list, n]) => {
            (format!("repeat({}, {})", expression(list).0, expression(n).0), ATOM)
        }
        ("sqrt" | "log" | "exp" | "ceil" | "floor", _) => (format!("math.{name}({all})"), ATOM),
        ("range", [only]) => (format!("range({})", expression(only).0), ATOM),
        _ => (format!("{name}({all})"), ATOM),
    }
}
