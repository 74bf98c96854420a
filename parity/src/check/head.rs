//! Compares the `nextn` head as a model of its own, and what it is fed with what the reference's head was fed.

use checkpoints::Checkpoint;
use engine::{Engine, ModelSource, Session};
use registry::dtype::Dtype;
use registry::model::{Model, Nextn};

use super::{CheckOptions, Error, check_engine};
use crate::diverge;
use crate::dump::{Dump, DumpTensor, Phase, Prompt};
use crate::gate::{Gate, Mode, RowLimits, Subject, Verdict};
use crate::limit::{Limit, Unproven};
use crate::mask_support::masked;
use crate::order::GraphPlace;
use crate::report::{Report, RunReport};
use crate::route::{RouterRow, RoutingProbe};
use crate::run::{self, InputSource, ReferenceTaps};
use crate::schedules::ScheduleRow;

/// Adds the comparison of a model's head to a report, if the model or the dump has one.
pub(super) fn compare_head(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    options: &CheckOptions,
    report: &mut Report,
) -> Result<(), Error> {
    let (nextn, head_dump) = match (source.model.nextn.as_ref(), dump.nextn()?) {
        (None, None) => return Ok(()),
        (None, Some(_)) => {
            report.limit(unproven(
                "the dump has one, and the spec or the config has none".to_owned(),
            ));
            return Ok(());
        }
        (Some(nextn), None) => {
            let there = Checkpoint::open(source.dir);
            if there.is_ok_and(|c| registry::check::has_head(&source.model, &c.shapes())) {
                let layers = nextn.layers.len();
                report.limit(unproven(format!(
                    "the dump has none, and the checkpoint one of {layers} layers"
                )));
            }
            return Ok(());
        }
        (Some(nextn), Some(dump)) => (nextn, dump),
    };
    let Some(model) = nextn.layers.first().cloned() else { return Ok(()) };
    if !engine.runs_specs() {
        report.limit(unproven(format!("`{}` runs no head by itself", engine.name())));
        return Ok(());
    }
    let head = ModelSource { model, dir: source.dir };
    let mut head_report = check_engine(engine, &head, &head_dump, options)?;
    let inputs = HeadInputs { engine, source, dump, head_dump: &head_dump, nextn };
    let is_wide = options.dtypes.is_empty() || options.dtypes.contains(&Dtype::F32);
    let fed = if is_wide { inputs.fed(options)? } else { Vec::new() };
    if fed.iter().all(|gate| gate.verdict == Verdict::Skip) {
        let how = if is_wide { "" } else { ": it is compared in f32" };
        let why = format!("no row of `{}`, which it is fed, was compared{how}", nextn.from);
        report.limit(unproven(why));
    }
    let gates: Vec<Gate> = fed.into_iter().chain(inputs.recycled(report)?).collect();
    if let Some(run) = head_report.runs.first_mut() {
        add_gates(run, &head.model, gates);
    }
    report
        .runs
        .extend(head_report.runs.into_iter().map(|run| RunReport { part: Some("nextn"), ..run }));
    let rows = head_report.schedules.into_iter();
    report
        .schedules
        .extend(rows.map(|row| ScheduleRow { name: format!("nextn: {}", row.name), ..row }));
    for limit in head_report.limits {
        let known = report.limits.contains(&limit);
        if !known {
            report.limit(unproven(limit.to_string()));
        }
    }
    for note in head_report.notes {
        report.note(Some(format!("nextn: {note}")));
    }
    Ok(())
}

/// Adds gates of what a head is fed, and of what it hands on, to a run of it.
fn add_gates(run: &mut RunReport, model: &Model, gates: Vec<Gate>) {
    let fails = gates.iter().any(Gate::fails);
    run.gates.extend(gates);
    if fails {
        run.first = diverge::first(model, &run.gates, Mode::Cumulative);
        let prefill = run.phases.iter_mut().filter(|row| row.phase == Phase::Prefill);
        prefill.for_each(|row| row.verdict = Verdict::Fail);
    }
}

fn unproven(why: String) -> Limit {
    Limit { kind: Unproven::Head, why, runs: Vec::new() }
}

/// Values that a head takes and hands on, by the spec and by the dump of the reference's head.
struct HeadInputs<'a> {
    engine: &'a dyn Engine,
    source: &'a ModelSource<'a>,
    dump: &'a Dump,
    head_dump: &'a Dump,
    nextn: &'a Nextn,
}

impl HeadInputs<'_> {
    /// Compares the model's own value that `nextn.from` names with the rows that the reference's head was fed, in f32.
    fn fed(&self, options: &CheckOptions) -> Result<Vec<Gate>, Error> {
        let prompts = &self.dump.manifest.prompts;
        let opened = masked(prompts, options.engine(Dtype::F32));
        let mut session = self.engine.open(self.source, &opened)?;
        let mut gates = Vec::new();
        if !session.features().taps {
            return Ok(gates);
        }
        for prompt in prompts {
            let pairs =
                self.head_dump.manifest.prompts.iter().find(|head| head.name == prompt.name);
            let spread = self.dump.spread(Dtype::F32, prompt)?;
            let spread = spread.and_then(|mut spread| spread.taps.remove(&self.nextn.from));
            let (Some(pairs), Some(spread)) = (pairs, spread) else { continue };
            gates.extend(self.compare(session.as_mut(), prompt, pairs, &spread)?);
        }
        Ok(gates)
    }

    /// Compares the rows of one prompt; `spread` holds those of the ensemble of the whole model.
    fn compare(
        &self,
        session: &mut dyn Session,
        prompt: &Prompt,
        pairs: &Prompt,
        spread: &[f32],
    ) -> Result<Option<Gate>, Error> {
        let from = &self.nextn.from;
        let absent = DumpTensor { dtype: Dtype::F32, shape: Vec::new(), data: Vec::new() };
        let taps =
            ReferenceTaps { prefill: [(from.clone(), absent)].into(), ..ReferenceTaps::default() };
        let mut row = RouterRow::new(Mode::Cumulative);
        let mut steer = RoutingProbe::new(&[], Dtype::F32, String::new(), &mut row);
        let trace = run::prefill(session, prompt, &taps, InputSource::Own, &mut steer)?;
        let Some(tap) = trace.taps.get(from) else { return Ok(None) };
        let width: usize = tap.row.iter().product();
        let gate = Gate::new(tap_of(from), &prompt.name, Phase::Prefill, Mode::Cumulative, START);
        let reference = self.head_dump.hidden(Dtype::F32, pairs, width)?;
        // A pair is a token and the hidden row before it, so the last position of the model has none.
        let positions = prompt.positions(Phase::Prefill);
        let rows = positions.iter().enumerate().filter(|(_, at)| **at < pairs.tokens.len());
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        let mut limits = Vec::new();
        let mut steps = Vec::new();
        for (row, &at) in rows {
            ours.extend_from_slice(&tap.data[row * width..(row + 1) * width]);
            theirs.extend_from_slice(&reference[at * width..(at + 1) * width]);
            limits.push(f64::from(spread[row]));
            steps.push(at);
        }
        let mut gate = gate.whole(
            Dtype::F32,
            &ours,
            &theirs,
            &theirs,
            Some(RowLimits::of_rows(limits)),
            &steps,
        );
        if gate.fails() {
            gate.finding =
                Some("the reference's head was fed other rows than `nextn.from` names".to_owned());
        }
        Ok(Some(gate))
    }

    /// Compares the value that the spec hands to the next draft with that of the reference.
    fn recycled(&self, report: &mut Report) -> Result<Option<Gate>, Error> {
        let Some(head) = &self.head_dump.manifest.head else {
            report.limit(unproven(
                "the dump does not say what it hands to the next draft: write it again with `parity dump`"
                    .to_owned(),
            ));
            return Ok(None);
        };
        let ours = &self.nextn.recycle;
        let theirs = &head.recycled;
        let mut prompts = self.head_dump.manifest.prompts.iter();
        let Some(prompt) = prompts.find(|prompt| prompt.tapped(Phase::Prefill)) else {
            return Ok(None);
        };
        let dump = &self.head_dump;
        let same = ours == theirs
            || dump.tap(Dtype::F32, prompt, Phase::Prefill, ours)?.is_some_and(|rows| {
                let recycled = dump.tap(Dtype::F32, prompt, Phase::Prefill, theirs);
                Some(rows) == recycled.ok().flatten()
            });
        if same {
            return Ok(None);
        }
        let gate = Gate::new(tap_of(ours), &prompt.name, Phase::Prefill, Mode::Cumulative, START);
        Ok(Some(gate.failed(format!(
            "`nextn.recycle` hands this to the next draft; the reference hands on `{theirs}`"
        ))))
    }
}

/// Place before all ops of a head.
const START: GraphPlace = GraphPlace { node: 0, output: false };

fn tap_of(name: &str) -> Subject {
    Subject::Tap { name: name.to_owned() }
}
