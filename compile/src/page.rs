//! The text of a file: its template filled, and laid out.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use indexmap::IndexSet;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};
use registry::diag::Finding;
use registry::spec::Spec;
use registry::syntax::Ident;
use registry::wrapper::PREFIXES;

use crate::arguments::native;
use crate::base::is_part;
use crate::bodies::NoMethods;
use crate::classes::Class;
use crate::cpp_types::compared;
use crate::file::{Code, CodeWriter};
use crate::helpers::{ArgumentPresence, REFUSAL, variant_name};
use crate::joined::JoinedMatrix;
use crate::loader::RuleCode;
use crate::places::{NameScope, resolved_lines};
use crate::python::{expression, quoted};
use crate::scalars::of_scalar;
use crate::states::StateCode;
use crate::target::{Layout, Target};
use crate::value::{CodeLine, each_text, variable};
use crate::words::mentions;
use crate::{comments, cpp, cpp_layout, layout, loader, settings};

impl CodeWriter<'_, '_> {
    /// Fills the template of the file.
    pub(crate) fn text(
        mut self,
        family: &str,
        classes: &[Class],
        last: &Class,
        used: &BTreeSet<String>,
        tables: &BTreeSet<String>,
        joined: &[JoinedMatrix],
    ) -> Result<Code, Finding> {
        let spec = self.walk.spec;
        let target = self.walk.target;
        let states = self.states()?;
        let mut used = used.clone();
        for state in &states {
            state.note_dims(&mut used);
        }
        let (settings, _) =
            settings::written(spec, &mut self.walk.scalars, &used, tables, self.words)?;
        let empty = NoMethods::default();
        let mut names = empty.names();
        let settings: Vec<CodeLine> = settings.iter().map(own_dims).collect();
        let settings = resolved_lines(&settings, NameScope::Init, "", &mut names);
        let rules = loader::rules(spec, &mut self.walk.scalars, target)?;
        let kept: Vec<String> = spec
            .kept
            .f32
            .iter()
            .map(|one| one.name.replace('.', "\\.").replace('*', ".*"))
            .collect();
        let ignored: Vec<String> = spec.ignore.weights.iter().map(|one| one.name.clone()).collect();
        let mut helpers = self.helpers()?;
        let width = target.width;
        keep_used(&mut helpers, &bodies_of(classes.iter().chain([last])));
        let names_of_helpers = helpers.iter().map(|(name, _)| name.clone()).collect();
        let helpers: Vec<String> = helpers.into_iter().map(|(_, text)| text).collect();
        let numbers = self.walk.layers.numbers();
        let mut written = Vec::new();
        let mut known = cpp::CppMembers::new();
        let bodies = bodies_of(classes.iter().chain([last]));
        let cpp_settings = self.cpp_settings(&settings, &bodies, &mut known)?;
        for class in classes {
            written.push(class_value(class, &numbers, target, &mut known)?);
        }
        let mut setting_lines = Vec::new();
        layout::lines(&settings, 2, width, &mut setting_lines);
        let about = comments::first(&spec.source.text);
        let root = spec
            .layers
            .as_ref()
            .and_then(|layers| layers.prefix.name.split('.').next().map(str::to_owned));
        let mut needed_rules: Vec<&RuleCode> = rules.iter().collect();
        needed_rules.retain(|rule| is_needed(rule, root.as_deref().unwrap_or_default(), last));
        let renames: Option<Vec<Vec<String>>> =
            needed_rules.iter().map(|rule| Some(rule.renames.as_ref()?.to_vec())).collect();
        let context = context! {
            name => spec.name.name.clone(),
            value => target.word("value"),
            prefixes => PREFIXES.map(|(outer, inner)| vec![outer, inner]).to_vec(),
            family => family.to_owned(),
            about => layout::wrapped(&about.join(" "), width),
            settings => setting_lines,
            cpp => cpp_settings,
            layer_classes => self.walk.layers.classes.len(),
            defaults => default_lines(spec, width),
            inside => holds_encoders(spec),
            helpers,
            classes => written,
            model => class_value(last, &numbers, target, &mut known)?,
            joined => joined.iter().map(JoinedMatrix::value).collect::<Vec<_>>(),
            states => states.iter().map(StateCode::value).collect::<Vec<_>>(),
            layers => self.walk.layers.list.clone(),
            rules => self.rule_texts(rules.iter()),
            needed_rules => self.rule_texts(needed_rules.iter().copied()),
            renames,
            kept,
            ignored,
            root,
            architectures => self.architectures(),
            model_type => self.checkpoint.model_type.clone(),
            tables => tables.iter().cloned().collect::<Vec<_>>(),
            words => self.words.iter().cloned().collect::<Vec<_>>(),
            ties => self.walk.ties.iter().map(|tie| {
                let condition = tie.condition.as_ref();
                let condition = condition.map(|one| expression(one).0.replace("«D:", "self.config.").replace('»', ""));
                context! { weight => tie.weight.clone(), other => tie.other.clone(), condition }
            }).collect::<Vec<_>>(),
        };
        let text = self.rendered("file", &context)?;
        let ops = self.walk.used.clone();
        let rounds = target.ops.iter().filter(|(name, _)| ops.contains(*name));
        let rounds =
            rounds.filter_map(|(name, op)| Some((name.clone(), op.rounds.clone()?))).collect();
        let name = self.path(&target.file)?;
        let text = match target.layout {
            Layout::Python => tidy(&without_unused(&long_heads(&text, width))),
            Layout::Cpp => cpp_layout::broken(&text, width),
        };
        let extra_files = self.extra_files(&context)?;
        Ok(Code { name, text, extra_files, ops, helpers: names_of_helpers, rounds })
    }

    /// Returns the settings as a struct of C++, for a target that has such.
    fn cpp_settings(
        &self,
        settings: &[CodeLine],
        bodies: &str,
        known: &mut cpp::CppMembers,
    ) -> Result<Option<minijinja::Value>, Finding> {
        let target = self.walk.target;
        if target.layout == Layout::Python {
            return Ok(None);
        }
        let mut lines = Vec::new();
        each_text(settings, &mut |text| lines.push(text.to_owned()));
        let uses = cpp::SettingUses {
            sizes: self.walk.sizes.iter().map(|name| variable(name)).collect(),
            compared: compared(lines.iter().map(String::as_str).chain(bodies.lines())),
        };
        let code = cpp::settings(settings, &uses, known);
        cpp_value(code, "Config", target).map(Some)
    }

    /// Fills the templates of the other files, and copies those that are no templates. Python is laid out like the file of the model.
    fn extra_files(&self, context: &minijinja::Value) -> Result<Vec<(String, String)>, Finding> {
        let mut files = Vec::new();
        for (path, template) in &self.walk.target.extra_files {
            let path = self.path(path)?;
            if let Some(text) = self.walk.target.files.get(template) {
                files.push((path, text.clone()));
                continue;
            }
            let text = self.rendered(template, context)?;
            let is_python = Path::new(&path).extension().is_some_and(|word| word == "py");
            let text = if is_python {
                tidy(&without_unused(&text))
            } else {
                text.trim().to_owned() + "\n"
            };
            files.push((path, text));
        }
        Ok(files)
    }

    /// Fills a path of the sheet, which must lie below the folder that is written.
    fn path(&self, template: &str) -> Result<String, Finding> {
        let path = template.replace("{name}", &self.walk.spec.name.name);
        let mut parts = Path::new(&path).components();
        if path.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
            return Err(Finding::unplaced(format!(
                "the target `{}` writes `{path}`, which is no path below a folder",
                self.walk.target.name
            )));
        }
        Ok(path)
    }

    /// Returns the classes of checkpoints that the code is for.
    fn architectures(&self) -> Vec<String> {
        let matches = self.walk.spec.matches.iter().map(|class| class.name.clone());
        let own = self.checkpoint.architecture.iter().cloned();
        matches.chain(own).collect::<IndexSet<_>>().into_iter().collect()
    }

    /// Lays out rules that rename and reshape weights.
    fn rule_texts<'r>(&self, rules: impl Iterator<Item = &'r RuleCode>) -> Vec<String> {
        let mut rule_lines = Vec::new();
        for rule in rules {
            for comment in &rule.comment {
                rule_lines.push(CodeLine::Text(format!("# {comment}")));
            }
            rule_lines.push(CodeLine::Text(rule.text.clone()));
        }
        let mut rule_texts = Vec::new();
        layout::lines(&rule_lines, 3, self.walk.target.width - 1, &mut rule_texts);
        for line in &mut rule_texts {
            if line.ends_with(')')
                && (line.starts_with("            Rule(") || line == "            )")
            {
                line.push(',');
            }
        }
        rule_texts
    }

    /// Renders the helpers that the file uses.
    fn helpers(&self) -> Result<Vec<(String, String)>, Finding> {
        let mut texts: Vec<(String, String)> = Vec::new();
        for (helper, variants) in self.walk.helpers.used.iter().rev() {
            for (place, variant) in variants.iter().enumerate() {
                let all = self.walk.ops.declared().flat_map(|op| op.signature().params.clone());
                let all = all.map(|param| (param.name.to_owned(), "never"));
                let word = |given: &ArgumentPresence| match (given.some, given.null) {
                    (true, true) => "some",
                    (true, false) => "always",
                    _ => "never",
                };
                let given = variant.given.iter().map(|(name, given)| (name.clone(), word(given)));
                let words: Vec<String> = self.words.iter().cloned().collect();
                let values =
                    variant.values.iter().map(|(name, value)| (name.clone(), native(value)));
                let own = [
                    ("name".to_owned(), minijinja::Value::from(variant_name(helper, place))),
                    ("given".to_owned(), minijinja::Value::from_pairs(all.chain(given))),
                    ("words".to_owned(), minijinja::Value::from(words)),
                    ("variants".to_owned(), minijinja::Value::from(variants.len())),
                ];
                let context = minijinja::Value::from_pairs(values.chain(own));
                let text = self.rendered(&format!("helpers/{helper}"), &context)?;
                let text = text.trim().to_owned();
                if !text.is_empty() && !texts.iter().any(|(_, known)| *known == text) {
                    texts.push((variant_name(helper, place), text));
                }
            }
        }
        texts.reverse();
        Ok(texts)
    }

    fn rendered(&self, name: &str, context: &minijinja::Value) -> Result<String, Finding> {
        let target = self.walk.target;
        let Some(template) = target.templates.get(name) else {
            return Err(Finding::unplaced(format!(
                "the target `{}` has no template `{name}`",
                target.name
            )));
        };
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
        let syntax = syntax.build();
        environment.set_syntax(syntax.expect("the usual delimiters"));
        environment.add_function("refuse", crate::helpers::refuse);
        for (part, text) in target.templates.iter().filter(|(part, _)| is_part(part)) {
            environment.add_template(part, text).map_err(|error| {
                let message = format!("`{part}` of `{}` fails: {error:#}", target.name);
                Finding::unplaced(message)
            })?;
        }
        let text = environment.render_str(template, context);
        text.map_err(|error| {
            if let Some(form) = refused_form(&error) {
                let message = format!("the target `{}` has no code for {form}", target.name);
                return Finding::unplaced(message);
            }
            Finding::unplaced(format!(
                "the template `{name}` of `{}` fails: {error:#}",
                target.name
            ))
        })
    }
}

/// Returns what a template has no code for, if it says so itself or in a part that it includes.
fn refused_form(error: &minijinja::Error) -> Option<&str> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        let template = cause.downcast_ref::<minijinja::Error>()?;
        if template.kind() == REFUSAL {
            return template.detail();
        }
        source = cause.source();
    }
    None
}

/// True if the model has the weights of a rule, which does more than the loader does by itself: it also looks below the module `root`.
fn is_needed(rule: &RuleCode, root: &str, model: &Class) -> bool {
    let text = bodies_of(std::iter::once(model));
    let module = rule.module().map(|module| format!("self.{module} ="));
    !rule.only_adds(root) && module.is_none_or(|module| text.contains(&module))
}

/// True if a config of the family may have the text model in an object of its own, beside encoders.
fn holds_encoders(spec: &Spec) -> bool {
    let several = |name: &Ident| name.name.ends_with("ForConditionalGeneration");
    !spec.inside.is_empty() || !spec.defaults.is_empty() || spec.matches.iter().any(several)
}

/// Writes the values of keys that a config may lack.
fn default_lines(spec: &Spec, width: usize) -> Vec<String> {
    let defaults: Vec<String> = spec
        .defaults
        .values()
        .filter_map(|entry| Some((entry.name.name.clone(), crate::symbol::constant(&entry.value)?)))
        .map(|(key, value)| {
            let at = &spec.defaults[&key].value;
            format!("{}: {}", quoted(&key), expression(&of_scalar(&value, at)).0)
        })
        .collect();
    let mut default_lines = Vec::new();
    if !defaults.is_empty() {
        let text = format!("DEFAULTS = {{{}}}", defaults.join(", "));
        layout::statement(&text, 0, width, &mut default_lines);
    }
    default_lines
}

/// Returns the texts of all lines of classes.
fn bodies_of<'c>(classes: impl Iterator<Item = &'c Class>) -> String {
    let mut bodies = String::new();
    for class in classes {
        let methods = class.methods.iter().map(|method| &method.body);
        for lines in std::iter::once(&class.init).chain(methods) {
            each_text(lines, &mut |text| {
                bodies += text;
                bodies.push('\n');
            });
        }
    }
    bodies
}

/// Writes dims as attributes of the settings themselves.
fn own_dims(line: &CodeLine) -> CodeLine {
    let own = |text: &String| text.replace("«D:", "self.").replace('»', "");
    match line {
        CodeLine::Text(text) => CodeLine::Text(own(text)),
        CodeLine::If(condition, yes, no) => CodeLine::If(
            own(condition),
            yes.iter().map(own_dims).collect(),
            no.iter().map(own_dims).collect(),
        ),
        CodeLine::For(head, body) => CodeLine::For(own(head), body.iter().map(own_dims).collect()),
    }
}

/// Returns a class for templates.
fn class_value(
    class: &Class,
    numbers: &[String],
    target: &Target,
    known: &mut cpp::CppMembers,
) -> Result<minijinja::Value, Finding> {
    let width = target.width;
    let mut init = Vec::new();
    layout::lines(&class.init, 2, width, &mut init);
    let params = class.params.iter().map(|name| {
        let ty = if numbers.contains(name) { "int" } else { "Any" };
        format!(", {}: {ty}", crate::value::parameter(name))
    });
    let mut head = Vec::new();
    let params: String = params.collect();
    let settings = target.word("settings") + target.path_param();
    let text = format!("def __init__(self, config: {settings}{params}) -> None:");
    layout::statement(&text, 1, width, &mut head);
    let methods: Vec<minijinja::Value> = class
        .methods
        .iter()
        .map(|method| {
            let params = method.params.iter().map(|(name, ty)| format!(", {name}: {ty}"));
            let returns = match method.results {
                1 => target.word("value"),
                n => format!("tuple[{}]", vec![target.word("value"); n].join(", ")),
            };
            let text = format!(
                "def {}(self{}) -> {returns}:",
                method.name,
                params.collect::<String>()
            );
            let mut head = Vec::new();
            layout::statement(&text, 1, width, &mut head);
            let mut body = Vec::new();
            layout::lines(&method.body, 2, width, &mut body);
            context! { name => method.name.clone(), head, about => docstring(&method.about, 2, width), body }
        })
        .collect();
    let about = docstring(&class.about, 1, width);
    let mut kept = Vec::new();
    if let Some(states) = &class.kept {
        let made = states.made.join(", ");
        let all = states.made.len() + usize::from(states.slots > 0);
        let slots = states.slots.to_string();
        let text = [("made", made.as_str()), ("slots", &slots), ("all", &all.to_string())];
        layout::statement(&target.spelled("kept", &text), 2, width, &mut kept);
    }
    let cpp = match target.layout {
        Layout::Python => None,
        Layout::Cpp => Some(cpp_value(cpp::class(class, known), &class.name, target)?),
    };
    let params = class.params.iter().map(|name| crate::value::parameter(name)).collect::<Vec<_>>();
    Ok(context! { name => class.name.clone(), about, head, init, methods, kept, cpp, params })
}

/// Returns a struct of C++ for templates.
fn cpp_value(
    written: Result<cpp::CppClass, Vec<String>>,
    name: &str,
    target: &Target,
) -> Result<minijinja::Value, Finding> {
    let class = written.map_err(|codes| {
        let codes = codes.join("`, `");
        Finding::unplaced(format!(
            "the target `{}` has no C++ for this code of `{name}`: `{codes}`",
            target.name
        ))
        .help("correct the templates and words of the target that write it")
    })?;
    let methods: Vec<minijinja::Value> = class
        .methods
        .into_iter()
        .map(|method| {
            let cpp::CppMethod { name, returns, params, body } = method;
            context! { name, returns, params, body }
        })
        .collect();
    let cpp::CppClass { members, params, init, .. } = class;
    Ok(context! { members, params, init, methods })
}

/// Lays a comment out as a docstring.
fn docstring(about: &[String], depth: usize, width: usize) -> Vec<String> {
    let text = about.join(" ");
    if text.is_empty() {
        return Vec::new();
    }
    let indent = "    ".repeat(depth);
    let one = format!("{indent}\"\"\"{text}\"\"\"");
    if one.chars().count() <= width {
        return vec![one];
    }
    let wrapped = layout::wrapped(&text, width - indent.len() - 3);
    if let [only] = wrapped.as_slice() {
        return vec![format!("{indent}\"\"\"{only}\"\"\"")];
    }
    let mut lines = wrapped.into_iter();
    let mut all = vec![format!("{indent}\"\"\"{}", lines.next().unwrap_or_default())];
    all.extend(lines.map(|line| format!("{indent}{line}")));
    all.push(format!("{indent}\"\"\""));
    all
}

/// Keeps the helpers that a text uses, and those that these use.
fn keep_used(helpers: &mut Vec<(String, String)>, bodies: &str) {
    let names: Vec<String> = helpers.iter().map(|(name, _)| name.clone()).collect();
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut texts = vec![bodies.to_owned()];
    while let Some(text) = texts.pop() {
        for name in &names {
            if !used.contains(name) && mentions(&text, name) {
                used.insert(name.clone());
                let own = helpers.iter().filter(|(other, _)| other == name);
                texts.extend(own.map(|(_, text)| text.clone()));
            }
        }
    }
    helpers.retain(|(name, _)| used.contains(name));
}

/// Lays out heads of functions that are too long for a line.
fn long_heads(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with("def ") && line.ends_with(':') {
            layout::statement(line, 0, width, &mut lines);
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

/// Removes imports of names that the text does not use.
fn without_unused(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let (head, names) = match line.split_once(" import ") {
            Some((head, names)) if head.starts_with("from ") && names != "(" => {
                (format!("{head} import "), names)
            }
            _ => {
                if let Some(names) = line.strip_prefix("import ") {
                    ("import ".to_owned(), names)
                } else {
                    lines.push(line.to_owned());
                    continue;
                }
            }
        };
        let others: String =
            text.lines().filter(|other| *other != line).flat_map(|other| [other, "\n"]).collect();
        let is_used = |name: &&str| {
            let called = name.rsplit(" as ").next().unwrap_or(name);
            *name == "torch" || mentions(&others, called)
        };
        let used: Vec<&str> = names.split(", ").filter(is_used).collect();
        if !used.is_empty() {
            lines.push(format!("{head}{}", used.join(", ")));
        }
    }
    lines.join("\n")
}

/// Removes blank lines that a file should not have.
fn tidy(text: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut blank = 0;
    for line in text.lines() {
        let line = line.trim_end();
        if line.is_empty() {
            blank += 1;
            continue;
        }
        let top = !line.starts_with([' ', ')', ']', '}']);
        let starts =
            line.starts_with("class ") || line.starts_with("def ") || line.starts_with('@');
        let after_decorator = out.last().is_some_and(|last| last.starts_with('@'));
        let after_block = out.last().is_some_and(|last| last.starts_with(' '));
        let wanted = if out.is_empty() || after_decorator {
            0
        } else if starts || (top && after_block && blank > 0) {
            2
        } else {
            blank.min(1)
        };
        out.extend(std::iter::repeat_n("", wanted));
        out.push(line);
        blank = 0;
    }
    out.join("\n") + "\n"
}
