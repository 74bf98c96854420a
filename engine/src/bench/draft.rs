//! Implements `onboard bench --draft mtp`: measures the share of accepted drafts of the model's own head,
//! and the speedup.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use engine::draft::{DraftCounts, generate, plain};
use engine::{ModelSource, Session, SessionOptions};
use models::local_model::LocalModel;
use parity::beside::beside;
use parity::{CheckOptions, Dump, Verdict};
use registry::check::has_head;
use registry::dtype::Dtype;
use serde_json::json;

use super::{BenchArgs, GENERATED};
use crate::findings::engine_error;
use crate::{CommandOutcome, engines, term};

/// Minimum number of drafts for a meaningful share.
const ENOUGH: u64 = 50;
/// Lower bound on the share of accepted drafts of a correctly computed head. The share by chance is one in
/// the vocabulary, and heads in production reach 0.5 and more.
const NEAR_ZERO: f64 = 0.1;

pub(super) fn run(
    bench: &BenchArgs,
    target: &LocalModel,
    session: &mut dyn Session,
    options: &SessionOptions,
) -> Result<CommandOutcome> {
    let count = bench.n.first().copied().unwrap_or(GENERATED);
    ensure!(count > 1, "-n must be at least 2 to draft");
    let Some(nextn) = &target.model.nextn else {
        bail!("`{}` has no head: its spec has no `nextn`, or its config counts none", target.name);
    };
    // A file without a head was opened as a model without one.
    ensure!(
        target.is_gguf() || has_head(&target.model, &target.checkpoint()?.shapes()),
        "`{}` has no tensors of the head that its spec and config describe",
        target.dir.display()
    );
    let Some(model) = nextn.layers.first().cloned() else { bail!("the head has no layers") };
    let source = ModelSource { model: Arc::clone(&model), dir: &target.dir };
    let mut head = bench.device.native()?.open(&source, options).map_err(engine_error)?;
    let prompt = prompt(bench, target.model.vocab);
    let begun = Instant::now();
    let slow = plain(session, &prompt, count)?;
    let alone = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let (fast, tally) = generate(session, head.as_mut(), &prompt, count, usize::from(bench.k))?;
    let drafted = begun.elapsed().as_secs_f64();
    let mut text = tally_text(&tally, usize::from(bench.k));
    let same = fast == slow;
    let at = fast.iter().zip(&slow).take_while(|(a, b)| a == b).count();
    let _ = writeln!(
        text,
        "tokens             {}\nt/s                {:.2} with drafts, {:.2} without",
        if same {
            format!("{count}, those of plain greedy decoding")
        } else {
            format!("DIFFER from plain greedy decoding from token {at} on")
        },
        token_rate(count, drafted),
        token_rate(count, alone)
    );
    let suspect = tally.drafts() >= ENOUGH && tally.rate().is_some_and(|rate| rate < NEAR_ZERO);
    let proven = if suspect { proven(target, &source)? } else { None };
    if suspect {
        text.push_str(&mismatch(&tally, proven));
    }
    if bench.json {
        let report = json!({
            "schema": "onboard-bench-draft/1",
            "model": target.name,
            "drafts": tally.drafts(),
            "steps": tally.steps,
            "drafts_per_step": bench.k,
            "accepted": tally.hits(),
            "acceptance_rate": tally.rate(),
            "accepted_by_position": tally.by_position(),
            "tokens": count,
            "first_different_token": (!same).then_some(at),
            "tokens_per_second": { "drafted": token_rate(count, drafted), "plain": token_rate(count, alone) },
            "head": if suspect { proven.map_or("suspect", |ok| if ok { "proven" } else { "differs" }) } else { "plausible" },
        });
        text = serde_json::to_string_pretty(&report)?;
    }
    term::print(text.trim_end())?;
    Ok(if !same || (suspect && proven != Some(true)) {
        CommandOutcome::Differs
    } else {
        CommandOutcome::Ok
    })
}

/// Returns the tokens per second.
fn token_rate(count: usize, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

/// Returns the initial tokens.
fn prompt(bench: &BenchArgs, vocab: usize) -> Vec<u32> {
    if bench.tokens.is_empty() {
        (0..16_u64).map(|n| (n * 2_654_435_761 % vocab.max(1) as u64) as u32).collect()
    } else {
        bench.tokens.clone()
    }
}

fn tally_text(tally: &DraftCounts, k: usize) -> String {
    let places: Vec<String> = tally.by_position().iter().map(|x| format!("{x:.3}")).collect();
    format!(
        "drafts             {} in {} steps, {k} each\naccepted           {}\nacceptance rate    {}\n\
         mean accepted      {} (by position)\n",
        tally.drafts(),
        tally.steps,
        tally.hits(),
        tally.rate().map_or("none".to_owned(), |rate| format!("{rate:.3}")),
        places.join(", ")
    )
}

/// True if the head agrees with the reference beside the model; none if there is no dump of it.
fn proven(target: &LocalModel, source: &ModelSource<'_>) -> Result<Option<bool>> {
    let Some(path) = beside(&target.dir) else { return Ok(None) };
    let Some(dump) = Dump::open(&path)?.nextn()? else { return Ok(None) };
    let options =
        CheckOptions { dtypes: vec![Dtype::F32], schedules: false, ..CheckOptions::default() };
    let engine = engines::native()?;
    let report = parity::check(engine.as_ref(), source, &dump, &options)?;
    Ok(Some(report.verdict() != Verdict::Fail))
}

fn mismatch(tally: &DraftCounts, proven: Option<bool>) -> String {
    let near = format!("of {} drafts nearly none were accepted", tally.drafts());
    match proven {
        Some(true) => {
            format!(
                "{near}, though the head agrees with its reference: it knows little of this text\n"
            )
        }
        Some(false) => format!(
            "LIKELY MISMATCH: {near}, and the head does not agree with its reference; \
             `parity check` names the first op that differs\n"
        ),
        None => format!(
            "LIKELY MISMATCH: {near}, and no reference proves the head: look at the order of \
             `concat`, at `recycle`, `pos` and `first` of `nextn`, or make a dump of it with \
             `parity dump` and run `parity check`\n"
        ),
    }
}
