//! Finds the parts of a model that the runs of a check leave unproven.

use std::collections::{BTreeMap, BTreeSet};

use engine::SessionFeatures;
use registry::model::Model;
use registry::quantity;

use super::summary::judged_ops;
use crate::dump::{Dump, Phase, Prompt, TrustedPhase};
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::limit::{Limit, Unproven};
use crate::report::RunReport;

/// Returns what the runs of a check left unproven. `features` is what the engine exposes.
pub(super) fn limits(
    model: &Model,
    dump: &Dump,
    features: SessionFeatures,
    runs: &[RunReport],
) -> Vec<Limit> {
    let mut reasons: BTreeMap<(Unproven, String), Vec<String>> = BTreeMap::new();
    if dump.manifest.sha256.is_none() {
        reasons.insert((Unproven::Dump, NO_CHECKSUMS.to_owned()), Vec::new());
    }
    for run in runs {
        for reason in of_run(model, dump, features, run) {
            reasons.entry(reason).or_default().push(run.label());
        }
    }
    reasons
        .into_iter()
        .map(|((kind, why), labels): ((Unproven, String), Vec<String>)| {
            let runs = if labels.len() == runs.len() { Vec::new() } else { labels };
            Limit { kind, why, runs }
        })
        .collect()
}

/// Reason for a dump that may have been changed since it was written.
const NO_CHECKSUMS: &str = "it has no checksums: write it again with `parity dump`";

/// Reason for sequences that no step continued.
const ONE_TOKEN: &str = "the dump has one of each prompt, which prefill gives";

/// Number of tokens of which a prompt has so few that positions, windows and states hardly show.
const FEW_TOKENS: usize = 8;

fn of_run(
    model: &Model,
    dump: &Dump,
    features: SessionFeatures,
    run: &RunReport,
) -> Vec<(Unproven, String)> {
    let mut reasons = Vec::new();
    let hidden = if !features.taps {
        Some("the engine shows none")
    } else if !features.feeds {
        Some("the engine runs no op on given inputs")
    } else {
        None
    };
    if run.coverage.prefill.is_none() {
        let why = hidden.unwrap_or("the dump has no taps of prefill");
        reasons.push((Unproven::Ops, why.to_owned()));
    }
    let prefill_only = run.coverage.prefill.is_some() && run.coverage.decode.is_none();
    // An encoder has a whole image at once, and nothing goes on from it.
    let steps = !dump.manifest.encoder;
    if steps && (!features.steps || prefill_only) {
        let why = if !features.steps {
            "the engine cannot continue a prompt"
        } else if !has_taps(dump, Phase::Decode) {
            "the dump has no taps of decode"
        } else if dump.manifest.audit.truth() == TrustedPhase::Prefill {
            "the reference's own steps do not agree with its prefill"
        } else {
            "the engine starts no step from given states"
        };
        reasons.push((Unproven::Decode, why.to_owned()));
    }
    reasons.extend(ops_of_one_phase(run));
    reasons.extend(skipped_ops(run));
    if steps && !model.graph.states.is_empty() {
        let why = if features.states { "the dump has none" } else { "the engine shows none" };
        if !run.gates.iter().any(|gate: &Gate| {
            matches!(gate.subject, Subject::State { .. }) && gate.verdict != Verdict::Skip
        }) {
            reasons.push((Unproven::States, why.to_owned()));
        }
    }
    if !dump.manifest.members.contains_key(run.dtype.name()) {
        reasons.push((Unproven::Runs, "the dump has no ensemble".to_owned()));
    } else if let Some(gap) = dump.manifest.audit.gap(run.dtype) {
        reasons.push((Unproven::Dump, gap));
    }
    for phase in &run.phases {
        let mut skipped = run
            .gates
            .iter()
            .filter(|gate: &&Gate| gate.subject == Subject::Logprobs && gate.phase == phase.phase)
            .filter(|g| g.verdict == Verdict::Skip);
        if phase.verdict == Verdict::Skip
            && let Some(gate) = skipped.next()
        {
            reasons.push((Unproven::Runs, gate.finding.clone().unwrap_or_default()));
        }
    }
    // A head chooses no tokens by itself.
    let chooses = model.graph.fed.is_none() && dump.manifest.prompts.iter().any(Prompt::is_plain);
    if chooses {
        match run.greedy.iter().map(|row| row.tokens).max() {
            None => reasons.push((Unproven::Greedy, "the dump has none".to_owned())),
            Some(1) => reasons.push((Unproven::Greedy, ONE_TOKEN.to_owned())),
            Some(_) => {}
        }
    }
    let longest = dump.manifest.prompts.iter().map(|prompt| prompt.tokens.len()).max();
    if let Some(count) = longest.filter(|count| *count < FEW_TOKENS) {
        let tokens = quantity::plural(count, "token");
        reasons.push((Unproven::Positions, format!("the longest prompt has {tokens}")));
    }
    reasons.dedup();
    reasons
}

/// True if a dump has taps of a phase.
fn has_taps(dump: &Dump, phase: Phase) -> bool {
    dump.manifest.prompts.iter().any(|prompt| prompt.tapped(phase))
        && dump.manifest.taps.0.iter().any(|(_, info)| info.has(phase))
}

/// Counts the ops that were judged in one phase alone, if they are many. A class may step without some of its modules;
/// ops between two taps are compared together then.
fn ops_of_one_phase(run: &RunReport) -> Vec<(Unproven, String)> {
    let [prefill, decode] = Phase::ALL.map(|phase| {
        judged_ops(run, phase)
            .filter(|gate| matches!(gate.subject, Subject::Tap { .. }))
            .map(|gate| gate.subject.to_string())
            .collect::<BTreeSet<String>>()
    });
    // A phase without any comparison is a reason of its own.
    let mut reasons = Vec::new();
    if run.coverage.decode.is_some() {
        let is_mostly_prefill = decode.len() * 2 < prefill.len();
        let kind = if is_mostly_prefill { Unproven::Decode } else { Unproven::Ops };
        reasons.extend(only_in(&prefill, &decode, Phase::Prefill).map(|why| (kind, why)));
    }
    if run.coverage.prefill.is_some() {
        reasons.extend(only_in(&decode, &prefill, Phase::Decode).map(|why| (Unproven::Ops, why)));
    }
    reasons
}

/// Describes the ops that one phase has and the other lacks, if they are more than a tenth.
fn only_in(ops: &BTreeSet<String>, others: &BTreeSet<String>, phase: Phase) -> Option<String> {
    let alone: Vec<&String> = ops.difference(others).collect();
    let first = alone.first().filter(|_| alone.len() * 10 > ops.len())?;
    let count = quantity::plural(alone.len(), "op");
    Some(format!("{count} compared in {phase} alone, the first is `{first}`"))
}

/// Counts comparisons of single ops that were not judged, by reason.
fn skipped_ops(run: &RunReport) -> impl Iterator<Item = (Unproven, String)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let gates = run.gates.iter();
    for gate in gates.filter(|gate| gate.mode == Mode::Local && gate.verdict == Verdict::Skip) {
        *counts.entry(gate.finding.as_deref().unwrap_or_default()).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|(why, count): (&str, usize)| (Unproven::Ops, format!("{count} not judged: {why}")))
        .collect::<Vec<_>>()
        .into_iter()
}

/// Returns the share of its first bound that a gate uses.
fn share(gate: &Gate) -> f64 {
    gate.bounds.first().map_or(0.0, |bound| bound.value / bound.limit)
}

/// Marks phases whose log-probabilities were not judged in any prompt, or not in the one that comes closest to its bound.
pub(super) fn skip_unjudged(run: &mut RunReport) {
    for phase in run.phases.iter_mut().filter(|phase| phase.verdict == Verdict::Pass) {
        let gates: Vec<&Gate> = run
            .gates
            .iter()
            .filter(|gate: &&Gate| gate.subject == Subject::Logprobs && gate.phase == phase.phase)
            .collect();
        // The row of the report has the bound of this one.
        let nearest = gates.iter().filter(|gate| !gate.bounds.is_empty());
        let nearest = nearest.max_by(|a, b| share(a).total_cmp(&share(b)));
        if gates.iter().all(|gate| gate.verdict == Verdict::Skip)
            || nearest.is_some_and(|gate| gate.verdict == Verdict::Skip)
        {
            phase.verdict = Verdict::Skip;
        }
    }
    // Where whole runs of the reference say nothing of each other, the experts that they choose do not either.
    if run.phases.iter().all(|phase| phase.verdict == Verdict::Skip) {
        let whole = run.routers.iter_mut().filter(|row| row.mode == Mode::Cumulative);
        for row in whole.filter(|row| row.verdict == Verdict::Fail) {
            row.verdict = Verdict::Skip;
        }
    }
}
