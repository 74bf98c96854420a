//! Sheets: what engines are and can do, read from YAML.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use formats::shown;
use registry::diag::{Finding, SourceText};
use registry::yaml::{self, YamlMap, YamlNode, YamlValue};

use crate::ops::Kernels;

/// The ways to reach an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineKind {
    /// The engine runs in this process, through its driver.
    #[default]
    InProcess,
    /// The engine runs in a process of its own, over standard streams (`docs/engine-protocol.md`).
    Child,
}

impl EngineKind {
    /// Returns the name of the kind in sheets.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in_process",
            Self::Child => "child",
        }
    }
}

/// Fault of a sheet. Texts from the file are escaped and shortened, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum SheetError {
    #[error("{why}")]
    Yaml { why: String },
    #[error("expected a map with `engine`, `ops`, `states` and `dtypes`")]
    NotMap,
    #[error("unknown key `{key}`; expected `{}`", registry::sheet::CAPABILITY.join("`, `"))]
    UnknownKey { key: String },
    #[error("`engine` is missing; expected its name")]
    NoEngine,
    #[error("`{key}` is missing; expected a list of names")]
    Missing { key: &'static str },
    #[error("`{key}` is not a list of names")]
    NotNames { key: &'static str },
    #[error("`{key}` is not text")]
    NotText { key: &'static str },
    #[error("`{key}` is not a list of texts")]
    NotTexts { key: &'static str },
    #[error("`kind` is `{found}`; expected `in_process` or `child`")]
    Kind { found: String },
    #[error("expected one of `plugin` and `program` for `kind: child`, and none otherwise")]
    Program,
}

/// The capability sheet of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSheet {
    /// The engine's name.
    pub engine: String,
    /// Ops it has.
    pub ops: BTreeSet<String>,
    /// Kinds of state it keeps.
    pub states: BTreeSet<String>,
    /// Dtypes it can run in.
    pub dtypes: BTreeSet<String>,
    /// For an engine that opens files by itself: the architectures it takes, as files name them.
    pub architectures: BTreeSet<String>,
    /// For such an engine: the formats of tensors it reads.
    pub formats: BTreeSet<String>,
    /// Abilities besides running a model in one process, by the words of [`Feature`](super::Feature).
    pub features: BTreeSet<String>,
    /// Pairs of these that it does not do together, `a+b`.
    pub apart: BTreeSet<String>,
    /// The way to reach it.
    pub kind: EngineKind,
    /// A line that describes the engine.
    pub about: String,
    /// The versions that the engine was run with.
    pub ran_with: String,
    /// For a child: the name of its Python file among those that this program carries.
    pub plugin: Option<String>,
    /// For a child that is no such file: program and arguments.
    pub command: Vec<String>,
    /// Python modules that it needs, and what `pip install` takes to get them.
    pub modules: Vec<String>,
    /// The packages of `modules`.
    pub install: Vec<String>,
    /// Words for what it shows: rows, steps, taps, states, tokens.
    pub shows: Vec<String>,
}

impl EngineSheet {
    /// Returns the sheet of an engine of this program.
    ///
    /// # Panics
    /// If there is none of this name: the sheets are part of the program, and a test reads them.
    pub fn of(name: &str) -> Self {
        let sheet = Self::builtin().iter().find(|sheet| sheet.engine == name);
        sheet.expect("every driver has a sheet, and a test reads it").clone()
    }

    /// Returns the sheets of this program. Those that say only how an engine is launched are not among them.
    pub fn builtin() -> &'static [Self] {
        static SHEETS: LazyLock<Vec<EngineSheet>> = LazyLock::new(|| {
            let texts = registry::engines::sheets().iter();
            texts.filter_map(|(_, text)| EngineSheet::parse(text).ok()).collect()
        });
        &SHEETS
    }

    /// Returns the sheet of the native engine.
    pub fn native() -> Self {
        Self::of("native")
    }

    /// Returns the sheet of llama.cpp.
    pub fn llama_cpp() -> Self {
        Self::of("llama.cpp")
    }

    /// Reads a sheet: a map of `engine` and the lists `ops` (of names, of lists of names, or the
    /// word `kernels` or `device_kernels` for those of this program), `states` and `dtypes`. An engine that opens files by itself has `architectures` and
    /// `formats` in place of the first two.
    pub fn parse(text: &str) -> Result<Self, SheetError> {
        let source = Arc::new(SourceText { path: "the sheet".to_owned(), text: text.to_owned() });
        let tree =
            yaml::read(&source).map_err(|findings| SheetError::Yaml { why: reasons(&findings) })?;
        let entries = tree.map().ok_or(SheetError::NotMap)?;
        if let Some(key) = entries.keys().find(|key| !registry::sheet::knows(key)) {
            return Err(SheetError::UnknownKey { key: shown(key) });
        }
        let engine = text_of(entries, "engine")?;
        let kind = match text_of(entries, "kind")?.as_deref() {
            None | Some("in_process") => EngineKind::InProcess,
            Some("child") => EngineKind::Child,
            Some(other) => return Err(SheetError::Kind { found: shown(other) }),
        };
        let plugin = text_of(entries, "plugin")?;
        let command = texts_of(entries, "program")?;
        let starts = usize::from(plugin.is_some()) + usize::from(!command.is_empty());
        if starts != usize::from(kind == EngineKind::Child) {
            return Err(SheetError::Program);
        }
        // An engine that opens files by itself is given no graph, so it has neither.
        let opens_files = entries.contains_key("architectures") || kind == EngineKind::Child;
        Ok(Self {
            engine: engine.ok_or(SheetError::NoEngine)?,
            ops: names_of(entries, "ops", !opens_files)?,
            states: names_of(entries, "states", !opens_files)?,
            dtypes: names_of(entries, "dtypes", true)?,
            architectures: names_of(entries, "architectures", false)?,
            formats: names_of(entries, "formats", false)?,
            features: names_of(entries, "features", false)?,
            apart: names_of(entries, "apart", false)?,
            kind,
            about: text_of(entries, "about")?.unwrap_or_default(),
            ran_with: text_of(entries, "ran_with")?.unwrap_or_default(),
            plugin,
            command,
            modules: texts_of(entries, "modules")?,
            install: texts_of(entries, "install")?,
            shows: texts_of(entries, "shows")?,
        })
    }
}

/// Returns the names of a list and of the lists in it; none if the list is missing and not required.
fn names_of(
    entries: &YamlMap,
    key: &'static str,
    required: bool,
) -> Result<BTreeSet<String>, SheetError> {
    let Some(entry) = entries.get(key) else {
        return if required { Err(SheetError::Missing { key }) } else { Ok(BTreeSet::new()) };
    };
    let kernels = match text(&entry.value) {
        Some("kernels") => Some(Kernels::default()),
        Some("device_kernels") => Some(Kernels::of_devices()),
        _ => None,
    };
    if let Some(kernels) = kernels.filter(|_| key == "ops") {
        return Ok(kernels.names().map(str::to_owned).collect());
    }
    let mut names = BTreeSet::new();
    gather(&entry.value, &mut names).ok_or(SheetError::NotNames { key })?;
    Ok(names)
}

/// Returns the text of a key; none if it is missing.
fn text_of(entries: &YamlMap, key: &'static str) -> Result<Option<String>, SheetError> {
    let Some(entry) = entries.get(key) else { return Ok(None) };
    let text = text(&entry.value).ok_or(SheetError::NotText { key })?;
    Ok(Some(text.to_owned()))
}

/// Returns the texts of a list; none if it is missing.
fn texts_of(entries: &YamlMap, key: &'static str) -> Result<Vec<String>, SheetError> {
    let Some(entry) = entries.get(key) else { return Ok(Vec::new()) };
    let texts = items(&entry.value)
        .and_then(|items| items.iter().map(|item| Some(text(item)?.to_owned())).collect());
    texts.ok_or(SheetError::NotTexts { key })
}

/// Adds the texts of a list and of the lists in it; none if anything else is there.
fn gather(node: &YamlNode, names: &mut BTreeSet<String>) -> Option<()> {
    for item in items(node)? {
        match text(item) {
            Some(name) => {
                names.insert(name.to_owned());
            }
            None => gather(item, names)?,
        }
    }
    Some(())
}

/// Returns the text of a scalar.
fn text(node: &YamlNode) -> Option<&str> {
    Some(node.text()?.value())
}

/// Returns the items of a list.
fn items(node: &YamlNode) -> Option<&[YamlNode]> {
    match &node.value {
        YamlValue::List(items) => Some(items),
        _ => None,
    }
}

/// Returns what is wrong with the YAML of a sheet, with lines.
fn reasons(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings
        .iter()
        .map(|finding: &Finding| match &finding.at {
            Some(at) => format!("line {}: {}", at.line(), shown(&finding.message)),
            None => shown(&finding.message),
        })
        .collect();
    lines.join("; ")
}
