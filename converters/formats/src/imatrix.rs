//! Importance matrices: the importance of each input of a weight, measured on text.
//!
//! They hold the mean square of every input, for each weight and each of its experts. Quantizers weight
//! their errors with it. Two file formats are read: GGUF and the older `.dat`; GGUF is written, with a checksum of
//! its values. Files of other programs have none.

mod checksum;
mod error;
mod partial;
mod read;
mod write;

use std::collections::BTreeMap;

pub use error::Error;
pub use partial::{FixedSum, PartialEntry, PartialImatrix};

use crate::shown;

/// Importance matrix of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imatrix {
    /// Measured importance by the GGUF name of the weight, as in `blk.0.ffn_up.weight`.
    pub entries: BTreeMap<String, ImportanceEntry>,
    /// Number of text chunks in the measurement.
    pub chunks: u32,
    /// Number of tokens per chunk; zero if the file does not record it.
    pub chunk_size: u32,
    /// Names of the text files.
    pub datasets: Vec<String>,
}

/// Importance of one weight's inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportanceEntry {
    /// Mean squares: `[counts.len(), row]`.
    means: Vec<f32>,
    /// Number of uses of each matrix. The older format has one count for all of them.
    counts: Vec<u64>,
}

impl ImportanceEntry {
    /// Computes the entry from sums of squares and the number of summands of each matrix. A matrix that was
    /// never used gets equal weights. Returns none if the sums do not divide evenly into matrices.
    pub fn from_sums(mut sums: Vec<f32>, counts: Vec<u64>) -> Option<Self> {
        if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            return None;
        }
        let row = sums.len() / counts.len();
        for (sums, &count) in sums.chunks_mut(row).zip(&counts) {
            for sum in sums {
                *sum = if count == 0 { 1.0 } else { *sum / count as f32 };
            }
        }
        Some(Self { means: sums, counts })
    }

    /// Returns the mean squares, matrix after matrix.
    pub fn means(&self) -> &[f32] {
        &self.means
    }

    /// Returns the number of uses of each matrix.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

impl Imatrix {
    /// Returns the error weights of a tensor of `matrices` matrices: `row` values for each matrix in turn.
    /// Returns none if the tensor was not measured.
    ///
    /// A tensor that was measured with another shape is an error, except for embeddings: they are looked
    /// up, not multiplied, and the measurement under their name belongs to the output.
    pub fn weights_for(
        &self,
        tensor: &str,
        row: usize,
        matrices: usize,
    ) -> Result<Option<&[f32]>, Error> {
        let Some(entry) = self.entries.get(tensor) else { return Ok(None) };
        let length = entry.means.len();
        if row.checked_mul(matrices) == Some(length) {
            return Ok(Some(&entry.means));
        }
        if matches!(tensor, "token_embd.weight" | "per_layer_token_embd.weight") {
            return Ok(None);
        }
        Err(Error::OtherShape { tensor: shown(tensor), found: length, row, matrices })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_matrices_weigh_the_same() {
        let entry = ImportanceEntry::from_sums(vec![2.0, 4.0, 5.0, 6.0], vec![2, 0]).unwrap();
        assert_eq!(entry.means(), [1.0, 2.0, 1.0, 1.0]);
        assert_eq!(entry.counts(), [2, 0]);
        assert_eq!(ImportanceEntry::from_sums(vec![1.0; 3], vec![1, 1]), None);
        assert_eq!(ImportanceEntry::from_sums(vec![], vec![1]), None);
        assert_eq!(ImportanceEntry::from_sums(vec![1.0], vec![]), None);
    }

    #[test]
    fn a_weight_of_another_shape_is_refused_unless_it_is_an_embedding() {
        let entry = ImportanceEntry::from_sums(vec![1.0, 2.0, 3.0, 4.0], vec![1, 1]).unwrap();
        let names = ["blk.0.ffn_up_exps.weight", "token_embd.weight"];
        let imatrix = Imatrix {
            entries: names.map(|name| (name.to_owned(), entry.clone())).into(),
            ..Imatrix::default()
        };
        let weights = imatrix.weights_for(names[0], 2, 2).unwrap();
        assert_eq!(weights, Some(&[1.0, 2.0, 3.0, 4.0][..]));
        assert_eq!(imatrix.weights_for(names[1], 3, 1).unwrap(), None);
        assert_eq!(imatrix.weights_for("output.weight", 3, 1).unwrap(), None);
        let message = imatrix.weights_for(names[0], 2, 3).unwrap_err().to_string();
        assert!(message.contains("`blk.0.ffn_up_exps.weight`"), "{message}");
        assert!(message.contains("4 numbers") && message.contains("3 x 2"), "{message}");
        assert!(imatrix.weights_for(names[0], usize::MAX, 2).is_err());
    }
}
