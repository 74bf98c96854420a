//! Sheets: what engines are and can do, read from YAML.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use saphyr::{LoadableYamlNode, Yaml};

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

/// Fault of a sheet. Texts from the file are escaped, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum SheetError {
    #[error("{why}")]
    Yaml { why: String },
    #[error("expected a map with `engine`, `ops`, `states` and `dtypes`")]
    NotMap,
    #[error("expected text as a key")]
    KeyNotText,
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
        static SHEETS: LazyLock<Vec<EngineSheet>> = LazyLock::new(|| {
            let texts = registry::engines::sheets().iter();
            texts.filter_map(|(_, text)| EngineSheet::parse(text).ok()).collect()
        });
        let sheet = SHEETS.iter().find(|sheet| sheet.engine == name);
        sheet.expect("every driver has a sheet, and a test reads it").clone()
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
        let documents = Yaml::load_from_str(text)
            .map_err(|e| SheetError::Yaml { why: escaped(&e.to_string()) })?;
        let Some(Yaml::Mapping(map)) = documents.first() else {
            return Err(SheetError::NotMap);
        };
        let mut entries = BTreeMap::new();
        for (key, value) in map {
            let key = key.as_str().ok_or(SheetError::KeyNotText)?;
            if !registry::sheet::knows(key) {
                return Err(SheetError::UnknownKey { key: escaped(key) });
            }
            entries.insert(key, value);
        }
        let engine = entries.get("engine").and_then(|v| v.as_str());
        let names = |key: &'static str| -> Result<BTreeSet<String>, SheetError> {
            let list = entries.get(key).ok_or(SheetError::Missing { key })?;
            if key == "ops" && list.as_str() == Some("kernels") {
                return Ok(Kernels::default().names().map(str::to_owned).collect());
            }
            if key == "ops" && list.as_str() == Some("device_kernels") {
                return Ok(Kernels::of_devices().names().map(str::to_owned).collect());
            }
            let mut names = BTreeSet::new();
            gather(list, &mut names).ok_or(SheetError::NotNames { key })?;
            Ok(names)
        };
        let optional = |key: &'static str| {
            if entries.contains_key(key) { names(key) } else { Ok(BTreeSet::new()) }
        };
        let text = |key: &'static str| match entries.get(key).map(|value| value.as_str()) {
            Some(None) => Err(SheetError::NotText { key }),
            found => Ok(found.flatten().map(str::to_owned)),
        };
        let list = |key: &'static str| -> Result<Vec<String>, SheetError> {
            let Some(value) = entries.get(key) else { return Ok(Vec::new()) };
            let words = value.as_sequence().and_then(|items| {
                items.iter().map(|item| Some(item.as_str()?.to_owned())).collect()
            });
            words.ok_or(SheetError::NotTexts { key })
        };
        let kind = match text("kind")?.as_deref() {
            None | Some("in_process") => EngineKind::InProcess,
            Some("child") => EngineKind::Child,
            Some(other) => return Err(SheetError::Kind { found: escaped(other) }),
        };
        let plugin = text("plugin")?;
        let command = list("program")?;
        let starts = usize::from(plugin.is_some()) + usize::from(!command.is_empty());
        if starts != usize::from(kind == EngineKind::Child) {
            return Err(SheetError::Program);
        }
        // An engine that opens files by itself is given no graph, so it has neither.
        let opens_files = entries.contains_key("architectures") || kind == EngineKind::Child;
        let graphs = |key: &'static str| if opens_files { optional(key) } else { names(key) };
        Ok(Self {
            engine: engine.ok_or(SheetError::NoEngine)?.to_owned(),
            ops: graphs("ops")?,
            states: graphs("states")?,
            dtypes: names("dtypes")?,
            architectures: optional("architectures")?,
            formats: optional("formats")?,
            features: optional("features")?,
            apart: optional("apart")?,
            kind,
            about: text("about")?.unwrap_or_default(),
            ran_with: text("ran_with")?.unwrap_or_default(),
            plugin,
            command,
            modules: list("modules")?,
            install: list("install")?,
            shows: list("shows")?,
        })
    }
}

/// Escapes text of a file, which is untrusted.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c: char| match c {
            c if c.is_control() => c.escape_default().to_string(),
            c => c.to_string(),
        })
        .collect()
}

fn gather(node: &Yaml<'_>, names: &mut BTreeSet<String>) -> Option<()> {
    for item in node.as_sequence()? {
        match item.as_str() {
            Some(name) => {
                names.insert(name.to_owned());
            }
            None => gather(item, names)?,
        }
    }
    Some(())
}
