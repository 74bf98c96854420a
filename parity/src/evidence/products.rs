//! Servers that compute in fewer bits than the run has: products round rows before they multiply them by weights of a
//! type, and some ops round their inputs and results.
//!
//! Such a server differs from exact arithmetic by far more than f32 does, and from itself in other batches as much.
//! Its noise is measured: the native engine runs the same file with rows rounded as the engine's sheet declares
//! for the types of the file's tensors and for the ops of its graph. A correct server is as far from the exact run as that run is.

use std::fmt::Write as _;

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use endpoints::{LogprobRow, NarrowOps, RowForm, ServerFacts};
use engine::ModelSource;
use formats::codec::BlockType;
use formats::gguf::GgufFile;
use registry::dtype::Dtype;
use registry::graph::Graph;

use super::distance::distance;
use crate::edit::Change;

/// Rounding of an engine in a run of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineRounding {
    /// Types that the file has, with the rounding of the rows that they multiply.
    pub(super) types: Vec<(BlockType, Rounding)>,
    forms: Vec<RowForm>,
    /// Changes of the model that round ops.
    pub(super) narrow: Vec<Change>,
    /// Each such op with its dtype.
    ops: Vec<(String, Dtype)>,
}

impl EngineRounding {
    /// Returns the rounding of a file's products and ops that the sheet of the server's engine declares; none if it
    /// declares none, or there is no file.
    pub(super) fn of(facts: &ServerFacts, source: &ModelSource<'_>) -> Option<Self> {
        if !source.dir.is_file() {
            return None;
        }
        let file = GgufFile::open(source.dir).ok()?;
        let mut rounded = Self::default();
        // Vectors are no factors of products.
        for info in file.tensors().iter().filter(|info| info.shape.len() > 1) {
            let is_known = rounded.types.iter().any(|(ty, _)| *ty == info.ty);
            let products = facts.products.iter().find(|products| names(&products.weights, info.ty));
            if let (false, Some(products)) = (is_known, products) {
                rounded.types.push((info.ty, rounding(products.rows)));
                rounded.forms.push(products.rows);
            }
        }
        for narrow in &facts.narrow_ops {
            rounded.add_ops(&source.model.graph, narrow);
        }
        let is_rounded = !rounded.types.is_empty() || !rounded.narrow.is_empty();
        is_rounded.then_some(rounded)
    }

    /// Adds the ops of a graph that the engine rounds.
    fn add_ops(&mut self, graph: &Graph, narrow: &NarrowOps) {
        for op in &narrow.ops {
            let nodes: Vec<usize> =
                (0..graph.nodes.len()).filter(|n| graph.nodes[*n].op == op.as_str()).collect();
            if !nodes.is_empty() {
                self.ops.push((op.clone(), narrow.dtype));
                self.narrow.push(Change::Narrow { nodes, dtype: narrow.dtype, inputs: true });
            }
        }
    }

    /// Describes the rounding: `rows of products are rounded to 8 bits with a scale for 256 (Q4_K, Q6_K)`.
    pub(super) fn text(&self) -> String {
        let ops = self.ops.iter().map(|(op, dtype)| format!("`{op}` computes in {dtype}"));
        let rows = (!self.types.is_empty())
            .then(|| format!("rows of products are rounded to {}", self.forms_text()));
        rows.into_iter().chain(ops).collect::<Vec<_>>().join(", and ")
    }

    /// Lists the forms of rows, with the types of weights.
    fn forms_text(&self) -> String {
        let mut text = String::new();
        let mut forms: Vec<RowForm> = Vec::new();
        for form in &self.forms {
            if forms.contains(form) {
                continue;
            }
            forms.push(*form);
            let pairs = self.types.iter().zip(&self.forms);
            let names: Vec<&str> =
                pairs.filter(|(_, of)| *of == form).map(|((ty, _), _)| ty.name()).collect();
            let between = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{between}{form} ({})", names.join(", "));
        }
        text
    }
}

/// True if a list of a sheet names a type.
fn names(types: &[String], ty: BlockType) -> bool {
    types.iter().any(|name| name.eq_ignore_ascii_case(ty.name()))
}

fn rounding(rows: RowForm) -> Rounding {
    match rows {
        RowForm::Narrow(dtype) => {
            Rounding { codes: CodeType::Float(dtype), shared: ScaleSharing::Row }
        }
        RowForm::EightBits(shared) => Rounding {
            codes: CodeType::Integer { bits: 8, symmetric: true },
            shared: ScaleSharing::Group(shared),
        },
    }
}

/// Returns the distance of a rounded row from the exact one, over the tokens that the server exposes.
pub(super) fn noise(server: &LogprobRow, rounded: &LogprobRow, exact: &LogprobRow) -> f64 {
    distance(&seen(server, rounded), exact, &mut Vec::new()).rms
}

/// Returns a whole row as the server would show it: as many of its likeliest tokens.
fn seen(server: &LogprobRow, row: &LogprobRow) -> LogprobRow {
    if server.is_full() {
        return row.clone();
    }
    let mut entries: Vec<(u32, f32)> =
        row.entries().map(|(id, value)| (id as u32, value)).collect();
    let count = server.values.len();
    if count < entries.len() {
        entries.select_nth_unstable_by(count, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        entries.truncate(count);
    }
    entries.sort_by_key(|entry| entry.0);
    let (ids, values) = entries.into_iter().unzip();
    LogprobRow { ids: Some(ids), values, target: server.target.and(row.target) }
}
