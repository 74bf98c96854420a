//! What a checkpoint of numbers of 8 bits with a point may not say: its codes would pass for numbers.

use converters::safetensors::FileDtype::{F8E4m3, F32, U8};
use serde_json::json;

use super::{SAME, Tensors, refused, zeros};

#[test]
fn codes_are_never_taken_for_numbers() {
    let said = json!({"quant_method": "fp8", "transform_config": null});
    let tensors = Tensors::from([
        ("m.weight", zeros(F8E4m3, &[16, 64])),
        ("m.weight_scale", zeros(F32, &[16, 1])),
    ]);
    let turned = |place| {
        let merged = json!({ "location": "weight_output" });
        let groups = json!({ "u": { "apply": [merged, { "location": place }] } });
        Some(json!({ "/transform_config": { "config_groups": groups } }))
    };
    refused(
        &said,
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
                turned("output"),
                SAME,
                &["`transform_config`", "output", "what is rotated while the model runs"],
            ),
        ],
    );
}
