//! Known specs: finds, checks and resolves them.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;

use registry::alias::{Alias, AliasMismatch, alias};
use registry::config::Config;
use registry::diag::Finding;
use registry::gguf::FileMetadata;
use registry::gguf_match::{FileSpecs, SpecMatch, SpecMismatch as Unexplained};
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::resolve::resolve;
use registry::scalar::Scalar;
use registry::spec::{Dim, DimSource, Spec};
use sha2::{Digest as _, Sha256};

use crate::config::ConfigFile;
use crate::error::{Error, FindingSubject};

/// Names of a spec, and the architectures that it matches.
#[derive(Debug, Clone)]
pub struct SpecEntry {
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

/// Identity of a spec: its name, its file and the hash of its text.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SpecId {
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

/// Known specs: those built in, and those that were added, which come first.
pub struct Specs {
    library: Library,
    ops: OpSet,
    own: Vec<String>,
}

impl Specs {
    /// Returns the built-in specs.
    pub fn builtin() -> Self {
        Self { library: Library::builtin(), ops: OpSet::builtin(), own: Vec::new() }
    }

    /// Adds the specs of a folder. They take precedence over those of the same name that are here already.
    pub fn add_folder(&mut self, folder: &Path) -> Result<(), Error> {
        self.own.extend(self.library.add_dir(folder).map_err(|findings| {
            FindingSubject::Folder { folder: folder.to_owned() }.of(findings)
        })?);
        Ok(())
    }

    /// Returns every spec by name, without faulty ones, which `check` reports.
    pub fn all(&self) -> impl Iterator<Item = SpecEntry> {
        self.library.names().filter_map(|name| {
            let spec = self.library.load(name, &[]).ok()?;
            Some(SpecEntry {
                name: name.to_owned(),
                matches: spec.matches.iter().map(|word| word.name.clone()).collect(),
                inside: spec.inside.iter().map(|word| word.name.clone()).collect(),
                extends: spec.extends.as_ref().map(|word| word.name.clone()),
                path: spec.source.path.clone(),
            })
        })
    }

    /// Returns the spec that most others extend.
    pub fn most_extended(&self) -> String {
        let parents: Vec<String> = self.all().filter_map(|spec| spec.extends).collect();
        let most_heirs = parents.iter().max_by_key(|name| {
            let heirs = parents.iter().filter(|parent| parent == name).count();
            (heirs, Reverse(*name))
        });
        most_heirs.cloned().unwrap_or_default()
    }

    /// True if there is a spec of this name.
    pub fn has(&self, name: &str) -> bool {
        self.library.get(name).is_some()
    }

    /// Returns the spec that matches a config's architecture.
    pub fn matching(&self, config: &ConfigFile) -> Result<Option<String>, Error> {
        let mut names = self.library.find(config.parsed());
        let kind = config.text("model_type");
        // A config without a class still names its model type, which may be the name of a spec.
        if let (None, Some(kind)) = (config.parsed().architecture(), &kind) {
            names.extend(self.library.names().filter(|name| name == kind));
        }
        self.one_of(&names, config)
    }

    /// Returns the spec of the encoder of images that a config names.
    pub fn encoder_of(&self, config: &ConfigFile) -> Result<Option<String>, Error> {
        let class = config.parsed().architecture().unwrap_or_default();
        self.one_of(&self.library.find_encoders(class), config)
    }

    /// Returns the one of several specs that is meant: the only one, or the only one that was added.
    fn one_of(&self, names: &[&str], config: &ConfigFile) -> Result<Option<String>, Error> {
        let added: Vec<&str> =
            names.iter().copied().filter(|name| self.own.iter().any(|own| own == name)).collect();
        match (names, added.as_slice()) {
            ([], _) => Ok(None),
            ([one], _) | (_, [one]) => Ok(Some((*one).to_owned())),
            (several, _) => Err(Error::SeveralSpecs {
                architecture: config.architecture(),
                specs: several.iter().map(|&name| name.to_owned()).collect(),
            }),
        }
    }

    /// Returns the text of a spec.
    pub fn source(&self, name: &str) -> Option<&str> {
        self.library.get(name).map(|source| source.text.as_str())
    }

    /// Returns the text of a function file.
    pub fn lib(&self, name: &str) -> Option<&str> {
        self.library.lib(name).map(|source| source.text.as_str())
    }

    /// Returns the specs that a spec extends, beginning with itself, and the function files that they use.
    pub fn origins(&self, name: &str) -> (Vec<String>, Vec<String>) {
        self.library.origins(name)
    }

    /// Finds a known architecture that computes the same under other names.
    pub fn alias(
        &self,
        model: &Model,
        config: &ConfigFile,
        architectures: &BTreeSet<&str>,
        tensors: &BTreeSet<String>,
    ) -> Result<Alias, Vec<AliasMismatch>> {
        alias(model, config.parsed(), &self.library, &self.ops, architectures, tensors)
    }

    /// Returns the name of a spec given by name or by file. The name of a known spec is never a file or folder of
    /// that name, which `./NAME` gives.
    pub fn named(&mut self, word: &Path) -> Result<String, Error> {
        let known = word.to_str().is_some_and(|word| self.has(word));
        let yaml = word.extension().is_some_and(|end| end == "yaml" || end == "yml");
        if yaml || (!known && word.is_file()) {
            return self.add(word);
        }
        let word = &*word.to_string_lossy();
        match self.library.load(word, &[]) {
            Ok(_) => Ok(word.to_owned()),
            Err(findings) => Err(FindingSubject::Name { spec: word.to_owned() }.of(findings)),
        }
    }

    /// Adds a spec file and checks that it can be read. Returns its name.
    pub fn add(&mut self, file: &Path) -> Result<String, Error> {
        let path = file.display().to_string();
        let name = self
            .library
            .add_with_parents(file)
            .map_err(|findings| unusable(path.clone(), findings))?;
        self.library.load(&name, &[]).map_err(|findings| unusable(path, findings))?;
        self.own.push(name.clone());
        Ok(name)
    }

    /// Adds a spec that is not on the disk yet.
    pub fn add_text(&mut self, path: &Path, text: &str) {
        let name = self.library.add_text(&path.display().to_string(), text);
        self.own.push(name);
    }

    /// Returns the identity of a spec: the hash covers its file and those it extends.
    pub fn id(&self, name: &str) -> SpecId {
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

    /// Loads a spec with what it inherits.
    pub fn load(&self, spec: &str, set: &[String]) -> Result<Spec, Error> {
        self.library.load(spec, set).map_err(|findings| unusable(spec.to_owned(), findings))
    }

    /// Resolves a spec with a config. Returns the model and warnings.
    pub fn resolve(
        &self,
        spec: &str,
        config: &ConfigFile,
        set: &[String],
    ) -> Result<(Model, Vec<Finding>), Error> {
        self.try_resolve(spec, config, set).map_err(|findings| {
            let config = config.parsed().path().to_owned();
            FindingSubject::Model { spec: spec.to_owned(), config, count: findings.len() }
                .of(findings)
        })
    }

    /// Resolves a spec with a config, and returns all findings.
    pub fn try_resolve(
        &self,
        spec: &str,
        config: &ConfigFile,
        set: &[String],
    ) -> Result<(Model, Vec<Finding>), Vec<Finding>> {
        let spec = self.library.load(spec, set)?;
        // A config tracks which keys were read; each spec starts with a fresh copy.
        resolve(&spec, &config.parsed().clone(), &self.ops)
    }

    /// Resolves a spec with other values than those of the config's file; none if the spec refuses them.
    pub fn resolve_values(&self, spec: &str, values: &Scalar, set: &[String]) -> Option<Model> {
        let spec = self.library.load(spec, set).ok()?;
        let config = Config::of("config.json", values.clone());
        resolve(&spec, &config, &self.ops).ok().map(|(model, _)| model)
    }

    /// Returns the spec and config that explain a GGUF file by its keys.
    pub fn choose(
        &self,
        arch: &str,
        only: Option<&str>,
        header: &FileMetadata,
    ) -> Result<SpecMatch, Vec<Unexplained>> {
        FileSpecs::of_arch(&self.library, arch).choose(&self.ops, arch, only, header)
    }

    /// Returns an error for a spec whose mistakes no config can fix.
    pub fn lint(&self, spec: &str) -> Result<(), Error> {
        let findings = match self.library.load(spec, &[]) {
            Ok(loaded) => registry::lint::lint(&loaded, &self.ops),
            Err(findings) => findings,
        };
        if findings.is_empty() {
            return Ok(());
        }
        Err(unusable(spec.to_owned(), findings))
    }

    /// Counts the dims of a spec whose config keys are all missing. A distant relative resolves with
    /// defaults for settings that the model does not have.
    pub fn absent_keys(&self, spec: &str, config: &ConfigFile) -> usize {
        let Ok(spec) = self.library.load(spec, &[]) else { return usize::MAX };
        spec.dims.values().filter(|dim| is_absent(dim, config)).count()
    }
}

/// True if a dimension is read from keys, and the config has none of them.
fn is_absent(dim: &Dim, config: &ConfigFile) -> bool {
    let mut keys = dim.sources.iter().filter_map(|source| match source {
        DimSource::Key(key) => Some(key),
        DimSource::Compute(_) => None,
    });
    keys.clone().next().is_some() && keys.all(|key| config.parsed().peek(&key.name).is_none())
}

fn unusable(spec: String, findings: Vec<Finding>) -> Error {
    FindingSubject::Spec { spec, count: findings.len() }.of(findings)
}
