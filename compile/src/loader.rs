//! The weight map of a spec as rules of a loader.

use registry::diag::Finding;
use registry::spec::{Spec, WeightRuleDecl};
use registry::syntax::{Expr, ExprKind};

use crate::python::{expression, quoted};
use crate::scalars::Scalars;
use crate::target::Target;

/// One rule in the code: a pattern of names, the names that it becomes, and the change of the tensors.
#[derive(Debug, Clone)]
pub(crate) struct RuleCode {
    pub(crate) text: String,
    pub(crate) comment: Vec<String>,
}

/// Parts of a pattern of names.
#[derive(Debug, Clone, PartialEq)]
enum NamePart {
    Text(String),
    /// A hole that stands for one segment, or for any text.
    Hole(String),
    /// One of several words.
    Words(Vec<String>),
}

fn parts(pattern: &str) -> Vec<NamePart> {
    let mut parts = Vec::new();
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '*']) {
        if at > 0 {
            parts.push(NamePart::Text(rest[..at].to_owned()));
        }
        if rest[at..].starts_with('*') {
            parts.push(NamePart::Hole("*".to_owned()));
            rest = &rest[at + 1..];
            continue;
        }
        let end = rest[at..].find('}').map_or(rest.len() - 1, |end| at + end);
        let inner = &rest[at + 1..end];
        parts.push(if inner.contains('|') {
            NamePart::Words(inner.split('|').map(str::to_owned).collect())
        } else {
            NamePart::Hole(inner.to_owned())
        });
        rest = &rest[end + 1..];
    }
    if !rest.is_empty() {
        parts.push(NamePart::Text(rest.to_owned()));
    }
    parts
}

/// Writes the rules of a spec.
pub(crate) fn rules<'s>(
    spec: &'s Spec,
    scalars: &mut Scalars<'s>,
    target: &Target,
) -> Result<Vec<RuleCode>, Finding> {
    let mut rules = Vec::new();
    for decl in &spec.weights {
        rules.push(rule(decl, scalars, target)?);
    }
    Ok(rules)
}

fn rule<'s>(
    decl: &'s WeightRuleDecl,
    scalars: &mut Scalars<'s>,
    target: &Target,
) -> Result<RuleCode, Finding> {
    let (mut disk, weight) = (parts(&decl.disk.name), parts(&decl.weight.name));
    let mut numbers = String::new();
    for part in &mut disk {
        if let NamePart::Hole(name) = part
            && let Some((number, times, plus)) = multiple(name)
        {
            *name = number;
            numbers = given_number("times", times, 1) + &given_number("plus", plus, 0);
        }
    }
    let mut holes: Vec<String> = Vec::new();
    let mut regex = String::new();
    for part in &disk {
        match part {
            NamePart::Text(text) => regex += &escaped(text),
            NamePart::Hole(name) => {
                regex += if name == "*" { "(.*)" } else { r"([^.]+)" };
                holes.push(name.clone());
            }
            NamePart::Words(words) => {
                regex += &["(", &words.join("|"), ")"].concat();
                holes.push(words.join("|"));
            }
        }
    }
    let mut names = String::new();
    let mut words: Vec<String> = Vec::new();
    let mut pairs: Option<(String, String)> = None;
    let mut taken: Vec<usize> = Vec::new();
    for part in &weight {
        match part {
            NamePart::Text(text) => names += text,
            NamePart::Hole(name) => {
                let free = (0..holes.len()).find(|n| holes[*n] == *name && !taken.contains(n));
                if let Some(n) = free {
                    taken.push(n);
                    names += &["{", &n.to_string(), "}"].concat();
                } else {
                    names += "{n}";
                }
            }
            NamePart::Words(list) => {
                let joins = decl.steps.iter().any(|step| {
                    target.steps.get(words_of(step).0).is_some_and(|step| step.starts_with("all"))
                });
                let other = disk.iter().filter(|_| !joins).find_map(|part| match part {
                    NamePart::Words(words) if words.len() == list.len() => Some(words),
                    _ => None,
                });
                if let Some(other) = other {
                    let n = holes.iter().position(|hole| *hole == other.join("|")).unwrap_or(0);
                    taken.push(n);
                    if other == list {
                        names += &["{", &n.to_string(), "}"].concat();
                    } else {
                        names += "{word}";
                        pairs = Some((other.join("|"), list.join("|")));
                    }
                } else {
                    words.clone_from(list);
                    names += "{word}";
                }
            }
        }
    }
    let gathered: Vec<usize> = (0..holes.len()).filter(|n| !taken.contains(n)).collect();
    let change = change(decl, scalars, target, !gathered.is_empty())?;
    let mut text = format!("r{}, {}", quoted(&regex).replace("\\\\", "\\"), quoted(&names));
    if !words.is_empty() {
        let list: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        text += &[", words=[", &list.join(", "), "]"].concat();
    }
    if let Some((from, to)) = pairs {
        let pairs = from.split('|').zip(to.split('|'));
        let pairs: Vec<String> =
            pairs.map(|(from, to)| format!("{}: {}", quoted(from), quoted(to))).collect();
        text += &[", renamed={", &pairs.join(", "), "}"].concat();
    }
    if !gathered.is_empty() {
        let order: Vec<String> = gathered.iter().map(ToString::to_string).collect();
        text += &[", gathered=[", &order.join(", "), "]"].concat();
    }
    text += &numbers;
    if let Some(change) = change {
        text += ", change=";
        text += &change;
    }
    Ok(RuleCode { text: format!("Rule({text})"), comment: crate::comments::above(&decl.at) })
}

/// Reads a number that is a multiple of another, and some: `2 * i + 1`.
fn multiple(hole: &str) -> Option<(String, i64, i64)> {
    let (product, plus) = match (hole.split_once(" + "), hole.split_once(" - ")) {
        (Some((product, plus)), _) => (product, plus.parse().ok()?),
        (None, Some((product, minus))) => (product, -minus.parse::<i64>().ok()?),
        (None, None) => (hole, 0),
    };
    let (times, number) = product.split_once(" * ").unwrap_or(("1", product));
    let times = times.parse().ok()?;
    ((times, plus) != (1, 0)).then(|| (number.to_owned(), times, plus))
}

fn given_number(name: &str, number: i64, usual: i64) -> String {
    if number == usual { String::new() } else { format!(", {name}={number}") }
}

fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_alphanumeric() || c == '_' { c.to_string() } else { format!("\\{c}") })
        .collect()
}

/// Writes the steps of a rule as a function of the tensors: of one tensor, or of all that are gathered.
fn change<'s>(
    decl: &'s WeightRuleDecl,
    scalars: &mut Scalars<'s>,
    target: &Target,
    gathers: bool,
) -> Result<Option<String>, Finding> {
    if decl.steps.is_empty() {
        return Ok(None);
    }
    let mut current = if gathers { "xs".to_owned() } else { "x".to_owned() };
    let mut many = gathers;
    let mut loops: Vec<String> = Vec::new();
    let variables = ["y", "z", "w", "v"];
    for step in &decl.steps {
        let (name, args) = words_of(step);
        let template = target.steps.get(name).ok_or_else(|| {
            Finding::error(&step.at, format!("the target `{}` has no step `{name}`", target.name))
        })?;
        let (kind, template) = template.split_once(": ").unwrap_or(("one", template));
        let mut context = std::collections::BTreeMap::new();
        let mut given = Vec::new();
        for arg in args {
            let arg = scalars.resolve(arg, &mut Vec::new(), 0)?;
            let list = matches!(arg.kind, ExprKind::List(_));
            given.push((expression(&arg).0.replace("«D:", "config.").replace('»', ""), list));
        }
        let text = |n: usize| given.get(n).map(|(text, _)| text.clone()).unwrap_or_default();
        if many && kind != "all" {
            let next = variables.get(loops.len()).copied().unwrap_or("u");
            loops.push(format!("for {next} in {current}"));
            next.clone_into(&mut current);
        }
        context.insert("x", minijinja::Value::from(current.as_str()));
        context.insert("a", minijinja::Value::from(text(0)));
        context.insert("b", minijinja::Value::from(text(1)));
        context.insert("given", minijinja::Value::from(given.len()));
        context
            .insert("listed", minijinja::Value::from(given.get(1).is_some_and(|(_, list)| *list)));
        let rendered = minijinja::Environment::new().render_str(template, &context);
        current = rendered.map_err(|error| {
            Finding::error(&step.at, format!("the template of the step `{name}` fails: {error}"))
        })?;
        many = kind == "many";
    }
    let list = match (many, loops.is_empty()) {
        (true, true) => current,
        (false, true) => format!("[{current}]"),
        (true, false) => {
            let next = variables.get(loops.len()).copied().unwrap_or("u");
            format!("[{next} {} for {next} in {current}]", loops.join(" "))
        }
        (false, false) => format!("[{current} {}]", loops.join(" ")),
    };
    Ok(Some(format!("lambda {}: {list}", if gathers { "xs" } else { "x" })))
}

fn words_of(step: &Expr) -> (&str, Vec<&Expr>) {
    match &step.kind {
        ExprKind::Call(name, args) => (&name.name, args.iter().map(|arg| &arg.value).collect()),
        ExprKind::Path(names) => {
            (names.first().map(|name| name.name.as_str()).unwrap_or_default(), Vec::new())
        }
        _ => ("", Vec::new()),
    }
}
