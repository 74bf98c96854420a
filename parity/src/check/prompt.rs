//! Checks one prompt of one run: as a whole, and each op on the reference's own inputs.

use engine::Session;

use super::{Agreement, CheckOptions};
use crate::compare::Comparison;
use crate::dump::Phase;
use crate::gate::{Gate, Mode};
use crate::route::{RouterRow, RoutingProbe};
use crate::rule;
use crate::run::{self, InputSource, Perturbation, Trace};

pub(super) fn compare_prompt(
    session: &mut dyn Session,
    comparison: &Comparison<'_>,
    options: &CheckOptions,
    agreement: &mut Agreement<'_>,
) -> Result<Vec<Gate>, engine::Error> {
    let prompt = comparison.prompt;
    let reference = comparison.own;
    let mut gates = Vec::new();
    for phase in Phase::ALL {
        let features = session.features();
        if prompt.positions(phase).is_empty() || phase == Phase::Decode && !features.steps {
            continue;
        }
        let place = format!("{} {phase}", prompt.name);
        let dtype = comparison.dtype;
        options.begin(|| format!("{dtype}: {place}"));
        let mut steer = agreement.steer(Mode::Cumulative, place.clone());
        let run = match phase {
            Phase::Prefill => {
                run::prefill(session, prompt, &reference.taps, InputSource::Own, &mut steer)?
            }
            Phase::Decode => run::decode(session, prompt, &reference.taps, &mut steer)?,
        };
        gates.extend(comparison.cumulative(phase, &run));
        let follows = phase == Phase::Prefill || features.seeds && comparison.is_followed();
        if !(options.local && prompt.tapped(phase) && features.taps && features.feeds && follows) {
            continue;
        }
        options.begin(|| format!("{dtype}: {place}, each op on the reference's inputs"));
        let mut steer = agreement.steer(Mode::Local, place.clone());
        let feed = InputSource::Reference;
        let Some(clean) = run_ops(session, comparison, phase, feed, &mut steer)? else { continue };
        session.nudge(rule::MOVED);
        let mut moved = Vec::new();
        for seed in 0..rule::MOVES {
            options.begin(|| {
                format!("{dtype}: {place}, perturbation {} of {}", seed + 1, rule::MOVES)
            });
            let mut row = RouterRow::new(Mode::Local);
            let mut steer = RoutingProbe::new(agreement.routers, dtype, String::new(), &mut row);
            let feed = InputSource::Perturbed(Perturbation { units: rule::MOVED, seed });
            moved.extend(run_ops(session, comparison, phase, feed, &mut steer)?);
        }
        session.nudge(0);
        gates.extend(comparison.local(phase, &clean, &moved));
    }
    Ok(gates)
}

/// Runs the ops of a phase on inputs from `feed`; none if the engine starts no step from given states.
fn run_ops(
    session: &mut dyn Session,
    comparison: &Comparison<'_>,
    phase: Phase,
    feed: InputSource,
    steer: &mut RoutingProbe<'_>,
) -> Result<Option<Trace>, engine::Error> {
    let prompt = comparison.prompt;
    let taps = &comparison.own.taps;
    match phase {
        Phase::Prefill => run::prefill(session, prompt, taps, feed, steer).map(Some),
        Phase::Decode => run::steps(session, prompt, taps, feed, steer, comparison),
    }
}
