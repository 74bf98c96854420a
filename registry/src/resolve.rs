//! From a spec and a config to a model: every dim known, every call inlined, every shape
//! checked.
//!
//! Each fault is reported once and resolution goes on: the result of a faulty call is poison, and whatever
//! reads poison is silently poison too. So one run names all faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::Config;
use crate::diag::{Finding, Severity};
use crate::eval::{EvalError, Fuel};
use crate::model::Model;
use crate::ops::OpSet;
use crate::spec::Spec;

mod arithmetic;
mod bind;
mod dims;
mod explain;
mod gguf;
mod inherited;
mod layers;
mod mentions;
mod nextn;
mod program;
mod quant;
mod ropes;
mod rules;
mod scope;
mod states;
mod unknown_word;
mod words;

use crate::builder::Builder;
pub(crate) use dims::{SourcedScalar, read as read_sources};

pub use inherited::file_metadata;

use dims::DimTable;

/// The most layers a model may have.
pub const MAX_LAYERS: usize = 4096;
pub use crate::builder::MAX_DIM;

/// Resolves a spec. Gives the model and warnings, or every finding if one of them is an error.
pub fn resolve(
    spec: &Spec,
    config: &Config,
    ops: &OpSet,
) -> Result<(Model, Vec<Finding>), Vec<Finding>> {
    let mut report = FindingSet::default();
    let given_config = config;
    let encoder = !spec.encodes.is_empty();
    let fuel = Fuel::default();
    let config = &read_by(spec, config, &fuel, &mut report);
    let dims = DimTable::resolve(spec, config, &fuel, &mut report);
    let refused = match words::of(spec, ops, &fuel) {
        Ok(words) => words::check(&words, config, dims.layers(), &mut report),
        Err(fail) => {
            report.fail(fail);
            BTreeSet::new()
        }
    };
    check_assumptions(spec, &dims.env(config, &fuel), &mut report);
    let ropes = ropes::resolve(spec, &dims.env(config, &fuel), &mut |fail| report.fail(fail));
    let mut resolver = Resolver {
        spec,
        config,
        ops,
        fuel: &fuel,
        dims: &dims,
        refused,
        report,
        builder: Builder::new(ropes.clone(), stored_dtypes(spec)),
        stack: Vec::new(),
        depth: 0,
        carried: Vec::new(),
    };
    let hidden = resolver.required("hidden");
    let layers = resolver.required("layers");
    let vocab = resolver.required(if encoder { "output" } else { "vocab" });
    // The tokens of an encoder are places in a table of its own size.
    let input_vocab = if encoder { Some(MAX_DIM) } else { resolver.input_vocab(vocab) };
    let context = resolver.optional("context");
    if hidden.is_some() && layers.is_some() {
        resolver.model(vocab);
    }
    let heads = match &spec.nextn {
        Some(decl) if !resolver.report.failed => resolver.nextn(decl, vocab, &ropes),
        _ => None,
    };
    let rules = rules::resolve(spec, &dims.env(config, &fuel), &mut resolver.report);
    let env = dims.env(config, &fuel);
    let gguf = gguf::resolve(spec, &env, &[], &mut resolver.report);
    let places = heads.as_ref().map_or(&[][..], |heads| &heads.places);
    let written = spec.gguf.as_ref().is_some_and(|decl| !decl.nextn.is_empty());
    let ahead = (written && !places.is_empty())
        .then(|| gguf::resolve(spec, &env, places, &mut resolver.report))
        .flatten();
    let quant = quant::resolve(spec, &mut resolver.report);
    let Resolver { mut report, builder, .. } = resolver;
    let (graph, ropes) = builder.finish();
    report_unread(spec, config, &mut report);
    if report.failed {
        return Err(report.findings);
    }
    let (Some(vocab), Some(_)) = (vocab, graph.output) else {
        report.add(Finding::unplaced(format!("`{}` gives no logits", spec.source.path)));
        return Err(report.findings);
    };
    let mut model = Model {
        name: spec.name.name.clone(),
        architecture: config
            .architecture()
            .or(spec.matches.first().map(|ident| ident.name.as_str()))
            .unwrap_or_default()
            .to_owned(),
        dims: dims.values(),
        graph,
        ropes,
        vocab,
        input_vocab: input_vocab.unwrap_or(vocab),
        context,
        ignore: spec.ignore.weights.iter().map(|pattern| pattern.name.clone()).collect(),
        wrapped: None,
        rules,
        nextn: None,
        gguf,
        quant,
        own_steps: spec.reference.is_some(),
        layers: None,
    };
    add_rules_of_names(spec, config, &mut model);
    model.nextn = heads.map(|heads| heads.into_models(&model, ahead));
    if let Some(owner) = &spec.arch_owner {
        compare_with_owner(&mut model, owner, given_config, ops);
    }
    Ok((model, report.findings))
}

/// Returns the config as the spec reads it: that of an encoder or of a text model, with defaults. All keys that the spec mentions
/// count as read.
fn read_by(spec: &Spec, config: &Config, fuel: &Fuel, report: &mut FindingSet) -> Config {
    let of_encoder = (!spec.encodes.is_empty()).then(|| config.of_encoder());
    let config = of_encoder.as_ref().unwrap_or(config);
    let mentions = mentions::of(spec);
    for key in &mentions.keys {
        config.mark(key);
    }
    mentions::unused(spec, &mentions, report);
    config.with_defaults(defaults(spec, config, fuel, report))
}

/// Warns of each key of a config that nothing reads.
fn report_unread(spec: &Spec, config: &Config, report: &mut FindingSet) {
    for key in config.unread(&spec.ignore.keys()) {
        report.add(
            Finding::unplaced(format!("`{}`: nothing reads the key `{key}`", config.path()))
                .warning()
                .help(format!(
                    "read it in `dims:` of {}, or list it under `ignore: config:`",
                    spec.source.editable(&spec.name.name)
                )),
        );
    }
}

/// Adds the rules of tensors whose names begin otherwise than those of the spec.
fn add_rules_of_names(spec: &Spec, config: &Config, model: &mut Model) {
    let at = crate::diag::Span { source: Arc::clone(&spec.source), start: 0, end: 0 };
    if config.is_wrapped() && model.graph.encoder.is_none() {
        model.rules = crate::wrapper::rules(std::mem::take(&mut model.rules), &at);
        model.wrapped = Some(crate::wrapper::roots(&model.graph));
    }
    model.rules.extend(crate::wrapper::bare(&model.graph, &at));
}

/// Records where a model differs from that of the spec that owns its GGUF architecture.
fn compare_with_owner(
    model: &mut Model,
    owner: &crate::spec::ArchOwner,
    config: &Config,
    ops: &OpSet,
) {
    let unlike = inherited::owner_difference(model, owner, config, ops).map(Box::new);
    let head = model.nextn.as_mut().and_then(|nextn| nextn.gguf.as_mut());
    for gguf in model.gguf.as_mut().into_iter().chain(head) {
        gguf.unlike.clone_from(&unlike);
    }
}

/// Evaluates the values that the spec gives to keys an inner config leaves out. These are plain values.
fn defaults(
    spec: &Spec,
    config: &Config,
    fuel: &Fuel,
    report: &mut FindingSet,
) -> Vec<(String, crate::scalar::Scalar)> {
    let none = DimTable::default();
    let env = none.env(config, fuel);
    spec.defaults
        .values()
        .filter_map(|entry: &crate::spec::GgufEntry| {
            let value = report.ok_or_report(crate::eval::eval_owned(&entry.value, &env))?;
            Some((entry.name.name.clone(), value))
        })
        .collect()
}

/// Refuses a config of which something is not so that the spec takes for granted.
fn check_assumptions(spec: &Spec, env: &dyn crate::eval::Env, report: &mut FindingSet) {
    for entry in spec.assumes.values() {
        let is = report.ok_or_report(crate::eval::eval_owned(&entry.value, env));
        if is.is_some_and(|is| !crate::eval::truth(&is)) {
            let message = format!("`{}` does not describe this model", spec.name.name);
            report.add(
                Finding::error(&entry.name.at, message)
                    .label(format!("it takes for granted that {}", entry.name.name))
                    .help("write a spec for models where that is not so"),
            );
        }
    }
}

/// Patterns of weights that are not kept in the run's dtype, and what they are kept in.
fn stored_dtypes(spec: &Spec) -> Vec<(String, crate::dtype::DtypeRule)> {
    use crate::dtype::{Dtype, DtypeRule};

    let always = spec.kept.f32.iter().map(|pattern| (pattern, DtypeRule::Fixed(Dtype::F32)));
    let wide = spec.kept.f32_in_f16.iter().map(|pattern| (pattern, DtypeRule::WideInF16));
    always.chain(wide).map(|(pattern, dtype)| (pattern.name.clone(), dtype)).collect()
}

/// Findings, each once: what is wrong in one layer is wrong in all of its kind.
#[derive(Debug, Default)]
struct FindingSet {
    findings: Vec<Finding>,
    seen: BTreeSet<(String, String, usize, usize)>,
    failed: bool,
}

impl FindingSet {
    fn add(&mut self, finding: Finding) {
        self.failed |= finding.severity == Severity::Error;
        let place = finding
            .at
            .as_ref()
            .map(|at| (at.source.path.clone(), at.start, at.end))
            .unwrap_or_default();
        if self.seen.insert((finding.message.clone(), place.0, place.1, place.2)) {
            self.findings.push(finding);
        }
    }

    /// Returns the value, or reports the failure and returns none.
    fn ok_or_report<T>(&mut self, result: Result<T, EvalError>) -> Option<T> {
        result.map_err(|fail| self.fail(fail)).ok()
    }

    fn fail(&mut self, fail: EvalError) {
        match fail {
            EvalError::Finding(finding) => self.add(*finding),
            EvalError::Reported => self.failed = true,
        }
    }
}

/// Everything that inlining needs.
struct Resolver<'a> {
    spec: &'a Spec,
    config: &'a Config,
    ops: &'a OpSet,
    fuel: &'a Fuel,
    dims: &'a DimTable,
    /// Texts of the config that no spec of this kind knows; they were reported.
    refused: BTreeSet<String>,
    report: FindingSet,
    builder: Builder,
    /// Functions being inlined, outermost first.
    stack: Vec<String>,
    /// The nesting depth of expressions and calls.
    depth: usize,
    /// Values that the last layer carries, in the order of the names.
    carried: Vec<scope::Binding>,
}

impl Resolver<'_> {
    /// Returns a dim that every spec has to declare: a positive integer below a limit.
    fn required(&mut self, name: &str) -> Option<usize> {
        if !self.spec.dims.contains_key(name) {
            let source = std::sync::Arc::clone(&self.spec.source);
            let at = crate::diag::Span { source, start: 0, end: 0 };
            self.report.add(
                Finding::error(&at, format!("the spec has no dim `{name}`"))
                    .help(if self.spec.encodes.is_empty() {
                        "`hidden`, `layers` and `vocab` are needed"
                    } else {
                        "`hidden`, `layers`, `patch` (numbers of a patch) and `output` (numbers of a row of the \
                         text model) are needed"
                    }),
            );
            return None;
        }
        let limit = if name == "layers" { MAX_LAYERS } else { MAX_DIM };
        self.count(name, limit)
    }

    fn optional(&mut self, name: &str) -> Option<usize> {
        // A context is a claim that nothing is allocated for.
        self.spec.dims.contains_key(name).then(|| self.count(name, usize::MAX))?
    }

    /// Returns the number of tokens that the model reads, if the spec declares that separately. It is not below the
    /// number of logits: a generated token is read next.
    fn input_vocab(&mut self, vocab: Option<usize>) -> Option<usize> {
        let decl = self.spec.dims.get("input_vocab")?;
        let input_vocab = self.count("input_vocab", MAX_DIM)?;
        if let Some(vocab) = vocab.filter(|vocab| input_vocab < *vocab) {
            self.report.add(
                Finding::error(&decl.name.at, format!("`input_vocab` is {input_vocab}"))
                    .label(format!("expected at least `vocab`, which is {vocab}"))
                    .help("`vocab` is the number of rows of the head, and `input_vocab` that of the embedding"),
            );
        }
        Some(input_vocab)
    }

    fn count(&mut self, name: &str, limit: usize) -> Option<usize> {
        match self.dims.count(name, limit) {
            Ok(count) => count,
            Err(finding) => {
                self.report.add(finding);
                None
            }
        }
    }
}

/// Scalars that a layer's programs see beside the dims; `None` if one could not be computed.
type LayerScalars = BTreeMap<String, Option<crate::scalar::Scalar>>;

#[cfg(test)]
mod tests;
