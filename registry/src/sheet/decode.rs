//! A sheet's tree as a sheet, with everything that is wrong with it.

use indexmap::IndexMap;

use super::{
    ConfigKey, EngineSetting, MemoryTerm, RuleAction, SettingKind, SettingsReport, Sheet, SheetRule,
};
use crate::diag::Finding;
use crate::scalar::Scalar;
use crate::suggest;
use crate::yaml::{TreeReader, YamlMap, YamlNode, YamlValue};

mod nodes;

/// Keys of a sheet that describe the launch.
pub(super) const KEYS: [&str; 14] = [
    "alias",
    "package",
    "versions",
    "checked",
    "image",
    "command",
    "model_flag",
    "port",
    "settings",
    "tables",
    "plan",
    "rules",
    "config_keys",
    "reports",
];
/// Keys of a sheet for the engine's capabilities and transport; the engine crate reads them.
pub const CAPABILITY: [&str; 16] = [
    "engine",
    "ops",
    "states",
    "dtypes",
    "architectures",
    "formats",
    "features",
    "apart",
    "kind",
    "about",
    "ran_with",
    "plugin",
    "program",
    "modules",
    "install",
    "shows",
];
const SETTING: [&str; 9] =
    ["flag", "off", "env", "default", "kind", "choices", "values", "source", "about"];
const RULE: [&str; 10] =
    ["id", "when", "versions", "set", "default", "why", "warn", "refuse", "fact", "source"];
const PLAN: [&str; 7] = ["name", "when", "value", "unit", "why", "source", "assumed"];
const CONFIG_KEY: [&str; 4] = ["key", "when", "value", "source"];
const REPORT: [&str; 4] = ["path", "fields", "optional", "source"];
const TABLE: [&str; 2] = ["source", "names"];
const QUOTE: [&str; 2] = ["place", "quote"];

#[derive(Default)]
struct SheetDecoder {
    tree: TreeReader,
}

/// Reads a tree. What is wrong is left out of the sheet and reported.
pub(super) fn decode(tree: &YamlNode) -> (Sheet, Vec<Finding>) {
    let mut decoder = SheetDecoder::default();
    let empty = YamlMap::new();
    let map = decoder.tree.map(tree, "a sheet", &super::known_keys()).unwrap_or(&empty);
    let sheet = decoder.sheet(map);
    if sheet.engine.is_empty() {
        let finding = Finding::error(&tree.at, "a sheet needs `engine`");
        decoder.tree.findings.push(finding.help("write `engine: NAME` on its first line"));
    }
    (sheet, decoder.tree.findings)
}

impl SheetDecoder {
    fn sheet(&mut self, map: &YamlMap) -> Sheet {
        let mut tables = IndexMap::new();
        for key in ["architectures", "formats", "states", "dtypes", "features"] {
            if let Some(entry) = map.get(key) {
                tables.insert(key.to_owned(), self.tree.names(&entry.value));
            }
        }
        for (name, node) in self.tree.entries(map, "tables") {
            let Some(table) = self.tree.map(&node, "a table", &TABLE) else { continue };
            let names = table.get("names").map(|entry| self.tree.names(&entry.value));
            if names.is_none() {
                self.missing(&name, "table", "names");
            }
            tables.insert(name.name, names.unwrap_or_default());
        }
        let port = self.tree.word(map, "port").and_then(|word| {
            let port = word.name.parse().ok();
            if port.is_none() {
                self.tree
                    .findings
                    .push(Finding::error(&word.at, "this is no port").label("expected 1 to 65535"));
            }
            port
        });
        let engine = self.tree.word(map, "engine").map(|word| word.name).unwrap_or_default();
        Sheet {
            alias: self.words(map, "alias"),
            package: self.tree.string(map, "package"),
            versions: self.versions(map),
            checked: self.tree.string(map, "checked"),
            image: self.tree.string(map, "image"),
            command: map.get("command").map(|e| self.tree.names(&e.value)).unwrap_or_default(),
            model_flag: self.tree.string(map, "model_flag").unwrap_or_default(),
            port,
            settings: self.settings(map, &tables),
            plan: self.items(map, "plan", "a planned value", &PLAN, Self::planned),
            rules: self.items(map, "rules", "a rule", &RULE, Self::rule),
            config_keys: self
                .items(map, "config_keys", "a config key", &CONFIG_KEY, Self::config_key)
                .into_iter()
                .map(|key| ConfigKey { engine: engine.clone(), ..key })
                .collect(),
            reports: self.items(map, "reports", "a report", &REPORT, Self::report),
            tables,
            engine,
        }
    }

    fn settings(
        &mut self,
        map: &YamlMap,
        tables: &IndexMap<String, Vec<String>>,
    ) -> IndexMap<String, EngineSetting> {
        let mut settings = IndexMap::new();
        for (name, node) in self.tree.entries(map, "settings") {
            let Some(entry) = self.tree.map(&node, "a setting", &SETTING) else { continue };
            let kind = self.tree.word(entry, "kind").map_or(Some(SettingKind::Text), |word| {
                let kind = SettingKind::parse(&word.name);
                if kind.is_none() {
                    let finding = Finding::error(&word.at, "there is no such kind of value");
                    let help = "known are `int`, `number`, `text`, `switch`";
                    self.tree.findings.push(finding.help(help));
                }
                kind
            });
            let choices = match entry.get("choices").map(|entry| &entry.value) {
                // The name of a table.
                Some(YamlNode { value: YamlValue::Plain(table), .. }) => {
                    let names = tables.get(table.value()).cloned();
                    if names.is_none() {
                        let message = format!("there is no table `{}`", table.value());
                        let mut finding = Finding::error(&table.span(), message);
                        finding.help =
                            suggest::help(table.value(), tables.keys().map(String::as_str));
                        self.tree.findings.push(finding);
                    }
                    names.unwrap_or_default()
                }
                Some(list) => self.tree.names(list),
                None => Vec::new(),
            };
            let setting = EngineSetting {
                flag: self.tree.string(entry, "flag"),
                off: self.tree.string(entry, "off"),
                env: self.tree.string(entry, "env"),
                default: self.constant(entry, "default"),
                kind: kind.unwrap_or(SettingKind::Text),
                choices,
                values: self.words(entry, "values"),
                source: entry.get("source").and_then(|source| self.origin(&source.value)),
                about: self.tree.string(entry, "about").unwrap_or_default(),
                name: name.clone(),
            };
            settings.insert(name.name, setting);
        }
        settings
    }

    fn rule(&mut self, at: &YamlNode, map: &YamlMap) -> Option<SheetRule> {
        let id = self.tree.needed(map, "id", at, "a rule")?;
        let why = self.template(map, "why").unwrap_or_default();
        let mut thens = Vec::new();
        if map.contains_key("set") {
            thens.push(RuleAction::Set(self.assignments(map, "set"), why.clone()));
        }
        if map.contains_key("default") {
            thens.push(RuleAction::Default(self.assignments(map, "default"), why));
        }
        thens.extend(self.template(map, "warn").map(RuleAction::Warn));
        thens.extend(self.template(map, "refuse").map(RuleAction::Refuse));
        thens.extend(self.template(map, "fact").map(RuleAction::Fact));
        let one = thens.len() == 1;
        if !one {
            let message = format!("rule `{}` ends in {} ways", id.name, thens.len());
            let finding = Finding::error(&id.at, message);
            self.tree
                .findings
                .push(finding.help("write one of `set`, `default`, `warn`, `refuse`, `fact`"));
        }
        // Everything is read before anything is given up, so that all findings come at once.
        let when = self.condition(map);
        let versions = self.versions(map);
        let source = self.source(map, at, "a rule")?;
        let then = thens.pop()?;
        one.then_some(SheetRule { id, when, versions, then, source })
    }

    fn planned(&mut self, at: &YamlNode, map: &YamlMap) -> Option<MemoryTerm> {
        let name = self.tree.needed(map, "name", at, "a planned value")?;
        let value = self.expr(map, "value");
        if !map.contains_key("value") {
            self.missing(&name, "planned value", "value");
        }
        let source = self.source(map, at, "a planned value")?;
        Some(MemoryTerm {
            when: self.condition(map),
            value: value?,
            unit: self.tree.string(map, "unit").unwrap_or_default(),
            why: self.template(map, "why").unwrap_or_default(),
            source,
            assumed: self.constant(map, "assumed") == Scalar::Bool(true),
            name,
        })
    }

    fn config_key(&mut self, at: &YamlNode, map: &YamlMap) -> Option<ConfigKey> {
        let key = self.tree.needed(map, "key", at, "a config key")?;
        let value = self.expr(map, "value");
        if !map.contains_key("value") {
            self.missing(&key, "config key", "value");
        }
        let source = self.source(map, at, "a config key")?;
        let when = self.condition(map);
        Some(ConfigKey { key, when, value: value?, source, engine: String::new() })
    }

    fn report(&mut self, at: &YamlNode, map: &YamlMap) -> Option<SettingsReport> {
        let path = self.tree.needed(map, "path", at, "a report")?;
        let fields = self.words(map, "fields");
        let optional = self.constant(map, "optional") == Scalar::Bool(true);
        let source = map.get("source").and_then(|source| self.origin(&source.value));
        Some(SettingsReport { path: path.name, fields, optional, source })
    }
}
