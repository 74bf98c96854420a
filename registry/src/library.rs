//! Every spec that can be named: those built in, and files of the user.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::diag::{Finding, SourceText};
use crate::extend::{
    MergeFindings, add_library, append_rules, apply_set, check_file, merge, words,
};
use crate::spec::decode::decode;
use crate::spec::keys::{LIB, SPEC};
use crate::spec::{ArchOwner, Spec};
use crate::suggest;
use crate::syntax::Ident;
use crate::text::MappedText;
use crate::yaml::{self, YamlMap, YamlNode};

use crate::builtin::{LIBS, SPECS};

/// The longest chain of `extends:`.
const MAX_CHAIN: usize = 16;

/// Specs and function files by name.
#[derive(Debug, Clone, Default)]
pub struct Library {
    specs: BTreeMap<String, SpecFile>,
    libs: BTreeMap<String, SpecFile>,
}

#[derive(Debug, Clone)]
struct SpecFile {
    source: Arc<SourceText>,
    /// Read once; none if its YAML is broken.
    tree: Option<Arc<YamlNode>>,
    /// Mistakes in its YAML, which are reported when it is loaded.
    findings: Vec<Finding>,
}

impl SpecFile {
    fn new(path: &str, text: &str) -> Self {
        let source = Arc::new(SourceText { path: path.to_owned(), text: text.to_owned() });
        let (tree, findings) = yaml::read_whole(&source);
        Self { tree: tree.map(Arc::new), findings, source }
    }

    fn words(&self, key: &str) -> Vec<Ident> {
        let tree = self.tree.as_ref().and_then(|tree| tree.map());
        tree.map_or_else(Vec::new, |tree| words(tree, key))
    }

    /// True if the file itself has the entry in the section.
    fn entry(&self, section: &str, key: &str) -> bool {
        let tree = self.tree.as_ref().and_then(|tree| tree.map());
        let section = tree.and_then(|tree| tree.get(section)?.value.map());
        section.is_some_and(|section| section.get(key).is_some())
    }
}

impl Library {
    /// Returns the specs and function files that this crate embeds.
    pub fn builtin() -> Self {
        let mut library = Self::default();
        for (path, text) in SPECS {
            library.add_text(path, text);
        }
        for (path, text) in LIBS {
            library.libs.insert(stem(Path::new(path)), SpecFile::new(path, text));
        }
        library
    }

    /// Adds a spec; it takes the place of one of the same name. Gives its name.
    pub fn add_file(&mut self, path: &Path) -> Result<String, Vec<Finding>> {
        let text = read(path)?;
        Ok(self.add_text(&path.display().to_string(), &text))
    }

    /// Adds a spec like [`Library::add_file`], and the files beside it that it names: specs in
    /// `extends:`, and function files (`lib/NAME.yaml`) in `use:`. They win over built-in ones.
    pub fn add_with_parents(&mut self, path: &Path) -> Result<String, Vec<Finding>> {
        let name = self.add_file(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut chain = vec![name.clone()];
        while let Some(file) = chain.last().and_then(|last| self.specs.get(last)) {
            let used = file.words("use");
            let parent = file.words("extends").into_iter().next();
            for used in used {
                let beside = folder.join("lib").join(format!("{}.yaml", used.name));
                if beside.is_file() {
                    self.add_lib(&beside)?;
                }
            }
            let Some(Ident { name: parent, .. }) = parent else { break };
            if chain.contains(&parent) || chain.len() >= MAX_CHAIN {
                break;
            }
            let beside = folder.join(format!("{parent}.yaml"));
            if beside.is_file() {
                let file = SpecFile::new(&beside.display().to_string(), &read(&beside)?);
                // A file of this name that calls itself otherwise is another spec.
                if file.words("name").first().is_none_or(|name| name.name == parent) {
                    self.specs.insert(parent.clone(), file);
                }
            }
            chain.push(parent);
        }
        Ok(name)
    }

    fn add_lib(&mut self, path: &Path) -> Result<(), Vec<Finding>> {
        let text = read(path)?;
        self.libs.insert(stem(path), SpecFile::new(&path.display().to_string(), &text));
        Ok(())
    }

    /// Adds the specs of a folder (`*.yaml`), and function files (`lib/*.yaml`).
    /// Gives the names of the specs.
    pub fn add_dir(&mut self, path: &Path) -> Result<Vec<String>, Vec<Finding>> {
        let mut names = Vec::new();
        let mut findings = Vec::new();
        for file in yaml_files(path)? {
            match self.add_file(&file) {
                Ok(name) => names.push(name),
                Err(errors) => findings.extend(errors),
            }
        }
        let lib = path.join("lib");
        if lib.is_dir() {
            for file in yaml_files(&lib)? {
                findings.extend(self.add_lib(&file).err().into_iter().flatten());
            }
        }
        if findings.is_empty() { Ok(names) } else { Err(findings) }
    }

    /// Adds the text of a spec that lies, or will lie, at a path. Gives its name.
    pub fn add_text(&mut self, path: &str, text: &str) -> String {
        let file = SpecFile::new(path, text);
        let name = file.words("name").into_iter().next().map(|name| name.name);
        let name = name.unwrap_or_else(|| stem(Path::new(path)));
        self.specs.insert(name.clone(), file);
        name
    }

    /// Returns the file of a spec.
    pub fn get(&self, name: &str) -> Option<&Arc<SourceText>> {
        self.specs.get(name).map(|file| &file.source)
    }

    /// Returns the text of a function file.
    pub fn lib(&self, name: &str) -> Option<&Arc<SourceText>> {
        self.libs.get(name).map(|file| &file.source)
    }

    /// Returns the specs that a spec starts from, itself first, and the function files that they use.
    pub fn origins(&self, name: &str) -> (Vec<String>, Vec<String>) {
        let mut chain = Vec::new();
        let mut libs = Vec::new();
        let mut next = Some(name.to_owned());
        while let Some((name, file)) = next.take().and_then(|name| {
            let file = self.specs.get(&name)?;
            Some((name, file))
        }) {
            libs.extend(file.words("use").into_iter().map(|word| word.name));
            let parent = file.words("extends").into_iter().next().map(|word| word.name);
            chain.push(name);
            next = parent.filter(|parent| !chain.contains(parent));
        }
        (chain, libs)
    }

    /// Returns the names of all specs, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.specs.keys().map(String::as_str)
    }

    /// Returns the specs that match a value of `architectures` in `config.json`.
    pub fn find_architecture(&self, architecture: &str) -> Vec<&str> {
        self.specs_with("matches", architecture)
    }

    /// Returns the specs that a class may hold as its text model.
    pub(crate) fn inside(&self, class: &str) -> Vec<&str> {
        self.specs_with("inside", class)
    }

    /// Returns the specs that describe the encoder of images of a class.
    pub fn find_encoders(&self, class: &str) -> Vec<&str> {
        self.specs_with("encodes", class)
    }

    /// Returns the specs that list a word behind a key.
    fn specs_with(&self, key: &str, word: &str) -> Vec<&str> {
        let specs = self.specs.iter();
        let specs = specs.filter(|(_, file)| file.words(key).iter().any(|n| n.name == word));
        specs.map(|(name, _)| name.as_str()).collect()
    }

    /// True if a spec describes models whose inner config has this `model_type`.
    pub(crate) fn is_kind(&self, name: &str, kind: &str) -> bool {
        name == kind
            || self.specs.get(name).is_some_and(|file: &SpecFile| {
                file.words("kinds").iter().any(|word| word.name == kind)
            })
    }

    /// Returns all architectures that specs match, sorted, each with the spec's name.
    pub fn architectures(&self) -> BTreeMap<String, &str> {
        let mut all = BTreeMap::new();
        for (name, file) in &self.specs {
            all.extend(file.words("matches").into_iter().map(|word| (word.name, name.as_str())));
        }
        all
    }

    /// Loads a spec, merged with the specs and function files it builds on, with overrides
    /// (`states.conv.dtype=f32`) applied.
    pub fn load(&self, name: &str, sets: &[String]) -> Result<Spec, Vec<Finding>> {
        let Some(file) = self.specs.get(name) else {
            let mut finding = Finding::unplaced(format!("there is no spec `{name}`"));
            finding.help = suggest::help(name, self.names());
            return Err(vec![finding]);
        };
        let mut findings = MergeFindings::default();
        let mut uses = Vec::new();
        let merged = self.merged(name, file, &mut Vec::new(), &mut uses, &mut findings);
        // Without its tree the rest of the findings would be guesses.
        let Some(mut tree) = merged else { return Err(findings.list) };
        for lib in uses.iter().filter_map(|used: &Ident| self.libs.get(&used.name)) {
            if let Some(lib) = lib.tree.as_deref().and_then(YamlNode::map) {
                append_rules(&mut tree, lib);
            }
        }
        if !findings.orphan {
            for set in sets {
                apply_set(&mut tree, set, &mut findings);
            }
        }
        let MergeFindings { list: mut findings, orphan } = findings;
        match decode(&tree, uses, &file.source, orphan) {
            Ok(mut spec) if findings.is_empty() => {
                spec.arch_owner = self.arch_owner(&spec, name, sets);
                Ok(spec)
            }
            Ok(_) => Err(findings),
            Err(errors) => {
                // What follows from a mistake in the YAML stands on its line.
                let marked = self.specs.values().chain(self.libs.values());
                let marked: BTreeSet<_> =
                    marked.flat_map(|file| &file.findings).map(line_of).collect();
                findings
                    .extend(errors.into_iter().filter(|error| !marked.contains(&line_of(error))));
                Err(findings)
            }
        }
    }

    /// Returns the spec that wrote `gguf: arch:`, if that is another one, or this one before overrides.
    fn arch_owner(&self, spec: &Spec, name: &str, sets: &[String]) -> Option<ArchOwner> {
        spec.gguf.as_ref()?.arch.as_ref()?;
        if sets
            .iter()
            .any(|set: &String| set.split('=').next().is_some_and(|path| path == "gguf.arch"))
        {
            return None;
        }
        let mut owner = name.to_owned();
        // `merged` has refused cycles and longer chains.
        for _ in 0..MAX_CHAIN {
            let file = self.specs.get(&owner)?;
            if file.entry("gguf", "arch") {
                break;
            }
            owner = file.words("extends").into_iter().next()?.name;
        }
        (owner != name || !sets.is_empty())
            .then(|| ArchOwner { spec: self.load(&owner, &[]).ok().map(Arc::new), name: owner })
    }

    /// Merges the tree of `file` over those it extends; `chain` are the specs above it.
    fn merged(
        &self,
        name: &str,
        file: &SpecFile,
        chain: &mut Vec<String>,
        uses: &mut Vec<Ident>,
        findings: &mut MergeFindings,
    ) -> Option<YamlMap> {
        chain.push(name.to_owned());
        let child = checked(file, &SPEC, findings)?;
        let mut tree = match words(&child, "extends").into_iter().next() {
            None => YamlMap::new(),
            Some(parent) => self
                .parent(&parent, chain, findings)
                .and_then(|above| self.merged(&parent.name, above, chain, uses, findings))
                .unwrap_or_else(|| {
                    findings.orphan = true;
                    YamlMap::new()
                }),
        };
        for used in words(&child, "use") {
            let Some(lib) = self.libs.get(&used.name) else {
                let message = format!("there is no function file `{}`", used.name);
                let mut finding = Finding::error(&used.at, message);
                finding.help = suggest::help(&used.name, self.libs.keys().map(String::as_str));
                findings.push(finding);
                continue;
            };
            let Some(lib) = checked(lib, &LIB, findings) else { continue };
            for entry in lib.values().filter(|entry| !LIB.knows(entry.key.value())) {
                let message = format!("{} has no key `{}`", LIB.what, entry.key.value());
                let mut finding = Finding::error(&entry.key.span(), message);
                finding.help = suggest::help(entry.key.value(), LIB.names());
                findings.push(finding);
            }
            add_library(&mut tree, &lib, findings);
            if !uses.iter().any(|other| other.name == used.name) {
                uses.push(used);
            }
        }
        Some(merge(tree, child, findings))
    }

    fn parent(
        &self,
        parent: &Ident,
        chain: &[String],
        findings: &mut MergeFindings,
    ) -> Option<&SpecFile> {
        if chain.contains(&parent.name) {
            let path: Vec<&str> = chain.iter().map(String::as_str).collect();
            let message = format!("`{}` extends itself", parent.name);
            let label = format!("{} -> {}", path.join(" -> "), parent.name);
            findings.push(Finding::error(&parent.at, message).label(label));
            return None;
        }
        if chain.len() >= MAX_CHAIN {
            let message = format!("more than {MAX_CHAIN} specs extend each other");
            findings.push(Finding::error(&parent.at, message));
            return None;
        }
        let file = self.specs.get(&parent.name);
        if file.is_none() {
            let message = format!("there is no spec `{}` to extend", parent.name);
            let mut finding = Finding::error(&parent.at, message);
            finding.help = suggest::help(&parent.name, self.names());
            findings.push(finding);
        }
        file
    }
}

/// Returns the entries of a file, if its YAML is sound and it is a map.
fn checked(
    file: &SpecFile,
    table: &crate::spec::keys::KeyTable,
    findings: &mut MergeFindings,
) -> Option<YamlMap> {
    findings.list.extend(file.findings.iter().cloned());
    let tree = file.tree.as_ref()?;
    check_file(tree, table, findings);
    tree.map().cloned()
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

fn read(path: &Path) -> Result<String, Vec<Finding>> {
    let bytes = crate::file::read(path, crate::file::SPEC).map_err(|error| unreadable(&error))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let source = SourceText {
            path: path.display().to_string(),
            text: String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned(),
        };
        let valid_text = MappedText::whole(source.path, source.text);
        let end = valid_text.value().len();
        vec![
            Finding::error(&valid_text.at(end..end), "this file is not UTF-8")
                .label(format!("byte {valid} begins no character")),
        ]
    })
}

fn yaml_files(path: &Path) -> Result<Vec<std::path::PathBuf>, Vec<Finding>> {
    let mut files = Vec::new();
    for entry in fs_err::read_dir(path).map_err(|error| unreadable(&error))? {
        let file = entry.map_err(|error| unreadable(&error))?.path();
        if file.extension().is_some_and(|extension| extension == "yaml") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the finding that a file or a directory cannot be read.
fn unreadable(error: &std::io::Error) -> Vec<Finding> {
    vec![Finding::unplaced(error.to_string())]
}

/// Returns the file and the line of a finding, if it has a place.
fn line_of(finding: &Finding) -> Option<(String, usize)> {
    finding.at.as_ref().map(|at| (at.source.path.clone(), at.line()))
}

#[cfg(test)]
mod tests;
