//! Operators that differ from Python's, as filters: `+`, `*`, `%` and `~`.
//!
//! The engine's operators add and repeat lists lazily and without a charge, so a short template could
//! make it allocate without bound. They also lack the addition of marked texts, the formatting of texts by `%`,
//! and Python's floats in `~`. [`rewrite`] replaces them by the filters of [`arithmetic`]. Comparisons and keys stay, and
//! the filter `_whole` charges what they read.

mod arithmetic;

pub(super) use arithmetic::{add_filters, is_list};

/// Words that end an operand.
const WORDS: [&str; 11] =
    ["if", "else", "elif", "and", "or", "not", "in", "recursive", "set", "for", "with"];

/// Chain of operands and operators between two boundaries.
#[derive(Debug, Default)]
struct OperandChain {
    operands: Vec<String>,
    operators: Vec<&'static str>,
}

/// Rewrites the operators of a tag's text. Line ends stay where they are.
pub(super) fn rewrite(text: &str) -> String {
    rewrite_in(text, b'(')
}

/// Rewrites the text between brackets of a kind.
fn rewrite_in(text: &str, bracket: u8) -> String {
    let mut rewriter = Rewriter::new(text, bracket);
    while let Some(&byte) = text.as_bytes().get(rewriter.at) {
        if rewriter.operand.is_empty() {
            rewriter.value_start = None;
        }
        match byte {
            b'"' | b'\'' => rewriter.string(),
            b'(' | b'[' | b'{' => rewriter.brackets(),
            byte if is_word(byte) => rewriter.word(),
            _ => rewriter.sign(),
        }
    }
    rewriter.end_chain();
    rewriter.out
}

/// Text between brackets of a kind, rewritten up to a place.
struct Rewriter<'a> {
    text: &'a str,
    bracket: u8,
    at: usize,
    out: String,
    chain: OperandChain,
    operand: String,
    /// Place in the operand where a value begins that brackets and attributes may follow.
    value_start: Option<usize>,
    after_is: bool,
    names_targets: bool,
}

impl<'a> Rewriter<'a> {
    fn new(text: &'a str, bracket: u8) -> Self {
        Self {
            text,
            bracket,
            at: 0,
            out: String::with_capacity(text.len()),
            chain: OperandChain::default(),
            operand: String::new(),
            value_start: None,
            after_is: false,
            names_targets: false,
        }
    }

    /// Writes the chain of operands that ends here.
    fn end_chain(&mut self) {
        flush(&mut self.out, &mut self.chain, &mut self.operand);
    }

    /// Moves a string to the operand.
    fn string(&mut self) {
        let from = self.at;
        self.at = end_of_string(self.text.as_bytes(), from);
        self.value_start = self.value_start.or(Some(self.operand.len()));
        push_string(&mut self.operand, &self.text[from..self.at]);
    }

    /// Moves brackets to the operand, with what is between them rewritten, or the filter of a slice.
    fn brackets(&mut self) {
        let text = self.text;
        let opening = text.as_bytes()[self.at];
        let end = end_of_bracket(text.as_bytes(), self.at);
        // Without its closing bracket the text is not valid, and stays as it is.
        let closed = end <= text.len() && end > self.at + 1;
        let (inner, close) = if closed {
            (&text[self.at + 1..end - 1], &text[end - 1..end])
        } else {
            (&text[self.at + 1..], "")
        };
        let before = self.operand.trim_end();
        let bounds = parts(inner, b':');
        if let (Some(start), true) = (self.value_start, closed && bounds.len() > 1)
            && opening == b'['
            && is_value(before)
        {
            let length = before.len();
            self.operand.truncate(length);
            self.operand.insert(start, '(');
            self.operand.push_str(&slice_filter(&bounds));
            self.at = end;
            return;
        }
        let rewritten = rewrite_in(inner, opening);
        let is_key = opening == b'['
            && is_value(before)
            && bounds.len() == 1
            && parts(inner, b',').len() == 1;
        // Behind a name of a test or filter, round brackets are its arguments.
        if self.value_start.is_none() && !(opening == b'(' && is_value(before)) {
            self.value_start = Some(self.operand.len());
        }
        let compares = opening == b'(' && before.ends_with(".changed");
        self.operand.push(char::from(opening));
        if closed && (is_key || compares) && !is_scalar(inner) {
            self.operand.push_str(&as_whole(&rewritten));
        } else {
            self.operand.push_str(&rewritten);
        }
        self.operand.push_str(close);
        self.at = end.min(text.len());
    }

    /// Moves a name to the operand, or ends the operand at a word that does.
    fn word(&mut self) {
        let from = self.at;
        let bytes = self.text.as_bytes();
        while self.at < bytes.len() && is_word(bytes[self.at]) {
            self.at += 1;
        }
        let word = &self.text[from..self.at];
        // `is not none` and `is in (...)` are tests, which belong to their operand.
        let tests = self.after_is && (word == "not" || word == "in");
        if WORDS.contains(&word) && !tests && !self.operand.trim_end().ends_with(['.', '|']) {
            let from = self.out.len();
            self.end_chain();
            if (word == "in" || word == "not") && !self.names_targets {
                charge(&mut self.out, from);
            }
            self.names_targets = word == "for" || (self.names_targets && word == "not");
            self.out.push_str(word);
        } else {
            let names_call =
                self.after_is || word == "is" || self.operand.trim_end().ends_with('|');
            if names_call {
                self.value_start = None;
            } else if !self.operand.trim_end().ends_with('.') {
                self.value_start = Some(self.operand.len());
            }
            self.operand.push_str(word);
        }
        self.after_is = word == "is" || (self.after_is && word == "not");
    }

    /// Ends the operand at an operator, or writes another sign.
    fn sign(&mut self) {
        let remaining = &self.text.as_bytes()[self.at..];
        let begins = self.operand.trim().is_empty();
        if remaining[0] == b'+' && begins && remaining.get(1).is_some_and(u8::is_ascii_digit) {
            // The sign of a number, which the engine does not read.
            self.at += 1;
            return;
        }
        if remaining.starts_with(b"**") {
            self.operand.push_str("**");
            self.value_start = None;
            self.at += 2;
            return;
        }
        let binary =
            !begins && !ends_in_exponent(&self.operand) && !self.operand.trim_end().ends_with("**");
        if let Some(operator) = operator_of(remaining).filter(|_| binary) {
            self.chain.operands.push(std::mem::take(&mut self.operand));
            self.chain.operators.push(operator);
            self.at += operator.len();
            return;
        }
        self.punctuation();
    }

    /// Writes a sign that is no operator of a chain: some end the chain, and others belong to the operand.
    fn punctuation(&mut self) {
        let from = self.at;
        let remaining = &self.text.as_bytes()[from..];
        self.at += self.text[from..].chars().next().map_or(1, char::len_utf8);
        let piece = &self.text[from..self.at];
        if matches!(remaining[0], b',' | b':' | b'=' | b'<' | b'>' | b'!') {
            let from = self.out.len();
            self.end_chain();
            let compares = matches!(remaining, [b'<' | b'>', ..] | [b'=' | b'!', b'=', ..]);
            if (compares && !is_scalar(operand_after(&self.text[self.at..])))
                || (remaining[0] == b':' && self.bracket == b'{')
            {
                charge(&mut self.out, from);
            }
            self.out.push_str(piece);
        } else {
            if !matches!(remaining[0], b'.' | b' ' | b'\n' | b'\t') {
                self.value_start = None;
            }
            self.operand.push_str(piece);
        }
    }
}

/// True if the sign behind this belongs to a number as that of its exponent: `1e+5`.
fn ends_in_exponent(operand: &str) -> bool {
    let number =
        operand.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '.').next().unwrap_or_default();
    number.starts_with(|c: char| c.is_ascii_digit()) && number.ends_with(['e', 'E'])
}

/// Returns the operator of a chain that a text begins with.
fn operator_of(text: &[u8]) -> Option<&'static str> {
    match text {
        [b'/', b'/', ..] => Some("//"),
        [b'+', ..] => Some("+"),
        [b'-', ..] => Some("-"),
        [b'*', ..] => Some("*"),
        [b'/', ..] => Some("/"),
        [b'%', ..] => Some("%"),
        [b'~', ..] => Some("~"),
        _ => None,
    }
}

/// True if this ends a value, so that a bracket after it is a key.
fn is_value(text: &str) -> bool {
    text.bytes()
        .last()
        .is_some_and(|last| is_word(last) || matches!(last, b')' | b']' | b'}' | b'"' | b'\''))
}

/// Splits text at a sign outside of brackets and strings.
fn parts(text: &str, sign: u8) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut parts = Vec::new();
    let mut from = 0;
    let mut at = 0;
    while at < bytes.len() {
        at = match bytes[at] {
            byte if byte == sign => {
                parts.push(&text[from..at]);
                from = at + 1;
                from
            }
            b'"' | b'\'' => end_of_string(bytes, at),
            b'(' | b'[' | b'{' => end_of_bracket(bytes, at),
            _ => at + 1,
        };
    }
    parts.push(&text[from..]);
    parts
}

/// Writes the filter of a slice with these bounds, and the bracket that ends its value.
fn slice_filter(bounds: &[&str]) -> String {
    let bounds = bounds.iter().map(|bound| match bound.trim() {
        "" => format!("none{bound}"),
        _ => rewrite_in(bound, b'('),
    });
    format!("|_slice({}))", bounds.collect::<Vec<_>>().join(","))
}

/// Returns what follows a comparison up to the end of a literal.
fn operand_after(text: &str) -> &str {
    let text = text.trim_start_matches(['=', ' ']);
    let bytes = text.as_bytes();
    let end = match bytes.first() {
        Some(b'"' | b'\'') => end_of_string(bytes, 0),
        _ => bytes.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count(),
    };
    &text[..end]
}

/// True if this is a literal of a text or a number, or a name that is none, true or false.
fn is_scalar(text: &str) -> bool {
    let text = text.trim();
    let bytes = text.as_bytes();
    match bytes.first() {
        Some(b'"' | b'\'') => end_of_string(bytes, 0) == bytes.len() && bytes.len() > 1,
        Some(b'0'..=b'9' | b'-') => bytes[1..].iter().all(u8::is_ascii_digit),
        _ => ["none", "None", "true", "True", "false", "False"].contains(&text),
    }
}

/// Returns an expression with the filter that charges its value as a whole.
fn as_whole(text: &str) -> String {
    let body = text.trim();
    if body.is_empty() {
        return text.to_owned();
    }
    let start = text.len() - text.trim_start().len();
    let space = &text[..start];
    let tail = &text[start + body.len()..];
    format!("{space}({body})|_whole{tail}")
}

/// Has the operand that begins there charged as a whole, unless it is a literal.
fn charge(out: &mut String, from: usize) {
    if !is_scalar(&out[from..]) {
        let charged = as_whole(&out[from..]);
        out.truncate(from);
        out.push_str(&charged);
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Writes a string, with the characters that `\U` and eight digits encode.
fn push_string(out: &mut String, text: &str) {
    let mut remaining = text;
    while let Some(at) = remaining.find('\\') {
        out.push_str(&remaining[..at]);
        let digits =
            remaining.get(at + 2..at + 10).filter(|_| remaining[at + 1..].starts_with('U'));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        if let Some(c) = code.and_then(char::from_u32).filter(|c| !c.is_ascii()) {
            out.push(c);
            remaining = &remaining[at + 10..];
        } else {
            let escape = remaining[at + 1..].chars().next().map_or(1, |c| 1 + c.len_utf8());
            out.push_str(&remaining[at..at + escape]);
            remaining = &remaining[at + escape..];
        }
    }
    out.push_str(remaining);
}

/// Returns the place behind a string.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != bytes[start] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the place behind a bracket and its contents, or one beyond the text if it is not closed.
fn end_of_bracket(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'"' | b'\'' => {
                at = end_of_string(bytes, at);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len() + 1
}

/// Writes a chain: first the products, then the concatenations, then the sums.
fn flush(out: &mut String, chain: &mut OperandChain, operand: &mut String) {
    chain.operands.push(std::mem::take(operand));
    let OperandChain { operands, operators } = std::mem::take(chain);
    let valid = operands.iter().skip(1).all(|operand| !operand.trim().is_empty());
    if operators.is_empty() || !valid {
        for (n, operand) in operands.iter().enumerate() {
            out.push_str(operand);
            out.push_str(operators.get(n).copied().unwrap_or_default());
        }
        return;
    }
    let (operands, operators) = fold(operands, operators, &["*", "/", "//", "%"]);
    let (operands, operators) = fold(operands, operators, &["~"]);
    let (operands, _) = fold(operands, operators, &["+", "-"]);
    out.push_str(&operands.concat());
}

/// Joins operands from the left at these operators.
fn fold(
    operands: Vec<String>,
    operators: Vec<&'static str>,
    level: &[&str],
) -> (Vec<String>, Vec<&'static str>) {
    let mut remaining: (Vec<String>, Vec<&'static str>) = (Vec::new(), Vec::new());
    let mut operands = operands.into_iter();
    let mut left = operands.next().unwrap_or_default();
    // True while `left` ends in a filter of ours, which needs no brackets.
    let mut filtered = false;
    for (operator, right) in operators.into_iter().zip(operands) {
        if !level.contains(&operator) {
            remaining.0.push(std::mem::replace(&mut left, right));
            remaining.1.push(operator);
            filtered = false;
            continue;
        }
        let filter = match operator {
            "+" => "_add",
            "*" => "_mul",
            "%" => "_rem",
            "~" => "_concat",
            other => {
                left = format!("{left}{other}{right}");
                filtered = false;
                continue;
            }
        };
        let space = left.len() - left.trim_start().len();
        let (space, body) = left.split_at(space);
        left = if filtered {
            format!("{space}{body}|{filter}({right})")
        } else {
            format!("{space}({body})|{filter}({right})")
        };
        filtered = true;
    }
    remaining.0.push(left);
    (remaining.0, remaining.1)
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn operators_become_filters() {
        for (source, expected) in [
            ("{{ a }}", "{{ a }}"),
            (" a + b ", " (a )|_add( b )"),
            ("a + b * c - d", "(a )|_add( (b )|_mul( c ))- d"),
            ("a+b+c", "(a)|_add(b)|_add(c)"),
            ("a - b + c", "(a - b )|_add( c)"),
            ("a ~ b + c ~ 'x + y'", "((a )|_concat( b ))|_add( (c )|_concat( 'x + y'))"),
            ("'#' + n * 2 ~ ':'", "('#' )|_add( ((n )|_mul( 2 ))|_concat( ':'))"),
            ("-a + -b", "(-a )|_add( -b)"),
            ("a ** -b % 2", "(a ** -b )|_rem( 2)"),
            ("set x = [1] + y", "set x = ([1] )|_add( y)"),
            (
                "if a + 1 == b[c + 1:] and d",
                "if ((a )|_add( 1 ))|_whole== (b|_slice((c )|_add( 1),none)) and d",
            ),
            ("a == 'x' or b != 1 or 'y' in c", "a == 'x' or b != 1 or 'y' in c"),
            ("a <= b < c not in d", "(a)|_whole <= (b)|_whole < (c)|_whole not in d"),
            ("for a, b in c if a in b", "for a, b in c if (a)|_whole in b"),
            ("a is in [b, c] == d", "(a is in [b, c])|_whole == d"),
            ("a[b][0][-1:]['c']", "(a[(b)|_whole][0]|_slice(-1,none))['c']"),
            ("-a.b [1:][ : :2].c", "-((a.b|_slice(1,none))|_slice(none ,none ,2)).c"),
            ("f(x)[:1] + 'a:b'[1:]", "((f(x)|_slice(none,1)) )|_add( ('a:b'|_slice(1,none)))"),
            (
                "a is eq b[1:] or c is in [d][:1]",
                "a is eq (b|_slice(1,none)) or c is in ([(d)|_whole]|_slice(none,1))",
            ),
            ("x|list[1:]", "x|list[1:]"),
            ("a[{'b': c}[d]]", "a[({'b': c}[(d)|_whole])|_whole]"),
            ("[a, b[1:]][0:]", "([a, (b|_slice(1,none))]|_slice(0,none))"),
            ("{a: b, 'c': d}", "{(a)|_whole: b, 'c': d}"),
            ("loop.changed(a, b)", "loop.changed((a, b)|_whole)"),
            ("f(a=b)", "f(a=b)"),
            ("[+1, a + +2, '+3']", "[1, (a )|_add( 2), '+3']"),
            (
                r"'\U0001F600 \\U0001F600 \U0000000a \Uéééééééé'",
                r"'😀 \\U0001F600 \U0000000a \Uéééééééé'",
            ),
            ("'a' + b | tojson + c", "('a' )|_add( b | tojson )|_add( c)"),
            ("a + b is not none", "(a )|_add( b is not none)"),
            ("f(x=a + b, *c)", "f(x=(a )|_add( b), *c)"),
            ("a +", "a +"),
            ("a + (b", "(a )|_add( (b)"),
            ("x.in + 1", "(x.in )|_add( 1)"),
            ("é + 1", "(é )|_add( 1)"),
            ("1e+5 + 1.5e-7", "(1e+5 )|_add( 1.5e-7)"),
        ] {
            assert_eq!(rewrite(source), expected, "of {source}");
        }
    }
}
