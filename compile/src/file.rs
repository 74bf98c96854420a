//! From a spec to the text of a file.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};
use registry::diag::Finding;
use registry::ops::OpSet;
use registry::spec::{DimSource, Spec};
use registry::syntax::{Expr, ExprKind};

use crate::arguments::native;
use crate::classes::{Class, Classes, Wanted, camel};
use crate::helpers::{Given, Helpers, variant_name};
use crate::layers::{LayerClasses, is_item};
use crate::python::{expression, quoted};
use crate::scalars::{LayerScalars, Scalars, of_scalar};
use crate::settings::{self, TableCode};
use crate::target::Target;
use crate::value::{Bound, Line, Method, parent, segments};
use crate::walk::{Locals, Walk};
use crate::{comments, layout, loader, trunk};

/// A written file.
#[derive(Debug, Clone)]
pub struct Code {
    /// The name of the file.
    pub name: String,
    /// The text.
    pub text: String,
    /// Ops that it uses.
    pub ops: BTreeSet<String>,
    /// Helpers that it has.
    pub helpers: BTreeSet<String>,
    /// Ops of it whose rounding differs in the target, and how.
    pub rounds: Vec<(String, String)>,
}

/// Writes a spec for a target, or returns everything that the target lacks. `words` are texts of configs: of schemes and
/// activations that are chosen by name, the file has those.
pub fn compile(
    spec: &Spec,
    ops: &OpSet,
    target: &Target,
    words: &BTreeSet<String>,
) -> Result<Code, Vec<Finding>> {
    let mut walk = Walk {
        spec,
        ops,
        target,
        scalars: Scalars::new(spec),
        layer: LayerScalars::default(),
        prefix: None,
        methods: Vec::new(),
        known: BTreeMap::new(),
        frames: Vec::new(),
        helpers: Helpers::default(),
        ties: Vec::new(),
        findings: Vec::new(),
        stack: Vec::new(),
        layers: LayerClasses::default(),
        trunk: None,
        used: BTreeSet::new(),
    };
    let root = match root(&mut walk) {
        Ok(root) => root,
        Err(finding) => {
            walk.fail(finding);
            return Err(walk.findings);
        }
    };
    if !walk.findings.is_empty() {
        return Err(walk.findings);
    }
    let mut words = words.clone();
    for source in spec.dims.values().flat_map(|dim| &dim.sources) {
        if let DimSource::Compute(expr) = source {
            texts(expr, &mut words);
        }
    }
    Writer { walk, root, words: &words }.written().map_err(|finding| vec![finding])
}

/// Collects the texts of an expression.
fn texts(expr: &Expr, words: &mut BTreeSet<String>) {
    if let ExprKind::Str(text) = &expr.kind {
        words.insert(text.clone());
    }
    let _: Result<Expr, ()> = crate::symbol::rebuilt(expr, &mut |part| {
        texts(part, words);
        Ok(part.clone())
    });
}

/// Walks the model. Gives the number of its method.
fn root(walk: &mut Walk<'_>) -> Result<usize, Finding> {
    let spec = walk.spec;
    let divided = trunk::divided(spec);
    let locals = Locals::from([("tokens".to_owned(), Bound::Tokens)]);
    let params = vec![("tokens".to_owned(), "Tensor".to_owned())];
    let method = Method { name: "forward".to_owned(), params, ..Method::default() };
    let (method, _) = match &divided {
        Some((function, program)) => {
            walk.with_function(function, |walk| walk.walked(method, program, locals))?
        }
        None => walk.walked(method, &spec.model, locals)?,
    };
    walk.methods.push(Method { owner: Some(String::new()), ..method });
    Ok(walk.methods.len() - 1)
}

struct Writer<'s, 'k> {
    walk: Walk<'s>,
    root: usize,
    words: &'k BTreeSet<String>,
}

impl Writer<'_, '_> {
    fn written(mut self) -> Result<Code, Finding> {
        let spec = self.walk.spec;
        let family = camel(&spec.name.name);
        let mut done: Vec<Class> = Vec::new();
        let mut names = indexmap::IndexSet::new();
        let reserved: Vec<String> = self.walk.helpers.used.keys().cloned().collect();
        names.extend(reserved);
        names.extend(["Config", "Cache", "Rotary"].map(str::to_owned));
        let gapped = gapped(&self.walk.methods);
        biases_apart(&mut self.walk.methods);
        let mut layer_classes: Vec<(Vec<String>, Class)> = Vec::new();
        for class in self.walk.layers.classes.clone() {
            let several = self.walk.layers.classes.len() > 1;
            let kind = class.kinds.first().map(String::as_str).unwrap_or_default();
            let own = if several && kind != "*" { camel(kind) } else { String::new() };
            let own =
                if own.is_empty() && several && kind != "*" { "Other".to_owned() } else { own };
            let mut classes = Classes {
                methods: &self.walk.methods,
                done,
                called: BTreeMap::new(),
                names,
                extra: BTreeMap::new(),
                gapped: gapped.clone(),
                scalars: class.scalars.each.clone(),
            };
            let wanted = Wanted { method: class.method, conditions: Vec::new() };
            let name = format!("{family}{own}Layer");
            let place = classes.build("", Some(name), &[wanted], &[]);
            let mut built = classes.done.remove(place);
            (done, names) = (classes.done, classes.names);
            layer_head(&mut built, &class.scalars);
            if several {
                built.params = vec!["i".to_owned()];
            }
            layer_classes.push((class.kinds, built));
        }
        let tables: BTreeSet<String> = self
            .walk
            .layers
            .classes
            .iter()
            .flat_map(|class| self.walk.methods[class.method].context.clone())
            .filter(|name| name != "cache")
            .collect();
        let mut used = dims_of(&done);
        for (_, class) in &layer_classes {
            used.extend(dims_of(std::slice::from_ref(class)));
        }
        let mut codes = Vec::new();
        let extra = self.extra_lines(&layer_classes, &tables, &mut codes)?;
        let mut classes = Classes {
            methods: &self.walk.methods,
            done: Vec::new(),
            called: BTreeMap::new(),
            names,
            extra,
            gapped,
            scalars: IndexMap::new(),
        };
        let wanted = Wanted { method: self.root, conditions: Vec::new() };
        let place = classes.build("", Some(format!("{family}Model")), &[wanted], &[]);
        let mut outer = classes.done;
        let mut last = outer.remove(place);
        let has_trunk = outer.iter().any(|class| class.name == "Model");
        if has_trunk {
            let name = format!("{family}Model");
            for class in outer.iter_mut().chain([&mut last]) {
                if class.name == "Model" {
                    class.name.clone_from(&name);
                }
                rename_made(class, " Model(config", &format!(" {name}(config"));
            }
            last.name = format!("{family}ForCausalLM");
        }
        let mut all = done;
        all.extend(layer_classes.into_iter().map(|(_, class)| class));
        all.extend(outer);
        used.extend(dims_of(&all));
        used.extend(dims_of(std::slice::from_ref(&last)));
        if let Some(Line::Text(result)) =
            last.methods.first_mut().and_then(|method| method.body.last_mut())
            && let Some(text) = result.strip_prefix("return ")
        {
            *result = format!("logits = {text}");
        }
        self.text(&family, &all, last, used, &tables)
    }

    /// Returns the lines of constructors that make layers, tables and shared weights, by the path of the class.
    fn extra_lines(
        &mut self,
        layers: &[(Vec<String>, Class)],
        tables: &BTreeSet<String>,
        codes: &mut Vec<TableCode>,
    ) -> Result<BTreeMap<String, Vec<Line>>, Finding> {
        let mut extra: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        let holder = self.walk.methods.iter().rfind(|method| method.has_layers);
        let holder = holder.and_then(|method| method.owner.clone()).unwrap_or_default();
        let list = self.walk.layers.list.clone();
        let place = if parent(&list) == holder { holder.clone() } else { parent(&list).to_owned() };
        let segment = list.rsplit('.').next().unwrap_or_default().to_owned();
        extra.entry(place).or_default().extend(self.layer_list(&segment, layers));
        let spec = self.walk.spec;
        let (_, made) =
            settings::written(spec, &mut self.walk.scalars, &BTreeSet::new(), tables, self.words)?;
        codes.clone_from(&made);
        for code in made {
            let line = format!("self.{} = {}", code.name, code.made);
            extra.entry(holder.clone()).or_default().push(Line::Text(line));
        }
        let mut seen = BTreeSet::new();
        for tie in &self.walk.ties {
            if !seen.insert((tie.weight.clone(), tie.other.clone())) {
                continue;
            }
            let line = Line::Text(format!("«W:{}».weight = «W:{}».weight", tie.weight, tie.other));
            let line = match &tie.condition {
                Some(condition) => Line::If(expression(condition).0, vec![line], Vec::new()),
                None => line,
            };
            extra.entry(String::new()).or_default().push(line);
        }
        Ok(extra)
    }

    /// Writes the list of layers.
    fn layer_list(&self, segment: &str, layers: &[(Vec<String>, Class)]) -> Vec<Line> {
        let count = self.walk.layers.count.as_ref().map(|count| expression(count).0);
        let count = count.unwrap_or_default();
        let made = |class: &Class| {
            let layer = if class.params.is_empty() { "" } else { ", layer" };
            format!("{}(config{layer})", class.name)
        };
        if let [(_, class)] = layers {
            let variable = if class.params.is_empty() { "_" } else { "layer" };
            return vec![Line::Text(format!(
                "self.{segment} = nn.ModuleList([{} for {variable} in range({count})])",
                made(class)
            ))];
        }
        let kind = self.walk.layers.kind.as_ref();
        let kinds: Vec<String> = layers
            .iter()
            .flat_map(|(kinds, class)| {
                kinds
                    .iter()
                    .filter(|kind| *kind != "*")
                    .map(|kind| format!("{}: {}", quoted(kind), class.name))
            })
            .collect();
        let other = layers.iter().find(|(kinds, _)| kinds.iter().any(|kind| kind == "*"));
        let map = Line::Text(format!("kinds = {{{}}}", kinds.join(", ")));
        let (heads, item) = if let Some(list) = kind.and_then(is_item) {
            (
                format!("for layer, kind in enumerate({}[: {count}])", expression(list).0),
                "kind".to_owned(),
            )
        } else {
            let kind = kind.map(|kind| expression(kind).0.replace("«E:i»", "layer"));
            (format!("for layer in range({count})"), kind.unwrap_or_default())
        };
        let class = match other {
            Some((_, class)) => format!("kinds.get({item}, {})", class.name),
            None => format!("kinds[{item}]"),
        };
        vec![
            map,
            Line::Text(format!("self.{segment} = nn.ModuleList([{class}(config, layer) {heads}])")),
        ]
    }

    /// Fills the template of the file.
    fn text(
        mut self,
        family: &str,
        classes: &[Class],
        last: Class,
        used: BTreeSet<String>,
        tables: &BTreeSet<String>,
    ) -> Result<Code, Finding> {
        let spec = self.walk.spec;
        let target = self.walk.target;
        let (settings, _) =
            settings::written(spec, &mut self.walk.scalars, &used, tables, self.words)?;
        let mut names = crate::places::Names::new(
            &[],
            EMPTY.get_or_init(BTreeMap::new),
            NONE.get_or_init(BTreeSet::new),
        );
        let settings: Vec<Line> = settings.iter().map(own_dims).collect();
        let settings =
            crate::places::resolved_lines(&settings, crate::places::Mode::Init, "", &mut names);
        let rules = loader::rules(spec, &mut self.walk.scalars, target)?;
        let mut rule_lines = Vec::new();
        for rule in rules {
            for comment in &rule.comment {
                rule_lines.push(Line::Text(format!("# {comment}")));
            }
            rule_lines.push(Line::Text(rule.text));
        }
        let mut rule_texts = Vec::new();
        layout::lines(&rule_lines, 3, target.width - 1, &mut rule_texts);
        for line in &mut rule_texts {
            if line.ends_with(')')
                && (line.starts_with("            Rule(") || line == "            )")
            {
                line.push(',');
            }
        }
        let kept: Vec<String> = spec
            .kept
            .f32
            .iter()
            .map(|one| one.name.replace('.', "\\.").replace('*', ".*"))
            .collect();
        let ignored: Vec<String> = spec.ignore.weights.iter().map(|one| one.name.clone()).collect();
        let mut helpers = self.helpers()?;
        let defaults: Vec<String> = spec
            .defaults
            .values()
            .filter_map(|entry| {
                Some((entry.name.name.clone(), crate::symbol::constant(&entry.value)?))
            })
            .map(|(key, value)| {
                let at = &spec.defaults[&key].value;
                format!("{}: {}", quoted(&key), expression(&of_scalar(&value, at)).0)
            })
            .collect();
        let mut default_lines = Vec::new();
        if !defaults.is_empty() {
            let text = format!("DEFAULTS = {{{}}}", defaults.join(", "));
            layout::statement(&text, 0, target.width, &mut default_lines);
        }
        let width = target.width;
        let mut bodies = String::new();
        for class in classes.iter().chain([&last]) {
            let methods = class.methods.iter().map(|method| &method.body);
            for lines in std::iter::once(&class.init).chain(methods) {
                each_text(lines, &mut |text| {
                    bodies += text;
                    bodies.push('\n');
                });
            }
        }
        keep_used(&mut helpers, &bodies);
        let names_of_helpers = helpers.iter().map(|(name, _)| name.clone()).collect();
        let helpers: Vec<String> = helpers.into_iter().map(|(_, text)| text).collect();
        let written: Vec<minijinja::Value> =
            classes.iter().map(|class| class_value(class, width)).collect();
        let mut setting_lines = Vec::new();
        layout::lines(&settings, 2, width, &mut setting_lines);
        let about = comments::first(&spec.source.text);
        let root = spec
            .layers
            .as_ref()
            .and_then(|layers| layers.prefix.name.split('.').next().map(str::to_owned));
        let context = context! {
            name => spec.name.name.clone(),
            family => family.to_owned(),
            about => layout::wrapped(&about.join(" "), width),
            settings => setting_lines,
            defaults => default_lines,
            inside => !spec.inside.is_empty() || !spec.defaults.is_empty(),
            helpers,
            classes => written,
            model => class_value(&last, width),
            rules => rule_texts,
            kept,
            ignored,
            root,
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
        let name = target.file.replace("{name}", &spec.name.name);
        let text = tidy(&without_unused(&long_heads(&text, width)));
        Ok(Code { name, text, ops, helpers: names_of_helpers, rounds })
    }

    /// Renders the helpers that the file uses.
    fn helpers(&self) -> Result<Vec<(String, String)>, Finding> {
        let mut texts: Vec<(String, String)> = Vec::new();
        for (helper, variants) in self.walk.helpers.used.iter().rev() {
            for (place, variant) in variants.iter().enumerate() {
                let all = self.walk.ops.declared().flat_map(|op| op.signature().params.clone());
                let all = all.map(|param| (param.name.to_owned(), "never"));
                let word = |given: &Given| match (given.some, given.null) {
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
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the usual delimiters"));
        let text = environment.render_str(template, context);
        text.map_err(|error| {
            Finding::unplaced(format!(
                "the template `{name}` of `{}` fails: {error:#}",
                target.name
            ))
        })
    }
}

/// Writes dims as attributes of the settings themselves.
fn own_dims(line: &Line) -> Line {
    let own = |text: &String| text.replace("«D:", "self.").replace('»', "");
    match line {
        Line::Text(text) => Line::Text(own(text)),
        Line::If(condition, yes, no) => Line::If(
            own(condition),
            yes.iter().map(own_dims).collect(),
            no.iter().map(own_dims).collect(),
        ),
        Line::For(head, body) => Line::For(own(head), body.iter().map(own_dims).collect()),
    }
}

static NONE: std::sync::OnceLock<BTreeSet<String>> = std::sync::OnceLock::new();

static EMPTY: std::sync::OnceLock<BTreeMap<usize, String>> = std::sync::OnceLock::new();

/// Returns the dims that classes read.
fn dims_of(classes: &[Class]) -> BTreeSet<String> {
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

fn each_text(lines: &[Line], visit: &mut impl FnMut(&str)) {
    for line in lines {
        match line {
            Line::Text(text) => visit(text),
            Line::For(head, body) => {
                visit(head);
                each_text(body, visit);
            }
            Line::If(condition, yes, no) => {
                visit(condition);
                each_text(yes, visit);
                each_text(no, visit);
            }
        }
    }
}

fn rename_made(class: &mut Class, from: &str, to: &str) {
    for line in &mut class.init {
        match line {
            Line::Text(text) => *text = text.replace(from, to),
            Line::If(_, yes, no) => {
                for line in yes.iter_mut().chain(no) {
                    if let Line::Text(text) = line {
                        *text = text.replace(from, to);
                    }
                }
            }
            Line::For(..) => {}
        }
    }
}

/// Returns the paths whose children have numbers with gaps between them.
fn gapped(methods: &[Method]) -> BTreeSet<String> {
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
fn biases_apart(methods: &mut [Method]) {
    let apart: BTreeSet<String> = methods
        .iter()
        .flat_map(|method| &method.uses)
        .filter(|one| one.made.starts_with("nn.Parameter"))
        .filter_map(|one| one.path.strip_suffix(".bias").map(str::to_owned))
        .collect();
    for method in methods.iter_mut() {
        for path in &apart {
            multiplied(&mut method.body, path);
        }
    }
}

fn multiplied(lines: &mut [Line], path: &str) {
    let call = format!("«W:{path}»(");
    for line in lines {
        match line {
            Line::Text(text) => {
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
                    let product = format!("F.linear({given}, «W:{path}».weight)");
                    text.replace_range(start..=end, &product);
                }
            }
            Line::If(_, yes, no) => {
                multiplied(yes, path);
                multiplied(no, path);
            }
            Line::For(_, body) => multiplied(body, path),
        }
    }
}

/// Computes the scalars of a layer at the beginning of its constructor, from its number.
fn layer_head(class: &mut Class, scalars: &LayerScalars) {
    let mut needed: BTreeSet<String> = class.params.iter().cloned().collect();
    for (name, expr) in scalars.each.iter().rev() {
        if needed.contains(name) && name != "i" {
            crate::symbol::names(expr, &mut |name| {
                needed.extend(name.strip_prefix("E:").map(str::to_owned));
            });
        }
    }
    let mut names = crate::places::Names::new(
        &[],
        EMPTY.get_or_init(BTreeMap::new),
        NONE.get_or_init(BTreeSet::new),
    );
    let mut lines = Vec::new();
    for (name, expr) in
        scalars.each.iter().filter(|(name, _)| needed.contains(*name) && *name != "i")
    {
        let value = expression(expr).0.replace("(config, ", "(config.raw, ");
        let line = Line::Text(format!("{name} = {value}"));
        lines.push(line);
    }
    let mut init = crate::places::resolved_lines(&lines, crate::places::Mode::Init, "", &mut names);
    init.append(&mut class.init);
    class.init = init;
    class.params = if needed.is_empty() { Vec::new() } else { vec!["i".to_owned()] };
}

/// Returns a class for templates.
fn class_value(class: &Class, width: usize) -> minijinja::Value {
    let mut init = Vec::new();
    layout::lines(&class.init, 2, width, &mut init);
    let params = class.params.iter().map(|name| {
        let ty = if name == "i" { "int" } else { "Any" };
        format!(", {}: {ty}", crate::classes::parameter(name))
    });
    let mut head = Vec::new();
    let text = format!("def __init__(self, config: Config{}) -> None:", params.collect::<String>());
    layout::statement(&text, 1, width, &mut head);
    let methods: Vec<minijinja::Value> = class
        .methods
        .iter()
        .map(|method| {
            let params = method.params.iter().map(|(name, ty)| format!(", {name}: {ty}"));
            let returns = match method.results {
                1 => "Tensor".to_owned(),
                n => format!("tuple[{}]", vec!["Tensor"; n].join(", ")),
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
    context! { name => class.name.clone(), about => docstring(&class.about, 1, width), head, init, methods }
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

/// True if a text has a word.
fn mentions(text: &str, word: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(letter) && !text[at + word.len()..].starts_with(letter)
    })
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
            Some((head, names)) if head.starts_with("from ") => (format!("{head} import "), names),
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
