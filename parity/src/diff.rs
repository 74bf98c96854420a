//! Compares two dumps: two engines, two versions of one, or two of its settings.
//!
//! Neither side is the truth. The limit on log-probabilities comes from the ensemble of a side, if one has
//! it. Otherwise it is [`rule::schedule`]: a number of roundings, or the distance of a side's decode from
//! its own prefill.

use std::collections::BTreeMap;

use registry::dtype::Dtype;
use serde::Serialize;

use crate::dump::{self, Dump, Logprobs, Phase, Prompt};
use crate::gate::Verdict;
use crate::metrics::{grid, row_error, tensor_error};
use crate::rule;

mod text;

pub use text::text;

/// Reason why two dumps cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A dump cannot be read.
    #[error(transparent)]
    Dump(#[from] dump::Error),
    /// The dumps are of models with different vocabularies.
    #[error("the dumps have rows of {a} and of {b} log-probabilities: they are of two models")]
    Vocab {
        /// Vocabulary size of A.
        a: usize,
        /// Vocabulary size of B.
        b: usize,
    },
    /// The dumps share no prompt.
    #[error(
        "the dumps have no prompt in common, with the same tokens and recorded rows; write one with the prompts of the \
         other: `parity dump MODEL` with the option `engine ENGINE` and the option `like DUMP`"
    )]
    Prompts,
    /// The dumps share no dtype.
    #[error("the dumps have no dtype in common: A has {a}, B has {b}")]
    Dtypes {
        /// Dtypes of A.
        a: String,
        /// Dtypes of B.
        b: String,
    },
}

/// Settings of a comparison.
#[derive(Debug, Clone, Default)]
pub struct DiffOptions {
    /// Dtypes; all that both have if empty.
    pub dtypes: Vec<Dtype>,
    /// Limit on the rms of a row's log-probability differences, in nats; derived from the dumps if not
    /// given.
    pub bound: Option<f64>,
}

/// Difference of two dumps.
#[derive(Debug, Serialize)]
pub struct DumpDiff {
    /// `onboard-diff/1`.
    pub schema: &'static str,
    /// The worst verdict of all runs.
    pub verdict: Verdict,
    /// Differences by dtype.
    pub runs: Vec<RunDiff>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Difference in one dtype.
#[derive(Debug, Serialize)]
pub struct RunDiff {
    /// The dtype.
    #[serde(serialize_with = "crate::gate::dtype_name")]
    pub dtype: Dtype,
    /// Rows of log-probabilities, by prompt and phase.
    pub rows: Vec<RowsDiff>,
    /// Taps and states, in order of execution; the worst of all prompts.
    pub parts: Vec<PartDiff>,
    /// Prompts after which the two sides generate different tokens.
    pub greedy: Vec<GreedyDiff>,
    /// Distance of each side's decode from its own prefill, in nats.
    pub steady: [Option<f64>; 2],
}

/// Difference of the rows of one prompt in one phase.
#[derive(Debug, Serialize)]
pub struct RowsDiff {
    /// The prompt.
    pub prompt: String,
    /// The phase.
    pub phase: Phase,
    /// Rows compared.
    pub rows: usize,
    /// Largest difference of one log-probability, in nats.
    pub max: f64,
    /// Largest rms of a row's differences, in nats.
    pub rms: f64,
    /// Limit of that rms.
    pub limit: f64,
    /// Number of rows whose most likely token is the same.
    pub same_top: usize,
    /// First position beyond the limit.
    pub first: Option<usize>,
    /// The verdict.
    pub verdict: Verdict,
}

/// Difference of a module's output or of a state.
#[derive(Debug, Serialize)]
pub struct PartDiff {
    /// The phase.
    pub phase: Phase,
    /// Name of the tap, or `k of layer 3`.
    pub name: String,
    /// True for a state.
    pub state: bool,
    /// Largest difference of a value, relative to its row's rms.
    pub error: f64,
    /// First position (of a tap) or row (of a state) beyond the limit.
    pub first: Option<usize>,
    /// Difference that rounding alone explains.
    pub limit: f64,
    /// Shapes that differ.
    pub shapes: Option<[Vec<usize>; 2]>,
    /// Mantissa bits that A's and B's values use, if one uses fewer than the run's dtype has.
    pub bits: Option<[u32; 2]>,
}

/// Greedy tokens that differ.
#[derive(Debug, Serialize)]
pub struct GreedyDiff {
    /// The prompt.
    pub prompt: String,
    /// Index of the first token that differs.
    pub at: usize,
    /// A's and B's tokens from there.
    pub tokens: [Vec<u32>; 2],
}

/// Compares two dumps.
pub fn diff(a: &Dump, b: &Dump, options: &DiffOptions) -> Result<DumpDiff, Error> {
    let ours = &a.manifest;
    let theirs = &b.manifest;
    if ours.vocab != theirs.vocab {
        return Err(Error::Vocab { a: ours.vocab, b: theirs.vocab });
    }
    let mut notes = remarks(a, b);
    let pairs = common(a, b);
    if pairs.is_empty() {
        return Err(Error::Prompts);
    }
    let shared: Vec<&str> = pairs.iter().map(|(prompt, _)| prompt.name.as_str()).collect();
    let mut other: Vec<&str> =
        ours.prompts.iter().chain(&theirs.prompts).map(|p| p.name.as_str()).collect();
    other.retain(|name| !shared.contains(name));
    other.sort_unstable();
    other.dedup();
    // Prompts with the same name but different tokens: one side was tokenized differently.
    let unlike = other
        .iter()
        .copied()
        .filter(|name: &&str| {
            let manifests = [ours, theirs];
            manifests.iter().all(|m| m.prompts.iter().any(|prompt| prompt.name == **name))
        })
        .collect::<Vec<_>>();
    if !other.is_empty() {
        notes.push(format!(
            "{} prompts were compared; not compared are {}",
            pairs.len(),
            registry::listing::items(&other)
        ));
    }
    if !unlike.is_empty() {
        notes.push(format!(
            "the dumps have other tokens or rows under the same name: {}",
            registry::listing::items(&unlike)
        ));
    }
    let theirs = b.runs();
    let dtypes: Vec<Dtype> = a
        .runs()
        .into_iter()
        .filter(|dtype| theirs.contains(dtype))
        .filter(|dtype| options.dtypes.is_empty() || options.dtypes.contains(dtype))
        .collect();
    if dtypes.is_empty() {
        return Err(Error::Dtypes { a: dtype_names(a), b: dtype_names(b) });
    }
    let mut runs = Vec::new();
    for dtype in dtypes {
        runs.push(run(a, b, dtype, &pairs, options.bound)?);
    }
    let failed = !unlike.is_empty()
        || runs.iter().any(|run| run.rows.iter().any(|rows| rows.verdict == Verdict::Fail));
    let verdict = if failed { Verdict::Fail } else { Verdict::Pass };
    Ok(DumpDiff { schema: "onboard-diff/1", verdict, runs, notes })
}

/// Lists the names of the dtypes of a dump's runs.
fn dtype_names(dump: &Dump) -> String {
    dump.runs().iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// Lists facts of the manifests that differ.
fn remarks(a: &Dump, b: &Dump) -> Vec<String> {
    let a = &a.manifest;
    let b = &b.manifest;
    let mut notes = Vec::new();
    for (what, a, b) in [
        ("weights", &a.model.weights_sha256, &b.model.weights_sha256),
        ("config.json", &a.model.config_sha256, &b.model.config_sha256),
    ] {
        if !a.eq_ignore_ascii_case(b) {
            notes.push(format!("the dumps are of checkpoints with other {what}"));
        }
    }
    let ours = a.taps.0.len();
    let theirs = b.taps.0.len();
    let shared = a.taps.0.iter().filter(|(tap, _)| b.taps.0.iter().any(|(name, _)| name == tap));
    let shared = shared.count();
    if shared < ours.max(theirs) {
        notes.push(format!("{shared} taps are in both, of {ours} in A and {theirs} in B"));
    }
    notes
}

/// Returns the prompts that both dumps have, with the same recorded rows.
fn common<'d>(a: &'d Dump, b: &'d Dump) -> Vec<(&'d Prompt, &'d Prompt)> {
    a.manifest
        .prompts
        .iter()
        .filter_map(|x: &'d Prompt| {
            let other = b.manifest.prompts.iter().find(|y| is_same_prompt(x, y));
            other.map(|y| (x, y))
        })
        .collect()
}

/// True if two prompts have the same tokens, masks and recorded rows.
fn is_same_prompt(x: &Prompt, y: &Prompt) -> bool {
    x.tokens == y.tokens
        && (x.prefix, &x.documents, &x.spans) == (y.prefix, &y.documents, &y.spans)
        && (&x.given, &x.positions, x.beside) == (&y.given, &y.positions, y.beside)
        && Phase::ALL.iter().all(|p| x.positions(*p) == y.positions(*p))
}

fn run(
    a: &Dump,
    b: &Dump,
    dtype: Dtype,
    pairs: &[(&Prompt, &Prompt)],
    bound: Option<f64>,
) -> Result<RunDiff, Error> {
    let steady = [
        steady(a, dtype, pairs.iter().map(|p| p.0))?,
        steady(b, dtype, pairs.iter().map(|p| p.1))?,
    ];
    let mut difference =
        RunDiff { dtype, rows: Vec::new(), parts: Vec::new(), greedy: Vec::new(), steady };
    for (x, y) in pairs {
        let spread = match a.spread(dtype, x)? {
            None => b.spread(dtype, y)?,
            spread => spread,
        };
        for phase in Phase::ALL {
            let (Some(ours), Some(theirs)) =
                (a.logprobs(dtype, x, phase)?, b.logprobs(dtype, y, phase)?)
            else {
                continue;
            };
            let taps_spread = spread.as_ref().map(|spread| &spread.taps);
            let first = x.positions(Phase::Prefill).len() - x.positions(phase).len();
            let spread = spread.as_ref().and_then(|s| s.logprobs.get(first..));
            let limits = LimitSources { dtype, steady, bound, spread };
            difference.rows.push(rows(x, phase, &ours, &theirs, &limits));
            if x.tapped(phase) && y.tapped(phase) {
                taps(&mut difference.parts, (a, x), (b, y), dtype, phase, taps_spread)?;
                states(&mut difference.parts, (a, x), (b, y), dtype, phase)?;
            }
        }
        let p = greedy_tokens(a, dtype, x);
        let q = greedy_tokens(b, dtype, y);
        if let Some(at) = p.iter().zip(q).position(|(p, q)| p != q) {
            let tokens = [p[at..].to_vec(), q[at..].to_vec()];
            difference.greedy.push(GreedyDiff { prompt: x.name.clone(), at, tokens });
        }
    }
    Ok(difference)
}

/// Returns the greedy tokens of a dump after a prompt.
fn greedy_tokens<'d>(dump: &'d Dump, dtype: Dtype, prompt: &Prompt) -> &'d [u32] {
    let run = dump.manifest.greedy.get(dtype.name());
    run.and_then(|run| run.get(&prompt.name)).map_or(&[][..], Vec::as_slice)
}

/// Returns the distance of a dump's decode rows from its prefill rows at the same positions. It is the
/// largest rms, in nats.
fn steady<'d>(
    dump: &Dump,
    dtype: Dtype,
    prompts: impl Iterator<Item = &'d Prompt>,
) -> Result<Option<f64>, dump::Error> {
    let mut largest = None;
    for prompt in prompts {
        let (Some(prefill), Some(steps)) = (
            dump.logprobs(dtype, prompt, Phase::Prefill)?,
            dump.logprobs(dtype, prompt, Phase::Decode)?,
        ) else {
            continue;
        };
        let first = prefill.rows - steps.rows;
        for row in 0..steps.rows {
            let error = row_error(steps.row(row), prefill.row(first + row), &mut Vec::new());
            largest = Some(error.rms.max(largest.unwrap_or(0.0)));
        }
    }
    Ok(largest)
}

/// Sources of the limit of a row.
struct LimitSources<'a> {
    dtype: Dtype,
    steady: [Option<f64>; 2],
    bound: Option<f64>,
    /// Spread of the prompt's rows in this phase.
    spread: Option<&'a [f32]>,
}

impl LimitSources<'_> {
    /// Returns the limits of rows whose log-probabilities have an rms of `scale`.
    fn of(&self, rows: usize, scale: f64) -> Vec<f64> {
        if let Some(bound) = self.bound {
            return vec![bound; rows];
        }
        // A side whose decode differs by more than rounding is unsteady, and does not widen the limit.
        let plain = rule::schedule(self.dtype, scale, None);
        let noise = self.steady.iter().flatten().filter(|n| **n <= plain).copied().reduce(f64::max);
        let limit = rule::schedule(self.dtype, scale, noise);
        match self.spread {
            Some(spread) if spread.len() == rows => {
                spread.iter().map(|s| (rule::FACTOR * f64::from(*s)).max(limit)).collect()
            }
            _ => vec![limit; rows],
        }
    }
}

fn rows(
    prompt: &Prompt,
    phase: Phase,
    ours: &Logprobs,
    theirs: &Logprobs,
    limits: &LimitSources<'_>,
) -> RowsDiff {
    let scale = deviation(&ours.values);
    let errors: Vec<_> = (0..ours.rows)
        .map(|row| row_error(theirs.row(row), ours.row(row), &mut Vec::new()))
        .collect();
    let limits = limits.of(errors.len(), scale);
    let beyond = errors
        .iter()
        .zip(&limits)
        .position(|(error, limit)| error.rms.is_nan() || error.rms > *limit);
    let ratios: Vec<f64> =
        errors.iter().zip(&limits).map(|(error, limit)| error.rms / limit).collect();
    let worst = (0..ratios.len()).max_by(|a, b| ratios[*a].total_cmp(&ratios[*b])).unwrap_or(0);
    RowsDiff {
        prompt: prompt.name.clone(),
        phase,
        rows: errors.len(),
        max: errors.iter().map(|e| f64::from(e.max)).fold(0.0, f64::max),
        rms: errors.get(worst).map_or(0.0, |e| e.rms),
        limit: limits.get(worst).copied().unwrap_or(0.0),
        same_top: errors.iter().filter(|e| e.agrees).count(),
        first: beyond.and_then(|row| prompt.positions(phase).get(row).copied()),
        verdict: if beyond.is_some() { Verdict::Fail } else { Verdict::Pass },
    }
}

/// Returns the standard deviation of the finite log-probabilities: the rms of logits, independent of their
/// offset.
fn deviation(values: &[f32]) -> f64 {
    let count = finite(values).count().max(1) as f64;
    let mean = finite(values).sum::<f64>() / count;
    (finite(values).map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// Returns the values that are neither infinite nor NaN.
fn finite(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().filter(|x| x.is_finite()).map(|x| f64::from(*x))
}

type DumpPrompt<'a> = (&'a Dump, &'a Prompt);

fn taps(
    parts: &mut Vec<PartDiff>,
    (a, x): DumpPrompt<'_>,
    (b, y): DumpPrompt<'_>,
    dtype: Dtype,
    phase: Phase,
    spreads: Option<&BTreeMap<String, Vec<f32>>>,
) -> Result<(), dump::Error> {
    for (tap, _) in &a.manifest.taps.0 {
        let known = b.manifest.taps.0.iter().any(|(name, _)| name == tap);
        let (true, Some(ours)) = (known, a.tap(dtype, x, phase, tap)?) else { continue };
        let Some(theirs) = b.tap(dtype, y, phase, tap)? else { continue };
        let positions = x.positions(phase);
        let spread = spreads.and_then(|all| all.get(tap)).into_iter().flatten().copied();
        let spread = spread.fold(0.0, f32::max);
        let part = part(dtype, phase, tap.clone(), &ours, &theirs, spread);
        let first = part.first.and_then(|row| positions.get(row).copied());
        merge(parts, PartDiff { first, ..part });
    }
    Ok(())
}

fn states(
    parts: &mut Vec<PartDiff>,
    (a, x): DumpPrompt<'_>,
    (b, y): DumpPrompt<'_>,
    dtype: Dtype,
    phase: Phase,
) -> Result<(), dump::Error> {
    for state in &a.manifest.states {
        for name in &state.parts {
            let Some(ours) = a.state(dtype, x, phase, state.layer, name)? else { continue };
            let Some(theirs) = b.state(dtype, y, phase, state.layer, name)? else { continue };
            let label = format!("{name} of layer {}", state.layer);
            let part = part(dtype, phase, label, &ours, &theirs, 0.0);
            merge(parts, PartDiff { state: true, ..part });
        }
    }
    Ok(())
}

/// Compares a part; `spread` is the spread of a side's ensemble there.
fn part(
    dtype: Dtype,
    phase: Phase,
    name: String,
    a: &dump::DumpTensor,
    b: &dump::DumpTensor,
    spread: f32,
) -> PartDiff {
    let limit = rule::schedule(dtype, 1.0, Some(f64::from(spread)));
    let empty = PartDiff {
        phase,
        name,
        state: false,
        error: 0.0,
        first: None,
        limit,
        shapes: None,
        bits: None,
    };
    if a.data.len() != b.data.len() || a.shape.first() != b.shape.first() {
        let shapes = Some([a.shape.clone(), b.shape.clone()]);
        return PartDiff { error: f64::INFINITY, first: Some(0), shapes, ..empty };
    }
    let rows = a.shape.first().copied().unwrap_or(0);
    let errors = tensor_error(&b.data, &a.data, rows).rows;
    let (p, count_of_a) = grid(&a.data);
    let (q, count_of_b) = grid(&b.data);
    let narrow = p.abs_diff(q) > 2 && count_of_a.min(count_of_b) >= rule::GRID_COUNT;
    PartDiff {
        bits: narrow.then_some([p, q]),
        error: errors.iter().copied().fold(0.0, f64::max),
        first: errors.iter().position(|error| error.is_nan() || *error > limit),
        ..empty
    }
}

/// Keeps the worst of all prompts for each part, in order of first appearance.
fn merge(parts: &mut Vec<PartDiff>, part: PartDiff) {
    let known = parts
        .iter_mut()
        .find(|p| p.name == part.name && p.phase == part.phase && p.state == part.state);
    match known {
        Some(known) if known.error < part.error => *known = part,
        Some(_) => {}
        None => parts.push(part),
    }
}

impl RunDiff {
    /// Returns the first tap, or the first state, that differs by more than rounding explains.
    pub fn first(&self, state: bool) -> Option<&PartDiff> {
        self.parts.iter().find(|part| part.state == state && part.first.is_some())
    }

    /// Returns the sides whose decode differs from their own prefill by more than rounding explains; 0 for
    /// A.
    pub fn unstable_sides(&self) -> BTreeMap<usize, f64> {
        let limit = self.rows.iter().map(|rows| rows.limit).fold(f64::INFINITY, f64::min);
        let sides = self.steady.iter().enumerate();
        sides
            .filter_map(|(n, distance)| Some((n, distance.filter(|distance| *distance > limit)?)))
            .collect()
    }
}
