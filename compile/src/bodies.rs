//! Changes of written classes and methods as a whole, and what they read.

use std::collections::{BTreeMap, BTreeSet};

use registry::diag::Finding;

use crate::classes::Class;
use crate::places::{NameScope, Names, resolved_lines};
use crate::python::expression;
use crate::scalars::LayerSymbols;
use crate::target::Target;
use crate::value::{CodeLine, Method, OWN, assigned, each_text, parameter, segments};
use crate::words::mentions;

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

/// Names that lines assign.
fn assigned_names(lines: &[CodeLine]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    each_text(lines, &mut |text| {
        if let Some((left, _)) = text.split_once(" = ") {
            names.extend(left.split(", ").map(str::to_owned));
        }
    });
    names
}

/// True if a method or one that it calls keeps a state in a module of its own.
fn keeps_state(method: &Method, methods: &[Method]) -> bool {
    method.uses.iter().any(|one| segments(&one.path).iter().any(|name| name.starts_with(OWN)))
        || method.calls.iter().any(|call| keeps_state(&methods[call.method], methods))
}

/// Adds a line behind the loop over layers that keeps the rows for which results are wanted, if the target has a word for it and nothing
/// behind the loop reads other rows.
pub(crate) fn keep_rows(methods: &mut [Method], target: &Target) {
    let Some(number) = methods.iter().rposition(|method| method.has_layers) else { return };
    let method = &methods[number];
    let is_loop = |line: &CodeLine| matches!(line, CodeLine::For(..));
    let Some(at) = method.body.iter().position(is_loop) else { return };
    let [CodeLine::For(_, inner), behind @ ..] = &method.body[at..] else { return };
    let carried = assigned_names(inner);
    let mut earlier = assigned_names(&method.body[..at]);
    earlier.extend(method.params.iter().map(|(name, _)| name.clone()));
    let x = parameter("x");
    earlier.remove(&x);
    let mut reads_earlier = false;
    each_text(behind, &mut |text| {
        reads_earlier |= earlier.iter().any(|name| mentions(text, name));
    });
    let calls = method.calls.iter().any(|call| keeps_state(&methods[call.method], methods));
    if carried != BTreeSet::from([x.clone()]) || reads_earlier || calls {
        return;
    }
    let line = target.spelled_or("behind_layers", &[("x", &x)], "");
    if !line.is_empty() {
        methods[number].body.insert(at + 1, CodeLine::Text(line));
    }
}

/// Marks the result of the trunk, from which the head computes, if the target has a word for it.
pub(crate) fn trunk_result(model: &mut Class, target: &Target) {
    let Some(CodeLine::Text(line)) =
        model.methods.first_mut().and_then(|method| method.body.first_mut())
    else {
        return;
    };
    if let Some((name, value)) = line.split_once(" = ") {
        *line = format!("{name} = {}", target.spelled_or("trunk", &[("x", value)], value));
    }
}
