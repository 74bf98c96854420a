//! Specs and configs for commands, and output of their findings.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use formats::python_json::{texts_as_words, words_as_texts};
use registry::alias::{Alias, Unlike, alias};
use registry::config::INNER;
use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::gguf::Evidence;
use registry::gguf_choice::{Chosen, Families, Refusal};
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::render::{Look, render};
use registry::resolve::resolve;
use registry::scalar::Scalar;
use registry::spec::{Dim, DimSource};
use sha2::{Digest as _, Sha256};

use crate::{annotate, term};

/// Error whose text has already been shown.
#[derive(Debug)]
pub(crate) struct Told(String);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Told {}

/// Shows all findings, and returns an error with their consequence.
pub(crate) fn tell(findings: &[Finding], said: &str) -> anyhow::Error {
    warn(findings);
    let word = term::paint_if(term::colour_err(), term::Tone::Bad, "error:");
    term::note(&format!("{word} {said}"));
    annotate::error(said);
    let found = findings.iter().map(|finding| format!("\n{}", finding.message));
    Told(std::iter::once(said.to_owned()).chain(found).collect()).into()
}

thread_local! {
    /// Findings that are collected instead of shown.
    static GATHERED: RefCell<Option<Vec<Finding>>> = const { RefCell::new(None) };
}

/// Runs a closure and collects the findings that it would show.
pub(crate) fn gather<T>(run: impl FnOnce() -> T) -> (T, Vec<Finding>) {
    GATHERED.set(Some(Vec::new()));
    let made = run();
    (made, GATHERED.take().unwrap_or_default())
}

/// Shows findings.
pub(crate) fn warn(findings: &[Finding]) {
    annotate::findings(findings);
    let gathered = GATHERED.with_borrow_mut(|gathered| {
        gathered.as_mut().map(|all| all.extend_from_slice(findings)).is_some()
    });
    if !findings.is_empty() && !gathered {
        let text = if term::colour_err() {
            term::own_colours(&render(findings, Look::Coloured))
        } else {
            render(findings, Look::Plain)
        };
        term::note(&text);
    }
}

/// Shows the findings of an engine that refuses a model; other errors stay one line.
pub(crate) fn engine_error(error: engine::Error) -> anyhow::Error {
    match error {
        engine::Error::Refused(findings) => tell(&findings, "the engine cannot run this model"),
        other => other.into(),
    }
}

/// Converts an error of a check like [`engine_error`].
pub(crate) fn check_error(error: parity::Error) -> anyhow::Error {
    match error {
        parity::Error::Engine(error) => engine_error(error),
        other => other.into(),
    }
}

/// Parsed `config.json`.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    parsed: registry::config::Config,
    bytes: Vec<u8>,
    /// SHA-256 of the original file, before any changes.
    sha256: String,
}

impl Config {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let parsed = registry::config::Config::read(path)
            .map_err(|finding| tell(&[finding], "the config cannot be read"))?;
        let bytes = registry::file::read(path, registry::file::CONFIG)?;
        Ok(Self { parsed, sha256: sha256(&bytes), bytes })
    }

    /// Parses a text that came from `place`.
    pub(crate) fn of_text(place: &str, text: &str) -> Result<Self> {
        let parsed = registry::config::Config::parse(place, text)
            .map_err(|finding| tell(&[finding], "the config cannot be read"))?;
        let bytes = text.as_bytes().to_vec();
        Ok(Self { parsed, sha256: sha256(&bytes), bytes })
    }

    /// Returns the keys and values.
    pub(crate) fn parsed(&self) -> &registry::config::Config {
        &self.parsed
    }

    /// Returns `architectures[0]`, or a placeholder if it is absent.
    pub(crate) fn architecture(&self) -> String {
        self.parsed.architecture().unwrap_or("(none)").to_owned()
    }

    /// Returns a string of the config.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        match self.parsed.peek(key) {
            Some(Scalar::Str(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the type of the inner text model, if the config is of a multimodal model.
    pub(crate) fn inner(&self) -> Option<&str> {
        self.parsed.inner_kind()
    }

    /// Returns a boolean of the config.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.parsed.peek(key) {
            Some(Scalar::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// Returns the dtype in which the weights are meant to run.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        let word = self.text("dtype").or_else(|| self.text("torch_dtype"))?;
        Dtype::parse(word.strip_prefix("torch.").unwrap_or(&word))
    }

    /// Returns the file as compact JSON.
    pub(crate) fn json(&self) -> Result<String> {
        Ok(texts_as_words(self.value()?.to_string()))
    }

    /// Returns the file as a value; numbers that JSON cannot express are marked strings.
    pub(crate) fn value(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&words_as_texts(&self.bytes)).context("the config is not JSON")
    }

    /// True if the inner text model's config ties the output matrix to the embedding.
    pub(crate) fn ties_inside(&self) -> bool {
        self.parsed.inner_flag("tie_word_embeddings") == Some(true)
    }

    /// Returns a copy with a boolean set, overriding the file.
    pub(crate) fn with_flag(&self, key: &str, value: bool) -> Result<Self> {
        let mut json = self.value()?;
        let places = INNER.map(|place| format!("/{}", place.replace('.', "/")));
        let is_inner =
            |place: &&String| json.pointer(place).is_some_and(serde_json::Value::is_object);
        let inner = places.iter().find(is_inner);
        if let Some(inner) = inner.and_then(|place| json.pointer_mut(place)) {
            inner[key] = value.into();
        }
        json[key] = value.into();
        let changed = Self::of_text(self.parsed.path(), &texts_as_words(json.to_string()))?;
        Ok(Self { sha256: self.sha256.clone(), ..changed })
    }

    /// Returns the SHA-256 of the file.
    pub(crate) fn sha256(&self) -> String {
        self.sha256.clone()
    }

    /// Returns the file with `dtype` as the declared dtype of the weights.
    pub(crate) fn with_dtype(&self, dtype: Dtype) -> Result<Vec<u8>> {
        if self.dtype() == Some(dtype) {
            return Ok(self.bytes.clone());
        }
        let mut json = self.value()?;
        let long = match dtype {
            Dtype::F32 => "float32",
            Dtype::Bf16 => "bfloat16",
            Dtype::F16 => "float16",
        };
        let key = if json.get("torch_dtype").is_some() { "torch_dtype" } else { "dtype" };
        json[key] = long.into();
        Ok(texts_as_words(serde_json::to_string_pretty(&json)? + "\n").into_bytes())
    }
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Entry of `list` for a spec.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// Name of the spec.
    pub name: String,
    /// Values of `architectures[0]` that it matches.
    pub matches: Vec<String>,
    /// Classes that contain it as their text model.
    pub inside: Vec<String>,
    /// Spec that it extends.
    pub extends: Option<String>,
    /// File of the spec.
    pub path: String,
}

/// Environment variable that lists folders of specs.
const FOLDERS: &str = "ONBOARD_SPECS";

/// Identity of a spec: its name, its file and the hash of its text.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct SpecId {
    /// Its name.
    pub name: String,
    /// Its file, or where it is built in.
    pub path: String,
    /// True if the program carries it.
    #[serde(skip)]
    pub builtin: bool,
    /// Of all files it is made of.
    pub sha256: String,
}

/// The specs at hand: those built in, and those of the person, which come first.
pub(crate) struct Specs {
    library: Library,
    ops: OpSet,
    own: Vec<String>,
}

impl Specs {
    /// Opens the built-in specs and those of a folder. Without a folder, it opens those that
    /// `ONBOARD_SPECS` lists in the syntax of `PATH`, of which the first takes precedence.
    pub(crate) fn open(dir: Option<&Path>) -> Result<Self> {
        let mut library = Library::builtin();
        let mut own = Vec::new();
        let set = std::env::var_os(FOLDERS).unwrap_or_default();
        let (folders, from): (Vec<PathBuf>, _) = match dir {
            Some(dir) => (vec![dir.to_owned()], String::new()),
            None => (std::env::split_paths(&set).collect(), format!(" ({FOLDERS})")),
        };
        for folder in folders.iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
            own.extend(library.add_dir(folder).map_err(|findings| {
                tell(&findings, &format!("cannot read the specs in `{}`{from}", folder.display()))
            })?);
        }
        Ok(Self { library, ops: OpSet::builtin(), own })
    }

    /// Returns every spec by name, without faulty ones, which `check` reports.
    pub(crate) fn all(&self) -> impl Iterator<Item = Known> {
        self.library.names().filter_map(|name| {
            let spec = self.library.load(name, &[]).ok()?;
            Some(Known {
                name: name.to_owned(),
                matches: spec.matches.iter().map(|word| word.name.clone()).collect(),
                inside: spec.inside.iter().map(|word| word.name.clone()).collect(),
                extends: spec.extends.as_ref().map(|word| word.name.clone()),
                path: spec.source.path.clone(),
            })
        })
    }

    /// Returns the spec that most others extend.
    pub(crate) fn plainest(&self) -> String {
        let parents: Vec<String> = self.all().filter_map(|spec| spec.extends).collect();
        let heirs = |name: &String| parents.iter().filter(|parent| *parent == name).count();
        parents.iter().max_by_key(|name| (heirs(name), Reverse(*name))).cloned().unwrap_or_default()
    }

    /// True if there is a spec of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.library.get(name).is_some()
    }

    /// Returns the spec that matches a config's architecture.
    pub(crate) fn matching(&self, config: &Config) -> Result<Option<String>> {
        let mut found = self.library.find(&config.parsed);
        let kind = config.text("model_type");
        // A config without a class still names its model type, which may be the name of a spec.
        if let (None, Some(kind)) = (config.parsed.architecture(), &kind) {
            found.extend(self.library.names().filter(|name| name == kind));
        }
        let own: Vec<&str> =
            found.iter().copied().filter(|name| self.own.iter().any(|own| own == name)).collect();
        match (found.as_slice(), own.as_slice()) {
            ([], _) => Ok(None),
            ([one], _) | (_, [one]) => Ok(Some((*one).to_owned())),
            (several, _) => bail!(
                "several specs match the architecture `{}`: {}; choose one with --spec FILE",
                config.architecture(),
                several.join(", ")
            ),
        }
    }

    /// Returns the text of a spec.
    pub(crate) fn source(&self, name: &str) -> Option<&str> {
        self.library.get(name).map(|source| source.text.as_str())
    }

    /// Returns the text of a function file.
    pub(crate) fn lib(&self, name: &str) -> Option<&str> {
        self.library.lib(name).map(|source| source.text.as_str())
    }

    /// Returns the specs that a spec extends, beginning with itself, and the function files that they use.
    pub(crate) fn origins(&self, name: &str) -> (Vec<String>, Vec<String>) {
        self.library.origins(name)
    }

    /// Finds a known architecture that computes the same under other names.
    pub(crate) fn alias(
        &self,
        model: &Model,
        config: &Config,
        architectures: &BTreeSet<&str>,
        tensors: &BTreeSet<String>,
    ) -> Result<Alias, Vec<Unlike>> {
        alias(model, &config.parsed, &self.library, &self.ops, architectures, tensors)
    }

    /// Returns the name of a spec given by name or by file.
    pub(crate) fn named(&mut self, word: &Path) -> Result<String> {
        if word.extension().is_some_and(|end| end == "yaml" || end == "yml") || word.is_file() {
            return self.add(word);
        }
        let word = &*word.to_string_lossy();
        match self.library.load(word, &[]) {
            Ok(_) => Ok(word.to_owned()),
            Err(findings) => Err(tell(
                &findings,
                &format!("cannot use the spec `{word}`; `onboard list` shows what is known"),
            )),
        }
    }

    /// Adds a spec file and checks that it can be read. Returns its name.
    pub(crate) fn add(&mut self, file: &Path) -> Result<String> {
        let refuse = |findings: Vec<Finding>| {
            let count = crate::text::plural(findings.len(), "finding");
            tell(&findings, &format!("the spec `{}` cannot be used: {count}", file.display()))
        };
        let name = self.library.add_with_parents(file).map_err(refuse)?;
        self.library.load(&name, &[]).map_err(refuse)?;
        self.own.push(name.clone());
        Ok(name)
    }

    /// Adds a spec that is not on the disk yet.
    pub(crate) fn add_text(&mut self, path: &Path, text: &str) {
        let name = self.library.add_text(&path.display().to_string(), text);
        self.own.push(name);
    }

    /// Returns the identity of a spec: the hash covers its file and those it extends.
    pub(crate) fn id(&self, name: &str) -> SpecId {
        let mut hash = Sha256::new();
        for name in self.origins(name).0 {
            hash.update(self.source(&name).unwrap_or_default().as_bytes());
            hash.update([0]);
        }
        let source = self.library.get(name);
        let path = source.map(|source| source.path.clone()).unwrap_or_default();
        let builtin = source.is_some_and(|source| source.is_builtin());
        SpecId { name: name.to_owned(), path, builtin, sha256: format!("{:x}", hash.finalize()) }
    }

    /// Resolves a spec with a config; warnings are shown.
    pub(crate) fn resolve(&self, spec: &str, config: &Config, set: &[String]) -> Result<Model> {
        let (model, warnings) = self.try_resolve(spec, config, set).map_err(|findings| {
            let count = crate::text::plural(findings.len(), "finding");
            tell(
                &findings,
                &format!(
                    "the spec `{spec}` and `{}` do not make a model: {count}",
                    config.parsed.path()
                ),
            )
        })?;
        warn(&warnings);
        Ok(model)
    }

    /// Resolves a spec with a generated config, whose unused keys are not reported.
    pub(crate) fn resolve_made(
        &self,
        spec: &str,
        config: &Config,
        set: &[String],
    ) -> Result<Model> {
        match self.try_resolve(spec, config, set) {
            Ok((model, _)) => Ok(model),
            Err(_) => self.resolve(spec, config, set),
        }
    }

    /// Resolves a spec with a config, and returns all findings.
    pub(crate) fn try_resolve(
        &self,
        spec: &str,
        config: &Config,
        set: &[String],
    ) -> std::result::Result<(Model, Vec<Finding>), Vec<Finding>> {
        let spec = self.library.load(spec, set)?;
        // A config tracks which keys were read; each spec starts with a fresh copy.
        resolve(&spec, &config.parsed.clone(), &self.ops)
    }

    /// Returns the spec and config that explain a GGUF file by its keys.
    pub(crate) fn choose(
        &self,
        arch: &str,
        only: Option<&str>,
        told: &Evidence,
    ) -> std::result::Result<Chosen, Vec<Refusal>> {
        Families::new(&self.library).choose(&self.ops, arch, only, told)
    }

    /// Returns an error for a spec whose mistakes no config can fix.
    pub(crate) fn lint(&self, spec: &str) -> Result<()> {
        let findings = match self.library.load(spec, &[]) {
            Ok(loaded) => registry::lint::lint(&loaded, &self.ops),
            Err(findings) => findings,
        };
        if findings.is_empty() {
            return Ok(());
        }
        let count = crate::text::plural(findings.len(), "finding");
        Err(tell(&findings, &format!("the spec `{spec}` cannot be used: {count}")))
    }

    /// Counts the dims of a spec whose config keys are all missing. A distant relative resolves with
    /// defaults for settings that the model does not have.
    pub(crate) fn absent_keys(&self, spec: &str, config: &Config) -> usize {
        let Ok(spec) = self.library.load(spec, &[]) else { return usize::MAX };
        let absent = |dim: &&Dim| {
            let mut keys = dim.sources.iter().filter_map(|source| match source {
                DimSource::Key(key) => Some(key),
                DimSource::Compute(_) => None,
            });
            keys.clone().next().is_some() && keys.all(|key| config.parsed.peek(&key.name).is_none())
        };
        spec.dims.values().filter(absent).count()
    }
}
