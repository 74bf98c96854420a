use super::*;
use crate::dtype::DtypeRule;
use crate::text::MappedText;

fn weight(name: &str, shape: &[usize]) -> Weight {
    let at = MappedText::whole("t", "").span();
    Weight {
        name: name.into(),
        shape: shape.to_vec(),
        dtype: DtypeRule::Activation,
        integers: false,
        at,
    }
}

fn rule(model: &str, file: &str, steps: Vec<WeightStep>) -> TensorRule {
    let at = MappedText::whole("t", "").span();
    TensorRule {
        rule: WeightRule {
            disk: Pattern::parse(model).unwrap(),
            weight: Pattern::parse(file).unwrap(),
            steps,
            at,
        },
        ty: None,
    }
}

fn gguf(rules: Vec<TensorRule>) -> Gguf {
    Gguf {
        arch: "a".into(),
        pre: None,
        special: vec![],
        metadata: vec![],
        absent: IndexMap::new(),
        rules,
        wide: BTreeSet::new(),
        tensors: vec![],
        scalars: vec![("x.alpha".into(), Pattern::parse("l.{i}.alpha").unwrap())],
        drop: vec![Pattern::parse("*.unused").unwrap()],
        idle: vec![],
        doubts: vec![],
        ahead: 0,
        aliases: vec![],
        unlike: None,
    }
}

#[test]
fn weights_are_renamed_split_and_stacked() {
    let gguf = gguf(vec![
        rule("l.{i}.q.{weight|bias}", "blk.{i}.q.{weight|bias}", vec![]),
        rule(
            "l.{i}.kv",
            "blk.{i}.{k|v}",
            vec![WeightStep::Split {
                axis: 0,
                sizes: crate::weight_map::SplitSizes::Each(vec![1, 2]),
            }],
        ),
        rule("l.{i}.e.{e}.w", "blk.{i}.exps", vec![WeightStep::Stack(0)]),
    ]);
    let weights = [
        weight("l.0.q.weight", &[4, 2]),
        weight("l.0.q.bias", &[4]),
        weight("l.0.e.1.w", &[2, 2]),
        weight("l.0.kv", &[3]),
        weight("l.0.e.0.w", &[2, 2]),
        weight("l.0.unused", &[1]),
    ];
    let groups = gguf.groups(&weights).unwrap();
    let shown: Vec<_> = groups.iter().map(|g| format!("{:?} {:?}", g.weights, g.tensors)).collect();
    assert_eq!(
        shown,
        [
            r#"[0] [("blk.0.q.weight", [4, 2])]"#,
            r#"[1] [("blk.0.q.bias", [4])]"#,
            r#"[4, 2] [("blk.0.exps", [2, 2, 2])]"#,
            r#"[3] [("blk.0.k", [1]), ("blk.0.v", [2])]"#,
        ]
    );
}

#[test]
fn everything_in_the_way_is_named() {
    let gguf = gguf(vec![rule("a.{i}", "x", vec![]), rule("b", "{y|z}", vec![])]);
    let weights = [weight("a.1", &[1]), weight("a.2", &[1]), weight("b", &[2]), weight("c", &[1])];
    let faults = faults_of(&gguf, &weights).join("\n");
    // One line for all layers.
    let layers = ["d.0.w", "d.1.w", "d.2.w"].map(|name| weight(name, &[1]));
    let homeless = faults_of(&gguf, &layers);
    assert_eq!(homeless.len(), 1, "{homeless:?}");
    assert!(
        homeless[0].starts_with("weight `d.0.w` has no place in the file, nor have 2 of other")
    );
    for part in ["gives 2 tensors", "give 1 tensors, and its pattern names 2", "`c` has no place"] {
        assert!(faults.contains(part) || part.starts_with("gives"), "{faults}");
    }
}

fn faults_of(gguf: &Gguf, weights: &[Weight]) -> Vec<String> {
    gguf.groups(weights).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn numbers_of_weights_go_into_keys_and_not_into_tensors() {
    let gguf = gguf(vec![rule("l.{i}.w", "blk.{i}.w", vec![])]);
    let weights = [
        weight("l.10.alpha", &[1]),
        weight("l.2.w", &[2]),
        weight("l.2.alpha", &[1]),
        weight("l.9.alpha", &[1]),
    ];
    assert_eq!(gguf.groups(&weights).unwrap().len(), 1);
    assert_eq!(gguf.scalar_weights(&weights), [("x.alpha", vec![2, 3, 0])]);
}

#[test]
fn a_list_stands_for_a_number_where_it_has_one_item_for_each_layer() {
    let mut gguf = gguf(vec![]);
    gguf.metadata = vec![("a.heads".into(), Scalar::Int(2))];
    for (items, layers, faults) in [(1, 3, 0), (3, 3, 0), (2, 3, 1), (5, 3, 1)] {
        let mut keys = KeyTree::default();
        keys.add("block_count", Scalar::Int(layers));
        keys.add("heads", Scalar::List(vec![Scalar::Int(2); items]));
        let (tensors, companions) = Default::default();
        let header = FileMetadata { keys: keys.into_config("f.gguf"), tensors, companions };
        let differences = key_differences(&gguf, &header);
        assert_eq!(differences.len(), faults, "{items} of {layers}: {differences:?}");
    }
}
