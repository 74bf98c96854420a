//! Checks properties of every answer, whatever the model. Ids are returned unchanged, probabilities sum to
//! one, and the chosen token is the most likely.

use endpoints::{Generation, LogprobRow, LogprobSupport, PromptScores, ServerFacts};

use super::cases::ServerPrompt;
use super::distance::logprob_gap;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject};
use crate::order::LAST;

/// Tolerance of the sum of a row's probabilities: above 1, and below 1 if the row is whole.
const SUM: f64 = 2e-3;

/// Maximum log-probability by which the chosen token may be less likely than the most likely one, by the
/// server's own values.
const GREEDY: f32 = 1e-3;

/// Tolerance below which log-probabilities count as equal.
const EQUAL: f32 = 1e-6;

/// Findings about the rows of a prompt.
pub(super) fn scored(
    case: &ServerPrompt,
    scored: &PromptScores,
    facts: &ServerFacts,
    vocab: usize,
) -> Option<Gate> {
    let mut fault = compare_echo(case, scored.echo.as_deref());
    fault = fault.or_else(|| short_row(case, scored, facts.scores, vocab));
    fault = fault.or_else(|| rows(&scored.rows, &case.positions, vocab));
    fault = fault.or_else(|| {
        let pair = (scored.rows.first()?, scored.rows.last()?);
        let same =
            scored.rows.len() > 2 && scored.rows.iter().all(|row| row.values == pair.0.values);
        (same && pair.0.values.len() > 1).then(|| {
            (0, "every position has the same row: the server does not read the prompt".to_owned())
        })
    });
    fault.map(|(step, words)| gate(case, Phase::Prefill, step, words))
}

/// Finds a row with fewer values than the server provides for a prompt.
fn short_row(
    case: &ServerPrompt,
    scored: &PromptScores,
    scores: LogprobSupport,
    vocab: usize,
) -> Option<(usize, String)> {
    scored.rows.iter().zip(&case.positions).find_map(|(row, &position)| {
        let follows = position + 1 < case.tokens.len();
        let (got, want) = match scores {
            LogprobSupport::Full => (row.values.len(), vocab),
            LogprobSupport::Top(count) => (row.values.len(), count.min(vocab)),
            LogprobSupport::Target => (usize::from(row.target.is_some()), usize::from(follows)),
            LogprobSupport::None => return None,
        };
        (got < want).then(|| {
            (
                position,
                format!("the row has log-probabilities of {got} tokens; {want} were asked for"),
            )
        })
    })
}

/// Finds faults of generated tokens, of which `count` were requested.
pub(super) fn generated(
    case: &ServerPrompt,
    generation: &Generation,
    count: usize,
    facts: &ServerFacts,
    vocab: usize,
) -> Option<Gate> {
    let steps: Vec<usize> = (1..=generation.rows.len()).collect();
    let fault = compare_echo(case, generation.echo.as_deref())
        .or_else(|| rows(&generation.rows, &steps, vocab));
    let fault = fault.or_else(|| wrong_count(generation, count, facts));
    let fault = fault.or_else(|| unscored_token(generation));
    let fault = fault.or_else(|| {
        generation.rows.iter().zip(&generation.ids).zip(&steps).find_map(|((row, id), step)| {
            let chosen = row.target.or_else(|| row.at(*id))?;
            let (best, highest) = row.entries().max_by(|a, b| a.1.total_cmp(&b.1))?;
            (highest - chosen > GREEDY).then(|| {
                let words = format!(
                    "the server is not greedy at temperature 0: it chose token {id} of {chosen:.3} while its own row has \
                     token {best} of {highest:.3}"
                );
                (*step, words)
            })
        })
    });
    fault.map(|(step, words)| gate(case, Phase::Decode, step, words))
}

/// Finds too many generated tokens, or too few if only their number ends an answer.
fn wrong_count(
    generation: &Generation,
    count: usize,
    facts: &ServerFacts,
) -> Option<(usize, String)> {
    let got = generation.ids.len();
    let wrong = got > count || got < count && facts.ignores_eos;
    let why = if got < count { ", whatever their ids (`ignore_eos`)" } else { "" };
    wrong.then(|| {
        (got + 1, format!("the server generated {got} tokens; {count} were asked for{why}"))
    })
}

/// Finds a generated token without its log-probability.
fn unscored_token(generation: &Generation) -> Option<(usize, String)> {
    let mut pairs = generation.rows.iter().zip(&generation.ids);
    let at = pairs.position(|(row, id)| row.target.or_else(|| row.at(*id)).is_none())?;
    Some((at + 1, "the chosen token has no log-probability".to_owned()))
}

fn gate(case: &ServerPrompt, phase: Phase, step: usize, words: String) -> Gate {
    let mut gate =
        Gate::new(Subject::Logprobs, &case.name, phase, Mode::Cumulative, LAST).failed(words);
    gate.step = Some(step);
    gate
}

/// Compares the prompt's ids with those that the server returns.
fn compare_echo(case: &ServerPrompt, echo: Option<&[u32]>) -> Option<(usize, String)> {
    let echo = echo.filter(|echo| *echo != case.tokens)?;
    let ours = case.tokens.len();
    let theirs = echo.len();
    let at = case.tokens.iter().zip(echo).take_while(|(a, b)| a == b).count();
    let cause = if theirs == ours + 1 && echo[1..] == case.tokens[..] {
        ": it adds a token at the beginning, as a second BOS"
    } else {
        ""
    };
    let words = format!(
        "the server runs other tokens than it was sent: {theirs} instead of {ours}, at {at} it has {} instead of {}{cause}",
        shown_id(echo, at),
        shown_id(&case.tokens, at)
    );
    Some((at.min(ours.saturating_sub(1)), words))
}

/// Returns the id at an index as text.
fn shown_id(ids: &[u32], at: usize) -> String {
    ids.get(at).map_or_else(|| "nothing".to_owned(), u32::to_string)
}

/// Finds a row that is not a distribution.
fn rows(rows: &[LogprobRow], steps: &[usize], vocab: usize) -> Option<(usize, String)> {
    rows.iter().zip(steps).find_map(|(row, step)| {
        let sum: f64 = row.values.iter().map(|x| f64::from(*x).exp()).sum();
        let words = if sum > 1.0 + SUM {
            format!(
                "the probabilities of {} tokens add up to {sum:.4}; expected at most 1",
                row.values.len()
            )
        } else if row.is_full() && vocab > 0 && sum < 1.0 - SUM {
            format!("the probabilities of the whole vocabulary add up to {sum:.4}; expected 1")
        } else if row.values.len() > 2 && flat(row) {
            "all tokens are equally likely: the server computes nothing of the model".to_owned()
        } else {
            let entry = row.entries().zip(row.target).find(|_| row.values.len() == 1);
            let ((_, value), target) = entry?;
            if logprob_gap(value, target) <= GREEDY {
                return None;
            }
            format!("the chosen token has two log-probabilities, {value} and {target}")
        };
        Some((*step, words))
    })
}

fn flat(row: &LogprobRow) -> bool {
    let largest = row.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.values.iter().all(|x| (largest - x).abs() < EQUAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_no_distribution_are_named() {
        for (values, words) in [
            (&[-0.1_f32, -0.1, -0.1][..], "add up to 2.7"),
            (&[-3.0, -4.0, -5.0], "expected 1"),
            (&[-1.098_612_3; 3], "equally likely"),
        ] {
            let (_, message) = rows(&[row(values)], &[0], 3).unwrap();
            assert!(message.contains(words), "{message}");
        }
        assert!(rows(&[row(&[-0.105_360_5, -2.995_732_3, -2.995_732_3])], &[0], 3).is_none());
    }

    fn row(values: &[f32]) -> LogprobRow {
        LogprobRow { ids: None, values: values.to_vec(), target: None }
    }
}
