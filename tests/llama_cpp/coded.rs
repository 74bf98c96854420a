//! Tests in llama.cpp of files converted from quantized checkpoints.

use libtest_mimic::Trial;

use crate::tool::{convert, parity, root, run};
use crate::trials;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trials::one("coded::mxfp4", blocks_of_four_bits_run_as_they_were_packed),
        trials::one("coded::nvfp4", blocks_with_a_scale_beside_them_run_as_they_were_packed),
        trials::one("coded::fp8", squares_of_eight_bits_run_as_the_weights_they_stand_for),
    ]
}

/// Converts a checkpoint of `fixtures/coded` and compares the file in llama.cpp with the checkpoint's dump.
fn check(name: &str, to: &[&str], bound: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let source = root().join("fixtures/coded").join(name);
    run(convert().arg(&source).args(to).arg("-o").arg(&file)).code(0);
    let mut command = parity();
    command.arg("check").arg(&file).args(["--engine", "llama.cpp", "--threads", "1"]);
    command.args(["--bound", bound, "--reference"]).arg(source.join("reference"));
    run(&mut command).code(0).prints("AGREE");
}

fn blocks_of_four_bits_run_as_they_were_packed() {
    check("gpt_oss", &["--to", "gguf:f32"], "1e-3");
    // The weights are exact, but llama.cpp rounds rows to blocks of 8 bits before it multiplies these:
    // 1.6e-4 nats in the mean, 0.11 at most.
    let exact = ["--to", "gguf:mxfp4_moe", "--tensor-type", "attn|embd|output=f32"];
    check("gpt_oss", &exact, "0.2");
}

/// The scale beside a matrix is applied: without it, values would be off by a factor of hundreds.
fn blocks_with_a_scale_beside_them_run_as_they_were_packed() {
    check("llama_nvfp4", &["--to", "gguf:f32"], "0.1");
    // Rows are rounded to blocks of 8 bits there: 3e-2 nats in the mean, 0.23 at most.
    check("llama_nvfp4", &["--to", "gguf:f16"], "0.5");
}

fn squares_of_eight_bits_run_as_the_weights_they_stand_for() {
    check("deepseek_v3", &["--to", "gguf:f32"], "1e-3");
}
