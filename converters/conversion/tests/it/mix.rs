//! Types chosen for single tensors.

use formats::codec::BlockType;
use onboard_conversion::mix::{self, MixFacts, MixTarget, MixTensor, Overrides, TensorType};

#[test]
fn reasons_are_those_of_the_table() {
    let facts =
        MixFacts { layers: 8, heads: 8, kv_heads: 2, arch: "x".into(), ..MixFacts::default() };
    let tensors = [
        bf16_tensor("blk.0.attn_v.weight"),
        bf16_tensor("blk.1.attn_v.weight"),
        bf16_tensor("blk.0.attn_q.weight"),
        bf16_tensor("blk.0.attn_q_norm.weight"),
        bf16_tensor("blk.0.ffn_down.weight"),
        bf16_tensor("token_embd.weight"),
        MixTensor { name: "blk.0.attn_k.weight", shape: &[4, 96], base: BlockType::Bf16 },
    ];
    let down = TensorType::parse("ffn_down=q2_k").unwrap();
    let overrides = Overrides { tensors: vec![down], ..Overrides::default() };
    let choices =
        mix::assign(MixTarget::parse("q4_k_m").unwrap(), &tensors, &facts, &overrides).unwrap();
    let reasons: Vec<_> = choices.iter().map(|one| (one.ty.name(), one.why.as_str())).collect();
    let want = [
        ("Q4_K", "default"),
        ("Q6_K", "attn_v: more"),
        ("Q4_K", "default"),
        ("BF16", "kept: _norm.weight"),
        ("Q2_K", "asked for: ffn_down"),
        ("Q6_K", "embedding as output"),
        ("Q5_0", "default; rows of 96 do not fit Q4_K"),
    ];
    assert_eq!(reasons, want);
}

fn bf16_tensor(name: &str) -> MixTensor<'_> {
    MixTensor { name, shape: &[4, 256], base: BlockType::Bf16 }
}

#[test]
fn low_types_need_an_importance_matrix() {
    let facts = MixFacts { layers: 1, ..MixFacts::default() };
    let names = ["blk.0.attn_q.weight", "blk.0.attn_norm.weight", "token_embd.weight"];
    let tensors = names.map(|name| MixTensor { name, shape: &[4, 256], base: BlockType::F32 });
    for name in
        ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "q2_k_s"]
    {
        assert_eq!(needs_of(name, &tensors, &facts), [true, false, false], "{name}");
    }
    for name in ["q2_k", "iq3_s", "iq4_xs", "q4_k_m", "tq1_0", "f16"] {
        assert_eq!(needs_of(name, &tensors, &facts), [false; 3], "{name}");
    }
}

fn needs_of(name: &str, tensors: &[MixTensor<'_>], facts: &MixFacts) -> Vec<bool> {
    let target = MixTarget::parse(name).expect("a target");
    let choices = mix::assign(target, tensors, facts, &Overrides::default());
    let choices = choices.expect("types");
    choices.iter().map(|choice| choice.needs_importance).collect()
}

#[test]
fn what_has_no_layer_is_named() {
    let facts = MixFacts { layers: 4, experts: 4, ..MixFacts::default() };
    let shape = [4, 256];
    for name in ["enc.ffn_down.weight", "blk.4.ffn_down.weight", "blk.x.ffn_down.weight"] {
        let tensors = [MixTensor { name, shape: &shape, base: BlockType::F32 }];
        let q4 = MixTarget::parse("q4_k_m").unwrap();
        let q8 = MixTarget::parse("q8_0").unwrap();
        let none = Overrides::default();
        let message = mix::assign(q4, &tensors, &facts, &none).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("N below 4"), "{message}");
        assert_eq!(mix::assign(q8, &tensors, &facts, &none).unwrap()[0].ty, BlockType::Q80);
        let types = vec![TensorType::parse("ffn_down=q6_k").unwrap()];
        let overrides = Overrides { tensors: types, ..Overrides::default() };
        let choices = mix::assign(q4, &tensors, &facts, &overrides).unwrap();
        assert_eq!(choices[0].ty, BlockType::Q6K);
    }
    let message = MixTarget::parse("iq3").unwrap_err().to_string();
    assert!(message.contains("there is no target `iq3`"), "{message}");
    let facts = MixFacts { experts: 0, ..facts };
    let tensors = [MixTensor { name: "a.weight", shape: &[4, 96], base: BlockType::F32 }];
    let q1 = MixTarget::parse("q1_0").unwrap();
    let message = mix::assign(q1, &tensors, &facts, &Overrides::default()).unwrap_err();
    assert!(message.to_string().contains("nothing stands in for Q1_0"), "{message}");
}
