//! Compares types with those chosen by llama.cpp's quantize tool (fixtures/mix, made by `make.py`).

use std::collections::BTreeMap;
use std::path::Path;

use formats::codec::BlockType;
use formats::gguf::{Metadata, MetadataValue};
use onboard_conversion::mix::{
    self, MixFacts, MixTarget, MixTensor, Overrides, TensorType, TypeAssignment,
};
use serde_json::Value as Json;

/// Expands `ffn_up.weight 0-2,5` to `blk.0.ffn_up.weight` and so on. A name alone is one tensor.
fn names(text: &str) -> Vec<String> {
    let Some((name, layers)) = text.split_once(' ') else { return vec![text.into()] };
    let ranges = layers.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<usize>().expect("a layer");
        number(first)..=number(last)
    });
    ranges.map(|n| format!("blk.{n}.{name}")).collect()
}

fn keys(arch: &str, json: &Json) -> Metadata {
    let mut keys = Metadata::new();
    keys.set("general.architecture", arch);
    for (key, value) in json.as_object().expect("keys") {
        let value: Option<MetadataValue> = match value {
            Json::Number(x) => x.as_u64().map(|x| (x as u32).into()),
            Json::Array(list) => list
                .iter()
                .map(|x| Some(x.as_u64()? as u32))
                .collect::<Option<Vec<_>>>()
                .map(MetadataValue::from),
            _ => None,
        };
        if let Some(value) = value {
            keys.set(format!("{arch}.{key}"), value);
        }
    }
    keys
}

/// Runs a case such as `Q4_K_M --imatrix --pure`.
fn ask(
    case: &str,
    keys: &Metadata,
    tensors: &[MixTensor<'_>],
) -> Result<Vec<TypeAssignment>, mix::Error> {
    let mut words = case.split(' ');
    let target = MixTarget::parse(words.next().expect("a target"))?;
    let mut facts = MixFacts::read(keys, false).expect("good keys");
    let mut overrides = Overrides::default();
    while let Some(flag) = words.next() {
        let mut value = || words.next().expect("the flag's value");
        match flag {
            "--imatrix" => facts.imatrix = true,
            "--pure" => overrides.pure = true,
            "--leave-output-tensor" => overrides.leave_output = true,
            "--output-tensor-type" => overrides.output = Some(mix::parse_type(value())?),
            "--token-embedding-type" => overrides.embedding = Some(mix::parse_type(value())?),
            "--tensor-type" => overrides.tensors.push(TensorType::parse(value())?),
            other => panic!("{other}"),
        }
    }
    mix::assign(target, tensors, &facts, &overrides)
}

#[test]
fn types_are_those_of_the_reference() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/mix");
    let (mut files, mut cases, mut types) = (0, 0, 0);
    for entry in fs_err::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        files += 1;
        let json: Json = serde_json::from_str(&fs_err::read_to_string(&path).unwrap()).unwrap();
        let keys = keys(json["arch"].as_str().unwrap(), &json["keys"]);
        let mut shapes = BTreeMap::new();
        let mut kept = Vec::new();
        for row in json["tensors"].as_array().unwrap() {
            let shape = row[1].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize);
            let shape: Vec<usize> = shape.collect();
            for name in names(row[0].as_str().unwrap()) {
                kept.extend(row.get(2).map(|_| name.clone()));
                shapes.insert(name, shape.clone());
            }
        }
        // In an order other than the reference's.
        let tensors: Vec<MixTensor<'_>> = shapes
            .iter()
            .rev()
            .map(|(name, shape)| MixTensor { name, shape, base: BlockType::F32 })
            .collect();
        for row in json["cases"].as_array().unwrap() {
            let want = row["types"].as_object().map(|outcome| {
                let rest = outcome["rest"].as_str().unwrap();
                let mut want: BTreeMap<String, &str> = BTreeMap::new();
                want.extend(shapes.keys().map(|name| (name.clone(), rest)));
                want.extend(kept.iter().map(|name| (name.clone(), "kept")));
                for (ty, list) in outcome.iter().filter(|(_, list)| list.is_array()) {
                    for text in list.as_array().unwrap() {
                        want.extend(
                            names(text.as_str().unwrap()).into_iter().map(|name| (name, &**ty)),
                        );
                    }
                }
                want
            });
            for case in row["for"].as_array().unwrap() {
                cases += 1;
                let case = case.as_str().unwrap();
                let place = format!("{}: {case}", path.display());
                let found = ask(case, &keys, &tensors);
                let Some(want) = &want else {
                    assert!(found.is_err(), "{place} was refused: {}", row["types"]);
                    continue;
                };
                let found = found.unwrap_or_else(|error| panic!("{place}: {error}"));
                for (tensor, found) in tensors.iter().zip(found) {
                    types += 1;
                    let want = match want[tensor.name] {
                        "kept" => BlockType::F32,
                        name => BlockType::parse(name).unwrap(),
                    };
                    assert_eq!(found.ty, want, "{place}: {} ({})", tensor.name, found.why);
                }
            }
        }
    }
    assert!(files > 15 && cases > 1300 && types > 100_000, "{files} files, {cases}, {types}");
}

#[test]
fn reasons_are_those_of_the_table() {
    let facts =
        MixFacts { layers: 8, heads: 8, kv_heads: 2, arch: "x".into(), ..MixFacts::default() };
    let shape = [4, 256];
    let tensor = |name| MixTensor { name, shape: &shape, base: BlockType::Bf16 };
    let tensors = [
        tensor("blk.0.attn_v.weight"),
        tensor("blk.1.attn_v.weight"),
        tensor("blk.0.attn_q.weight"),
        tensor("blk.0.attn_q_norm.weight"),
        tensor("blk.0.ffn_down.weight"),
        tensor("token_embd.weight"),
        MixTensor { name: "blk.0.attn_k.weight", shape: &[4, 96], base: BlockType::Bf16 },
    ];
    let wanted = TensorType::parse("ffn_down=q2_k").unwrap();
    let overrides = Overrides { tensors: vec![wanted], ..Overrides::default() };
    let found =
        mix::assign(MixTarget::parse("q4_k_m").unwrap(), &tensors, &facts, &overrides).unwrap();
    let found: Vec<_> = found.iter().map(|one| (one.ty.name(), one.why.as_str())).collect();
    let want = [
        ("Q4_K", "default"),
        ("Q6_K", "attn_v: more"),
        ("Q4_K", "default"),
        ("BF16", "kept: _norm.weight"),
        ("Q2_K", "asked for: ffn_down"),
        ("Q6_K", "embedding as output"),
        ("Q5_0", "default; rows of 96 do not fit Q4_K"),
    ];
    assert_eq!(found, want);
}

#[test]
fn low_types_need_an_importance_matrix() {
    let facts = MixFacts { layers: 1, ..MixFacts::default() };
    let names = ["blk.0.attn_q.weight", "blk.0.attn_norm.weight", "token_embd.weight"];
    let tensors = names.map(|name| MixTensor { name, shape: &[4, 256], base: BlockType::F32 });
    let need = |name: &str| {
        let target = MixTarget::parse(name).expect("a target");
        let found = mix::assign(target, &tensors, &facts, &Overrides::default());
        let found = found.expect("types");
        found.iter().map(|one| one.needs_importance).collect::<Vec<_>>()
    };
    for name in
        ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "q2_k_s"]
    {
        assert_eq!(need(name), [true, false, false], "{name}");
    }
    for name in ["q2_k", "iq3_s", "iq4_xs", "q4_k_m", "tq1_0", "f16"] {
        assert_eq!(need(name), [false; 3], "{name}");
    }
}

#[test]
fn what_has_no_layer_is_named() {
    let facts = MixFacts { layers: 4, experts: 4, ..MixFacts::default() };
    let shape = [4, 256];
    for name in ["enc.ffn_down.weight", "blk.4.ffn_down.weight", "blk.x.ffn_down.weight"] {
        let tensors = [MixTensor { name, shape: &shape, base: BlockType::F32 }];
        let assign = |target: &str, overrides: &Overrides| {
            mix::assign(MixTarget::parse(target)?, &tensors, &facts, overrides)
        };
        let message = assign("q4_k_m", &Overrides::default()).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("N below 4"), "{message}");
        assert_eq!(assign("q8_0", &Overrides::default()).unwrap()[0].ty, BlockType::Q80);
        let tensors = vec![TensorType::parse("ffn_down=q6_k").unwrap()];
        let wanted = Overrides { tensors, ..Overrides::default() };
        assert_eq!(assign("q4_k_m", &wanted).unwrap()[0].ty, BlockType::Q6K);
    }
    let message = MixTarget::parse("iq3").unwrap_err().to_string();
    assert!(message.contains("there is no target `iq3`"), "{message}");
    let facts = MixFacts { experts: 0, ..facts };
    let tensors = [MixTensor { name: "a.weight", shape: &[4, 96], base: BlockType::F32 }];
    let q1 = MixTarget::parse("q1_0").unwrap();
    let message = mix::assign(q1, &tensors, &facts, &Overrides::default()).unwrap_err();
    assert!(message.to_string().contains("nothing stands in for Q1_0"), "{message}");
}
