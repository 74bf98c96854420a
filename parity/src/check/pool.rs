//! Pools rows beyond their bounds in 16 bits, over all prompts and phases.

use std::collections::{BTreeMap, BTreeSet};

use registry::dtype::Dtype;

use crate::dump::{Phase, Prompt};
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::route::RouterChoices;
use crate::rule::STRAYS;

/// Token of a prompt: index of the prompt, and position.
type TokenPosition = (usize, usize);

/// Tokens at which an op was compared.
#[derive(Debug, Default)]
struct ComparedTokens {
    compared: BTreeSet<TokenPosition>,
    off: BTreeSet<TokenPosition>,
}

/// Fails ops with more rows beyond their bounds than single flips explain. Also fails mixtures with one
/// expert that is wrong whenever it is chosen. `choices` are the reference's, by prompt.
pub(super) fn pool(
    dtype: Dtype,
    gates: &mut [Gate],
    prompts: &[Prompt],
    choices: &[&RouterChoices],
) {
    let mut ops: BTreeMap<Subject, ComparedTokens> = BTreeMap::new();
    for gate in gates.iter().filter(|gate| is_rounded_op(gate, dtype)) {
        let Some(n) = prompts.iter().position(|prompt| prompt.name == gate.prompt) else {
            continue;
        };
        // Prefill and decode compute the same rows, with the same rounding.
        let split = prompts[n].split;
        let rows = ops.entry(gate.subject.clone()).or_default();
        let steps = gate.by_step.iter().enumerate().filter(|(_, error)| error.is_some());
        rows.compared.extend(steps.map(|(step, _)| (n, position(gate, split, step))));
        rows.off.extend(gate.off.iter().map(|step| (n, position(gate, split, *step))));
    }
    for (subject, rows) in ops.iter().filter(|(_, rows)| !rows.off.is_empty()) {
        let off = rows.off.len();
        let why = if off > STRAYS {
            format!(
                "{off} rows of this op are not the reference's, in all prompts together; at most {STRAYS} may be"
            )
        } else if rows.off.iter().any(|(n, position)| rows.off.contains(&(*n, position + 1))) {
            "two rows of this op that lie side by side are not the reference's".to_owned()
        } else if let Some(expert) = wrong_expert(subject, rows, choices) {
            format!("all rows for which expert {expert} was chosen are not the reference's")
        } else {
            continue;
        };
        let judged =
            gates.iter_mut().filter(|gate| is_rounded_op(gate, dtype) && gate.subject == *subject);
        // A phase with fewer such rows may be sound.
        let Some(gate) = judged.rev().max_by_key(|gate| gate.off.len()) else { continue };
        if !gate.fails() {
            gate.verdict = Verdict::Fail;
            gate.step = gate.off.first().copied();
            gate.finding = Some(why);
        }
    }
}

/// True for a single op of a run with rounding.
fn is_rounded_op(gate: &Gate, dtype: Dtype) -> bool {
    gate.mode == Mode::Local && dtype != Dtype::F32
}

/// Returns the position of a step of a comparison, in a prompt whose decode begins at `split`.
fn position(gate: &Gate, split: usize, step: usize) -> usize {
    match gate.phase {
        Phase::Prefill => step,
        Phase::Decode => split + step - 1.min(step),
    }
}

/// Finds an expert that was compared at two tokens or more and is off at each.
fn wrong_expert(
    subject: &Subject,
    rows: &ComparedTokens,
    choices: &[&RouterChoices],
) -> Option<usize> {
    let Subject::Tap { name } = subject else { return None };
    let mut tokens: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (n, position) in &rows.compared {
        let of_prompt = choices.get(*n)?.get(name)?;
        let k = of_prompt.shape.get(1).copied()?;
        let chosen = of_prompt.data.get(position * k..(position + 1) * k)?;
        for expert in chosen.iter().filter(|expert| **expert >= 0.0) {
            let (all, off) = tokens.entry(*expert as usize).or_default();
            *all += 1;
            *off += usize::from(rows.off.contains(&(*n, *position)));
        }
    }
    tokens.into_iter().find(|(_, (all, off))| *all > 1 && all == off).map(|(expert, _)| expert)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::DumpTensor;
    use crate::order::LAST;

    const NAME: &str = "mlp.experts";

    fn prompt() -> Prompt {
        let json = serde_json::json!({ "name": "main", "tokens": [1, 2, 3, 4, 5, 6], "split": 3, "taps": ["prefill", "decode"] });
        serde_json::from_value(json).unwrap()
    }

    fn gate(phase: Phase, off: &[usize]) -> Gate {
        let subject = Subject::Tap { name: NAME.into() };
        let mut gate = Gate::new(subject, "main", phase, Mode::Local, LAST);
        let steps = if phase == Phase::Prefill { 0..6 } else { 1..4 };
        gate.by_step = (0..6).map(|step| steps.contains(&step).then_some(0.0)).collect();
        gate.off = off.iter().copied().collect();
        gate
    }

    #[test]
    fn rows_off_are_counted_once_for_both_phases() {
        // Tokens 0 and 5 go to expert 3, tokens 2 and 4 to expert 2.
        let data = vec![3.0, 1.0, 2.0, 0.0, 2.0, 3.0];
        let tensor = DumpTensor { dtype: Dtype::F32, shape: vec![6, 1], data };
        let choices = RouterChoices::from([(NAME.to_owned(), tensor)]);
        let none = RouterChoices::new();
        for (prefill, decode, choices, want) in [
            // One token shared by two phases, and two tokens of different experts.
            (&[3_usize][..], &[1_usize][..], &choices, None),
            (&[0, 2], &[], &choices, None),
            (&[0], &[2], &choices, None),
            (&[1, 2], &[], &none, Some("side by side")),
            (&[0, 5], &[], &choices, Some("expert 3")),
            (&[0], &[3], &choices, Some("expert 3")),
            (&[0, 5], &[], &none, None),
            (&[0, 1, 2, 3], &[], &none, Some("4 rows")),
            (&[1, 3, 5], &[1, 3], &none, None),
            (&[0], &[1, 2, 3], &none, Some("4 rows")),
        ] {
            let mut gates = vec![gate(Phase::Prefill, prefill), gate(Phase::Decode, decode)];
            pool(Dtype::Bf16, &mut gates, &[prompt()], &[choices]);
            let finding = gates.iter().find_map(|gate| gate.finding.clone());
            match want {
                None => assert_eq!(finding, None, "{prefill:?} {decode:?}"),
                Some(word) => assert!(finding.unwrap().contains(word), "{prefill:?} {decode:?}"),
            }
            // The phase with more of the rows is blamed.
            let blamed = gates.iter().position(|gate| gate.finding.is_some());
            assert!(blamed.is_none_or(|phase| phase == usize::from(decode.len() > prefill.len())));
            let mut gates = vec![gate(Phase::Prefill, prefill)];
            pool(Dtype::F32, &mut gates, &[prompt()], &[choices]);
            assert_eq!(gates[0].finding, None, "f32 has bounds of its own");
        }
    }
}
