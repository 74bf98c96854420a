//! Targets: the sheet of an engine's ops, and templates of code.

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use registry::diag::{Finding, SourceText};
use registry::file;
use registry::syntax::Ident;
use registry::yaml::{self, TreeReader, YamlMap, YamlNode};

use crate::python::quoted;

/// One engine that code is written for.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// The name, by which commands choose it.
    pub name: String,
    /// One line.
    pub about: String,
    /// The target from which it takes ops, steps, helpers and parts that it has not itself.
    pub base: Option<Ident>,
    /// Ops of the base that it does not take.
    pub without: Vec<Ident>,
    /// Path of the file with the model below the folder that is written; `{name}` stands for the spec.
    pub file: String,
    /// The other files that are written: their templates by path, in which `{name}` stands for the spec.
    pub extra_files: IndexMap<String, String>,
    /// The language of the file with the model.
    pub layout: Layout,
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
    /// Templates by name: `file`, `class`, helpers (`helpers/attend`), and parts that others include (`parts/rule`).
    pub templates: IndexMap<String, String>,
    /// Other files of the folder, by name.
    pub files: IndexMap<String, String>,
}

/// The language of a file with a model, by which its statements are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// Python, with the line breaks of formatters.
    #[default]
    Python,
    /// C++: classes are structs with typed members.
    Cpp,
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
    /// Its binding strength: `atom`, `mul`, `add`.
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
    /// A template: `matrix` if the op multiplies with a matrix that ranks can divide, `each` if it treats columns or heads apart.
    pub divides: String,
    /// Why the target's own op rounds otherwise, if it does.
    pub rounds: Option<String>,
}

/// The file that makes a folder a target.
pub(crate) const SHEET_FILE: &str = "sheet.yaml";

const SHEET: [&str; 14] = [
    "target", "about", "base", "without", "file", "files", "layout", "width", "checked", "driver",
    "states", "forms", "steps", "words",
];
const OP: [&str; 14] = [
    "gives", "dtype", "modules", "before", "call", "binds", "helpers", "variant", "fresh",
    "context", "takes", "keeps", "divides", "rounds",
];

/// Files of one target as they are read: paths below its folder, and texts.
pub(crate) type Files<'f> = Vec<(&'f str, &'f str)>;

impl Target {
    /// Reads a target that the program carries.
    pub fn builtin(name: &str) -> Result<Self, Vec<Finding>> {
        if !has_sheet(name) {
            let names = Self::names().join(", ");
            let message = format!(
                "there is no target `{name}`; there are: {names}, and folders with a sheet.yaml"
            );
            return Err(vec![Finding::unplaced(message)]);
        }
        Self::carried(name)?.with_base(None, &mut vec![name.to_owned()])
    }

    /// Returns the names of all targets that the program carries.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = crate::builtin::TARGETS
            .iter()
            .filter_map(|(path, _)| path.split_once('/').map(|(name, _)| name))
            .filter(|name| has_sheet(name))
            .collect();
        names.dedup();
        names
    }

    /// Reads a target from a folder.
    pub fn open(folder: &Path) -> Result<Self, Vec<Finding>> {
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = whole.file_name().map(|name| name.to_string_lossy().into_owned());
        Self::own(folder)?.with_base(whole.parent(), &mut name.into_iter().collect())
    }

    /// True if the program carries a folder of this name.
    pub(crate) fn is_carried(name: &str) -> bool {
        let folders = crate::builtin::TARGETS.iter().filter_map(|(path, _)| path.split_once('/'));
        folders.map(|(folder, _)| folder).any(|folder| folder == name)
    }

    /// Reads what the program carries of a folder, without its base.
    pub(crate) fn carried(name: &str) -> Result<Self, Vec<Finding>> {
        let prefix = format!("{name}/");
        let files: Files<'_> = crate::builtin::TARGETS
            .iter()
            .filter_map(|(path, text)| Some((path.strip_prefix(&prefix)?, *text)))
            .collect();
        Self::read(&format!("registry/targets/{name}"), &files)
    }

    /// Reads the files of a folder, without its base.
    pub(crate) fn own(folder: &Path) -> Result<Self, Vec<Finding>> {
        let mut texts = Vec::new();
        for below in ["", "ops", "helpers", "parts"] {
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

    /// Reads a target from texts, without its base.
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
            if *path == SHEET_FILE {
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
        self.base = reader.word(map, "base");
        self.without = reader.words(map, "without");
        let name = reader.needed(map, "target", node, "the sheet of a target");
        self.name = name.map(|name| name.name).unwrap_or_default();
        if let Some(width) = reader.word(map, "width") {
            match width.name.parse() {
                Ok(width) => self.width = width,
                Err(_) => reader.findings.push(
                    Finding::error(&width.at, "this is no number of columns")
                        .label("expected an integer such as 88"),
                ),
            }
        }
        let layouts = [("python", Layout::Python), ("cpp", Layout::Cpp)];
        self.layout = reader.choice(map, "layout", &layouts).unwrap_or_default();
        let mut text = |key: &str| reader.string(map, key).unwrap_or_default();
        self.about = text("about");
        self.file = text("file");
        self.checked = text("checked");
        self.driver = text("driver");
        self.states = reader.words(map, "states").into_iter().map(|word| word.name).collect();
        self.forms = reader.words(map, "forms").into_iter().map(|word| word.name).collect();
        self.extra_files = texts(map, "files", reader);
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
        let text = reader.text(&node)?.value().to_owned();
        if let Err(error) = minijinja::Environment::new().template_from_str(&text) {
            let message = format!("this is no template: {error}");
            reader.findings.push(Finding::error(&node.at, message));
        }
        Some((name.name, text))
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
        divides: text("divides"),
        rounds: Some(text("rounds")).filter(|text| !text.is_empty()),
        helpers,
        variant,
        fresh,
        context,
        modules: texts(map, "modules", reader),
    }
}

/// True if a folder that the program carries is a target.
pub(crate) fn has_sheet(folder: &str) -> bool {
    let sheet = format!("{folder}/{SHEET_FILE}");
    crate::builtin::TARGETS.iter().any(|(path, _)| *path == sheet)
}
