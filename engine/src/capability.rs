//! Engine capability sheets: `registry/engines/*.yaml`.

mod sheet;

use std::collections::BTreeSet;

use crate::SessionOptions;
pub use crate::feature::Feature;
use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::graph::StateKind;
use registry::model::Model;

pub use sheet::{EngineKind, EngineSheet, SheetError};

impl Feature {
    /// Lists the abilities that opening a model in this way needs.
    pub fn required(model: &Model, options: &SessionOptions) -> Vec<Self> {
        let features = [
            (model.graph.fed.is_some() || options.drafts, Self::Nextn),
            (options.ranks > 1, Self::TensorParallel),
            (options.prefix, Self::Prefix),
            (options.documents, Self::Documents),
            (options.spans, Self::Spans),
            (options.rows, Self::Rows),
        ];
        features.into_iter().filter_map(|(needed, feature)| needed.then_some(feature)).collect()
    }
}

/// Lists the requested features that an engine lacks, and each two that it does not combine. No requested
/// feature is dropped silently.
pub fn refuse_features(sheet: &EngineSheet, requested: &[Feature]) -> Vec<Finding> {
    let engine = &sheet.engine;
    let mut findings: Vec<Finding> = requested
        .iter()
        .filter(|feature| !sheet.features.contains(feature.name()))
        .map(|feature| {
            let companions: Vec<&str> =
                requested.iter().filter(|other| *other != feature).map(|f| f.name()).collect();
            let together = if companions.is_empty() {
                String::new()
            } else {
                format!(", alone or with `{}`", companions.join("`, `"))
            };
            Finding::unplaced(format!(
                "engine `{engine}` has no `{}`{together}: its sheet `registry/engines` does not \
                 list it under `features`",
                feature.name()
            ))
        })
        .collect();
    for (n, a) in requested.iter().enumerate() {
        if !sheet.features.contains(a.name()) {
            continue;
        }
        for b in requested[n + 1..].iter().filter(|b| sheet.features.contains(b.name())) {
            let pair = [format!("{}+{}", a.name(), b.name()), format!("{}+{}", b.name(), a.name())];
            if pair.iter().any(|pair| sheet.apart.contains(pair)) {
                findings.push(Finding::unplaced(format!(
                    "engine `{engine}` does not do `{}` and `{}` together",
                    a.name(),
                    b.name()
                )));
            }
        }
    }
    findings
}

/// Checks that an engine can run a model in a dtype. Each unsupported op, kind of state or dtype gives one
/// finding.
pub fn refuse(model: &Model, sheet: &EngineSheet, activation: Dtype) -> Vec<Finding> {
    let engine = &sheet.engine;
    let mut findings = Vec::new();
    if !sheet.dtypes.contains(activation.name()) {
        findings.push(Finding::unplaced(format!("engine `{engine}` does not run in {activation}")));
    }
    let mut ops = BTreeSet::new();
    for node in &model.graph.nodes {
        if !sheet.ops.contains(node.op.as_str()) && ops.insert(&node.op) {
            let place =
                node.layer.map_or(String::new(), |layer| format!(", first in layer {layer}"));
            findings.push(Finding::error(
                &node.at,
                format!(
                    "engine `{engine}` has no op `{}`, which `{}` needs{place}",
                    node.op, model.name
                ),
            ));
        }
    }
    let mut kinds = BTreeSet::new();
    for state in &model.graph.states {
        let kind: StateKind = state.kind;
        if !sheet.states.contains(kind.name()) && kinds.insert(kind.name()) {
            findings.push(Finding::error(
                &state.at,
                format!(
                    "engine `{engine}` keeps no state of kind `{}`, as `{}` of layer {} is",
                    kind.name(),
                    state.name,
                    state.layer
                ),
            ));
        }
    }
    findings
}

/// Finds states that are kept in another dtype than their input values. Such a model computes other results
/// in decode than in prefill.
pub fn mismatches(model: &Model, activation: Dtype) -> Vec<Finding> {
    let graph = &model.graph;
    let mut findings = Vec::new();
    for node in &graph.nodes {
        let Some(state) = node.state.and_then(|id| graph.states.get(id.0)) else { continue };
        let state_dtype = state.dtype.resolve(activation);
        // Attention keeps its second and third input, a convolution its first. A recurrence
        // computes what it keeps, in f32 as a rule, whatever it is fed.
        let stored = match state.kind {
            StateKind::Attention | StateKind::Latent | StateKind::Pooled => 1..3,
            StateKind::Index => 1..2,
            StateKind::Conv => 0..1,
            StateKind::Recurrent => continue,
        };
        let fed = node.inputs.get(stored).unwrap_or(&[]);
        let other = fed
            .iter()
            .filter_map(|v| graph.values.get(v.0))
            .find(|v| v.dtype.resolve(activation) != state_dtype);
        let seen = findings.iter().any(|f: &Finding| f.at.as_ref() == Some(&state.dtype_at));
        if let (Some(value), false) = (other, seen) {
            let dtype = value.dtype.resolve(activation);
            findings.push(
                Finding::error(
                    &state.dtype_at,
                    format!("state `{}` is kept in {state_dtype}, but op `{}` feeds it {dtype} in a run in {activation}", state.name, node.op),
                )
                .label(format!("resolves to {state_dtype}"))
                .help("write `dtype: activation`; the option `allow-dtype-mismatch` of `parity check` runs it anyway"),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::ops::OpSet;
    use registry::ops::fused::{GLU, LINEARS};

    #[test]
    fn every_declared_op_has_a_kernel_and_every_kernel_a_declaration() {
        let ops = OpSet::builtin();
        let mut declared: BTreeSet<String> =
            ops.declared().filter(|op| op.needs_kernel()).map(|op| op.name().to_owned()).collect();
        declared.extend([GLU, LINEARS].map(str::to_owned));
        assert_eq!(EngineSheet::native().ops, declared);
    }

    /// True for a sheet of an engine that runs here. Sheets that say how to launch alone have neither key.
    fn is_of_an_engine(text: &str) -> bool {
        text.lines().any(|line| line.starts_with("kind: ") || line.starts_with("plugin: "))
    }

    #[test]
    fn every_sheet_can_be_read_and_every_driver_and_plugin_has_one() {
        let sheets = registry::engines::sheets().iter();
        let sheets: Vec<EngineSheet> = sheets
            .filter(|(_, text)| is_of_an_engine(text))
            .map(|(path, text)| EngineSheet::parse(text).unwrap_or_else(|e| panic!("{path}: {e}")))
            .collect();
        for driver in crate::drivers::DRIVERS {
            assert_eq!(
                sheets
                    .iter()
                    .filter(|sheet: &&EngineSheet| {
                        sheet.engine == driver.name && sheet.kind == EngineKind::InProcess
                    })
                    .count(),
                1,
                "{}",
                driver.name
            );
        }
        let plugins = registry::engines::plugins().iter().map(|plugin| plugin.0);
        let plugins: BTreeSet<&str> = plugins.filter(|file| file.ends_with("_engine.py")).collect();
        let children = sheets.iter().filter(|sheet| sheet.kind == EngineKind::Child);
        let mut named: BTreeSet<&str> = children
            .map(|sheet| sheet.plugin.as_deref().expect("children are Python files"))
            .collect();
        // The library of engines in Python is no engine.
        named.insert("onboard_engine.py");
        assert_eq!(plugins, named);
    }

    #[test]
    fn the_sheet_of_an_engine_that_opens_files_names_no_ops() {
        let sheet = EngineSheet::llama_cpp();
        assert!(sheet.ops.is_empty() && sheet.states.is_empty());
        assert!(sheet.architectures.len() > 100 && sheet.formats.contains("Q4_K"));
        assert_eq!(sheet.dtypes, BTreeSet::from(["f32".to_owned()]));
    }

    #[test]
    fn what_is_asked_for_is_done_or_refused() {
        let requested = [Feature::Nextn, Feature::TensorParallel];
        let both = "features: [nextn, tensor_parallel]";
        assert!(refusals(&requested, both).is_empty());
        assert_eq!(
            refusals(&requested, &format!("{both}\napart: [tensor_parallel+nextn]")),
            ["engine `x` does not do `nextn` and `tensor_parallel` together"]
        );
        let one = refusals(&requested, "features: [nextn]");
        assert_eq!(one.len(), 1);
        assert!(one[0].contains("no `tensor_parallel`, alone or with `nextn`"), "{one:?}");
        assert_eq!(refusals(&requested, "").len(), 2);
        // What this program's own engines say of themselves.
        assert!(refuse_features(&EngineSheet::native(), &requested[..1]).is_empty());
        assert_eq!(refuse_features(&EngineSheet::native(), &requested).len(), 1);
        assert_eq!(refuse_features(&EngineSheet::llama_cpp(), &requested).len(), 2);
    }

    fn sheet(text: &str) -> EngineSheet {
        EngineSheet::parse(&format!("engine: x\nops: []\nstates: []\ndtypes: []\n{text}")).unwrap()
    }

    fn refusals(features: &[Feature], text: &str) -> Vec<String> {
        refuse_features(&sheet(text), features).into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn errors_of_sheets_shorten_texts_of_the_file() {
        let long = "x".repeat(40_000);
        for text in [
            format!("{long}: a"),
            format!("engine: x\ndtypes: []\nkind: {long}"),
            format!("{long}: a\n{long}: b"),
        ] {
            let error = EngineSheet::parse(&text).unwrap_err().to_string();
            assert!(error.contains("xxx") && error.len() < 1000, "{} bytes", error.len());
        }
    }

    #[test]
    fn a_bad_sheet_says_what_it_lacks() {
        for (text, want) in [
            ("[]", "line 1: expected a sheet: a map of keys"),
            ("engine: x\nops: [a]\nstates: []", "line 1: a sheet needs `dtypes`"),
            ("engine: x\nops: a", "line 1: a sheet needs `states`, line 1: a sheet needs `dtypes`"),
            ("engine: x\nops: a\nstates: []\ndtypes: []", "line 2: expected a list, found text"),
            ("engin: x", "line 1: a sheet has no key `engin` (did you mean `engine`?)"),
            ("engine: x\ndtypes: []\nkind: far", "line 3: `kind` cannot be `far`"),
            (
                "engine: x\ndtypes: []\nkind: child",
                "line 1: a sheet needs one of `plugin` and `program`",
            ),
            ("engine: x\ndtypes: []\nkind: child\nprogram: a", "expected a list"),
            ("engine: x\narchitectures: [a]", "line 1: a sheet needs `dtypes`"),
        ] {
            let error = EngineSheet::parse(text).unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
