//! Text of a grammar in the variant of Lark that llguidance reads.

use std::fmt::Write as _;

/// Special token of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpecialToken {
    pub(super) text: String,
    pub(super) id: u32,
    /// True if the token ends an output.
    pub(super) ends: bool,
}

/// Conditions of a text before a mark, as regular expressions.
#[derive(Debug, Clone, Default)]
pub(super) struct TextRule {
    /// Form of the text; any if not given.
    pub(super) within: Option<String>,
    /// Forms that the text must not have.
    pub(super) without: Vec<String>,
}

/// Grammar that grows by rules.
pub(super) struct LarkText<'a> {
    rules: String,
    count: usize,
    specials: &'a [SpecialToken],
    space: bool,
}

/// Part of a text: plain text, or a special token.
enum MarkPart<'t> {
    Plain(&'t str),
    Token(&'t SpecialToken),
}

impl<'a> LarkText<'a> {
    pub(super) fn new(specials: &'a [SpecialToken]) -> Self {
        Self { rules: String::new(), count: 0, specials, space: false }
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, body: &str) -> String {
        let name = self.name();
        self.define(&name, body);
        name
    }

    /// Returns a name for a rule that is defined later.
    pub(super) fn name(&mut self) -> String {
        self.count += 1;
        format!("r{}", self.count)
    }

    pub(super) fn define(&mut self, name: &str, body: &str) {
        writeln!(self.rules, "{name}: {body}").expect("a string takes all text");
    }

    /// Adds a terminal, which is a regular expression as a whole, and returns its name.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("T{}", self.count);
        self.define(&name, body);
        name
    }

    /// Returns white space that may be missing.
    pub(super) fn space(&mut self) -> &'static str {
        if !std::mem::replace(&mut self.space, true) {
            self.define("SPACE", "/[ \\t\\r\\n]{1,8}/");
        }
        "SPACE?"
    }

    /// Returns the expression of a text. Special tokens in it are written as such, and those that end the output are
    /// left out, since an output may always end with them.
    pub(super) fn literal(&self, text: &str) -> String {
        let parts = self.parts(text);
        let words = parts.iter().filter_map(|part| match part {
            MarkPart::Plain(text) => Some(quoted(text)),
            MarkPart::Token(token) => (!token.ends).then(|| format!("<[{}]>", token.id)),
        });
        let words = words.collect::<Vec<_>>().join(" ");
        if words.is_empty() { "\"\"".to_owned() } else { words }
    }

    /// True if a text has a token that ends the output.
    pub(super) fn ends(&self, text: &str) -> bool {
        self.parts(text).iter().any(|part| matches!(part, MarkPart::Token(token) if token.ends))
    }

    /// Returns the expression of any text up to the first such mark, with the mark.
    pub(super) fn until(&mut self, mark: &str) -> String {
        self.text_until(mark, &TextRule::default())
    }

    /// Returns the expression of a text up to the first such mark, with the mark.
    pub(super) fn text_until(&mut self, mark: &str, rule: &TextRule) -> String {
        let first = match self.parts(mark).first() {
            Some(MarkPart::Plain(text)) => *text,
            _ => "",
        };
        let remaining = &mark[first.len()..];
        let end = escaped(first);
        let within = rule.within.as_deref().unwrap_or("(?s:.*)");
        let mut body = format!("/{within}{end}/");
        for form in &rule.without {
            write!(body, " & ~/{form}{end}/").expect("a string takes all text");
        }
        if !remaining.is_empty() {
            // Text has no special token, so it ends at the first one. Other tokens may spell the mark too.
            write!(body, " & ~/(?s:.*){}(?s:.*)/", escaped(mark)).expect("a string takes all text");
            let text = self.terminal(&body);
            let remaining = self.literal(remaining);
            return self.rule(&format!("{text} {remaining}"));
        }
        if rule.within.is_some() {
            write!(body, " & ~/(?s:.*){end}(?s:.+)/").expect("a string takes all text");
        }
        let text = self.terminal(&body);
        let name = self.name();
        self.define(&format!("{name}[lazy]"), &text);
        name
    }

    /// Ends the grammar.
    pub(super) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.rules)
    }

    fn parts<'t>(&self, text: &'t str) -> Vec<MarkPart<'t>>
    where
        'a: 't,
    {
        let mut parts = Vec::new();
        let mut remaining = text;
        while !remaining.is_empty() {
            let matches = self
                .specials
                .iter()
                .filter_map(|token| Some((remaining.find(token.text.as_str())?, token)));
            // The first one; among those that begin together, the longest.
            let first = matches.min_by_key(|(at, token)| (*at, usize::MAX - token.text.len()));
            let Some((at, token)) = first else {
                parts.push(MarkPart::Plain(remaining));
                break;
            };
            if at > 0 {
                parts.push(MarkPart::Plain(&remaining[..at]));
            }
            parts.push(MarkPart::Token(token));
            remaining = &remaining[at + token.text.len()..];
        }
        parts
    }
}

/// Returns a text as a string of Lark.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a text as part of a regular expression between slashes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_punctuation() && c != '_' && c != '<' && c != '>' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
