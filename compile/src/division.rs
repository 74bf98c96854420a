//! Matrices that a target can divide among ranks: by columns, up to one that is divided by rows.
//!
//! A first walk notes which matrices each value comes from through ops that treat its columns (or heads) apart. If all that comes from
//! a matrix ends in matrices, it is divided by columns and those by rows; a second walk writes that.

use std::collections::{BTreeMap, BTreeSet};

use crate::arguments::{OpArgument, OpArguments};
use crate::value::CodeValue;

/// The word of sheets for an op that multiplies with a matrix.
const MATRIX: &str = "matrix";

/// The word of sheets for an op that treats columns or heads apart.
const EACH: &str = "each";

/// Words that templates see for the division of a matrix.
const COLUMNS: &str = "columns";
const ROWS: &str = "rows";

/// Paths of matrices.
type Matrices = BTreeSet<String>;

/// Facts about the division of matrices, from one walk of a spec.
#[derive(Debug, Clone, Default)]
pub(crate) struct Division {
    /// Matrices that a value comes from, and the one that it goes to.
    ends: Vec<(Matrices, String)>,
    /// Matrices whose values meet.
    met: Vec<Matrices>,
    /// Matrices that must be whole.
    whole: Matrices,
    /// Matrices that cannot be divided by rows.
    whole_rows: Matrices,
    /// The division of each matrix that has one, from an earlier walk.
    words: BTreeMap<String, &'static str>,
}

/// Effect of an op on divided values.
#[derive(Debug, Clone, Default)]
pub(crate) struct DividedCall {
    /// Matrices that the results come from.
    pub(crate) sources: Matrices,
    /// True if its values are divided.
    pub(crate) is_divided: bool,
    /// The division of its matrix, `columns` or `rows`; empty for a whole one.
    pub(crate) matrix: &'static str,
}

/// True if two values have as many columns, or both have heads.
fn is_alike(value: &CodeValue, first: &CodeValue) -> bool {
    value.shape.len() == first.shape.len()
        && (value.shape.len() > 1
            || value.shape.iter().zip(&first.shape).all(|(a, b)| a.kind == b.kind))
}

fn values(args: &OpArguments) -> Vec<&CodeValue> {
    args.values().flat_map(values_of).collect()
}

fn values_of(arg: &OpArgument) -> &[CodeValue] {
    match arg {
        OpArgument::Value(value) => std::slice::from_ref(value),
        OpArgument::Values(values) => values,
        _ => &[],
    }
}

impl Division {
    /// Returns the division that follows from the facts of a walk, for a second walk; none if all matrices are whole.
    pub(crate) fn decided(mut self) -> Option<Self> {
        loop {
            let before = (self.whole.len(), self.whole_rows.len());
            let columns: Matrices = self.ends.iter().flat_map(|(from, _)| from.clone()).collect();
            for (from, row) in &self.ends {
                let is_whole = from.iter().any(|one| self.whole.contains(one))
                    || columns.contains(row) && !self.whole.contains(row);
                if is_whole || self.whole_rows.contains(row) {
                    self.whole_rows.insert(row.clone());
                    self.whole.extend(from.iter().cloned());
                }
            }
            for met in &self.met {
                if met.iter().any(|one| self.whole.contains(one)) {
                    self.whole.extend(met.iter().cloned());
                }
            }
            if before == (self.whole.len(), self.whole_rows.len()) {
                break;
            }
        }
        let mut words = BTreeMap::new();
        for (from, row) in self.ends {
            if !self.whole_rows.contains(&row) {
                words.extend(from.into_iter().map(|one| (one, COLUMNS)));
                words.insert(row, ROWS);
            }
        }
        (!words.is_empty()).then(|| Self { words, ..Self::default() })
    }

    /// Notes that values are used whole.
    pub(crate) fn escapes<'v>(&mut self, values: impl IntoIterator<Item = &'v CodeValue>) {
        self.whole.extend(values.into_iter().flat_map(|value| value.sources.iter().cloned()));
    }

    /// Notes that values are used together, or one of them; returns the matrices that the result comes from.
    pub(crate) fn meet(&mut self, values: &[&CodeValue]) -> Matrices {
        let is_apart = values.iter().any(|value| value.sources.is_empty());
        if is_apart || !values.iter().all(|value| is_alike(value, values[0])) {
            self.escapes(values.iter().copied());
            return Matrices::new();
        }
        let all: Matrices = values.iter().flat_map(|value| value.sources.clone()).collect();
        if all.len() > 1 && !self.met.contains(&all) {
            self.met.push(all.clone());
        }
        all
    }

    /// True if all matrices that a value comes from are divided by columns.
    fn has_columns(&self, sources: &Matrices) -> bool {
        !sources.is_empty() && sources.iter().all(|one| self.words.get(one) == Some(&COLUMNS))
    }

    /// Notes a call of an op, of which the sheet says how it treats columns.
    pub(crate) fn call(&mut self, kind: &str, args: &OpArguments) -> DividedCall {
        let values = values(args);
        let is_divided =
            !values.is_empty() && values.iter().all(|value| self.has_columns(&value.sources));
        let path = args.values().find_map(|arg| match arg {
            OpArgument::Path(path, _) => Some(path.clone()),
            _ => None,
        });
        match (kind, path) {
            (MATRIX, Some(path)) => {
                let sources = self.meet(&values);
                if sources.is_empty() {
                    self.whole_rows.insert(path.clone());
                } else {
                    self.ends.push((sources, path.clone()));
                }
                let matrix = self.words.get(&path).copied().unwrap_or_default();
                DividedCall { sources: Matrices::from([path]), is_divided, matrix }
            }
            (EACH, _) => {
                let sources = self.meet(&values);
                DividedCall { sources, is_divided, matrix: "" }
            }
            (_, path) => {
                self.escapes(values.iter().copied());
                self.whole.extend(path.clone());
                self.whole_rows.extend(path);
                DividedCall::default()
            }
        }
    }
}
