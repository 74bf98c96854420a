//! Filters of Jinja that the engine lacks, or that differ from Jinja's.

use std::fmt::Write as _;

use indexmap::IndexMap;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::filters as contrib;

use super::charge::{spend, whole};
use super::methods;
use super::python::{repr_of, str_of};

/// Most blanks of an indentation, and of a width.
const MOST_WIDTH: usize = 10_000;

/// Adds the filters.
pub(super) fn add(env: &mut Environment<'static>) {
    env.add_filter("string", |state: &State<'_, '_>, value: &Value| str_of(state, value));
    env.add_filter("pprint", |state: &State<'_, '_>, value: &Value| repr_of(state, value));
    env.add_filter("trim", trim);
    env.add_filter("indent", indent);
    env.add_filter("int", int);
    env.add_filter("float", float);
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    env.add_filter("upper!", filters::upper);
    env.add_filter("lower!", filters::lower);
    env.add_filter("title!", filters::title);
    env.add_filter("capitalize!", filters::capitalize);
    env.add_filter("striptags!", contrib::striptags);
    for name in ["upper", "lower", "title", "capitalize", "striptags"] {
        env.add_filter(
            name,
            move |state: &mut State<'_, '_>, value: &Value, arguments: Rest<ValueOrKwargs>| {
                // Numbers are texts as Python prints them.
                let mut args = vec![match value.kind() {
                    ValueKind::Number => Value::from(str_of(state, value)?),
                    _ => value.clone(),
                }];
                args.extend(arguments.0.into_iter().map(Value::from));
                state.apply_filter(&format!("{name}!"), &args)
            },
        );
    }
    env.add_filter("replace", replace);
    env.add_filter("wordwrap!", contrib::wordwrap);
    env.add_filter("wordwrap", wordwrap);
    env.add_filter("abs", |value: &Value| filters::abs(number(value)));
    env.add_filter("round!", filters::round);
    env.add_filter("round", round);
    env.add_filter("format!", filters::format);
    env.add_filter("format", format);
    env.add_filter("truncate", truncate);
    env.add_filter("wordcount", wordcount);
    env.add_filter("urlencode", urlencode);
    env.add_filter("center", methods::center);
    env.add_filter("safe", |state: &State<'_, '_>, value: &Value| -> Result<Value, Error> {
        Ok(Value::from_safe_string(str_of(state, value)?))
    });
    for name in ["escape", "e"] {
        env.add_filter(name, |state: &State<'_, '_>, value: &Value| {
            if value.is_safe() { Ok(value.clone()) } else { escaped(state, value) }
        });
    }
    env.add_filter("forceescape", escaped);
    env.add_function("dict", dict);
    for (name, expected) in [("odd", 1), ("even", 0)] {
        env.add_test(name, move |value: &Value| -> Result<bool, Error> {
            let remainder = remainder(value, 2.0)?;
            Ok(remainder == f64::from(expected))
        });
    }
    env.add_test("divisibleby", |value: &Value, by: &Value| -> Result<bool, Error> {
        let by = f64::try_from(number(by))?;
        Ok(remainder(value, by)? == 0.0)
    });
    for name in ["filter", "test"] {
        let known =
            if name == "filter" { minijinja::tests::is_filter } else { minijinja::tests::is_test };
        env.add_test(name, move |state: &State<'_, '_>, value: &Value| {
            value.as_str().is_some_and(|text| known(state, text))
        });
    }
}

fn refuse_kind(filter: &str, value: &Value, kinds: &[ValueKind]) -> Result<(), Error> {
    if kinds.contains(&value.kind()) {
        let why = format!("`{filter}` does not read a value of kind {}", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    Ok(())
}

/// Returns the remainder of a number, with the sign of the divisor.
fn remainder(value: &Value, by: f64) -> Result<f64, Error> {
    let value = number(value);
    if value.kind() != ValueKind::Number || by == 0.0 {
        let why = format!("a remainder of a value of kind {} by {by}", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    if let Ok(integer) = i128::try_from(value.clone())
        && by.fract() == 0.0
        && by.abs() < 1e15
    {
        return Ok(integer.rem_euclid(by.abs() as i128) as f64);
    }
    Ok(f64::try_from(value)?.rem_euclid(by))
}

/// `default` of Jinja, with its arguments by place or by name.
fn default(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [other, lax] = bind(["default_value", "boolean"], arguments)?;
    let lax = lax.is_some_and(|lax| lax.is_true());
    if value.is_undefined() || (lax && !value.is_true()) {
        return Ok(other.unwrap_or_else(|| Value::from("")));
    }
    Ok(value.clone())
}

/// `dict` of Python: from a dict or from pairs, and from names.
fn dict(arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut output: IndexMap<Value, Value> = IndexMap::new();
    for argument in arguments.0 {
        let argument = Value::from(argument);
        if argument.kind() == ValueKind::Map {
            for key in argument.try_iter()? {
                let value = argument.get_item(&key)?;
                output.insert(key, value);
            }
            continue;
        }
        for pair in argument.try_iter()? {
            let parts: Vec<Value> = pair.try_iter()?.take(3).collect();
            let [key, value] = parts.as_slice() else {
                let why = "`dict` expects pairs of a key and a value";
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            };
            output.insert(key.clone(), value.clone());
        }
    }
    Ok(Value::from(output))
}

/// `replace` of Jinja, with texts of all values.
fn replace(
    state: &State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    let [old, new, count] = bind(["old", "new", "count"], arguments)?;
    let (Some(old), Some(new)) = (old, new) else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    let text = str_of(state, value)?;
    let old = str_of(state, &old)?;
    let new = str_of(state, &new)?;
    let count = match count.filter(|count| !count.is_none()) {
        Some(count) => usize::try_from(i64::try_from(count)?).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    replaced(state, &text, &old, &new, count)
}

/// Replaces a text in another one, and charges the result before it is made.
fn replaced(
    state: &State<'_, '_>,
    text: &str,
    old: &str,
    new: &str,
    count: usize,
) -> Result<String, Error> {
    let occurrences =
        if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let added = occurrences.min(count).saturating_mul(new.len());
    spend(state, text.len().saturating_add(added) as u64 / 64)?;
    Ok(text.replacen(old, new, count))
}

/// `wordwrap` of Jinja, with its arguments by place or by name.
fn wordwrap(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    refuse_kind("wordwrap", value, &[ValueKind::None, ValueKind::Bool, ValueKind::Number])?;
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, long, separator, hyphens]: [Option<Value>; 4] = bind(names, arguments)?;
    let pairs = names.into_iter().zip([width, long, None, hyphens]);
    let pairs = pairs.filter_map(|(name, value)| Some((name, value?)));
    // The library's filter drops empty lines at the start.
    let text = str_of(state, value)?;
    let lines = text.trim_start_matches('\n');
    let mut empty = text.len() - lines.len();
    if lines.is_empty() {
        empty = empty.saturating_sub(1);
    }
    let arguments = [Value::from(lines), pairs.collect::<Kwargs>().into()];
    let wrapped = state.apply_filter("wordwrap!", &arguments)?;
    // Lines are joined by `\n` first, which tells how often the separator is written.
    let wrapped = format!("{}{}", "\n".repeat(empty), str_of(state, &wrapped)?);
    let separator = match separator {
        Some(separator) => str_of(state, &separator)?,
        None => "\n".to_owned(),
    };
    replaced(state, &wrapped, "\n", &separator, usize::MAX)
}

/// Assigns arguments by place and by name.
fn bind<const N: usize>(
    names: [&str; N],
    arguments: Rest<ValueOrKwargs>,
) -> Result<[Option<Value>; N], Error> {
    let mut bound = std::array::from_fn(|_| None);
    for (n, argument) in arguments.0.into_iter().enumerate() {
        let argument = Value::from(argument);
        if argument.is_kwargs() {
            let kwargs = Kwargs::try_from(argument)?;
            for (name, place) in names.iter().zip(&mut bound) {
                if let Some(value) = kwargs.get::<Option<Value>>(name)? {
                    *place = Some(value);
                }
            }
            kwargs.assert_all_used()?;
        } else {
            *bound.get_mut(n).ok_or_else(|| Error::from(ErrorKind::TooManyArguments))? =
                Some(argument);
        }
    }
    Ok(bound)
}

/// Escapes as markupsafe does.
pub(super) fn escaped(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    let text = str_of(state, value)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

fn trim(state: &State<'_, '_>, value: &Value, chars: Option<Value>) -> Result<String, Error> {
    let text = str_of(state, value)?;
    let set: Option<Vec<char>> = match chars.filter(|chars| !chars.is_none()) {
        Some(chars) => Some(str_of(state, &chars)?.chars().collect()),
        None => None,
    };
    Ok(text
        .trim_matches(|c: char| {
            set.as_ref().map_or_else(|| methods::is_space(c), |set| set.contains(&c))
        })
        .to_owned())
}

/// `indent` of Jinja: lines after the first, and blank ones if asked for.
fn indent(
    state: &State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    let [width, first, blank] = bind(["width", "first", "blank"], arguments)?;
    let [first, blank] = [first, blank].map(|value| value.is_some_and(|value| value.is_true()));
    let indentation = match width {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(
                usize::try_from(i64::try_from(width)?.max(0)).unwrap_or(MOST_WIDTH).min(MOST_WIDTH),
            ),
        },
    };
    let Some(text) = value.as_str() else {
        let why = format!("`indent` expects a text, not a value of kind {}", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    };
    // Jinja adds a line end, so that the last one of the text is kept.
    let text = format!("{text}\n");
    let lines = methods::lines(&text, false);
    spend(state, 1 + (lines.len() * indentation.len()) as u64 / 16)?;
    let mut out = String::new();
    for (n, line) in lines.iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        if (n > 0 && (blank || !line.is_empty())) || (n == 0 && first) {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// Converts a boolean to its number.
fn number(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value.clone(),
    }
}

fn round(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let [precision, method] = bind(["precision", "method"], arguments)?;
    let value = number(value);
    let toward: Option<fn(f64) -> f64> = match method.as_ref().and_then(Value::as_str) {
        None | Some("common") => None,
        Some("ceil") => Some(f64::ceil),
        Some("floor") => Some(f64::floor),
        Some(other) => {
            let why = format!("`round` by `{other}`; expected `common`, `ceil` or `floor`");
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    };
    let Some(toward) = toward else {
        let args: Vec<Value> = [Some(value), precision].into_iter().flatten().collect();
        return state.apply_filter("round!", &args);
    };
    let scale = 10_f64.powi(precision.map_or(Ok(0), i32::try_from)?);
    Ok(Value::from(toward(f64::try_from(value)? * scale) / scale))
}

/// `%` formatting, with limited widths.
fn format(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let text = str_of(state, value)?;
    methods::check_widths(&text)?;
    let mut args = vec![value.clone()];
    args.extend(arguments.0.into_iter().map(Value::from));
    args.iter().skip(1).try_for_each(|arg| whole(state, arg, 1))?;
    let named = args.iter().any(Value::is_kwargs);
    if !named && args.len() - 1 > methods::conversions(&text) {
        let why = "`format` has more arguments than the text has conversions";
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    state.apply_filter("format!", &args)
}

fn refuse_undefined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() { Err(Error::from(ErrorKind::UndefinedError)) } else { Ok(()) }
}

fn int(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    refuse_undefined(value)?;
    let [default, base] = bind(["default", "base"], arguments)?;
    let base = base.map_or(Ok(10), u32::try_from)?;
    let default = default.unwrap_or_else(|| Value::from(0));
    Ok(match value.kind() {
        ValueKind::Bool => number(value),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => truncated(f64::try_from(value.clone())?, &default),
        ValueKind::String => {
            let text = plain_number(value.as_str().unwrap_or_default());
            match radix(&text, base) {
                Some(number) => Value::from(number),
                None => text
                    .parse::<f64>()
                    .map_or_else(|_| default.clone(), |number| truncated(number, &default)),
            }
        }
        _ => default,
    })
}

/// Returns a number without its fraction; the default if it is no integer that fits.
fn truncated(number: f64, default: &Value) -> Value {
    // Integers beyond i128 are of no use in a template.
    if number.is_finite() && number.abs() < 1e38 {
        Value::from(number.trunc() as i128)
    } else {
        default.clone()
    }
}

fn radix(text: &str, base: u32) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        3..=36 => ["", ""],
        _ => return None,
    };
    let digits = prefix.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(digits, base).ok().map(|number| sign * number)
}

/// Removes the blanks around a number, and the underscores between digits.
fn plain_number(text: &str) -> String {
    text.trim_matches(methods::is_space).replace('_', "")
}

fn float(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    refuse_undefined(value)?;
    let [default] = bind(["default"], arguments)?;
    let default = default.unwrap_or_else(|| Value::from(0.0));
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(if value.is_true() { 1.0 } else { 0.0 }),
        ValueKind::Number => Value::from(f64::try_from(value.clone())?),
        ValueKind::String => {
            let text = plain_number(value.as_str().unwrap_or_default());
            text.parse::<f64>().map_or(default, Value::from)
        }
        _ => default,
    })
}

/// `truncate` of Jinja, with its leeway of 5 characters.
fn truncate(
    state: &State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    refuse_kind("truncate", value, &[ValueKind::None, ValueKind::Bool, ValueKind::Number])?;
    let [length, killwords, end, leeway] =
        bind(["length", "killwords", "end", "leeway"], arguments)?;
    let length = length.map_or(Ok(255), i64::try_from)?;
    let killwords = killwords.is_some_and(|value| value.is_true());
    let end = end.map_or_else(|| Ok("...".to_owned()), |end| str_of(state, &end))?;
    let leeway = match leeway.filter(|leeway| !leeway.is_none()) {
        Some(leeway) => i64::try_from(leeway)?,
        None => 5,
    };
    let room = usize::try_from(length).unwrap_or(0);
    let text = str_of(state, value)?;
    let ends = end.chars().count();
    if room < ends || leeway < 0 {
        let why = format!("`truncate` to {length} characters, fewer than the {ends} of its end");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    let leeway = usize::try_from(leeway).unwrap_or(0);
    if text.chars().count() <= room.saturating_add(leeway) {
        return Ok(text);
    }
    let cut: String = text.chars().take(room - ends).collect();
    let cut = if killwords {
        cut.as_str()
    } else {
        cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words)
    };
    Ok(format!("{cut}{end}"))
}

/// Counts words of letters, digits and underscores.
fn wordcount(state: &State<'_, '_>, value: &Value) -> Result<usize, Error> {
    let text = str_of(state, value)?;
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    Ok(words.filter(|word| !word.is_empty()).count())
}

fn urlencode(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && value.kind() != ValueKind::Seq {
        return Ok(percent_encoded(&str_of(state, value)?, true));
    }
    let mut pairs = Vec::new();
    for key in value.try_iter()? {
        let (key, item) = if is_map {
            let item = value.get_item(&key)?;
            (key, item)
        } else {
            let parts: Vec<Value> = key.try_iter()?.take(3).collect();
            let [key, item] = parts.as_slice() else {
                let why = "`urlencode` of a list expects pairs of a key and a value";
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            };
            (key.clone(), item.clone())
        };
        let key = str_of(state, &key)?;
        let item = str_of(state, &item)?;
        pairs.push(format!("{}={}", percent_encoded(&key, false), percent_encoded(&item, false)));
    }
    Ok(pairs.join("&").replace("%20", "+"))
}

/// Returns a text with all bytes encoded that may not stand in a part of an address.
fn percent_encoded(text: &str, keep_slash: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if keep_slash => out.push('/'),
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
