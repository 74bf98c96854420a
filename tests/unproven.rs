//! Tests of what a check does not prove: dumps that were changed, and dumps that show less than the whole model.

use std::path::Path;

use crate::tool::{Ran, copy, copy_folder, fixture, json, parity, run};

/// Runs a check in f32 without schedules.
fn check(model: &Path, more: &[&str]) -> Ran {
    let quick = ["--dtype", "f32", "--no-schedules"];
    run(parity().arg("check").arg(model).args(quick).args(more))
}

#[test]
fn a_flipped_bit_of_a_dump_is_an_error_that_names_the_file() {
    const FLIPS: usize = 15;
    let home = tempfile::tempdir().unwrap();
    for name in ["manifest.json", "reference.safetensors"] {
        let dump = home.path().join(name);
        copy_folder(&fixture("lfm2/reference"), &dump);
        let file = dump.join(name);
        let whole = fs_err::read(&file).unwrap();
        parity::Dump::open(&dump).unwrap();
        for n in 0..FLIPS {
            let mut bytes = whole.clone();
            let at = (n * 2 + 1) * bytes.len() / (2 * FLIPS);
            bytes[at] ^= 1 << (n % 8);
            fs_err::write(&file, bytes).unwrap();
            let error = parity::Dump::open(&dump).unwrap_err().to_string();
            assert!(error.contains(name), "byte {at}: {error}");
        }
    }
}

#[test]
fn numbers_of_a_manifest_that_were_edited_by_hand_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let dump = home.path().join("dump");
    copy_folder(&fixture("lfm2/reference"), &dump);
    let file = dump.join("manifest.json");
    let text = fs_err::read_to_string(&file).unwrap();
    for (from, to) in [
        (r#""truth": "decode""#, r#""truth": "prefill""#),
        (r#""shaken6", "#, ""),
        (r#""decode_vs_prefill": 0.0"#, r#""decode_vs_prefill": 0.5"#),
    ] {
        assert!(text.contains(from), "{from}");
        fs_err::write(&file, text.replacen(from, to, 1)).unwrap();
        check(&fixture("lfm2"), &["--reference", dump.to_str().unwrap()])
            .code(2)
            .says("manifest.json` was changed or damaged since the dump was written")
            .says("write the dump again with `parity dump`");
    }
}

#[test]
fn an_engine_is_recorded_up_to_the_end_of_its_context() {
    let home = tempfile::tempdir().unwrap();
    let (model, dump) = (home.path().join("gemma"), home.path().join("dump"));
    copy("gemma", &model);
    let mut command = parity();
    command.arg("dump").arg(&model).args(["--engine", "native", "--dtypes", "f32", "-o"]);
    run(command.arg(&dump)).code(0);
    let manifest = json(&fs_err::read_to_string(dump.join("manifest.json")).unwrap());
    assert_eq!(manifest["prompts"][3]["tokens"].as_array().unwrap().len(), 128);
    assert_eq!(manifest["greedy"]["f32"]["long"].as_array().unwrap().len(), 1);
}
