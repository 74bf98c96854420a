//! Tests of checkpoints of 8 and 4 bits with the commands: written, opened again, and their cost.

use std::path::Path;

use crate::tool::{Ran, convert, fixture, onboard, parity, root, run};

/// Returns the mean divergence that a check printed.
pub(crate) fn divergence(text: &str) -> f64 {
    let (_, after) = text.split_once("mean ").expect("a divergence");
    after.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn eight_bits_cost_more_where_activations_have_them_too() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let mut means = Vec::new();
    for (to, flags) in
        [("fp8", &[][..]), ("fp8", &["--w8a8"]), ("nvfp4", &[]), ("nvfp4", &["--w8a8"])]
    {
        let out = dir.path().join(to);
        run(convert().arg(&source).args(["--to", to, "--force", "-o"]).arg(&out)).code(0);
        let mut check = parity();
        check.arg("check").arg(&out).arg("--reference").arg(source.join("reference"));
        let ran = run(check.arg("--source").arg(&source).args(flags)).code(0);
        means.push(divergence(&ran.prints("within its bands").out));
    }
    let [fp8, w8a8, nvfp4, same] = means[..] else { panic!("four checks") };
    assert!(1e-4 < fp8 && fp8 < w8a8 && w8a8 < nvfp4, "{means:?}");
    // Only 8-bit matrices multiply 8-bit inputs.
    assert_eq!(nvfp4, same);
}

/// Plans a conversion into a folder.
fn plan(model: &Path, to: &str, out: &Path) -> Ran {
    run(convert().arg(model).args(["--to", to, "--plan", "-o"]).arg(out)).code(0)
}

#[test]
fn plans_name_what_is_kept_and_what_cannot_be_spread() {
    let dir = tempfile::tempdir().unwrap();
    let llama = fixture("llama_256");
    plan(&llama, "fp8", dir.path()).prints("21 quantized").prints(
        "kept, its product is the logits; --quantize-output quantizes it too: lm_head.weight",
    );
    let ran = plan(&llama, "fp8:block", dir.path());
    ran.prints("64x256 does not divide into blocks of 128").prints(
        "`model.layers.0.mlp.up_proj.weight` cannot be spread, its rows over more than 2 devices",
    );
    plan(&fixture("deepseek_v3"), "fp8:block", dir.path()).prints("0 quantized");
    // Loaders without support for the format are named at conversion, and in the list of formats.
    plan(&llama, "fp8:modelopt", dir.path()).says("ignores ModelOpt's scales");
    run(convert().args(["--to", "help"])).code(0).prints("no mixtures in transformers");
}

/// `fixtures/quant_peer.py --arithmetic` makes the dumps: transformers' own forward pass of the converted
/// folder, with rows rounded to e4m3 before each matrix.
#[test]
fn arithmetic_of_eight_bits_is_the_references() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_256", "lfm2_256"] {
        let out = dir.path().join(name);
        run(convert().arg(fixture(name)).args(["--to", "fp8", "-o"]).arg(&out)).code(0);
        // The dump declares the rounding of its reference.
        for (flags, code, verdict) in
            [(&[][..], 0, "AGREE"), (&["--w8a8"], 0, "AGREE"), (&["--w8a16"], 1, "DIFFER")]
        {
            let mut check = parity();
            check.arg("check").arg(&out).arg("--reference").arg(fixture("w8a8").join(name));
            run(check.arg("--no-schedules").args(flags)).code(code).prints(verdict);
        }
    }
}

#[test]
fn squares_of_eight_bits_become_a_file_that_passes() {
    let dir = tempfile::tempdir().unwrap();
    let source = root().join("fixtures/coded/deepseek_v3");
    run(parity().arg("check").arg(&source)).code(0).prints("AGREE");
    for (to, verdict) in [("f32", "AGREE"), ("q8_0", "within its bands")] {
        let file = dir.path().join(format!("{to}.gguf"));
        let to = format!("gguf:{to}");
        run(convert().arg(&source).args(["--to", &to, "-o"]).arg(&file)).code(0);
        let mut check = parity();
        check.arg("check").arg(&file).arg("--reference").arg(source.join("reference"));
        run(check.arg("--source").arg(&source)).code(0).prints(verdict);
    }
}

/// `fixtures/packed/models.py` makes it: matrices of 4 bits, of 8 bits and of e4m3 in one checkpoint, with
/// a dump of the weights that transformers decodes.
#[test]
fn whole_numbers_of_several_schemes_are_the_weights_they_stand_for() {
    let dir = tempfile::tempdir().unwrap();
    let source = root().join("fixtures/coded/llama_mixed");
    let ran = run(parity().arg("check").arg(&source)).code(0);
    assert!(divergence(&ran.out) < 1e-6, "{}", ran.out);
    let file = dir.path().join("model.gguf");
    run(convert().arg(&source).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    let mut check = parity();
    check.arg("check").arg(&file).arg("--reference").arg(source.join("reference"));
    run(&mut check).code(0).prints("AGREE");
}

/// Splits a file of tensors into its header and its data.
fn taken_apart(path: &Path) -> (serde_json::Value, Vec<u8>) {
    let mut bytes = fs_err::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let data = bytes.split_off(usize::try_from(header).unwrap() + 8);
    (serde_json::from_slice(&bytes[8..]).unwrap(), data)
}

fn put_together(path: &Path, header: &serde_json::Value, data: &[u8]) {
    let text = header.to_string();
    let length = (text.len() as u64).to_le_bytes();
    fs_err::write(path, [&length, text.as_bytes(), data].concat()).unwrap();
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

/// Writes the checkpoint of several schemes with an additional tensor, and a config with one word replaced.
fn changed(dir: &Path, bias: f32, from: &str, to: &str) {
    let source = root().join("fixtures/coded/llama_mixed");
    let config = fs_err::read_to_string(source.join("config.json")).unwrap();
    assert!(config.contains(from));
    fs_err::write(dir.join("config.json"), config.replace(from, to)).unwrap();
    let (mut tensors, mut data) = taken_apart(&source.join("model.safetensors"));
    let offsets = [data.len(), data.len() + 4];
    data.extend(bias.to_le_bytes());
    tensors["model.layers.0.self_attn.q_proj.bias"] =
        serde_json::json!({ "dtype": "F32", "shape": [1], "data_offsets": offsets });
    put_together(&dir.join("model.safetensors"), &tensors, &data);
}

#[test]
fn a_bias_of_nothing_beside_codes_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let source = root().join("fixtures/coded/llama_mixed");
    let mut check = parity();
    check.arg("check").arg(dir.path()).arg("--reference").arg(source.join("reference"));
    check.arg("--source").arg(&source);
    changed(dir.path(), 0.0, "llama", "llama");
    run(&mut check).code(0).prints("within its bands");
    changed(dir.path(), 0.5, "llama", "llama");
    run(&mut check).code(2).says("nothing uses the tensor `model.layers.0.self_attn.q_proj.bias`");
}

#[test]
fn a_method_that_is_not_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    changed(dir.path(), 0.0, "\"compressed-tensors\"", "\"hqq\"");
    run(convert().arg(dir.path()).args(["--to", "bf16", "-o", "never"]))
        .code(2)
        .says("quantized by `hqq` (`quantization_config.quant_method`), which is not read");
    let mlx = "\"quantization\": { \"bits\": 4, \"group_size\": 64 }, \"another_config\"";
    changed(dir.path(), 0.0, "\"quantization_config\"", mlx);
    run(convert().arg(dir.path()).args(["--to", "bf16", "-o", "never"]))
        .code(2)
        .says("quantized by `mlx`");
    run(convert().arg(fixture("llama")).args([
        "--to",
        "fp8",
        "--tensor-type",
        "ffn=q8_0",
        "-o",
        "never",
    ]))
    .code(2)
    .says("--tensor-type is for GGUF files");
}

#[test]
fn blocks_of_four_bits_are_packed_anew_without_loss() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let source = root().join("fixtures/coded/gpt_oss");
    let mut command = convert();
    command.arg(&source).args(["--to", "gguf:mxfp4_moe", "--tensor-type", "attn|embd|output=f32"]);
    run(command.arg("-o").arg(&file)).code(0);
    let told = run(convert().arg(&source).arg("--verify").arg(&file).arg("--json")).code(0).out;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let tensors = told["tensors"].as_array().unwrap();
    let packed = tensors.iter().filter(|row| row["type"] == "MXFP4");
    assert_eq!(packed.filter(|row| row["largest"] == 0.0).count(), 6);
    assert!(tensors.iter().all(|row| row["largest"] == 0.0), "{told}");
    let mut check = parity();
    check.arg("check").arg(&file).arg("--reference").arg(source.join("reference"));
    let ran = run(check.arg("--source").arg(&source)).code(0);
    assert!(divergence(&ran.out) < 1e-6, "{}", ran.out);
}

/// Converts `llama_256` with a target divergence.
fn to_meet(to: &str, kl: &str, out: &Path, more: &[&str]) -> Ran {
    let mut command = convert();
    command.arg(fixture("llama_256")).args(["--to", to, "--target-kl", kl]).args(more);
    run(command.arg("-o").arg(out))
}

#[test]
fn matrices_that_matter_most_are_kept_until_a_divergence_is_met() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    for (to, kl, target) in [("fp8", "2e-3", 2e-3), ("nvfp4", "5e-2", 5e-2)] {
        to_meet(to, kl, &dir.path().join(to), &[]).code(0).prints("divergence from the reference");
        let mut check = parity();
        check
            .arg("check")
            .arg(dir.path().join(to))
            .arg("--reference")
            .arg(source.join("reference"));
        let reached = divergence(&run(&mut check).code(0).out);
        // Some tensors are quantized, and not too many.
        assert!((target / 50.0..=target).contains(&reached), "{to}: {reached}");
        assert!(!dir.path().join(format!("{to}.trial")).exists());
    }
    // Machines that write one file each make the same choice.
    for shard in ["1/2", "2/2"] {
        let mut command = convert();
        command.arg(&source).args(["--to", "fp8", "--target-kl", "2e-3", "--shard", shard, "-o"]);
        run(command.arg(dir.path().join("set"))).code(0).says("one of 2 files cannot be run");
    }
    let fp8 = dir.path().join("fp8");
    assert_eq!(json(&dir.path().join("set/config.json")), json(&fp8.join("config.json")));
    let mut check = parity();
    check.arg("check").arg(dir.path().join("set")).arg("--reference").arg(source.join("reference"));
    assert!(divergence(&run(&mut check).code(0).out) <= 2e-3);
    let never = dir.path().join("never");
    to_meet("fp8", "1e-9", &never, &[]).code(2).says("cannot be met");
    assert!(!never.exists());
    to_meet("bf16", "1e-2", &never, &[]).code(2).says("`bf16` loses nothing");
    to_meet("fp8", "1e-2", &fp8, &[]).code(2).says("holds a checkpoint already");
    // A text replaces a dump.
    let corpus = fixture("corpus.txt");
    let on_text = ["--chunks", "2", "--text", corpus.to_str().unwrap()];
    let ran = to_meet("fp8", "2e-3", &dir.path().join("text"), &on_text).code(0);
    ran.says("own f32 run on 2 chunks of 128 tokens");
    let ran = to_meet("fp8", "1e-12", &never, &on_text).code(2);
    ran.says("cannot be met with a single matrix as fp8");
    assert!(!never.exists());
}

/// Loaders name modules as in memory, which can differ from tensor names on disk.
#[test]
fn encoders_are_kept_and_named_as_loaders_name_them() {
    let dir = tempfile::tempdir().unwrap();
    for (name, names) in [
        (
            "llava",
            &["model.multi_modal_projector.linear_1", "lm_head", "re:(model\\.)?vision_tower\\..*"]
                [..],
        ),
        ("qwen2_vl", &["model.visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv"]),
        ("gemma3", &["model.vision_tower.encoder.layers.0.mlp.fc1"]),
    ] {
        let out = dir.path().join(name);
        run(convert().arg(fixture(name)).args(["--to", "fp8", "-o"]).arg(&out)).code(0);
        let config = json(&out.join("config.json"));
        let ignored = config["quantization_config"]["ignore"].as_array().unwrap();
        for module in names {
            assert!(
                ignored.iter().any(|ignored| ignored == module),
                "{name}: {module}: {ignored:?}"
            );
        }
        let back = dir.path().join(format!("{name}.back"));
        run(convert().arg(&out).args(["--to", "bf16", "-o"]).arg(&back)).code(0);
    }
}

#[test]
fn experts_that_are_taken_apart_keep_the_beginning_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let out = dir.path().join("out");
    fs_err::create_dir(&source).unwrap();
    // A mixture with one tensor for all experts, as a vision-language model stores it.
    let mut inner = json(&fixture("llama4_text").join("config.json"));
    inner["model_type"] = "llama4_text".into();
    let outer = serde_json::json!({
        "architectures": ["Llama4ForConditionalGeneration"],
        "tie_word_embeddings": inner["tie_word_embeddings"],
        "text_config": inner,
    });
    fs_err::write(source.join("config.json"), outer.to_string()).unwrap();
    let (tensors, data) = taken_apart(&fixture("llama4_text").join("model.safetensors"));
    let wrapped = tensors.as_object().unwrap().iter().map(|(name, tensor)| {
        (name.replace("model.layers.", "language_model.model.layers."), tensor.clone())
    });
    let wrapped: serde_json::Map<_, _> = wrapped.collect();
    put_together(&source.join("model.safetensors"), &wrapped.into(), &data);
    run(convert().arg(&source).args(["--to", "fp8", "-o"]).arg(&out)).code(0);
    let (tensors, _) = taken_apart(&out.join("model.safetensors"));
    let experts: Vec<&String> =
        tensors.as_object().unwrap().keys().filter(|name| name.contains(".experts.")).collect();
    assert!(experts.iter().all(|name| name.starts_with("language_model.model.layers.")));
    assert!(experts.len() > 8, "{experts:?}");
}

/// The outer config declares an output matrix, the inner one none, as in released checkpoints.
#[test]
fn a_head_that_is_not_there_is_the_embedding_if_the_inner_config_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("lfm2_vl");
    let mut config = json(&source.join("config.json"));
    config["tie_word_embeddings"] = false.into();
    let mut check = parity();
    check.arg("check").arg(dir.path()).arg("--reference").arg(source.join("reference"));
    check.args(["--dtype", "f32", "--source"]).arg(&source);
    fs_err::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    assert_eq!(config["text_config"]["tie_word_embeddings"], true);
    let path = dir.path().join("config.json");
    fs_err::write(&path, config.to_string()).unwrap();
    run(&mut check).code(0).prints("AGREE");
    config["text_config"]["tie_word_embeddings"] = false.into();
    fs_err::write(&path, config.to_string()).unwrap();
    run(&mut check).code(2).says("no tensor `lm_head.weight`");
}

#[test]
fn a_mixture_that_a_loader_does_not_take_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let text = fs_err::read_to_string(fixture("qwen3_moe").join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    for key in ["hidden_size", "moe_intermediate_size", "intermediate_size", "head_dim"] {
        config[key] = 128.into();
    }
    let path = dir.path().join("config.json");
    let plain = dir.path().join("plain");
    fs_err::write(&path, config.to_string()).unwrap();
    let mut synth = onboard();
    synth.args(["synth", "qwen3_moe", "--dtype", "bf16", "--config"]).arg(&path);
    run(synth.arg("-o").arg(&plain)).code(0);
    let out = dir.path().join("out");
    plan(&plain, "fp8:ct-block", &out).says("does not load mixtures of fp8:ct-block");
    assert!(!plan(&plain, "fp8:block", &out).err.contains("does not load"));
}

/// Specs of the fixture with one mistake each, whose effect a quantization of four bits exceeds.
const WRONG_GRAPHS: [(&str, &str); 3] = [
    (
        "a layer without positions",
        "functions:
  turn(x): |
    return rope(x, main) if rotary else x
  attention(x): |
    q = turn(heads(linear(x, self_attn.q_proj, heads * head_dim), heads))
    k = turn(heads(linear(x, self_attn.k_proj, kv_heads * head_dim), kv_heads))
    v = heads(linear(x, self_attn.v_proj, kv_heads * head_dim), kv_heads)
    return linear(attend(q, k, v, kv, scale, window=window), self_attn.o_proj, hidden)
layers:
  each:
    window: null
    rotary: i != 1
",
    ),
    ("a window", "layers:\n  each:\n    window: 4\n"),
    ("another scale", "dims:\n  scale: = 1.3 * head_dim ** -0.5\n"),
];

#[test]
fn quantized_weights_hide_no_wrong_graph() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let file = dir.path().join("model.gguf");
    run(convert().arg(&source).args(["--to", "gguf:q4_k_m", "-o"]).arg(&file)).code(0);
    let folder = dir.path().join("fp8");
    run(convert().arg(&source).args(["--to", "fp8", "-o"]).arg(&folder)).code(0);
    let given = ["--source", source.to_str().unwrap()];
    for model in [&file, &folder] {
        // The dump lies in the folder of its source, which needs no flag then.
        for flags in [&given[..], &[]] {
            let right = checked(model, &source, flags).code(0).prints("graph: the reference's in");
            assert!(right.out.ends_with("within its bands\n"), "{}", right.out);
        }
        for (name, text) in WRONG_GRAPHS {
            let spec = dir.path().join("wrong.yaml");
            fs_err::write(&spec, format!("spec: 1\nname: wrong\nextends: llama\n{text}")).unwrap();
            let flags = [&given[..], &["--spec", spec.to_str().unwrap()]].concat();
            let ran = checked(model, &source, &flags).code(1).prints("first divergence: ");
            assert!(ran.out.contains("self_attn"), "{name}:\n{}", ran.out);
        }
    }
}

/// Checks a model against the dump of its source.
fn checked(model: &Path, source: &Path, more: &[&str]) -> Ran {
    let mut check = parity();
    check.arg("check").arg(model).arg("--reference").arg(source.join("reference"));
    run(check.args(more))
}

#[test]
fn a_graph_without_its_source_is_not_proven() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let file = dir.path().join("model.gguf");
    run(convert().arg(&source).args(["--to", "gguf:q8_0", "-o"]).arg(&file)).code(0);
    let dump = dir.path().join("dump");
    crate::tool::copy_folder(&source.join("reference"), &dump);
    let mut check = parity();
    check.arg("check").arg(&file).arg("--reference").arg(&dump);
    run(&mut check).code(0).prints("within its bands, graph not proven").says("--source DIR");
    let costs = run(check.arg("--json")).code(0).out;
    let costs: serde_json::Value = serde_json::from_str(&costs).unwrap();
    assert!(costs["graph"]["source"].is_null());
    assert_eq!(costs["verdict"], "within its bands, graph not proven");
}
