//! Checkpoints of 8 and 4 bits through the commands: written, opened again, and what they cost.

use crate::tool::{convert, fixture, parity, run};

/// The mean divergence that a check printed.
fn divergence(text: &str) -> f64 {
    let (_, rest) = text.split_once("mean ").expect("a divergence");
    rest.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn eight_bits_cost_more_where_activations_have_them_too() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let mut means = Vec::new();
    for (to, flags) in
        [("fp8", &[][..]), ("fp8", &["--w8a8"]), ("nvfp4", &[]), ("nvfp4", &["--w8a8"])]
    {
        let out = dir.path().join(to);
        run(convert().arg(&source).args(["--to", to, "--force", "-o"]).arg(&out)).code(0);
        let mut check = parity();
        check.arg("check").arg(&out).arg("--reference").arg(source.join("reference"));
        let ran = run(check.arg("--source").arg(&source).args(flags)).code(0);
        means.push(divergence(&ran.prints("within its bands").out));
    }
    let [fp8, w8a8, nvfp4, same] = means[..] else { panic!("four checks") };
    assert!(1e-4 < fp8 && fp8 < w8a8 && w8a8 < nvfp4, "{means:?}");
    // Only matrices of 8 bits are multiplied with 8 bits.
    assert_eq!(nvfp4, same);
}

#[test]
fn plans_name_what_is_kept_and_what_cannot_be_spread() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |name: &str, to: &str| {
        run(convert().arg(fixture(name)).args(["--to", to, "--plan", "-o"]).arg(dir.path())).code(0)
    };
    plan("llama_256", "fp8")
        .prints("21 quantized")
        .prints("kept, the spec keeps it: the output matrix: lm_head.weight");
    plan("llama_256", "fp8:block").prints("64x256 does not divide into blocks of 128").prints(
        "`model.layers.0.mlp.up_proj.weight` cannot be spread, its rows over more than 2 devices",
    );
    plan("deepseek_v3", "fp8:block").prints("0 quantized");
}

/// `fixtures/quant_peer.py --arithmetic` makes the dumps: transformers' own forward of the folder that
/// a conversion gives, rows rounded to e4m3 before each matrix.
#[test]
fn arithmetic_of_eight_bits_is_the_references() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_256", "lfm2_256"] {
        let out = dir.path().join(name);
        run(convert().arg(fixture(name)).args(["--to", "fp8", "-o"]).arg(&out)).code(0);
        let check = |flags: &[&str]| {
            let mut check = parity();
            check.arg("check").arg(&out).arg("--reference").arg(fixture("w8a8").join(name));
            run(check.args(["--no-schedules", "--bound", "1e-4"]).args(flags))
        };
        // Each row is that of one of the reference's own two runs, which are apart by 0.1 and more.
        check(&["--w8a8"]).code(0).prints("own runs are apart by").prints("AGREE");
        check(&[]).code(1).prints("DIFFER");
    }
}
