//! Tests of NVFP4 in GGUF files: blocks, with a scale per matrix.

use std::path::Path;

use serde_json::Value;

use crate::tool::{convert, fixture, json, onboard, parity, root, run};

/// Returns the rows of `--verify` for NVFP4.
fn verified(source: &Path, file: &Path) -> Vec<Value> {
    let ran = run(convert().arg(source).arg("--verify").arg(file).arg("--json")).code(0);
    let rows = json(&ran.out)["tensors"].as_array().unwrap().clone();
    rows.into_iter().filter(|row| row["type"] == "NVFP4").collect()
}

/// Returns the offset of a tensor's bytes.
fn offset(file: &Path, name: &str) -> usize {
    let shown = json(&run(onboard().arg("show").arg(file).arg("--json")).code(0).out);
    let tensors = shown["tensors"].as_array().unwrap();
    let tensor = tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
    usize::try_from(tensor["offset"].as_u64().unwrap()).unwrap()
}

#[test]
fn codes_and_scales_of_a_checkpoint_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let source = root().join("fixtures/coded/llama_nvfp4");
    let file = dir.path().join("m.gguf");
    run(convert().arg(&source).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    let rows = verified(&source, &file);
    assert_eq!(rows.len(), 14);
    // A product is rounded in another order.
    assert!(rows.iter().all(|row| row["relative_error"].as_f64().unwrap() < 1e-7), "{rows:?}");
    let mut check = parity();
    check.arg("check").arg(&file).arg("--reference").arg(source.join("reference"));
    let told = run(check.args(["--source"]).arg(&source).arg("--json")).code(0).out;
    let kl = json(&told)["cost"]["kl"]["mean"].as_f64().unwrap_or(1.0);
    assert!(kl < 1e-6, "{told}");
    // The same codes in place, as decoded by the reference's own reader, in every dtype.
    let mut check = parity();
    run(check.arg("check").arg(&source)).code(0).prints("AGREE in 3 runs");

    let at = offset(&file, "blk.1.attn_q.scale");
    let mut bytes = fs_err::read(&file).unwrap();
    let scale = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(scale * 2.0).to_le_bytes());
    fs_err::write(&file, &bytes).unwrap();
    run(convert().arg(&source).arg("--verify").arg(&file))
        .code(1)
        .says("tensor `blk.1.attn_q.weight` is off by 1.0000 of its size");
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs_err::write(&file, &bytes).unwrap();
    run(onboard().arg("run").arg(&file).args(["--tokens", "1,2", "-n", "1"]))
        .code(2)
        .says("`blk.1.attn_q.scale` holds NaN");
}

#[test]
fn every_matrix_of_a_stack_has_a_scale() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    let coded = dir.path().join("coded");
    let mut config =
        json(&fs_err::read_to_string(fixture("qwen3_moe").join("config.json")).unwrap());
    for key in ["hidden_size", "moe_intermediate_size", "intermediate_size"] {
        config[key] = 64.into();
    }
    let path = dir.path().join("config.json");
    fs_err::write(&path, config.to_string()).unwrap();
    let mut synth = onboard();
    synth.args(["synth", "qwen3_moe", "--dtype", "bf16", "--config"]).arg(&path);
    run(synth.arg("-o").arg(&plain)).code(0);
    run(convert().arg(&plain).args(["--to", "nvfp4", "-o"]).arg(&coded)).code(0);
    let bf16_file = dir.path().join("kept.gguf");

    run(convert().arg(&coded).args(["--to", "gguf:bf16", "-o"]).arg(&bf16_file)).code(0);
    let rows = verified(&coded, &bf16_file);
    assert!(rows.iter().any(|row| row["name"] == "blk.0.ffn_down_exps.weight"), "{rows:?}");
    assert!(rows.iter().all(|row| row["relative_error"].as_f64().unwrap() < 1e-7), "{rows:?}");

    let files = ["one.gguf", "two.gguf"].map(|name| dir.path().join(name));
    for (file, threads) in files.iter().zip(["1", "2"]) {
        let mut command = convert();
        command.arg(&plain).args(["--to", "gguf:q8_0", "--tensor-type", "ffn_.*_exps=nvfp4"]);
        run(command.args(["--threads", threads, "--slab", "1", "-o"]).arg(file)).code(0);
    }
    let [one, two] = files;
    assert_eq!(fs_err::read(&one).unwrap(), fs_err::read(two).unwrap());
    let rows = verified(&plain, &one);
    let mut errors = rows.iter().map(|row: &Value| row["relative_error"].as_f64().unwrap());
    assert!(errors.all(|error| (0.08..0.11).contains(&error)), "{rows:?}");
    let shown = json(&run(onboard().arg("show").arg(&one).arg("--json")).code(0).out);
    let scales: Vec<_> = shown["tensors"].as_array().unwrap().iter().collect();
    let scales = scales.iter().filter(|t| t["name"].as_str().unwrap().contains(".scale"));
    assert_eq!(scales.filter(|t| t["shape"] == serde_json::json!([8])).count(), rows.len());
}
