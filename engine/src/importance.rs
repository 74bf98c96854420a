//! Measures how much each input of a matrix matters: the mean square of what it is multiplied with.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use formats::imatrix::{FixedSum, PartialEntry};
use registry::gguf::{Gguf, TensorGroupError};
use registry::graph::{Weight, WeightId};

use crate::InputObserver;

/// Sums of squares, by weight.
#[derive(Debug, Default)]
pub struct Importance {
    all: Mutex<BTreeMap<WeightId, SquareSums>>,
}

/// The sum of squares of each input of a weight, and the number of rows.
type SquareSums = (Vec<FixedSum>, u64);

impl InputObserver for Importance {
    fn product(&self, weight: WeightId, inputs: usize, rows: &[f32]) {
        let mut new = vec![0.0_f64; inputs];
        for row in rows.chunks_exact(inputs.max(1)) {
            new.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (sums, count) = all.entry(weight).or_default();
        sums.resize(inputs, FixedSum::default());
        sums.iter_mut().zip(new).for_each(|(sum, x)| sum.add(FixedSum::of(x)));
        *count += (rows.len() / inputs.max(1)) as u64;
    }
}

impl Importance {
    /// Takes the sums measured so far, by the names that weights have in a GGUF file.
    pub fn take(
        &self,
        gguf: &Gguf,
        weights: &[Weight],
    ) -> Result<BTreeMap<String, PartialEntry>, Vec<TensorGroupError>> {
        let all = std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner));
        let mut entries = BTreeMap::new();
        for group in gguf.groups(weights)? {
            let measured: Vec<Option<&SquareSums>> =
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

/// Returns the sums of a tensor that is made of these weights, with one row for each of its matrices. A
/// single matrix of several weights takes the row of their common inputs. None if nothing was measured.
fn entry(measured: &[Option<&SquareSums>], inputs: usize, matrices: usize) -> Option<PartialEntry> {
    let of_matrices: Vec<Option<&SquareSums>> = if matrices == 1 {
        vec![measured.iter().copied().flatten().find(|(squares, _)| squares.len() == inputs)]
    } else if measured.len() == matrices {
        measured.iter().map(|sums| sums.filter(|(squares, _)| squares.len() == inputs)).collect()
    } else {
        return None;
    };
    if of_matrices.iter().all(Option::is_none) {
        return None;
    }
    let mut entry = PartialEntry::default();
    for sums in of_matrices {
        match sums {
            Some((squares, _)) => entry.sums.extend(squares),
            None => entry.sums.resize(entry.sums.len() + inputs, FixedSum::default()),
        }
        entry.counts.push(sums.map_or(0, |(_, count)| *count));
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_add_up_and_stacks_keep_their_matrices_apart() {
        let watch = Importance::default();
        watch.product(WeightId(0), 2, &[1.0, 2.0, 3.0, 4.0]);
        watch.product(WeightId(2), 2, &[5.0, 6.0]);
        let all = watch.all.lock().unwrap();
        let measured: Vec<_> = (0..3).map(|n| all.get(&WeightId(n))).collect();
        let stack = entry(&measured, 2, 3).unwrap();
        assert_eq!(stack.counts, [2, 0, 1]);
        assert_eq!(values(stack), [10.0, 20.0, 0.0, 0.0, 25.0, 36.0]);
        let several = entry(&measured[1..], 2, 1).unwrap();
        assert_eq!(values(several), [25.0, 36.0]);
        assert_eq!(entry(&measured, 3, 1), None);
        assert_eq!(entry(&measured, 2, 2), None);
        assert_eq!(entry(&[None], 2, 1), None);
    }

    fn values(entry: PartialEntry) -> Vec<f32> {
        entry.sums.into_iter().map(FixedSum::value).collect()
    }
}
