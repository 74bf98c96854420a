//! Comparisons of texts and indices of lists in a spec, traced to the config keys they come from.

use std::collections::{BTreeMap, BTreeSet};

use crate::eval::{EvalError, FUNCTIONS, Fuel};
use crate::ops::{OpSet, ParamKind};
use crate::resolve::ropes::{KINDS, OLDER};
use crate::spec::{DimSource, Spec};
use crate::syntax::{Arg, BinaryOp, Expr, ExprKind, Function, Ident, Program};

use super::KeyUses;

/// Collects the words of a spec.
pub(in crate::resolve) fn of(spec: &Spec, ops: &OpSet, fuel: &Fuel) -> Result<KeyUses, EvalError> {
    let mut reader = UseCollector {
        spec,
        ops,
        fuel,
        programs: Vec::new(),
        given: BTreeMap::new(),
        known: BTreeMap::new(),
        words: KeyUses::default(),
    };
    reader.find_programs();
    reader.read()?;
    Ok(reader.words)
}

/// Sources of the value of an expression.
#[derive(Debug, Default, Clone)]
struct ValueSources {
    /// Config keys that hold the value, or the list that it is an item of.
    keys: BTreeSet<String>,
    /// Texts that the spec contains.
    words: BTreeSet<String>,
    /// True if the spec contains other literals there.
    others: bool,
    /// Config keys that hold lists of the same length.
    lengths: BTreeSet<String>,
    /// True if it is a list that the spec makes of such values.
    made: bool,
}

impl ValueSources {
    fn add(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.words.extend(other.words);
        self.others |= other.others;
        self.lengths.extend(other.lengths);
        self.made |= other.made;
    }

    fn key(name: &str) -> Self {
        let keys = BTreeSet::from([name.to_owned()]);
        Self { lengths: keys.clone(), keys, ..Self::default() }
    }

    /// Returns the facts of a part of the value.
    fn item(self) -> Self {
        Self { lengths: BTreeSet::new(), made: false, ..self }
    }

    fn size(&self) -> usize {
        self.keys.len() + self.words.len() + self.lengths.len()
    }
}

/// A program, and the function that it is of.
#[derive(Clone, Copy)]
struct ProgramBody<'a> {
    function: Option<&'a Function>,
    program: &'a Program,
}

/// A variable of a comprehension.
struct LoopVariable {
    name: String,
    facts: ValueSources,
    /// True if it counts layers.
    layer: bool,
}

/// Names around an expression.
#[derive(Default)]
struct LocalNames {
    /// The program that contains it.
    body: Option<usize>,
    variables: Vec<LoopVariable>,
    /// True where `i` is the number of the layer.
    layer: bool,
}

impl LocalNames {
    /// Returns the names of an expression of a layer.
    fn in_layer() -> Self {
        Self { layer: true, ..Self::default() }
    }
}

struct UseCollector<'a> {
    spec: &'a Spec,
    ops: &'a OpSet,
    fuel: &'a Fuel,
    /// Programs that run, from `model`, `layers` and `nextn` on.
    programs: Vec<ProgramBody<'a>>,
    /// Arguments of calls by function and parameter, each with the calling program.
    given: BTreeMap<(String, String), Vec<(&'a Expr, usize)>>,
    /// Facts of names, by the program they belong to; none while they are collected.
    known: BTreeMap<(Option<usize>, String), Option<ValueSources>>,
    words: KeyUses,
}

impl<'a> UseCollector<'a> {
    fn find_programs(&mut self) {
        let spec = self.spec;
        let layers = spec.layers.iter().flat_map(|layers| layers.programs.values());
        let nextn = spec.nextn.iter().flat_map(crate::spec::NextnDecl::programs);
        let roots = layers.map(|layer| &layer.program).chain(nextn).chain([&spec.model]);
        self.programs.extend(roots.map(|program| ProgramBody { function: None, program }));
        let mut called = BTreeSet::new();
        let mut next = 0;
        while let Some(body) = self.programs.get(next) {
            let mut calls = Vec::new();
            for expr in expressions(body.program) {
                expr.walk(&mut |expr| {
                    if let ExprKind::Call(name, args) = &expr.kind {
                        calls.push((name, args));
                    }
                });
            }
            for (name, args) in calls {
                let Some(function) = spec.functions.get(&name.name) else { continue };
                for (n, arg) in args.iter().enumerate() {
                    let positional = function.params.get(n).map(|param| &param.name);
                    if let Some(param) = arg.name.as_ref().or(positional) {
                        let given = (function.name.name.clone(), param.name.clone());
                        self.given.entry(given).or_default().push((&arg.value, next));
                    }
                }
                if called.insert(&function.name.name) {
                    self.programs
                        .push(ProgramBody { function: Some(function), program: &function.program });
                }
            }
            next += 1;
        }
    }

    fn read(&mut self) -> Result<(), EvalError> {
        let spec = self.spec;
        for dim in spec.dims.values() {
            self.sources(&dim.sources)?;
        }
        for rope in spec.rope.values() {
            self.sources(&rope.theta)?;
            self.sources(&rope.parameters)?;
            self.schemes(&rope.parameters)?;
            let numbers = rope.behind.iter().chain(&rope.axes).chain([&rope.dim]);
            let sizes = rope.context.iter().chain(numbers);
            for expr in rope.partial.iter().chain(sizes) {
                self.expr(expr, &mut LocalNames::default())?;
            }
        }
        for entry in spec.assumes.values() {
            self.expr(&entry.value, &mut LocalNames::default())?;
        }
        let shapes = spec.states.values().flat_map(|state| &state.parts);
        for expr in shapes.flat_map(|part| &part.shape) {
            self.expr(expr, &mut LocalNames::in_layer())?;
        }
        if let Some(layers) = &spec.layers {
            let each = layers.each.values().map(|each| &each.value);
            for expr in each.chain(&layers.kind) {
                self.expr(expr, &mut LocalNames::in_layer())?;
            }
        }
        if let Some(nextn) = &spec.nextn {
            let each = nextn.each.values().map(|each| &each.value);
            for expr in each.chain(&nextn.kind).chain(&nextn.count) {
                self.expr(expr, &mut LocalNames::default())?;
            }
        }
        self.kinds()?;
        for n in 0..self.programs.len() {
            for expr in expressions(self.programs[n].program) {
                self.expr(expr, &mut LocalNames { body: Some(n), ..LocalNames::in_layer() })?;
            }
        }
        Ok(())
    }

    /// Names of rotary schemes are known where a table reads its parameters.
    fn schemes(&mut self, parameters: &'a [DimSource]) -> Result<(), EvalError> {
        for source in parameters {
            let keys = match source {
                DimSource::Key(key) => BTreeSet::from([key.name.clone()]),
                DimSource::Compute(expr) => self.facts(expr, &mut LocalNames::default())?.keys,
            };
            for key in keys
                .iter()
                .flat_map(|key| ["rope_type", "type"].map(|name| format!("{key}.{name}")))
            {
                let older = OLDER.iter().map(|(older, _)| older);
                self.words.keys.entry(key).or_default().taken.extend(KINDS.iter().chain(older));
            }
        }
        Ok(())
    }

    /// Names of programs are words of what chooses among them.
    fn kinds(&mut self) -> Result<(), EvalError> {
        let Some(layers) = &self.spec.layers else { return Ok(()) };
        let names = layers.programs.keys().filter(|name| *name != "*").cloned();
        let programs = ValueSources { words: names.collect(), ..ValueSources::default() };
        if programs.words.is_empty() {
            return Ok(());
        }
        let heads = self.spec.nextn.iter().filter_map(|nextn| nextn.kind.as_ref());
        for kind in layers.kind.iter().chain(heads) {
            let mut kind =
                self.facts(kind, &mut LocalNames { layer: true, ..LocalNames::default() })?;
            kind.words.extend(programs.words.iter().cloned());
            self.compared(&kind, &programs);
        }
        Ok(())
    }

    fn compared(&mut self, one: &ValueSources, other: &ValueSources) {
        for key in &one.keys {
            if other.words.is_empty() {
                continue;
            }
            let usage = self.words.keys.entry(key.clone()).or_default();
            usage.words.extend(one.words.iter().chain(&other.words).cloned());
            usage.others |= one.others || other.others;
        }
    }

    fn sources(&mut self, sources: &'a [DimSource]) -> Result<(), EvalError> {
        for source in sources {
            if let DimSource::Compute(expr) = source {
                self.expr(expr, &mut LocalNames::default())?;
            }
        }
        Ok(())
    }

    /// Collects the comparisons and the indices of an expression.
    fn expr(&mut self, expr: &'a Expr, scope: &mut LocalNames) -> Result<(), EvalError> {
        self.fuel.spend(&expr.at, 1)?;
        match &expr.kind {
            ExprKind::Binary(op, left, right) => {
                self.expr(left, scope)?;
                self.expr(right, scope)?;
                if matches!(op, BinaryOp::Eq | BinaryOp::Ne | BinaryOp::In | BinaryOp::NotIn) {
                    let left = self.facts(left, scope)?;
                    let right = self.facts(right, scope)?;
                    self.compared(&left, &right);
                    self.compared(&right, &left);
                }
                Ok(())
            }
            ExprKind::Index(base, key) => {
                self.expr(base, scope)?;
                self.expr(key, scope)?;
                let base = self.facts(base, scope)?;
                for key in base.keys.iter().filter(|_| !base.made) {
                    self.words.keys.entry(key.clone()).or_default().letters = true;
                }
                if self.is_layer(key, scope) {
                    for key in base.lengths {
                        self.words.keys.entry(key).or_default().each_layer = true;
                    }
                }
                Ok(())
            }
            ExprKind::Comprehension { body, variable, over, filter } => {
                self.expr(over, scope)?;
                let facts = self.facts(over, scope)?;
                scope.variables.push(Self::variable(variable, over, facts));
                let result = [Some(&**body), filter.as_deref()]
                    .into_iter()
                    .flatten()
                    .try_for_each(|part| self.expr(part, scope));
                let _ended = scope.variables.pop();
                result
            }
            ExprKind::Call(name, args) => {
                args.iter().try_for_each(|arg| self.expr(&arg.value, scope))?;
                self.call(name, args, scope)
            }
            _ => expr.parts().into_iter().try_for_each(|part| self.expr(part, scope)),
        }
    }

    /// Words that an op takes, and refuses others of.
    fn call(
        &mut self,
        name: &Ident,
        args: &'a [Arg],
        scope: &mut LocalNames,
    ) -> Result<(), EvalError> {
        let called = &name.name;
        if self.spec.functions.contains_key(called) || FUNCTIONS.contains(&called.as_str()) {
            return Ok(());
        }
        let Some(rule) = self.ops.get(called) else { return Ok(()) };
        for (n, arg) in args.iter().enumerate() {
            let mut params = rule.signature().params.iter().enumerate();
            let param = params.find(|(place, param)| match &arg.name {
                Some(name) => name.name == param.name,
                None => *place == n,
            });
            if let Some((_, param)) = param
                && let ParamKind::Word(words) = param.kind
            {
                for key in self.facts(&arg.value, scope)?.keys {
                    self.words.keys.entry(key).or_default().taken.extend(words);
                }
            }
        }
        Ok(())
    }

    fn variable(name: &Ident, over: &Expr, facts: ValueSources) -> LoopVariable {
        let layer = match &over.kind {
            ExprKind::Call(range, args) if range.name == "range" => {
                matches!(args.as_slice(), [only] if only_name(&only.value) == Some("layers"))
            }
            _ => false,
        };
        LoopVariable { name: name.name.clone(), facts: facts.item(), layer }
    }

    /// True if an index is the number of a layer.
    fn is_layer(&self, index: &Expr, scope: &LocalNames) -> bool {
        let Some(name) = only_name(index) else { return false };
        let variable = scope.variables.iter().rev().find(|variable| variable.name == name);
        match variable {
            Some(variable) => variable.layer,
            None => scope.layer && name == "i" && self.local(name, scope).is_none(),
        }
    }

    /// Facts of the value of an expression.
    fn facts(&mut self, expr: &'a Expr, scope: &mut LocalNames) -> Result<ValueSources, EvalError> {
        let fuel = self.fuel;
        let facts = fuel.deeper(&expr.at, || self.facts_of(expr, scope))?;
        self.fuel.spend(&expr.at, 1 + facts.size())?;
        Ok(facts)
    }

    fn facts_of(
        &mut self,
        expr: &'a Expr,
        scope: &mut LocalNames,
    ) -> Result<ValueSources, EvalError> {
        let mut facts = ValueSources::default();
        match &expr.kind {
            ExprKind::Str(text) => {
                facts.words.insert(text.clone());
            }
            ExprKind::Null | ExprKind::Bool(_) | ExprKind::Int(_) | ExprKind::Float(_) => {
                facts.others = true;
            }
            ExprKind::Path(names) => {
                let Some((first, members)) = names.split_first() else { return Ok(facts) };
                facts = self.name(&first.name, scope)?;
                if !members.is_empty() {
                    let member: Vec<&str> = members.iter().map(|name| name.name.as_str()).collect();
                    let member = member.join(".");
                    let keys = facts.keys.iter().map(|key| format!("{key}.{member}"));
                    facts = ValueSources { keys: keys.collect(), ..ValueSources::default() };
                    facts.lengths.clone_from(&facts.keys);
                }
            }
            ExprKind::Index(base, _) => facts = self.facts(base, scope)?.item(),
            ExprKind::Slice(base, _, _) => {
                facts = self.facts(base, scope)?;
                facts.lengths.clear();
            }
            ExprKind::Binary(op @ (BinaryOp::And | BinaryOp::Or | BinaryOp::Add), left, right) => {
                facts = self.facts(left, scope)?;
                facts.add(self.facts(right, scope)?);
                if *op == BinaryOp::Add {
                    facts.lengths.clear();
                }
            }
            ExprKind::If { then, otherwise, .. } => {
                facts = self.facts(then, scope)?;
                facts.add(self.facts(otherwise, scope)?);
            }
            ExprKind::List(items) => {
                for item in items {
                    facts.add(self.facts(item, scope)?.item());
                }
                facts.made = true;
            }
            ExprKind::Comprehension { body, variable, over, filter } => {
                let list = self.facts(over, scope)?;
                let lengths = list.lengths.clone();
                scope.variables.push(Self::variable(variable, over, list));
                let result = self.facts(body, scope);
                let _ended = scope.variables.pop();
                facts = ValueSources { made: true, ..result?.item() };
                if filter.is_none() {
                    facts.lengths = lengths;
                }
            }
            ExprKind::Call(name, args) => facts = self.called(name, args, scope)?,
            ExprKind::Unary(..) | ExprKind::Binary(..) => {}
        }
        Ok(facts)
    }

    /// Facts of the calls that give a config key or a list back.
    fn called(
        &mut self,
        name: &Ident,
        args: &'a [Arg],
        scope: &mut LocalNames,
    ) -> Result<ValueSources, EvalError> {
        let mut facts = ValueSources::default();
        let Some((first, remaining)) = args.split_first() else { return Ok(facts) };
        match name.name.as_str() {
            "config" => {
                if let ExprKind::Str(key) = &first.value.kind {
                    facts = ValueSources::key(key);
                }
                if let Some(default) = remaining.first() {
                    facts.add(self.facts(&default.value, scope)?);
                }
            }
            "listed" => facts = ValueSources { made: true, ..self.facts(&first.value, scope)? },
            "repeat" => {
                facts = ValueSources { made: true, ..self.facts(&first.value, scope)?.item() }
            }
            _ => {}
        }
        Ok(facts)
    }

    /// Returns the assignments and arguments that a name of a program means.
    fn local(&self, name: &str, scope: &LocalNames) -> Option<Vec<(&'a Expr, Option<usize>)>> {
        let place = scope.body?;
        let ProgramBody { function, program } = self.programs[place];
        let assigned = program
            .body
            .iter()
            .filter(|stmt| stmt.targets.iter().any(|target: &Ident| target.name == name));
        let mut values: Vec<_> = assigned.map(|stmt| (&stmt.value, Some(place))).collect();
        let param = function.and_then(|function| {
            let param = function.params.iter().find(|param| param.name.name == name)?;
            Some((&function.name.name, param))
        });
        if let Some((function, param)) = param {
            values.extend(param.default.iter().map(|default| (default, Some(place))));
            let given = self.given.get(&(function.clone(), name.to_owned()));
            values.extend(given.into_iter().flatten().map(|(expr, from)| (*expr, Some(*from))));
        } else if values.is_empty() {
            return None;
        }
        Some(values)
    }

    /// Facts of a name.
    fn name(&mut self, name: &str, scope: &LocalNames) -> Result<ValueSources, EvalError> {
        if let Some(variable) = scope.variables.iter().rev().find(|known| known.name == name) {
            return Ok(variable.facts.clone());
        }
        let local = self.local(name, scope);
        let place = (local.as_ref().and(scope.body), name.to_owned());
        match self.known.get(&place) {
            Some(Some(facts)) => return Ok(facts.clone()),
            Some(None) => return Ok(ValueSources::default()),
            None => {}
        }
        self.known.insert(place.clone(), None);
        let spec = self.spec;
        let mut facts = ValueSources::default();
        if let Some(local) = local {
            for (expr, body) in local {
                facts.add(
                    self.facts(expr, &mut LocalNames { body, variables: Vec::new(), layer: true })?,
                );
            }
        } else {
            let mut exprs = Vec::new();
            if name == "kind" {
                exprs.extend(spec.layers.iter().filter_map(|layers| layers.kind.as_ref()));
                exprs.extend(spec.nextn.iter().filter_map(|nextn| nextn.kind.as_ref()));
            }
            let each = spec.layers.iter().filter_map(|layers| layers.each.get(name));
            let heads = spec.nextn.iter().filter_map(|nextn| nextn.each.get(name));
            exprs.extend(each.chain(heads).map(|each| &each.value));
            for source in spec.dims.get(name).iter().flat_map(|dim| &dim.sources) {
                match source {
                    DimSource::Key(key) => facts.add(ValueSources::key(&key.name)),
                    DimSource::Compute(expr) => exprs.push(expr),
                }
            }
            for expr in exprs {
                facts.add(
                    self.facts(expr, &mut LocalNames { layer: true, ..LocalNames::default() })?,
                );
            }
        }
        self.known.insert(place, Some(facts.clone()));
        Ok(facts)
    }
}

fn only_name(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        ExprKind::Path(names) => match names.as_slice() {
            [name] => Some(&name.name),
            _ => None,
        },
        _ => None,
    }
}

fn expressions(program: &Program) -> impl Iterator<Item = &Expr> {
    program.body.iter().map(|stmt| &stmt.value).chain(&program.result)
}
