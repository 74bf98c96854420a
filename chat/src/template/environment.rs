//! Environment of templates: what transformers gives to them, with limits.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value, tests,
};
use minijinja_contrib::{filters as contrib, globals};

use super::charge::{spend, whole};
use super::control::check;
use super::python::{DumpOptions, dumps, str_of};
use super::{filters, lazy, methods, operators};

/// Most items of a `range`, as in Jinja's sandbox.
const MOST_OF_RANGE: i128 = 100_000;
/// Most blanks of one level of indentation in `tojson`.
const MOST_INDENT: usize = 64;

/// Test that compares two values.
type ValueComparison = fn(&Value, &Value) -> bool;

/// Builds the environment. Files, the system and other templates are out of reach.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(methods::call);
    env.set_debug(false);
    env.set_formatter(|out, state, value| {
        check()?;
        let escapes = !matches!(state.auto_escape(), AutoEscape::None) && !value.is_safe();
        let escaped = if escapes { Some(filters::escaped(state, value)?) } else { None };
        let value = escaped.as_ref().unwrap_or(value);
        match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&str_of(state, value)?),
        }
        .map_err(Error::from)
    });
    // Filters, tests and functions that Jinja lacks, so that no template needs this engine.
    for name in ["split", "lines", "bool", "chain", "zip"] {
        env.remove_filter(name);
    }
    for name in ["startingwith", "endingwith", "safe"] {
        env.remove_test(name);
    }
    env.remove_global("debug");
    env.add_filter("tojson", to_json);
    env.add_filter("join", join);
    env.add_filter("filesizeformat", contrib::filesizeformat);
    filters::add(&mut env);
    lazy::add_filters(&mut env);
    operators::add_filters(&mut env);
    env.add_test("sequence", |value: &Value| {
        // Whatever has a length and items, which a text and a dict have too.
        let kinds = [ValueKind::Map, ValueKind::String, ValueKind::Undefined];
        operators::is_list(value) || kinds.contains(&value.kind())
    });
    env.add_test("iterable", |value: &Value| {
        let scalars = [ValueKind::None, ValueKind::Bool, ValueKind::Number, ValueKind::Plain];
        !scalars.contains(&value.kind())
    });
    env.add_test("callable", |value: &Value| {
        matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
    });
    let comparisons: [(&[&str], ValueComparison); 7] = [
        (&["eq", "equalto", "=="], tests::is_eq),
        (&["ne", "!="], tests::is_ne),
        (&["lt", "lessthan", "<"], tests::is_lt),
        (&["le", "<="], tests::is_le),
        (&["gt", "greaterthan", ">"], tests::is_gt),
        (&["ge", ">="], tests::is_ge),
        (&["sameas"], tests::is_sameas),
    ];
    for (names, holds) in comparisons {
        for name in names {
            env.add_test(*name, move |state: &State<'_, '_>, value: &Value, other: &Value| {
                whole(state, value, 1)?;
                Ok::<_, Error>(holds(value, other))
            });
        }
    }
    env.add_test("in", |state: &State<'_, '_>, value: &Value, other: &Value| {
        whole(state, value, 1)?;
        tests::is_in(state, value, other)
    });
    env.add_function("range", range);
    env.add_function("cycler", globals::cycler);
    env.add_function("joiner", globals::joiner);
    env.add_function(
        "raise_exception",
        |state: &State<'_, '_>, message: &Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, String::new())
                .with_source(Raised(str_of(state, message)?)))
        },
    );
    env
}

/// Error of `raise_exception`, which ends a rendering with a message for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// `range` of Jinja's sandbox.
fn range(first: i64, last: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    let (start, end) = last.map_or((0, first), |last| (first, last));
    let start = i128::from(start);
    let end = i128::from(end);
    let step = i128::from(step.unwrap_or(1));
    if step == 0 {
        let why = "`range` needs a step other than 0";
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    let length =
        if step > 0 { (end - start + step - 1) / step } else { (start - end - step - 1) / -step };
    if length > MOST_OF_RANGE {
        let why = format!("a range of {length} items; at most {MOST_OF_RANGE} are allowed");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    // Printed as a list, while Python prints `range(0, 3)`; no template prints it.
    Ok((0..length.max(0))
        .map(move |n: i128| Value::from(i64::try_from(start + n * step).unwrap_or(i64::MAX)))
        .collect())
}

/// `tojson` of transformers: `json.dumps`, with non-ASCII characters as they are and no HTML escapes.
#[expect(clippy::needless_pass_by_value, reason = "the engine hands arguments over by value")]
fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    // The first argument by place is `ensure_ascii`.
    let ascii = indent.is_some_and(|value| value.is_true()) || flag(&kwargs, "ensure_ascii")?;
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(
                usize::try_from(i64::try_from(value)?.max(0))
                    .unwrap_or(usize::MAX)
                    .min(MOST_INDENT),
            ),
        }),
    };
    let separators = match kwargs.get::<Option<Value>>("separators")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => {
            let texts: Vec<Value> = value.try_iter()?.take(3).collect();
            let [item, key] = texts.as_slice() else {
                let why = "`separators` of `tojson` has to be a pair of texts";
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            };
            Some((str_of(state, item)?, str_of(state, key)?))
        }
    };
    let options = DumpOptions { ascii, indent, separators, sort_keys: flag(&kwargs, "sort_keys")? };
    kwargs.assert_all_used()?;
    dumps(state, value, &options)
}

/// Returns the truth value of an argument by name; false without it.
fn flag(kwargs: &Kwargs, key: &str) -> Result<bool, Error> {
    Ok(kwargs.get::<Option<Value>>(key)?.is_some_and(|value| value.is_true()))
}

/// `join` of Jinja, which prints items as Python does.
#[expect(clippy::needless_pass_by_value, reason = "the engine hands arguments over by value")]
fn join(
    state: &State<'_, '_>,
    value: &Value,
    glue: Option<&Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let glue = match (glue, kwargs.get::<Option<Value>>("d")?) {
        (Some(glue), _) => str_of(state, glue)?,
        (None, Some(glue)) => str_of(state, &glue)?,
        (None, None) => String::new(),
    };
    let attribute: Option<Value> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(out);
    }
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable"));
    }
    for (n, item) in value.try_iter()?.enumerate() {
        if n > 0 {
            out.push_str(&glue);
        }
        let item = match &attribute {
            Some(key) => item.get_item(key)?,
            None => item,
        };
        let text = str_of(state, &item)?;
        spend(state, 1 + (glue.len() + text.len()) as u64 / 64)?;
        out.push_str(&text);
    }
    Ok(out)
}
