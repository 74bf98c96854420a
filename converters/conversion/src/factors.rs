//! Factors of matrices whose block format stores one beside the codes.

use std::sync::{Arc, OnceLock};

/// Factor of each matrix of a tensor, or one factor for all. It comes from the source, or from a pass over
/// the values.
#[derive(Debug, Clone, Default)]
pub struct Factors(pub(crate) Arc<OnceLock<Vec<f32>>>);

impl Factors {
    pub(crate) fn known(numbers: Vec<f32>) -> Self {
        Self(Arc::new(OnceLock::from(numbers)))
    }

    /// Returns all factors, if they are known.
    pub(crate) fn get(&self) -> Option<&[f32]> {
        self.0.get().map(Vec::as_slice)
    }
}
