//! Penalties of tokens that the sequence has already.

use std::collections::BTreeMap;

use crate::error::ApiError;

/// Largest repetition penalty. A larger one leaves no token that was seen.
const MOST_REPETITION: f64 = 100.0;

/// The fields of penalties, as a request has them.
#[derive(Debug, Default)]
pub(crate) struct PenaltyFields {
    pub(crate) presence: Option<f64>,
    pub(crate) frequency: Option<f64>,
    pub(crate) repetition: Option<f64>,
}

/// Penalties of a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Penalties {
    /// Number to take from the logit of each token that was generated, as in the OpenAI API.
    presence: f32,
    /// Amount taken off for each time that the token was generated.
    frequency: f32,
    /// Divisor of positive logits and factor of negative ones, for each token of the prompt and of the answer, as in
    /// transformers.
    repetition: f32,
}

impl PenaltyFields {
    /// Checks the fields; none if they change nothing.
    pub(crate) fn check(&self) -> Result<Option<Penalties>, ApiError> {
        let presence = subtrahend("presence_penalty", self.presence)?;
        let frequency = subtrahend("frequency_penalty", self.frequency)?;
        let repetition = self.repetition.unwrap_or(1.0);
        if !(repetition > 0.0 && repetition <= MOST_REPETITION) {
            let message = format!(
                "`repetition_penalty` is {repetition:?}; expected above 0, at most {MOST_REPETITION}"
            );
            return Err(ApiError::field("repetition_penalty", message));
        }
        let penalties = Penalties { presence, frequency, repetition: repetition as f32 };
        let neutral = Penalties { presence: 0.0, frequency: 0.0, repetition: 1.0 };
        Ok((penalties != neutral).then_some(penalties))
    }
}

/// Checks a number that is taken from logits.
fn subtrahend(name: &str, value: Option<f64>) -> Result<f32, ApiError> {
    let value = value.unwrap_or(0.0);
    if !(-2.0..=2.0).contains(&value) {
        return Err(ApiError::field(name, format!("`{name}` is {value:?}; expected -2 to 2")));
    }
    Ok(value as f32)
}

/// Penalties of a sequence, with the tokens that it has.
#[derive(Debug)]
pub(crate) struct PenaltyState {
    penalties: Penalties,
    /// Number of times that each token of the sequence was generated; 0 for tokens of the prompt alone.
    generated: BTreeMap<u32, u32>,
}

impl PenaltyState {
    pub(crate) fn new(penalties: Penalties, prompt: &[u32]) -> Self {
        Self { penalties, generated: prompt.iter().map(|id| (*id, 0)).collect() }
    }

    /// Counts a generated token.
    pub(crate) fn accept(&mut self, id: u32) {
        *self.generated.entry(id).or_default() += 1;
    }

    /// Changes logits: the repetition penalty first, then the others, as vLLM does.
    pub(crate) fn apply(&self, row: &mut [f32]) {
        let Penalties { presence, frequency, repetition } = self.penalties;
        for (id, count) in &self.generated {
            let Some(logit) = row.get_mut(*id as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            if *count > 0 {
                *logit -= frequency * *count as f32 + presence;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(presence: f64, frequency: f64, repetition: f64) -> Result<Option<Penalties>, String> {
        let fields = PenaltyFields {
            presence: Some(presence),
            frequency: Some(frequency),
            repetition: Some(repetition),
        };
        fields.check().map_err(|error| error.message)
    }

    /// Rows with a prompt of tokens 0 and 1, and the tokens 1, 2 and 2 generated.
    #[test]
    fn logits_change_as_in_vllm_and_transformers() {
        let row = [2.0, -1.0, 4.0, 3.0];
        for (presence, frequency, repetition, changed) in [
            (0.5, 0.0, 1.0, [2.0, -1.5, 3.5, 3.0]),
            (0.0, 0.5, 1.0, [2.0, -1.5, 3.0, 3.0]),
            (0.0, 0.0, 2.0, [1.0, -2.0, 2.0, 3.0]),
            (0.0, 0.0, 0.5, [4.0, -0.5, 8.0, 3.0]),
            (0.5, 1.0, 2.0, [1.0, -3.5, -0.5, 3.0]),
            (-2.0, -1.0, 1.0, [2.0, 2.0, 8.0, 3.0]),
        ] {
            let penalties = check(presence, frequency, repetition).unwrap().unwrap();
            let mut state = PenaltyState::new(penalties, &[0, 1, 99]);
            for id in [1, 2, 2] {
                state.accept(id);
            }
            let mut row = row;
            state.apply(&mut row);
            assert_eq!(row, changed, "{penalties:?}");
        }
    }

    #[test]
    fn neutral_penalties_change_nothing_and_others_have_bounds() {
        assert_eq!(PenaltyFields::default().check(), Ok(None));
        assert_eq!(check(0.0, 0.0, 1.0), Ok(None));
        for (presence, frequency, repetition, words) in [
            (2.5, 0.0, 1.0, "`presence_penalty` is 2.5; expected -2 to 2"),
            (0.0, f64::NAN, 1.0, "`frequency_penalty` is NaN"),
            (0.0, 0.0, 0.0, "`repetition_penalty` is 0.0; expected above 0"),
            (0.0, 0.0, 1e300, "`repetition_penalty` is 1e300; "),
        ] {
            let error = check(presence, frequency, repetition).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
