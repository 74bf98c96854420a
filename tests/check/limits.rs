//! Tests of what a check does not prove: dumps that were changed, and dumps and settings that show less than the whole model.

use std::path::Path;

use serde_json::Value;

use crate::tool::{Ran, copy, copy_folder, fixture, json, parity, remove_checksums, run};

/// Runs a check in f32 without schedules.
fn check(model: &Path, more: &[&str]) -> Ran {
    let quick = ["--dtype", "f32", "--no-schedules"];
    run(parity().arg("check").arg(model).args(quick).args(more))
}

/// End of the verdict of such a check.
const NO_SCHEDULES: &str = "but not proven: schedules (not run, as --no-schedules says)";

#[test]
fn a_flipped_bit_of_a_dump_is_an_error_that_names_the_file() {
    const FLIPS: usize = 15;
    let home = tempfile::tempdir().unwrap();
    for name in ["manifest.json", "reference.safetensors"] {
        let dump = home.path().join(name);
        copy_folder(&fixture("lfm2/reference"), &dump);
        let file = dump.join(name);
        let file_bytes = fs_err::read(&file).unwrap();
        parity::Dump::open(&dump).unwrap();
        for n in 0..FLIPS {
            let mut bytes = file_bytes.clone();
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
    // Without the entry nothing can be told, and the verdict says so.
    fs_err::write(&file, &text).unwrap();
    remove_checksums(&dump);
    check(&fixture("lfm2"), &["--reference", dump.to_str().unwrap()])
        .code(0)
        .prints(&format!("{NO_SCHEDULES}; the dump (it has no checksums"));
}

#[test]
fn a_reference_without_steps_agrees_in_prefill_only() {
    let home = tempfile::tempdir().unwrap();
    let junit = home.path().join("junit.xml");
    let words =
        "AGREE in prefill only, in 1 run, but not proven: decode (the dump has no taps of decode)";
    let model = fixture("openai_gpt");
    check(&model, &["--junit", junit.to_str().unwrap()]).code(0).prints(words);
    let xml = fs_err::read_to_string(junit).unwrap();
    assert!(xml.contains("not proven") && xml.contains("no taps of decode"), "{xml}");
    let report = json(&check(&model, &["--json"]).code(0).out);
    assert_eq!(report["verdict"], "pass");
    assert_eq!(report["limits"][0]["kind"], "decode", "{}", report["limits"]);
    check(&model, &["--strict"]).code(1).prints(words);
    check(&fixture("lfm2"), &["--strict"]).code(1).prints(NO_SCHEDULES);
    let whole = ["--dtype", "f32", "--strict"];
    run(parity().arg("check").arg(fixture("lfm2")).args(whole)).code(0).prints("AGREE in 1 run\n");

    let mut card = crate::tool::onboard();
    card.arg("add-model").arg(&model).arg("--out").arg(home.path());
    run(&mut card).code(0).prints("proven in part: ").prints("decode (the dump has no taps");
    let text = fs_err::read_to_string(home.path().join("card.md")).unwrap();
    assert!(text.contains("**proven in part**") && text.contains("| not proven"), "{text}");
}

#[test]
fn a_reference_without_taps_or_ensemble_leaves_ops_and_whole_runs_unproven() {
    check(&fixture("peer/mistral"), &[])
        .code(0)
        .prints("AGREE in 1 run, but not proven: ops (the dump has no taps of prefill)");
    let home = tempfile::tempdir().unwrap();
    let prompts = home.path().join("prompts.json");
    let dump = home.path().join("dump");
    fs_err::write(&prompts, r#"[{"tokens": [5, 9], "taps": true}]"#).unwrap();
    let mut command = parity();
    command.arg("dump").arg(fixture("lfm2")).args(["--engine", "native", "--dtypes", "f32", "-o"]);
    run(command.arg(&dump).arg("--prompts").arg(&prompts)).code(0);
    check(&fixture("lfm2"), &["--reference", dump.to_str().unwrap()])
        .code(0)
        .prints("but not proven: positions (the longest prompt has 2 tokens); whole runs (the dump has no ensemble)");
}

#[test]
fn states_in_8_bits_that_the_reference_has_not_are_in_the_verdict() {
    check(&fixture("llama"), &["--set", "states.kv.dtype=f8_e4m3"])
        .code(0)
        .prints("AGREE in 2 runs, but not proven: states (f8_e4m3 is not what the reference keeps");
}

#[test]
fn what_a_head_is_fed_and_hands_on_is_the_references() {
    let model = fixture("deepseek_v3");
    check(&model, &[]).code(0).prints(&format!("AGREE in 2 runs, {NO_SCHEDULES}\n"));
    check(&model, &["--set", "nextn.from=model.layers.2"])
        .code(1)
        .prints("f32 nextn: first divergence: model.layers.2")
        .prints("the reference's head was fed other rows than `nextn.from` names");
    check(&model, &["--set", "nextn.recycle=pre"])
        .code(1)
        .prints("the reference hands on `model.layers.3.shared_head.norm`");
}

#[test]
fn an_engine_is_recorded_up_to_the_end_of_its_context() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("gemma");
    let dump = home.path().join("dump");
    copy("gemma", &model);
    let mut command = parity();
    command.arg("dump").arg(&model).args(["--engine", "native", "--dtypes", "f32", "-o"]);
    run(command.arg(&dump)).code(0);
    let manifest = json(&fs_err::read_to_string(dump.join("manifest.json")).unwrap());
    assert_eq!(manifest["prompts"][3]["tokens"].as_array().unwrap().len(), 128);
    assert_eq!(manifest["greedy"]["f32"]["long"].as_array().unwrap().len(), 1);
}

/// Copies a dump, changes its manifest, and gives it checksums again.
fn edited(from: &Path, dump: &Path, edit: impl Fn(&mut Value)) {
    copy_folder(from, dump);
    let file = dump.join("manifest.json");
    let mut manifest = json(&fs_err::read_to_string(&file).unwrap());
    manifest.as_object_mut().unwrap().remove("sha256");
    edit(&mut manifest);
    let tensors = parity::dump::sha256(&dump.join("reference.safetensors")).unwrap();
    fs_err::write(&file, parity::dump::sealed(&manifest.to_string(), &tensors)).unwrap();
}

/// Names a phase in which every tap was recorded, for the first `taps` taps.
fn keep_phase(manifest: &mut Value, phase: &str, taps: usize) {
    let all = manifest["taps"].as_object_mut().unwrap();
    all.values_mut().take(taps).for_each(|tap| tap["phases"] = serde_json::json!([phase]));
}

/// Change of a manifest, and words of the verdict.
type Edit<'a> = (&'a dyn Fn(&mut Value), &'a str);

/// A dump may have less than the reference script writes. What it lacks is in the verdict.
#[test]
fn what_a_dump_was_robbed_of_is_in_the_verdict() {
    let home = tempfile::tempdir().unwrap();
    let reference = fixture("lfm2/reference");
    let edits: [Edit<'_>; 9] = [
        (
            &|dump| dump["audit"]["f32"]["decode_vs_prefill"] = Value::Null,
            "the dump (it does not say how far",
        ),
        (
            &|dump| drop(dump["audit"].as_object_mut().unwrap().remove("truth")),
            "the dump (it does not say how far",
        ),
        (
            &|dump| dump["audit"]["f32"]["decode_vs_prefill"] = 5.0.into(),
            "the dump (it trusts steps that are 5.0e0 of the largest logit from the prefill)",
        ),
        (
            &|dump| keep_phase(dump, "prefill", usize::MAX),
            "AGREE in prefill only, in 1 run, but not proven: decode (",
        ),
        (
            &|dump| keep_phase(dump, "prefill", 20),
            "ops compared in prefill alone, the first is `model.embed_tokens`",
        ),
        (
            &|dump| keep_phase(dump, "decode", 20),
            "ops compared in decode alone, the first is `model.embed_tokens`",
        ),
        (
            &|dump| {
                let runs = dump["greedy"].as_object_mut().unwrap().values_mut();
                for tokens in runs.flat_map(|prompts| prompts.as_object_mut().unwrap().values_mut())
                {
                    tokens.as_array_mut().unwrap().truncate(1);
                }
            },
            "greedy tokens (the dump has one of each prompt, which prefill gives)",
        ),
        (
            &|dump| drop(dump.as_object_mut().unwrap().remove("audit")),
            "the dump (it does not say how far the reference's steps are from its prefill)",
        ),
        (
            &|dump| dump["prompts"].as_array_mut().unwrap().truncate(2),
            "positions (the longest prompt has 2 tokens)",
        ),
    ];
    for (n, (edit, words)) in edits.into_iter().enumerate() {
        let dump = home.path().join(n.to_string());
        edited(&reference, &dump, edit);
        let ran = check(&fixture("lfm2"), &["--reference", dump.to_str().unwrap(), "--strict"]);
        ran.code(1).prints(words);
    }
}

/// A dump of an engine names what changed in the checkpoint since, as that of the reference does.
#[test]
fn a_dump_of_an_engine_names_a_changed_key() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("lfm2");
    let dump = home.path().join("dump");
    copy("lfm2", &model);
    let mut command = parity();
    command.arg("dump").arg(&model).args(["--engine", "native", "--dtypes", "f32", "-o"]);
    run(command.arg(&dump)).code(0);
    let config = model.join("config.json");
    let mut values = json(&fs_err::read_to_string(&config).unwrap());
    values["norm_eps"] = serde_json::json!(0.5);
    fs_err::write(&config, values.to_string()).unwrap();
    check(&model, &["--reference", dump.to_str().unwrap()])
        .code(2)
        .says("`norm_eps` is `0.5` here");
}
