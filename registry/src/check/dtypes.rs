//! States whose declared dtype an op refuses.

use std::collections::BTreeSet;

use crate::diag::{Finding, Span};
use crate::dtype::{Dtype, DtypeRule};
use crate::graph::EqualDtypes;
use crate::model::Model;

impl Model {
    /// Ops that need a state in the dtype of their input and would not have it in a run of
    /// this activation dtype. Said once for all layers of a kind.
    pub fn check_dtypes(&self, activation: Dtype) -> Vec<Finding> {
        let mut reported = BTreeSet::new();
        let mut findings = Vec::new();
        for demand in &self.graph.equal_dtypes {
            let state = &self.graph.states[demand.state.0];
            let state_dtype = state.dtype.resolve(activation);
            let fed = self.graph.values[demand.value.0].dtype.resolve(activation);
            let kind = self.graph.layers.get(state.layer).map_or("", |layer| layer.kind.as_str());
            if state_dtype != fed && reported.insert((kind, &state.name, demand.at.start)) {
                findings.push(self.mismatch(demand, kind, state_dtype, fed));
            }
        }
        findings
    }

    fn mismatch(
        &self,
        demand: &EqualDtypes,
        kind: &str,
        state_dtype: Dtype,
        fed: Dtype,
    ) -> Finding {
        let state = &self.graph.states[demand.state.0];
        let message = format!(
            "state `{}` of `{kind}` layers is kept in {state_dtype}, but `{}` is fed {fed} values",
            state.name, demand.op
        );
        // A fixed input dtype does not follow `--dtype`.
        let remedy = match self.graph.values[demand.value.0].dtype {
            DtypeRule::Activation | DtypeRule::WideInF16 => {
                format!("declare `dtype: activation`, or run with the option `dtype {state_dtype}`")
            }
            DtypeRule::Fixed(fixed) => format!("declare `dtype: {fixed}`"),
        };
        Finding::error(&state.dtype_at, message)
            .label(format!("`{}` at {} needs {fed} here", demand.op, place(&demand.at)))
            .help(format!(
                "{remedy}; the option `allow-dtype-mismatch` of `parity check` runs it anyway"
            ))
    }
}

/// Formats a place as file and line.
fn place(at: &Span) -> String {
    let before = at.source.text.get(..at.start).unwrap_or_default();
    format!("{}:{}", at.source.path, 1 + before.matches('\n').count())
}
