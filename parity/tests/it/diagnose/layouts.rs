//! Weights whose numbers an engine reads in another order, or with other steps.

use onboard_parity::edit::Change;
use registry::graph::WeightId;
use registry::weight_map::{SplitSizes, WeightStep};

use super::{Fixture, assert_named, fixture};

/// Steps of a rule, as a spec lists them.
fn steps(axis: usize, sizes: &[usize]) -> Vec<WeightStep> {
    let first = axis + sizes.len() - 2;
    let mut steps = vec![
        WeightStep::Unflatten { axis, sizes: sizes.to_vec() },
        WeightStep::Transpose(first, first + 1),
    ];
    steps.extend((1..sizes.len()).map(|_| WeightStep::Flatten(axis)));
    steps
}

impl Fixture {
    /// Reads the weights whose names contain these words with more steps.
    pub(super) fn layout(&self, names: &[(&str, Vec<WeightStep>)]) -> Change {
        let weights = self.model.graph.weights.iter().enumerate();
        let changed = weights.filter_map(|(n, weight)| {
            let (_, steps) = names.iter().find(|(words, _)| weight.name.contains(words))?;
            Some((vec![WeightId(n)], steps.clone()))
        });
        Change::WeightSteps(changed.collect())
    }
}

#[test]
fn weights_in_another_layout_are_named() {
    let llama = fixture("llama");
    for (change, words) in [
        // Pairs of a rotation side by side.
        (llama.layout(&[("q_proj", steps(0, &[4, 2, 4]))]), "q_proj.weight` read with `do: [unf"),
        (llama.layout(&[("v_proj", steps(0, &[2, 8]))]), "v_proj.weight` read with"),
        (llama.layout(&[("o_proj", vec![WeightStep::Transpose(0, 1)])]), "do: [transpose(0, 1)]"),
        (
            llama.layout(&[("q_proj", heads_apart(0)), ("o_proj", heads_apart(1))]),
            "query heads that share a key",
        ),
    ] {
        assert_named(&llama.mistaken(&change), words);
        // The rows of logits say it as well, if the model keeps its likeliest tokens.
        let Some(diagnosis) = llama.foreign(&change, None) else { continue };
        assert_named(&diagnosis, words);
    }
    let oss = fixture("gpt_oss");
    let rules = oss.model.rules.iter().enumerate();
    let blocks = rules.filter_map(|(number, rule)| {
        Some((number, rule.steps.iter().position(|step: &WeightStep| {
            matches!(step, WeightStep::Unflatten { axis: 0, sizes } if *sizes == [0, 2])
        })?, steps(0, &[0, 2])))
    });
    let change = Change::RuleSteps(blocks.collect());
    assert_named(&oss.mistaken(&change), "2 parts of `model.layers.{i}.mlp.experts.gate_up_proj");
    let experts = oss.nodes("experts");
    let swapped = experts.iter().flat_map(|n| {
        let roles = oss.model.graph.nodes[*n].weights.keys();
        let gates = roles.map(|role| (*n, role.clone(), role.replace("gate", "up")));
        gates.filter(|(_, gate, up)| gate != up)
    });
    let change = Change::Roles(swapped.collect());
    assert_named(&oss.mistaken(&change), "`gate` and `up` of `experts` swapped");
    // Parts of unequal sizes for each head.
    let next = fixture("qwen3_next");
    let parts = vec![
        WeightStep::Split { axis: 0, sizes: SplitSizes::Each(vec![16, 16, 40, 40]) },
        WeightStep::Unflatten { axis: 0, sizes: vec![2, 0] },
        WeightStep::Concat(1),
        WeightStep::Flatten(0),
    ];
    let change = next.layout(&[("in_proj_qkvz", parts)]);
    assert_named(&next.mistaken(&change), "split(1, [8, 8, 20, 20])");
}

/// Four heads of eight numbers, of which two share a key.
fn heads_apart(axis: usize) -> Vec<WeightStep> {
    let mut steps = vec![WeightStep::Unflatten { axis, sizes: vec![2, 2, 8] }];
    steps.push(WeightStep::Transpose(axis, axis + 1));
    steps.extend([WeightStep::Flatten(axis), WeightStep::Flatten(axis)]);
    steps
}

#[test]
fn numbers_of_vectors_that_are_read_otherwise_are_named() {
    let nemotron = fixture("nemotron_h");
    for (change, words) in [
        (step_for(&nemotron, "mixer.norm.weight", WeightStep::Add(1.0)), "add(-1)"),
        (step_for(&nemotron, "mixer.A_log", WeightStep::Mul(-1.0)), "mul(-1)"),
    ] {
        assert_named(&nemotron.mistaken(&change), words);
    }
    for (change, words) in [
        (step_for(&nemotron, "mixer.D", WeightStep::Mul(0.0)), "mixer.D` read with `do: [mul(0)]`"),
        (
            step_for(&nemotron, "mixer.dt_bias", WeightStep::Mul(0.0)),
            "mixer.dt_bias` read with `do: [mul(0)]`",
        ),
        (step_for(&nemotron, "conv1d.bias", WeightStep::Mul(0.0)), "`causal_conv` without `bias`"),
    ] {
        assert_named(&nemotron.foreign(&change, None).unwrap(), words);
    }
    // Experts whose biases are one tensor of the checkpoint.
    let oss = fixture("gpt_oss");
    let change = oss.layout(&[("down_proj.bias", vec![WeightStep::Mul(0.0)])]);
    assert_named(&oss.foreign(&change, None).unwrap(), "down_proj.bias` read with `do: [mul(0)]`");
}

fn step_for(fixture: &Fixture, name: &str, step: WeightStep) -> Change {
    fixture.layout(&[(name, vec![step])])
}
