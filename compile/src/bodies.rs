//! Changes of written classes and methods as a whole, and what they read.

use std::collections::{BTreeMap, BTreeSet};

use registry::diag::Finding;

use crate::classes::Class;
use crate::places::{NameScope, Names, resolved_lines};
use crate::python::expression;
use crate::scalars::LayerSymbols;
use crate::target::Target;
use crate::value::{CodeLine, Method, assigned, each_text, parameter, segments};

/// Names for places where no class has methods yet.
#[derive(Default)]
pub(crate) struct NoMethods {
    called: BTreeMap<usize, String>,
    gapped: BTreeSet<String>,
}

impl NoMethods {
    pub(crate) fn names(&self) -> Names<'_> {
        Names::new(&[], &self.called, &self.gapped)
    }
}

/// Returns the dims that classes read.
pub(crate) fn dims_of(classes: &[Class]) -> BTreeSet<String> {
    let mut dims = BTreeSet::new();
    let mut visit = |text: &str| {
        for part in text.split("config.").skip(1) {
            let name: String =
                part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            dims.insert(name);
        }
    };
    for class in classes {
        let bodies = class.methods.iter().map(|method| &method.body);
        for lines in std::iter::once(&class.init).chain(bodies) {
            each_text(lines, &mut visit);
        }
    }
    dims
}

pub(crate) fn rename_made(class: &mut Class, from: &str, to: &str) {
    for line in &mut class.init {
        match line {
            CodeLine::Text(text) => *text = text.replace(from, to),
            CodeLine::If(_, yes, no) => {
                for line in yes.iter_mut().chain(no) {
                    if let CodeLine::Text(text) = line {
                        *text = text.replace(from, to);
                    }
                }
            }
            CodeLine::For(..) => {}
        }
    }
}

/// Returns the paths whose children have numbers with gaps between them, for a target that has no word for what fills a gap.
pub(crate) fn gapped(methods: &[Method], target: &Target) -> BTreeSet<String> {
    if target.words.contains_key("gap") {
        return BTreeSet::new();
    }
    let mut numbers: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let uses = methods.iter().flat_map(|method| method.uses.iter().map(|one| one.path.as_str()));
    let owners = methods.iter().filter_map(|method| method.owner.as_deref());
    for path in uses.chain(owners) {
        let all = segments(path);
        for (n, segment) in all.iter().enumerate() {
            if let Ok(number) = segment.parse() {
                numbers.entry(all[..n].join(".")).or_default().insert(number);
            }
        }
    }
    let gaps = |found: &BTreeSet<usize>| found.iter().enumerate().any(|(n, number)| n != *number);
    numbers.into_iter().filter(|(_, found)| gaps(found)).map(|(path, _)| path).collect()
}

/// Where a spec adds the bias of a module by itself, the module multiplies alone.
pub(crate) fn biases_apart(methods: &mut [Method], target: &Target) {
    let parameter = target.word("parameter");
    let apart: BTreeSet<String> = methods
        .iter()
        .flat_map(|method| &method.uses)
        .filter(|one| one.made.starts_with(&parameter))
        .filter_map(|one| one.path.strip_suffix(".bias").map(str::to_owned))
        .collect();
    for method in methods.iter_mut() {
        for path in &apart {
            multiplied(&mut method.body, path, target);
        }
    }
}

fn multiplied(lines: &mut [CodeLine], path: &str, target: &Target) {
    let call = format!("«W:{path}»(");
    let result = target.spelled_or("result", &[], "");
    for line in lines {
        match line {
            CodeLine::Text(text) => {
                while let Some(start) = text.find(&call) {
                    let inside = start + call.len();
                    let mut depth = 1;
                    let end = text[inside..].char_indices().find_map(|(at, letter)| {
                        depth += match letter {
                            '(' => 1,
                            ')' => -1,
                            _ => 0,
                        };
                        (depth == 0).then_some(inside + at)
                    });
                    let Some(end) = end else { break };
                    let given = text[inside..end].to_owned();
                    let values = [("x", given.as_str()), ("W", &format!("«W:{path}»"))];
                    let product = target.spelled("product", &values);
                    let behind = text[end + 1..].strip_prefix(&result);
                    let end = behind.map_or(end + 1, |behind| text.len() - behind.len());
                    text.replace_range(start..end, &product);
                }
            }
            CodeLine::If(_, yes, no) => {
                multiplied(yes, path, target);
                multiplied(no, path, target);
            }
            CodeLine::For(_, body) => multiplied(body, path, target),
        }
    }
}

/// Computes the scalars of a layer at the beginning of its constructor, from a number.
pub(crate) fn layer_head(
    class: &mut Class,
    scalars: &LayerSymbols,
    number: &str,
) -> Result<(), Finding> {
    let mut needed: BTreeSet<String> = class.params.iter().cloned().collect();
    for (name, expr) in scalars.each.iter().rev() {
        if needed.contains(name) && name != number {
            crate::symbol::names(expr, &mut |name| {
                needed.extend(name.strip_prefix("E:").map(str::to_owned));
            });
        }
    }
    if number != "i" && needed.contains("i") {
        let message = "modules that layers share have sizes that follow from the layer";
        return Err(Finding::unplaced(message));
    }
    let empty = NoMethods::default();
    let mut names = empty.names();
    let mut lines = Vec::new();
    for (name, expr) in
        scalars.each.iter().filter(|(name, _)| needed.contains(*name) && *name != number)
    {
        let value = expression(expr).0.replace("(config, ", "(config.raw, ");
        lines.push(assigned(&parameter(name), &value));
    }
    let mut init = resolved_lines(&lines, NameScope::Init, "", &mut names);
    init.append(&mut class.init);
    class.init = init;
    class.params = if needed.is_empty() { Vec::new() } else { vec![number.to_owned()] };
    Ok(())
}
