//! The check itself: every run of a dump, every prompt, both phases, fed both ways.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use converters::Checkpoint;
use engine::{Engine, Options, Session, Shows, Source};
use registry::dtype::Dtype;
use registry::model::Model;
use sha2::{Digest, Sha256};

use crate::compare::{Comparison, Side, structure};
use crate::dump::{self, Dump, Phase, Prompt};
use crate::eight;
use crate::fed::Fed;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::metrics::{log_softmax, top1};
use crate::order::Order;
use crate::report::{About, Flip, GreedyRow, PhaseRow, Report, RunReport, Uncovered};
use crate::route::{Router, RouterRow, Steer, routers};
use crate::run::{Feed, forced, trace};
use crate::schedules::{self, ROLLBACK, ScheduleRow};
use crate::tolerance::{self, F32_LOGPROB};
use crate::{diverge, schedules::Baseline};

/// Why a check could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The dump.
    #[error(transparent)]
    Dump(#[from] dump::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A file of the model could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] converters::checkpoint::Error),
    /// A dtype was asked for that the reference was not run in.
    #[error("the dump `{dump}` has no {wanted} run; it has {have}")]
    NoRun {
        /// The dump.
        dump: PathBuf,
        /// The dtype asked for.
        wanted: Dtype,
        /// What there is.
        have: String,
    },
    /// A 16-bit run has nothing to be measured against.
    #[error(
        "the dump `{dump}` has no f32 run, which the {wanted} run is measured against; write the \
         dump again with `parity dump --dtypes f32,{wanted}`"
    )]
    NoFloor {
        /// The dump.
        dump: PathBuf,
        /// The dtype asked for.
        wanted: Dtype,
    },
    /// The dump has other rows than the model gives.
    #[error("the dump has rows of {dump} log-probabilities; the model gives {model}")]
    Vocab {
        /// In the manifest.
        dump: usize,
        /// Of the model.
        model: usize,
    },
}

/// What to check.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub struct CheckOptions {
    /// Dtypes; all runs of the dump when empty.
    pub dtypes: Vec<Dtype>,
    /// Whether each op is also run on the reference's inputs.
    pub local: bool,
    /// Whether the engine is also compared with itself, fed in other ways.
    pub schedules: bool,
    /// Whether a spec with dtypes that an op refuses runs all the same.
    pub allow_dtype_mismatch: bool,
    /// Whether fused kernels may be used.
    pub rewrites: bool,
    /// Worker threads of the engine; its own choice when none.
    pub threads: Option<usize>,
    /// Whether `config.json` and the weights must be those of the dump. A model that was
    /// converted on purpose is compared with this off.
    pub same_model: bool,
    /// Most that an f32 run may move a log-probability; [`F32_LOGPROB`] when none. Engines whose
    /// arithmetic is not the reference's (sums in blocks, fast exponentials) need more.
    pub logprob: Option<f64>,
    /// Whether rows are rounded to 8 bits before matrices of 8 bits multiply them, as the
    /// reference of such a checkpoint does.
    pub round_tokens: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            dtypes: Vec::new(),
            local: true,
            schedules: true,
            allow_dtype_mismatch: false,
            rewrites: true,
            threads: None,
            same_model: true,
            logprob: None,
            round_tokens: false,
        }
    }
}

impl CheckOptions {
    /// The bound on log-probabilities of an f32 run.
    fn f32_logprob(&self) -> f64 {
        self.logprob.unwrap_or(F32_LOGPROB)
    }

    /// How sessions are opened.
    fn engine(&self, dtype: Dtype) -> Options {
        Options {
            dtype,
            rewrites: self.rewrites,
            poison: true,
            allow_dtype_mismatch: self.allow_dtype_mismatch,
            rollback: ROLLBACK,
            drafts: false,
            ranks: 1,
            threads: self.threads,
            round_tokens: self.round_tokens,
            watch: None,
        }
    }
}

/// Compares an engine's runs of a model with a dump. States that are kept in 8 bits are no
/// mistake of the engine, and no reference has them: the model is compared without, and what they
/// cost stands in rows of their own.
pub fn check(
    engine: &dyn Engine,
    source: &Source<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<Report, Error> {
    let Some((model, part)) = eight::widened(&source.model) else {
        return as_is(engine, source, dump, options);
    };
    let mut report =
        as_is(engine, &Source { model: Arc::new(model), dir: source.dir }, dump, options)?;
    let narrow = CheckOptions { local: false, schedules: false, ..options.clone() };
    let found = as_is(engine, source, dump, &narrow)?;
    report.runs.extend(eight::effects(found.runs, part));
    Ok(report)
}

/// Compares a model as it is.
fn as_is(
    engine: &dyn Engine,
    source: &Source<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<Report, Error> {
    let model = &*source.model;
    if model.vocab != dump.manifest.vocab {
        return Err(Error::Vocab { dump: dump.manifest.vocab, model: model.vocab });
    }
    let tensors = identify(source, dump, options)?;
    let have = dump.runs();
    let dtypes = if options.dtypes.is_empty() { have.clone() } else { options.dtypes.clone() };
    if let Some(wanted) = dtypes.iter().find(|d| !have.contains(d)) {
        let have = have.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
        return Err(Error::NoRun { dump: dump.dir.clone(), wanted: *wanted, have });
    }
    if let Some(&wanted) = dtypes.iter().find(|&&dtype| dtype != Dtype::F32)
        && !have.contains(&Dtype::F32)
    {
        return Err(Error::NoFloor { dump: dump.dir.clone(), wanted });
    }
    let recorded: BTreeSet<&str> =
        dump.manifest.taps.0.iter().map(|(tap, _)| tap.as_str()).collect();
    let order = Order::of(&model.graph, |tap| recorded.contains(tap));
    let routers = routers(&model.graph);
    let prompts = &dump.manifest.prompts;
    let load = |dtype| -> Result<Vec<Side>, dump::Error> {
        prompts.iter().map(|p| Side::load(dump, dtype, p, &order)).collect()
    };
    let base = if have.contains(&Dtype::F32) { Some(load(Dtype::F32)?) } else { None };
    let sensitive = if options.logprob.is_none() { sensitivity(dump)? } else { None };
    let options = &CheckOptions { logprob: options.logprob.or(sensitive), ..options.clone() };
    let mut report = Report {
        subject: about(engine, source, dump),
        runs: Vec::new(),
        schedules: Vec::new(),
        notes: dump.notes.iter().chain(&dump.manifest.audit.notes).cloned().collect(),
    };
    if !prompts.iter().any(|prompt| prompt.taps) || dump.manifest.taps.0.is_empty() {
        report.notes.push(
            "the dump has no taps: only log-probabilities and states were compared".to_owned(),
        );
    }
    for dtype in dtypes {
        let loaded = if dtype == Dtype::F32 { Vec::new() } else { load(dtype)? };
        let (own, base) = match &base {
            Some(base) if dtype == Dtype::F32 => (base.as_slice(), None),
            other => (loaded.as_slice(), other.as_deref()),
        };
        let mut session = Fed::new(engine.open(source, &options.engine(dtype))?);
        let shows = session.shows();
        report.note(unseen(engine.name(), shows));
        let seen = order.seen(shows);
        let (mut gates, uncovered) = if shows == Shows::default() {
            structure(model, &seen, dump, &tensors)
        } else {
            // What cannot be seen is neither missing nor too much.
            Default::default()
        };
        let mut agreement = Agreement {
            routers: &routers,
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
                own: &own[n],
                base: base.map(|b| &b[n]),
                f32_logprob: options.f32_logprob(),
            };
            session.rows = hidden(model, dump, dtype, prompt)?;
            gates.extend(compare_prompt(&mut session, &comparison, options, &mut agreement)?);
        }
        let limit = logprob_limit(dtype, &gates, options);
        let greedy = greedy(&mut session, dump, dtype, limit, &mut agreement)?;
        let mut run = summarize(model, dtype, gates, greedy, uncovered);
        run.routers = agreement.rows.into_iter().filter(|row| row.choices > 0).collect();
        report.runs.push(run);
        if options.schedules {
            // Each of two runs may be that far from the truth.
            let limit = limit.filter(|_| dtype != Dtype::F32).map(|limit| 2.0 * limit);
            let limit = limit.or(options.logprob);
            if let Some(prompt) = longest(prompts) {
                session.rows = hidden(model, dump, dtype, prompt)?;
            }
            let rows = run_schedules(&mut session, prompts, dtype, limit)?;
            report.schedules.extend(rows);
        }
    }
    head(engine, source, dump, options, &mut report)?;
    Ok(report)
}

/// What the graph is fed besides the tokens of a prompt; nothing, for most.
fn hidden(
    model: &Model,
    dump: &Dump,
    dtype: Dtype,
    prompt: &Prompt,
) -> Result<Vec<f32>, dump::Error> {
    let Some(fed) = model.graph.fed else { return Ok(Vec::new()) };
    dump.hidden(dtype, prompt, model.graph.values[fed.value.0].shape.iter().product())
}

/// Compares the `nextn` head, where the dump has one, as the model that it is.
fn head(
    engine: &dyn Engine,
    source: &Source<'_>,
    dump: &Dump,
    options: &CheckOptions,
    report: &mut Report,
) -> Result<(), Error> {
    let (layer, dump) = match (source.model.nextn.as_ref(), dump.nextn()?) {
        (None, None) => return Ok(()),
        (None, Some(_)) => {
            report.note(Some("the dump has a `nextn` head, and the spec or the config has none: it was not compared".to_owned()));
            return Ok(());
        }
        (Some(nextn), None) => {
            let shapes = |c: Checkpoint| {
                c.tensors().iter().map(|(name, t)| (name.clone(), t.shape.clone())).collect()
            };
            let there = Checkpoint::open(source.dir).map(shapes);
            let lacks = there.is_ok_and(|t| registry::check::has_head(&source.model, &t));
            report.note(lacks.then(|| format!("the dump has no `nextn` head: that of this checkpoint ({} layers) is not proven", nextn.layers.len())));
            return Ok(());
        }
        (Some(nextn), Some(dump)) => (nextn.layers.first().cloned(), dump),
    };
    let Some(model) = layer else { return Ok(()) };
    let found = check(engine, &Source { model, dir: source.dir }, &dump, options)?;
    report.runs.extend(found.runs.into_iter().map(|run| RunReport { part: Some("nextn"), ..run }));
    let rows = found.schedules.into_iter();
    report
        .schedules
        .extend(rows.map(|row| ScheduleRow { name: format!("nextn: {}", row.name), ..row }));
    for note in found.notes {
        report.note(Some(format!("nextn: {note}")));
    }
    Ok(())
}

fn longest(prompts: &[Prompt]) -> Option<&Prompt> {
    prompts.iter().max_by_key(|p| p.tokens.len())
}

/// The bound on an f32 run's log-probabilities where the usual one is too tight, as the reference's
/// own 16-bit run tells; none where it is not.
fn sensitivity(dump: &Dump) -> Result<Option<f64>, dump::Error> {
    let runs = dump.runs();
    let narrow = runs.iter().find(|&&dtype| dtype != Dtype::F32);
    let Some(&dtype) = narrow.filter(|_| runs.contains(&Dtype::F32)) else { return Ok(None) };
    let (mut sum, mut count) = (0.0, 0_usize);
    for prompt in &dump.manifest.prompts {
        let rows = |run| dump.logprobs(run, prompt, Phase::Prefill);
        let (Some(narrow), Some(wide)) = (rows(dtype)?, rows(Dtype::F32)?) else { continue };
        // Of large vocabularies the likeliest tokens are stored, which need not be the same.
        if narrow.ids.is_some() || narrow.values.len() != wide.values.len() {
            return Ok(None);
        }
        let pairs = narrow.values.iter().zip(&wide.values);
        let gaps = pairs.map(|(a, b)| f64::from((a - b).abs())).filter(|gap| gap.is_finite());
        let (all, n) = gaps.fold((0.0, 0), |(sum, n), gap| (sum + gap, n + 1));
        (sum, count) = (sum + all, count + n);
    }
    let bound = tolerance::f32_logprob(dtype, sum / count.max(1) as f64);
    Ok(Some(bound).filter(|&bound| bound > F32_LOGPROB))
}

/// Runs the schedules of a model alone, against the engine itself.
pub fn check_schedules(
    engine: &dyn Engine,
    source: &Source<'_>,
    prompts: &[Prompt],
    options: &CheckOptions,
) -> Result<Vec<schedules::ScheduleRow>, Error> {
    let dtypes = if options.dtypes.is_empty() { vec![Dtype::F32] } else { options.dtypes.clone() };
    let mut rows = Vec::new();
    for dtype in dtypes {
        let mut session = engine.open(source, &options.engine(dtype))?;
        rows.extend(run_schedules(session.as_mut(), prompts, dtype, None)?);
    }
    Ok(rows)
}

/// Refuses a checkpoint that the dump was not made from; gives the names of its tensors.
fn identify(
    source: &Source<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<BTreeSet<String>, Error> {
    // A model that is no folder of safetensors was converted; its tensors have other names.
    let checkpoint = match Checkpoint::open(source.dir) {
        Ok(checkpoint) => checkpoint,
        Err(_) if !options.same_model => return Ok(BTreeSet::new()),
        Err(error) => return Err(error.into()),
    };
    if options.same_model {
        let config = fs_err::read(source.dir.join("config.json"))?;
        let digest = Sha256::digest(&config);
        let config: String = digest.iter().fold(String::new(), |mut hex, b| {
            let _ = write!(hex, "{b:02x}");
            hex
        });
        dump.verify_model(&config, &checkpoint.fingerprint()?)?;
    }
    Ok(checkpoint.tensors().keys().cloned().collect())
}

/// Says what could not be compared because the engine does not show it.
fn unseen(engine: &str, shows: Shows) -> Option<String> {
    let what = match (shows.taps, shows.states) {
        (true, true) => return None,
        (false, true) => "no taps: log-probabilities and states were",
        (true, false) => "no states: log-probabilities and taps were",
        (false, false) => "neither taps nor states: only log-probabilities were",
    };
    Some(format!("`{engine}` shows {what} compared"))
}

fn about(engine: &dyn Engine, source: &Source<'_>, dump: &Dump) -> About {
    let m = &dump.manifest;
    let word = |key: &str| m.producer.get(key).and_then(|v| v.as_str());
    let mut producer = word("name").unwrap_or("an unnamed program").to_owned();
    for key in ["transformers", "torch"] {
        if let Some(version) = word(key) {
            producer = if producer == key {
                format!("{key} {version}")
            } else {
                format!("{producer}, {key} {version}")
            };
        }
    }
    About {
        spec: source.model.name.clone(),
        architecture: source.model.architecture.clone(),
        model: source.dir.display().to_string(),
        engine: engine.name().to_owned(),
        reference: dump.dir.display().to_string(),
        producer,
    }
}

/// What routers chose in one run, errors of earlier layers included and not.
struct Agreement<'a> {
    routers: &'a [Router],
    dtype: Dtype,
    rows: [RouterRow; 2],
}

impl Agreement<'_> {
    fn steer(&mut self, mode: Mode, place: String) -> Steer<'_> {
        let [cumulative, local] = &mut self.rows;
        let row = if mode == Mode::Local { local } else { cumulative };
        Steer { routers: self.routers, dtype: self.dtype, place, row, scores: BTreeMap::new() }
    }
}

fn compare_prompt(
    session: &mut dyn Session,
    comparison: &Comparison<'_>,
    options: &CheckOptions,
    agreement: &mut Agreement<'_>,
) -> Result<Vec<Gate>, engine::Error> {
    let (prompt, own) = (comparison.prompt, comparison.own);
    let mut gates = Vec::new();
    for phase in Phase::ALL {
        if prompt.rows(phase) == 0 {
            continue;
        }
        let place = format!("{} {phase}", prompt.name);
        let mut steer = agreement.steer(Mode::Cumulative, place.clone());
        let run = trace(session, prompt, phase, &own.taps, Feed::Own, &mut steer)?;
        gates.extend(comparison.gates(phase, Mode::Cumulative, &run));
        if options.local && prompt.taps && session.shows().taps {
            let mut steer = agreement.steer(Mode::Local, place);
            let fed = Feed::Reference(&own.taps);
            let run = trace(session, prompt, phase, &own.taps, fed, &mut steer)?;
            gates.extend(comparison.gates(phase, Mode::Local, &run));
        }
    }
    Ok(gates)
}

/// What noise may move a log-probability by in this run: the widest bound that was applied.
fn logprob_limit(dtype: Dtype, gates: &[Gate], options: &CheckOptions) -> Option<f64> {
    if dtype == Dtype::F32 {
        return Some(options.f32_logprob());
    }
    let limits = gates.iter().filter(|g| g.subject == Subject::Logprobs);
    limits.flat_map(|g| &g.bounds).filter(|b| b.measure == "max").map(|b| b.limit).reduce(f64::max)
}

fn greedy(
    session: &mut dyn Session,
    dump: &Dump,
    dtype: Dtype,
    limit: Option<f64>,
    agreement: &mut Agreement<'_>,
) -> Result<Vec<GreedyRow>, Error> {
    let mut rows = Vec::new();
    let Some(by_prompt) = dump.manifest.greedy.get(dtype.name()) else { return Ok(rows) };
    // Two log-probabilities may each be off by the bound.
    let noise = 2.0 * limit.unwrap_or(f64::INFINITY);
    for prompt in &dump.manifest.prompts {
        let Some(chosen) = by_prompt.get(&prompt.name).filter(|c| !c.is_empty()) else { continue };
        let mut row = GreedyRow {
            prompt: prompt.name.clone(),
            tokens: chosen.len(),
            agree: 0,
            first_flip: None,
            verdict: Verdict::Pass,
        };
        let before = dump.choices(dtype, prompt, Phase::Prefill.name())?;
        let behind = dump.choices(dtype, prompt, "greedy")?;
        let mut steer = agreement.steer(Mode::Cumulative, format!("{} greedy", prompt.name));
        let logits = forced(session, &prompt.tokens, chosen, [&before, &behind], &mut steer)?;
        for (index, (logits, want)) in logits.iter().zip(chosen).enumerate() {
            let mut logprobs = vec![0.0; logits.len()];
            log_softmax(logits, &mut logprobs);
            let got = top1(&logprobs);
            if got == *want as usize {
                row.agree += 1;
                continue;
            }
            let at = |token: usize| logprobs.get(token).copied().map_or(f64::NAN, f64::from);
            let margin = at(got) - at(*want as usize);
            row.first_flip.get_or_insert(Flip { index, margin, noise });
            if margin.is_nan() || margin > noise {
                row.verdict = Verdict::Fail;
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

fn run_schedules(
    session: &mut dyn Session,
    prompts: &[Prompt],
    dtype: Dtype,
    limit: Option<f64>,
) -> Result<Vec<schedules::ScheduleRow>, engine::Error> {
    let tokens = longest(prompts).map_or_else(|| vec![0], |p| p.tokens.clone());
    let (length, all) = schedules::derive(session.model(), tokens.len());
    let baseline = Baseline::run(session, &tokens, length)?;
    let limit = limit.unwrap_or_else(|| tolerance::schedule(dtype, baseline.scale));
    Ok(all.iter().map(|s| schedules::run(session, s, &baseline, limit)).collect())
}

fn summarize(
    model: &Model,
    dtype: Dtype,
    gates: Vec<Gate>,
    greedy: Vec<GreedyRow>,
    uncovered: Uncovered,
) -> RunReport {
    let phases = Phase::ALL.into_iter().filter_map(|phase| phase_row(phase, &gates)).collect();
    RunReport {
        dtype,
        part: None,
        phases,
        first: diverge::first(model, &gates, Mode::Cumulative),
        first_local: diverge::first(model, &gates, Mode::Local),
        gates,
        greedy,
        routers: Vec::new(),
        uncovered,
    }
}

fn phase_row(phase: Phase, gates: &[Gate]) -> Option<PhaseRow> {
    let gates: Vec<&Gate> = gates.iter().filter(|g| g.phase == phase).collect();
    let rows: Vec<&&Gate> = gates.iter().filter(|g| g.subject == Subject::Logprobs).collect();
    if rows.is_empty() {
        return None;
    }
    let stats = || rows.iter().filter_map(|g| g.rows);
    let count: usize = stats().map(|s| s.rows).sum();
    let share = |total: f64| if count == 0 { 0.0 } else { total / count as f64 };
    // The prompt that comes closest to its bound, or goes furthest beyond it.
    let worst = rows
        .iter()
        .filter_map(|g| Some((g.error.max, g.bounds.iter().find(|b| b.measure == "max")?.limit)))
        .max_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let numbers: usize = rows.iter().map(|g| g.error.count).sum();
    let sum: f64 = rows.iter().map(|g| g.error.mean * g.error.count as f64).sum();
    let worst_tap = gates
        .iter()
        .filter(|g| g.mode == Mode::Cumulative && matches!(g.subject, Subject::Tap { .. }))
        .max_by(|a, b| a.error.max.total_cmp(&b.error.max))
        .map(|g| (g.subject.to_string(), g.error.max));
    Some(PhaseRow {
        phase,
        rows: count,
        max: worst.map_or(0.0, |w| w.0),
        limit: worst.map_or(f64::INFINITY, |w| w.1),
        mean: if numbers == 0 { 0.0 } else { sum / numbers as f64 },
        kl: share(stats().map(|s| s.kl * s.rows as f64).sum()),
        top1: share(stats().map(|s| s.top1 as f64).sum()),
        worst_tap,
        verdict: if gates.iter().any(|g| g.fails()) { Verdict::Fail } else { Verdict::Pass },
    })
}
