//! Servers whose products round rows before they multiply them by quantized weights.
//!
//! Such a server differs from exact arithmetic by far more than f32 does, and from itself in other batches as much.
//! Its noise is measured: the native engine runs the same file with rows rounded as the engine's sheet declares
//! for the types of the file's tensors. A correct server is as far from the exact run as that run is.

use std::fmt::Write as _;

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use endpoints::{LogprobRow, RowForm, ServerFacts};
use engine::ModelSource;
use formats::codec::BlockType;
use formats::gguf::GgufFile;

use super::distance::distance;

/// Rounding of rows by the types of the weights in a file.
#[derive(Debug, Clone, Default)]
pub(super) struct RoundedTypes {
    /// Types that the file has, with the rounding of the rows that they multiply.
    pub(super) types: Vec<(BlockType, Rounding)>,
    forms: Vec<RowForm>,
}

impl RoundedTypes {
    /// Returns the types of a file for which the sheet of the server's engine declares a rounding; none if there is no
    /// such type, or no file.
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
        (!rounded.types.is_empty()).then_some(rounded)
    }

    /// Describes the rounding: `8 bits with a scale for 256 (Q4_K, Q6_K)`.
    pub(super) fn text(&self) -> String {
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
