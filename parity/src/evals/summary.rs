//! Means of scores with their standard errors.

use std::collections::BTreeMap;

use super::stats::{mean, standard_error};

/// Summary of one metric over all items.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricSummary {
    /// The metric.
    pub metric: String,
    /// Number of items with the metric.
    pub items: usize,
    /// Mean score.
    pub mean: f64,
    /// Standard error, for at least two items.
    pub error: Option<f64>,
}

/// Returns the mean of every metric.
pub fn summary<'a>(scores: impl Iterator<Item = &'a BTreeMap<String, f64>>) -> Vec<MetricSummary> {
    let mut by: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (metric, score) in scores.flatten() {
        by.entry(metric).or_default().push(*score);
    }
    by.into_iter()
        .filter_map(|(metric, values)| {
            let items = values.len();
            let error = standard_error(&values);
            Some(MetricSummary { metric: metric.to_owned(), items, mean: mean(&values)?, error })
        })
        .collect()
}
