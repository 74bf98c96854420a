//! Checks that packed weights are decoded like by the programs that packed them (`fixtures/packed`).

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::collections::BTreeMap;
use std::path::Path;

use formats::safetensors::{SafetensorsFile, TensorSpec, Writer};
use onboard_checkpoints::checkpoint::Checkpoint;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn hashed(numbers: &[f32]) -> String {
    let mut hash = Sha256::new();
    for number in numbers {
        hash.update(number.to_le_bytes());
    }
    format!("{:x}", hash.finalize())
}

/// Writes a checkpoint with the tensors of a case as those of module `model.one`, except one of them.
fn lay_out(cases: &SafetensorsFile, name: &str, said: &Value, without: &str, folder: &Path) {
    // The files of older programs, before the config had the section.
    let (file, config) = if name.starts_with("auto_gptq-old") {
        let mut said = said.clone();
        said.as_object_mut().unwrap().remove("quant_method");
        ("quantize_config.json", said)
    } else if name.starts_with("autoawq-gemm-64") {
        let group = &said["group_size"];
        let said = serde_json::json!({"w_bit": 4, "q_group_size": group, "version": "GEMM"});
        ("quant_config.json", said)
    } else {
        ("config.json", serde_json::json!({ "quantization_config": said }))
    };
    fs_err::write(folder.join(file), config.to_string()).unwrap();
    let header = cases.header();
    let prefix = format!("{name}/");
    let parts: Vec<_> = header
        .tensors
        .iter()
        .filter_map(|(tensor, entry)| Some((tensor.strip_prefix(&prefix)?, entry)))
        .filter(|(part, _)| *part != without)
        .collect();
    let declared: Vec<TensorSpec> = parts
        .iter()
        .map(|(part, entry)| TensorSpec {
            name: format!("model.one.{part}"),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
        })
        .collect();
    let path = folder.join("model.safetensors");
    let mut writer = Writer::create(&path, &BTreeMap::new(), &declared).unwrap();
    for ((part, _), declared) in parts.iter().zip(&declared) {
        let (_, bytes) = cases.tensor(&format!("{prefix}{part}")).unwrap().unwrap();
        writer.write(&declared.name, bytes).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn every_case_is_what_its_packer_makes_of_it() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/packed");
    let told: Value =
        serde_json::from_slice(&fs_err::read(home.join("cases.json")).unwrap()).unwrap();
    let file = SafetensorsFile::open(&home.join("cases.safetensors")).unwrap();
    let cases = told["cases"].as_object().unwrap();
    assert!(cases.len() > 50);
    let mut wrong = Vec::new();
    // Default groups are contiguous, also if no tensor lists them.
    let plain = |name: &&String| {
        let order = file.header().tensors.get(&format!("{name}/g_idx"));
        order.is_some_and(|order| order.shape[0].is_multiple_of(32)) && !name.contains("-act")
    };
    let unordered = cases.keys().filter(plain).map(|name| (name, "g_idx"));
    for (name, without) in cases.keys().map(|name| (name, "")).chain(unordered) {
        let (case, dir) = (&cases[name], tempfile::tempdir().unwrap());
        lay_out(&file, name, &case["quantization_config"], without, dir.path());
        let checkpoint = match Checkpoint::open(dir.path()) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let names: Vec<_> = checkpoint.tensors().keys().map(String::as_str).collect();
        assert_eq!(names, ["model.one.weight"], "{name}");
        let flow = checkpoint.flow("model.one.weight").unwrap();
        let shape: Vec<u64> = flow.shape().iter().map(|&side| side as u64).collect();
        assert_eq!(serde_json::json!(shape), case["shape"], "{name}");
        let mut whole = vec![0.0; flow.len()];
        flow.read(0, &mut whole);
        if hashed(&whole) != case["sha256"].as_str().unwrap() {
            wrong.push(format!("{name}: other numbers"));
        }
        // Any range equals that of the whole.
        for (at, count) in [(1, 150), (63, 2), (flow.len() - 77, 77)] {
            let mut part = vec![0.0; count];
            flow.read(at, &mut part);
            assert_eq!(part, whole[at..at + count], "{name} {at}");
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Opens a case of AutoRound with its section changed.
fn auto_round(edit: impl FnOnce(&mut Value)) -> Result<String, String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/packed");
    let told: Value =
        serde_json::from_slice(&fs_err::read(home.join("cases.json")).unwrap()).unwrap();
    let file = SafetensorsFile::open(&home.join("cases.safetensors")).unwrap();
    let name = "auto_round-auto_round-6-64-asym";
    let mut said = told["cases"][name]["quantization_config"].clone();
    edit(&mut said);
    let dir = tempfile::tempdir().unwrap();
    lay_out(&file, name, &said, "", dir.path());
    let checkpoint = Checkpoint::open(dir.path()).map_err(|error| error.to_string())?;
    let flow = checkpoint.flow("model.one.weight").unwrap();
    let mut numbers = vec![0.0; flow.len()];
    flow.read(0, &mut numbers);
    let right = hashed(&numbers) == told["cases"][name]["sha256"].as_str().unwrap();
    Ok(if right { "right" } else { "other numbers" }.to_owned())
}

#[test]
fn a_module_has_numbers_of_its_own_by_name_or_by_pattern() {
    let own = serde_json::json!({"bits": 6, "group_size": 64});
    for (keys, expected) in [
        (vec![("model.one", own.clone())], true),
        (vec![(".*\\.one", own.clone())], true),
        // A name takes precedence over a pattern.
        (vec![(".*one.*", serde_json::json!({"bits": 3})), ("model.one", own.clone())], true),
        (vec![("model.o", own.clone())], true),
        (vec![("model.two", own.clone())], false),
        (vec![("model.one", serde_json::json!({"bits": 16}))], false),
    ] {
        let all: serde_json::Map<String, Value> =
            keys.iter().map(|(key, own)| ((*key).to_owned(), own.clone())).collect();
        let found = auto_round(|said| {
            said["bits"] = 2.into();
            said["group_size"] = 32.into();
            said["extra_config"] = all.clone().into();
        });
        assert_eq!(found == Ok("right".to_owned()), expected, "{keys:?}: {found:?}");
    }
}

#[test]
fn what_auto_round_says_and_is_not_read_is_named() {
    for (key, value) in [
        ("packing_format", serde_json::json!("auto_round:llm_compressor")),
        ("data_type", serde_json::json!("nv_fp")),
        ("act_bits", serde_json::json!(8)),
        ("rotation_config", serde_json::json!({"backend": "hadamard"})),
    ] {
        let error = auto_round(|said| said[key] = value.clone()).unwrap_err();
        assert!(error.contains(&format!("`{key}` of")), "{error}");
    }
}
