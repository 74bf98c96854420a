//! The largest numbers that matrices multiply and that attention keeps: what scales follow from.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use registry::graph::{StateId, WeightId};

use crate::InputObserver;

/// Largest magnitudes so far. A maximum does not depend on the order in which threads come.
#[derive(Debug, Default)]
pub struct KvPeaks {
    inputs: Mutex<BTreeMap<WeightId, f32>>,
    cached: Mutex<BTreeMap<(StateId, usize), f32>>,
}

impl KvPeaks {
    /// Returns the peak of the rows that a weight was multiplied with; none if there was no row.
    pub fn input(&self, weight: WeightId) -> Option<f32> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).get(&weight).copied()
    }

    /// Returns the peak of a part of a state; none if it kept nothing.
    pub fn cached(&self, state: StateId, part: usize) -> Option<f32> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.get(&(state, part)).copied()
    }
}

fn raise<K: Ord>(all: &Mutex<BTreeMap<K, f32>>, key: K, rows: &[f32]) {
    if rows.is_empty() {
        return;
    }
    let peak = rows.iter().fold(0.0, |largest, x| larger(largest, x.abs()));
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    let held = all.entry(key).or_insert(0.0);
    *held = larger(*held, peak);
}

/// Returns the larger of two numbers, or NaN if one is NaN: `max` would lose it.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }
}

impl InputObserver for KvPeaks {
    fn product(&self, weight: WeightId, _inputs: usize, rows: &[f32]) {
        raise(&self.inputs, weight, rows);
    }

    fn cached(&self, state: StateId, part: usize, rows: &[f32]) {
        raise(&self.cached, (state, part), rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_kept_and_what_is_no_number_is_not_lost() {
        let watch = KvPeaks::default();
        watch.product(WeightId(1), 2, &[1.0, -3.0]);
        watch.product(WeightId(1), 2, &[2.0, 0.5]);
        watch.product(WeightId(2), 2, &[]);
        InputObserver::cached(&watch, StateId(0), 1, &[f32::NAN, 1.0]);
        InputObserver::cached(&watch, StateId(0), 1, &[7.0]);
        assert_eq!(watch.input(WeightId(1)), Some(3.0));
        assert_eq!(watch.input(WeightId(2)), None);
        assert!(watch.cached(StateId(0), 1).is_some_and(f32::is_nan));
        assert_eq!(watch.cached(StateId(0), 0), None);
    }
}
