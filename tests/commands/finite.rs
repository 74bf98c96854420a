//! Tests of models that compute NaN or infinite values: reported at once, with the first such value.

use std::path::{Path, PathBuf};

use formats::FileDtype;
use formats::numbers::from_f32;

use crate::tensors::rewrite;
use crate::tool::{Ran, convert, copy, fixture, onboard, parity, remove_checksums, run};

fn weights(folder: &Path) -> PathBuf {
    folder.join("model.safetensors")
}

/// Generates one token.
fn generate(model: &Path) -> Ran {
    run(onboard().arg("run").arg(model).args(["--tokens", "1,2", "-n", "1"]))
}

/// Copies a fixture, setting every value of the tensors whose names contain `part` to `value`.
fn broken(name: &str, part: &str, value: f32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(name, dir.path());
    rewrite(&weights(&fixture(name)), &weights(dir.path()), |tensors| {
        let hit = tensors.iter_mut().filter(|(name, _)| name.contains(part));
        let mut count = 0;
        for (_, (entry, bytes)) in hit {
            let values = vec![value; bytes.len() / entry.dtype.size()];
            from_f32(entry.dtype, &values, bytes).unwrap();
            count += 1;
        }
        assert!(count > 0, "a tensor is named `{part}`");
    });
    dir
}

#[test]
fn every_command_that_runs_a_model_names_the_first_value_that_is_not_finite() {
    let up = "model.layers.1.mlp.up_proj";
    for (name, part, value, first) in [
        (
            "llama",
            up,
            f32::NAN,
            "`model.layers.1.mlp.up_proj` is the first value that has NaN, at position 0",
        ),
        (
            "llama",
            up,
            1e38,
            "`model.layers.1.mlp.up_proj` is the first value that has inf, at position 0",
        ),
        (
            "lfm2_moe",
            "layers.2.feed_forward.gate.weight",
            f32::NAN,
            "`model.layers.2.feed_forward.gate` is the first",
        ),
        // Scores of experts are NaN, but the weights of the chosen ones are not.
        (
            "lfm2_moe",
            "layers.2.feed_forward.expert_bias",
            f32::NAN,
            "`model.layers.2.feed_forward.experts:scores` is the first",
        ),
    ] {
        let model = broken(name, part, value);
        let file = model.path().join("model.gguf");
        let ids: Vec<String> = (1..17).map(|id: u32| id.to_string()).collect();
        let ids = ids.join(",");
        let ran = generate(model.path()).code(1).says(first);
        // Other tokens may overflow at another position.
        let first = first.split(", at position").next().unwrap_or(first);
        assert_eq!(ran.out, "", "no token is made of NaN");
        run(onboard().arg("bench").arg(model.path()).args(["-p", "4", "-n", "0", "-r", "1"]))
            .code(1)
            .says(first);
        let written = model.path().join("x.imatrix.gguf");
        run(onboard()
            .arg("imatrix")
            .arg(model.path())
            .args(["--tokens", &ids, "--chunk", "8", "-o"])
            .arg(&written))
        .code(1)
        .says(first);
        assert!(!written.exists(), "nothing is measured on NaN");
        let nan = value.is_nan();
        let ran = run(convert().arg(model.path()).args(["--to", "gguf:bf16", "-o"]).arg(&file));
        if nan {
            ran.code(2).says("cannot be encoded for");
        } else {
            ran.code(0);
            generate(&file).code(1).says(first);
        }
        for path in [model.path(), &file].into_iter().filter(|path| path.exists()) {
            let mut check = parity();
            check.arg("check").arg(path).arg("--reference").arg(fixture(name).join("reference"));
            check.arg("--source").arg(fixture(name)).args(["--dtype", "f32", "--no-schedules"]);
            let ran = run(&mut check).code(1);
            // In f32 a product of 1e38 may become infinite one op later. A check continues with the
            // reference's choices: scores that are NaN are choices that differ.
            let seen = if first.contains(":scores") { "routers\n" } else { first };
            assert!(!nan || ran.out.contains(seen), "{}", ran.out);
        }
    }
}

#[test]
fn a_reference_that_is_not_finite_proves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let from = fixture("llama").join("reference");
    fs_err::copy(from.join("manifest.json"), dir.path().join("manifest.json")).unwrap();
    remove_checksums(dir.path());
    let file = "reference.safetensors";
    rewrite(&from.join(file), &dir.path().join(file), |tensors| {
        for (_, (entry, bytes)) in tensors.iter_mut().filter(|(name, _)| name.ends_with("/logits"))
        {
            if entry.dtype == FileDtype::F32 {
                *bytes = f32::NAN.to_le_bytes().repeat(bytes.len() / 4);
            }
        }
    });
    run(parity().arg("check").arg(fixture("llama")).arg("--reference").arg(dir.path()).args([
        "--dtype",
        "f32",
        "--no-schedules",
    ]))
    .code(2)
    .says("`manifest.json` makes it finite numbers: check the checkpoint for NaN");
}

/// The one place where no later op turns an infinity into NaN.
#[test]
fn infinite_logits_are_no_token() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama", dir.path());
    rewrite(&weights(&fixture("llama")), &weights(dir.path()), |tensors| {
        for (name, (entry, bytes)) in tensors.iter_mut() {
            let count = bytes.len() / entry.dtype.size();
            let values: Vec<f32> = match name.as_str() {
                "lm_head.weight" => {
                    let width = entry.shape[1];
                    (0..count).map(|n| if n % width == 0 { 3e38 } else { 0.0 }).collect()
                }
                "model.norm.weight" => vec![64.0; count],
                _ => continue,
            };
            from_f32(entry.dtype, &values, bytes).unwrap();
        }
    });
    let mut command = onboard();
    command.arg("run").arg(dir.path()).args(["--tokens", "1,2,3", "-n", "2", "--dtype", "f32"]);
    let ran = run(&mut command).code(1).says("is the first value that has");
    assert_eq!(ran.out, "");
}
