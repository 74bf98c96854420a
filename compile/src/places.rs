//! Fills the places of texts: dims, scalars of the layer, weights and calls, as a class writes them.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;

use crate::modules::{ModuleChoice, choice_of};
use crate::python::expression;
use crate::value::{CodeLine, FORWARD, Method, access, below, parameter, segments};

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameScope {
    /// In the constructor, which has `config`.
    Init,
    /// In another method, which has `self`.
    Forward,
}

/// Names that texts of a class read.
pub(crate) struct Names<'m> {
    pub(crate) methods: &'m [Method],
    pub(crate) called: &'m BTreeMap<usize, String>,
    /// Paths whose children have numbers with gaps between them.
    pub(crate) gapped: &'m BTreeSet<String>,
    /// Numbers that say which module of a list is used.
    pub(crate) choices: &'m [ModuleChoice],
    /// True where scalars of the layer are arguments.
    pub(crate) passes: bool,
    /// Names that attributes cannot have.
    pub(crate) taken: BTreeSet<String>,
    /// Marked names that methods read from `self`.
    pub(crate) attributes: BTreeSet<String>,
    /// Scalars of the layer that the constructor reads.
    pub(crate) params: BTreeSet<String>,
    /// Places of states in what a layer keeps.
    pub(crate) states: IndexMap<String, String>,
}

impl<'m> Names<'m> {
    pub(crate) fn new(
        methods: &'m [Method],
        called: &'m BTreeMap<usize, String>,
        gapped: &'m BTreeSet<String>,
    ) -> Self {
        Self {
            methods,
            called,
            gapped,
            choices: &[],
            passes: false,
            taken: BTreeSet::new(),
            attributes: BTreeSet::new(),
            params: BTreeSet::new(),
            states: IndexMap::new(),
        }
    }
}

impl Names<'_> {
    /// Returns the attribute that keeps a scalar: its name, unless a module has that.
    pub(crate) fn attribute(&self, name: &str) -> String {
        let plain = parameter(name);
        if self.taken.contains(&plain) { format!("{plain}_size") } else { plain }
    }
}

/// A text with its places filled.
pub(crate) struct Resolved {
    pub(crate) text: String,
}

/// Fills the places of a text.
pub(crate) fn resolved(text: &str, mode: NameScope, path: &str, names: &mut Names<'_>) -> Resolved {
    let text = chosen(text, mode, path, names);
    Resolved { text: filled(&text, mode, path, names) }
}

/// Writes choices: the one text if both are the same.
fn chosen(text: &str, mode: NameScope, path: &str, names: &mut Names<'_>) -> String {
    let Some(end) = text.find('›') else { return text.to_owned() };
    let Some(start) = text[..end].rfind('‹') else { return text.to_owned() };
    let inner = &text[start + '‹'.len_utf8()..end];
    let mut parts = inner.split('¦').map(|part| filled(part, mode, path, names));
    let (yes, condition, no) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let mut before = text[..start].to_owned();
    let mut after = text[end + '›'.len_utf8()..].to_owned();
    let one = if yes == no {
        let called = before
            .trim_end_matches('(')
            .ends_with(|c: char| c.is_alphanumeric() || "_])»".contains(c));
        if before.ends_with('(') && after.starts_with(')') && !called {
            before.pop();
            after.remove(0);
        }
        yes
    } else {
        format!("{yes} if {condition} else {no}")
    };
    chosen(&format!("{before}{one}{after}"), mode, path, names)
}

fn filled(text: &str, mode: NameScope, path: &str, names: &mut Names<'_>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('«') {
        out += &rest[..start];
        let tail = &rest[start + '«'.len_utf8()..];
        let Some(end) = tail.find('»') else { break };
        out += &one(&tail[..end], mode, path, names);
        rest = &tail[end + '»'.len_utf8()..];
    }
    out + rest
}

fn one(place: &str, mode: NameScope, path: &str, names: &mut Names<'_>) -> String {
    let (mark, name) = place.split_once(':').unwrap_or(("", place));
    match mark {
        "D" if mode == NameScope::Init => format!("config.{name}"),
        "E" if mode == NameScope::Init => {
            names.params.insert(name.to_owned());
            parameter(name)
        }
        "E" if names.passes => parameter(name),
        "D" | "E" => {
            names.attributes.insert(place.to_owned());
            format!("self.{}", names.attribute(name))
        }
        "W" => {
            let code = reach(name, path, names);
            filled(&code, mode, path, names)
        }
        "R" => format!("self.{name}"),
        "P" => names.states.get(name).cloned().unwrap_or_default(),
        "C" => {
            let number: usize = name.parse().unwrap_or_default();
            let called = names.called.get(&number).cloned().unwrap_or_default();
            let owner = names.methods.get(number).and_then(|method| method.owner.clone());
            match owner.as_deref().filter(|owner| *owner != path) {
                Some(owner) if called == FORWARD => reach(owner, path, names),
                Some(owner) => format!("{}.{called}", reach(owner, path, names)),
                None => format!("self.{called}"),
            }
        }
        _ => place.to_owned(),
    }
}

/// Returns the code by which a class at one path reaches another.
fn reach(name: &str, path: &str, names: &Names<'_>) -> String {
    let rest = below(name, path).unwrap_or(name);
    let mut at = path.to_owned();
    let mut code = "self".to_owned();
    for segment in segments(rest) {
        code = if let Some(place) = choice_of(segment) {
            format!("{code}[str({})]", expression(&names.choices[place].number).0)
        } else if names.gapped.contains(&at) {
            format!("{code}[\"{segment}\"]")
        } else {
            access(&code, segment)
        };
        at = if at.is_empty() { segment.to_owned() } else { format!("{at}.{segment}") };
    }
    code
}

/// Fills the places of lines, and joins branches that are the same.
pub(crate) fn resolved_lines(
    lines: &[CodeLine],
    mode: NameScope,
    path: &str,
    names: &mut Names<'_>,
) -> Vec<CodeLine> {
    let mut written = Vec::new();
    for line in lines {
        match line {
            CodeLine::Text(text) => {
                written.push(CodeLine::Text(resolved(text, mode, path, names).text));
            }
            CodeLine::For(head, body) => {
                let head = resolved(head, mode, path, names).text;
                written.push(CodeLine::For(head, resolved_lines(body, mode, path, names)));
            }
            CodeLine::If(condition, yes, no) => {
                let yes = resolved_lines(yes, mode, path, names);
                let no = resolved_lines(no, mode, path, names);
                if yes == no {
                    written.extend(yes);
                    continue;
                }
                let condition = resolved(condition, mode, path, names).text;
                written.push(CodeLine::If(condition, yes, no));
            }
        }
    }
    written
}
