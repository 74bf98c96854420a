use proptest::prelude::*;

use super::*;
use crate::syntax::ExprKind;

/// Formats an expression with every operation in brackets.
fn show(expr: &Expr) -> String {
    match &expr.kind {
        ExprKind::Null => "null".into(),
        ExprKind::Bool(value) => value.to_string(),
        ExprKind::Int(value) => value.to_string(),
        ExprKind::Float(value) => format!("{value:?}"),
        ExprKind::Str(value) => format!("{value:?}"),
        ExprKind::Path(path) => {
            path.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(".")
        }
        ExprKind::Index(list, item) => format!("{}[{}]", show(list), show(item)),
        ExprKind::Slice(list, from, to) => {
            format!(
                "{}[{}:{}]",
                show(list),
                show_optional(from.as_deref()),
                show_optional(to.as_deref())
            )
        }
        ExprKind::Call(name, args) => {
            let args = args.iter().map(|arg| match &arg.name {
                Some(name) => format!("{}={}", name.name, show(&arg.value)),
                None => show(&arg.value),
            });
            format!("{}({})", name.name, args.collect::<Vec<_>>().join(", "))
        }
        ExprKind::Unary(op, operand) => format!("({op:?} {})", show(operand)),
        ExprKind::Binary(op, left, right) => format!("({} {op:?} {})", show(left), show(right)),
        ExprKind::If { then, condition, otherwise } => {
            format!("({} if {} else {})", show(then), show(condition), show(otherwise))
        }
        ExprKind::List(items) => format!("[{}]", show_all(items)),
        ExprKind::Comprehension { body, variable, over, filter } => {
            let filter = filter.as_deref().map_or(String::new(), |f| format!(" if {}", show(f)));
            format!("[{} for {} in {}{filter}]", show(body), variable.name, show(over))
        }
    }
}

fn show_optional(item: Option<&Expr>) -> String {
    item.map_or(String::new(), show)
}

fn show_all(items: &[Expr]) -> String {
    items.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn messages<T>(result: Result<T, Vec<Finding>>) -> Vec<String> {
    result
        .err()
        .unwrap_or_default()
        .iter()
        .map(|finding| {
            let label = if finding.label.is_empty() {
                String::new()
            } else {
                format!(": {}", finding.label)
            };
            let at = finding.at.as_ref().expect("every syntax finding has a place");
            format!("{} `{}`{label}", finding.message, at.text())
        })
        .collect()
}

#[test]
fn precedence_is_pythons() {
    for (text, want) in [
        ("a + b * c - d", "((a Add (b Mul c)) Sub d)"),
        ("a / b // c % d", "(((a Div b) FloorDiv c) Mod d)"),
        ("-x ** -y ** z", "(Neg (x Pow (Neg (y Pow z))))"),
        ("-a + b", "((Neg a) Add b)"),
        ("not a == b and c or d", "(((Not (a Eq b)) And c) Or d)"),
        ("not not a", "(Not (Not a))"),
        ("a not in b or a in c", "((a NotIn b) Or (a In c))"),
        ("a if b else c if d else e", "(a if b else (c if d else e))"),
        ("a or b if c and d else e", "((a Or b) if (c And d) else e)"),
        ("layer_types[i][1:]", "layer_types[i][1:]"),
        ("x[:-1]", "x[:(Neg 1)]"),
        ("x[a + 1:b]", "x[(a Add 1):b]"),
        ("['a' for i in range(n) if i % 2 == 0]", "[\"a\" for i in range(n) if ((i Mod 2) Eq 0)]"),
        ("f(x, norms.0, eps=1e-6,)", "f(x, norms.0, eps=1e-6)"),
        ("[none, None, True, false, 3.0, -2]", "[null, null, true, false, 3.0, (Neg 2)]"),
        ("(a\n  + b)", "(a Add b)"),
        ("a +\n b", "(a Add b)"),
        ("none.x", "none.x"),
        ("config('a.b', null)", "config(\"a.b\", null)"),
    ] {
        assert_eq!(
            parse_expr(&MappedText::whole("t", text)).map(|expr| show(&expr)),
            Ok(want.into())
        );
    }
}

#[test]
fn places_are_exact() {
    let expr = parse_expr(&MappedText::whole("t", " a + f(b.c, d)")).unwrap();
    assert_eq!(expr.at.text(), "a + f(b.c, d)");
    let ExprKind::Binary(_, _, right) = expr.kind else { panic!() };
    assert_eq!(right.at.text(), "f(b.c, d)");
    let ExprKind::Call(name, args) = right.kind else { panic!() };
    assert_eq!(name.at.text(), "f");
    assert_eq!(args[0].value.at.text(), "b.c");
    let ExprKind::Path(path) = &args[0].value.kind else { panic!() };
    assert_eq!(path[1].at.text(), "c");
}

#[test]
fn broken_expressions() {
    for (text, want) in [
        ("", "syntax error ``: the text ends here; expected a value"),
        ("a b", "syntax error `b`: found `b`; expected the end of the expression"),
        ("a < b < c", "comparisons do not chain `<`"),
        ("f(a b)", "syntax error `b`: found `b`; expected `,` or `)`"),
        ("f(a", "this `(` is never closed `(`"),
        ("f(x=1, 2)", "an argument without a name follows a named one `2`"),
        ("f(x=1, x=2)", "argument `x` is given twice `x`"),
        ("a.b(c)", "a path cannot be called `a.b`"),
        ("a if b", "syntax error ``: the text ends here; expected `else`"),
        ("[a for 1 in b]", "syntax error `1`: found `1`; expected the name of an item"),
        ("a = b", "syntax error `=`: found `=`; expected the end of the expression"),
        ("f(true=1)", "`true` is a value, not a name `true`"),
        ("1 +", "syntax error ``: the text ends here; expected a value"),
    ] {
        assert_eq!(messages(parse_expr(&MappedText::whole("t", text))), [want], "{text}");
    }
}

#[test]
fn depth_is_limited() {
    for (open, close, op) in
        [("(", ")", ""), ("[", "]", ""), ("-", "", ""), ("not ", "", ""), ("f(", ")", "")]
    {
        let nested = format!("{}a{op}{}", open.repeat(50), close.repeat(50));
        assert!(parse_expr(&MappedText::whole("t", nested)).is_ok());
        let nested = format!("{}a{op}{}", open.repeat(100_000), close.repeat(100_000));
        assert_eq!(parse_expr(&MappedText::whole("t", nested)).unwrap_err().len(), 1);
    }
    for (chain, len) in [("a + ", 50), ("a ** ", 50), ("a if b else ", 50), ("a or ", 50)] {
        assert!(parse_expr(&MappedText::whole("t", chain.repeat(len) + "a")).is_ok());
        let text = MappedText::whole("t", chain.repeat(100_000) + "a");
        assert_eq!(parse_expr(&text).unwrap_err().len(), 1, "{chain}");
    }
    assert!(parse_expr(&MappedText::whole("t", format!("a{}", "[0]".repeat(100_000)))).is_err());
}

#[test]
fn programs() {
    let text = MappedText::whole(
        "t",
        "b, c, u = split(linear(x, conv.in_proj, 3 * hidden,\n    bias=bias), 3)  # three parts\n\n\
         y = causal_conv(b * u, state=conv)\nreturn c * y, b\n",
    );
    let program = parse_program(&text).unwrap();
    assert_eq!(program.body.len(), 2);
    assert_eq!(program.body[0].targets[2].name, "u");
    assert_eq!(program.result.iter().map(show).collect::<Vec<_>>(), ["(c Mul y)", "b"]);
    assert_eq!(parse_program(&MappedText::whole("t", "x = a\nx + b")).unwrap().result.len(), 1);
}

#[test]
fn each_broken_statement_is_found() {
    let told = messages(parse_program(&MappedText::whole(
        "t",
        "a = = b\nc = f(d e)\ng.h = 1\nx + y\nreturn )\n",
    )));
    assert_eq!(
        told,
        [
            "syntax error `=`: found `=`; expected a value",
            "syntax error `e`: found `e`; expected `,` or `)`",
            "a path cannot be assigned `g.h`",
            "the value of this line goes nowhere `x + y`",
            "syntax error `)`: found `)`; expected a value",
        ]
    );
    for (text, want) in [
        ("", "this program is empty ``"),
        ("# nothing\n", "this program is empty `# nothing\n`"),
        ("a = b\n", "this program gives nothing ``"),
        ("return a\nb = c", "nothing may follow the result ``"),
        ("a += b\nreturn a", "there is no such assignment `+=`"),
        ("for i in x\nreturn a", "there is no `for` statement `for`"),
        ("while x\nreturn a", "there is no `while` statement `while`"),
        ("a, a = f(x)\nreturn a", "`a` is assigned twice at once `a`"),
        ("y = f(x\nreturn y", "this `(` is never closed `(`"),
    ] {
        assert_eq!(messages(parse_program(&MappedText::whole("t", text))), [want], "{text}");
    }
}

#[test]
fn headers() {
    let (name, params) =
        parse_function_header(&MappedText::whole("t", "conv(x, width, bias=false)")).unwrap();
    assert_eq!(name.name, "conv");
    assert_eq!(params.len(), 3);
    assert!(params[2].default.is_some());
    assert!(parse_function_header(&MappedText::whole("t", "conv()")).is_ok());
    for (text, want) in [
        ("mlp", "a function says its parameters ``"),
        ("mlp(x, x)", "parameter `x` stands twice `x`"),
        ("mlp(x=1, y)", "a parameter without a default follows one that has one `y`"),
        ("mlp(x", "this `(` is never closed `(`"),
        ("mlp(x) y", "syntax error `y`: found `y`; expected the end of the header"),
        ("a.b(x)", "syntax error `a.b`: found `a.b`; expected the function's name"),
    ] {
        assert_eq!(
            messages(parse_function_header(&MappedText::whole("t", text))),
            [want],
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC{0,80}") {
        let text = MappedText::whole("t", text);
        drop(parse_expr(&text));
        drop(parse_program(&text));
        drop(parse_function_header(&text));
    }

    /// Checks random sequences of tokens, which get further into the grammar than random text.
    #[test]
    fn any_tokens_are_parsed_or_refused(words in prop::collection::vec(
        prop::sample::select(vec![
            "a", "b.0", "1", "1e-3", "'s'", "(", ")", "[", "]", ",", ":", "=", "+", "-", "**",
            "not", "in", "if", "else", "for", "or", "return", "\n", "\n", "none", "f(", "==", "é",
        ]), 0..40)) {
        let text = MappedText::whole("t", words.join(" "));
        for findings in [parse_expr(&text).err(), parse_program(&text).err()].into_iter().flatten() {
            prop_assert!(!findings.is_empty());
            for finding in findings {
                let at = finding.at.unwrap();
                prop_assert!(at.source.text.get(at.start..at.end).is_some());
            }
        }
    }
}
