//! From a spec to the text of a file.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use registry::diag::Finding;
use registry::ops::OpSet;
use registry::spec::{DimSource, Spec};
use registry::syntax::{Expr, ExprKind};

use crate::bodies::{biases_apart, dims_of, gapped, layer_head, rename_made};
use crate::classes::{Class, ClassMethod, Classes, access, camel};
use crate::helpers::Helpers;
use crate::layers::{LayerClasses, is_item, is_table};
use crate::python::{expression, quoted};
use crate::scalars::{LayerSymbols, Scalars};
use crate::settings::{self, TableCode};
use crate::target::Target;
use crate::trunk;
use crate::value::{BoundCode, CodeLine, Method, below, parent, segments};
use crate::walk::{Locals, Walk};

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
        layer: LayerSymbols::default(),
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
        kept: IndexMap::new(),
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
    CodeWriter { walk, root, words: &words }.written().map_err(|finding| vec![finding])
}

/// Collects the texts of an expression.
fn texts(expr: &Expr, words: &mut BTreeSet<String>) {
    if let ExprKind::Str(text) = &expr.kind {
        words.insert(text.clone());
    }
    let _rebuilt: Result<Expr, ()> = crate::symbol::rebuilt(expr, &mut |part| {
        texts(part, words);
        Ok(part.clone())
    });
}

/// Walks the model. Gives the number of its method.
fn root(walk: &mut Walk<'_>) -> Result<usize, Finding> {
    let spec = walk.spec;
    let divided = trunk::divided(spec);
    let locals = Locals::from([("tokens".to_owned(), BoundCode::Tokens)]);
    let params = vec![(walk.target.word("tokens"), walk.target.word("value"))];
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

/// Writes the file of a walked model.
pub(crate) struct CodeWriter<'s, 'k> {
    pub(crate) walk: Walk<'s>,
    root: usize,
    pub(crate) words: &'k BTreeSet<String>,
}

impl CodeWriter<'_, '_> {
    fn written(mut self) -> Result<Code, Finding> {
        let spec = self.walk.spec;
        let family = camel(&spec.name.name);
        let mut done: Vec<Class> = Vec::new();
        let mut names = indexmap::IndexSet::new();
        let reserved: Vec<String> = self.walk.helpers.used.keys().cloned().collect();
        names.extend(reserved);
        let target = self.walk.target;
        names.extend([target.word("settings"), target.word("cache"), "Rotary".to_owned()]);
        let gapped = gapped(&self.walk.methods, self.walk.target);
        biases_apart(&mut self.walk.methods, target);
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
                kept: Some(class.kept.clone()),
                target,
            };
            let wanted = ClassMethod { method: class.method, conditions: Vec::new() };
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
            .filter(|name| is_table(name))
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
            kept: None,
            target,
        };
        let wanted = ClassMethod { method: self.root, conditions: Vec::new() };
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
        }
        let trunk = if has_trunk { "ForCausalLM" } else { "Model" };
        last.name = target.spelled("model", &[("family", &family), ("trunk", trunk)]);
        let mut all = done;
        all.extend(layer_classes.into_iter().map(|(_, class)| class));
        all.extend(outer);
        used.extend(dims_of(&all));
        used.extend(dims_of(std::slice::from_ref(&last)));
        if let Some(CodeLine::Text(result)) =
            last.methods.first_mut().and_then(|method| method.body.last_mut())
            && let Some(text) = result.strip_prefix("return ")
        {
            *result = format!("logits = {text}");
        }
        self.text(&family, &all, &last, &used, &tables)
    }

    /// Returns the lines of constructors that make layers, tables and shared weights, by the path of the class.
    fn extra_lines(
        &mut self,
        layers: &[(Vec<String>, Class)],
        tables: &BTreeSet<String>,
        codes: &mut Vec<TableCode>,
    ) -> Result<BTreeMap<String, Vec<CodeLine>>, Finding> {
        let mut extra: BTreeMap<String, Vec<CodeLine>> = BTreeMap::new();
        let holder = self.walk.methods.iter().rfind(|method| method.has_layers);
        let holder = holder.and_then(|method| method.owner.clone()).unwrap_or_default();
        let list = self.walk.layers.list.clone();
        let segment = list.rsplit('.').next().unwrap_or_default().to_owned();
        let place = parent(&list);
        if place == holder || self.has_class(place) {
            extra.entry(place.to_owned()).or_default().extend(self.layer_list(&segment, layers));
        } else {
            // Modules that hold the layers and nothing else.
            let lines = extra.entry(holder.clone()).or_default();
            let mut at = "self".to_owned();
            for outer in segments(below(place, &holder).unwrap_or(place)) {
                at = access(&at, outer);
                lines.push(CodeLine::Text(format!("{at} = {}", self.walk.target.word("empty"))));
            }
            let inner = format!("{}.{segment}", at.trim_start_matches("self."));
            lines.extend(self.layer_list(&inner, layers));
        }
        let spec = self.walk.spec;
        let (_, made) =
            settings::written(spec, &mut self.walk.scalars, &BTreeSet::new(), tables, self.words)?;
        codes.clone_from(&made);
        for code in made {
            let line = format!("self.{} = {}", code.name, code.made);
            extra.entry(holder.clone()).or_default().push(CodeLine::Text(line));
        }
        let mut seen = BTreeSet::new();
        let target = self.walk.target;
        for tie in &self.walk.ties {
            if !seen.insert((tie.weight.clone(), tie.other.clone())) {
                continue;
            }
            let weight = format!("«W:{}»", tie.weight);
            let other = format!("«W:{}»", tie.other);
            let values = [("weight", weight.as_str()), ("other", &other)];
            let line = CodeLine::Text(target.spelled("tie", &values));
            let line = match &tie.condition {
                Some(condition) => CodeLine::If(expression(condition).0, vec![line], Vec::new()),
                None => line,
            };
            extra.entry(String::new()).or_default().push(line);
        }
        Ok(extra)
    }

    /// True if a module at a path is a class of the file, because it has weights or methods.
    fn has_class(&self, path: &str) -> bool {
        let inside = |other: &str| below(other, path).is_some();
        self.walk.methods.iter().any(|method| {
            method.uses.iter().any(|one| inside(&one.path))
                || method.owner.as_deref().is_some_and(inside)
        })
    }

    /// Writes the list of layers.
    fn layer_list(&self, segment: &str, layers: &[(Vec<String>, Class)]) -> Vec<CodeLine> {
        let count = self.walk.layers.count.as_ref().map(|count| expression(count).0);
        let count = count.unwrap_or_default();
        let made = |class: &Class| {
            let layer = if class.params.is_empty() { "" } else { ", layer" };
            format!("{}(config{layer})", class.name)
        };
        if let [(_, class)] = layers {
            let variable = if class.params.is_empty() { "_" } else { "layer" };
            let items = format!("{} for {variable} in range({count})", made(class));
            let list = self.walk.target.spelled("list", &[("items", &items)]);
            return vec![CodeLine::Text(format!("self.{segment} = {list}"))];
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
        let map = CodeLine::Text(format!("kinds = {{{}}}", kinds.join(", ")));
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
        let items = format!("{class}(config, layer) {heads}");
        let list = self.walk.target.spelled("list", &[("items", &items)]);
        vec![map, CodeLine::Text(format!("self.{segment} = {list}"))]
    }
}
