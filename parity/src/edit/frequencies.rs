//! Frequencies of rotary tables: their base, and tables of another base.

use registry::rope::RopeTable;

use super::number::round_to;

/// Scales frequencies as a base that is `by` times larger does.
pub(crate) fn stretch(frequencies: &mut [f32], by: f32) {
    let pairs = frequencies.len().max(1) as f32;
    for (n, frequency) in frequencies.iter_mut().enumerate() {
        *frequency *= by.powf(-(n as f32) / pairs);
    }
}

/// Computes the base of a table from its first two frequencies, whose ratio scalings preserve.
pub(super) fn theta(table: &RopeTable) -> Option<f64> {
    let [first, second, ..] = table.inv_freq[..] else { return None };
    let ratio = f64::from(first) / f64::from(second);
    let theta = ratio.powf(table.inv_freq.len() as f64);
    let round = round_to(theta, 3);
    let theta = if (theta / round - 1.0).abs() < 1e-4 { round } else { theta };
    (theta.is_finite() && theta > 1.0).then_some(theta)
}
