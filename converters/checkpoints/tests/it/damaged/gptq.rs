//! Invalid GPTQ checkpoints.

use formats::safetensors::FileDtype::{F16, I32, I64};
use serde_json::{Value, json};

use super::{DamageCase, SAME, Tensors, opened, patch, refused, zeros};

/// Tensors that are missing, or do not have the form that the section and the others imply.
const TENSORS: [DamageCase; 13] = [
    (
        "no scales",
        None,
        |t| drop(t.remove("m.scales")),
        &["`m.qweight`", "model.safetensors", "no `m.scales` beside it", "download it again"],
    ),
    ("no zeros", None, |t| drop(t.remove("m.qzeros")), &["no `m.qzeros` beside it"]),
    (
        "a group too far",
        None,
        |t| t.get_mut("m.g_idx").unwrap().2[60] = 2,
        &["`m.g_idx`", "group 2", "groups from 0 to 1"],
    ),
    (
        "a group below",
        None,
        |t| t.get_mut("m.g_idx").unwrap().2[0..4].fill(0xff),
        &["`m.g_idx`", "group -1"],
    ),
    (
        "too few groups",
        None,
        |t| drop(t.insert("m.g_idx", zeros(I32, &[8]))),
        &["`m.qweight`", "2 rows", "1 rows for the 8 inputs"],
    ),
    ("no inputs", None, |t| drop(t.insert("m.g_idx", zeros(I32, &[0]))), &["0 inputs"]),
    (
        "wide groups",
        None,
        |t| drop(t.insert("m.g_idx", zeros(I64, &[16]))),
        &["`m.g_idx`", "[16] of I64", "[16] of I32"],
    ),
    (
        "scales of more groups",
        None,
        |t| drop(t.insert("m.scales", zeros(F16, &[3, 8]))),
        &["`m.scales`", "[3, 8] of F16", "[2, 8] of F16, BF16, F32"],
    ),
    (
        "scales of a row",
        None,
        |t| drop(t.insert("m.scales", zeros(F16, &[16]))),
        &["`m.scales`", "[16]"],
    ),
    (
        "zeros of more outputs",
        None,
        |t| drop(t.insert("m.qzeros", zeros(I32, &[2, 2]))),
        &["`m.qzeros`", "[2, 2]", "[2, 1] of I32"],
    ),
    (
        "codes of 16 bits",
        None,
        |t| drop(t.insert("m.qweight", zeros(F16, &[2, 8]))),
        &["`m.qweight`", "F16", "rows and columns of I32"],
    ),
    (
        "no codes",
        None,
        |t| drop(t.insert("m.qweight", zeros(I32, &[0, 8]))),
        &["`m.qweight`", "[0, 8]"],
    ),
    (
        "two weights",
        None,
        |t| drop(t.insert("m.weight", zeros(F16, &[8, 16]))),
        &["`m.qweight`", "and so has `m.weight`"],
    ),
];

/// Sections that are not valid, or do not describe the tensors.
fn sections() -> [DamageCase; 10] {
    [
        ("other bits", Some(patch("/bits", json!(8))), SAME, &["`m.qweight`", "2 rows", "4 rows"]),
        ("too many bits", Some(patch("/bits", json!(16))), SAME, &["`bits`", "16", "2 to 8"]),
        (
            "groups of nothing",
            Some(patch("/group_size", json!(0))),
            SAME,
            &["`group_size`", "is 0"],
        ),
        ("groups of less", Some(patch("/group_size", json!(-2))), SAME, &["`group_size`", "is -2"]),
        ("groups of most", Some(patch("/group_size", json!(u64::MAX))), SAME, &["`group_size`"]),
        (
            "other groups",
            Some(patch("/group_size", json!(4))),
            SAME,
            &["`m.scales`", "[2, 8]", "[4, 8]"],
        ),
        (
            "a layout of its own",
            Some(patch("/checkpoint_format", json!("marlin"))),
            SAME,
            &["`checkpoint_format`", "marlin", "gptq, gptq_v2 or gptq_p"],
        ),
        (
            "not quantized",
            Some(patch("/dynamic", json!({"-:m": {}}))),
            SAME,
            &["`m.qweight`", "`dynamic`"],
        ),
        (
            "no pattern",
            Some(patch("/dynamic", json!({"+:(": {}}))),
            SAME,
            &["`dynamic`", "a regular expression"],
        ),
        (
            "bits of its own",
            Some(patch("/dynamic", json!({"+:m$": {"bits": 8}}))),
            SAME,
            &["2 rows", "8 bits each"],
        ),
    ]
}

/// Returns the section of a checkpoint that is valid.
fn valid_section() -> Value {
    json!({"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq", "dynamic": {}})
}

/// Returns the tensors of a checkpoint that is valid.
fn valid_tensors() -> Tensors {
    Tensors::from([
        ("m.qweight", zeros(I32, &[2, 8])),
        ("m.qzeros", zeros(I32, &[2, 1])),
        ("m.scales", zeros(F16, &[2, 8])),
        ("m.g_idx", zeros(I32, &[16])),
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

#[test]
fn a_rule_of_another_module_does_not_apply() {
    let mut section = valid_section();
    section["dynamic"] = json!({"+:mm": {"bits": 8}, "-:.*n": {}});
    assert_eq!(opened(&section, &valid_tensors()).unwrap(), ["m.weight"]);
}
