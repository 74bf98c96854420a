//! Modules that layers take from elsewhere: from another layer, or from a list beside the layers. Their paths have scalars of the layer in them.

use registry::diag::Finding;
use registry::syntax::{BinaryOp, Expr, ExprKind};

use crate::file::CodeWriter;
use crate::loops::{as_variables, holder, in_turn, put};
use crate::modules::{LentChild, LentModule, ModuleChoice};
use crate::python::expression;
use crate::symbol::{self, equal, marked};
use crate::value::{CodeLine, Method, below, parameter, parent};
use crate::walk::Walk;

impl Walk<'_> {
    /// Returns the path that a text names, whose weights are outside of the layer; below a name of the layer's own if it depends on the layer.
    pub(crate) fn path_of(&mut self, text: &Expr) -> Result<String, Finding> {
        let mut numbers = Vec::new();
        let path = pattern(text, &mut numbers)?;
        let Some((list, tail)) = path.split_once(".{") else { return Ok(path) };
        let (_, tail) = tail.split_once('}').unwrap_or((tail, ""));
        let tail = tail.trim_start_matches('.');
        let inside = list == self.layers.list;
        if !inside && parent(list) != holder(&self.layers.list) {
            return Err(Finding::error(&text.at, format!("`{list}` is not beside the layers"))
                .help("code is written for lists in the module that has the layers"));
        }
        let (name, mut path) = if inside {
            (tail.split('.').next().unwrap_or(tail).to_owned(), tail.to_owned())
        } else {
            let name = list.rsplit('.').next().unwrap_or(list).to_owned();
            (name.clone(), format!("{name}.{tail}"))
        };
        self.needs("lent_modules", "layers that take modules from elsewhere", text);
        let number = numbers.remove(0);
        let class = self.layers.classes.len();
        if !self.lent.iter().any(|one| one.name == name && one.class == class) {
            let owner = inside.then(|| self.layer.expanded(&number, ""));
            let list = list.to_owned();
            self.lent.push(LentModule { name, list, number: number.clone(), owner, class });
        }
        for inner in numbers {
            let place = self.module_choice(inner, &number, text)?;
            path = path.replacen("{}", &format!("{{{place}}}"), 1);
        }
        Ok(path)
    }

    /// Notes a number in the path of a module, and gives its place among all.
    fn module_choice(&mut self, number: Expr, owner: &Expr, at: &Expr) -> Result<usize, Finding> {
        let same = |one: &ModuleChoice| expression(&one.number).0 == expression(&number).0;
        if let Some(known) = self.choices.iter().position(same) {
            return Ok(known);
        }
        let count = self.layers.count.clone().filter(|_| self.prefix.is_some());
        let count = count.ok_or_else(|| Finding::error(&at.at, "no layer is under way"))?;
        let all = match expression(&number).0.strip_prefix("«E:") {
            Some(name) => parameter(name.trim_end_matches('»')) + "s",
            None => format!("numbers_{}", self.choices.len()),
        };
        let body = self.layer.expanded(&number, "");
        let mut filter = equal(self.layer.expanded(owner, ""), marked("E", "taker", at));
        if let (Some(kind), Some(ExprKind::Str(name))) =
            (&self.layers.kind, self.layer.each.get("kind").map(|kind| &kind.kind))
        {
            let name = symbol::with(at, ExprKind::Str(name.clone()));
            let same = Box::new(equal(kind.clone(), name));
            filter = symbol::with(at, ExprKind::Binary(BinaryOp::And, same, Box::new(filter)));
        }
        let list = in_turn(&body, &count, Some(&filter), "n");
        self.layer.each.insert(all.clone(), put(&list, "«E:taker»", &marked("E", "i", at)));
        self.choices.push(ModuleChoice { number, all });
        Ok(self.choices.len() - 1)
    }

    /// True if scalars of the layer are arguments of a method, because several layers have its module.
    pub(crate) fn passes(&self, method: &Method) -> bool {
        if self.prefix.is_none() {
            return false;
        }
        let is_lent =
            |owner: &String| self.lent.iter().any(|one| below(owner, &one.name).is_some());
        self.layers.place.is_some() || method.owner.as_ref().map_or(!self.lent.is_empty(), is_lent)
    }

    /// True if a path in a layer is that of a module outside of it.
    pub(crate) fn is_outside(&self, path: &str) -> bool {
        let holder = holder(&self.layers.list);
        self.prefix.is_some() && !holder.is_empty() && below(path, holder).is_some()
    }

    /// Returns the full path of a weight of a layer.
    pub(crate) fn full_path(&self, path: &str) -> String {
        let outside = self.lent.iter().filter(|one| one.owner.is_none());
        for one in outside {
            if let Some(tail) = below(path, &one.name) {
                return format!("{}.0.{tail}", one.list);
            }
        }
        match &self.prefix {
            Some(prefix) => format!("{prefix}.{path}"),
            None => path.to_owned(),
        }
    }
}

/// Returns a path with `{}` where numbers of the layer are, and these.
fn pattern(text: &Expr, numbers: &mut Vec<Expr>) -> Result<String, Finding> {
    let wrong = || {
        Finding::error(&text.at, "this is a path that depends on the config")
            .help("code is written for paths that are filled with numbers")
    };
    match &text.kind {
        ExprKind::Str(text) => Ok(text.clone()),
        ExprKind::Int(number) => Ok(number.to_string()),
        ExprKind::Call(name, args) if name.name == "fill" => {
            let Some((form, given)) = args.split_first() else { return Err(wrong()) };
            let ExprKind::Str(form) = &form.value.kind else { return Err(wrong()) };
            let mut path = String::new();
            let mut given = given.iter();
            for (n, piece) in form.split("{}").enumerate() {
                if n > 0 {
                    path += &pattern(&given.next().ok_or_else(wrong)?.value, numbers)?;
                }
                path += piece;
            }
            Ok(path)
        }
        _ => {
            numbers.push(text.clone());
            Ok("{}".to_owned())
        }
    }
}

impl CodeWriter<'_, '_> {
    /// Returns the lines by which layers get modules that they take from elsewhere, before and behind the line that makes the layers.
    pub(crate) fn lent_lines(
        &self,
        classes: &[&str],
        children: &[LentChild],
    ) -> (Vec<CodeLine>, Vec<CodeLine>) {
        let layers = &self.walk.layers;
        let list = format!("«W:{}»", layers.list);
        let text = |text: String| CodeLine::Text(text);
        let number = layers.place.as_deref().unwrap_or("layer");
        let mut before = Vec::new();
        let mut behind = Vec::new();
        let mut done: Vec<&str> = Vec::new();
        for lent in &self.walk.lent {
            if done.contains(&lent.name.as_str()) {
                continue;
            }
            done.push(&lent.name);
            let name = &lent.name;
            let scalars = &layers.classes[lent.class].scalars;
            let over = format!("{number}, block in enumerate({list})");
            if let Some(owner) = &lent.owner {
                let owner = as_variables(&expression(owner).0);
                let taken = text(format!("block.{name} = {list}[{owner}].{name}"));
                let taken = match classes {
                    [_] => taken,
                    several => CodeLine::If(
                        format!("isinstance(block, {})", several[lent.class]),
                        vec![taken],
                        Vec::new(),
                    ),
                };
                behind.push(CodeLine::For(over, vec![taken]));
            } else if let Some(child) = children.iter().find(|child| child.name == *name) {
                let modules = format!("self.{name}");
                let none = self.walk.target.spelled("list", &[("items", "")]);
                before.push(text(format!("{modules} = {none}")));
                let taken = match &layers.place {
                    Some(place) => scalars.by_place(&lent.number, place),
                    None => scalars.expanded(&lent.number, ""),
                };
                let taken = as_variables(&expression(&taken).0);
                let lines = vec![
                    text(format!("number = {taken}")),
                    CodeLine::If(
                        format!("number == len({modules})"),
                        vec![text(format!("{modules}.append({})", child.made))],
                        Vec::new(),
                    ),
                    text(format!("block.{name} = {modules}[number]")),
                ];
                let lines = if child.condition.is_empty() {
                    lines
                } else {
                    vec![CodeLine::If(as_variables(&child.condition), lines, Vec::new())]
                };
                behind.push(CodeLine::For(over, lines));
            }
        }
        (before, behind)
    }
}
