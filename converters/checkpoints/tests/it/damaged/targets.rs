//! Tests of the scheme that is assigned to a module.

use formats::safetensors::FileDtype::{F16, I8};
use serde_json::{Value, json};

use super::{Tensors, opened, zeros};

#[test]
fn a_module_is_what_its_name_then_a_pattern_then_its_class_says() {
    // Each group has the scales of only one strategy.
    let section = json!({"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["re:.*head", "b.x.gate"],
        "config_groups": {"group_0": group(&["Linear"], "channel"), "group_1": group(&["re:b\\.x", "re:z"], "tensor"),
                          "group_2": group(&["b.x.named"], "channel")}});
    let tensors = Tensors::from([
        ("a.b.x.weight", zeros(I8, &[4, 8])),
        ("a.b.x.weight_scale", zeros(F16, &[4, 1])),
        ("b.x.weight", zeros(I8, &[4, 8])),
        ("b.x.weight_scale", zeros(F16, &[1])),
        ("b.x.y.weight", zeros(I8, &[4, 8])),
        ("b.x.y.weight_scale", zeros(F16, &[1])),
        ("b.x.named.weight", zeros(I8, &[4, 8])),
        ("b.x.named.weight_scale", zeros(F16, &[4, 1])),
        ("b.x.gate.weight", zeros(F16, &[4, 8])),
        ("lm_head.weight", zeros(F16, &[4, 8])),
    ]);
    let weights = ["a.b.x", "b.x.gate", "b.x.named", "b.x", "b.x.y", "lm_head"];
    assert_eq!(
        opened(&section, &tensors).unwrap(),
        weights.map(|module| format!("{module}.weight"))
    );
    for (module, scales) in [("a.b.x", 1), ("b.x.y", 4), ("b.x.named", 1)] {
        let mut tensors = tensors.clone();
        let name = format!("{module}.weight_scale");
        let stored = tensors.iter_mut().find(|(tensor, _)| **tensor == name).unwrap().1;
        *stored = zeros(F16, &[scales, 1]);
        assert!(opened(&section, &tensors).unwrap_err().contains(&name), "{module}");
    }
}

fn group(targets: &[&str], strategy: &str) -> Value {
    json!({"targets": targets, "weights": {"num_bits": 8, "type": "int", "strategy": strategy}})
}
