//! Tests that compare a written file with its source: `convert --verify`, and `show --json`, which reads it
//! whole.

#[path = "../../converters/conversion/tests/support/fuse.rs"]
pub(crate) mod fuse;

use std::collections::BTreeMap;
use std::path::Path;

use formats::codec::BlockType;
use formats::gguf::{GgufFile, GgufTensorSpec};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::tool::{Ran, convert, copy_folder, fixture, json, onboard, run};
use fuse::{CASES, fuse, write};

/// Runs `onboard verify`, which compares an output with its hashes.
fn verify(output: &Path) -> Ran {
    run(onboard().arg("verify").arg(output))
}

/// Runs `convert --verify`, which compares an output with its source.
fn compare(source: &Path, output: &Path, more: &[&str]) -> Ran {
    run(convert().arg(source).args(more).arg("--verify").arg(output))
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// Returns the hashes of a report by the names of tensors.
fn hashes(report: &Value) -> BTreeMap<String, String> {
    let rows = report["tensors"].as_array().unwrap().iter();
    rows.map(|row: &Value| {
        let name = row["name"].as_str().unwrap().to_owned();
        (name, row["sha256"].as_str().unwrap().to_owned())
    })
    .collect()
}

#[test]
fn every_tensor_is_hashed_and_a_changed_one_shows() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let file = dir.path().join("m.gguf");
    run(convert().arg(&source).args(["--to", "gguf:q8_0", "-o"]).arg(&file)).code(0);
    let shown = json(&run(onboard().arg("show").arg(&file).arg("--json")).code(0).out);
    assert_eq!(shown["keys"]["general.architecture"]["value"], "llama");
    let vocab = shown["keys"]["llama.vocab_size"]["value"].as_u64().unwrap();
    let tokens = &shown["keys"]["tokenizer.ggml.tokens"]["value"];
    assert_eq!(tokens.as_array().unwrap().len() as u64, vocab, "arrays are whole");

    let mut bytes = fs_err::read(&file).unwrap();
    let before = hashes(&json(&compare(&source, &file, &["--json"]).code(0).out));
    let tensors = shown["tensors"].as_array().unwrap();
    assert_eq!(before.len(), tensors.len());
    for tensor in tensors {
        let begin = number(&tensor["offset"]);
        let values = &bytes[begin..begin + number(&tensor["bytes"])];
        let name = tensor["name"].as_str().unwrap();
        assert_eq!(before[name], format!("{:x}", Sha256::digest(values)), "{name}");
    }

    // A level of one block; its scale comes first.
    let at = number(&tensors[0]["offset"]) + 2;
    bytes[at] ^= 1;
    fs_err::write(&file, bytes).unwrap();
    let after = hashes(&json(&compare(&source, &file, &["--json"]).code(1).out));
    let changed: Vec<_> = before.iter().filter(|(name, hash)| after[*name] != **hash).collect();
    assert_eq!(changed.len(), 1);
}

#[test]
fn a_tensor_that_is_none_of_the_models_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("m.gguf");
    let more = dir.path().join("more.gguf");
    let source = fixture("llama");
    run(convert().arg(&source).args(["--to", "gguf:f16", "-o"]).arg(&plain)).code(0);
    let file = GgufFile::open(&plain).unwrap();
    let mut tensors: Vec<(GgufTensorSpec, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let name = info.name.clone();
        let shape = info.shape.clone();
        let bytes = file.bytes(&name).unwrap().to_vec();
        tensors.push((GgufTensorSpec { name, shape, ty: info.ty }, bytes));
    }
    write(file.metadata(), &tensors, &more);
    compare(&source, &more, &[]).code(0);
    let name = "blk.0.spare.weight".to_owned();
    tensors.push((GgufTensorSpec { name, shape: vec![8], ty: BlockType::F32 }, vec![0; 32]));
    write(file.metadata(), &tensors, &more);
    compare(&source, &more, &[]).code(1).says("tensor `blk.0.spare.weight` is none of the model's");
}

/// A file in which another program has fused matrices.
#[test]
fn several_tensors_in_one_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("m.gguf");
    let fused = dir.path().join("fused.gguf");
    for (name, stems, fused_stem) in CASES {
        let source = fixture(name);
        let to = ["--to", "gguf:f16", "--force", "-o"];
        run(convert().arg(&source).args(to).arg(&plain)).code(0);
        fuse(&GgufFile::open(&plain).unwrap(), stems, fused_stem, &fused);
        let report = json(&compare(&source, &fused, &["--json"]).code(0).out);
        let named = format!("blk.0.{fused_stem}.weight");
        let rows = report["tensors"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["name"] == named.as_str()), "{report}");

        // Swap two rows of the parts.
        let mut bytes = fs_err::read(&fused).unwrap();
        let shown = json(&run(onboard().arg("show").arg(&fused).arg("--json")).code(0).out);
        let tensors = shown["tensors"].as_array().unwrap();
        let told = tensors.iter().find(|tensor| tensor["name"] == named.as_str()).unwrap();
        let at = number(&told["offset"]);
        let row = 2 * number(told["shape"].as_array().unwrap().last().unwrap());
        bytes[at..at + 2 * row].rotate_left(row);
        fs_err::write(&fused, bytes).unwrap();
        let ran = compare(&source, &fused, &["--json"]).code(1);
        ran.says(&format!("tensor `{named}` is off"));
    }
}

/// Formats of [`damages_of_six_formats_are_found`].
const FORMATS: [&str; 6] = ["gguf:q4_k_m", "gguf:q8_0", "gguf:f16", "bf16", "fp8", "nvfp4"];

/// Range of a file that holds the bytes of a tensor, and the size of its rows.
struct TensorRange {
    begin: usize,
    len: usize,
    row: usize,
}

impl TensorRange {
    /// Returns the range of a tensor with a `shape`.
    fn of(tensor: &Value, begin: usize, len: usize) -> Self {
        let rows = tensor["shape"].as_array().unwrap().iter().rev().skip(1).map(number);
        Self { begin, len, row: len / rows.product::<usize>().max(1) }
    }
}

/// Returns the tensors of a file whose encoding determines every byte.
fn ranges(file: &Path) -> Vec<TensorRange> {
    if file.extension().is_some_and(|end| end == "gguf") {
        let shown = json(&run(onboard().arg("show").arg(file).arg("--json")).code(0).out);
        let tensors = shown["tensors"].as_array().unwrap().iter();
        return tensors
            .filter(|tensor: &&Value| tensor["type"] != "F32")
            .map(|tensor| {
                TensorRange::of(tensor, number(&tensor["offset"]), number(&tensor["bytes"]))
            })
            .collect();
    }
    let bytes = fs_err::read(file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let parsed: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let tensors = parsed.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(_, tensor): (&String, &Value)| {
            let begin = number(&tensor["data_offsets"][0]);
            let end = number(&tensor["data_offsets"][1]);
            TensorRange::of(tensor, header + begin, end - begin)
        })
        .collect()
}

/// Returns the next pseudo-random number below a limit.
fn random(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

/// Applies one of several kinds of damage to a tensor: bits, signs, zeros, exchanged rows.
fn damage(bytes: &mut [u8], TensorRange { begin, len, row }: &TensorRange, seed: &mut u64) {
    let tensor = &mut bytes[*begin..begin + len];
    let rows = len / row;
    let at = random(seed, *len);
    match random(seed, 5) {
        0 => tensor[at] ^= 1 << random(seed, 8),
        1 => tensor[at] ^= 0x80,
        2 => tensor[at / row * row..][..*row].fill(0),
        3 if rows > 1 => {
            let first = random(seed, rows - 1) * row;
            tensor[first..first + 2 * row].rotate_left(*row);
        }
        _ => {
            let end = (at + 1 + random(seed, 64)).min(*len);
            tensor[at..end].fill(0);
        }
    }
}

#[test]
fn damages_of_six_formats_are_found() {
    const DAMAGES: usize = 12;
    let source = fixture("llama_256");
    let mut seed = 5_u64;
    for format in FORMATS {
        let dir = tempfile::tempdir().unwrap();
        let (output, weights) = if format.starts_with("gguf:") {
            (dir.path().join("m.gguf"), dir.path().join("m.gguf"))
        } else {
            (dir.path().to_owned(), dir.path().join("model.safetensors"))
        };
        let to = ["--to", format, "--force", "-o"];
        run(convert().arg(&source).args(to).arg(&output)).code(0);
        verify(&output).code(0).prints("as written");
        compare(&source, &output, &[]).code(0);
        let hashes = if output == weights { "m.gguf.hashes" } else { "onboard.hashes" };
        let hashes = dir.path().join(hashes);
        let moved_hashes = dir.path().join("kept");
        let sound = fs_err::read(&weights).unwrap();
        let tensors = ranges(&weights);
        for n in 0..DAMAGES {
            let mut bytes = sound.clone();
            let tensor = &tensors[random(&mut seed, tensors.len())];
            damage(&mut bytes, tensor, &mut seed);
            if bytes == sound {
                continue;
            }
            fs_err::write(&weights, &bytes).unwrap();
            let ran = verify(&output);
            assert_eq!(ran.code, 1, "{format}, damage {n}: {ran:?}");
            // The source finds it without hashes.
            fs_err::rename(&hashes, &moved_hashes).unwrap();
            let ran = compare(&source, &output, &[]);
            assert!(ran.code == 1 || ran.code == 2, "{format}, damage {n}: {ran:?}");
            fs_err::rename(&moved_hashes, &hashes).unwrap();
        }
        fs_err::write(&weights, &sound).unwrap();
        compare(&source, &output, &[]).code(0);
        fs_err::remove_file(&hashes).unwrap();
        verify(&output).code(2).says("has no hashes");
    }
}

/// Blocks that an importance matrix weighted have other bytes than the source gives alone.
#[test]
fn blocks_of_other_encoders_are_compared_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let file = dir.path().join("m.gguf");
    let imatrix = dir.path().join("m.imatrix.gguf");
    let ids: Vec<String> = (1..65).map(|n| (n * 7 % 90).to_string()).collect();
    let measure = ["--chunk", "32", "--tokens", &ids.join(",")];
    run(onboard().arg("imatrix").arg(&source).args(measure).arg("-o").arg(&imatrix)).code(0);
    let to = ["--to", "gguf:q4_k_m", "-o"];
    run(convert().arg(&source).args(to).arg(&file).arg("--imatrix").arg(&imatrix)).code(0);
    fs_err::remove_file(dir.path().join("m.gguf.hashes")).unwrap();
    let ran = compare(&source, &file, &[]).code(0);
    ran.says("is compared with the error that its type explains");
    let exact = compare(&source, &file, &["--imatrix", imatrix.to_str().unwrap()]).code(0);
    assert!(!exact.err.contains("explains"), "{}", exact.err);
    let sound = fs_err::read(&file).unwrap();
    let tensors = ranges(&file);
    for TensorRange { begin, row, .. } in tensors.iter().step_by(3) {
        let mut zeroed = sound.clone();
        zeroed[*begin..begin + row].fill(0);
        let mut exchanged = sound.clone();
        exchanged[*begin..begin + 2 * row].rotate_left(*row);
        for bytes in [zeroed, exchanged] {
            fs_err::write(&file, bytes).unwrap();
            compare(&source, &file, &[]).code(1).says("are farther from the source");
        }
    }
}

#[test]
fn files_of_a_folder_that_changed_or_are_missing_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let to = ["--to", "bf16", "--split-max-size", "600k", "-o"];
    run(convert().arg(fixture("llama_256")).args(to).arg(&out)).code(0);
    verify(&out).code(0);
    let config = out.join("config.json");
    let text = fs_err::read_to_string(&config).unwrap();
    fs_err::write(&config, format!("{text} ")).unwrap();
    verify(&out).code(1).says("config.json");
    fs_err::write(&config, &text).unwrap();
    fs_err::write(out.join("notes.txt"), "mine").unwrap();
    verify(&out).code(0);
    fs_err::write(out.join("model-more.safetensors"), "").unwrap();
    verify(&out).code(1).says("model-more.safetensors` has no hashes");
    fs_err::remove_file(out.join("model-more.safetensors")).unwrap();
    fs_err::remove_file(out.join("tokenizer.json")).unwrap();
    verify(&out).code(1).says("tokenizer.json` is missing");
}

/// Without hashes, the source tells what stands beside the tensors.
#[test]
fn keys_and_bytes_beside_tensors_are_compared_without_hashes() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let file = dir.path().join("m.gguf");
    run(convert().arg(&source).args(["--to", "gguf:q8_0", "-o"]).arg(&file)).code(0);
    fs_err::remove_file(dir.path().join("m.gguf.hashes")).unwrap();
    compare(&source, &file, &[]).code(0);
    let sound = fs_err::read(&file).unwrap();
    let written = GgufFile::open(&file).unwrap();
    let tokens = written.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let token = tokens.iter().find(|token| token.len() > 3).unwrap();
    let at = sound.windows(token.len()).position(|bytes| bytes == token.as_bytes()).unwrap();
    let mut other_token = sound.clone();
    other_token[at] ^= 1;
    let mut other_key = sound.clone();
    let key = b"tokenizer.ggml.bos_token_id";
    let at = sound.windows(key.len()).position(|bytes| bytes == key).unwrap();
    other_key[at + key.len() - 1] ^= 1;
    let appended = [&sound[..], &[0; 64]].concat();
    for (bytes, fault) in [
        (other_token, "key `tokenizer.ggml.tokens` has `"),
        (other_key, "key `tokenizer.ggml.bos_token_id` is missing"),
        (appended, "are in no tensor"),
    ] {
        fs_err::write(&file, bytes).unwrap();
        compare(&source, &file, &[]).code(1).says(fault);
    }
}

#[test]
fn files_beside_the_weights_of_a_folder_are_compared_without_hashes() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let out = dir.path().join("out");
    run(convert().arg(&source).args(["--to", "fp8", "-o"]).arg(&out)).code(0);
    fs_err::remove_file(out.join("onboard.hashes")).unwrap();
    compare(&source, &out, &[]).code(0).says("no hashes");
    for (name, from, to, fault) in [
        ("tokenizer.json", "\"type\"", "\"typ\"", "tokenizer.json` has other bytes"),
        ("config.json", "\"rms_norm_eps\": ", "\"rms_norm_eps\": 1", "`rms_norm_eps` is `"),
        ("config.json", "{", "{\"more\": 1,", "`more` is `1`, expected absent"),
    ] {
        let path = out.join(name);
        let text = fs_err::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{name}");
        fs_err::write(&path, text.replacen(from, to, 1)).unwrap();
        compare(&source, &out, &[]).code(1).says(fault);
        fs_err::write(&path, text).unwrap();
    }
    fs_err::remove_file(out.join("tokenizer.json")).unwrap();
    compare(&source, &out, &[]).code(1).says("tokenizer.json` is missing");
}

#[test]
fn a_file_is_renamed_with_its_hashes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let renamed = dir.path().join("other.gguf");
    run(convert().arg(fixture("llama_256")).args(["--to", "gguf:q8_0", "-o"]).arg(&file)).code(0);
    fs_err::rename(&file, &renamed).unwrap();
    verify(&renamed).code(2).says("has no hashes");
    verify(&file).code(2).says("is not found");
    fs_err::rename(dir.path().join("m.gguf.hashes"), dir.path().join("other.gguf.hashes")).unwrap();
    verify(&renamed).code(0);
    let mut bytes = fs_err::read(&renamed).unwrap();
    bytes.push(0);
    fs_err::write(&renamed, bytes).unwrap();
    verify(&renamed).code(1).says("bytes");
}

/// A process that writes a shard hashes the small files of the folder with it.
#[test]
fn a_shard_of_a_folder_is_verified_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for shard in ["1/2", "2/2"] {
        let to = ["--to", "fp8", "--shard", shard, "-o"];
        run(convert().arg(fixture("llama_256")).args(to).arg(&out)).code(0);
    }
    verify(&out.join("model-00001-of-00002.safetensors")).code(0).prints("as written: 1 file");
}

/// Configs of wrapped models have no keys added for engines, and modelopt describes its format in a file.
#[test]
fn folders_of_wrapped_models_and_of_modelopt_are_compared_without_hashes() {
    let dir = tempfile::tempdir().unwrap();
    for (name, format) in [("gemma3", "fp8"), ("llama_256", "fp8:modelopt")] {
        let source = fixture(name);
        let out = dir.path().join(name);
        run(convert().arg(&source).args(["--to", format, "-o"]).arg(&out)).code(0);
        fs_err::remove_file(out.join("onboard.hashes")).unwrap();
        compare(&source, &out, &[]).code(0);
    }
    let source = fixture("llama_256");
    let beside = dir.path().join("llama_256/hf_quant_config.json");
    fs_err::write(&beside, "{}").unwrap();
    compare(&source, &dir.path().join("llama_256"), &[]).code(1).says("other bytes");
}

/// Numbers that JSON lacks stand in configs as Python writes them.
#[test]
fn a_config_with_infinity_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let out = dir.path().join("out");
    copy_folder(&fixture("mamba2"), &source);
    let config = source.join("config.json");
    let text = fs_err::read_to_string(&config).unwrap();
    let mut values: Value = serde_json::from_str(&text).unwrap();
    values["time_step_limit"] = serde_json::json!([0.0, "INFINITE"]);
    fs_err::write(&config, values.to_string().replace("\"INFINITE\"", "Infinity")).unwrap();
    run(convert().arg(&source).args(["--to", "bf16", "-o"]).arg(&out)).code(0);
    compare(&source, &out, &[]).code(0);
}
