//! Words of expressions that nothing in a sheet or in a launch gives.

use std::collections::BTreeSet;

use super::facts::{STATE, WORDS};
use super::{RuleAction, Sheet};
use crate::diag::Finding;
use crate::eval::FUNCTIONS;
use crate::suggest;
use crate::syntax::{Expr, ExprKind, Ident};

/// Settings that every launch has, listed in its sheet or not.
pub(super) const BUILTIN: [&str; 7] =
    ["dtype", "tp", "mtp", "context", "sequences", "gpu", "version"];
/// Fields of a GPU.
pub(super) const GPU: [&str; 3] = ["name", "memory", "sm"];

/// Finds every unknown word of a sheet.
pub(super) fn lint(sheet: &Sheet) -> Vec<Finding> {
    let mut lint = SheetLint { sheet, planned: BTreeSet::new(), findings: Vec::new() };
    // Settings are chosen before anything is planned, so these see no plan.
    for rule in &sheet.rules {
        if let RuleAction::Set(values, why) | RuleAction::Default(values, why) = &rule.then {
            lint.all(rule.when.iter());
            lint.all(values.iter().map(|(_, value)| value));
            lint.all(why.exprs());
            for (name, _) in values {
                lint.findings.extend(sheet.setting(name).err());
            }
        }
    }
    for planned in &sheet.plan {
        lint.all(planned.when.iter().chain([&planned.value]));
        lint.planned.insert(planned.name.name.clone());
        lint.all(planned.why.exprs());
    }
    for rule in &sheet.rules {
        if let RuleAction::Warn(text) | RuleAction::Refuse(text) | RuleAction::Fact(text) =
            &rule.then
        {
            lint.all(rule.when.iter());
            lint.all(text.exprs());
        }
    }
    for key in &sheet.config_keys {
        lint.all(key.when.iter().chain([&key.value]));
    }
    lint.twice();
    lint.reports();
    lint.findings
}

struct SheetLint<'s> {
    sheet: &'s Sheet,
    /// Planned values so far.
    planned: BTreeSet<String>,
    findings: Vec<Finding>,
}

impl SheetLint<'_> {
    fn all<'e>(&mut self, exprs: impl Iterator<Item = &'e Expr>) {
        for expr in exprs {
            self.expr(expr, &mut Vec::new());
        }
    }

    fn expr(&mut self, expr: &Expr, bound: &mut Vec<String>) {
        match &expr.kind {
            ExprKind::Path(names) => self.path(names, bound),
            ExprKind::Call(name, args) => {
                if !FUNCTIONS.contains(&name.name.as_str()) {
                    self.unknown(name, "function", FUNCTIONS.iter().copied());
                }
                for arg in args {
                    self.expr(&arg.value, bound);
                }
            }
            ExprKind::Unary(_, operand) => self.expr(operand, bound),
            ExprKind::Binary(_, left, right) | ExprKind::Index(left, right) => {
                self.expr(left, bound);
                self.expr(right, bound);
            }
            ExprKind::Slice(base, from, to) => {
                self.expr(base, bound);
                from.iter().chain(to).for_each(|part| self.expr(part, bound));
            }
            ExprKind::If { then, condition, otherwise } => {
                for part in [then, condition, otherwise] {
                    self.expr(part, bound);
                }
            }
            ExprKind::List(items) => items.iter().for_each(|item| self.expr(item, bound)),
            ExprKind::Comprehension { body, variable, over, filter } => {
                self.expr(over, bound);
                bound.push(variable.name.clone());
                self.expr(body, bound);
                if let Some(filter) = filter {
                    self.expr(filter, bound);
                }
                bound.pop();
            }
            ExprKind::Null
            | ExprKind::Bool(_)
            | ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Str(_) => {}
        }
    }

    fn path(&mut self, names: &[Ident], bound: &[String]) {
        let Some((first, tail)) = names.split_first() else { return };
        if bound.contains(&first.name) {
            return;
        }
        let sheet = self.sheet;
        let members: Vec<&str> = match first.name.as_str() {
            "launch" => {
                let known: Vec<&str> = BUILTIN
                    .iter()
                    .copied()
                    .chain(sheet.settings.keys().map(String::as_str))
                    .collect();
                if let [gpu, inner, ..] = tail
                    && gpu.name == "gpu"
                    && !GPU.contains(&inner.name.as_str())
                {
                    self.unknown(inner, "fact of a GPU", GPU.iter().copied());
                }
                known
            }
            "table" => sheet.tables.keys().map(String::as_str).collect(),
            "plan" => {
                let planned = self.planned.clone();
                if let Some(name) = tail.first().filter(|name| !planned.contains(&name.name)) {
                    self.unknown(
                        name,
                        "planned value before this",
                        planned.iter().map(String::as_str),
                    );
                }
                return;
            }
            "bytes" => return,
            root => {
                let Some((_, words)) = WORDS.iter().find(|(word, _)| *word == root) else {
                    let roots = WORDS.iter().map(|(word, _)| *word);
                    let known: Vec<&str> =
                        roots.chain(["launch", "table", "plan", "bytes"]).collect();
                    self.unknown(first, "word", known.iter().copied());
                    return;
                };
                words.to_vec()
            }
        };
        if let ("state", [_, inner, ..]) = (first.name.as_str(), tail)
            && !STATE.contains(&inner.name.as_str())
        {
            self.unknown(inner, "fact of a state", STATE);
        }
        if let Some(name) = tail.first().filter(|name| !members.contains(&name.name.as_str())) {
            let what = format!("member of `{}`", first.name);
            self.unknown(name, &what, members.iter().copied());
        }
    }

    fn unknown<'a>(
        &mut self,
        name: &Ident,
        what: &str,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) {
        let mut finding = Finding::error(&name.at, format!("there is no {what} `{}`", name.name));
        finding.help = suggest::help(&name.name, known);
        self.findings.push(finding);
    }

    /// Reports names that occur twice.
    fn twice(&mut self) {
        let sheet = self.sheet;
        let rules = sheet.rules.iter().map(|rule| &rule.id);
        for names in [rules.collect::<Vec<_>>(), sheet.plan.iter().map(|p| &p.name).collect()] {
            let mut seen = BTreeSet::new();
            for name in names.into_iter().filter(|name| !seen.insert(name.name.clone())) {
                let message = format!("`{}` stands twice", name.name);
                self.findings.push(Finding::error(&name.at, message));
            }
        }
    }

    /// Reports fields of answers that are about no setting.
    fn reports(&mut self) {
        let sheet = self.sheet;
        for name in sheet.reports.iter().flat_map(|report| report.fields.keys()) {
            let general = ["version", "class", "model"].contains(&name.as_str());
            if !general && !sheet.settings.contains_key(name) {
                self.findings.push(Finding::unplaced(format!(
                    "sheet `{}`: `reports` names the setting `{name}`, which it lacks",
                    sheet.engine
                )));
            }
        }
    }
}
