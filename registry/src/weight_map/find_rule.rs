//! Choice of the rule that makes a weight from the tensors of a checkpoint.

use crate::graph::Weight;

use super::{GatheredTensors, WeightRule, gather, shapes};

/// Returns the first rule about a weight that has any of its tensors, and the tensors it takes. The layout of
/// tensors differs between checkpoints: a rule that gives the shape of the weight goes before those that do
/// not.
pub fn find_rule<'n, I: Iterator<Item = &'n str>>(
    rules: &[WeightRule],
    weight: &Weight,
    names: impl Fn(&str) -> I,
    shape: impl Fn(&str) -> Option<Vec<usize>>,
) -> Option<(usize, GatheredTensors)> {
    let mut candidates: Vec<_> = rules
        .iter()
        .enumerate()
        .filter_map(|(number, rule): (usize, &WeightRule)| {
            let gathered = gather(rule, &weight.name, &names)?;
            gathered.names.iter().any(|name| shape(name).is_some()).then_some((number, gathered))
        })
        .collect();
    // What a stack of experts becomes is long to work out: only where there is a choice.
    let fitting = if candidates.len() > 1 {
        candidates.iter().position(|(number, gathered): &(usize, GatheredTensors)| {
            let inputs = gathered.names.iter().map(|name| shape(name)).collect::<Option<Vec<_>>>();
            let outputs = inputs.and_then(|inputs| shapes(&rules[*number].steps, inputs).ok());
            outputs.is_some_and(|outputs| outputs.get(gathered.output) == Some(&weight.shape))
        })
    } else {
        None
    };
    let best = fitting.unwrap_or(0);
    (best < candidates.len()).then(|| candidates.swap_remove(best))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dtype::DtypeRule;
    use crate::text::MappedText;
    use crate::weight_map::{Pattern, WeightStep, names_with_prefix};

    #[test]
    fn the_rule_that_gives_the_shape_is_taken() {
        let rules = [
            rule("gone", vec![WeightStep::Unstack(0)]),
            rule("w", vec![WeightStep::Unstack(0)]),
            rule("w", vec![WeightStep::Transpose(1, 2), WeightStep::Unstack(0)]),
        ];
        let weight = Weight {
            name: "w.1".to_owned(),
            shape: vec![4, 3],
            dtype: DtypeRule::Activation,
            integers: false,
            at: MappedText::whole("t", "").span(),
        };
        for (shape, expected) in [
            (vec![2, 4, 3], Some(1)),
            (vec![2, 3, 4], Some(2)),
            // If none fits, the first one gives the error.
            (vec![2, 5, 5], Some(1)),
        ] {
            let disk = BTreeMap::from([("w".to_owned(), shape)]);
            let chosen = find_rule(
                &rules,
                &weight,
                |text: &str| names_with_prefix(&disk, text),
                |name| disk.get(name).cloned(),
            );
            assert_eq!(chosen.map(|(number, _)| number), expected);
        }
    }

    fn rule(disk: &str, steps: Vec<WeightStep>) -> WeightRule {
        WeightRule {
            disk: Pattern::parse(disk).unwrap(),
            weight: Pattern::parse("w.{e}").unwrap(),
            steps,
            at: MappedText::whole("t", "").span(),
        }
    }
}
