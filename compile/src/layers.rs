//! The repeated part of a model: a class for each program of `layers:`.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use registry::diag::Finding;
use registry::syntax::{Arg, Expr, ExprKind, Ident};

use crate::loops::as_variables;
use crate::modules::{KeptStates, LayerClass};
use crate::python::binding::ATOM;
use crate::scalars::LayerSymbols;
use crate::settings::table_name;
use crate::size::over;
use crate::symbol;
use crate::value::{
    BoundCode, CodeLine, CodeValue, Method, ModuleUse, argument, assigned, is_table, variable,
};
use crate::walk::{Locals, Walk};

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
            lines.push(assigned(&text, &value.text));
            let no = vec![assigned(&text, "None")];
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
        let hole = decl.prefix.name.strip_suffix('}').and_then(|name| name.rsplit_once(".{"));
        let Some((list, number)) = hole else {
            let message = format!("layers of `{}` are no list", decl.prefix.name);
            return Err(Finding::error(&decl.prefix.at, message)
                .help("code is written for prefixes that end with a number in braces"));
        };
        let Some(BoundCode::Value(x)) = x else {
            return Err(Finding::error(&at.at, "`layers` takes a value"));
        };
        let count = match &decl.count {
            Some(count) => self.scalar(count, locals, &mut Vec::new())?,
            None => self.scalars.dim(&Ident { name: "layers".into(), at: at.at.clone() }, 0)?,
        };
        self.layers.list = list.to_owned();
        self.note_size(&count);
        self.layers.count = Some(count);
        if number != "i" {
            self.needs("shared_layers", "layers that share modules with others", at);
            self.layers.place = Some(number.to_owned());
            self.layers.scalars = self.layer_scalars(&["*".to_owned()], at)?;
            for hole in
                decl.prefix.name.split('{').skip(1).filter_map(|part| part.split('}').next())
            {
                if !self.layers.scalars.each.contains_key(hole) {
                    let message = format!("`{hole}` is no scalar of a layer");
                    return Err(Finding::error(&decl.prefix.at, message));
                }
            }
        }
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
            self.layer = self.layer_scalars(&kinds, at)?;
            self.prefix = Some(without_holes(&decl.prefix.name));
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
                        let value = CodeValue { text, binds: ATOM, wide: false, ..x.clone() };
                        inner.insert(name.clone(), BoundCode::Value(value));
                    }
                }
            }
            let method = Method { name: "forward".to_owned(), params, ..Method::default() };
            self.kept.clear();
            let walked = self.walked(method, program, inner);
            let kept = KeptStates::new(std::mem::take(&mut self.kept));
            let (mut method, results) = match walked {
                Ok(walked) => walked,
                Err(finding) => {
                    self.fail(finding);
                    continue;
                }
            };
            self.division.escapes(&results);
            method.owner = Some(String::new());
            if self.layers.place.is_some() {
                self.number(&mut method);
            }
            hand_on(&mut method, &decl.carry);
            for (name, value) in decl.carry.iter().zip(results.into_iter().skip(1)) {
                carried.insert(name.name.clone(), value);
            }
            self.methods.push(method);
            let method = self.methods.len() - 1;
            let scalars = self.layer.clone();
            self.layers.classes.push(LayerClass { kinds, method, scalars, kept });
        }
        self.layer = LayerSymbols::default();
        self.prefix = None;
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

    /// Returns the argument of a rotary table whose frequencies are learned.
    fn stretch_of(&mut self, table: &str) -> String {
        let Some(path) = self.stretches.get(table).cloned() else { return String::new() };
        let spec = self.spec;
        let decl = spec.rope.values().find(|decl| table_name(spec, &decl.name.name) == table);
        let dim = decl.and_then(|decl| self.scalars.resolve(&decl.dim, &mut Vec::new(), 0).ok());
        if let Some(dim) = dim {
            let half = over(&dim, &symbol::with(&dim, ExprKind::Int(2)));
            self.needs("learned_rotary", "rotary tables with learned frequencies", &dim);
            let size = crate::python::expression(&half).0;
            let made = self.target.spelled("stretched", &[("size", &size)]);
            let one = ModuleUse { path: path.clone(), made, conditions: Vec::new() };
            self.frame().uses.push(one);
        }
        format!(", stretch=«W:{path}»")
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
            let stretch = self.stretch_of(table);
            let values = [("table", &*format!("«R:{table}»")), ("stretch", &*stretch)];
            let called = self.target.spelled("rotary", &values);
            self.emit(assigned(table, &called));
        }
        if context.contains("offset") {
            self.emit(assigned("offset", &self.target.word("offset")));
        }
        let frame = self.frame();
        frame.context.insert("cache".to_owned());
        frame.has_layers = true;
        let out = variable("x");
        if x.text != out {
            self.emit(assigned(&out, &x.text));
        }
        let mut names = vec![out.clone()];
        for name in carried.keys() {
            let first = match given.get(name) {
                Some(BoundCode::Value(value)) => value.text.clone(),
                _ => "None".to_owned(),
            };
            if first != variable(name) {
                self.emit(assigned(&variable(name), &first));
            }
            names.push(variable(name));
        }
        let mut passed = names.clone();
        for (name, bound) in given.iter().filter(|(name, _)| !carried.contains_key(*name)) {
            match bound {
                BoundCode::Value(value) => {
                    let text = variable(name);
                    if value.text != text {
                        self.emit(assigned(&text, &value.text));
                    }
                    passed.push(text);
                }
                _ => passed.push(self.target.word("tokens")),
            }
        }
        passed.extend(context.iter().map(|name| match name.as_str() {
            "cache" => self.target.word("own_cache"),
            "caches" => "cache".to_owned(),
            name => as_variables(&argument(name, self.target)),
        }));
        let place = self.layers.place.clone();
        let (mut body, layer) = match &place {
            Some(place) => self.layer_at(place),
            None => (Vec::new(), "layer".to_owned()),
        };
        body.push(CodeLine::Text(format!("{} = {layer}({})", names.join(", "), passed.join(", "))));
        let count = self.layers.count.as_ref().map(|count| crate::python::expression(count).0);
        let head = if let Some(count) = count.filter(|_| place.is_some()) {
            format!("layer in range({count})")
        } else {
            let list = format!("«W:{}»", self.layers.list);
            self.target.spelled("loop", &[("layers", &list)])
        };
        self.emit(CodeLine::For(head, body));
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

/// Returns a prefix of weights with a number in its holes.
fn without_holes(prefix: &str) -> String {
    let mut parts = prefix.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| name + "0" + part.split_once('}').map_or("", |(_, tail)| tail))
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
