//! Runs a check: every run of a dump, every prompt, both phases, in both modes.

use std::collections::BTreeSet;
use std::sync::Arc;

use checkpoints::Checkpoint;
use engine::{Engine, InputRounding, ModelSource, NativeEngine, Session, SessionFeatures};
use registry::dtype::Dtype;
use registry::graph::Node;
use registry::model::Model;
use registry::scalar::Scalar;

use crate::compare::{Comparison, ReferenceResults, structure};
use crate::diverge;
use crate::dump::{self, Dump, Prompt, TrustedPhase};
pub use crate::error::Error;
use crate::fit::MeasureRatios;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::kv_fp8;
use crate::limit::{Limit, Unproven};
use crate::mask_support::{masked, runnable_part};
use crate::order::ExecutionOrder;
use crate::prompt_session;
use crate::report::Report;
use crate::route::{Router, RouterRow, RoutingProbe, routers};
use crate::rule;
use crate::schedules::{self, Baseline};
use engine::RowsSession;

mod greedy;
mod head;
mod limits;
mod options;
mod pool;
mod prompt;
mod subject;
mod summary;

pub use options::CheckOptions;

use greedy::{generated, greedy};
use head::compare_head;
use limits::{limits, skip_unjudged};
use pool::pool;
use prompt::compare_prompt;
pub(crate) use subject::producer;
use subject::{about, identify, not_exposed, not_finite};
pub(crate) use summary::summarize;
use summary::{coverage, downgrade_explained};

/// Compares the native engine's runs of a model with a dump, as [`check_engine`] does for any engine.
///
/// ```
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use onboard_parity::{CheckOptions, Dump, Verdict, check};
/// use registry::{config::Config, dtype::Dtype, library::Library, ops::OpSet, resolve::resolve};
///
/// let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/llama_256");
/// let config = Config::read(&dir.join("config.json")).unwrap();
/// let library = Library::builtin();
/// let spec = library.load(library.find(&config)[0], &[]).unwrap();
/// let (model, _) = resolve(&spec, &config, &OpSet::builtin()).unwrap();
///
/// let source = engine::ModelSource { model: Arc::new(model), dir: &dir };
/// let dump = Dump::open(&dir.join("reference")).unwrap();
/// let options = CheckOptions { dtypes: vec![Dtype::F32], ..CheckOptions::default() };
/// let report = check(&source, &dump, &options).unwrap();
/// assert_eq!(report.verdict(), Verdict::Pass);
/// ```
pub fn check(
    model: &ModelSource<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<Report, Error> {
    check_engine(&NativeEngine::new(), model, dump, options)
}

/// Compares an engine's runs of a model with a dump. If the reference rounded keys and values to 8 bits,
/// the engine does so too. Otherwise 8-bit states are not an error of the engine: the model is compared
/// without them, and their effect is reported in rows of its own.
pub fn check_engine(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<Report, Error> {
    let part = runnable_part(engine, dump)?;
    let dump = part.as_ref().unwrap_or(dump);
    let (source, followed) = prepared(source, dump, options)?;
    let dump = followed.as_ref().unwrap_or(dump);
    if dump.manifest.kv_fp8().is_some() {
        return compare_unchanged(engine, &source, dump, options);
    }
    let source = &source;
    // The state dtypes of an engine that builds its own graph cannot be changed.
    let widened = engine.runs_specs().then(|| kv_fp8::widened(&source.model)).flatten();
    let Some((model, part)) = widened else {
        return compare_unchanged(engine, source, dump, options);
    };
    let mut report = compare_unchanged(
        engine,
        &ModelSource { model: Arc::new(model), dir: source.dir },
        dump,
        options,
    )?;
    let narrow = CheckOptions { local: false, schedules: false, ..options.clone() };
    let narrow_report = compare_unchanged(engine, source, dump, &narrow)?;
    report.runs.extend(kv_fp8::effects(narrow_report.runs, part));
    let why = format!("{part} is not what the reference keeps: its effect is measured, not judged");
    report.limit(Limit { kind: Unproven::States, why, runs: Vec::new() });
    Ok(report)
}

/// Adapts a model to the computation and state dtypes of a dump's reference. Also returns an adapted dump,
/// if its trusted parts change.
/// Steps are followed only if they are the truth ([decision 36](../../docs/decisions/0036-own-steps-of-the-reference.md)).
pub(crate) fn prepared<'a>(
    source: &ModelSource<'a>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<(ModelSource<'a>, Option<Dump>), Error> {
    let mut source = ModelSource { model: Arc::clone(&source.model), dir: source.dir };
    if source.model.layers.is_none() {
        source.model = of_layers(source.model, dump)?;
    }
    let mut followed = None;
    if dump.manifest.audit.truth() == TrustedPhase::Prefill && source.model.own_steps {
        let mut believed = Dump::open(&dump.dir)?;
        believed.manifest = dump.manifest.clone().with_trusted_decode();
        believed.notes.clone_from(&dump.notes);
        followed = Some(believed);
    }
    let manifest = &followed.as_ref().unwrap_or(dump).manifest;
    if manifest.audit.truth() == TrustedPhase::Prefill {
        // An untrusted phase of the reference is not imitated in its own rounding.
        let graph = &mut Arc::make_mut(&mut source.model).graph;
        let flags = graph.nodes.iter_mut().filter_map(|node| node.attrs.get_mut("stepwise"));
        flags.for_each(|flag| *flag = Scalar::Bool(false));
    }
    if let Some(scales) = manifest.kv_fp8()
        && !options.own_caches
    {
        let checkpoint = Checkpoint::open_part(source.dir, source.model.layers.as_ref())?;
        kv_fp8::narrow(&mut Arc::make_mut(&mut source.model).graph, scales, &checkpoint)?;
    }
    Ok((source, followed))
}

/// Returns the model without the layers that a dump's reference ran without.
pub fn of_layers(model: Arc<Model>, dump: &Dump) -> Result<Arc<Model>, Error> {
    let Some(choice) = dump.manifest.layer_choice() else { return Ok(model) };
    let part = model.with_layers(&choice);
    Ok(Arc::new(part.map_err(|why| Error::Layers { dump: dump.dir.clone(), why })?))
}

/// True if the graph computes continuing rows differently from initial rows, as its reference does.
fn phased(model: &Model) -> bool {
    model.own_steps
        || model
            .graph
            .nodes
            .iter()
            .any(|node: &Node| node.attrs.get("stepwise") == Some(&Scalar::Bool(true)))
}

/// Returns the largest distance of a row of log-probabilities from the reference in the newest run. Gates that
/// fail show a fault, not noise.
fn measured(report: &Report) -> Option<f64> {
    let gates = report
        .runs
        .last()?
        .gates
        .iter()
        .filter(|gate: &&Gate| gate.subject == Subject::Logprobs && !gate.fails());
    gates.flat_map(|g| &g.bounds).map(|bound| bound.value).reduce(f64::max)
}

/// Returns the dtypes to compare, or an error for a dump without one of them.
fn compared_dtypes(dump: &Dump, options: &CheckOptions) -> Result<Vec<Dtype>, Error> {
    let recorded_dtypes = dump.runs();
    let dtypes =
        if options.dtypes.is_empty() { recorded_dtypes.clone() } else { options.dtypes.clone() };
    if let Some(dtype) = dtypes.iter().find(|d| !recorded_dtypes.contains(d)) {
        let names = recorded_dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
        return Err(Error::NoRun { dump: dump.dir.clone(), wanted: *dtype, have: names });
    }
    if !recorded_dtypes.contains(&Dtype::F32) {
        let dtype = dtypes.first().copied().unwrap_or(Dtype::F32);
        return Err(Error::NoFloor { dump: dump.dir.clone(), wanted: dtype });
    }
    Ok(dtypes)
}

/// Returns remarks about a reference. `coded` is true if it rounded rows, keys or values to 8 bits.
fn reference_notes(model: &Model, dump: &Dump, coded: bool) -> Vec<String> {
    let mut notes: Vec<String> =
        dump.notes.iter().chain(&dump.manifest.audit.notes).cloned().collect();
    if let Some(scales) = dump.manifest.kv_fp8() {
        let states_are_coded = model.graph.states.iter().any(|state| state.eight == Some(scales));
        notes.push(format!(
            "the reference rounded keys and values to {} with the checkpoint's scales: {}",
            scales.name(),
            if states_are_coded {
                "so they are kept in that here"
            } else {
                "they are not kept so here"
            }
        ));
    }
    if coded && dump.manifest.audit.truth() == TrustedPhase::Prefill {
        notes.push(
            "numbers at the border of two steps of 8 bits may be rounded to either: each row is compared with the \
             nearer of the reference's own two runs"
                .to_owned(),
        );
    }
    if dump.manifest.audit.truth() == TrustedPhase::Prefill {
        notes.push(
            "decode: the reference's own steps are not compared, for they do not agree with its prefill; ours are \
             compared with its prefill"
                .to_owned(),
        );
    }
    for (run, members) in &dump.manifest.members {
        for (name, why) in &members.failed {
            notes.push(format!("the ensemble of {run} has no run `{name}`: {why}"));
        }
    }
    notes
}

/// Compares a model without changes.
fn compare_unchanged(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<Report, Error> {
    let model = &*source.model;
    if model.vocab != dump.manifest.vocab {
        return Err(Error::Vocab { dump: dump.manifest.vocab, model: model.vocab });
    }
    let (tensors, hashes) = identify(source, dump, options)?;
    let dtypes = compared_dtypes(dump, options)?;
    let recorded: BTreeSet<&str> =
        dump.manifest.taps.0.iter().map(|(tap, _)| tap.as_str()).collect();
    let order = ExecutionOrder::of(&model.graph, |tap| recorded.contains(tap));
    let base = load_reference(dump, Dtype::F32, &order)?;
    let rounds = options.rounds.or(dump.manifest.rounds()).unwrap_or_default();
    // Rounded rows, keys or values: the reference has rounding thresholds between their codes.
    let coded = rounds != InputRounding::None || dump.manifest.kv_fp8().is_some();
    let options = &CheckOptions { rounds: Some(rounds), ..options.clone() };
    let mut report = Report {
        subject: about(engine, source, dump, hashes),
        runs: Vec::new(),
        schedules: Vec::new(),
        limits: Vec::new(),
        notes: reference_notes(model, dump, coded),
        diagnosis: None,
    };
    let routers = routers(&model.graph);
    let check = EngineCheck { engine, source, dump, options, order, routers, base, tensors, coded };
    let mut features = SessionFeatures::default();
    for dtype in dtypes {
        features = check.run(dtype, &mut report)?;
    }
    report.limits = limits(model, dump, features, &report.runs);
    if !options.schedules && features.steps && !dump.manifest.encoder {
        let why = "not run, as the option `no-schedules` says".to_owned();
        report.limit(Limit { kind: Unproven::Schedules, why, runs: Vec::new() });
    }
    compare_head(engine, source, dump, options, &mut report)?;
    Ok(report)
}

/// Comparison of an engine with a dump, in one dtype after the other.
struct EngineCheck<'a> {
    engine: &'a dyn Engine,
    source: &'a ModelSource<'a>,
    dump: &'a Dump,
    options: &'a CheckOptions,
    order: ExecutionOrder,
    routers: Vec<Router>,
    /// The reference's results in f32.
    base: Vec<ReferenceResults>,
    /// Names of the tensors of the checkpoint.
    tensors: BTreeSet<String>,
    /// True if the reference rounded rows, keys or values to 8 bits.
    coded: bool,
}

impl EngineCheck<'_> {
    /// Compares the run in a dtype and its schedules. Returns what the engine exposes.
    fn run(&self, dtype: Dtype, report: &mut Report) -> Result<SessionFeatures, Error> {
        let Self { engine, source, dump, options, .. } = *self;
        let order = &self.order;
        let model = &*source.model;
        let prompts = &dump.manifest.prompts;
        let loaded =
            if dtype == Dtype::F32 { Vec::new() } else { load_reference(dump, dtype, order)? };
        let reference = if dtype == Dtype::F32 { &self.base } else { &loaded };
        let opened = masked(prompts, options.engine(dtype));
        let mut session = RowsSession::new(engine.open(source, &opened)?);
        let features = session.features();
        let seen = order.exposed(features, session.shown_parts());
        report.note(not_exposed(engine.name(), features, order, &seen));
        let (mut gates, uncovered) = if features == SessionFeatures::default() {
            structure(model, &seen, dump, &self.tensors)
        } else {
            // Hidden taps are neither missing nor extra.
            Default::default()
        };
        let spreads = reference.iter().filter_map(|side| side.spread.as_ref());
        let widest = spreads.flat_map(|spread| &spread.logprobs).copied().reduce(f32::max);
        let mut agreement = Agreement {
            routers: &self.routers,
            dtype,
            rows: [Mode::Cumulative, Mode::Local].map(RouterRow::new),
        };
        for (n, prompt) in prompts.iter().enumerate() {
            let comparison = Comparison {
                model,
                order: &seen,
                dump,
                dtype,
                prompt,
                own: &reference[n],
                base: &self.base[n],
                logprob: options.logprob,
                rounds: self.coded,
                widest,
            };
            prompt_session::begin(&mut session, dump, dtype, prompt)?;
            gates.extend(compare_prompt(&mut session, &comparison, options, &mut agreement)?);
        }
        if gates.iter().any(Gate::is_not_finite) {
            report.note(not_finite(engine, source, dump, dtype, options)?);
        }
        let choices: Vec<_> = reference.iter().map(|side| &side.taps.prefill_choices).collect();
        pool(dtype, &mut gates, prompts, &choices);
        options.begin(|| format!("{dtype}: greedy tokens"));
        let greedy = if features.steps {
            greedy(&mut session, dump, dtype, reference, options.logprob, &mut agreement)?
        } else {
            generated(&mut session, dump, dtype, reference, options.logprob)?
        };
        let mut run = summarize(model, dtype, gates, greedy, uncovered);
        run.routers = agreement.rows.into_iter().filter(|row| row.choices > 0).collect();
        run.coverage = coverage(model, &seen, dump, &run);
        let agreeing = report.runs.iter().filter(|run| run.verdict() == Verdict::Pass);
        let f32_agrees =
            options.agrees_in_f32 || agreeing.map(|run| run.dtype).any(|dtype| dtype == Dtype::F32);
        report.note(downgrade_explained(model, &mut run, f32_agrees));
        skip_unjudged(&mut run);
        diverge::by_choices(&mut run);
        run.strengths = MeasureRatios::of(&run, f32_agrees);
        report.runs.push(run);
        if options.schedules && features.steps && !dump.manifest.encoder {
            let noise = measured(report);
            let plans = SchedulePlans { dump: Some(dump), exact: engine.exact(), noise };
            report.schedules.extend(plans.run(&mut session, prompts, dtype, options)?);
        }
        Ok(features)
    }
}

/// Returns the reference's results of every prompt in a dtype.
fn load_reference(
    dump: &Dump,
    dtype: Dtype,
    order: &ExecutionOrder,
) -> Result<Vec<ReferenceResults>, dump::Error> {
    let prompts = dump.manifest.prompts.iter();
    prompts.map(|prompt| ReferenceResults::load(dump, dtype, prompt, order)).collect()
}

fn longest(prompts: &[Prompt]) -> Option<&Prompt> {
    prompts.iter().max_by_key(|p| p.tokens.len())
}

/// Runs only the schedules of a model, comparing the engine with itself.
pub fn check_schedules(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    prompts: &[Prompt],
    options: &CheckOptions,
) -> Result<Vec<schedules::ScheduleRow>, Error> {
    let dtypes = if options.dtypes.is_empty() { vec![Dtype::F32] } else { options.dtypes.clone() };
    let mut rows = Vec::new();
    for dtype in dtypes {
        let mut session =
            RowsSession::new(engine.open(source, &masked(prompts, options.engine(dtype)))?);
        let plans = SchedulePlans { dump: None, exact: engine.exact(), noise: None };
        rows.extend(plans.run(&mut session, prompts, dtype, options)?);
    }
    Ok(rows)
}

/// Router agreement in one run, with and without errors of earlier layers.
struct Agreement<'a> {
    routers: &'a [Router],
    dtype: Dtype,
    rows: [RouterRow; 2],
}

impl Agreement<'_> {
    fn steer(&mut self, mode: Mode, place: String) -> RoutingProbe<'_> {
        let [cumulative, local] = &mut self.rows;
        let row = if mode == Mode::Local { local } else { cumulative };
        RoutingProbe::new(self.routers, self.dtype, place, row)
    }
}

/// Runs of schedules.
struct SchedulePlans<'a> {
    /// The dump with the rows of prompts; without one only prompts of tokens are run.
    dump: Option<&'a Dump>,
    /// True for an engine whose schedules agree bit for bit.
    exact: bool,
    /// The largest distance of a row from the reference.
    noise: Option<f64>,
}

impl SchedulePlans<'_> {
    /// Runs the schedules of a model.
    fn run(
        &self,
        session: &mut RowsSession,
        prompts: &[Prompt],
        dtype: Dtype,
        options: &CheckOptions,
    ) -> Result<Vec<schedules::ScheduleRow>, Error> {
        let tokens = longest(prompts).map_or_else(|| vec![0], |p| p.tokens.clone());
        let (length, all) = schedules::derive(session.model(), tokens.len());
        let mut rows = Vec::new();
        let causal = Prompt::causal(tokens);
        let mut plans = vec![(&causal, length, all)];
        for prompt in prompts.iter().filter(|prompt| !prompt.is_plain()) {
            // One prompt of each kind is enough, and names of schedules are unique.
            let kind = schedules::kind(prompt);
            let known =
                plans.iter().any(|plan| !plan.0.is_plain() && schedules::kind(plan.0) == kind);
            let all = schedules::derive_masked(session.model(), prompt);
            if !known && !all.is_empty() && (self.dump.is_some() || !prompt.has_rows()) {
                plans.push((prompt, prompt.tokens.len(), all));
            }
        }
        let phased = self.exact && phased(session.model());
        for (prompt, length, all) in plans {
            match self.dump {
                Some(dump) if prompt.has_rows() => {
                    prompt_session::begin(session, dump, dtype, prompt)?;
                }
                Some(dump) => {
                    if let Some(longest) = longest(prompts) {
                        prompt_session::begin(session, dump, dtype, longest)?;
                    }
                    session.begin_text();
                }
                None => session.begin_text(),
            }
            let parts = if phased { schedules::parts(&all) } else { BTreeSet::new() };
            let baseline = Baseline::run(session, prompt, length, &parts)?;
            let limit =
                if self.exact { 0.0 } else { rule::schedule(dtype, baseline.scale, self.noise) };
            let mut schedule_rows = Vec::new();
            for (n, schedule) in all.iter().enumerate() {
                options.begin(|| format!("{dtype}: schedule {} of {}", n + 1, all.len()));
                schedule_rows.push(schedules::run(session, schedule, &baseline, limit)?);
            }
            schedules::note_common_acts(&all, &mut schedule_rows);
            rows.append(&mut schedule_rows);
        }
        Ok(rows)
    }
}
