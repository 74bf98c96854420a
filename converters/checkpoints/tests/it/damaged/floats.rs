//! Invalid checkpoints of 8-bit floating-point codes, which could be taken for values.

use formats::safetensors::FileDtype::{F8E4m3, F32, U8};
use serde_json::{Value, json};

use super::{SAME, Tensors, refused, zeros};

#[test]
fn codes_are_never_taken_for_numbers() {
    let section = json!({"quant_method": "fp8", "transform_config": null});
    let tensors = Tensors::from([
        ("m.weight", zeros(F8E4m3, &[16, 64])),
        ("m.weight_scale", zeros(F32, &[16, 1])),
    ]);
    refused(
        &section,
        &tensors,
        &[
            (
                "scales across",
                None,
                |t| drop(t.insert("m.weight_scale", zeros(F32, &[1, 16]))),
                &["`m.weight`", "`m.weight_scale`", "[1, 16]", "one scale, one for each row"],
            ),
            (
                "bytes of other groups",
                None,
                |t| drop(t.insert("m.weight_scale", zeros(U8, &[16, 1]))),
                &["`m.weight_scale`", "U8", "[16, 1]"],
            ),
            (
                "three axes",
                None,
                |t| drop(t.insert("m.weight", zeros(F8E4m3, &[2, 8, 64]))),
                &["[2, 8, 64]"],
            ),
            (
                "nothing said",
                Some(json!({ "": null })),
                SAME,
                &["codes of 8 bits", "a `quantization_config` in config.json"],
            ),
            (
                "rotations while it runs",
                Some(rotated("output")),
                SAME,
                &["`transform_config`", "output", "what is rotated while the model runs"],
            ),
        ],
    );
}

fn rotated(place: &str) -> Value {
    let merged = json!({ "location": "weight_output" });
    let groups = json!({ "u": { "apply": [merged, { "location": place }] } });
    json!({ "/transform_config": { "config_groups": groups } })
}

#[test]
fn scales_lie_as_their_codes() {
    let section = json!({ "quant_method": "fp8", "weight_block_size": [8, 8] });
    let tensors = Tensors::from([
        ("m.weight", zeros(F8E4m3, &[16, 32])),
        ("m.weight_scale_inv", zeros(F32, &[2, 4])),
    ]);
    refused(
        &section,
        &tensors,
        &[(
            "squares",
            None,
            |t: &mut Tensors| drop(t.insert("m.weight_scale_inv", zeros(F32, &[4, 2]))),
            &["`m.weight_scale_inv`", "[4, 2]"],
        )],
    );

    let section = json!({ "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized" });
    let tensors = Tensors::from([
        ("m.weight_packed", zeros(U8, &[16, 64])),
        ("m.weight_scale", zeros(F8E4m3, &[16, 8])),
    ]);
    refused(
        &section,
        &tensors,
        &[
            (
                "sixteens across",
                None,
                |t| drop(t.insert("m.weight_scale", zeros(F8E4m3, &[8, 16]))),
                &["[8, 16]", "scales of F8_E4M3 and shape [16, 8]"],
            ),
            (
                "bytes for sixteens",
                None,
                |t| drop(t.insert("m.weight_scale", zeros(U8, &[16, 8]))),
                &["of U8", "scales of F8_E4M3 and shape [16, 8]"],
            ),
        ],
    );
}
