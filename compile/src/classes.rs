//! Classes from methods: a tree of modules by the paths of weights, each with the methods that use it.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::{IndexMap, IndexSet};
use registry::syntax::{BinaryOp, Expr, ExprKind, UnaryOp};

use crate::conditions::{all_of, any_of, contradict, shared, without};
use crate::modules::{KeptStates, LentChild, LentModule, ModuleChoice, choice_of, join_states};
use crate::places::{NameScope, Names, resolved, resolved_lines};
use crate::python::{expression, quoted};
use crate::symbol::{self, equal, negated};
use crate::target::Target;
use crate::value::{
    CodeLine, FORWARD, Method, ModuleUse, OWN, access, argument, below, is_table, parameter,
    segments,
};

/// A class of the written file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) about: Vec<String>,
    /// Scalars of the layer that its constructor takes.
    pub(crate) params: Vec<String>,
    pub(crate) init: Vec<CodeLine>,
    pub(crate) methods: Vec<WrittenMethod>,
    /// Caches of the states of a layer; none for classes that are no layers.
    pub(crate) kept: Option<KeptStates>,
}

/// A method of a class, with all places filled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WrittenMethod {
    pub(crate) name: String,
    pub(crate) about: Vec<String>,
    pub(crate) params: Vec<(String, String)>,
    pub(crate) results: usize,
    pub(crate) body: Vec<CodeLine>,
}

/// A method that a class is asked for, with the conditions of its calls.
#[derive(Debug, Clone)]
pub(crate) struct ClassMethod {
    pub(crate) method: usize,
    pub(crate) conditions: Vec<Expr>,
}

/// Parts of one module: methods and weights.
#[derive(Debug, Clone, Default)]
struct Group {
    methods: Vec<ClassMethod>,
    uses: Vec<ModuleUse>,
}

/// Builds the classes of a file.
pub(crate) struct Classes<'m> {
    pub(crate) methods: &'m [Method],
    /// Finished classes, inner ones first.
    pub(crate) done: Vec<Class>,
    /// Names of methods in the classes of their modules.
    pub(crate) called: BTreeMap<usize, String>,
    /// Names of classes by the names of layers' kinds, say.
    pub(crate) names: IndexSet<String>,
    /// Paths whose children have numbers with gaps between them.
    pub(crate) gapped: BTreeSet<String>,
    /// Lines that a class's constructor gets besides: by path.
    pub(crate) extra: BTreeMap<String, Vec<CodeLine>>,
    /// Modules that layers take from elsewhere, and which of a list they use.
    pub(crate) lent: &'m [LentModule],
    pub(crate) choices: &'m [ModuleChoice],
    /// Constructors of modules that come from lists beside the layers.
    pub(crate) children: Vec<LentChild>,
    /// Scalars of the layer that number it.
    pub(crate) numbers: Vec<String>,
    /// Definitions of the layer's scalars, for the class of a layer.
    pub(crate) scalars: IndexMap<String, Expr>,
    /// Caches of the layer's states, for the class of a layer.
    pub(crate) kept: Option<KeptStates>,
    pub(crate) target: &'m Target,
    /// The name of the spec, in the style of classes.
    pub(crate) family: String,
}

/// Returns a word in the style of classes.
pub(crate) fn camel(word: &str) -> String {
    let parts = word.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    let mut text: String = parts
        .map(|part| {
            let mut letters = part.chars();
            let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
            first + letters.as_str()
        })
        .collect();
    if text.starts_with(|c: char| c.is_numeric()) {
        text.insert(0, 'M');
    }
    text
}

impl Group {
    fn conditions(&self) -> Vec<&[Expr]> {
        let methods = self.methods.iter().map(|one| one.conditions.as_slice());
        methods.chain(self.uses.iter().map(|one| one.conditions.as_slice())).collect()
    }

    fn split(self, path: &str, methods: &[Method]) -> Vec<Self> {
        let own = |one: &ClassMethod| methods[one.method].owner.as_deref() == Some(path);
        let exclusive = self.methods.iter().filter(|one| own(one)).any(|one| {
            self.methods.iter().any(|other| contradict(&one.conditions, &other.conditions))
        });
        if !exclusive {
            return vec![self];
        }
        let mut groups: Vec<Self> = Vec::new();
        for one in &self.methods {
            let fits = |group: &&mut Self| {
                !group.conditions().iter().any(|other| contradict(&one.conditions, other))
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.methods.push(one.clone()),
                None => groups.push(Self { methods: vec![one.clone()], uses: Vec::new() }),
            }
        }
        for one in &self.uses {
            for group in &mut groups {
                if !group.conditions().iter().any(|other| contradict(&one.conditions, other)) {
                    group.uses.push(one.clone());
                }
            }
        }
        groups
    }
}

impl Classes<'_> {
    /// Builds the class of the module at a path, and all classes inside of it. Gives the place of the class.
    pub(crate) fn build(
        &mut self,
        path: &str,
        name: Option<String>,
        wanted: &[ClassMethod],
        outer: &[ModuleUse],
    ) -> usize {
        let own = self.own_methods(path, wanted);
        let mut children: IndexMap<String, Group> = IndexMap::new();
        for one in outer {
            place(&mut children, path, one);
        }
        for (number, conditions) in &own {
            for one in &self.methods[*number].uses {
                let conditions = [conditions.as_slice(), &one.conditions].concat();
                let mut one = ModuleUse { conditions, ..one.clone() };
                if let Some(name) = one.path.strip_prefix(OWN) {
                    let dot = if path.is_empty() { "" } else { "." };
                    one.path = format!("{path}{dot}{name}");
                }
                place(&mut children, path, &one);
            }
            for call in &self.methods[*number].calls {
                let Some(owner) = &self.methods[call.method].owner else { continue };
                let Some(rest) = below(owner, path).filter(|rest| !rest.is_empty()) else {
                    continue;
                };
                let segment = segments(rest)[0].to_owned();
                let conditions = [conditions.as_slice(), &call.conditions].concat();
                let group = children.entry(segment).or_default();
                if let Some(same) = group.methods.iter_mut().find(|one| one.method == call.method) {
                    same.conditions = shared(&[&same.conditions, &conditions]);
                } else {
                    group.methods.push(ClassMethod { method: call.method, conditions });
                }
            }
        }
        for one in wanted.iter().filter(|one| !own.iter().any(|(own, _)| *own == one.method)) {
            let owner = self.methods[one.method].owner.clone().unwrap_or_default();
            if let Some(rest) = below(&owner, path).filter(|rest| !rest.is_empty()) {
                let segment = segments(rest)[0].to_owned();
                children.entry(segment).or_default().methods.push(one.clone());
            }
        }
        let single = wanted.len() == 1;
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for (number, _) in &own {
            let first = wanted.first().is_some_and(|one| one.method == *number);
            let called = if single && first {
                FORWARD.to_owned()
            } else {
                let plain = self.methods[*number].name.clone();
                if children.contains_key(&plain) { format!("apply_{plain}") } else { plain }
            };
            let mut unique = called.clone();
            let mut n = 1;
            while !taken.insert(unique.clone()) {
                n += 1;
                unique = format!("{called}_{n}");
            }
            self.called.insert(*number, unique);
        }
        let mut init: Vec<(Vec<Expr>, CodeLine)> = Vec::new();
        let mut segments_here: BTreeSet<String> = children.keys().cloned().collect();
        segments_here.extend(self.called.values().cloned());
        for line in self.extra.get(path).into_iter().flatten() {
            if let CodeLine::Text(text) = line
                && let Some((name, _)) =
                    text.strip_prefix("self.").and_then(|t| t.split_once(" = "))
            {
                segments_here.insert(name.to_owned());
            }
        }
        for (segment, group) in children {
            let child = if path.is_empty() { segment.clone() } else { format!("{path}.{segment}") };
            self.child(&child, &segment, group, &mut init);
        }
        let place = self.finish(path, name, wanted, (&own, &segments_here), &init);
        self.done.len().min(place)
    }

    /// Returns the methods of a class: those wanted that belong to it, and what they call of the same module.
    fn own_methods(&self, path: &str, wanted: &[ClassMethod]) -> Vec<(usize, Vec<Expr>)> {
        let mut own: Vec<(usize, Vec<Expr>)> = Vec::new();
        let here =
            |number: usize| self.methods[number].owner.as_deref().is_none_or(|owner| owner == path);
        for one in wanted.iter().filter(|one| here(one.method)) {
            own.push((one.method, one.conditions.clone()));
        }
        let mut n = 0;
        while n < own.len() {
            let (number, conditions) = own[n].clone();
            for call in &self.methods[number].calls {
                let all = [conditions.as_slice(), &call.conditions].concat();
                match own.iter_mut().find(|(known, _)| *known == call.method) {
                    Some((_, known)) => *known = shared(&[known.as_slice(), &all]),
                    None if here(call.method) => own.push((call.method, all)),
                    None => {}
                }
            }
            n += 1;
        }
        own
    }

    /// Writes the constructor of one child, and its classes.
    fn child(
        &mut self,
        path: &str,
        segment: &str,
        group: Group,
        init: &mut Vec<(Vec<Expr>, CodeLine)>,
    ) {
        let (mut leaves, deeper): (Vec<ModuleUse>, Vec<ModuleUse>) =
            group.uses.iter().cloned().partition(|one| one.path == path);
        join_states(&mut leaves);
        if !leaves.is_empty() {
            let target = access("self", segment);
            let mut made: IndexMap<String, Vec<ModuleUse>> = IndexMap::new();
            for one in &leaves {
                made.entry(one.made.clone()).or_default().push(one.clone());
            }
            let several = made.len() > 1 || !group.methods.is_empty();
            for (made, uses) in made {
                let own = uses.iter().map(|one| one.conditions.as_slice()).collect::<Vec<_>>();
                let conditions = if several { shared(&own) } else { any_of(&uses) };
                let made = self.target.placed(&made, segment);
                init.push((conditions.clone(), CodeLine::Text(format!("{target} = {made}"))));
                if group.methods.is_empty() {
                    let at = (path, target.as_str(), self.target.word("empty"));
                    below_leaf(&at, &deeper, &conditions, self.target, init);
                }
            }
            if group.methods.is_empty() {
                return;
            }
        }
        let group = Group { uses: deeper, ..group };
        if let Some(line) = self.chosen(path, segment, &group) {
            init.push(line);
            return;
        }
        if let Some(line) = self.numbered(path, segment, &group) {
            init.push(line);
            return;
        }
        for mut group in group.split(path, self.methods) {
            let mut conditions = shared(&group.conditions());
            for one in &mut group.methods {
                one.conditions = without(&one.conditions, &conditions);
            }
            for one in &mut group.uses {
                one.conditions = without(&one.conditions, &conditions);
            }
            let made = self.made(path, &group);
            match self.lent.iter().find(|one| one.name == path) {
                Some(LentModule { owner: Some(_), number, .. }) => {
                    conditions.push(equal(number.clone(), symbol::marked("E", "i", number)));
                }
                Some(_) => {
                    let condition = all_of(&conditions);
                    self.children.push(LentChild { name: path.to_owned(), made, condition });
                    continue;
                }
                None => {}
            }
            init.push((
                conditions,
                CodeLine::Text(format!("{} = {made}", access("self", segment))),
            ));
        }
    }

    /// Builds the class of a child, and returns the call that makes it.
    fn made(&mut self, path: &str, group: &Group) -> String {
        let place = self.build(path, None, &group.methods, &group.uses);
        let class = &self.done[place];
        let params = class.params.iter().map(|name| format!(", {}", parameter(name)));
        let segment = path.rsplit('.').next().unwrap_or_default();
        let prefix = self.target.path_argument(&quoted(segment));
        format!("{}(config{prefix}{})", class.name, params.collect::<String>())
    }

    /// Writes a list of which a scalar of the layer says what to use.
    fn chosen(
        &mut self,
        path: &str,
        segment: &str,
        group: &Group,
    ) -> Option<(Vec<Expr>, CodeLine)> {
        let paths = group.uses.iter().map(|one| one.path.as_str());
        let owners =
            group.methods.iter().filter_map(|one| self.methods[one.method].owner.as_deref());
        let inner =
            paths.chain(owners).find_map(|inner| segments(below(inner, path)?).first().copied())?;
        let list = self.choices[choice_of(inner)?].all.clone();
        let child = format!("{path}.{inner}");
        let mut part = group.clone();
        part.methods.iter_mut().for_each(|one| one.conditions.clear());
        part.uses.iter_mut().for_each(|one| one.conditions.clear());
        let mut lines = Vec::new();
        self.child(&child, "n", part, &mut lines);
        let CodeLine::Text(line) = &lines.first()?.1 else { return None };
        let (_, made) = line.split_once(" = ")?;
        let items = format!("str(n): {made} for n in «E:{list}»");
        let made = self.target.spelled("dict", &[("items", &items)]);
        let line = format!("{} = {made}", access("self", segment));
        Some((shared(&group.conditions()), CodeLine::Text(line)))
    }

    /// Returns the parameter that gives a method what it takes besides its values, and its type.
    fn context_param(&self, context: &str) -> (String, String) {
        if let Some(scalar) = context.strip_prefix("E:") {
            return (parameter(scalar), self.type_of(scalar).to_owned());
        }
        let ty = match context {
            "offset" => "length",
            table if is_table(table) => "table",
            _ => "cache",
        };
        (argument(context, self.target), self.target.word(ty))
    }

    /// Writes a child whose own children have numbers.
    fn numbered(
        &mut self,
        path: &str,
        segment: &str,
        group: &Group,
    ) -> Option<(Vec<Expr>, CodeLine)> {
        let mut parts: BTreeMap<usize, Group> = BTreeMap::new();
        for one in &group.uses {
            let number = segments(below(&one.path, path)?).first()?.parse().ok()?;
            parts.entry(number).or_default().uses.push(one.clone());
        }
        for one in &group.methods {
            let owner = self.methods[one.method].owner.as_deref()?;
            let number = segments(below(owner, path)?).first()?.parse().ok()?;
            parts.entry(number).or_default().methods.push(one.clone());
        }
        let gaps = self.gapped.contains(path);
        let conditions = shared(&group.conditions());
        let mut made = Vec::new();
        for (number, mut part) in parts {
            let child = format!("{path}.{number}");
            part.methods.iter_mut().for_each(|one| one.conditions.clear());
            part.uses.iter_mut().for_each(|one| one.conditions.clear());
            let text = match part.uses.iter().find(|one| one.path == child) {
                Some(leaf) => self.target.placed(&leaf.made, &format!("{segment}.{number}")),
                None => self.made(&child, &part),
            };
            if !gaps {
                made.resize(number, self.target.word("gap"));
            }
            made.push(if gaps { format!("\"{number}\": {text}") } else { text });
        }
        let made = made.join(", ");
        let list = if gaps {
            self.target.spelled("dict", &[("items", &made)])
        } else {
            self.target.spelled("list", &[("items", &made)])
        };
        Some((conditions, CodeLine::Text(format!("{} = {list}", access("self", segment)))))
    }

    /// Writes a class from its parts.
    fn finish(
        &mut self,
        path: &str,
        name: Option<String>,
        wanted: &[ClassMethod],
        (own, taken): (&[(usize, Vec<Expr>)], &BTreeSet<String>),
        children: &[(Vec<Expr>, CodeLine)],
    ) -> usize {
        let mut names = Names::new(self.methods, &self.called, &self.gapped);
        names.choices = self.choices;
        names.taken.clone_from(taken);
        let kept = self.kept.clone().unwrap_or_default();
        names.states.clone_from(&kept.places);
        let mut methods = Vec::new();
        for (number, _) in own {
            let method = &self.methods[*number];
            let mut params = method.params.clone();
            params.extend(method.context.iter().map(|context| self.context_param(context)));
            names.passes = method.passes;
            methods.push(WrittenMethod {
                name: match self.called[number].as_str() {
                    FORWARD => self.target.word(FORWARD),
                    other => other.to_owned(),
                },
                about: method.about.clone(),
                params,
                results: method.results,
                body: resolved_lines(&method.body, NameScope::Forward, path, &mut names),
            });
        }
        let kept = self.kept.clone().filter(|_| path.is_empty()).map(|kept| {
            let text = |text: &String| resolved(text, NameScope::Forward, path, &mut names).text;
            KeptStates { made: kept.made.iter().map(text).collect(), ..kept }
        });
        let read: Vec<String> = names.attributes.iter().cloned().collect();
        let mut init_names = Names::new(self.methods, &self.called, &self.gapped);
        let mut init = conditional(children, path, &mut init_names);
        let extra = self.extra.get(path).cloned().unwrap_or_default();
        init.extend(resolved_lines(&extra, NameScope::Init, path, &mut init_names));
        let mut params: IndexSet<String> = IndexSet::new();
        let mut heads = Vec::new();
        for name in &read {
            let (mark, plain) = name.split_once(':').unwrap_or(("D", name));
            let value = if mark == "D" { format!("config.{plain}") } else { parameter(plain) };
            if mark == "E" {
                params.insert(plain.to_owned());
            }
            let attribute = names.attribute(plain);
            heads.push(CodeLine::Text(format!("self.{attribute} = {value}")));
        }
        params.extend(init_names.params.iter().cloned());
        for line in children {
            self.child_params(&line.1, &mut params);
        }
        heads.extend(init);
        let mut params: Vec<String> = params.into_iter().collect();
        let order = |name: &String| self.scalars.get_index_of(name).unwrap_or(usize::MAX);
        params.sort_by_key(order);
        let plain = self.class_name(path, wanted);
        let about = match wanted {
            [one] => self.methods[one.method].about.clone(),
            _ => Vec::new(),
        };
        let name = name.unwrap_or(plain);
        let class = Class { name, about, params, init: heads, methods, kept };
        self.add(class)
    }

    /// Adds the parameters of the classes that a line of a constructor makes.
    fn child_params(&self, line: &CodeLine, params: &mut IndexSet<String>) {
        let CodeLine::Text(text) = line else { return };
        for class in &self.done {
            if text.contains(&format!("{}(config", class.name)) {
                params.extend(class.params.iter().cloned());
            }
        }
    }

    /// Returns the type of a scalar of the layer.
    fn type_of(&self, scalar: &str) -> &'static str {
        match self.scalars.get(scalar).map(|expr| &expr.kind) {
            _ if self.numbers.iter().any(|number| number == scalar) => "int",
            _ if scalar == "kind" => "str",
            Some(ExprKind::Call(name, _)) if ["len", "sum"].contains(&name.name.as_str()) => "int",
            Some(ExprKind::Unary(UnaryOp::Not, _)) => "bool",
            Some(ExprKind::Binary(op, ..)) => match op {
                BinaryOp::Add
                | BinaryOp::Sub
                | BinaryOp::Mul
                | BinaryOp::FloorDiv
                | BinaryOp::Mod => "int",
                _ => "bool",
            },
            _ => "Any",
        }
    }

    fn class_name(&self, path: &str, wanted: &[ClassMethod]) -> String {
        let segment = segments(path).into_iter().rfind(|part| part.parse::<u32>().is_err());
        let owner = |one: &ClassMethod| self.methods[one.method].owner.as_deref() == Some(path);
        let name = match wanted {
            [one] if owner(one) => camel(&self.methods[one.method].name),
            _ => camel(segment.unwrap_or("model")),
        };
        self.target.spelled_or("class", &[("family", &self.family), ("name", &name)], &name)
    }

    /// Adds a class, or finds one of the same text.
    fn add(&mut self, mut class: Class) -> usize {
        let same = |other: &Class| Class { name: class.name.clone(), ..other.clone() } == class;
        if let Some(known) = self.done.iter().position(same) {
            return known;
        }
        let plain = class.name.clone();
        let mut n = 1;
        while !self.names.insert(class.name.clone()) {
            n += 1;
            class.name = format!("{plain}{n}");
        }
        self.done.push(class);
        self.done.len() - 1
    }
}

/// Puts a weight under the child that it lies in.
fn place(children: &mut IndexMap<String, Group>, path: &str, one: &ModuleUse) {
    let Some(rest) = below(&one.path, path).filter(|rest| !rest.is_empty()) else { return };
    let group = children.entry(segments(rest)[0].to_owned()).or_default();
    group.uses.push(one.clone());
}

/// Writes lines under their conditions, neighbours of the same together.
fn conditional(
    lines: &[(Vec<Expr>, CodeLine)],
    path: &str,
    names: &mut Names<'_>,
) -> Vec<CodeLine> {
    let mut written: Vec<CodeLine> = Vec::new();
    let mut last: Option<(String, String)> = None;
    for (conditions, line) in lines {
        let line = resolved_lines(std::slice::from_ref(line), NameScope::Init, path, names);
        if conditions.is_empty() {
            written.extend(line);
            last = None;
            continue;
        }
        let own = all_of(conditions);
        let opposite = match conditions.as_slice() {
            [one] => expression(&negated(one)).0,
            _ => String::new(),
        };
        match (&last, written.last_mut()) {
            (Some((condition, _)), Some(CodeLine::If(_, yes, _))) if *condition == own => {
                yes.extend(line);
            }
            (Some((_, other)), Some(CodeLine::If(_, _, no))) if *other == own => no.extend(line),
            _ => {
                let shown = resolved(&own, NameScope::Init, path, names).text;
                written.push(CodeLine::If(shown, line, Vec::new()));
                last = Some((own, opposite));
            }
        }
    }
    written
}

/// Writes parameters that lie below a module of the target's own.
fn below_leaf(
    (path, target, empty): &(&str, &str, String),
    deeper: &[ModuleUse],
    known: &[Expr],
    target_words: &Target,
    init: &mut Vec<(Vec<Expr>, CodeLine)>,
) {
    let leaf = path.rsplit('.').next().unwrap_or(path);
    let mut made = BTreeSet::new();
    for one in deeper {
        if contradict(&one.conditions, known) && made.insert((*target).to_owned()) {
            let line = CodeLine::Text(format!("{target} = {empty}"));
            init.push((any_of(std::slice::from_ref(one)), line));
        }
        let rest = segments(below(&one.path, path).unwrap_or_default());
        let own = any_of(std::slice::from_ref(one));
        let conditions = if own.is_empty() { known.to_vec() } else { own };
        let mut at = (*target).to_owned();
        for (n, segment) in rest.iter().enumerate() {
            at = access(&at, segment);
            let last = n + 1 == rest.len();
            let name = format!("{leaf}.{}", rest.join("."));
            let module = if last { target_words.placed(&one.made, &name) } else { empty.clone() };
            if made.insert(at.clone()) {
                init.push((conditions.clone(), CodeLine::Text(format!("{at} = {module}"))));
            }
        }
    }
}
