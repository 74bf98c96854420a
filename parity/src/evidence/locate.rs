//! Draws conclusions from the position at which a difference begins.

use crate::dump::Phase;
use crate::gate::{Gate, Subject, Verdict};

/// Returns hints on causes that the positions of correct and wrong rows rule out.
pub(super) fn ruled_out(gates: &[Gate]) -> Vec<String> {
    let prefill: Vec<&Gate> = judged(gates, Phase::Prefill).collect();
    let decode: Vec<&Gate> = judged(gates, Phase::Decode).collect();
    let decode_fails = decode.iter().any(|gate| gate.fails());
    let mut hints = Vec::new();
    if !prefill.iter().any(|gate| gate.fails()) {
        if !prefill.is_empty() && decode_fails {
            hints.push(
                "every row of prefill is right and decode is wrong: the weights and the graph are right; caches, states that \
                 prefill hands over, and positions of single steps are not"
                    .to_owned(),
            );
        }
        return hints;
    }
    if !decode.is_empty() && !decode_fails {
        hints.push(
            "generated tokens are right and rows of prompts are wrong: the model is right; how the server scores prompts is \
             not (a stale cache, or rows of other positions)"
                .to_owned(),
        );
        return hints;
    }
    let mut first = (0_usize, 0_usize);
    let mut later = (0_usize, 0_usize);
    let mut earliest = None::<usize>;
    for gate in prefill {
        for (position, _) in gate.by_step.iter().enumerate().filter(|(_, value)| value.is_some()) {
            let wrong = gate.off.contains(&position);
            let count = if position == 0 { &mut first } else { &mut later };
            count.0 += 1;
            count.1 += usize::from(wrong);
            if wrong {
                earliest = Some(earliest.map_or(position, |so_far| so_far.min(position)));
            }
        }
    }
    hints.extend(match (first, later, earliest) {
        ((1.., 0), (all, wrong), _) if wrong > 0 && 10 * wrong >= 9 * all => Some(
            "row 0 is right and the later ones are wrong: positions (theta, scaling, layout), attention or states; not the \
             embedding, norms, MLP, experts or head"
                .to_owned(),
        ),
        ((1.., 0), _, Some(begins)) => Some(format!(
            "row 0 is right, and the first wrong row is {begins}: what reaches over that many positions (a window, a kernel, \
             a scaling that begins there, a block of a cache) or depends on single tokens; not the embedding, norms or head"
        )),
        ((all, wrong), _, _) if all > 0 && wrong > 0 => Some(
            "row 0 is wrong, where attention sees one token and its position is 0: embedding, norms, value and output \
             projections, MLP, experts, head or the token before it (BOS); theta, scaling, windows and caches alone cannot \
             do that"
                .to_owned(),
        ),
        _ => None,
    });
    hints
}

/// Returns the judged rows of log-probabilities of a phase.
fn judged(gates: &[Gate], phase: Phase) -> impl Iterator<Item = &Gate> {
    gates.iter().filter(move |gate| {
        gate.phase == phase
            && gate.subject == Subject::Logprobs
            && !gate.bounds.is_empty()
            && gate.verdict != Verdict::Skip
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Bound, Mode};
    use crate::order::LAST;

    fn gate(phase: Phase, off: &[usize]) -> Gate {
        let mut gate = Gate::new(Subject::Logprobs, "main", phase, Mode::Cumulative, LAST);
        gate.by_step = vec![Some(0.1); 8];
        gate.off = off.iter().copied().collect();
        gate.bounds = vec![Bound { measure: "rms", value: 1.0, limit: 1.0 }];
        gate.verdict = if off.is_empty() { Verdict::Pass } else { Verdict::Fail };
        gate
    }

    #[test]
    fn places_rule_out_causes() {
        for (prefill, decode, words) in [
            (&[1, 2, 3, 4, 5, 6, 7][..], &[1][..], "positions (theta"),
            (&[5, 6, 7], &[1], "first wrong row is 5"),
            (&[0, 1, 2], &[1], "row 0 is wrong"),
            (&[], &[1], "every row of prefill is right"),
            (&[0], &[], "generated tokens are right"),
        ] {
            let hints = ruled_out(&[gate(Phase::Prefill, prefill), gate(Phase::Decode, decode)]);
            assert!(hints.iter().any(|hint| hint.contains(words)), "{words}: {hints:?}");
        }
        assert!(ruled_out(&[gate(Phase::Prefill, &[]), gate(Phase::Decode, &[])]).is_empty());
    }
}
