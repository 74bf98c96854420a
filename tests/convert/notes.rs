//! Tests of files that belong together, and of a conversion's notes on dropped or unchanged parts.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::tool::{Ran, convert, copy, fixture, json, parity, run};

/// Returns the byte range of a tensor in `model.safetensors`.
fn place(bytes: &[u8], name: &str) -> Range<usize> {
    let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header = json(std::str::from_utf8(&bytes[8..8 + len]).unwrap());
    let [begin, end] = [0, 1].map(|n: usize| {
        let offset = header[name]["data_offsets"][n].as_u64().expect("the tensor is there");
        8 + len + usize::try_from(offset).unwrap()
    });
    begin..end
}

/// Returns the scale of a matrix as it is stored.
fn scale(bytes: &[u8], matrix: &str) -> Vec<u8> {
    bytes[place(bytes, &format!("model.layers.{matrix}.weight_scale"))].to_vec()
}

/// Converts a model over an older output.
fn convert_over(source: &Path, to: &str, out: &Path) -> Ran {
    run(convert().arg(source).args(["--to", to, "--force", "-o"]).arg(out))
}

/// Replaces the bf16 values of a tensor.
fn change(folder: &Path, name: &str, to: fn(f32) -> f32) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs_err::read(&path).unwrap();
    let place = place(&bytes, name);
    for two in bytes[place].chunks_exact_mut(2) {
        let number = f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16);
        two.copy_from_slice(&to(number).to_bits().to_le_bytes()[2..]);
    }
    fs_err::write(path, bytes).unwrap();
}

/// Copies `llama_256` with other values in a matrix of the second layer.
fn changed(dir: &Path, matrix: &str, to: fn(f32) -> f32) -> PathBuf {
    let folder = dir.join("other");
    copy("llama_256", &folder);
    change(&folder, &format!("model.layers.1.{matrix}.weight"), to);
    folder
}

fn shard(source: &Path, to: &str, shard: &str, out: &Path) {
    run(convert().arg(source).args(["--to", to, "--shard", shard, "-o"]).arg(out)).code(0);
}

#[test]
fn parts_of_two_models_or_two_ways_are_no_set() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let other = changed(dir.path(), "mlp.up_proj", |x| 2.0 * x);
    let folder = dir.path();
    for (set, model, to) in
        [("a", &source, "q4_k_m"), ("b", &other, "q4_k_m"), ("c", &source, "q8_0")]
    {
        for no in ["1/2", "2/2"] {
            shard(model, &format!("gguf:{to}"), no, &folder.join(format!("{set}.gguf")));
        }
        let first = folder.join(format!("{set}-00001-of-00002.gguf"));
        run(convert().arg("merge-check").arg(first)).code(0).prints("complete: 2 files");
    }
    let first = folder.join("a-00001-of-00002.gguf");
    let second = folder.join("a-00002-of-00002.gguf");
    for set in ["b", "c"] {
        fs_err::copy(folder.join(format!("{set}-00002-of-00002.gguf")), &second).unwrap();
        let ran = run(convert().arg("merge-check").arg(&first)).code(2);
        ran.says("`onboard.set`").says("the files are not of one set");
    }
}

#[test]
fn folders_of_two_models_are_no_set() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let other = changed(dir.path(), "mlp.up_proj", |x| 2.0 * x);
    let first_model = dir.path().join("ours");
    let second_model = dir.path().join("theirs");
    for (model, out) in [(&source, &first_model), (&other, &second_model)] {
        shard(model, "fp8", "1/2", out);
        run(convert().arg("merge-check").arg(out)).code(2).says("model-00002-of-00002");
        shard(model, "fp8", "2/2", out);
        run(convert().arg("merge-check").arg(out)).code(0).prints("complete: 2 files");
    }
    let second = "model-00002-of-00002.safetensors";
    fs_err::copy(second_model.join(second), first_model.join(second)).unwrap();
    run(convert().arg("merge-check").arg(&first_model)).code(2).says("not of one set");
}

#[test]
fn numbers_below_a_types_scales_are_said_to_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let small = changed(dir.path(), "self_attn.v_proj", |x| 1e-7 * x);
    let file = dir.path().join("m.gguf");
    convert_over(&small, "gguf:q4_k_m", &file)
        .code(0)
        .says("warning: nothing is left of `blk.1.attn_v.weight`");
    assert!(!convert_over(&small, "gguf:bf16", &file).code(0).err.contains("nothing is left"));
}

#[test]
fn experts_that_stay_as_they_are_are_said_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    convert_over(&fixture("gpt_oss"), "fp8:modelopt", &out)
        .code(0)
        .says("of the numbers are experts that stay as they are");
    let config = json(&fs_err::read_to_string(out.join("config.json")).unwrap());
    let ignored = config["quantization_config"]["ignore"].as_array().unwrap();
    assert!(ignored.iter().any(|name| name == "model.layers.0.mlp.experts"), "{ignored:?}");
    // Files that engines read beside a config are removed with the old weights.
    assert!(out.join("hf_quant_config.json").exists());
    convert_over(&fixture("gpt_oss"), "bf16", &out).code(0);
    assert!(!out.join("hf_quant_config.json").exists());
}

#[test]
fn all_or_none_of_what_engines_fuse_is_quantized_and_with_one_scale() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    run(convert().arg(fixture("lfm2")).args(["--to", "fp8:tensor", "-o"]).arg(&out)).code(0);
    let bytes = fs_err::read(out.join("model.safetensors")).unwrap();
    assert_eq!(scale(&bytes, "0.feed_forward.w1"), scale(&bytes, "0.feed_forward.w3"));
    assert_ne!(scale(&bytes, "0.feed_forward.w1"), scale(&bytes, "1.feed_forward.w1"));
    assert_eq!(scale(&bytes, "2.self_attn.q_proj"), scale(&bytes, "2.self_attn.v_proj"));
}

#[test]
fn a_file_that_answers_the_same_to_everything_is_out_of_its_bands() {
    let dir = tempfile::tempdir().unwrap();
    let silent = dir.path().join("silent");
    copy("llama_256", &silent);
    change(&silent, "lm_head.weight", |_| 0.0);
    let reference = fixture("llama_256").join("reference");
    for (source, code) in [(&fixture("llama_256"), 0), (&silent, 1)] {
        let file = dir.path().join("m.gguf");
        let to = ["--to", "gguf:q4_k_m", "--force", "-o"];
        run(convert().arg(source).args(to).arg(&file)).code(0);
        run(parity().arg("check").arg(&file).arg("--reference").arg(&reference)).code(code);
    }
}
