//! Means of scores with their standard errors.

use std::collections::BTreeMap;

use registry::table::TextTable;
use serde_json::{Value, json};

use super::run::ScoredItem;
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

/// Scores of an evaluation, with the facts that its results name.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalSummary {
    /// Model, task, engine and dtype, by name.
    pub facts: BTreeMap<String, String>,
    /// Number of items.
    pub items: usize,
    /// Means of all metrics.
    pub metrics: Vec<MetricSummary>,
}

impl EvalSummary {
    /// Summarizes scored items.
    pub fn of(facts: BTreeMap<String, String>, items: &[ScoredItem]) -> Self {
        let metrics = summary(items.iter().map(|item| &item.scores));
        Self { facts, items: items.len(), metrics }
    }

    /// Returns the summary as JSON.
    pub fn json(&self) -> Value {
        let metrics = self.metrics.iter().map(|line| {
            json!({
                "metric": line.metric, "items": line.items, "mean": line.mean, "standard_error": line.error,
            })
        });
        json!({
            "schema": "onboard-eval-summary/1", "facts": self.facts, "items": self.items,
            "metrics": metrics.collect::<Vec<_>>(),
        })
    }

    /// Returns the summary as a table.
    pub fn text(&self) -> String {
        let mut table = TextTable::new(&[1, 2, 3]);
        table.row(["metric", "items", "mean", "standard error"]);
        for line in &self.metrics {
            let error = line.error.map_or_else(|| "-".to_owned(), |error| format!("{error:.4}"));
            let mean = format!("{:.4}", line.mean);
            table.row([line.metric.clone(), line.items.to_string(), mean, error]);
        }
        let lacks_targets = self.metrics.is_empty();
        let without = if lacks_targets { "\nno item says what is right (`target`)" } else { "" };
        let [engine, dtype] =
            ["engine", "dtype"].map(|key| self.facts.get(key).map_or("", String::as_str));
        format!("{} items, {engine} {dtype}\n{}{without}", self.items, table.plain(""))
    }
}

/// Returns the mean of every metric.
fn summary<'a>(scores: impl Iterator<Item = &'a BTreeMap<String, f64>>) -> Vec<MetricSummary> {
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
