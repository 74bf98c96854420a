//! Scales that are measured on a text: written, read again, undone, and run.

use std::collections::BTreeSet;
use std::path::Path;

use converters::numbers::{bf16_to_f32, f8_e4m3_scale, f32_to_bf16};
use converters::{Checkpoint, FileDtype};

use crate::tool::{Ran, convert, fixture, parity, run};

const BOTH: [&str; 2] = ["--static-activations", "--kv-scales"];

fn corpus() -> String {
    fixture("corpus.txt").display().to_string()
}

/// Converts a fixture with scales that its text tells.
fn calibrated(name: &str, to: &str, out: &Path, flags: &[&str]) -> Ran {
    let mut command = convert();
    command.arg(fixture(name)).args(["--to", to, "--calibrate", &corpus(), "--chunks", "4"]);
    run(command.args(flags).arg("-o").arg(out))
}

fn config(folder: &Path) -> serde_json::Value {
    let text = fs_err::read(folder.join("config.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).unwrap()["quantization_config"].clone()
}

/// The ids that `fixtures/quant_peer.py --calibrated` measures on.
fn ids() -> String {
    (1..=90).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn scales_are_written_where_engines_look_and_change_no_weight() {
    let dir = tempfile::tempdir().unwrap();
    for (name, layers, prefix) in
        [("llama_256", &[0, 1, 2][..], "mlp.gate_proj"), ("lfm2_256", &[1][..], "feed_forward.w1")]
    {
        let path = |end: &str| dir.path().join(format!("{name}{end}"));
        let (out, plain) = (path(""), path("-plain"));
        calibrated(name, "fp8", &out, &BOTH).code(0).says("scales measured on 4 chunks");
        run(convert().arg(fixture(name)).args(["--to", "fp8", "-o"]).arg(&plain)).code(0);
        let said = config(&out);
        let float = serde_json::json!({
            "num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "strategy": "tensor",
        });
        assert_eq!(said["kv_cache_scheme"], float);
        assert_eq!(said["config_groups"]["group_0"]["input_activations"], float);
        let (new, old) = (Checkpoint::open(&out).unwrap(), Checkpoint::open(&plain).unwrap());
        // Readers see the weights alone.
        assert!(new.tensors().keys().eq(old.tensors().keys()));
        let kept = new.stored_len() - old.stored_len();
        let matrices = new.tensors().keys().filter(|tensor| new.is_quantized(tensor)).count();
        assert_eq!(kept, matrices + 2 * layers.len());
        let scale = |tensor: &str| new.scale(tensor).unwrap().unwrap_or_else(|| panic!("{tensor}"));
        for layer in layers {
            let of = |end: &str| scale(&format!("model.layers.{layer}.self_attn.{end}"));
            let info = new.stored(&format!("model.layers.{layer}.self_attn.k_scale")).unwrap();
            assert_eq!((info.dtype, &info.shape[..]), (FileDtype::Bf16, &[1][..]));
            assert_eq!(of("q_proj.input_scale"), of("k_proj.input_scale"));
            assert_eq!(of("q_proj.input_scale"), of("v_proj.input_scale"));
            assert!(of("k_scale") != of("v_scale") && of("k_scale") < 1.0);
        }
        assert_ne!(scale("model.layers.1.self_attn.k_scale"), 1.0);
        scale(&format!("model.layers.1.{prefix}.input_scale"));
        // Undone, and as a GGUF file: what the same folder gives without scales.
        for to in ["bf16", "gguf:f32"] {
            let mut made = Vec::new();
            for (folder, end) in [(&out, "a"), (&plain, "b")] {
                let undone = path(&format!("-{}-{end}", to.replace(':', "-")));
                let mut command = convert();
                let ran = run(command.arg(folder).args(["--to", to, "-o"]).arg(&undone)).code(0);
                assert!(!ran.err.contains("_scale"), "{}", ran.err);
                // A GGUF file names the folder that it was made of, and carries its config.
                if to == "bf16" {
                    made.push(fs_err::read(undone.join("model.safetensors")).unwrap());
                }
            }
            assert!(made.windows(2).all(|two| two[0] == two[1]));
        }
        let mut check = parity();
        check.arg("check").arg(&out).arg("--reference").arg(fixture(name).join("reference"));
        check.arg("--w8a8").args(["--set", "states.kv.dtype=f8_e4m3"]);
        run(&mut check).code(0).prints("within its bands");
    }
}

/// The largest differences in rows of states as the reference keeps them, and of 8 bits.
fn apart(out: &Path, dump: &Path, flags: &[&str]) -> (f64, f64) {
    let mut check = parity();
    check.arg("check").arg(out).arg("--reference").arg(dump).args(["--no-schedules", "--json"]);
    let ran = run(check.args(["--set", "states.kv.dtype=f8_e4m3"]).args(flags));
    assert!(ran.code < 2, "{}", ran.err);
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let largest = |narrow: bool| -> f64 {
        let runs = told["runs"].as_array().unwrap().iter();
        let runs = runs.filter(|run| run["part"].is_string() == narrow);
        let phases = runs.flat_map(|run| run["phases"].as_array().unwrap());
        phases.map(|phase| phase["max"].as_f64().unwrap()).fold(0.0, f64::max)
    };
    (largest(false), largest(true))
}

/// `fixtures/quant_peer.py --calibrated` makes the dump: transformers' own forward with the stored
/// scales, of rows and of keys and values.
#[test]
fn arithmetic_with_stored_scales_is_the_references() {
    let dir = tempfile::tempdir().unwrap();
    let (out, dump) = (dir.path().join("out"), fixture("w8a8").join("olmo2_static"));
    let mut command = convert();
    command.arg(fixture("olmo2")).args(["--to", "fp8", "--calibrate-tokens", &ids()]);
    run(command.args(["--chunk", "30"]).args(BOTH).arg("-o").arg(&out)).code(0);
    let (wide, narrow) = apart(&out, &dump, &["--w8a8"]);
    assert!(narrow < 2e-5, "{narrow}");
    // Each of the two roundings is a large part of what the reference does.
    assert!(wide > 0.1, "{wide}");
    let (_, rows) = apart(&out, &dump, &[]);
    assert!(rows > 0.1, "{rows}");
    // A scale for each position is another number.
    let (_, heads) = apart(&out, &dump, &["--w8a8", "--set", "states.kv.dtype=f8_e4m3_heads"]);
    assert!(heads > 0.01, "{heads}");
}

#[test]
fn bytes_follow_from_the_text_alone() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |end: &str, flags: &[&str]| {
        let out = dir.path().join(end);
        calibrated("qwen3_moe", "fp8:tensor", &out, &[&BOTH[..], flags].concat()).code(0);
        fs_err::read(out.join("model.safetensors")).unwrap()
    };
    let one = bytes("one", &["--threads", "1", "--slab", "1"]);
    assert!(one == bytes("three", &["--threads", "3"]));
    assert!(one != bytes("other", &["--chunk", "16"]), "another text, other scales");
    // A mixture has one scale for what goes in, and one for what comes last.
    let made = Checkpoint::open(&dir.path().join("one")).unwrap();
    let experts = |end: &str| -> BTreeSet<u32> {
        let names = (0..8).map(|e| format!("model.layers.0.mlp.experts.{e}.{end}.input_scale"));
        names.filter_map(|name| made.scale(&name).unwrap()).map(f32::to_bits).collect()
    };
    assert_eq!(experts("gate_proj").len(), 1);
    assert_eq!(experts("gate_proj"), experts("up_proj"));
    assert_eq!(experts("down_proj").len(), 1);
    assert_ne!(experts("gate_proj"), experts("down_proj"));
    // Files that machines write apart are one checkpoint.
    let out = dir.path().join("shards");
    for shard in ["1/2", "2/2"] {
        calibrated("qwen3_moe", "fp8:tensor", &out, &[&BOTH[..], &["--shard", shard]].concat())
            .code(0);
    }
    let shards = Checkpoint::open(&out).unwrap();
    assert_eq!(shards.stored_len(), made.stored_len());
    // A plan measures nothing, and has every tensor.
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
    let made = Checkpoint::open(&out).unwrap();
    for end in ["k_proj.k_scale", "v_proj.v_scale", "q_proj.input_scale", "q_proj.weight_scale"] {
        let info = made.stored(&format!("model.layers.0.self_attn.{end}"));
        let info = info.unwrap_or_else(|| panic!("{end}"));
        assert_eq!((info.dtype, &info.shape[..]), (FileDtype::F32, &[][..]), "{end}");
    }
    let mut check = parity();
    check.arg("check").arg(&out).arg("--reference").arg(fixture("llama_256").join("reference"));
    run(check.args(["--w8a8", "--set", "states.kv.dtype=f8_e4m3"])).code(0);
    // Scales of squares stay, keys and values have theirs.
    let out = dir.path().join("block");
    calibrated("llama_256", "fp8:block", &out, &["--kv-scales"]).code(0);
    let made = Checkpoint::open(&out).unwrap();
    let scale = made.scale("model.layers.0.self_attn.k_scale").unwrap().unwrap();
    let bf16 = calibrated_in_bf16(dir.path());
    assert!((scale - bf16).abs() <= scale / 256.0, "{scale} {bf16}");
    assert_eq!(bf16, bf16_to_f32(f32_to_bf16(f8_e4m3_scale(scale * 448.0))));
}

/// The same scale as another format keeps it.
fn calibrated_in_bf16(dir: &Path) -> f32 {
    let out = dir.join("nvfp4");
    calibrated("llama_256", "nvfp4", &out, &["--kv-scales"]).code(0);
    let made = Checkpoint::open(&out).unwrap();
    made.scale("model.layers.0.self_attn.k_scale").unwrap().unwrap()
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
    let ids = |name: &str, ids: &str, flags: &[&str]| {
        let mut command = convert();
        command.arg(fixture(name)).args(["--to", "fp8", "--calibrate-tokens", ids, "-o"]).arg(&out);
        run(command.args(flags))
    };
    ids("mamba", "1,2,3,4", &["--kv-scales", "--chunk", "4"]).code(2).says("keeps no keys and");
    ids("llama_256", "1,2,3", &["--kv-scales", "--chunk", "4"]).code(2).says("give a longer text");
    assert!(!out.exists());
}
