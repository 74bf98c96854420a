//! Compares module outputs.

use super::{Comparison, LOGITS, PairedRows};
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject};
use crate::order::LAST;
use crate::run::Trace;

impl Comparison<'_> {
    pub(super) fn taps(
        &self,
        phase: Phase,
        mode: Mode,
        trace: &Trace,
    ) -> Vec<(Gate, Result<PairedRows<'_>, String>)> {
        let positions = self.prompt.positions(phase);
        let first = if phase == Phase::Decode { self.prompt.split - 1 } else { 0 };
        let steps: Vec<usize> = positions.iter().map(|position| position - first).collect();
        let count = positions.len();
        let mut pairs = Vec::new();
        let recorded = self.own.taps.of(phase);
        for (tap, _) in &self.dump.manifest.taps.0 {
            let Some(place) = self.order.taps.get(tap) else { continue };
            let Some(reference) = recorded.get(tap) else { continue };
            let subject = Subject::Tap { name: tap.clone() };
            let gate = Gate::new(subject, &self.prompt.name, phase, mode, *place);
            let Some(ours) = trace.taps.get(tap) else {
                pairs.push((gate, Err("the engine did not show this value".to_owned())));
                continue;
            };
            let want: usize = reference.shape.iter().skip(1).product();
            let got: usize = ours.row.iter().product();
            if got != want || ours.data.len() != reference.data.len() {
                let finding = format!(
                    "one token gives {:?}; the reference gives {:?}",
                    ours.row,
                    reference.shape.get(1..).unwrap_or_default()
                );
                pairs.push((gate, Err(finding)));
                continue;
            }
            let base =
                self.base.taps.of(phase).get(tap).map(|tensor| tensor.data.as_slice().into());
            let rows = PairedRows {
                ours: ours.data.clone(),
                own: reference.data.as_slice().into(),
                base,
                count,
                steps: steps.clone(),
                kept: reference.dtype,
            };
            pairs.push((gate, Ok(rows)));
        }
        // The ops between the last tap and the logits.
        if mode == Mode::Local
            && let Some(reference) = recorded.get(LOGITS)
        {
            let subject = Subject::Tap { name: LOGITS.to_owned() };
            let gate = Gate::new(subject, &self.prompt.name, phase, mode, LAST);
            let ours = trace.logits.clone();
            let stored_dtype = reference.dtype;
            let rows = if ours.len() == reference.data.len() {
                Ok(PairedRows {
                    ours,
                    own: reference.data.as_slice().into(),
                    base: None,
                    count,
                    steps,
                    kept: stored_dtype,
                })
            } else {
                Err(format!("{} logits; the reference gives {}", ours.len(), reference.data.len()))
            };
            pairs.push((gate, rows));
        }
        pairs
    }
}
