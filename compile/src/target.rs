//! Targets: the sheet of an engine's ops, and templates of code.

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use registry::diag::{Finding, SourceText};
use registry::file;
use registry::yaml::{self, TreeReader, YamlMap, YamlNode};

use crate::python::quoted;

/// One engine that code is written for.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// The name, by which commands choose it.
    pub name: String,
    /// One line.
    pub about: String,
    /// Name of the file that is written; `{name}` stands for the spec.
    pub file: String,
    /// Templates of files that are written beside it, and their names.
    pub beside: IndexMap<String, String>,
    /// Files of the folder that are written beside it as they are.
    pub support: Vec<String>,
    /// How the text is laid out: `python`, `cpp`, or `none`.
    pub layout: String,
    /// The longest line.
    pub width: usize,
    /// The version that the sheet was checked with.
    pub checked: String,
    /// The engine of `parity check` that runs the code: a file beside the sheet.
    pub driver: String,
    /// Kinds of states that the target can keep.
    pub states: Vec<String>,
    /// Forms of models besides plain lists of layers: `shared_layers`, `lent_modules`, `learned_rotary`.
    pub forms: Vec<String>,
    /// Ops by name.
    pub ops: IndexMap<String, OpSheet>,
    /// Steps of weight maps by name.
    pub steps: IndexMap<String, String>,
    /// Spellings of what every file has: templates by name.
    pub words: IndexMap<String, String>,
    /// Templates by name: `file`, `class`, and helpers (`helpers/attend`).
    pub templates: IndexMap<String, String>,
    /// Other files of the folder, by name.
    pub files: IndexMap<String, String>,
}

/// One op of a target.
#[derive(Debug, Clone, Default)]
pub struct OpSheet {
    /// Shapes of the results, over the arguments: a template that gives an expression.
    pub gives: String,
    /// `x` for that of the values, `f32`, `activation`, or a template that gives one of these.
    pub dtype: String,
    /// Constructors of modules and parameters, by parameter, or `parameter.suffix`.
    pub modules: IndexMap<String, String>,
    /// Statements before the one that has the result.
    pub before: String,
    /// The expression of the result.
    pub call: String,
    /// How tightly it binds: `atom`, `mul`, `add`.
    pub binds: String,
    /// Helpers that the call uses.
    pub helpers: Vec<String>,
    /// Parameters whose values make helpers of their own.
    pub variant: Vec<String>,
    /// Names of variables that `before` assigns.
    pub fresh: Vec<String>,
    /// Names that the call reads besides its arguments: `cache`, `caches`.
    pub context: Vec<String>,
    /// The parameter whose module the call takes in place of its own, if it is given.
    pub takes: String,
    /// Code that makes the cache of the call's state, or `slot` for a place in a shared one.
    pub keeps: String,
    /// Why the target's own op rounds otherwise, if it does.
    pub rounds: Option<String>,
}

const SHEET: [&str; 13] = [
    "target", "about", "file", "beside", "support", "layout", "width", "checked", "driver", "states", "forms", "steps",
    "words",
];
const OP: [&str; 13] = [
    "gives", "dtype", "modules", "before", "call", "binds", "helpers", "variant", "fresh",
    "context", "takes", "keeps", "rounds",
];

/// Files of one target as they are read: paths below its folder, and texts.
pub(crate) type Files<'f> = Vec<(&'f str, &'f str)>;

impl Target {
    /// Reads a target that the program carries.
    pub fn builtin(name: &str) -> Result<Self, Vec<Finding>> {
        let prefix = format!("{name}/");
        let files: Files<'_> = crate::builtin::TARGETS
            .iter()
            .filter_map(|(path, text)| Some((path.strip_prefix(&prefix)?, *text)))
            .collect();
        if files.is_empty() {
            let names = Self::names().join(", ");
            let message = format!(
                "there is no target `{name}`; there are: {names}, and folders with a sheet.yaml"
            );
            return Err(vec![Finding::unplaced(message)]);
        }
        Self::read(&format!("registry/targets/{name}"), &files)
    }

    /// Returns the names of all targets that the program carries.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = crate::builtin::TARGETS
            .iter()
            .filter_map(|(path, _)| path.split_once('/').map(|(name, _)| name))
            .collect();
        names.dedup();
        names
    }

    /// Reads a target from a folder.
    pub fn open(folder: &Path) -> Result<Self, Vec<Finding>> {
        let mut texts = Vec::new();
        for below in ["", "ops", "helpers"] {
            let Ok(entries) = fs_err::read_dir(folder.join(below)) else { continue };
            for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                let name = name.unwrap_or_default();
                let shown = if below.is_empty() { name } else { format!("{below}/{name}") };
                let text = file::read_text(&path, file::SPEC).map_err(|one| {
                    vec![Finding::unplaced(format!("cannot read `{}`: {one}", path.display()))]
                })?;
                texts.push((shown, text));
            }
        }
        texts.sort();
        let files = texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        Self::read(&folder.display().to_string(), &files)
    }

    /// Reads a target from texts.
    pub fn read(place: &str, files: &Files<'_>) -> Result<Self, Vec<Finding>> {
        let mut target = Self { width: 88, ..Self::default() };
        let mut reader = TreeReader::default();
        for (path, text) in files {
            if let Some(name) = path.strip_suffix(".jinja") {
                target.templates.insert(name.to_owned(), (*text).to_owned());
                continue;
            }
            if Path::new(path).extension().is_none_or(|extension| extension != "yaml") {
                target.files.insert((*path).to_owned(), (*text).to_owned());
                continue;
            }
            let source = SourceText { path: format!("{place}/{path}"), text: (*text).to_owned() };
            let node = yaml::read(&Arc::new(source))?;
            if *path == "sheet.yaml" {
                target.sheet(&node, &mut reader);
            } else if let Some(map) = reader.any_map(&node) {
                for entry in map.values() {
                    let op = op(&entry.value, &mut reader);
                    target.ops.insert(entry.name().name, op);
                }
            }
        }
        reader.finish(target)
    }

    fn sheet(&mut self, node: &YamlNode, reader: &mut TreeReader) {
        let Some(map) = reader.map(node, "the sheet of a target", &SHEET) else { return };
        let mut text = |key: &str| reader.string(map, key).unwrap_or_default();
        self.name = text("target");
        self.about = text("about");
        self.file = text("file");
        self.layout = text("layout");
        self.checked = text("checked");
        self.driver = text("driver");
        if let Ok(width) = text("width").parse() {
            self.width = width;
        }
        self.states = reader.words(map, "states").into_iter().map(|word| word.name).collect();
        self.forms = reader.words(map, "forms").into_iter().map(|word| word.name).collect();
        self.support = reader.words(map, "support").into_iter().map(|word| word.name).collect();
        self.beside = texts(map, "beside", reader);
        self.steps = texts(map, "steps", reader);
        self.words = texts(map, "words", reader);
    }

    /// Returns a word of the target; one that the sheet lacks is its own name.
    pub(crate) fn word(&self, name: &str) -> String {
        self.spelled(name, &[])
    }

    /// Returns a word of the target that is a template, or a text if the sheet lacks it.
    pub(crate) fn spelled_or(&self, name: &str, values: &[(&str, &str)], plain: &str) -> String {
        if self.words.contains_key(name) { self.spelled(name, values) } else { plain.to_owned() }
    }

    /// Returns the variable by which methods hand on what tokens come after.
    pub(crate) fn context(&self) -> String {
        self.words.get("context").map_or_else(|| "cache".to_owned(), Clone::clone)
    }

    /// Returns the parameter for the path of a module among those of its constructor, for a target whose modules know theirs.
    pub(crate) fn path_param(&self) -> &'static str {
        if self.words.contains_key("path") { ", prefix: str" } else { "" }
    }

    /// Returns the argument for the path of a child by its name, a text of code.
    pub(crate) fn path_argument(&self, name: &str) -> String {
        match self.words.get("path") {
            Some(_) => format!(", {}", self.spelled("path", &[("name", name)])),
            None => String::new(),
        }
    }

    /// Fills the places for a module's path in the code that makes it.
    pub(crate) fn placed(&self, made: &str, name: &str) -> String {
        if !made.contains("«path»") {
            return made.to_owned();
        }
        made.replace("«path»", &self.spelled("path", &[("name", &quoted(name))]))
    }

    /// Returns a word of the target that is a template.
    pub(crate) fn spelled(&self, name: &str, values: &[(&str, &str)]) -> String {
        let Some(template) = self.words.get(name) else { return name.to_owned() };
        if !template.contains('{') {
            return template.clone();
        }
        let values = minijinja::Value::from_pairs(values.iter().copied());
        let text = minijinja::Environment::new().render_str(template, values);
        text.unwrap_or_else(|error| format!("{name}: {error}"))
    }
}

fn texts(map: &YamlMap, key: &str, reader: &mut TreeReader) -> IndexMap<String, String> {
    let entries = reader.entries(map, key);
    let pairs = entries.into_iter().filter_map(|(name, node)| {
        reader.text(&node).map(|text| (name.name, text.value().to_owned()))
    });
    pairs.collect()
}

fn op(node: &YamlNode, reader: &mut TreeReader) -> OpSheet {
    let Some(map) = reader.map(node, "an op of a target", &OP) else { return OpSheet::default() };
    let mut words =
        |key: &str| reader.words(map, key).into_iter().map(|word| word.name).collect::<Vec<_>>();
    let helpers = words("helpers");
    let variant = words("variant");
    let fresh = words("fresh");
    let context = words("context");
    let mut text = |key: &str| reader.string(map, key).unwrap_or_default();
    OpSheet {
        gives: text("gives"),
        dtype: text("dtype"),
        before: text("before"),
        call: text("call"),
        binds: text("binds"),
        takes: text("takes"),
        keeps: text("keeps"),
        rounds: Some(text("rounds")).filter(|text| !text.is_empty()),
        helpers,
        variant,
        fresh,
        context,
        modules: texts(map, "modules", reader),
    }
}
