//! Layers that run several times: modules are numbered by a scalar of the layer, and scalars that differ from run to run are arguments.

use std::collections::BTreeSet;

use registry::syntax::{Arg, BinaryOp, Expr, ExprKind, Ident};

use crate::modules::{LayerClasses, ModuleChoice};
use crate::python::expression;
use crate::scalars::LayerSymbols;
use crate::symbol::{self, equal, is_item, marked, rebuilt};
use crate::target::Target;
use crate::value::{CodeLine, Method, assigned, each_text, parameter, parent};
use crate::walk::Walk;

/// Returns the module that holds a list of layers, in whose path holes are in braces.
pub(crate) fn holder(list: &str) -> &str {
    match list.split_once(".{") {
        Some((holder, _)) => holder,
        None => parent(list),
    }
}

/// Returns the names of the scalars of the layer that lines read.
pub(crate) fn scalars_of(lines: &[CodeLine], choices: &[ModuleChoice]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    each_text(lines, &mut |text| {
        let parts = text.split("«E:").skip(1);
        names.extend(parts.filter_map(|part| Some(part.split_once('»')?.0.to_owned())));
        for (place, choice) in choices.iter().enumerate() {
            if text.contains(&format!(".{{{place}}}")) {
                let mut add = |name: &str| names.extend(name.strip_prefix("E:").map(str::to_owned));
                symbol::names(&choice.number, &mut add);
            }
        }
    });
    names
}

/// Writes scalars of the layer as variables.
pub(crate) fn as_variables(text: &str) -> String {
    let mut parts = text.split("«E:");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, tail) = part.split_once('»').unwrap_or((part, ""));
        plain += &parameter(name);
        plain += tail;
    }
    plain
}

fn shown(expr: &Expr) -> String {
    expression(expr).0
}

fn path(name: &str, at: &Expr) -> Expr {
    symbol::with(at, ExprKind::Path(vec![Ident { name: name.to_owned(), at: at.at.clone() }]))
}

fn call(name: &str, arg: Expr) -> Expr {
    let at = arg.at.clone();
    let name = Ident { name: name.to_owned(), at: at.clone() };
    Expr { kind: ExprKind::Call(name, vec![Arg { name: None, value: arg }]), at }
}

/// Returns an expression with one part of it put in place of another.
pub(crate) fn put(expr: &Expr, from: &str, to: &Expr) -> Expr {
    if shown(expr) == from {
        return to.clone();
    }
    let written: Result<Expr, ()> = rebuilt(expr, &mut |part| Ok(put(part, from, to)));
    written.unwrap_or_else(|()| expr.clone())
}

/// Returns an expression for each layer in turn, as a list: of those layers for which a condition holds.
pub(crate) fn in_turn(body: &Expr, count: &Expr, filter: Option<&Expr>, variable: &str) -> Expr {
    let number = path(variable, body);
    let each = |expr: &Expr| put(expr, "«E:i»", &number);
    symbol::with(
        body,
        ExprKind::Comprehension {
            body: Box::new(each(body)),
            variable: Ident { name: variable.to_owned(), at: body.at.clone() },
            over: Box::new(call("range", count.clone())),
            filter: filter.map(|filter| Box::new(each(filter))),
        },
    )
}

impl LayerSymbols {
    /// Writes out the scalars that an expression reads, but for the layer's number and one more.
    pub(crate) fn expanded(&self, expr: &Expr, but: &str) -> Expr {
        if let ExprKind::Path(names) = &expr.kind
            && let [name] = names.as_slice()
            && let Some(plain) = name.name.strip_prefix("E:")
            && ![but, "i"].contains(&plain)
            && let Some(meant) = self.each.get(plain)
        {
            return self.expanded(meant, but);
        }
        let written: Result<Expr, ()> = rebuilt(expr, &mut |part| Ok(self.expanded(part, but)));
        written.unwrap_or_else(|()| expr.clone())
    }

    /// Writes an expression over the number of the modules, as far as it can be.
    pub(crate) fn by_place(&self, expr: &Expr, place: &str) -> Expr {
        let meant = self.expanded(&self.each[place], "");
        put(&self.expanded(expr, place), &shown(&meant), &marked("E", place, expr))
    }

    /// Returns the condition that another holds in any run of the modules; as it is if it is the same in all.
    fn in_any_run(&self, condition: &Expr, place: &str, count: &Expr) -> Expr {
        let placed = self.by_place(condition, place);
        let mut differs = false;
        symbol::names(&placed, &mut |name| differs |= name == "E:i");
        if !differs {
            return placed;
        }
        let number = self.expanded(&self.each[place], "");
        let same = equal(number, marked("E", place, condition));
        call("any", in_turn(&self.expanded(condition, ""), count, Some(&same), "layer"))
    }

    /// Returns these scalars over the number of the modules.
    pub(crate) fn placed(&self, place: &str) -> Self {
        let each = self.each.iter().filter(|(name, _)| *name != place);
        Self { each: each.map(|(name, expr)| (name.clone(), self.by_place(expr, place))).collect() }
    }

    /// Returns the lines that compute some scalars and those that these are made of, but for the layer's number.
    pub(crate) fn lines(&self, mut needed: BTreeSet<String>) -> Vec<CodeLine> {
        for (name, expr) in self.each.iter().rev().filter(|(name, _)| *name != "i") {
            if needed.contains(name) {
                symbol::names(expr, &mut |name| {
                    needed.extend(name.strip_prefix("E:").map(str::to_owned));
                });
            }
        }
        let used = self.each.iter().filter(|(name, _)| *name != "i" && needed.contains(*name));
        used.map(|(name, expr)| assigned(&parameter(name), &as_variables(&shown(expr)))).collect()
    }
}

impl Walk<'_> {
    /// Returns the conditions of the block under way, as a constructor knows them: those that differ from run to run hold for a module if they
    /// hold in any run of it.
    pub(crate) fn module_conditions(&mut self) -> Vec<Expr> {
        let conditions = self.frame().conditions.clone();
        let Some(place) = &self.layers.place else { return conditions };
        let Some(count) = self.layers.count.as_ref().filter(|_| self.prefix.is_some()) else {
            return conditions;
        };
        conditions.iter().map(|one| self.layer.in_any_run(one, place, count)).collect()
    }

    /// Gives the method of a layer that runs several times its number, from which it computes what else it reads.
    pub(crate) fn number(&self, method: &mut Method) {
        let needed = scalars_of(&method.body, &self.choices);
        method.context.retain(|name| !name.starts_with("E:"));
        method.context.insert("E:i".to_owned());
        method.body.splice(0..0, self.layer.lines(needed));
    }

    /// Returns the lines that find the modules of a layer, and the code for them.
    pub(crate) fn layer_at(&self, place: &str) -> (Vec<CodeLine>, String) {
        let mut holes = BTreeSet::from([place.to_owned()]);
        let (holder, list) = match self.layers.list.split_once(".{") {
            None => (format!("«W:{}»", self.layers.list), ""),
            Some((holder, tail)) => {
                let (hole, list) = tail.split_once('}').unwrap_or((tail, ""));
                holes.insert(hole.to_owned());
                (format!("getattr(«W:{holder}», {})", parameter(hole)), list)
            }
        };
        let items = crate::value::segments(list).into_iter().map(|name| format!("[\"{name}\"]"));
        let layer = format!("{holder}{}[{place}]", items.collect::<String>());
        (self.layers.scalars.lines(holes), layer)
    }
}

impl LayerClasses {
    /// Returns the scalars that number a layer and its modules.
    pub(crate) fn numbers(&self) -> Vec<String> {
        std::iter::once("i".to_owned()).chain(self.place.clone()).collect()
    }

    /// Returns the number of modules that layers have.
    pub(crate) fn module_count(&self) -> Option<Expr> {
        let count = self.count.as_ref()?;
        let Some(place) = &self.place else { return Some(count.clone()) };
        let place = self.scalars.expanded(&self.scalars.each[place], "");
        let all = match (&place.kind, is_item(&place)) {
            // `i % n` is below n.
            (ExprKind::Binary(BinaryOp::Mod, _, count), _) => return Some((**count).clone()),
            (_, Some(list)) => list.clone(),
            _ => in_turn(&place, count, None, "layer"),
        };
        let one = Box::new(symbol::with(count, ExprKind::Int(1)));
        let last = Box::new(call("max", all));
        Some(symbol::with(count, ExprKind::Binary(BinaryOp::Add, one, last)))
    }

    /// Returns the lines that make a list of modules under each name that it has below a class.
    pub(crate) fn lists(&self, list: &str, made: &str, target: &Target) -> Vec<CodeLine> {
        let Some((hole, tail)) = list.strip_prefix('{').and_then(|list| list.split_once('}'))
        else {
            return vec![assigned(&format!("self.{list}"), made)];
        };
        let made =
            crate::value::segments(tail).into_iter().rev().fold(made.to_owned(), |made, name| {
                target.spelled("dict", &[("items", &format!("\"{name}\": {made}"))])
            });
        let mut words = BTreeSet::new();
        if let Some(expr) = self.scalars.each.get(hole) {
            words_of(expr, &mut words);
        }
        words.iter().map(|word| assigned(&format!("self.{word}"), &made)).collect()
    }
}

/// Collects the texts that an expression may be.
fn words_of(expr: &Expr, words: &mut BTreeSet<String>) {
    match &expr.kind {
        ExprKind::Str(text) => {
            words.insert(text.clone());
        }
        ExprKind::If { then, otherwise, .. } => {
            words_of(then, words);
            words_of(otherwise, words);
        }
        _ => {}
    }
}
