//! A sheet's rules for one model and one launch.
//!
//! Of memory, only the driver's share is assumed ([decision 53](../../../docs/decisions/0053-derived-memory-plans.md)).

use indexmap::IndexMap;

use super::facts::{ModelFacts, map};
use super::gpus::Gpu;
use super::roots::FactRoots;
use super::versions::Version;
use super::{MemoryTerm, RuleAction, Sheet, SheetRule, SheetText, SourceReference};
use crate::config::Config;
use crate::diag::Finding;
use crate::dtype::Dtype;
use crate::eval::{EvalError, eval, eval_owned, truth};
use crate::scalar::Scalar;
use crate::syntax::{Expr, Ident};

/// Settings that a launch was asked for.
#[derive(Debug, Clone)]
pub struct LaunchRequest {
    /// The dtype of activations, and true if the user named it.
    pub dtype: (Dtype, bool),
    /// Ranks that share out the matrices.
    pub tp: i64,
    /// Drafts by the model's own head.
    pub mtp: bool,
    /// Tokens of one sequence.
    pub context: Option<i64>,
    /// Sequences at a time.
    pub sequences: Option<i64>,
    /// The accelerator of each rank.
    pub gpu: Gpu,
    /// The engine's version; none means the one that the sheet was read from.
    pub version: Option<Version>,
    /// Settings by name.
    pub asked: Vec<(String, Scalar)>,
}

/// A setting with its value and the reason for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenSetting {
    /// The setting.
    pub name: String,
    /// The value.
    pub value: Scalar,
    /// The origin of the choice.
    pub by: ValueOrigin,
    /// The reason for the choice.
    pub why: String,
    /// Source of the value.
    pub source: Option<SourceReference>,
}

/// The origin of a value: the user, the model or a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// The user.
    User,
    /// The model's config.
    Model,
    /// A rule, by its name.
    Rule(String),
}

/// A message of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleMessage {
    /// The rule.
    pub rule: String,
    /// The text.
    pub text: String,
    /// Source of the value.
    pub source: Option<SourceReference>,
}

/// A planned value.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedValue {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Scalar,
    /// The unit.
    pub unit: String,
    /// The meaning.
    pub why: String,
    /// Source of the formula.
    pub source: SourceReference,
    /// True for a number that no source gives.
    pub assumed: bool,
}

/// Result of applying a sheet to one launch.
#[derive(Debug, Clone, Default)]
pub struct LaunchPlan {
    /// Settings that are passed, in the sheet's order.
    pub settings: Vec<ChosenSetting>,
    /// The memory plan; empty if the launch is refused before.
    pub plan: Vec<PlannedValue>,
    /// Reasons to refuse the launch.
    pub refusals: Vec<RuleMessage>,
    /// Warnings: the launch will differ from what was asked.
    pub warnings: Vec<RuleMessage>,
    /// Further facts.
    pub facts: Vec<RuleMessage>,
}

/// Applies a sheet. Expressions that cannot be evaluated are findings.
pub fn apply(
    sheet: &Sheet,
    facts: &ModelFacts,
    config: &Config,
    launch: &LaunchRequest,
) -> Result<LaunchPlan, Vec<Finding>> {
    let mut run = RuleRun::new(sheet, facts, config, launch);
    run.apply_request();
    run.choose();
    // Refusals that need no plan come without one: a plan of a launch that cannot be is noise.
    let late = run
        .add_messages(|then| matches!(then, RuleAction::Refuse(_)), sheet.rules.iter().collect());
    if run.out.refusals.is_empty() && run.findings.is_empty() {
        run.plan();
        run.add_messages(|_| true, late);
        run.add_messages(
            |then| matches!(then, RuleAction::Warn(_) | RuleAction::Fact(_)),
            sheet.rules.iter().collect(),
        );
    }
    run.finish()
}

struct RuleRun<'a> {
    sheet: &'a Sheet,
    launch: &'a LaunchRequest,
    env: FactRoots<'a>,
    chosen: IndexMap<String, ChosenSetting>,
    out: LaunchPlan,
    findings: Vec<Finding>,
}

impl<'a> RuleRun<'a> {
    fn new(
        sheet: &'a Sheet,
        facts: &ModelFacts,
        config: &'a Config,
        launch: &'a LaunchRequest,
    ) -> Self {
        let mut env = FactRoots::new(facts, config);
        let tables = sheet.tables.iter().map(|(name, names)| {
            let texts = names.iter().cloned().map(Scalar::Str);
            (name.as_str(), Scalar::List(texts.collect()))
        });
        env.set("table", map(tables));
        let chosen = IndexMap::new();
        let out = LaunchPlan::default();
        Self { sheet, launch, env, chosen, out, findings: Vec::new() }
    }

    /// Takes over what is asked for, and refuses what the engine has no setting for.
    fn apply_request(&mut self) {
        let launch = self.launch;
        let dtype = Scalar::Str(launch.dtype.0.name().to_owned());
        let model = if launch.dtype.1 { ValueOrigin::User } else { ValueOrigin::Model };
        let common = [
            ("dtype", Some(dtype), model),
            ("tp", (launch.tp != 1).then_some(Scalar::Int(launch.tp)), ValueOrigin::User),
            ("mtp", launch.mtp.then_some(Scalar::Bool(true)), ValueOrigin::User),
            ("context", launch.context.map(Scalar::Int), ValueOrigin::User),
            ("sequences", launch.sequences.map(Scalar::Int), ValueOrigin::User),
        ];
        let named = launch
            .asked
            .iter()
            .map(|(name, value)| (name.as_str(), Some(value.clone()), ValueOrigin::User));
        for (name, value, by) in common.into_iter().chain(named) {
            let Some(value) = value else { continue };
            match self.sheet.settings.get(name) {
                Some(setting) => {
                    let why = match (&by, setting.about.is_empty()) {
                        (ValueOrigin::Model, _) => "the dtype of the checkpoint".to_owned(),
                        (_, true) => "asked for".to_owned(),
                        (_, false) => format!("asked for: {}", setting.about),
                    };
                    let source = setting.source.clone();
                    if let Err(why) = setting.allows(&value) {
                        let text = why.to_string();
                        let source = source.clone();
                        self.out.refusals.push(RuleMessage { rule: name.to_owned(), text, source });
                    }
                    let chosen = ChosenSetting { name: name.to_owned(), value, by, why, source };
                    self.chosen.insert(name.to_owned(), chosen);
                }
                None if by == ValueOrigin::Model => {}
                None => self.out.refusals.push(RuleMessage {
                    rule: name.to_owned(),
                    text: format!(
                        "engine `{}` has no setting `{name}`: its sheet lists none, so what was asked \
                         for would be dropped",
                        self.sheet.engine
                    ),
                    source: Some(SourceReference {
                        place: format!("sheet of `{}`, `settings`", self.sheet.engine),
                        quote: None,
                    }),
                }),
            }
        }
    }

    /// Runs the rules that choose settings, in order; each sees what those before it chose.
    fn choose(&mut self) {
        for rule in &self.sheet.rules {
            let (values, why, required) = match &rule.then {
                RuleAction::Set(values, why) => (values, why, true),
                RuleAction::Default(values, why) => (values, why, false),
                _ => continue,
            };
            self.env.set("launch", self.launch_root());
            if self.holds(rule).unwrap_or(false) {
                for (name, value) in values {
                    self.set(rule, name, value, why, required);
                }
            }
        }
        self.env.set("launch", self.launch_root());
    }

    fn set(
        &mut self,
        rule: &SheetRule,
        name: &Ident,
        value: &Expr,
        why: &SheetText,
        required: bool,
    ) {
        let Some(value) = self.ok_or_report(eval_owned(value, &self.env)) else { return };
        let Some(why) = self.ok_or_report(why.fill(&self.env)) else { return };
        let Some(setting) = self.sheet.settings.get(&name.name) else { return };
        if let Err(why) = setting.allows(&value) {
            self.findings.push(Finding::error(&name.at, why.to_string()));
            return;
        }
        let source = Some(rule.source.clone());
        let requested = self.chosen.get(&name.name).filter(|chosen| chosen.by == ValueOrigin::User);
        if let Some(requested) = requested {
            if required && requested.value != value {
                let text = format!(
                    "`{}` is asked to be `{}`, and has to be `{}`: {why}",
                    name.name,
                    setting.spell(&requested.value),
                    setting.spell(&value)
                );
                self.out.refusals.push(RuleMessage { rule: rule.id.name.clone(), text, source });
            }
            return;
        }
        let by = ValueOrigin::Rule(rule.id.name.clone());
        let chosen = ChosenSetting { name: name.name.clone(), value, by, why, source };
        self.chosen.insert(name.name.clone(), chosen);
    }

    fn plan(&mut self) {
        let mut plan: Vec<(String, Scalar)> = Vec::new();
        self.env.set("plan", Scalar::Map(Vec::new()));
        for planned in &self.sheet.plan {
            let MemoryTerm { name, when, value, unit, why, source, assumed } = planned;
            let fits = match when {
                Some(when) => self.ok_or_report(eval(when, &self.env).map(|value| truth(&value))),
                None => Some(true),
            };
            let value = match fits {
                Some(true) => self.ok_or_report(eval_owned(value, &self.env)),
                Some(false) => Some(Scalar::Null),
                None => None,
            };
            // A rule that needs an absent value reports nothing.
            let Some(value) = value else { return };
            plan.push((name.name.clone(), value.clone()));
            self.env.set("plan", Scalar::Map(plan.clone()));
            if fits != Some(true) {
                continue;
            }
            let why = self.ok_or_report(why.fill(&self.env)).unwrap_or_default();
            let name = name.name.clone();
            let unit = unit.clone();
            let source = source.clone();
            let assumed = *assumed;
            self.out.plan.push(PlannedValue { name, value, unit, why, source, assumed });
        }
    }

    /// Reports the messages of rules; returns the rules that need a plan which does not exist.
    fn add_messages(
        &mut self,
        selects: fn(&RuleAction) -> bool,
        rules: Vec<&'a SheetRule>,
    ) -> Vec<&'a SheetRule> {
        let mut late = Vec::new();
        for rule in rules {
            let (RuleAction::Warn(text) | RuleAction::Refuse(text) | RuleAction::Fact(text)) =
                &rule.then
            else {
                continue;
            };
            if !selects(&rule.then) {
                continue;
            }
            match self.holds(rule) {
                None => late.push(rule),
                Some(false) => {}
                Some(true) => {
                    let Some(text) = self.ok_or_report(text.fill(&self.env)) else { continue };
                    let source = Some(rule.source.clone());
                    let message = RuleMessage { rule: rule.id.name.clone(), text, source };
                    match rule.then {
                        RuleAction::Refuse(_) => self.out.refusals.push(message),
                        RuleAction::Warn(_) => self.out.warnings.push(message),
                        _ => self.out.facts.push(message),
                    }
                }
            }
        }
        late
    }

    /// True if a rule is for this version and its condition holds; none if that is not known yet.
    fn holds(&mut self, rule: &SheetRule) -> Option<bool> {
        let range = rule.versions.as_ref().zip(self.launch.version.as_ref());
        if range.is_some_and(|(versions, version)| !versions.contains(version)) {
            return Some(false);
        }
        let Some(when) = &rule.when else { return Some(true) };
        match eval(when, &self.env) {
            Ok(value) => Some(truth(&value)),
            Err(EvalError::Reported) => None,
            Err(EvalError::Finding(finding)) => {
                self.findings.push(*finding);
                Some(false)
            }
        }
    }

    fn ok_or_report<T>(&mut self, result: Result<T, EvalError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(EvalError::Finding(finding)) => {
                self.findings.push(*finding);
                None
            }
            Err(EvalError::Reported) => None,
        }
    }

    /// Returns the settings as expressions see them.
    fn launch_root(&self) -> Scalar {
        let launch = self.launch;
        let mut entries: IndexMap<String, Scalar> = IndexMap::new();
        for (name, setting) in &self.sheet.settings {
            let value = self.chosen.get(name).map(|chosen| chosen.value.clone());
            entries.insert(name.clone(), value.unwrap_or_else(|| setting.default.clone()));
        }
        let gpu = map([
            ("name", Scalar::Str(launch.gpu.name.clone())),
            ("memory", Scalar::Int(launch.gpu.memory)),
            ("sm", int_or_null(launch.gpu.sm)),
        ]);
        let version = launch.version.as_ref().map(|_| Scalar::Bool(true));
        let root = [
            ("dtype", Scalar::Str(launch.dtype.0.name().to_owned())),
            ("tp", Scalar::Int(launch.tp)),
            ("mtp", Scalar::Bool(launch.mtp)),
            ("context", int_or_null(launch.context)),
            ("sequences", int_or_null(launch.sequences)),
            ("gpu", gpu),
            ("version", version.unwrap_or(Scalar::Null)),
        ];
        for (name, value) in root {
            // A rule may have chosen one that the user left open, or the sheet has a default.
            let open = value == Scalar::Null && entries.contains_key(name);
            if !self.chosen.contains_key(name) && !open {
                entries.insert(name.to_owned(), value);
            }
        }
        Scalar::Map(entries.into_iter().collect())
    }

    fn finish(mut self) -> Result<LaunchPlan, Vec<Finding>> {
        if !self.findings.is_empty() {
            return Err(self.findings);
        }
        let settings = &self.sheet.settings;
        self.chosen.sort_by(|a, _, b, _| settings.get_index_of(a).cmp(&settings.get_index_of(b)));
        self.out.settings = self.chosen.into_values().collect();
        Ok(self.out)
    }
}

/// Returns a number as expressions see it.
fn int_or_null(n: Option<i64>) -> Scalar {
    n.map_or(Scalar::Null, Scalar::Int)
}
