//! Sheets: what engines are and can do, read from YAML.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use formats::shown;
use registry::diag::{Finding, SourceText};
use registry::listing;
use registry::text::MappedText;
use registry::yaml::{self, TreeReader, YamlMap, YamlNode};

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

/// Everything that is wrong with a sheet, with lines. Texts from the file are escaped and shortened, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct SheetError {
    /// The findings in one line.
    why: String,
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
        let tree = yaml::read(&source).map_err(|findings| SheetError::new(&findings))?;
        let mut reader = TreeReader::default();
        let sheet = Self::read(&mut reader, &tree);
        let sheet = reader.finish(sheet).map_err(|findings| SheetError::new(&findings))?;
        sheet.ok_or_else(|| SheetError::new(&[]))
    }

    fn read(reader: &mut TreeReader, tree: &YamlNode) -> Option<Self> {
        let map = reader.map(tree, "a sheet", &registry::sheet::known_keys())?;
        let engine = reader.needed(map, "engine", tree, "a sheet");
        let kind = reader.choice(map, "kind", &KINDS).unwrap_or_default();
        let plugin = reader.string(map, "plugin");
        let command = reader.strings_of(map, "program");
        let starts = usize::from(plugin.is_some()) + usize::from(!command.is_empty());
        if starts != usize::from(kind == EngineKind::Child) {
            let message =
                "a sheet needs one of `plugin` and `program` for `kind: child`, and none otherwise";
            reader.findings.push(Finding::error(&tree.at, message));
        }
        // An engine that opens files by itself is given no graph, so it has neither ops nor states.
        let opens_files = map.contains_key("architectures") || kind == EngineKind::Child;
        let needed: &[&str] = if opens_files { &["dtypes"] } else { &["ops", "states", "dtypes"] };
        for key in needed.iter().filter(|key| !map.contains_key(**key)) {
            reader.findings.push(Finding::error(&tree.at, format!("a sheet needs `{key}`")));
        }
        Some(Self {
            engine: engine?.name,
            ops: ops(reader, map),
            states: names(reader, map, "states"),
            dtypes: names(reader, map, "dtypes"),
            architectures: names(reader, map, "architectures"),
            formats: names(reader, map, "formats"),
            features: names(reader, map, "features"),
            apart: names(reader, map, "apart"),
            kind,
            about: reader.string(map, "about").unwrap_or_default(),
            ran_with: reader.string(map, "ran_with").unwrap_or_default(),
            plugin,
            command,
            modules: reader.strings_of(map, "modules"),
            install: reader.strings_of(map, "install"),
            shows: reader.strings_of(map, "shows"),
        })
    }
}

/// Kinds of engines by their words.
const KINDS: [(&str, EngineKind); 2] =
    [("in_process", EngineKind::InProcess), ("child", EngineKind::Child)];

impl SheetError {
    fn new(findings: &[Finding]) -> Self {
        Self { why: listing::items(findings.iter().map(line)) }
    }
}

/// Returns a finding in one line.
fn line(finding: &Finding) -> String {
    let place = finding.at.as_ref().map(|at| format!("line {}: ", at.line())).unwrap_or_default();
    let label = if finding.label.is_empty() { "" } else { ", " };
    let help = finding.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
    shown(&format!("{place}{}{label}{}{help}", finding.message, finding.label))
}

/// Reads the ops of an engine: names, or the word for the kernels of this program.
fn ops(reader: &mut TreeReader, map: &YamlMap) -> BTreeSet<String> {
    let word = map.get("ops").and_then(|entry| entry.value.text()).map(MappedText::value);
    let kernels = match word {
        Some("kernels") => Kernels::default(),
        Some("device_kernels") => Kernels::of_devices(),
        _ => return names(reader, map, "ops"),
    };
    kernels.names().map(str::to_owned).collect()
}

/// Reads the names of a list and of the lists in it.
fn names(reader: &mut TreeReader, map: &YamlMap, key: &str) -> BTreeSet<String> {
    let items = reader.list_of(map, key).iter();
    items.flat_map(|item| reader.names(item)).collect()
}
