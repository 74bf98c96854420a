//! Module outputs.

use super::Comparison;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject};
use crate::run::Trace;

impl Comparison<'_> {
    pub(super) fn taps(&self, phase: Phase, mode: Mode, trace: &Trace) -> Vec<Gate> {
        let of = |side: &'_ super::Side, tap: &str| {
            match phase {
                Phase::Prefill => side.taps.prefill.get(tap),
                Phase::Decode => side.taps.decode.get(tap),
            }
            .cloned()
        };
        let mut gates = Vec::new();
        for (tap, _) in &self.dump.manifest.taps.0 {
            let Some(place) = self.order.taps.get(tap) else { continue };
            let Some(own) = of(self.own, tap) else { continue };
            let subject = Subject::Tap { name: tap.clone() };
            let gate = Gate::new(subject, &self.prompt.name, phase, mode, *place);
            let Some(ours) = trace.taps.get(tap) else {
                gates.push(gate.failed("the engine did not show this value"));
                continue;
            };
            let rows = self.prompt.rows(phase);
            let want: usize = own.shape.iter().skip(1).product();
            let got: usize = ours.row.iter().product();
            if got != want || ours.data.len() != own.data.len() {
                gates.push(gate.failed(format!(
                    "one token gives {:?}; the reference gives {:?}",
                    ours.row,
                    own.shape.get(1..).unwrap_or_default()
                )));
                continue;
            }
            let base = self.base.and_then(|side| of(side, tap));
            let step_of = |row| if phase == Phase::Decode { row + 1 } else { row };
            let base = base.as_ref().map(|t| t.data.as_slice());
            let mut gate = self.judge(gate, &ours.data, &own.data, base, rows, own.dtype, step_of);
            gate.kept_narrow(&ours.data, &own.data);
            gates.push(gate);
        }
        gates
    }
}
