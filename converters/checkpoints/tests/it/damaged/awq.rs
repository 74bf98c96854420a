//! Invalid AWQ checkpoints.

use formats::safetensors::FileDtype::{F16, I32};
use serde_json::json;

use super::{SAME, Tensors, refused, zeros};

#[test]
fn awq_is_refused() {
    let section = json!({"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"});
    let tensors = Tensors::from([
        ("m.qweight", zeros(I32, &[16, 1])),
        ("m.qzeros", zeros(I32, &[2, 1])),
        ("m.scales", zeros(F16, &[2, 8])),
    ]);
    refused(
        &section,
        &tensors,
        &[
            ("no zeros", None, |t| drop(t.remove("m.qzeros")), &["no `m.qzeros` beside it"]),
            (
                "more outputs",
                None,
                |t| drop(t.insert("m.scales", zeros(F16, &[2, 16]))),
                &["`m.qweight`", "1 columns", "16 outputs"],
            ),
            (
                "other bits",
                Some(json!({"/bits": 3})),
                |t| drop(t.insert("m.scales", zeros(F16, &[2, 16]))),
                &["1 columns", "3 bits each"],
            ),
            (
                "zeros of one group",
                None,
                |t| drop(t.insert("m.qzeros", zeros(I32, &[1, 1]))),
                &["`m.qzeros`", "[1, 1]", "[2, 1]"],
            ),
            (
                "another layout",
                Some(json!({"/version": "gemv_fast"})),
                SAME,
                &["`version`", "gemv_fast", "gemm or gemv"],
            ),
            (
                "the other layout",
                Some(json!({"/version": "GEMV"})),
                SAME,
                &["`m.scales`", "[2, 8]"],
            ),
            ("groups of nothing", Some(json!({"/group_size": 0})), SAME, &["`group_size`"]),
        ],
    );
}
