//! Measures how much each input of a matrix matters: the mean square of what it is multiplied with.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use converters::imatrix::{Entry, Imatrix};
use registry::gguf::Gguf;
use registry::graph::{Weight, WeightId};

use crate::Watch;

/// Sums of squares, by weight.
#[derive(Debug, Default)]
pub struct Importance {
    sums: Mutex<BTreeMap<WeightId, Matrices>>,
}

/// Of each matrix of a weight, the sum of each input's squares and how many rows there were.
type Matrices = BTreeMap<usize, (Vec<f64>, u64)>;

impl Watch for Importance {
    fn product(&self, weight: WeightId, matrix: usize, inputs: usize, rows: &[f32]) {
        let mut all = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let (sums, count) = all.entry(weight).or_default().entry(matrix).or_default();
        sums.resize(inputs, 0.0);
        for row in rows.chunks_exact(inputs.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
            *count += 1;
        }
    }
}

impl Importance {
    /// What was measured, by the names that weights have in a GGUF file.
    pub fn by_tensor(
        &self,
        gguf: &Gguf,
        weights: &[Weight],
    ) -> Result<BTreeMap<String, Entry>, Vec<String>> {
        let all = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = BTreeMap::new();
        for group in gguf.groups(weights)? {
            let measured: Vec<Option<&Matrices>> =
                group.weights.iter().map(|&n| all.get(&WeightId(n))).collect();
            for (name, shape) in group.tensors.iter().filter(|(_, shape)| shape.len() >= 2) {
                let inputs = shape[shape.len() - 1];
                let matrices = shape[..shape.len() - 2].iter().product();
                if let Some(entry) = entry(&measured, inputs, matrices) {
                    entries.insert(name.clone(), entry);
                }
            }
        }
        Ok(entries)
    }
}

/// The importance of a tensor that is made of these weights: one for each of its matrices, one
/// stack of them, or several that have their inputs in common. None if nothing was measured.
fn entry(measured: &[Option<&Matrices>], inputs: usize, matrices: usize) -> Option<Entry> {
    let fits = |matrices: &&Matrices| matrices.values().all(|(sums, _)| sums.len() == inputs);
    let first = measured.iter().flatten().find(|one| fits(one))?;
    let of = |n: usize| {
        if matrices > 1 && measured.len() == matrices {
            measured[n].filter(fits).and_then(|one| one.get(&0))
        } else {
            first.get(&n)
        }
    };
    let (mut sums, mut counts) = (Vec::new(), Vec::new());
    for n in 0..matrices {
        if let Some((squares, count)) = of(n) {
            sums.extend(squares.iter().map(|&sum| sum as f32));
            counts.push(*count);
        } else {
            sums.resize(sums.len() + inputs, 0.0);
            counts.push(0);
        }
    }
    Entry::from_sums(sums, counts)
}

/// An importance matrix of these entries.
pub fn imatrix(
    entries: BTreeMap<String, Entry>,
    chunks: usize,
    chunk_size: usize,
    dataset: String,
) -> Imatrix {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Imatrix {
        entries,
        chunks: number(chunks),
        chunk_size: number(chunk_size),
        datasets: vec![dataset],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_add_up_and_stacks_keep_their_matrices_apart() {
        let watch = Importance::default();
        watch.product(WeightId(0), 0, 2, &[1.0, 2.0, 3.0, 4.0]);
        watch.product(WeightId(0), 2, 2, &[5.0, 6.0]);
        let all = watch.sums.lock().unwrap();
        let stack = entry(&[all.get(&WeightId(0))], 2, 3).unwrap();
        assert_eq!(stack.counts(), [2, 0, 1]);
        assert_eq!(stack.means(), [5.0, 10.0, 1.0, 1.0, 25.0, 36.0]);
        let several = entry(&[None, all.get(&WeightId(0))], 2, 1).unwrap();
        assert_eq!(several.means(), [5.0, 10.0]);
        assert_eq!(entry(&[all.get(&WeightId(0))], 3, 1), None);
        assert_eq!(entry(&[None], 2, 1), None);
    }
}
