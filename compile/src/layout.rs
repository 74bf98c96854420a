//! Lays statements of Python out as formatters do: a line that is too long is split at its last brackets, at operators, or at commas.

use crate::value::CodeLine;

/// Lays out lines at a depth of indentation.
pub(crate) fn lines(lines: &[CodeLine], depth: usize, width: usize, out: &mut Vec<String>) {
    for line in lines {
        match line {
            CodeLine::Text(text) if text.starts_with('#') => comment(text, depth, width, out),
            CodeLine::Text(text) => statement(text, depth, width, out),
            CodeLine::For(head, body) => {
                statement(&format!("for {head}:"), depth, width, out);
                self::lines(body, depth + 1, width, out);
            }
            CodeLine::If(condition, yes, no) => {
                statement(&format!("if {condition}:"), depth, width, out);
                self::lines(yes, depth + 1, width, out);
                if !no.is_empty() {
                    out.push(format!("{}else:", indent(depth)));
                    self::lines(no, depth + 1, width, out);
                }
            }
        }
    }
}

fn indent(depth: usize) -> String {
    "    ".repeat(depth)
}

/// Wraps a comment.
fn comment(text: &str, depth: usize, width: usize, out: &mut Vec<String>) {
    let plain = text.trim_start_matches('#').trim();
    for line in wrapped(plain, width.saturating_sub(4 * depth + 2)) {
        out.push(format!("{}# {line}", indent(depth)));
    }
}

/// Wraps words to a width.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

fn fits(text: &str, depth: usize, width: usize) -> bool {
    4 * depth + text.chars().count() <= width
}

/// Lays out one statement.
pub(crate) fn statement(text: &str, depth: usize, width: usize, out: &mut Vec<String>) {
    if fits(text, depth, width) {
        out.push(format!("{}{text}", indent(depth)));
        return;
    }
    let (head, tail) = parts(text);
    let expr = &text[head.len()..text.len() - tail.len()];
    expression(head, expr, tail, depth, width, out);
}

/// Splits a statement into what stands before its expression, and behind it.
fn parts(text: &str) -> (&str, &str) {
    for word in ["return ", "if ", "for "] {
        if text.starts_with(word) {
            let tail = usize::from(word != "return ");
            let head = if word == "for " {
                text.find(" in ").map_or(word.len(), |at| at + 4)
            } else {
                word.len()
            };
            return (&text[..head], &text[text.len() - tail..]);
        }
    }
    match top_level(text).into_iter().find(|(_, word)| *word == "=") {
        Some((at, _)) if !text.starts_with("def ") => (&text[..at + 3], ""),
        _ => ("", ""),
    }
}

/// Returns operators outside of brackets with their places, in order.
fn top_level(text: &str) -> Vec<(usize, &'static str)> {
    const WORDS: [(&str, &str); 18] = [
        (" if ", "if"),
        (" else ", "else"),
        (" or ", "or"),
        (" and ", "and"),
        (" = ", "="),
        (" == ", "=="),
        (" != ", "!="),
        (" < ", "<"),
        (" > ", ">"),
        (" in ", "in"),
        (" is ", "is"),
        (" ** ", "**"),
        (" + ", "+"),
        (" - ", "-"),
        (" * ", "*"),
        (" / ", "/"),
        (" // ", "//"),
        (" @ ", "@"),
    ];
    let mut found = Vec::new();
    let mut depth = 0_i32;
    let mut quoted = None;
    for (at, letter) in text.char_indices() {
        match (letter, quoted) {
            (letter, Some(quote)) if letter == quote => quoted = None,
            ('"' | '\'', None) => quoted = Some(letter),
            ('(' | '[' | '{', None) => depth += 1,
            (')' | ']' | '}', None) => depth -= 1,
            (' ', None) if depth == 0 => {
                let rest = &text[at..];
                let word = WORDS.iter().find(|(word, _)| rest.starts_with(word));
                if let Some((_, word)) = word.filter(|_| !text[..at].ends_with(" not")) {
                    found.push((at, *word));
                }
            }
            _ => {}
        }
    }
    found
}

fn rank(word: &str) -> u8 {
    match word {
        "if" | "else" => 1,
        "or" => 2,
        "and" => 3,
        "==" | "!=" | "<" | ">" | "in" | "is" => 4,
        "+" | "-" => 5,
        "**" => 7,
        _ => 6,
    }
}

/// Lays out an expression between two texts of its statement.
fn expression(
    head: &str,
    expr: &str,
    tail: &str,
    depth: usize,
    width: usize,
    out: &mut Vec<String>,
) {
    let operators: Vec<(usize, &str)> =
        top_level(expr).into_iter().filter(|(_, word)| *word != "=").collect();
    let lowest = operators.iter().map(|(_, word)| rank(word)).min();
    let count = operators.iter().filter(|(_, word)| Some(rank(word)) == lowest).count();
    if head.starts_with("def ") || expr.starts_with("def ") {
        return parameters(&format!("{head}{expr}{tail}"), depth, width, out);
    }
    if operators.is_empty() && fluent(head, expr, tail, depth, width, out) {
        return;
    }
    let commas = items(expr);
    if commas.len() > 1 && !head.is_empty() {
        let last = commas[commas.len() - 1];
        let start = expr.len() - last.len();
        let first = breaking(head, expr, depth, width).map_or(0, |(open, _)| open);
        if !operators.is_empty()
            || first < start
            || !fits(&format!("{head}{}", &expr[..=first]), depth, width)
        {
            out.push(format!("{}{head}(", indent(depth)));
            for one in commas {
                item(one, ",", depth + 1, width, out);
            }
            out.push(format!("{}){tail}", indent(depth)));
            return;
        }
    }
    if operators.is_empty() {
        match breaking(head, expr, depth, width) {
            Some((open, close)) => {
                let first = format!("{head}{}", &expr[..=open]);
                let last = format!("{}{tail}", &expr[close..]);
                bracketed(&first, &expr[open + 1..close], &last, depth, width, out);
            }
            None => out.push(format!("{}{head}{expr}{tail}", indent(depth))),
        }
        return;
    }
    if count == 1 && lowest != Some(1) && within_brackets(head, expr, tail, depth, width, out) {
        return;
    }
    out.push(format!("{}{head}(", indent(depth)));
    operands("", expr, depth + 1, width, out);
    out.push(format!("{}){tail}", indent(depth)));
}

/// Lays out an expression with one operator inside of its brackets, each where its line gets too long, if it begins or ends with brackets.
fn within_brackets(
    head: &str,
    expr: &str,
    tail: &str,
    depth: usize,
    width: usize,
    out: &mut Vec<String>,
) -> bool {
    let all: Vec<(usize, usize)> =
        groups(expr).into_iter().filter(|(open, close)| close - open > 1).collect();
    let is_subscript = |open: usize| {
        expr[open..].starts_with('[')
            && expr[..open].ends_with(|c: char| c.is_alphanumeric() || "_)]".contains(c))
    };
    let ends =
        all.last().is_some_and(|(open, close)| close + 1 == expr.len() && !is_subscript(*open));
    if !ends && !expr.starts_with(['(', '[', '{']) {
        return false;
    }
    let mut lines = Vec::new();
    let mut line = head.to_owned();
    let mut start = 0;
    for (n, (open, close)) in all.iter().copied().enumerate() {
        let next = all.get(n + 1).map_or(expr.len(), |(next, _)| next + 1);
        let end = if next == expr.len() { tail } else { "" };
        if fits(&format!("{line}{}{end}", &expr[start..next]), depth, width) {
            continue;
        }
        let first = format!("{line}{}", &expr[start..=open]);
        if !fits(&first, depth, width) {
            return false;
        }
        bracketed(&first, &expr[open + 1..close], "", depth, width, &mut lines);
        lines.pop();
        line.clear();
        start = close;
    }
    let last = format!("{line}{}{tail}", &expr[start..]);
    if !fits(&last, depth, width) {
        return false;
    }
    lines.push(format!("{}{last}", indent(depth)));
    out.extend(lines);
    true
}

/// Lays out the head of a function: its parameters are split, not its result.
fn parameters(text: &str, depth: usize, width: usize, out: &mut Vec<String>) {
    let Some((open, close)) = groups(text).into_iter().next() else {
        out.push(format!("{}{text}", indent(depth)));
        return;
    };
    bracketed(&text[..=open], &text[open + 1..close], &text[close..], depth, width, out);
}

/// Returns the first brackets whose line would be too long.
fn breaking(head: &str, expr: &str, depth: usize, width: usize) -> Option<(usize, usize)> {
    let all = groups(expr);
    for (n, (open, close)) in all.iter().enumerate() {
        let end = all.get(n + 1).map_or(expr.len(), |(next, _)| next + 1);
        if close - open > 1 && !fits(&format!("{head}{}", &expr[..end]), depth, width) {
            return Some((*open, *close));
        }
    }
    last_brackets(expr)
}

/// Lays a chain of calls out with a call per line, if it has two or more behind the first.
fn fluent(
    head: &str,
    expr: &str,
    tail: &str,
    depth: usize,
    width: usize,
    out: &mut Vec<String>,
) -> bool {
    if items(expr).len() > 1 {
        return false;
    }
    let mut cuts = Vec::new();
    let closes: Vec<usize> = groups(expr).into_iter().map(|(_, close)| close).collect();
    for close in closes {
        if expr[close + 1..].starts_with('.') {
            cuts.push(close + 1);
        }
    }
    // An attribute behind an attribute that follows a call stands in a line of its own, too.
    if let Some(last) = cuts.last().copied()
        && !expr[last + 1..].contains('(')
        && expr[last + 1..].contains('.')
    {
        cuts.push(last + 1 + expr[last + 1..].find('.').unwrap_or(0));
    }
    if cuts.len() < 2 {
        return false;
    }
    let inner = if head.is_empty() && tail != ":" { depth } else { depth + 1 };
    if inner > depth {
        out.push(format!("{}{head}(", indent(depth)));
    }
    if inner > depth && fits(expr, inner, width) {
        cuts.clear();
    }
    let mut start = 0;
    for (n, cut) in cuts.iter().copied().chain([expr.len()]).enumerate() {
        let piece = &expr[start..cut];
        let last = n == cuts.len() && inner == depth;
        let end = if last { tail } else { "" };
        if fits(&format!("{piece}{end}"), inner, width) {
            out.push(format!("{}{piece}{end}", indent(inner)));
        } else {
            let open = piece.find(['(', '[']).unwrap_or(piece.len() - 1);
            let close = format!("{}{end}", &piece[piece.len() - 1..]);
            bracketed(
                &piece[..=open],
                &piece[open + 1..piece.len() - 1],
                &close,
                inner,
                width,
                out,
            );
        }
        start = cut;
    }
    if inner > depth {
        out.push(format!("{}){tail}", indent(depth)));
    }
    true
}

/// Returns the brackets of an expression that are not inside of others.
fn groups(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut depth = 0_i32;
    let mut open = 0;
    let mut quoted = None;
    for (at, letter) in text.char_indices() {
        match (letter, quoted) {
            (letter, Some(quote)) if letter == quote => quoted = None,
            ('"' | '\'', None) => quoted = Some(letter),
            ('(' | '[' | '{', None) => {
                if depth == 0 {
                    open = at;
                }
                depth += 1;
            }
            (')' | ']' | '}', None) => {
                depth -= 1;
                if depth == 0 {
                    found.push((open, at));
                }
            }
            _ => {}
        }
    }
    found
}

/// Lays out operands one below the other behind a word, if they do not fit into a line.
fn operands(head: &str, expr: &str, depth: usize, width: usize, out: &mut Vec<String>) {
    const WORDS: [&str; 18] = [
        "+", "-", "*", "/", "//", "@", "**", "and", "or", "if", "else", "is", "in", "not", "==",
        "!=", "<", ">",
    ];
    if fits(&format!("{head}{expr}"), depth, width) {
        out.push(format!("{}{head}{expr}", indent(depth)));
        return;
    }
    let operators = top_level(expr);
    let Some(lowest) = operators.iter().map(|(_, word)| rank(word)).min() else {
        expression(head, expr, "", depth, width, out);
        return;
    };
    let mut start = 0;
    let cuts = operators.iter().filter(|(_, word)| rank(word) == lowest).map(|(at, _)| *at);
    for cut in cuts.chain([expr.len()]) {
        let piece = expr[start..cut].trim();
        let word = piece.split_once(' ').filter(|(word, _)| start > 0 && WORDS.contains(word));
        let own = word.map(|(word, _)| format!("{word} ")).unwrap_or_default();
        let before = if start == 0 { head } else { own.as_str() };
        operands(before, &piece[own.len()..], depth, width, out);
        start = cut;
    }
}

/// Lays out what stands in brackets: in one line, or an item per line.
fn bracketed(
    first: &str,
    inside: &str,
    last: &str,
    depth: usize,
    width: usize,
    out: &mut Vec<String>,
) {
    out.push(format!("{}{first}", indent(depth)));
    let inner = inside.trim();
    let items = items(inner);
    if fits(inner, depth + 1, width) && !inside.ends_with(',') {
        out.push(format!("{}{inner}", indent(depth + 1)));
    } else if is_comprehension(inner) {
        comprehension(inner, depth + 1, width, out);
    } else if let [only] = items.as_slice()
        && !first.starts_with("def ")
    {
        // A single argument has no comma behind it unless it stands in its own line.
        let mut part = Vec::new();
        item(only, "", depth + 1, width, &mut part);
        out.extend(part);
    } else {
        for one in items {
            item(one, ",", depth + 1, width, out);
        }
    }
    out.push(format!("{}{last}", indent(depth)));
}

fn is_comprehension(text: &str) -> bool {
    let mut depth = 0_i32;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ' ' if depth == 0 && text[at..].starts_with(" for ") => return true,
            _ => {}
        }
    }
    false
}

/// Lays out a comprehension: its body, and each clause in a line of its own.
fn comprehension(text: &str, depth: usize, width: usize, out: &mut Vec<String>) {
    let mut cuts = Vec::new();
    let mut level = 0_i32;
    let mut seen_for = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' => level += 1,
            ')' | ']' | '}' => level -= 1,
            ' ' if level == 0 && text[at..].starts_with(" for ") => {
                seen_for = true;
                cuts.push(at);
            }
            ' ' if level == 0 && seen_for && text[at..].starts_with(" if ") => cuts.push(at),
            _ => {}
        }
    }
    let mut start = 0;
    for cut in cuts.into_iter().chain([text.len()]) {
        let piece = text[start..cut].trim();
        match piece.find(" in ").filter(|_| piece.starts_with("for ")) {
            _ if fits(piece, depth, width) => out.push(format!("{}{piece}", indent(depth))),
            Some(at) => expression(&piece[..at + 4], &piece[at + 4..], "", depth, width, out),
            None => operands("", piece, depth, width, out),
        }
        start = cut;
    }
}

fn item(text: &str, comma: &str, depth: usize, width: usize, out: &mut Vec<String>) {
    if fits(&format!("{text}{comma}"), depth, width) {
        out.push(format!("{}{text}{comma}", indent(depth)));
        return;
    }
    let named = text.split_once('=').filter(|(name, value)| {
        !value.starts_with('=') && name.chars().all(crate::words::is_of_name)
    });
    let head = named.map(|(name, _)| format!("{name}=")).unwrap_or_default();
    let value = &text[head.len()..];
    let operators = top_level(value);
    if !operators.is_empty() && head.is_empty() {
        let mut lines = Vec::new();
        operands("", value, depth, width, &mut lines);
        if let Some(last) = lines.last_mut() {
            *last += comma;
        }
        out.extend(lines);
        return;
    }
    expression(&head, value, comma, depth, width, out);
}

/// Splits at commas outside of brackets.
fn items(text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut depth = 0_i32;
    let mut start = 0;
    let mut quoted = None;
    for (at, letter) in text.char_indices() {
        match (letter, quoted) {
            (letter, Some(quote)) if letter == quote => quoted = None,
            ('"' | '\'', None) => quoted = Some(letter),
            ('(' | '[' | '{', None) => depth += 1,
            (')' | ']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => {
                items.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        items.push(last);
    }
    items
}

/// Returns the places of the last brackets of an expression that are not inside of others.
fn last_brackets(text: &str) -> Option<(usize, usize)> {
    let mut depth = 0_i32;
    let mut open = None;
    let mut found = None;
    let mut quoted = None;
    for (at, letter) in text.char_indices() {
        match (letter, quoted) {
            (letter, Some(quote)) if letter == quote => quoted = None,
            ('"' | '\'', None) => quoted = Some(letter),
            ('(' | '[' | '{', None) => {
                if depth == 0 {
                    open = Some(at);
                }
                depth += 1;
            }
            (')' | ']' | '}', None) => {
                depth -= 1;
                if depth == 0
                    && let Some(open) = open
                    && at > open + 1
                {
                    found = Some((open, at));
                }
            }
            _ => {}
        }
    }
    found
}
