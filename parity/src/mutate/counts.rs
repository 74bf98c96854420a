//! Counts of outcomes.

use registry::dtype::Dtype;
use serde::Serialize;

use super::{Fate, MistakeClass, MutationReport};
use crate::gate::dtype_name;

/// Counts of one class in one dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClassCounts {
    /// The class.
    pub class: MistakeClass,
    /// The dtype.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// Number of mutants caught by a gate.
    pub caught: usize,
    /// Number of mutants that the engine refused to run.
    pub refused: usize,
    /// Number of mutants that changed values, and passed.
    pub missed: usize,
    /// Number of mutants that changed no value.
    pub unreached: usize,
}

/// Counts the outcomes of each class and dtype that has any.
pub fn counts(book: &MutationReport) -> Vec<ClassCounts> {
    let mut all = Vec::new();
    for class in MistakeClass::ALL {
        for dtype in Dtype::ALL {
            let mut row =
                ClassCounts { class, dtype, caught: 0, refused: 0, missed: 0, unreached: 0 };
            for outcome in book.outcomes.iter().filter(|o| o.class == class && o.dtype == dtype) {
                match outcome.fate {
                    Fate::Caught => row.caught += 1,
                    Fate::Refused => row.refused += 1,
                    Fate::Missed => row.missed += 1,
                    Fate::Unreached => row.unreached += 1,
                }
            }
            if row.caught + row.refused + row.missed + row.unreached > 0 {
                all.push(row);
            }
        }
    }
    all
}
