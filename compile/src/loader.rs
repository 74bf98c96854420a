//! The weight map of a spec as rules of a loader.

use registry::diag::Finding;
use registry::spec::{Spec, WeightRuleDecl};
use registry::syntax::{Expr, ExprKind};
use registry::weight_map::{Pattern, PatternPart};

use crate::python::{expression, quoted};
use crate::scalars::Scalars;
use crate::target::Target;

/// One rule in the code: a pattern of names, the names that it becomes, and the change of the tensors.
#[derive(Debug, Clone)]
pub(crate) struct RuleCode {
    pub(crate) text: String,
    pub(crate) comment: Vec<String>,
    /// Names on disk, and those of the weights, as the spec has them.
    names: [String; 2],
    /// A regular expression and the text that replaces what it finds, if the rule renames tensors one by one.
    pub(crate) renames: Option<[String; 2]>,
}

impl RuleCode {
    /// True if the rule only puts the name of a module in front.
    pub(crate) fn only_adds(&self, module: &str) -> bool {
        let [disk, weight] = &self.names;
        self.renames.is_some()
            && weight.strip_prefix(module).and_then(|name| name.strip_prefix('.')) == Some(disk)
    }

    /// The module in which the weights lie, if the rule names it.
    pub(crate) fn module(&self) -> Option<&str> {
        let module = self.names[1].split('.').next()?;
        module.chars().all(crate::words::is_of_name).then_some(module)
    }
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

/// Names on disk that a rule is for.
#[derive(Default)]
struct DiskNames {
    regex: String,
    /// Holes by name, in the order of the groups of the regular expression.
    holes: Vec<String>,
    /// Arguments that say how the number of a layer follows from the number on disk.
    numbers: String,
}

impl DiskNames {
    fn new(pattern: &Pattern) -> Self {
        let mut names = Self::default();
        for piece in pattern.pieces() {
            match piece {
                PatternPart::Text(text) => names.regex += &escaped(text),
                PatternPart::Any(_) => names.regex += "(.*)",
                PatternPart::Word(_) => names.regex += r"([^.]+)",
                PatternPart::Choice(words) => names.regex += &["(", words, ")"].concat(),
                PatternPart::Number(number) => {
                    names.regex += r"([^.]+)";
                    names.numbers = given_number("times", number.factor.into(), 1)
                        + &given_number("plus", number.offset.into(), 0);
                }
            }
            names.holes.extend(piece.hole());
        }
        names
    }
}

/// Names of weights that the tensors of a rule become.
#[derive(Default)]
struct WeightNames {
    format: String,
    /// Words of a choice that the parts of one tensor get in turn.
    words: Vec<String>,
    /// Pairs of words, if those of the weights differ from those on disk.
    renamed: Vec<String>,
    /// Places of the holes on disk that stand in the format.
    taken: Vec<usize>,
}

impl WeightNames {
    /// Writes the names; `joins` says that a step takes all tensors at once.
    fn new(pattern: &Pattern, disk: &DiskNames, joins: bool) -> Self {
        let mut names = Self::default();
        for piece in pattern.pieces() {
            match piece {
                PatternPart::Text(text) => names.format += text,
                PatternPart::Choice(choice) => names.choice(choice, disk, joins),
                _ => {
                    let hole = piece.hole();
                    let is_free = |n: &usize| {
                        Some(&disk.holes[*n]) == hole.as_ref() && !names.taken.contains(n)
                    };
                    match (0..disk.holes.len()).find(is_free) {
                        Some(n) => names.take(n),
                        None => names.format += "{n}",
                    }
                }
            }
        }
        names
    }

    fn take(&mut self, hole: usize) {
        self.taken.push(hole);
        self.format += &["{", &hole.to_string(), "}"].concat();
    }

    fn choice(&mut self, choice: &str, disk: &DiskNames, joins: bool) {
        let count = choice.split('|').count();
        let is_like = |hole: &String| hole.contains('|') && hole.split('|').count() == count;
        match disk.holes.iter().position(is_like).filter(|_| !joins) {
            Some(n) if disk.holes[n] == choice => self.take(n),
            Some(n) => {
                self.taken.push(n);
                self.format += "{word}";
                let pairs = disk.holes[n].split('|').zip(choice.split('|'));
                let pairs = pairs.map(|(from, to)| format!("{}: {}", quoted(from), quoted(to)));
                self.renamed = pairs.collect();
            }
            None => {
                self.format += "{word}";
                self.words = choice.split('|').map(quoted).collect();
            }
        }
    }
}

fn rule<'s>(
    decl: &'s WeightRuleDecl,
    scalars: &mut Scalars<'s>,
    target: &Target,
) -> Result<RuleCode, Finding> {
    let disk = DiskNames::new(&Pattern { text: decl.disk.name.clone() });
    let joins = decl
        .steps
        .iter()
        .any(|step| target.steps.get(words_of(step).0).is_some_and(|step| step.starts_with("all")));
    let weight = WeightNames::new(&Pattern { text: decl.weight.name.clone() }, &disk, joins);
    let gathered = (0..disk.holes.len()).filter(|n| !weight.taken.contains(n));
    let gathered: Vec<String> = gathered.map(|n| n.to_string()).collect();
    let change = change(decl, scalars, target, !gathered.is_empty())?;
    let regex = quoted(&disk.regex).replace("\\\\", "\\");
    let mut text = format!("r{regex}, {}", quoted(&weight.format));
    for (name, items, [open, close]) in [
        ("words", &weight.words, ["[", "]"]),
        ("renamed", &weight.renamed, ["{", "}"]),
        ("gathered", &gathered, ["[", "]"]),
    ] {
        if !items.is_empty() {
            text += &[", ", name, "=", open, &items.join(", "), close].concat();
        }
    }
    text += &disk.numbers;
    if let Some(change) = change {
        text += ", change=";
        text += &change;
    }
    let is_plain = text == format!("r{regex}, {}", quoted(&weight.format));
    let replaced = (0..disk.holes.len()).fold(weight.format.clone(), |text, hole| {
        text.replace(&format!("{{{hole}}}"), &format!("\\{}", hole + 1))
    });
    Ok(RuleCode {
        text: format!("Rule({text})"),
        comment: crate::comments::above(&decl.at),
        names: [decl.disk.name.clone(), decl.weight.name.clone()],
        renames: is_plain.then_some([disk.regex, replaced]),
    })
}

fn given_number(name: &str, number: i64, usual: i64) -> String {
    if number == usual { String::new() } else { format!(", {name}={number}") }
}

fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| if crate::words::is_of_name(c) { c.to_string() } else { format!("\\{c}") })
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
