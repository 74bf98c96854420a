//! Splits text into words as llama.cpp does, after its `unicode.cpp`.
//!
//! Expressions with character classes run over a text in which every non-ASCII character is replaced by a
//! representative of its class. There all letters are alike, whatever their case, and all whitespace is a
//! vertical tab. Expressions without classes run over the text itself. Either way, `\s` and `\d` are those
//! of ASCII, unmatched text is a word of its own, and each expression splits the words of the one before.

use std::sync::LazyLock;

use fancy_regex::Regex;
use indexmap::IndexMap;

use super::load_error::LoadError;

/// Class, its non-ASCII representative, and its ASCII members.
const CLASSES: [(&str, char, &str); 5] = [
    (r"\p{N}", '\u{e0d1}', "0-9"),
    (r"\p{L}", '\u{e0d2}', "A-Za-z"),
    (r"\p{P}", '\u{e0d3}', r"!-#%-*,-/:-;?-@\[-\]_\{\}"),
    (r"\p{M}", '\u{e0d4}', ""),
    (r"\p{S}", '\u{e0d5}', r"\$\+<->\^`\|\~"),
];
/// Representative of characters in no class above.
const OTHER: char = '\u{e0d0}';
/// Classes of letters by case, which are treated as all letters.
const CASES: [&str; 5] = [r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}"];
/// Representative of non-ASCII whitespace.
const BLANK: char = '\u{b}';

/// Splitting step, in most cases an expression.
enum SplitStep {
    /// Expression over class representatives.
    Classes(Regex),
    /// Expression over the text.
    Text(Regex),
    /// Groups of three digits, counted from the end of their run.
    Threes,
    /// Words of scripts with and without Han characters.
    Han,
}

/// List of compiled expressions.
pub(super) struct Splitter {
    steps: Vec<SplitStep>,
}

/// Classes and their representatives.
static COMPILED: LazyLock<Vec<(Regex, char)>> = LazyLock::new(|| {
    CLASSES
        .iter()
        .map(|(class, stands, _)| (Regex::new(class).expect("a class is an expression"), *stands))
        .collect()
});

/// Cache of non-ASCII characters and their representatives.
#[derive(Default)]
struct Classifier {
    known: IndexMap<char, char>,
}

impl SplitStep {
    /// Compiles an expression.
    fn new(regex: &str) -> Result<Self, LoadError> {
        match regex {
            r"\p{AFMoE_digits}" | r"\d{1,3}(?=(?:\d{3})*\b)" => Ok(Self::Threes),
            r"\p{Han}+" => Ok(Self::Han),
            text => {
                let classes = text.contains(r"\p{");
                let compiled = Regex::new(&plain(text, classes));
                let compiled = compiled.map_err(|why| LoadError::Expression {
                    expression: text.to_owned(),
                    why: why.to_string(),
                })?;
                Ok(if classes { Self::Classes(compiled) } else { Self::Text(compiled) })
            }
        }
    }
}

impl Splitter {
    /// Compiles expressions.
    pub(super) fn new(split: &[String]) -> Result<Self, LoadError> {
        let steps = split.iter().map(|regex| SplitStep::new(regex));
        Ok(Self { steps: steps.collect::<Result<_, LoadError>>()? })
    }

    /// Splits a text into words.
    pub(super) fn words(&self, text: &str) -> Result<Vec<String>, fancy_regex::Error> {
        let chars: Vec<char> = text.chars().collect();
        let mut classifier = Classifier::default();
        let collapsed: Vec<char> = chars.iter().map(|&c| classifier.class(c)).collect();
        let blanked: Vec<char> = chars
            .iter()
            .zip(&collapsed)
            .map(
                |(&c, &class): (&char, &char)| {
                    if c.is_ascii() || class != BLANK { c } else { BLANK }
                },
            )
            .collect();
        let mut lengths = vec![chars.len()];
        for step in &self.steps {
            let mut split = Vec::with_capacity(lengths.len());
            let mut at = 0;
            for length in lengths {
                let part = at..at + length;
                match step {
                    SplitStep::Classes(regex) => matches(regex, &collapsed[part], &mut split)?,
                    SplitStep::Text(regex) => matches(regex, &blanked[part], &mut split)?,
                    SplitStep::Threes => split_digits(&collapsed[part], &mut split),
                    SplitStep::Han => han(&chars[part.clone()], &collapsed[part], &mut split),
                }
                at += length;
            }
            lengths = split;
        }
        let mut remaining = chars.as_slice();
        let mut words = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (word, after) = remaining.split_at(length);
            words.push(word.iter().collect());
            remaining = after;
        }
        Ok(words)
    }
}

impl Classifier {
    fn class(&mut self, c: char) -> char {
        if c.is_ascii() {
            return c;
        }
        if c.is_whitespace() {
            return BLANK;
        }
        let mut bytes = [0; 4];
        let text: &str = c.encode_utf8(&mut bytes);
        *self.known.entry(c).or_insert_with(|| {
            let of = COMPILED.iter().find(|(regex, _)| regex.is_match(text).unwrap_or(false));
            of.map_or(OTHER, |(_, stands)| *stands)
        })
    }
}

/// Expands the classes of an expression.
fn plain(regex: &str, classes: bool) -> String {
    let mut names: Vec<(String, String)> = Vec::new();
    if classes {
        names.extend(CLASSES.map(|class| (class.0.to_owned(), members_of(class))));
        names.extend(CASES.map(|case| (case.to_owned(), members_of(CLASSES[1]))));
    }
    names.push((r"\s".into(), r"\t-\r\x20".into()));
    names.push((r"\d".into(), "0-9".into()));
    let mut out = String::with_capacity(regex.len() * 2);
    let mut remaining = regex;
    let mut inside = false;
    while let Some(c) = remaining.chars().next() {
        if let Some((name, members)) =
            names.iter().find(|(name, _)| remaining.starts_with(name.as_str()))
        {
            let (open, close) = if inside { ("", "") } else { ("[", "]") };
            out.extend([open, members.as_str(), close]);
            remaining = &remaining[name.len()..];
            continue;
        }
        if let (Some(after), false) = (remaining.strip_prefix(r"\S"), inside) {
            out.push_str(r"[^\t-\r\x20]");
            remaining = after;
            continue;
        }
        let mut length = c.len_utf8();
        match c {
            '\\' => length += remaining[length..].chars().next().map_or(0, char::len_utf8),
            '[' if inside => out.push('\\'),
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        out.push_str(&remaining[..length]);
        remaining = &remaining[length..];
    }
    out
}

/// Returns the members of a class, as part of an expression.
fn members_of((_, stands, ascii): (&str, char, &str)) -> String {
    format!("{stands}{ascii}")
}

/// Returns the lengths of matches and of the text between them.
fn matches(regex: &Regex, part: &[char], split: &mut Vec<usize>) -> Result<(), fancy_regex::Error> {
    let text: String = part.iter().collect();
    let mut at = 0;
    for matched in regex.find_iter(&text) {
        let matched = matched?;
        if matched.start() > at {
            split.push(text[at..matched.start()].chars().count());
        }
        split.push(text[matched.range()].chars().count());
        at = matched.end();
    }
    if at < text.len() {
        split.push(text[at..].chars().count());
    }
    Ok(())
}

fn is_number(class: char) -> bool {
    class.is_ascii_digit() || class == CLASSES[0].1
}

fn is_letter(class: char) -> bool {
    class.is_ascii_alphabetic() || class == CLASSES[1].1
}

fn is_blank(class: char) -> bool {
    matches!(class, '\t'..='\r' | ' ')
}

fn is_sign(class: char) -> bool {
    !is_blank(class) && !is_letter(class) && !is_number(class)
}

fn is_line_end(class: char) -> bool {
    class == '\r' || class == '\n'
}

/// Splits runs of digits into groups of three, preceded by one or two remaining digits; other text stays.
fn split_digits(classes: &[char], split: &mut Vec<usize>) {
    let mut at = 0;
    while at < classes.len() {
        let digits = is_number(classes[at]);
        let run = classes[at..].iter().take_while(|&&c| is_number(c) == digits).count();
        if digits {
            split.extend((!run.is_multiple_of(3)).then_some(run % 3));
            split.extend(std::iter::repeat_n(3, run / 3));
        } else {
            split.push(run);
        }
        at += run;
    }
}

fn is_han(c: char) -> bool {
    matches!(u32::from(c), 0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f | 0x2b820..=0x2ceaf | 0x2ceb0..=0x2ebef | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}

/// Characters of a text, and their classes.
struct ClassifiedText<'a> {
    chars: &'a [char],
    classes: &'a [char],
}

impl ClassifiedText<'_> {
    /// True if there is a character at a place, and its class meets a condition.
    fn is(&self, at: usize, condition: fn(char) -> bool) -> bool {
        self.classes.get(at).copied().is_some_and(condition)
    }

    /// True if a place has a letter other than a Han character.
    fn is_other_letter(&self, at: usize) -> bool {
        self.is(at, is_letter) && !is_han(self.chars[at])
    }

    /// Returns the number of consecutive places that meet a condition.
    fn run(&self, from: usize, condition: impl Fn(usize) -> bool) -> usize {
        (from..self.chars.len()).take_while(|&at| condition(at)).count()
    }
}

/// Splits text by script and character class. The parts are runs of Han characters, words of other letters
/// with one character before them and a contraction after, up to three digits, other symbols with line
/// ends, and whitespace.
fn han(chars: &[char], classes: &[char], split: &mut Vec<usize>) {
    let text = ClassifiedText { chars, classes };
    let mut at = 0;
    while at < chars.len() {
        let begin = at;
        let leads = !text.is(at, is_line_end)
            && !text.is(at, is_letter)
            && !text.is(at, is_number)
            && text.is_other_letter(at + 1);
        let signs = at + usize::from(chars[at] == ' ');
        if is_han(chars[at]) {
            at += text.run(at, |at| is_han(chars[at]));
        } else if text.is_other_letter(at) || leads {
            at += usize::from(leads);
            at += text.run(at, |at| text.is_other_letter(at));
            let tail: String = chars[at..].iter().take(3).map(char::to_ascii_lowercase).collect();
            let contractions = ["'s", "'t", "'m", "'d", "'re", "'ve", "'ll"];
            at +=
                contractions.iter().find(|end| tail.starts_with(**end)).map_or(0, |end| end.len());
        } else if text.is(at, is_number) {
            at += text.run(at, |at| text.is(at, is_number)).min(3);
        } else if text.is(signs, is_sign) {
            at = signs + text.run(signs, |at| text.is(at, is_sign));
            at += text.run(at, |at| text.is(at, is_line_end));
        } else {
            let blanks = text.run(at, |at| text.is(at, is_blank));
            let last_line = (at..at + blanks).rev().find(|&at| text.is(at, is_line_end));
            at = match last_line {
                Some(line) => line + 1,
                None if blanks > 1 && at + blanks < chars.len() => at + blanks - 1,
                None => at + blanks.max(1),
            };
        }
        split.push(at - begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(split: &[&str], text: &str) -> Vec<String> {
        let split: Vec<String> = split.iter().map(|&regex| regex.to_owned()).collect();
        Splitter::new(&split).unwrap().words(text).unwrap()
    }

    #[test]
    fn classes_are_those_of_any_script() {
        let usual = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
        let split = words(&[usual], "It's  ö文२٣ \u{3000}x\t!");
        assert_eq!(split, ["It", "'s", " ", " ö文", "२٣", " ", "\u{3000}", "x", "\t", "!"]);
        assert_eq!(words(&[r"\p{N}", usual], "a12b"), ["a", "1", "2", "b"]);
        assert_eq!(words(&[usual], ""), [""; 0]);
    }

    #[test]
    fn letters_beyond_ascii_have_no_case() {
        let cased = r"[\p{Lu}]+|[\p{Ll}]+";
        assert_eq!(words(&[cased], "ÀÉàé"), ["ÀÉàé"]);
        let ascii = r"((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*";
        assert_eq!(words(&[ascii], "ABcÀd"), ["ABcÀd"]);
    }

    #[test]
    fn expressions_without_classes_see_the_text() {
        assert_eq!(words(&["[一-龥]+"], "a世界b"), ["a", "世界", "b"]);
        assert_eq!(words(&[r"[^\n]+|[\n]+"], "a b\n\nc"), ["a b", "\n\n", "c"]);
        assert_eq!(words(&[r"\s+$"], "a \u{2003}"), ["a", " \u{2003}"]);
        assert_eq!(words(&["(?=(\\d{3})+(?!\\d))"], "1234"), ["1", "", "234"]);
    }

    #[test]
    fn digits_go_in_threes_from_the_end() {
        assert_eq!(
            words(&[r"\p{AFMoE_digits}"], "a1234567, 12 123"),
            ["a", "1", "234", "567", ", ", "12", " ", "123"]
        );
    }

    #[test]
    fn scripts_are_split_from_han() {
        let split = words(&[r"\p{Han}+"], "中文abc's 12345, (x)\n\n  y \n z  ");
        let expected = [
            "中文", "abc's", " ", "123", "45", ",", " (", "x", ")\n\n", " ", " y", " \n", " z",
            "  ",
        ];
        assert_eq!(split, expected);
    }

    #[test]
    fn every_known_expression_compiles() {
        for name in super::super::super::pre_table::names() {
            let (group, _) = super::super::super::pre_table::find(name).unwrap();
            let splitter = Splitter::new(&group.split).unwrap();
            let text = "It's 12345 Ünïcödé 世界\t\n\n  x";
            assert_eq!(splitter.words(text).unwrap().concat(), text, "{name}");
        }
    }
}
