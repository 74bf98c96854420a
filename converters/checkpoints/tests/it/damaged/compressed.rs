//! Invalid compressed-tensors checkpoints.

use formats::safetensors::FileDtype::{Bf16, I8, I32, I64};
use serde_json::{Value, json};

use super::{DamageCase, SAME, Tensors, numbers, patch, refused, zeros};

/// Tensors that are missing, or do not have the form that the section and the others imply.
const TENSORS: [DamageCase; 14] = [
    (
        "no shape",
        None,
        |t| drop(t.remove("m.weight_shape")),
        &["`m.weight_packed`", "no `m.weight_shape` beside it"],
    ),
    (
        "other rows",
        None,
        |t| drop(t.insert("m.weight_shape", numbers(I64, [9, 16]))),
        &["`m.weight_shape`", "[9, 16]", "[8, columns]"],
    ),
    (
        "more columns",
        None,
        |t| drop(t.insert("m.weight_shape", numbers(I64, [8, i64::MAX]))),
        &["`m.weight_shape`", "2 words"],
    ),
    (
        "columns below",
        None,
        |t| drop(t.insert("m.weight_shape", numbers(I32, [8, -16]))),
        &["[8, -16]"],
    ),
    (
        "one side",
        None,
        |t| drop(t.insert("m.weight_shape", numbers(I64, [8]))),
        &["`m.weight_shape`", "[8] of I64"],
    ),
    ("many sides", None, |t| drop(t.insert("m.weight_shape", zeros(I64, &[4096]))), &["[0, 0, 0]"]),
    ("no scales", None, |t| drop(t.remove("m.weight_scale")), &["no `m.weight_scale` beside it"]),
    (
        "scales of a group",
        None,
        |t| drop(t.insert("m.weight_scale", zeros(Bf16, &[8, 1]))),
        &["`m.weight_scale`", "[8, 1]", "[8, 2]"],
    ),
    (
        "whole scales",
        None,
        |t| drop(t.insert("m.weight_scale", zeros(I8, &[8, 2]))),
        &["`m.weight_scale`", "I8"],
    ),
    (
        "no zeros",
        None,
        |t| drop(t.remove("m.weight_zero_point")),
        &["no `m.weight_zero_point` beside it"],
    ),
    (
        "zeros of more rows",
        None,
        |t| drop(t.insert("m.weight_zero_point", zeros(I32, &[2, 2]))),
        &["`m.weight_zero_point`", "[1, 2]"],
    ),
    (
        "a group too far",
        None,
        |t| t.get_mut("m.weight_g_idx").unwrap().2[3] = 1,
        &["`m.weight_g_idx`", "groups from 0 to 1"],
    ),
    (
        "too few groups",
        None,
        |t| drop(t.insert("m.weight_g_idx", zeros(I32, &[15]))),
        &["`m.weight_g_idx`", "[15]", "[16]"],
    ),
    (
        "two weights",
        None,
        |t| drop(t.insert("m.weight", zeros(Bf16, &[8, 16]))),
        &["and so has `m.weight`"],
    ),
];

/// Sections that are not valid, or do not describe the tensors.
fn sections() -> [DamageCase; 10] {
    [
        (
            "groups of nothing",
            Some(patch("/config_groups/group_0/weights/group_size", json!(0))),
            SAME,
            &["`config_groups.group_0.weights.group_size`", "is 0"],
        ),
        (
            "another strategy",
            Some(patch("/config_groups/group_0/weights/strategy", json!("token"))),
            SAME,
            &["weights.strategy`", "tensor, channel, group or block"],
        ),
        (
            "no blocks",
            Some(patch("/config_groups/group_0/weights/strategy", json!("block"))),
            SAME,
            &["block_structure`", "nothing"],
        ),
        (
            "no bits",
            Some(patch("/config_groups/group_0/weights/num_bits", json!(0))),
            SAME,
            &["weights.num_bits`", "1 to 8"],
        ),
        (
            "other bits",
            Some(patch("/config_groups/group_0/weights/num_bits", json!(8))),
            SAME,
            &["`m.weight_shape`", "8 bits each"],
        ),
        (
            "a scheme's name",
            Some(patch("/config_groups/group_0", json!(["Linear"]))),
            SAME,
            &["`config_groups.group_0`", "in full"],
        ),
        (
            "ignored",
            Some(patch("/ignore", json!(["re:m"]))),
            SAME,
            &["`m.weight_packed`", "`ignore`"],
        ),
        (
            "not meant",
            Some(patch("/config_groups/group_0/targets", json!(["re:.*n"]))),
            SAME,
            &["`m.weight_packed`", "`config_groups`"],
        ),
        (
            "no pattern",
            Some(patch("/ignore", json!(["re:[["]))),
            SAME,
            &["`ignore`", "a regular expression"],
        ),
        (
            "floats",
            Some(patch("/config_groups/group_0/weights/type", json!("float"))),
            SAME,
            &["`m.weight_packed`", "`config_groups`"],
        ),
    ]
}

/// Returns the section of a checkpoint that is valid.
fn valid_section() -> Value {
    let weights = json!({"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group", "group_size": 8});
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": [],
                      "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
}

/// Returns the tensors of a checkpoint that is valid.
fn valid_tensors() -> Tensors {
    Tensors::from([
        ("m.weight_packed", zeros(I32, &[8, 2])),
        ("m.weight_shape", numbers(I64, [8, 16])),
        ("m.weight_scale", zeros(Bf16, &[8, 2])),
        ("m.weight_zero_point", zeros(I32, &[1, 2])),
        ("m.weight_g_idx", zeros(I32, &[16])),
    ])
}

#[test]
fn damaged_tensors_are_refused() {
    refused(&valid_section(), &valid_tensors(), &TENSORS);
}

#[test]
fn damaged_sections_are_refused() {
    refused(&valid_section(), &valid_tensors(), &sections());
}
