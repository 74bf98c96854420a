//! Rows of answers, as log-probabilities.

use super::LogitRows;
use crate::child::wire::ChildReply;

/// Reads the log-probabilities of each row.
pub(super) fn rows(answer: ChildReply, vocab: usize) -> LogitRows {
    let data = answer.frames.into_iter().next().map(|frame| frame.data).unwrap_or_default();
    data.chunks(vocab.max(1)).map(logprobs).collect()
}

fn logprobs(row: &[f32]) -> Vec<f32> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - largest).exp()).sum();
    row.iter().map(|x| (f64::from(x - largest) - sum.ln()) as f32).collect()
}

pub(super) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let far = a
        .iter()
        .zip(b)
        .map(|(a, b)| if a == b { 0.0 } else { f64::from((a - b).abs()) })
        .fold(0.0, |largest, gap| if gap.is_nan() { f64::INFINITY } else { gap.max(largest) });
    if a.len() == b.len() { far } else { f64::INFINITY }
}

/// Rows that say something: neither flat nor all alike.
pub(super) fn varied(rows: &[Vec<f32>]) -> Result<String, String> {
    if let Some(row) = rows.iter().position(|row| row.iter().all(|x| *x == row[0])) {
        return Err(format!(
            "row {row} gives every token the same probability: send logits or log-probabilities"
        ));
    }
    if rows.windows(2).all(|pair| pair[0] == pair[1]) {
        return Err("all rows are alike: row i is of the tokens up to i".to_owned());
    }
    Ok(format!("{} rows", rows.len()))
}
