//! Choice of a spec for a file without a config: the spec whose model gives the file's keys.
//!
//! The keys have to survive a round trip ([decision 20](../../docs/decisions/0020-foreign-gguf-round-trip.md)).

use crate::config::Config;
use crate::library::Library;
use crate::model::Model;
use crate::ops::OpSet;
use crate::resolve::resolve;
use crate::spec::Spec;

use crate::gguf::FileMetadata;
use crate::gguf::config::{config_of, errors, may_have_arch};
use crate::gguf::differences::{differences, unread};
use crate::gguf_head::of_file;

/// A spec that explains a file, and the config that was derived from the file.
#[derive(Debug)]
pub struct SpecMatch {
    /// The spec.
    pub spec: String,
    /// The `config.json` that the file's model would have.
    pub config: Config,
    /// The model.
    pub model: Model,
}

/// A spec that does not explain a file, and everything that speaks against it.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecMismatch {
    /// The spec.
    pub spec: String,
    /// The reasons against the spec.
    pub faults: Vec<String>,
}

/// The specs that a file may belong to, plain ones first.
#[derive(Debug)]
pub struct FileSpecs {
    /// The specs by name, each with the number of specs that it extends.
    specs: Vec<(usize, String, Spec)>,
}

impl FileSpecs {
    /// Collects all specs that describe files.
    pub fn new(library: &Library) -> Self {
        Self::collect(library, |_| true)
    }

    /// Collects the specs that may describe files of an architecture: those whose text, or that of a spec they extend,
    /// has its name. Reading all others would take most of the time of opening a file.
    pub fn of_arch(library: &Library, arch: &str) -> Self {
        Self::collect(library, |name| {
            let (chain, _) = library.origins(name);
            let mut sources = chain.iter().filter_map(|name| library.get(name));
            sources.any(|source| source.text.contains(arch))
        })
    }

    fn collect(library: &Library, includes: impl Fn(&str) -> bool) -> Self {
        let all = library.names().filter(|name| includes(name)).filter_map(|name| {
            let spec = library.load(name, &[]).ok().filter(|spec| spec.gguf.is_some())?;
            Some((depth(library, name), name.to_owned(), spec))
        });
        let mut specs: Vec<_> = all.collect();
        specs.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        Self { specs }
    }

    /// Finds the spec of a file of the architecture; `only` is the one to try, if it is known.
    ///
    /// Relatives often share an architecture. The one that starts from the fewest others is the
    /// plain one; a relative is needed only where that explains the file not at all, or fewer of
    /// its keys.
    pub fn choose(
        &self,
        ops: &OpSet,
        arch: &str,
        only: Option<&str>,
        header: &FileMetadata,
    ) -> Result<SpecMatch, Vec<SpecMismatch>> {
        let candidates = self.specs.iter().filter(|(_, name, spec)| {
            only.is_none_or(|only| only == name.as_str()) && may_have_arch(spec, arch)
        });
        let mut refusals = Vec::new();
        let mut best = None::<(usize, SpecMatch)>;
        for (_, name, spec) in candidates {
            match attempt(spec, ops, arch, name, header) {
                Ok((unread, chosen)) => {
                    if best.as_ref().is_none_or(|(least, _)| unread < *least) {
                        best = Some((unread, chosen));
                    }
                }
                Err(faults) => refusals.push(SpecMismatch { spec: name.to_owned(), faults }),
            }
        }
        if let Some((_, chosen)) = best {
            return Ok(chosen);
        }
        // The nearest first.
        refusals.sort_by_key(|refusal| refusal.faults.len());
        Err(refusals)
    }
}

fn attempt(
    spec: &Spec,
    ops: &OpSet,
    arch: &str,
    name: &str,
    header: &FileMetadata,
) -> Result<(usize, SpecMatch), Vec<String>> {
    let config = config_of(spec, header).map_err(|findings| errors(&findings))?;
    let (model, _) = resolve(spec, &config, ops).map_err(|findings| errors(&findings))?;
    let file = of_file(&model, header).filter(|(gguf, _)| gguf.arch == arch);
    let Some((gguf, weights)) = file else {
        return Err(vec![format!("its model is no `{arch}`")]);
    };
    if let Some(unlike) = &gguf.unlike {
        return Err(vec![format!("{}: {}", unlike.message, unlike.label)]);
    }
    let faults = differences(&gguf, &weights, header);
    if !faults.is_empty() {
        return Err(faults);
    }
    let unread = unread(&gguf, header);
    // A section that the spec extends may give keys that this one has no use for.
    let config = config.without_unread(&spec.ignore.keys());
    Ok((unread, SpecMatch { spec: name.to_owned(), config, model }))
}

/// Counts the specs that a spec extends, directly or through others.
fn depth(library: &Library, name: &str) -> usize {
    let mut next = Some(name.to_owned());
    let mut seen = 0;
    while let Some(spec) = next.take().and_then(|name| library.load(&name, &[]).ok()) {
        seen += 1;
        next = spec.extends.map(|word| word.name).filter(|_| seen < 32);
    }
    seen
}
