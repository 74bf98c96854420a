//! Expressions compared with the results of Python.

use proptest::prelude::*;

use super::*;
use crate::parse::parse_expr;
use crate::text::MappedText;

struct Names(Config, Fuel);

impl Env for Names {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        match name.name.as_str() {
            "n" => Ok(Cow::Owned(Scalar::Int(7))),
            "kinds" => {
                Ok(Cow::Owned(Scalar::List(vec![Scalar::Str("a".into()), Scalar::Str("b".into())])))
            }
            "table" => {
                let inner = Scalar::Map(vec![("deep".into(), Scalar::Int(5))]);
                Ok(Cow::Owned(Scalar::Map(vec![
                    ("theta".into(), Scalar::Float(0.5)),
                    ("inner".into(), inner),
                ])))
            }
            other => Err(Finding::error(&name.at, format!("unknown `{other}`")).into()),
        }
    }

    fn config(&self) -> &Config {
        &self.0
    }

    fn fuel(&self) -> &Fuel {
        &self.1
    }
}

fn names() -> Names {
    let config = r#"{"h": 64, "nothing": null, "rope": {"theta": 1e4}, "text": "x"}"#;
    Names(Config::parse("config.json", config).unwrap(), Fuel::new(200_000))
}

fn run(text: &str) -> Result<String, String> {
    let expr = parse_expr(&MappedText::whole("test", text)).map_err(|f| f[0].message.clone())?;
    match eval(&expr, &names()) {
        Ok(value) => Ok(value.to_string()),
        Err(EvalError::Finding(finding)) => Err(format!("{} ({})", finding.message, finding.label)),
        Err(EvalError::Reported) => Err("reported".into()),
    }
}

#[test]
fn values_are_pythons() {
    for (text, expected) in [
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 // -2", "-4"),
        ("-7 // -2", "3"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("-6 % -3", "0"),
        ("-7.5 // 2", "-4.0"),
        ("-7.5 % 2", "0.5"),
        ("6 / 3", "2"),
        ("7 / 2", "3.5"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("f32(0.1)", "0.10000000149011612"),
        ("f32(16777217)", "16777216.0"),
        ("table.theta * 2", "1.0"),
        ("table.inner.deep", "5"),
        ("64 ** -0.5", "0.125"),
        ("-2 ** 2", "-4"),
        ("(-1) ** 4294967297", "-1"),
        ("1 + true", "2"),
        ("1 == 1.0", "true"),
        ("1 < 2 and 'a' < 'b'", "true"),
        ("0 or 5", "5"),
        ("null and 5", "null"),
        ("not []", "true"),
        ("'b' in kinds", "true"),
        ("'c' not in kinds", "true"),
        ("kinds[-1]", "'b'"),
        ("kinds[1:]", "['b']"),
        ("kinds[:-5]", "[]"),
        ("'abc'[1]", "'b'"),
        ("'abc'[1:9]", "'bc'"),
        ("[i * i for i in range(5) if i % 2]", "[1, 9]"),
        ("range(5, 0, -2)", "[5, 3, 1]"),
        ("range(3, 1)", "[]"),
        ("[1] * 3 + [2]", "[1, 1, 1, 2]"),
        ("'ab' * 2", "'abab'"),
        ("repeat([1, 2], 2)", "[1, 2, 1, 2]"),
        ("round(2.5)", "2"),
        ("round(3.5)", "4"),
        ("int(-2.7)", "-2"),
        ("floor(-2.1)", "-3"),
        ("ceil(2.1)", "3"),
        ("round_up(10, 8)", "16"),
        ("round_up(16, 8)", "16"),
        ("primes(2, 5)", "[2, 3, 5, 7, 11]"),
        ("primes(24, 3)", "[29, 31, 37]"),
        ("primes(20000000, 2)", "[20000003, 20000023]"),
        ("primes(-5, 1)", "[2]"),
        ("hash_factors(99, 314, 0)", "[]"),
        ("[f % 2 for f in hash_factors(99, 314, 3)]", "[1, 1, 1]"),
        ("max(1, 2.5)", "2.5"),
        ("min([3, 1, 2])", "1"),
        ("sum([1, 2, 0.5])", "3.5"),
        ("len('héé')", "3"),
        ("any([0, 1])", "true"),
        ("all([])", "true"),
        ("config('h')", "64"),
        ("config('rope.theta')", "10000.0"),
        ("config('missing', 3)", "3"),
        ("config('nothing', 3)", "3"),
        ("config('nothing')", "null"),
        ("config('rope')['theta']", "10000.0"),
        ("has('nothing')", "true"),
        ("has('missing')", "false"),
        ("1 if n > 3 else 1 // 0", "1"),
        ("sqrt(16)", "4.0"),
        ("[round(1000 * quantile(0.975)), quantile(0), quantile(1)]", "[1960, -inf, inf]"),
    ] {
        assert_eq!(run(text).unwrap_or_else(|e| e), expected, "{text}");
    }
}

#[test]
fn faults_say_what_was_found() {
    for (text, expected) in [
        ("1 // 0", "division by zero (the right side is 0)"),
        ("1.5 % 0", "division by zero (the right side is 0)"),
        ("0 ** -1", "division by zero (the right side is 0)"),
        ("9223372036854775807 + 1", "the result does not fit a 64-bit integer ()"),
        ("2 ** 64", "the result does not fit a 64-bit integer ()"),
        ("(-9223372036854775807 - 1) // -1", "the result does not fit a 64-bit integer ()"),
        ("(-1) ** 0.5", "the result is not a finite number (this gives NaN)"),
        ("'a' + 1", "`+` needs numbers (on the left: expected a number, found the text 'a')"),
        ("1 < 'a'", "cannot compare an integer with text (`<` needs two numbers or two texts)"),
        ("kinds[2]", "the index 2 is out of range (there are 2 items)"),
        ("kinds['a']", "an index is an integer (expected an integer, found the text 'a')"),
        ("range(65537)", "this would have 65537 items (at most 65536 are allowed)"),
        ("'ab' * 10000000", "this would have 20000000 items (at most 65536 are allowed)"),
        ("[[j for j in range(1000)] for i in range(1000)]", "the spec computes for too long ()"),
        ("config('hh')", "`config.json` has no key `hh` ()"),
        ("sqr(2)", "there is no function `sqr` ()"),
        ("abs()", "`abs` is given 0 arguments and takes 1 ()"),
        ("table.thetta", "there is no member `thetta` ()"),
        ("table.theta.x", "only maps have named members (expected a map, found 0.5)"),
        ("a.b", "`a.b` is a path, and a number or text is needed here ()"),
        ("exp(1000)", "the result is not a finite number (this gives inf)"),
        ("int(1e300)", "the result does not fit a 64-bit integer ()"),
    ] {
        assert_eq!(run(text).unwrap_err(), expected, "{text}");
    }
}

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i64>()
            .prop_map(|n| format!("({n})")
                .replace("(-9223372036854775808)", "(-9223372036854775807 - 1)")),
        (-5i64..70).prop_map(|n| format!("({n})")),
        Just("0.5".to_owned()),
        Just("1e308".to_owned()),
        Just("'aé'".to_owned()),
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("n".to_owned()),
        Just("kinds".to_owned()),
        Just("config('rope')".to_owned()),
    ];
    leaf.prop_recursive(5, 40, 3, |inner| {
        let op = prop::sample::select(vec![
            "+", "-", "*", "/", "//", "%", "**", "<", "==", "in", "and", "or", "not in", ">=",
        ]);
        let function = prop::sample::select(FUNCTIONS.to_vec());
        prop_oneof![
            (inner.clone(), op, inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (function.clone(), inner.clone()).prop_map(|(f, a)| format!("{f}({a})")),
            (function, inner.clone(), inner.clone()).prop_map(|(f, a, b)| format!("{f}({a}, {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}[{b}]")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("{a}[{b}:{c}]")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("({a} if {b} else {c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a} for n in {b}]")),
            inner.clone().prop_map(|a| format!("[{a}, -n]")),
        ]
    })
}

proptest! {
    #[test]
    fn no_expression_panics(text in expression()) {
        let _unused = run(&text);
    }
}
