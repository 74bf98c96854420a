//! Damage to JSON that keeps most of it valid.

use serde_json::Value;

use crate::bytes;
use crate::random::Random;

/// Placeholder for a value while a document is printed, to be replaced by any text.
const MARK: &str = "@the mark@";

/// Tokens at which readers commonly fail, some of them invalid JSON.
const TOKENS: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "64",
    "255",
    "256",
    "65536",
    "1000000",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e30",
    "-1e30",
    "1e400",
    "1e-400",
    "0.5",
    "1e-45",
    "-2147483649",
    "-9223372036854775808",
    "123456789012345678901234567890123456789012345678901234567890",
    "NaN",
    "Infinity",
    "-Infinity",
    "[]",
    "{}",
    "\"\"",
    "[null]",
    "[0]",
    "[[]]",
    "{\"\":{}}",
    "\"a\"",
    "\"0\"",
    "\"none\"",
    "\"\\u0000\"",
    "\"\\u001b[2J\"",
    "\"\\ud83d\\ude00\"",
    "\"\\udc00\"",
    "\"\u{202e}\"",
    "\"../../x\"",
    "\"(a*)*b\"",
    "\"(?:\"",
    "\"\\\\p{L}+\"",
    "\"(?=\"",
    "\"${999}\"",
];

/// Damages the text of a document, mostly one value of it; `other` is a document to take values from.
pub(crate) fn damage(text: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let parsed = serde_json::from_slice::<Value>(text).ok();
    let Some(mut tree) = parsed.filter(|_| !random.one_in(8)) else {
        let mut bytes = text.to_vec();
        bytes::damage(&mut bytes, other, random);
        return bytes;
    };
    let mut raw = None;
    let place = find(&mut tree, random);
    match random.below(12) {
        0..=3 => raw = Some((*random.pick(TOKENS)).to_owned()),
        4 => raw = Some(number(place, random)),
        5 | 6 => *place = string(place, random),
        7 => remove_or_rename(place, random),
        8 => {
            if let Ok(mut from) = serde_json::from_slice::<Value>(other) {
                *place = find(&mut from, random).clone();
            }
        }
        9 => repeat(place, random),
        10 => {
            let depth = if random.one_in(20) { 100_000 } else { 1 + random.below(200) };
            let (open, close) = *random.pick(&[("[", "]"), ("{\"a\":", "}")]);
            raw = Some(format!("{}{place}{}", open.repeat(depth), close.repeat(depth)));
        }
        // A key twice: once with its value, once with another.
        _ => raw = Some(format!("{place},{}", random.pick(TOKENS))),
    }
    let Some(raw) = raw else { return tree.to_string().into_bytes() };
    *place = MARK.into();
    tree.to_string().replacen(&format!("\"{MARK}\""), &raw, 1).into_bytes()
}

/// Returns a place in a document: children are chosen evenly, so that long lists do not hide the rest.
fn find<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let len = match value {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    if len == 0 || random.one_in(6) {
        return value;
    }
    let n = random.below(len);
    let child = match value {
        Value::Array(list) => list.get_mut(n),
        Value::Object(map) => map.values_mut().nth(n),
        _ => None,
    };
    find(child.expect("one of those counted"), random)
}

/// Returns a number near the current one, or a large one.
fn number(place: &Value, random: &mut Random) -> String {
    let near = place.as_f64().unwrap_or(1.0);
    let integer = place.as_i64();
    match (random.below(8), integer) {
        (0, Some(integer)) => integer.wrapping_add(1).to_string(),
        (1, Some(integer)) => integer.wrapping_sub(1).to_string(),
        (2, Some(integer)) => integer.wrapping_mul(2).to_string(),
        (3, Some(integer)) => integer.wrapping_neg().to_string(),
        (4, Some(integer)) => (integer / 2).to_string(),
        (5, _) => format!("{}", near * 1.5),
        (6, _) => format!("{integer:?}.0"),
        _ => random.pick(bytes::NUMBERS).to_string(),
    }
}

/// Returns a string near the current one.
fn string(place: &Value, random: &mut Random) -> Value {
    let text = match place {
        Value::String(text) => text.clone(),
        other => other.to_string().chars().take(200).collect(),
    };
    let at = text.char_indices().nth(random.below(text.chars().count())).map_or(0, |(at, _)| at);
    let changed = match random.below(8) {
        0 => text[..at].to_owned(),
        1 => text[at..].to_owned(),
        2 => format!("{text}{text}"),
        3 => text.repeat(1 + random.below(3000) / text.len().max(1)),
        4 => format!("{}\u{1b}]0;x\u{7}{}", &text[..at], &text[at..]),
        5 => format!(
            "{}{}{}",
            &text[..at],
            random.pick(&["\0", "é", "▁", " ", ".", "\u{fffd}"]),
            &text[at..]
        ),
        6 => text.to_uppercase(),
        _ => text.chars().rev().collect(),
    };
    changed.into()
}

/// Removes a child, or renames its key.
fn remove_or_rename(place: &mut Value, random: &mut Random) {
    match place {
        Value::Array(list) if !list.is_empty() => {
            list.remove(random.below(list.len()));
        }
        Value::Object(map) if !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).cloned().expect("one of them");
            let value = map.remove(&key).expect("was there");
            if random.one_in(2) {
                let name = string(&key.into(), random);
                map.insert(name.as_str().unwrap_or_default().to_owned(), value);
            }
        }
        other => *other = Value::Null,
    }
}

/// Repeats a child of a list; wraps anything else.
fn repeat(place: &mut Value, random: &mut Random) {
    let times = if random.one_in(10) { 1000 } else { 1 + random.below(3) };
    match place {
        Value::Array(list) if !list.is_empty() => {
            let child = list[random.below(list.len())].clone();
            // Large children only once: the test is about parsing, not about size.
            let times = if child.is_object() { times.min(20) } else { times };
            list.extend(std::iter::repeat_n(child, times));
        }
        Value::Array(list) => list.push(0.into()),
        Value::Object(map) => {
            let copy = map.values().next().cloned().unwrap_or(Value::Null);
            map.insert(format!("x{}", random.below(10)), copy);
        }
        other => *other = Value::Array(vec![other.take(); times.min(50)]),
    }
}
