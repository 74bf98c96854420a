//! Row of log-probabilities.

/// Log-probability at or below which a token counts as having probability zero. Servers write -9999 or the
/// lowest f32 for minus infinity, and the logarithm of an f32 cannot be lower.
pub const FLOOR: f32 = -80.0;

/// Maximum by which a log-probability may exceed 0, for rounding.
const ABOVE: f32 = 1e-3;

/// Reason that entries are not a row of log-probabilities.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum LogprobRowError {
    #[error("a row has id {id} twice, with other numbers")]
    DuplicateId { id: u32 },
    #[error(
        "a row has id {id}, and the model has {vocab} tokens: it is a model with another vocabulary"
    )]
    Vocabulary { id: u32, vocab: usize },
    #[error("a log-probability is {value}")]
    NotFinite { value: f32 },
    #[error("a log-probability is {value}, above 0")]
    AboveZero { value: f32 },
}

/// Row of log-probabilities: the whole vocabulary, the most likely tokens, or one token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogprobRow {
    /// Tokens of `values`; the whole vocabulary in order if none.
    pub ids: Option<Vec<u32>>,
    /// Log-probabilities.
    pub values: Vec<f32>,
    /// Log-probability of the next token, or of the chosen one.
    pub target: Option<f32>,
}

impl LogprobRow {
    /// Builds a row of entries in any order. An error describes an invalid entry.
    pub fn of(
        mut entries: Vec<(u32, f32)>,
        target: Option<f32>,
        vocab: usize,
    ) -> Result<Self, LogprobRowError> {
        entries.sort_by_key(|entry| entry.0);
        entries.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(LogprobRowError::DuplicateId { id: pair[0].0 });
        }
        if let Some(&(id, _)) = entries.last().filter(|(id, _)| *id as usize >= vocab) {
            return Err(LogprobRowError::Vocabulary { id, vocab });
        }
        for value in entries.iter().map(|entry| entry.1).chain(target) {
            number(value)?;
        }
        if entries.len() == vocab && vocab > 0 {
            let values = entries.into_iter().map(|entry| entry.1).collect();
            return Ok(Self { ids: None, values, target });
        }
        let (ids, values) = entries.into_iter().unzip();
        Ok(Self { ids: Some(ids), values, target })
    }

    /// True if every token of the vocabulary has a log-probability.
    pub fn is_full(&self) -> bool {
        self.ids.is_none()
    }

    /// Returns pairs of token and log-probability.
    pub fn entries(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        self.values.iter().enumerate().map(move |(n, value)| {
            let id = self.ids.as_ref().map_or(n, |ids| ids[n] as usize);
            (id, *value)
        })
    }

    /// Returns the log-probability of a token, if the row has it.
    pub fn at(&self, token: u32) -> Option<f32> {
        match &self.ids {
            None => self.values.get(token as usize).copied(),
            Some(ids) => ids.binary_search(&token).ok().map(|n| self.values[n]),
        }
    }
}

/// Returns an error for a value that is not a log-probability.
fn number(value: f32) -> Result<(), LogprobRowError> {
    if value.is_nan() || value == f32::INFINITY {
        return Err(LogprobRowError::NotFinite { value });
    }
    if value > ABOVE {
        return Err(LogprobRowError::AboveZero { value });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_held_to_the_vocabulary() {
        let row = LogprobRow::of(vec![(1, -2.0), (0, -1.0)], Some(-2.0), 2).unwrap();
        assert!(row.is_full());
        assert_eq!(row.values, [-1.0, -2.0]);
        let row = LogprobRow::of(vec![(7, -2.0), (3, -1.0), (3, -1.0)], None, 9).unwrap();
        assert_eq!((row.at(3), row.at(7), row.at(4)), (Some(-1.0), Some(-2.0), None));
        for (entries, words) in [
            (vec![(9, -1.0)], "another vocabulary"),
            (vec![(1, -1.0), (1, -2.0)], "twice"),
            (vec![(1, f32::NAN)], "NaN"),
            (vec![(1, 0.5)], "above 0"),
            (vec![(1, f32::INFINITY)], "inf"),
        ] {
            let error = LogprobRow::of(entries, None, 9).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
