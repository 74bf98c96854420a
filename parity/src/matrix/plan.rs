//! Plan of a matrix: models, engines, dtypes, and cells that are known not to pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use formats::shown;
use registry::diag::{Finding, SourceText};
use registry::dtype::Dtype;
use registry::suggest;
use registry::syntax::Ident;
use registry::yaml::{self, TreeReader, YamlMap, YamlNode, YamlValue};

/// Plan of a matrix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatrixPlan {
    /// Models, in order.
    pub models: Vec<PlanModel>,
    /// Engines, in order.
    pub engines: Vec<PlanEngine>,
    /// Default dtypes of models and engines.
    pub dtypes: Vec<Dtype>,
    /// Flags that are passed on to every check.
    pub flags: Vec<String>,
    /// Cells that need not pass.
    pub known: Vec<KnownFailure>,
}

/// Model of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanModel {
    /// Name in reports; the last part of the path by default.
    pub name: String,
    /// Folder or file of the model, or its id on a hub.
    pub path: String,
    /// Dump, if not beside the model.
    pub reference: Option<String>,
    /// Spec, if no known one matches.
    pub spec: Option<String>,
    /// Checkpoint that the model was made from.
    pub source: Option<String>,
    /// Engines to run the model on; all if empty.
    pub engines: Vec<String>,
    /// Dtypes; those of the engine or the plan if empty.
    pub dtypes: Vec<Dtype>,
}

/// Engine of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanEngine {
    /// Name in reports.
    pub name: String,
    /// Value of `--engine`.
    pub engine: String,
    /// Options of the engine, `KEY=VALUE`.
    pub options: Vec<String>,
    /// Dtypes; those of the plan if empty.
    pub dtypes: Vec<Dtype>,
    /// Flags for the checks of this engine.
    pub flags: Vec<String>,
}

/// Cells that need not pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownFailure {
    /// The model; all if none.
    pub model: Option<String>,
    /// The engine; all if none.
    pub engine: Option<String>,
    /// The dtype; all if none.
    pub dtype: Option<Dtype>,
    /// Reason, which reports repeat.
    pub because: String,
}

const PLAN: [&str; 5] = ["models", "engines", "dtypes", "flags", "known"];
const MODEL: [&str; 7] = ["name", "path", "reference", "spec", "source", "engines", "dtypes"];
const ENGINE: [&str; 5] = ["name", "engine", "options", "dtypes", "flags"];
/// Flags of a check that a run sets, or that every cell would write to, and what to write in a plan.
const SET: [(&str, &str); 8] = [
    ("engine", "name the engine in `engines`"),
    ("engine-option", "write `options` of the engine"),
    ("dtype", "write `dtypes`"),
    ("reference", "write `reference` of the model"),
    ("spec", "write `spec` of the model"),
    ("source", "write `source` of the model"),
    ("junit", "give it to `parity matrix`, which writes one file"),
    ("html", "give it to `parity matrix`, which writes one page"),
];
const KNOWN: [&str; 4] = ["model", "engine", "dtype", "because"];

/// Parses a plan, or returns all faults in it.
pub fn read(source: &Arc<SourceText>) -> Result<MatrixPlan, Vec<Finding>> {
    let tree = yaml::read(source)?;
    let mut reader = PlanReader::default();
    let plan = reader.plan(&tree);
    reader.tree.finish(plan)
}

impl MatrixPlan {
    /// Returns the dtypes of a model on an engine: the model's, else the engine's, else the plan's, else
    /// f32.
    pub fn dtypes(&self, model: &PlanModel, engine: &PlanEngine) -> Vec<Dtype> {
        let lists = [&model.dtypes, &engine.dtypes, &self.dtypes];
        lists.into_iter().find(|list| !list.is_empty()).cloned().unwrap_or(vec![Dtype::F32])
    }

    /// Returns the pairs of models and engines, in order.
    pub fn pairs(&self) -> Vec<(&PlanModel, &PlanEngine)> {
        self.models
            .iter()
            .flat_map(|model| self.engines.iter().map(move |engine| (model, engine)))
            .filter(|(model, engine)| {
                model.engines.is_empty() || model.engines.contains(&engine.name)
            })
            .collect()
    }

    /// Returns the reason for which a cell need not pass, if there is one.
    pub fn known(&self, model: &str, engine: &str, dtype: &str) -> Option<&str> {
        let fitting = self.known.iter().find(|known| {
            known.model.as_ref().is_none_or(|name| name == model)
                && known.engine.as_ref().is_none_or(|name| name == engine)
                && known.dtype.is_none_or(|known| known.name() == dtype)
        });
        fitting.map(|known| known.because.as_str())
    }
}

#[derive(Default)]
struct PlanReader {
    tree: TreeReader,
}

impl PlanReader {
    fn plan(&mut self, tree: &YamlNode) -> MatrixPlan {
        let Some(map) = self.tree.map(tree, "a plan", &PLAN) else { return MatrixPlan::default() };
        let plan = MatrixPlan {
            models: self.items(map, "models", Self::model),
            engines: self.items(map, "engines", Self::engine),
            dtypes: self.dtypes(map),
            flags: self.flags(map),
            known: self.items(map, "known", Self::known),
        };
        for (key, none) in
            [("models", plan.models.is_empty()), ("engines", plan.engines.is_empty())]
        {
            if none && self.tree.findings.is_empty() {
                let finding = Finding::error(&tree.at, format!("a plan needs `{key}`"));
                self.tree
                    .findings
                    .push(finding.help(format!("write `{key}:` and a list below it")));
            }
        }
        let models: BTreeSet<&str> = plan.models.iter().map(|model| model.name.as_str()).collect();
        let engines: BTreeSet<&str> = plan.engines.iter().map(|e| e.name.as_str()).collect();
        self.doubled(map, "models", plan.models.len() - models.len());
        self.doubled(map, "engines", plan.engines.len() - engines.len());
        self.references(map, "models", "engines", &engines);
        self.references(map, "known", "engine", &engines);
        self.references(map, "known", "model", &models);
        plan
    }

    fn doubled(&mut self, map: &YamlMap, key: &str, count: usize) {
        if let Some(entry) = map.get(key).filter(|_| count > 0) {
            let finding = Finding::error(&entry.value.at, format!("two of `{key}` have one name"));
            self.tree.findings.push(finding.help("give each a `name:` of its own"));
        }
    }

    /// Reports names in the items of `list` that are not defined.
    fn references(&mut self, map: &YamlMap, list: &str, key: &str, names: &BTreeSet<&str>) {
        let Some(YamlValue::List(items)) = map.get(list).map(|entry| &entry.value.value) else {
            return;
        };
        for item in items {
            let Some(item) = item.map() else { continue };
            for word in self.tree.words(item, key) {
                if names.contains(word.name.as_str()) {
                    continue;
                }
                let message = format!("nothing is called `{}`", shown(&word.name));
                let finding = Finding::error(&word.at, message);
                let help = suggest::help(&word.name, names.iter().copied());
                self.tree.findings.push(finding.help(help.unwrap_or_default()));
            }
        }
    }

    fn model(&mut self, node: &YamlNode) -> Option<PlanModel> {
        if let Some(path) = node.text() {
            let path = path.ident().name;
            return Some(PlanModel { name: last(&path), path, ..PlanModel::default() });
        }
        let map = self.tree.map(node, "a model", &MODEL)?;
        let path = self.tree.needed(map, "path", node, "a model")?.name;
        Some(PlanModel {
            name: self.tree.string(map, "name").unwrap_or_else(|| last(&path)),
            path,
            reference: self.tree.string(map, "reference"),
            spec: self.tree.string(map, "spec"),
            source: self.tree.string(map, "source"),
            engines: self.tree.words(map, "engines").into_iter().map(|word| word.name).collect(),
            dtypes: self.dtypes(map),
        })
    }

    fn engine(&mut self, node: &YamlNode) -> Option<PlanEngine> {
        if let Some(engine) = node.text() {
            let engine = engine.ident().name;
            return Some(PlanEngine { name: last(&engine), engine, ..PlanEngine::default() });
        }
        let map = self.tree.map(node, "an engine", &ENGINE)?;
        let engine = self.tree.needed(map, "engine", node, "an engine")?.name;
        let mut options = Vec::new();
        for (key, node) in self.tree.entries(map, "options") {
            if let Some(value) = self.tree.text(&node) {
                options.push(format!("{}={}", key.name, value.value()));
            }
        }
        Some(PlanEngine {
            name: self.tree.string(map, "name").unwrap_or_else(|| last(&engine)),
            engine,
            options,
            dtypes: self.dtypes(map),
            flags: self.flags(map),
        })
    }

    fn known(&mut self, node: &YamlNode) -> Option<KnownFailure> {
        let map = self.tree.map(node, "a known difference", &KNOWN)?;
        let because = self.tree.needed(map, "because", node, "a known difference")?.name;
        Some(KnownFailure {
            model: self.tree.string(map, "model"),
            engine: self.tree.string(map, "engine"),
            dtype: self.tree.words(map, "dtype").iter().find_map(|word| self.dtype(word)),
            because,
        })
    }

    fn items<T>(
        &mut self,
        map: &YamlMap,
        key: &str,
        read: impl Fn(&mut Self, &YamlNode) -> Option<T>,
    ) -> Vec<T> {
        let items = self.tree.list_of(map, key);
        items.iter().filter_map(|item| read(self, item)).collect()
    }

    /// Reads the flags that every check gets, except those that a run sets itself.
    fn flags(&mut self, map: &YamlMap) -> Vec<String> {
        let words = self.tree.words(map, "flags");
        for word in &words {
            let flag = word.name.split('=').next().unwrap_or_default();
            let name = flag.trim_start_matches('-');
            if let Some((_, instead)) = SET.iter().find(|(flag, _)| *flag == name) {
                let message = format!("the option `{name}` is none of the flags of a plan");
                self.tree.findings.push(Finding::error(&word.at, message).help(*instead));
            }
        }
        words.into_iter().map(|word| word.name).collect()
    }

    fn dtypes(&mut self, map: &YamlMap) -> Vec<Dtype> {
        let words = self.tree.words(map, "dtypes");
        words.iter().filter_map(|word| self.dtype(word)).collect()
    }

    fn dtype(&mut self, word: &Ident) -> Option<Dtype> {
        let dtype = Dtype::parse(&word.name);
        if dtype.is_none() {
            let finding = Finding::error(&word.at, "this is no dtype that a model runs in");
            self.tree.findings.push(finding.help("known are `f32`, `bf16`, `f16`"));
        }
        dtype
    }
}

/// Returns the last part of a path or id, without the extension of a Python file.
fn last(path: &str) -> String {
    let path = path.trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".py").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<MatrixPlan, Vec<String>> {
        let source = Arc::new(SourceText { path: "parity.yaml".into(), text: text.into() });
        read(&source).map_err(|findings| findings.into_iter().map(|f| f.message).collect())
    }

    #[test]
    fn a_plan_is_models_by_engines() {
        let plan = read_text(
            "models:\n  - models/tiny\n  - {name: big, path: owner/big, engines: [eager], dtypes: [bf16]}\n\
             engines:\n  - native\n  - {name: eager, engine: transformers, options: {attention: eager}}\n\
             dtypes: [f32, bf16]\nknown:\n  - {model: big, dtype: bf16, because: not yet}\n",
        )
        .unwrap();
        let pairs: Vec<(&str, &str)> =
            plan.pairs().iter().map(|(m, e)| (m.name.as_str(), e.name.as_str())).collect();
        assert_eq!(pairs, [("tiny", "native"), ("tiny", "eager"), ("big", "eager")]);
        assert_eq!(plan.engines[1].options, ["attention=eager"]);
        assert_eq!(plan.dtypes(&plan.models[0], &plan.engines[0]), [Dtype::F32, Dtype::Bf16]);
        assert_eq!(plan.dtypes(&plan.models[1], &plan.engines[1]), [Dtype::Bf16]);
        assert_eq!(plan.known("big", "eager", "bf16"), Some("not yet"));
        assert_eq!(plan.known("tiny", "eager", "bf16"), None);
    }

    #[test]
    fn mistakes_are_found_all_at_once() {
        for (text, words) in [
            ("engines: [native]\n", "a plan needs `models`"),
            ("models: [a]\nengines: [native]\nmodel: 1\n", "a plan has no key `model`"),
            ("models: [{name: x}]\nengines: [native]\n", "a model needs `path`"),
            ("models: [a, b/a]\nengines: [native]\n", "two of `models` have one name"),
            ("models: [a]\nengines: [native]\ndtypes: [f8]\n", "this is no dtype"),
            ("models: a\nengines: [native]\n", "expected a list"),
            (
                "models: [a]\nengines: [native]\nknown: [{engine: nativ, because: x}]\n",
                "nothing is called `nativ`",
            ),
            ("models: [a]\nengines: [native]\nknown: [{engine: native}]\n", "needs `because`"),
            (
                "models: [a]\nengines: [native]\nflags: [--dtype=f16]\n",
                "the option `dtype` is none of the flags of a plan",
            ),
            (
                "models: [a]\nengines: [{engine: native, flags: [--junit, x.xml]}]\n",
                "the option `junit` is none of the flags of a plan",
            ),
        ] {
            let all = read_text(text).unwrap_err();
            assert!(all.iter().any(|message| message.contains(words)), "{text}: {all:?}");
        }
    }
}
