//! The repeated part of a model: a class for each program of `layers:`.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use registry::diag::Finding;
use registry::syntax::{Arg, Expr, ExprKind, Ident};

use crate::python::binding::ATOM;
use crate::scalars::LayerSymbols;
use crate::symbol;
use crate::value::{BoundCode, CodeLine, CodeValue, Method};
use crate::walk::{Locals, Walk, variable};

/// The word of sheets for a state that has a place among others.
const SLOT: &str = "slot";

/// One class of layers.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerClass {
    /// The kinds of layers that it is for; `*` is all that no other class is for.
    pub(crate) kinds: Vec<String>,
    /// The method that runs it.
    pub(crate) method: usize,
    /// Its scalars.
    pub(crate) scalars: LayerSymbols,
    /// Caches of its states.
    pub(crate) kept: KeptStates,
}

/// Caches of the states of one class of layers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct KeptStates {
    /// Code that makes each of those that have a cache of their own.
    pub(crate) made: Vec<String>,
    /// The number of the others, which share one.
    pub(crate) slots: usize,
    /// The place of each state, by name.
    pub(crate) places: IndexMap<String, String>,
}

impl KeptStates {
    fn new(kept: IndexMap<String, String>) -> Self {
        let mut states = Self::default();
        let alone = kept.values().filter(|keeps| *keeps != SLOT).count();
        let slots = kept.len() - alone;
        let single = alone + usize::from(slots > 0) == 1;
        let place = |n: usize| if single { String::new() } else { format!("[{n}]") };
        for (name, keeps) in kept {
            let part = if keeps == SLOT {
                states.slots += 1;
                format!("{}, {}", place(alone), states.slots - 1)
            } else {
                states.made.push(keeps);
                place(states.made.len() - 1)
            };
            states.places.insert(name, part);
        }
        states
    }
}

/// All classes of layers, and what they need.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerClasses {
    /// The path of the list of layers.
    pub(crate) list: String,
    pub(crate) classes: Vec<LayerClass>,
    /// The expression of a layer's kind, over `E:i`.
    pub(crate) kind: Option<Expr>,
    /// The number of layers.
    pub(crate) count: Option<Expr>,
}

impl Walk<'_> {
    /// Runs all layers: `layers(x, name=y)`.
    pub(crate) fn run_layers(
        &mut self,
        args: &[Arg],
        at: &Expr,
        locals: &Locals,
    ) -> Result<BoundCode, Finding> {
        let mut given: IndexMap<String, BoundCode> = IndexMap::new();
        let mut x = None;
        for arg in args {
            let bound = self.eval(&arg.value, locals)?;
            match &arg.name {
                None => x = Some(bound),
                Some(name) => {
                    given.insert(name.name.clone(), bound);
                }
            }
        }
        self.layers_with(x, &given, at, locals)
    }

    /// Runs all layers with values that are there in some configs alone.
    pub(crate) fn layers_if(
        &mut self,
        condition: &Expr,
        args: &[Arg],
        at: &Expr,
        locals: &Locals,
    ) -> Result<BoundCode, Finding> {
        let mut given: IndexMap<String, BoundCode> = IndexMap::new();
        let mut x = None;
        for arg in args {
            let Some(name) = &arg.name else {
                x = Some(self.eval(&arg.value, locals)?);
                continue;
            };
            let (value, mut lines) =
                self.branch(condition.clone(), |walk| walk.value(&arg.value, locals))?;
            let text = variable(&name.name);
            lines.push(crate::walk::assigned(&text, &value.text));
            let no = vec![crate::walk::assigned(&text, "None")];
            self.emit(CodeLine::If(crate::python::expression(condition).0, lines, no));
            let value = CodeValue { text, binds: ATOM, ..value };
            given.insert(name.name.clone(), BoundCode::Value(value));
        }
        self.layers_with(x, &given, at, locals)
    }

    fn layers_with(
        &mut self,
        x: Option<BoundCode>,
        given: &IndexMap<String, BoundCode>,
        at: &Expr,
        locals: &Locals,
    ) -> Result<BoundCode, Finding> {
        let spec = self.spec;
        let Some(decl) = &spec.layers else {
            return Err(Finding::error(&at.at, "the spec has no section `layers`"));
        };
        let Some(list) = decl.prefix.name.strip_suffix(".{i}") else {
            let message =
                format!("layers of `{}` do not each have their own weights", decl.prefix.name);
            return Err(Finding::error(&decl.prefix.at, message)
                .help("code is written for prefixes that end with `{i}`"));
        };
        let Some(BoundCode::Value(x)) = x else {
            return Err(Finding::error(&at.at, "`layers` takes a value"));
        };
        let count = match &decl.count {
            Some(count) => self.scalar(count, locals, &mut Vec::new())?,
            None => self.scalars.dim(&Ident { name: "layers".into(), at: at.at.clone() }, 0)?,
        };
        self.layers.list = list.to_owned();
        self.layers.count = Some(count);
        let carried = self.classes(&x, given, at)?;
        Ok(self.loop_lines(&x, given, &carried))
    }

    /// Walks the program of each class. Gives the values that layers hand on.
    fn classes(
        &mut self,
        x: &CodeValue,
        given: &IndexMap<String, BoundCode>,
        at: &Expr,
    ) -> Result<IndexMap<String, CodeValue>, Finding> {
        let spec = self.spec;
        let decl = spec.layers.as_ref().expect("the caller has looked");
        let mut groups: Vec<(Vec<String>, &registry::syntax::Program)> = Vec::new();
        for (kind, layer) in &decl.programs {
            let same = groups.iter_mut().find(|(_, program)| **program == layer.program);
            match same {
                Some((kinds, _)) => kinds.push(kind.clone()),
                None => groups.push((vec![kind.clone()], &layer.program)),
            }
        }
        let mut carried: IndexMap<String, CodeValue> = IndexMap::new();
        for (kinds, program) in groups {
            let scalars = self.layer_scalars(&kinds, at)?;
            self.layer = scalars.clone();
            self.prefix = Some(decl.prefix.name.replace("{i}", "0"));
            let mut inner = Locals::new();
            let mut params = vec![("x".to_owned(), self.target.word("value"))];
            let own = CodeValue { text: "x".to_owned(), binds: ATOM, ..x.clone() };
            inner.insert("x".to_owned(), BoundCode::Value(own));
            let names: BTreeSet<&str> = decl.carry.iter().map(|name| name.name.as_str()).collect();
            for name in decl.carry.iter().map(|name| &name.name).chain(given.keys()) {
                let text = variable(name);
                if params.iter().any(|(known, _)| *known == text) {
                    continue;
                }
                let known = carried.get(name).cloned().or_else(|| match given.get(name) {
                    Some(BoundCode::Value(value)) => Some(value.clone()),
                    _ => None,
                });
                let optional = names.contains(name.as_str()) && !given.contains_key(name);
                let ty = self.target.word("value") + if optional { " | None" } else { "" };
                params.push((text.clone(), ty));
                match (known, given.get(name)) {
                    (_, Some(BoundCode::Tokens)) => {
                        inner.insert(name.clone(), BoundCode::Tokens);
                    }
                    (Some(value), _) => {
                        let value = CodeValue { text, binds: ATOM, ..value };
                        inner.insert(name.clone(), BoundCode::Value(value));
                    }
                    (None, _) => {
                        let value = CodeValue { text, binds: ATOM, ..x.clone() };
                        inner.insert(name.clone(), BoundCode::Value(value));
                    }
                }
            }
            let method = Method { name: "forward".to_owned(), params, ..Method::default() };
            self.kept.clear();
            let walked = self.walked(method, program, inner);
            let kept = KeptStates::new(std::mem::take(&mut self.kept));
            self.layer = LayerSymbols::default();
            self.prefix = None;
            let (mut method, results) = match walked {
                Ok(walked) => walked,
                Err(finding) => {
                    self.fail(finding);
                    continue;
                }
            };
            method.owner = Some(String::new());
            hand_on(&mut method, &decl.carry);
            for (name, value) in decl.carry.iter().zip(results.into_iter().skip(1)) {
                carried.insert(name.name.clone(), value);
            }
            self.methods.push(method);
            let method = self.methods.len() - 1;
            self.layers.classes.push(LayerClass { kinds, method, scalars, kept });
        }
        // All classes are called alike.
        let context: BTreeSet<String> = self
            .layers
            .classes
            .iter()
            .flat_map(|class| self.methods[class.method].context.clone())
            .collect();
        for class in &self.layers.classes {
            self.methods[class.method].context.clone_from(&context);
        }
        for name in &decl.carry {
            carried.entry(name.name.clone()).or_insert_with(|| x.clone());
        }
        Ok(carried)
    }

    fn layer_scalars(&mut self, kinds: &[String], at: &Expr) -> Result<LayerSymbols, Finding> {
        let spec = self.spec;
        let decl = spec.layers.as_ref().expect("the caller has looked");
        let mut scalars = LayerSymbols::default();
        scalars.each.insert("i".to_owned(), symbol::marked("E", "i", at));
        self.layer = scalars.clone();
        let kind = match &decl.kind {
            Some(kind) => Some(self.scalar(kind, &Locals::new(), &mut Vec::new())?),
            None => None,
        };
        self.layers.kind.clone_from(&kind);
        scalars.kind(kinds, kind, at);
        for (name, each) in &decl.each {
            self.layer = scalars.clone();
            let value = self.scalar(&each.value, &Locals::new(), &mut Vec::new())?;
            scalars.each.insert(name.clone(), value);
        }
        Ok(scalars)
    }

    /// Writes the loop over layers.
    fn loop_lines(
        &mut self,
        x: &CodeValue,
        given: &IndexMap<String, BoundCode>,
        carried: &IndexMap<String, CodeValue>,
    ) -> BoundCode {
        let mut context = BTreeSet::new();
        for class in &self.layers.classes {
            context.extend(self.methods[class.method].context.iter().cloned());
        }
        for table in context.iter().filter(|name| is_table(name)) {
            let called = self.target.spelled("rotary", &[("table", &format!("«R:{table}»"))]);
            self.emit(crate::walk::assigned(table, &called));
        }
        let frame = self.frame();
        frame.context.insert("cache".to_owned());
        frame.has_layers = true;
        let out = variable("x");
        if x.text != out {
            self.emit(crate::walk::assigned(&out, &x.text));
        }
        let mut names = vec![out.clone()];
        for name in carried.keys() {
            let first = match given.get(name) {
                Some(BoundCode::Value(value)) => value.text.clone(),
                _ => "None".to_owned(),
            };
            if first != variable(name) {
                self.emit(crate::walk::assigned(&variable(name), &first));
            }
            names.push(variable(name));
        }
        let mut passed = names.clone();
        for (name, bound) in given.iter().filter(|(name, _)| !carried.contains_key(*name)) {
            match bound {
                BoundCode::Value(value) => {
                    let text = variable(name);
                    if value.text != text {
                        self.emit(crate::walk::assigned(&text, &value.text));
                    }
                    passed.push(text);
                }
                _ => passed.push(self.target.word("tokens")),
            }
        }
        let spelled = context.iter().map(|name| match name.as_str() {
            "cache" => self.target.word("own_cache"),
            "caches" => "cache".to_owned(),
            table => table.to_owned(),
        });
        passed.extend(spelled);
        let list = format!("«W:{}»", self.layers.list);
        let call = format!("{} = layer({})", names.join(", "), passed.join(", "));
        let head = self.target.spelled("loop", &[("layers", &list)]);
        self.emit(CodeLine::For(head, vec![CodeLine::Text(call)]));
        self.frame().names.extend(names.iter().cloned());
        let value = CodeValue { text: out, binds: ATOM, ..x.clone() };
        if carried.is_empty() {
            return BoundCode::Value(value);
        }
        let others = carried.iter().map(|(name, value)| CodeValue {
            text: variable(name),
            binds: ATOM,
            ..value.clone()
        });
        BoundCode::Values(std::iter::once(value).chain(others).collect())
    }
}

/// True for the name of a rotary table among what methods take besides their parameters.
pub(crate) fn is_table(name: &str) -> bool {
    !["cache", "caches"].contains(&name)
}

/// A layer that gives `x` alone leaves what is carried as it is.
fn hand_on(method: &mut Method, carry: &[Ident]) {
    if method.results == 1 && !carry.is_empty() {
        if let Some(CodeLine::Text(last)) = method.body.last_mut() {
            for name in carry {
                last.push_str(", ");
                last.push_str(&variable(&name.name));
            }
        }
        method.results += carry.len();
    }
}

/// True if an expression is an item of a list by the layer's number.
pub(crate) fn is_item(expr: &Expr) -> Option<&Expr> {
    match &expr.kind {
        ExprKind::Index(list, key) => match &key.kind {
            ExprKind::Path(names) if names.first().is_some_and(|name| name.name == "E:i") => {
                Some(list)
            }
            _ => None,
        },
        _ => None,
    }
}
