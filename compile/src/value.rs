//! Values, bindings and methods of the generated code, while programs are walked.
//!
//! Texts hold places that are filled when a class is written: `«D:name»` a dim, `«E:name»` a scalar of the layer, `«W:path»` a weight,
//! `«C:n»` a call of method n; `‹a¦c¦b›` is a where c holds and b elsewhere.

use std::collections::BTreeSet;

use registry::syntax::Expr;

use crate::python::binding::{ADD, ATOM, IF, MUL};
use crate::python::enclosed;
use crate::target::Target;

/// A value of the model in the code.
#[derive(Debug, Clone)]
pub(crate) struct CodeValue {
    /// The expression.
    pub(crate) text: String,
    /// Its binding strength.
    pub(crate) binds: u8,
    /// Shape of one row.
    pub(crate) shape: Vec<Expr>,
    /// True if it is f32 in every run.
    pub(crate) wide: bool,
    /// Matrices that it comes from, by ops that treat its columns or heads apart.
    pub(crate) sources: BTreeSet<String>,
}

impl CodeValue {
    /// Encloses the text in parentheses where it stands in a product, say.
    pub(crate) fn at(&self, least: u8) -> String {
        enclosed(&(self.text.clone(), self.binds), least)
    }

    /// Returns how tightly a word of templates binds.
    pub(crate) fn binds(word: &str) -> u8 {
        match word {
            "add" => ADD,
            "mul" => MUL,
            "if" => IF,
            _ => ATOM,
        }
    }
}

/// The meaning of a name or an argument.
#[derive(Debug, Clone)]
pub(crate) enum BoundCode {
    /// A value.
    Value(CodeValue),
    /// Results of a call with several.
    Values(Vec<CodeValue>),
    /// A number, a text, a list.
    Scalar(Expr),
    /// A name that no variable has: a path of weights, a dim, a state or a rotary table.
    Name(String),
    /// One of two, by a condition.
    Choice(Expr, Box<Self>, Box<Self>),
    /// The token ids.
    Tokens,
}

impl BoundCode {
    /// True for a value of the dtype that the model computes in.
    pub(crate) fn is_narrow(&self) -> bool {
        matches!(self, Self::Value(value) if !value.wide)
    }
}

/// A line of code, or a block.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CodeLine {
    /// One statement, or a comment.
    Text(String),
    /// Two blocks, of which one runs.
    If(String, Vec<Self>, Vec<Self>),
    /// A loop and its body.
    For(String, Vec<Self>),
}

/// A weight or module that a method uses.
#[derive(Debug, Clone)]
pub(crate) struct ModuleUse {
    /// Its path below the root class.
    pub(crate) path: String,
    /// The expression that makes it.
    pub(crate) made: String,
    /// Conditions under which it is there.
    pub(crate) conditions: Vec<Expr>,
}

/// A call of another method.
#[derive(Debug, Clone)]
pub(crate) struct MethodCall {
    /// The number of the method.
    pub(crate) method: usize,
    /// Conditions under which it is called.
    pub(crate) conditions: Vec<Expr>,
}

/// A function of the spec with its parameters bound: a method of some class.
#[derive(Debug, Clone, Default)]
pub(crate) struct Method {
    /// The name in the spec.
    pub(crate) name: String,
    /// The comment above it.
    pub(crate) about: Vec<String>,
    /// Names and types of parameters.
    pub(crate) params: Vec<(String, String)>,
    /// The body.
    pub(crate) body: Vec<CodeLine>,
    /// The number of results.
    pub(crate) results: usize,
    /// Weights that the body uses itself.
    pub(crate) uses: Vec<ModuleUse>,
    /// Methods that the body calls.
    pub(crate) calls: Vec<MethodCall>,
    /// Rotary tables that it takes, and `cache`.
    pub(crate) context: BTreeSet<String>,
    /// The path of the module that it belongs to; none if it uses no weights.
    pub(crate) owner: Option<String>,
    /// True if scalars of the layer are arguments of it, because its module is that of several layers.
    pub(crate) passes: bool,
    /// True for the method that runs all layers.
    pub(crate) has_layers: bool,
}

/// Returns the path that all have in common, in whole segments.
pub(crate) fn common<'p>(paths: impl IntoIterator<Item = &'p str>) -> Option<String> {
    let mut paths = paths.into_iter();
    let mut common: Vec<&str> = segments(paths.next()?);
    for path in paths {
        let other = segments(path);
        let same = common.iter().zip(&other).take_while(|(a, b)| a == b).count();
        common.truncate(same);
    }
    Some(common.join("."))
}

/// Steps out of lists: a module whose children have numbers has no class.
pub(crate) fn outside_lists(owner: Option<String>, paths: &[&str]) -> Option<String> {
    let mut owner = owner?;
    loop {
        let numbered = paths.iter().any(|path| {
            let rest = below(path, &owner).unwrap_or_default();
            segments(rest)
                .first()
                .is_some_and(|segment| segment.parse::<usize>().is_ok() || segment.starts_with('{'))
        });
        if !numbered || owner.is_empty() {
            return Some(owner);
        }
        owner = parent(&owner).to_owned();
    }
}

/// Returns the segments of a path; an empty path has none.
pub(crate) fn segments(path: &str) -> Vec<&str> {
    path.split('.').filter(|segment| !segment.is_empty()).collect()
}

/// Returns the path of the module that something lies in.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// Returns the part of a path below another; none if it does not lie there.
pub(crate) fn below<'p>(path: &'p str, above: &str) -> Option<&'p str> {
    if above.is_empty() {
        return Some(path);
    }
    match path.strip_prefix(above)? {
        "" => Some(""),
        rest => rest.strip_prefix('.'),
    }
}

/// Returns the name of a scalar of the layer as a parameter.
pub(crate) fn parameter(name: &str) -> String {
    variable(if name == "i" { "layer" } else { name })
}

/// Returns the code of a child of something.
pub(crate) fn access(base: &str, segment: &str) -> String {
    if segment.parse::<usize>().is_ok() {
        format!("{base}[{segment}]")
    } else {
        format!("{base}.{segment}")
    }
}

/// Returns an assignment.
pub(crate) fn assigned(name: &str, text: &str) -> CodeLine {
    CodeLine::Text(format!("{name} = {text}"))
}

pub(crate) fn each_text(lines: &[CodeLine], visit: &mut impl FnMut(&str)) {
    for line in lines {
        match line {
            CodeLine::Text(text) => visit(text),
            CodeLine::For(head, body) => {
                visit(head);
                each_text(body, visit);
            }
            CodeLine::If(condition, yes, no) => {
                visit(condition);
                each_text(yes, visit);
                each_text(no, visit);
            }
        }
    }
}

/// Names of Python that variables of specs may have.
const TAKEN: [&str; 13] = [
    "all", "input", "open", "lambda", "is", "from", "type", "range", "round", "sum", "max", "min",
    "cache",
];

/// Returns a name of a spec as a variable of Python.
pub(crate) fn variable(name: &str) -> String {
    if TAKEN.contains(&name) { format!("{name}_") } else { name.to_owned() }
}

/// First character in the path of a module without weights, which belongs to the class of the method that uses it.
pub(crate) const OWN: char = '@';

/// The name of the method that runs a module, which each target spells in its way.
pub(crate) const FORWARD: &str = "forward";

/// True for the name of a rotary table among what methods take besides their parameters.
pub(crate) fn is_table(name: &str) -> bool {
    !["cache", "caches", "offset"].contains(&name) && !name.starts_with("E:")
}

/// Returns what a method takes besides its values as an argument of a call.
pub(crate) fn argument(name: &str, target: &Target) -> String {
    match name {
        "cache" => target.context(),
        name if name.starts_with("E:") => format!("«{name}»"),
        name => name.to_owned(),
    }
}
