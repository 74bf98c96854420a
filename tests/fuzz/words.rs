//! Damage to text of lines and words: specs, overrides, journals, prompts.

use crate::bytes;
use crate::random::Random;

/// Words at which readers commonly fail.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "1",
    "2",
    "1e400",
    "NaN",
    "inf",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "1000000000000",
    "0.1",
    "1e-45",
    "null",
    "~",
    "true",
    "false",
    "''",
    "\"\"",
    "[]",
    "{}",
    "[",
    "]",
    "{",
    "}",
    ":",
    "-",
    "|",
    ">",
    "&a",
    "*a",
    "#",
    ",",
    "(",
    ")",
    "+",
    "*",
    "/",
    "%",
    "**",
    "==",
    "<",
    "if",
    "then",
    "else",
    "and",
    "or",
    "not",
    "x",
    "layer",
    "layers",
    "hidden",
    "f32",
    "bf16",
    "f16",
    "f8_e4m3",
    "rope",
    "..",
    "@",
    "$",
    "!",
    "\u{1b}[2J",
    "\0",
    "é",
    "\t",
    "  ",
    "-0",
];

/// True for characters of words.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// Returns the ranges of a text's words and of its other characters.
fn tokens(text: &str) -> Vec<(usize, usize)> {
    let mut tokens: Vec<(usize, usize)> = Vec::new();
    let mut joins = false;
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        match tokens.last_mut() {
            Some(last) if joins && is_word(c) => last.1 = end,
            _ if c.is_whitespace() => {}
            _ => tokens.push((at, end)),
        }
        joins = is_word(c);
    }
    tokens
}

/// Damages a text by its lines and words; `other` is a text to take them from.
pub(crate) fn damage(text: &str, other: &str, random: &mut Random) -> String {
    let choice = random.below(14);
    if choice < 6 {
        return replace(text, other, random);
    }
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    if lines.is_empty() {
        return (*random.pick(WORDS)).to_owned();
    }
    let at = random.below(lines.len());
    let end = (at + 1 + random.below(6)).min(lines.len());
    match choice {
        6 => drop(lines.drain(at..end)),
        7 => {
            let copy = lines[at..end].to_vec();
            let to = random.below(lines.len());
            lines.splice(to..to, copy);
        }
        8 => {
            let to = random.below(lines.len());
            lines.swap(at, to);
        }
        9 => lines[at] = format!("{}{}", " ".repeat(1 + random.below(4)), lines[at]),
        10 => {
            let cut = lines[at].len() - lines[at].trim_start().len();
            lines[at].drain(..cut);
        }
        11 => {
            let from: Vec<&str> = other.split_inclusive('\n').collect();
            let first = random.below(from.len());
            let last = (first + 1 + random.below(8)).min(from.len());
            let piece = from[first.min(last)..last].iter().map(|line| (*line).to_owned());
            lines.splice(at..at, piece.collect::<Vec<_>>());
        }
        12 => {
            let count = if random.one_in(10) { 20_000 } else { random.below(300) };
            let sign = random.pick(&["[", "{a: ", "(", "- ", "-", "not ", "a.", "1+"]);
            lines[at] = format!("{}{}", lines[at].trim_end(), sign.repeat(count));
        }
        _ => {
            let mut raw = text.as_bytes().to_vec();
            bytes::damage(&mut raw, other.as_bytes(), random);
            return String::from_utf8_lossy(&raw).into_owned();
        }
    }
    lines.concat()
}

/// Replaces a word by another.
fn replace(text: &str, other: &str, random: &mut Random) -> String {
    let places = tokens(text);
    let Some(&(begin, end)) = places.get(random.below(places.len())) else {
        return (*random.pick(WORDS)).to_owned();
    };
    let from = if random.one_in(2) { other } else { text };
    let known = tokens(from);
    let word = match random.below(5) {
        0 | 1 => (*random.pick(WORDS)).to_owned(),
        2 => String::new(),
        _ => match known.get(random.below(known.len())) {
            Some(&(begin, end)) => from[begin..end].to_owned(),
            None => String::new(),
        },
    };
    format!("{}{word}{}", &text[..begin], &text[end..])
}
