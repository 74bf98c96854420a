//! Text of a template before it is compiled: line ends, blocks of transformers, and limits.
//!
//! The reasons are in [decision 81](../../../docs/decisions/0081-templates-rewritten-before-compiling.md).

use std::fmt::Write as _;

use super::operators;

/// Largest template, in bytes.
const MOST_BYTES: usize = 512 << 10;
/// Longest tag, in bytes: its nesting is bounded by its length.
const MOST_TAG: usize = 16 << 10;
/// Most signs of calculation in a tag: the compiler folds constants again for each one.
const MOST_SIGNS: usize = 512;
/// Most tags of a template: chains of `elif` nest in the compiler.
const MOST_TAGS: usize = 20_000;

/// Reason why a template is not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceFault {
    pub(super) line: usize,
    pub(super) why: String,
}

/// Returns the text that is compiled: `\n` line ends, and `generation` blocks as `with` blocks.
///
/// transformers marks the text inside of `{% generation %}` to find the tokens of the assistant. The text
/// is unchanged, and variables that are set inside end with the block, as those of `with` do.
pub(super) fn prepare(source: &str) -> Result<String, SourceFault> {
    if source.len() > MOST_BYTES {
        let why = format!("the template has {} bytes; at most {MOST_BYTES} are read", source.len());
        return Err(SourceFault { line: 1, why });
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut remaining = source.as_str();
    let mut tags = 0;
    while let Some(at) = next_tag(remaining) {
        let before = &source[..source.len() - remaining.len() + at];
        let (text, tag) = remaining.split_at(at);
        out.push_str(text);
        let (length, signs) = measure(tag);
        if signs > MOST_SIGNS {
            let why = format!("a tag of {signs} calculations; at most {MOST_SIGNS} are read");
            return Err(fault_behind(before, why));
        }
        if length > MOST_TAG {
            return Err(fault_behind(before, format!("a tag of more than {MOST_TAG} bytes")));
        }
        tags += 1;
        if tags > MOST_TAGS {
            return Err(fault_behind(before, format!("more than {MOST_TAGS} tags")));
        }
        let (tag, after) = tag.split_at(length);
        match block_name(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("raw") => {
                let (raw, end) = raw_block(after);
                // Jinja keeps the line end after `raw`, and the engine removes one.
                let line_end =
                    if raw.starts_with('\n') && !tag.ends_with("-%}") { "\n" } else { "" };
                let _ = write!(out, "{tag}{line_end}{raw}");
                remaining = end;
                continue;
            }
            Some("for") => {
                let tag = loop_tag(tag).unwrap_or_else(|| tag.to_owned());
                out.push_str(&operators_as_filters(&tag));
            }
            _ => out.push_str(&operators_as_filters(tag)),
        }
        remaining = after;
    }
    out.push_str(remaining);
    Ok(out)
}

/// Returns the fault of a tag with the line that it begins in, from the text before the tag.
fn fault_behind(before: &str, why: String) -> SourceFault {
    SourceFault { line: 1 + before.matches('\n').count(), why }
}

/// Returns the place of the next `{{`, `{%` or `{#`.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    bytes.windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#"))
}

/// Returns the length of a tag with its delimiters, and the number of its signs of calculation. Strings
/// inside may hold the end's characters.
fn measure(tag: &str) -> (usize, usize) {
    let bytes = tag.as_bytes();
    let end: &[u8] = match bytes[1] {
        b'{' => b"}}",
        b'%' => b"%}",
        _ => b"#}",
    };
    let comment = bytes[1] == b'#';
    let mut quote = None;
    let mut signs = 0;
    let mut depth = 0_usize;
    let mut at = 2;
    while at < bytes.len() {
        let byte = bytes[at];
        match quote {
            Some(_) if byte == b'\\' => at += 1,
            Some(mark) if byte == mark => quote = None,
            None if !comment && (byte == b'"' || byte == b'\'') => quote = Some(byte),
            None if depth == 0 && bytes[at..].starts_with(end) => return (at + 2, signs),
            None if !comment && b"~+-*/%".contains(&byte) => signs += 1,
            None if !comment && matches!(byte, b'{' | b'[' | b'(') => depth += 1,
            None if !comment && matches!(byte, b'}' | b']' | b')') => {
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        at += 1;
    }
    (bytes.len(), signs)
}

/// Returns the first word of a block tag.
fn block_name(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.trim_start_matches(['-', '+']).trim_start();
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    Some(&inner[..end])
}

/// Words and signs of an expression outside of all brackets, with their places. Strings are skipped.
fn outer_tokens(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    let mut depth = 0_usize;
    while at < bytes.len() {
        let from = at;
        let byte = bytes[at];
        at += 1;
        match byte {
            b'"' | b'\'' => {
                while at < bytes.len() && bytes[at] != byte {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b if b.is_ascii_alphanumeric() || b == b'_' => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_') {
                    at += 1;
                }
                if depth == 0 {
                    tokens.push((from, &text[from..at]));
                }
            }
            b if b.is_ascii_punctuation() && depth == 0 => tokens.push((from, &text[from..at])),
            _ => {}
        }
    }
    tokens
}

/// Rewrites the tag of a loop, so that a loop over `none` is an error, as in Jinja.
fn loop_tag(tag: &str) -> Option<String> {
    let end = tag.len() - if tag.ends_with("-%}") || tag.ends_with("+%}") { 3 } else { 2 };
    let tokens = outer_tokens(tag.get(..end)?.get(2..)?);
    let from = word_place(&tokens, "in", 0)? + 2;
    let ends = [word_place(&tokens, "if", from), word_place(&tokens, "recursive", from)];
    let to = ends.into_iter().flatten().min().unwrap_or(end);
    let items = tag.get(from..to)?;
    Some(format!("{} ({items})|_items_of_loop {}", &tag[..from], &tag[to..]))
}

/// Returns the place in a tag of the first such word from `after` on; tokens count from behind the opening sign.
fn word_place(tokens: &[(usize, &str)], word: &str, after: usize) -> Option<usize> {
    tokens.iter().find(|(at, token)| *at >= after && *token == word).map(|(at, _)| *at + 2)
}

/// Rewrites the operators of a tag that is complete. Comments stay as they are.
fn operators_as_filters(tag: &str) -> String {
    let (starts, ends) = if tag.starts_with("{{") { ("{{", "}}") } else { ("{%", "%}") };
    let inner = tag.strip_prefix(starts).and_then(|tag| tag.strip_suffix(ends));
    let Some(inner) = inner else { return tag.to_owned() };
    // The signs of white space control.
    let front = usize::from(inner.starts_with(['-', '+']));
    let back = inner.len() - usize::from(inner.len() > front && inner.ends_with(['-', '+']));
    let rewritten = operators::rewrite(&inner[front..back]);
    format!("{starts}{}{rewritten}{}{ends}", &inner[..front], &inner[back..])
}

/// Splits the text after a `raw` tag behind the tag that ends it.
fn raw_block(text: &str) -> (&str, &str) {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%").map(|at| from + at) {
        let length = text[at..].find("%}").map_or(text.len() - at, |end| end + 2);
        if block_name(&text[at..at + length]) == Some("endraw") {
            return text.split_at(at + length);
        }
        from = at + 2;
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_become_with_blocks() {
        for (source, expected) in [
            ("{% generation %}a{% endgeneration %}", "{% with %}a{% endwith %}"),
            ("{%- generation -%}\r\na{%endgeneration%}\r", "{%- with -%}\na{%endwith%}\n"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{% raw %}{% generation %}{% endraw %}", "{% raw %}{% generation %}{% endraw %}"),
            ("{{ {'a': {'b': 1}} }}{% generation %}", "{{ {'a': {'b': 1}} }}{% with %}"),
            ("{{ generation }}", "{{ generation }}"),
            ("{% if generation %}", "{% if generation %}"),
            ("{%", "{%"),
            ("{% raw %}\n{{", "{% raw %}\n\n{{"),
            ("{% for a, b in x.y if a -%}", "{% for a, b in ( x.y )|_items_of_loop if a -%}"),
            ("{%for a in 'if in'%}", "{%for a in ( 'if in')|_items_of_loop %}"),
            ("{{- a + b -}}", "{{- (a )|_add( b )-}}"),
            ("{{ a + b", "{{ a + b"),
            ("{# a + b #}", "{# a + b #}"),
            ("{{}}{%%}{{-}}", "{{}}{%%}{{-}}"),
        ] {
            assert_eq!(prepare(source).unwrap(), expected, "of {source}");
        }
    }

    #[test]
    fn huge_tags_are_refused_with_their_line() {
        let fault = prepare(&format!("a\n{{{{ {} }}}}", "x|e".repeat(MOST_TAG))).unwrap_err();
        assert_eq!(fault.line, 2);
        let fault = prepare(&"{% if x %}".repeat(MOST_TAGS + 1)).unwrap_err();
        assert!(fault.why.contains("tags"), "{}", fault.why);
        assert!(prepare(&"x".repeat(MOST_BYTES + 1)).is_err());
    }
}
