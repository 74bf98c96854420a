use std::collections::BTreeMap;
use std::sync::Arc;

use registry::diag::{self, Span};
use registry::dtype::DtypeRule;
use registry::weight_map::{Pattern, SplitSizes, WeightStep};

use super::*;
use formats::safetensors::{TensorSpec, Writer};

fn span() -> Span {
    let source = Arc::new(diag::SourceText { path: String::new(), text: String::new() });
    Span { source, start: 0, end: 0 }
}

fn wanted(weights: &[(&str, &[usize])]) -> Vec<Weight> {
    weights
        .iter()
        .map(|&(name, shape): &(&str, &[usize])| Weight {
            name: name.into(),
            shape: shape.into(),
            dtype: DtypeRule::Activation,
            integers: false,
            at: span(),
        })
        .collect()
}

fn rule(disk: &str, weight: &str, steps: &[WeightStep]) -> WeightRule {
    WeightRule {
        disk: Pattern { text: disk.into() },
        weight: Pattern { text: weight.into() },
        steps: steps.to_vec(),
        at: span(),
    }
}

/// Returns a checkpoint whose bytes count up from 0 in each tensor.
fn checkpoint(tensors: &[(&str, &[usize])]) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.safetensors");
    let declared: Vec<TensorSpec> = tensors
        .iter()
        .map(|&(name, shape)| TensorSpec {
            name: name.into(),
            dtype: FileDtype::U8,
            shape: shape.into(),
        })
        .collect();
    let mut writer = Writer::create(&path, &BTreeMap::new(), &declared).expect("declared well");
    for tensor in &declared {
        let bytes: Vec<u8> = (0..tensor.shape.iter().product::<usize>() as u8).collect();
        writer.write(&tensor.name, &bytes).expect("in order");
    }
    writer.finish().expect("complete");
    let checkpoint = Checkpoint::open(&path).expect("well-formed");
    (dir, checkpoint)
}

#[test]
fn weights_of_the_same_name_are_views() {
    let (_dir, checkpoint) = checkpoint(&[("a", &[2, 3]), ("b", &[4]), ("c", &[1])]);
    let weights =
        CheckpointWeights::new(checkpoint, &wanted(&[("b", &[4]), ("a", &[2, 3])])).unwrap();
    let view = weights.view(WeightId(1)).unwrap();
    assert_eq!((view.shape, view.bytes), (&[2, 3][..], &[0, 1, 2, 3, 4, 5][..]));
    assert!(
        matches!(&weights.found(WeightId(0)).source, WeightLocation::View { tensor, .. } if tensor == "b")
    );
    assert_eq!(weights.unused().collect::<Vec<_>>(), ["c"]);
    assert_eq!(weights.checkpoint().tensors().len(), 3);
}

#[test]
fn what_is_missing_or_misshapen_is_named() {
    let message = fault_of(&[("b", &[4])], &[]);
    assert!(message.contains("has no tensor `b`; expected shape [4]"), "{message}");
    let message = fault_of(&[("a", &[3, 2])], &[]);
    assert!(message.contains("`a`") && message.contains("[2, 3]; the spec expects [3, 2]"));
    let rules = [rule("x.{gate|up}", "x.both", &[WeightStep::Concat(0)])];
    let message = fault_of(&[("x.both", &[2])], &rules);
    assert!(message.contains("no tensor `x.up`, which weight `x.both` is made of"), "{message}");
    let message = fault_of(&[("q", &[2, 3])], &[rule("a", "q", &[WeightStep::Squeeze(0)])]);
    assert!(message.contains("rule `a -> q` cannot make weight `q`"), "{message}");
    let message = fault_of(&[("a.k", &[2, 3])], &[rule("a", "a.{q|k}", &[])]);
    assert!(message.contains("give 1 tensors, and this is number 2"), "{message}");
}

fn fault_of(weights: &[(&str, &[usize])], rules: &[WeightRule]) -> String {
    let (_dir, checkpoint) = checkpoint(&[("a", &[2, 3]), ("x.gate", &[1])]);
    CheckpointWeights::with_rules(checkpoint, &wanted(weights), rules).unwrap_err().to_string()
}

#[test]
fn rules_split_join_and_rename() {
    let tensors: [(&str, &[usize]); 5] =
        [("qkv", &[4, 2]), ("e.0", &[2]), ("e.1", &[3]), ("h.0.n", &[1]), ("t", &[2, 3])];
    let (_dir, checkpoint) = checkpoint(&tensors);
    let sizes = SplitSizes::Each(vec![2, 1, 1]);
    let rules = [
        rule("old.*", "new.*", &[]),
        rule("h.{i}.n", "new.{i}.norm", &[]),
        rule("qkv", "{q|k|v}", &[WeightStep::Split { axis: 0, sizes }]),
        rule("e.{n}", "e", &[WeightStep::Concat(0)]),
        rule("t", "t", &[WeightStep::Transpose(0, 1)]),
    ];
    let names: [(&str, &[usize]); 6] = [
        ("q", &[2, 2]),
        ("k", &[1, 2]),
        ("v", &[1, 2]),
        ("e", &[5]),
        ("new.0.norm", &[1]),
        ("t", &[3, 2]),
    ];
    let weights = CheckpointWeights::with_rules(checkpoint, &wanted(&names), &rules).unwrap();
    let bytes: Vec<&[u8]> =
        (0..names.len()).map(|id| weights.view(WeightId(id)).unwrap().bytes).collect();
    let expected: [&[u8]; 6] =
        [&[0, 1, 2, 3], &[4, 5], &[6, 7], &[0, 1, 0, 1, 2], &[0], &[0, 3, 1, 4, 2, 5]];
    assert_eq!(bytes, expected);
    assert_eq!(
        [0, 1, 2, 3, 4, 5]
            .map(|id| matches!(weights.found(WeightId(id)).source, WeightLocation::View { .. })),
        [true, true, true, false, true, false]
    );
    // The transposed tensor is of bytes, which are no numbers.
    assert!((0..6).all(|id| weights.strided(WeightId(id)).unwrap().is_none()));
    assert_eq!(weights.unused().count(), 0);
}

#[test]
fn renamed_and_cut_tensors_stay_in_the_memory_map() {
    let (_dir, checkpoint) = checkpoint(&[("qkv", &[4, 2]), ("old", &[3]), ("t", &[2, 3])]);
    let rules = [
        rule(
            "qkv",
            "{q|kv}",
            &[WeightStep::Split { axis: 0, sizes: SplitSizes::Each(vec![1, 3]) }],
        ),
        rule("old", "new", &[]),
        rule("t", "t.{n}", &[WeightStep::Unstack(0)]),
    ];
    let names: [(&str, &[usize]); 4] =
        [("q", &[1, 2]), ("kv", &[3, 2]), ("new", &[3]), ("t.1", &[3])];
    let weights = CheckpointWeights::with_rules(checkpoint, &wanted(&names), &rules).unwrap();
    for (id, (tensor, begin)) in
        [("qkv", 0), ("qkv", 2), ("old", 0), ("t", 3)].into_iter().enumerate()
    {
        let tensor_bytes = weights.checkpoint().bytes(tensor).unwrap();
        let view = weights.view(WeightId(id)).unwrap().bytes;
        assert_eq!(view.as_ptr(), tensor_bytes[begin..].as_ptr(), "{}", names[id].0);
    }
}
