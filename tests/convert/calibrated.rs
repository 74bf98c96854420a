//! Tests of calibrated scales: written, read again, removed, and run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use checkpoints::Checkpoint;
use formats::FileDtype;
use formats::gguf::{GgufFile, GgufTensor};
use formats::numbers::{bf16_to_f32, f8_e4m3_scale, f32_to_bf16};

use crate::tool::{Ran, convert, fixture, parity, run};

const BOTH: [&str; 2] = ["--static-activations", "--kv-scales"];

fn corpus() -> String {
    fixture("corpus.txt").display().to_string()
}

/// Converts a fixture with scales calibrated on its text.
fn calibrated(name: &str, to: &str, out: &Path, flags: &[&str]) -> Ran {
    let mut command = convert();
    command.arg(fixture(name)).args(["--to", to, "--calibrate", &corpus(), "--chunks", "4"]);
    run(command.args(flags).arg("-o").arg(out))
}

fn config(folder: &Path) -> serde_json::Value {
    let text = fs_err::read(folder.join("config.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).unwrap()["quantization_config"].clone()
}

/// Returns the tensors of a GGUF file. Its keys name the source folder, and contain its config.
fn tensors(file: &Path) -> Vec<(String, Vec<u8>)> {
    let file = GgufFile::open(file).unwrap();
    file.tensors()
        .iter()
        .map(|info: &GgufTensor| {
            let form = format!("{}: {} {:?}", info.name, info.ty, info.shape);
            (form, file.bytes(&info.name).unwrap().to_vec())
        })
        .collect()
}

/// Returns a scale that has to be there.
fn scale(checkpoint: &Checkpoint, tensor: &str) -> f32 {
    checkpoint.scale(tensor).unwrap().unwrap_or_else(|| panic!("{tensor}"))
}

/// Returns the ids that `fixtures/quant_peer.py --calibrated` calibrates on.
fn ids() -> String {
    (1..=90).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn scales_are_written_where_engines_look_and_change_no_weight() {
    let dir = tempfile::tempdir().unwrap();
    for (name, layers, prefix) in
        [("llama_256", &[0, 1, 2][..], "mlp.gate_proj"), ("lfm2_256", &[1][..], "feed_forward.w1")]
    {
        let out = dir.path().join(name);
        let plain = dir.path().join(format!("{name}-plain"));
        calibrated(name, "fp8", &out, &BOTH).code(0).says("scales measured on 4 chunks");
        run(convert().arg(fixture(name)).args(["--to", "fp8", "-o"]).arg(&plain)).code(0);
        let quantization = config(&out);
        let float = serde_json::json!({
            "num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "strategy": "tensor",
        });
        assert_eq!(quantization["kv_cache_scheme"], float);
        assert_eq!(quantization["config_groups"]["group_0"]["input_activations"], float);
        let new = Checkpoint::open(&out).unwrap();
        let old = Checkpoint::open(&plain).unwrap();
        // Readers see only the weights.
        assert!(new.tensors().keys().eq(old.tensors().keys()));
        let added_count = new.stored_len() - old.stored_len();
        let matrices = new.tensors().keys().filter(|tensor| new.is_quantized(tensor)).count();
        assert_eq!(added_count, matrices + 2 * layers.len());
        for layer in layers {
            let info = new.stored(&format!("model.layers.{layer}.self_attn.k_scale")).unwrap();
            assert_eq!((info.dtype, &info.shape[..]), (FileDtype::Bf16, &[1][..]));
            let [q_input, k_input, v_input, keys, values] = [
                "q_proj.input_scale",
                "k_proj.input_scale",
                "v_proj.input_scale",
                "k_scale",
                "v_scale",
            ]
            .map(|end: &str| scale(&new, &format!("model.layers.{layer}.self_attn.{end}")));
            assert_eq!(q_input, k_input);
            assert_eq!(q_input, v_input);
            assert!(keys != values && keys < 1.0);
        }
        assert_ne!(scale(&new, "model.layers.1.self_attn.k_scale"), 1.0);
        scale(&new, &format!("model.layers.1.{prefix}.input_scale"));
        // Converted back, and as a GGUF file: the same results as the folder without scales.
        for to in ["bf16", "gguf:f32"] {
            let mut outputs = Vec::new();
            for (folder, end) in [(&out, "a"), (&plain, "b")] {
                let undone = dir.path().join(format!("{name}-{}-{end}", to.replace(':', "-")));
                let mut command = convert();
                let ran = run(command.arg(folder).args(["--to", to, "-o"]).arg(&undone)).code(0);
                let noted = ran.err.contains("k_scale`: the format has none, they are left out");
                assert_eq!(noted, end == "a", "{}", ran.err);
                outputs.push(if to == "bf16" {
                    let file = undone.join("model.safetensors");
                    vec![("all".to_owned(), fs_err::read(file).unwrap())]
                } else {
                    tensors(&undone)
                });
            }
            assert!(!outputs[0].is_empty() && outputs[0] == outputs[1], "{to}");
        }
        // Other formats do not drop them without a flag.
        let mut again = convert();
        again.arg(&out).args(["--to", "nvfp4", "--plan", "-o"]);
        again.arg(dir.path().join(format!("{name}-n")));
        run(&mut again).code(2).says("scales of activations").says("--drop-scales");
        run(again.arg("--drop-scales")).code(0);
        let mut check = parity();
        check.arg("check").arg(&out).arg("--reference").arg(fixture(name).join("reference"));
        check.arg("--w8a8").args(["--set", "states.kv.dtype=f8_e4m3"]);
        run(&mut check).code(0).prints("within its bands");
    }
}

/// Returns the result of `parity check` on a dump, and its exit code.
fn told(out: &Path, dump: &Path, flags: &[&str]) -> (serde_json::Value, i32, String) {
    let mut check = parity();
    check.arg("check").arg(out).arg("--reference").arg(dump).args(["--no-schedules", "--json"]);
    let ran = run(check.args(flags));
    assert!(ran.code < 2, "{}", ran.err);
    (serde_json::from_str(&ran.out).unwrap(), ran.code, ran.err)
}

/// Returns the largest difference of a log-probability in judged rows, or in those of `part`.
fn largest(told: &serde_json::Value, part: Option<&str>) -> f64 {
    let runs = told["runs"].as_array().unwrap().iter();
    let runs = runs.filter(|run| run["part"].as_str() == part);
    // A key of the last prompt lies at the threshold of two codes: the reference's own prefill rounds it to
    // one, its steps to the other.
    let phases = runs.flat_map(|run| run["phases"].as_array().unwrap());
    let phases: Vec<_> = phases.filter(|phase| phase["phase"] == "decode").collect();
    assert!(!phases.is_empty(), "{part:?}");
    phases.iter().map(|phase| phase["max"].as_f64().unwrap()).fold(0.0, f64::max)
}

/// Writes the fixture whose dump `fixtures/quant_peer.py --calibrated` makes: transformers' own forward
/// pass with the stored scales of rows, keys and values.
fn still(dir: &Path) -> PathBuf {
    let out = dir.join("out");
    let mut command = convert();
    command.arg(fixture("olmo2")).args(["--to", "fp8", "--calibrate-tokens", &ids()]);
    run(command.args(["--chunk", "30"]).args(BOTH).arg("-o").arg(&out)).code(0);
    out
}

/// Copies a dump with another declaration about keys and values.
fn retold(dir: &Path, from: &Path, word: Option<&str>) -> PathBuf {
    let to = dir.join(word.unwrap_or("nothing"));
    fs_err::create_dir(&to).unwrap();
    fs_err::copy(from.join("reference.safetensors"), to.join("reference.safetensors")).unwrap();
    let text = fs_err::read(from.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    manifest.as_object_mut().unwrap().remove("sha256");
    match word {
        Some(word) => manifest["caches"] = word.into(),
        None => drop(manifest.as_object_mut().unwrap().remove("caches")),
    }
    fs_err::write(to.join("manifest.json"), manifest.to_string()).unwrap();
    to
}

#[test]
fn arithmetic_with_stored_scales_is_the_references() {
    let dir = tempfile::tempdir().unwrap();
    let out = still(dir.path());
    let dump = fixture("w8a8/olmo2_static");
    for flags in [&[][..], &["--plain-graph"], &["--set", "states.kv.dtype=f8_e4m3"]] {
        let (told, code, err) = told(&out, &dump, flags);
        assert_eq!((code, &told["verdict"]), (0, &"pass".into()), "{told}");
        assert!(!err.contains("note: the config has"), "{err}");
        assert!(largest(&told, None) < 2e-5, "{told}");
        let runs = told["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 1, "no row that judges nothing");
        assert_eq!(runs[0]["phases"][1]["verdict"], "pass");
        assert!(
            runs[0]["gates"]
                .as_array()
                .unwrap()
                .iter()
                .any(|gate| { gate["subject"]["kind"] == "state" && gate["verdict"] == "pass" })
        );
        let notes = told["notes"].to_string();
        assert!(notes.contains("so they are kept in that here"), "{notes}");
    }
    // Each of the two roundings is a large part of the reference's rounding, and a scale per position gives
    // other values.
    for (flags, least) in [
        (&["--w8a16"][..], 0.1),
        (&["--set", "states.kv.dtype=activation"], 0.1),
        (&["--set", "states.kv.dtype=f8_e4m3_heads"], 0.01),
    ] {
        let (told, code, _) = told(&out, &dump, flags);
        assert_eq!(code, 1, "{told}");
        assert!(largest(&told, None) > least, "{told}");
    }
}

#[test]
fn a_dump_that_does_not_say_what_keys_became_is_asked_about() {
    let dir = tempfile::tempdir().unwrap();
    let out = still(dir.path());
    let dump = fixture("w8a8/olmo2_static");
    let older = retold(dir.path(), &dump, None);
    let (wide, code, err) = told(&out, &older, &[]);
    assert_eq!(code, 1, "{wide}");
    assert!(err.contains("(`kv_cache_scheme`), and the dump does not say"), "{err}");
    assert!(err.contains("give --set states.kv.dtype=f8_e4m3 to see"), "{err}");
    assert!(largest(&wide, None) > 0.1, "{wide}");
    // As with any dump, separate rows show the cost of 8 bits.
    let (both, _, err) = told(&out, &older, &["--set", "states.kv.dtype=f8_e4m3"]);
    assert!(!err.contains("kv_cache_scheme"), "{err}");
    assert!(largest(&both, None) > 0.1 && largest(&both, Some("f8_e4m3")) < 2e-5, "{both}");
    // A dump that declares no rounding is trusted.
    let plain = retold(dir.path(), &dump, Some("none"));
    let (wide, code, err) = told(&out, &plain, &[]);
    assert_eq!(code, 1, "{wide}");
    assert!(!err.contains("kv_cache_scheme"), "{err}");
    // A dump that declares rounding does not fit a checkpoint without scales.
    let coded = fixture("coded/llama_int8");
    let lies = dir.path().join("lies");
    fs_err::create_dir(&lies).unwrap();
    let lies = retold(&lies, &coded.join("reference"), Some("f8_e4m3"));
    let mut check = parity();
    run(check.arg("check").arg(&coded).arg("--reference").arg(lies))
        .code(2)
        .says("has none: no tensor `model.layers.0.self_attn.k_scale`, nor one of another layer");
    let odd = retold(dir.path(), &dump, Some("int of 8 bits"));
    let mut check = parity();
    run(check.arg("check").arg(&out).arg("--reference").arg(odd))
        .code(2)
        .says("manifest.json`: `caches` is `int of 8 bits`; expected `none` or `f8_e4m3`");
}

/// Returns the weights of a calibrated mixture.
fn mixture_bytes(out: &Path, flags: &[&str]) -> Vec<u8> {
    calibrated("qwen3_moe", "fp8:tensor", out, &[&BOTH[..], flags].concat()).code(0);
    fs_err::read(out.join("model.safetensors")).unwrap()
}

/// Returns the different input scales of one matrix of all experts.
fn expert_scales(mixture: &Checkpoint, matrix: &str) -> BTreeSet<u32> {
    let names = (0..8).map(|e| format!("model.layers.0.mlp.experts.{e}.{matrix}.input_scale"));
    names.filter_map(|name| mixture.scale(&name).unwrap()).map(f32::to_bits).collect()
}

#[test]
fn bytes_follow_from_the_text_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("one");
    let one = mixture_bytes(&folder, &["--threads", "1", "--slab", "1"]);
    assert!(one == mixture_bytes(&dir.path().join("three"), &["--threads", "3"]));
    let other = mixture_bytes(&dir.path().join("other"), &["--chunk", "16"]);
    assert!(one != other, "another text, other scales");
    // A mixture has one scale for the inputs of experts, and one for those of the last matrices.
    let mixture = Checkpoint::open(&folder).unwrap();
    let [gate, up, down] =
        ["gate_proj", "up_proj", "down_proj"].map(|matrix| expert_scales(&mixture, matrix));
    assert_eq!(gate.len(), 1);
    assert_eq!(gate, up);
    assert_eq!(down.len(), 1);
    assert_ne!(gate, down);
    // Files written on separate machines form one checkpoint.
    let out = dir.path().join("shards");
    for shard in ["1/2", "2/2"] {
        calibrated("qwen3_moe", "fp8:tensor", &out, &[&BOTH[..], &["--shard", shard]].concat())
            .code(0);
    }
    let shards = Checkpoint::open(&out).unwrap();
    assert_eq!(shards.stored_len(), mixture.stored_len());
    // A plan measures nothing, and lists every tensor.
    let plan = calibrated("qwen3_moe", "fp8:tensor", &out, &[&BOTH[..], &["--plan"]].concat());
    let plan = plan.code(0).prints("self_attn.k_scale").prints("experts.0.gate_proj.input_scale");
    assert!(!plan.err.contains("measured"));
}

#[test]
fn formats_have_their_own_words_for_scales() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("modelopt");
    calibrated("llama_256", "fp8:modelopt", &out, &BOTH).code(0);
    let text = fs_err::read(out.join("hf_quant_config.json")).unwrap();
    let beside: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(beside["quantization"]["quant_algo"], "FP8");
    assert_eq!(beside["quantization"]["kv_cache_quant_algo"], "FP8");
    assert_eq!(config(&out)["quant_algo"], "FP8");
    let checkpoint = Checkpoint::open(&out).unwrap();
    for end in ["k_proj.k_scale", "v_proj.v_scale", "q_proj.input_scale", "q_proj.weight_scale"] {
        let info = checkpoint.stored(&format!("model.layers.0.self_attn.{end}"));
        let info = info.unwrap_or_else(|| panic!("{end}"));
        assert_eq!((info.dtype, &info.shape[..]), (FileDtype::F32, &[][..]), "{end}");
    }
    let mut check = parity();
    check.arg("check").arg(&out).arg("--reference").arg(fixture("llama_256").join("reference"));
    run(check.args(["--w8a8", "--set", "states.kv.dtype=f8_e4m3"])).code(0);
    // Block scales stay, and keys and values have their own.
    let out = dir.path().join("block");
    calibrated("llama_256", "fp8:block", &out, &["--kv-scales"]).code(0);
    let scale = scale(&Checkpoint::open(&out).unwrap(), "model.layers.0.self_attn.k_scale");
    let bf16 = calibrated_in_bf16(dir.path());
    assert!((scale - bf16).abs() <= scale / 256.0, "{scale} {bf16}");
    assert_eq!(bf16, bf16_to_f32(f32_to_bf16(f8_e4m3_scale(scale * 448.0))));
}

/// Returns the same scale as stored by another format.
fn calibrated_in_bf16(dir: &Path) -> f32 {
    let out = dir.join("nvfp4");
    calibrated("llama_256", "nvfp4", &out, &["--kv-scales"]).code(0);
    scale(&Checkpoint::open(&out).unwrap(), "model.layers.0.self_attn.k_scale")
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for to in ["fp8:block", "fp8:ct-block"] {
        calibrated("llama_256", to, &out, &BOTH).code(2).says("in groups of 128 as they come");
    }
    calibrated("llama_256", "nvfp4", &out, &BOTH).code(2).says("multiply rows of 16 bits");
    calibrated("llama_256", "bf16", &out, &["--kv-scales"]).code(2).says("has no scales");
    calibrated("llama_256", "fp8", &out, &[]).code(2).says("give one of them");
    calibrated("llama_256", "gguf:q8_0", &out, &BOTH).code(2).says("a GGUF file has no such");
    let mut command = convert();
    command.arg(fixture("llama_256")).args(["--to", "fp8", "-o"]).arg(&out).args(BOTH);
    run(&mut command).code(2).says("give --calibrate FILE");
    for (name, ids, words) in
        [("mamba", "1,2,3,4", "keeps no keys and"), ("llama_256", "1,2,3", "give a longer text")]
    {
        let mut command = convert();
        command.arg(fixture(name)).args(["--to", "fp8", "--calibrate-tokens", ids, "-o"]).arg(&out);
        run(command.args(["--kv-scales", "--chunk", "4"])).code(2).says(words);
    }
    assert!(!out.exists());
}
