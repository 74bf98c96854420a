//! Checks one prompt of one run: as a whole, and each op on the reference's own inputs.

use engine::Session;

use super::{Agreement, CheckOptions};
use crate::compare::Comparison;
use crate::dump::Phase;
use crate::gate::{Gate, Mode};
use crate::route::{RouterRow, RoutingProbe};
use crate::rule;
use crate::run::{self, InputSource, Perturbation};

pub(super) fn compare_prompt(
    session: &mut dyn Session,
    comparison: &Comparison<'_>,
    options: &CheckOptions,
    agreement: &mut Agreement<'_>,
) -> Result<Vec<Gate>, engine::Error> {
    let prompt = comparison.prompt;
    let own = comparison.own;
    let mut gates = Vec::new();
    for phase in Phase::ALL {
        let shows = session.features();
        if prompt.positions(phase).is_empty() || phase == Phase::Decode && !shows.steps {
            continue;
        }
        let place = format!("{} {phase}", prompt.name);
        let begin = |how: &str| options.begin(|| format!("{}: {place}{how}", comparison.dtype));
        begin("");
        let mut steer = agreement.steer(Mode::Cumulative, place.clone());
        let run = match phase {
            Phase::Prefill => {
                run::prefill(session, prompt, &own.taps, InputSource::Own, &mut steer)?
            }
            Phase::Decode => run::decode(session, prompt, &own.taps, &mut steer)?,
        };
        gates.extend(comparison.cumulative(phase, &run));
        let follows = phase == Phase::Prefill || shows.seeds && comparison.is_followed();
        if !(options.local && prompt.tapped(phase) && shows.taps && shows.feeds && follows) {
            continue;
        }
        let fed = |session: &mut dyn Session, feed, steer: &mut RoutingProbe<'_>| match phase {
            Phase::Prefill => run::prefill(session, prompt, &own.taps, feed, steer).map(Some),
            Phase::Decode => {
                run::steps(session, prompt, &own.taps, feed, steer, &|at| comparison.seed(at))
            }
        };
        begin(", each op on the reference's inputs");
        let mut steer = agreement.steer(Mode::Local, place.clone());
        let Some(clean) = fed(session, InputSource::Reference, &mut steer)? else { continue };
        session.nudge(rule::MOVED);
        let mut moved = Vec::new();
        for seed in 0..rule::MOVES {
            begin(&format!(", perturbation {} of {}", seed + 1, rule::MOVES));
            let mut row = RouterRow::new(Mode::Local);
            let mut steer =
                RoutingProbe::new(agreement.routers, comparison.dtype, String::new(), &mut row);
            let feed = InputSource::Perturbed(Perturbation { units: rule::MOVED, seed });
            moved.extend(fed(session, feed, &mut steer)?);
        }
        session.nudge(0);
        gates.extend(comparison.local(phase, &clean, &moved));
    }
    Ok(gates)
}
