//! From a spec to the text of a file.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use registry::diag::Finding;
use registry::ops::OpSet;
use registry::spec::{DimSource, Spec};
use registry::syntax::{Expr, ExprKind};

use crate::bodies::{
    biases_apart, dims_of, gapped, keep_rows, layer_head, rename_made, trunk_result,
};
use crate::checkpoint::ConfigTexts;
use crate::classes::{Class, ClassMethod, Classes, camel};
use crate::division::Division;
use crate::helpers::Helpers;
use crate::loops::as_variables;
use crate::modules::{LayerClasses, LentChild};
use crate::python::{expression, quoted};
use crate::scalars::{LayerSymbols, Scalars};
use crate::settings::{self, TableCode};
use crate::symbol::is_item;
use crate::target::Target;
use crate::trunk;
use crate::value::{BoundCode, CodeLine, Method, access, below, is_table, segments};
use crate::walk::{Locals, Walk};

/// A written file.
#[derive(Debug, Clone)]
pub struct Code {
    /// The name of the file with the model: a path below the folder that is written.
    pub name: String,
    /// The text.
    pub text: String,
    /// The other files of the folder: paths and texts.
    pub extra_files: Vec<(String, String)>,
    /// Ops that it uses.
    pub ops: BTreeSet<String>,
    /// Helpers that it has.
    pub helpers: BTreeSet<String>,
    /// Ops of it whose rounding differs in the target, and how.
    pub rounds: Vec<(String, String)>,
}

/// Writes a spec for a target, or returns everything that the target lacks. Of schemes and activations
/// that are chosen by name, the file has those that `texts` or the spec name.
pub fn compile(
    spec: &Spec,
    ops: &OpSet,
    target: &Target,
    texts: &ConfigTexts,
) -> Result<Code, Vec<Finding>> {
    if let Some(class) = spec.encodes.first() {
        let message = format!("the target `{}` has no encoders of images", target.name);
        return Err(vec![Finding::error(&class.at, message)]);
    }
    let first = walked(spec, ops, target, Division::default())?;
    let (walk, root) = match first.0.division.clone().decided() {
        Some(division) => walked(spec, ops, target, division)?,
        None => first,
    };
    let mut words = texts.words.clone();
    let dims = spec.dims.values().flat_map(|dim| &dim.sources);
    for source in dims.chain(spec.rope.values().flat_map(|table| &table.parameters)) {
        if let DimSource::Compute(expr) = source {
            texts_of(expr, &mut words);
        }
    }
    CodeWriter { walk, root, words: &words, checkpoint: texts }
        .written()
        .map_err(|finding| vec![finding])
}

/// Walks a spec. Gives the walk, and the number of the method of the model.
fn walked<'s>(
    spec: &'s Spec,
    ops: &'s OpSet,
    target: &'s Target,
    division: Division,
) -> Result<(Walk<'s>, usize), Vec<Finding>> {
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
        stretches: BTreeMap::new(),
        lent: Vec::new(),
        choices: Vec::new(),
        findings: Vec::new(),
        stack: Vec::new(),
        layers: LayerClasses::default(),
        trunk: None,
        evaluated: 0,
        kept: IndexMap::new(),
        used: BTreeSet::new(),
        sizes: BTreeSet::new(),
        division,
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
    Ok((walk, root))
}

/// Collects the texts of an expression.
fn texts_of(expr: &Expr, words: &mut BTreeSet<String>) {
    if let ExprKind::Str(text) = &expr.kind {
        words.insert(text.clone());
    }
    let _rebuilt: Result<Expr, ()> = crate::symbol::rebuilt(expr, &mut |part| {
        texts_of(part, words);
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
    pub(crate) checkpoint: &'k ConfigTexts,
}

/// The classes of layers, and what else writing them made.
struct WrittenLayers {
    /// Each with the kinds of layers that it is for.
    layers: Vec<(Vec<String>, Class)>,
    /// Classes of modules inside layers.
    done: Vec<Class>,
    names: indexmap::IndexSet<String>,
    children: Vec<LentChild>,
}

/// Gives the class of the trunk the name of the family, and says whether there is one.
fn name_trunk<'c>(family: &str, classes: impl Iterator<Item = &'c mut Class>) -> bool {
    let name = format!("{family}Model");
    let mut has_trunk = false;
    for class in classes {
        if class.name == "Model" {
            class.name.clone_from(&name);
            has_trunk = true;
        }
        rename_made(class, " Model(config", &format!(" {name}(config"));
    }
    has_trunk
}

impl CodeWriter<'_, '_> {
    /// Writes the classes of layers.
    fn layer_classes(
        &self,
        family: &str,
        mut names: indexmap::IndexSet<String>,
        gapped: &BTreeSet<String>,
    ) -> Result<WrittenLayers, Finding> {
        let mut layers: Vec<(Vec<String>, Class)> = Vec::new();
        let mut done: Vec<Class> = Vec::new();
        let mut children = Vec::new();
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
                lent: &self.walk.lent,
                choices: &self.walk.choices,
                numbers: self.walk.layers.numbers(),
                children,
                kept: Some(class.kept.clone()),
                target: self.walk.target,
                family: family.to_owned(),
            };
            let wanted = ClassMethod { method: class.method, conditions: Vec::new() };
            let name = format!("{family}{own}Layer");
            let place = classes.build("", Some(name), &[wanted], &[]);
            let mut built = classes.done.remove(place);
            (done, names, children) = (classes.done, classes.names, classes.children);
            let number = self.walk.layers.place.as_deref();
            let scalars = number.map_or(class.scalars.clone(), |place| class.scalars.placed(place));
            let number = number.unwrap_or("i");
            layer_head(&mut built, &scalars, number)?;
            if several {
                built.params = vec![number.to_owned()];
            }
            layers.push((class.kinds, built));
        }
        Ok(WrittenLayers { layers, done, names, children })
    }

    fn written(mut self) -> Result<Code, Finding> {
        let spec = self.walk.spec;
        let family = camel(&spec.name.name);
        let mut names = indexmap::IndexSet::new();
        let reserved: Vec<String> = self.walk.helpers.used.keys().cloned().collect();
        names.extend(reserved);
        let target = self.walk.target;
        names.extend([target.word("settings"), target.word("cache"), "Rotary".to_owned()]);
        let gapped = gapped(&self.walk.methods, self.walk.target);
        biases_apart(&mut self.walk.methods, target);
        keep_rows(&mut self.walk.methods, target);
        let written = self.layer_classes(&family, names, &gapped)?;
        let WrittenLayers { layers: layer_classes, done, names, children } = written;
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
        let extra = self.extra_lines(&layer_classes, &children, &tables, &mut codes)?;
        let mut classes = Classes {
            methods: &self.walk.methods,
            done: Vec::new(),
            called: BTreeMap::new(),
            names,
            extra,
            gapped,
            scalars: IndexMap::new(),
            lent: &[],
            choices: &[],
            numbers: Vec::new(),
            children: Vec::new(),
            kept: None,
            target,
            family: family.clone(),
        };
        let wanted = ClassMethod { method: self.root, conditions: Vec::new() };
        let place = classes.build("", Some(format!("{family}Model")), &[wanted], &[]);
        let mut outer = classes.done;
        let mut last = outer.remove(place);
        let has_trunk = name_trunk(&family, outer.iter_mut().chain([&mut last]));
        let trunk = if has_trunk { "ForCausalLM" } else { "Model" };
        last.name = target.spelled("model", &[("family", &family), ("trunk", trunk)]);
        let mut all = done;
        all.extend(layer_classes.into_iter().map(|(_, class)| class));
        all.extend(outer);
        let joined = crate::joined::join(&mut all, target);
        used.extend(dims_of(&all));
        used.extend(dims_of(std::slice::from_ref(&last)));
        if let Some(CodeLine::Text(result)) =
            last.methods.first_mut().and_then(|method| method.body.last_mut())
            && let Some(text) = result.strip_prefix("return ")
        {
            *result = format!("logits = {text}");
        }
        if has_trunk {
            trunk_result(&mut last, target);
        }
        self.text(&family, &all, &last, &used, &tables, &joined)
    }

    /// Returns the lines of constructors that make layers, tables and shared weights, by the path of the class.
    fn extra_lines(
        &mut self,
        layers: &[(Vec<String>, Class)],
        children: &[LentChild],
        tables: &BTreeSet<String>,
        codes: &mut Vec<TableCode>,
    ) -> Result<BTreeMap<String, Vec<CodeLine>>, Finding> {
        let mut extra: BTreeMap<String, Vec<CodeLine>> = BTreeMap::new();
        let holder = self.walk.methods.iter().rfind(|method| method.has_layers);
        let holder = holder.and_then(|method| method.owner.clone()).unwrap_or_default();
        let list = self.walk.layers.list.clone();
        let place = crate::loops::holder(&list);
        let place = if self.has_class(place) { place } else { holder.as_str() };
        let inner = below(&list, place).unwrap_or(&list);
        let classes: Vec<&str> = layers.iter().map(|(_, class)| class.name.as_str()).collect();
        let (before, behind) = self.lent_lines(&classes, children);
        let lines = extra.entry(place.to_owned()).or_default();
        lines.extend(before);
        lines.extend(self.holders(inner));
        lines.extend(self.layer_list(inner, layers));
        lines.extend(behind);
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

    /// Returns lines that make modules that hold a list of layers and nothing else.
    fn holders(&self, list: &str) -> Vec<CodeLine> {
        let mut at = "self".to_owned();
        let mut lines = Vec::new();
        let mut names = segments(list);
        names.pop();
        for name in names.into_iter().take_while(|name| !name.starts_with('{')) {
            at = access(&at, name);
            lines.push(CodeLine::Text(format!("{at} = {}", self.walk.target.word("empty"))));
        }
        lines
    }

    /// Writes the list of layers.
    fn layer_list(&self, list: &str, layers: &[(Vec<String>, Class)]) -> Vec<CodeLine> {
        let all = &self.walk.layers;
        let count = all.module_count().map(|count| expression(&count).0).unwrap_or_default();
        let number = all.place.as_deref().unwrap_or("layer");
        let path = self.walk.target.path_argument(&format!("f\"{list}.{{{number}}}\""));
        if let [(_, class)] = layers {
            let (mut variable, given) = match class.params.as_slice() {
                [] => ("_", String::new()),
                _ => (number, format!(", {number}")),
            };
            if !path.is_empty() {
                variable = number;
            }
            let made = format!("{}(config{path}{given})", class.name);
            let items = format!("{made} for {variable} in range({count})");
            let made = self.walk.target.spelled("list", &[("items", &items)]);
            return all.lists(list, &made, self.walk.target);
        }
        let kind = match (&all.kind, &all.place) {
            (Some(kind), Some(place)) => Some(all.scalars.by_place(kind, place)),
            (kind, _) => kind.clone(),
        };
        let kind = kind.as_ref();
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
                format!("for {number}, kind in enumerate({}[: {count}])", expression(list).0),
                "kind".to_owned(),
            )
        } else {
            let kind = kind.map(|kind| as_variables(&expression(kind).0));
            (format!("for {number} in range({count})"), kind.unwrap_or_default())
        };
        let class = match other {
            Some((_, class)) => format!("kinds.get({item}, {})", class.name),
            None => format!("kinds[{item}]"),
        };
        let items = format!("{class}(config{path}, {number}) {heads}");
        let made = self.walk.target.spelled("list", &[("items", &items)]);
        std::iter::once(map).chain(all.lists(list, &made, self.walk.target)).collect()
    }
}
