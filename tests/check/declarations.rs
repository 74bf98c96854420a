//! Tests of checkpoints and files that deviate from their declarations.

use std::path::{Path, PathBuf};

use formats::FileDtype;
use formats::gguf::GgufFile;
use formats::numbers::{from_f32, to_f32};
use formats::safetensors::{SafetensorsFile, TensorEntry};
use serde_json::Value;

use crate::tensors::rewrite;
use crate::tool::{
    Ran, convert, copy, copy_folder, fixture, onboard, parity, remove_checksums, run,
};

/// A checkpoint names as many tensors as it likes, and an error shows some of them.
#[test]
fn errors_show_some_of_many_tensors() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama3", dir.path());
    let weights = dir.path().join("model.safetensors");
    rewrite(&fixture("llama3").join("model.safetensors"), &weights, |tensors| {
        let (entry, bytes) = tensors["model.norm.weight"].clone();
        for n in 0..40_000_u32 {
            // Names that differ by numbers alone would be one finding.
            let letters: String =
                (0..4).map(|place| char::from(b'a' + (n >> (4 * place) & 15) as u8)).collect();
            tensors.insert(format!("nobody.asks.for.{letters}"), (entry.clone(), bytes.clone()));
        }
    });
    let ran = run(onboard().args(["run", "--tokens", "1"]).arg(dir.path())).code(2);
    assert!(ran.says("... and ").err.len() < 64 << 10);
    let ran = run(onboard().args(["run", "--tokens", "1", "--format", "github"]).arg(dir.path()));
    assert!(ran.code(2).err.len() < 128 << 10);
}

/// Writes weights with a head: the embedding, each byte changed.
fn write_with_head(weights: &Path, change: u8) {
    rewrite(&fixture("llama3").join("model.safetensors"), weights, |tensors| {
        let (entry, mut bytes) = tensors["model.embed_tokens.weight"].clone();
        for byte in &mut bytes {
            *byte ^= change;
        }
        tensors.insert("lm_head.weight".to_owned(), (entry, bytes));
    });
}

#[test]
fn a_head_of_its_own_is_used_whatever_the_config_ties() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama3", dir.path());
    let weights = dir.path().join("model.safetensors");
    let mut show = onboard();
    show.args(["show", "--dims"]).arg(dir.path());
    write_with_head(&weights, 0);
    let ran = run(&mut show).code(0).prints("tied     = true");
    assert!(!ran.err.contains("not tied"), "{}", ran.err);
    write_with_head(&weights, 1);
    let ran = run(&mut show).code(0).prints("tied     = false");
    ran.says("the config ties `lm_head.weight`");
    // Conversions of it keep the output matrix, for any reader.
    let file = dir.path().join("m.gguf");
    let folder = dir.path().join("bf16");
    run(convert().arg(dir.path()).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    run(onboard().arg("show").arg(&file).args(["--dims", "--graph"]))
        .code(0)
        .prints("weight=lm_head.weight");
    run(convert().arg(dir.path()).args(["--to", "bf16", "-o"]).arg(&folder)).code(0);
    let config = fs_err::read_to_string(folder.join("config.json")).unwrap();
    assert!(config.contains("\"tie_word_embeddings\": false"), "{config}");
}

#[test]
fn configs_as_python_writes_them_are_converted() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("mamba2", &model);
    let config = model.join("config.json");
    let text = fs_err::read_to_string(&config).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["time_step_limit"] = serde_json::json!([0.0, "BEYOND"]);
    fs_err::write(&config, json.to_string().replace("\"BEYOND\"", "Infinity")).unwrap();
    let file = dir.path().join("m.gguf");
    let folder = dir.path().join("bf16");
    run(convert().arg(&model).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    run(onboard().arg("show").arg(&file).arg("--graph")).code(0);
    run(convert().arg(&model).args(["--to", "bf16", "-o"]).arg(&folder)).code(0);
    let written = fs_err::read_to_string(folder.join("config.json")).unwrap();
    assert!(written.contains("Infinity") && !written.contains("u0001"), "{written}");
}

#[test]
fn numbers_beyond_a_type_are_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama", dir.path());
    let weights = dir.path().join("model.safetensors");
    rewrite(&fixture("llama").join("model.safetensors"), &weights, |tensors| {
        let (_, bytes) = tensors.get_mut("model.layers.0.mlp.up_proj.weight").unwrap();
        // 70144 in bf16.
        bytes[..2].copy_from_slice(&0x4789_u16.to_le_bytes());
    });
    let file = dir.path().join("m.gguf");
    run(convert().arg(dir.path()).args(["--to", "gguf:f16", "-o"]).arg(&file))
        .code(2)
        .says("ffn_up.weight")
        .says("would be read back as inf");
    assert!(!file.exists());
    run(convert().arg(dir.path()).args(["--to", "gguf:bf16", "-o"]).arg(&file)).code(0);
}

#[test]
fn a_file_is_verified_in_the_arithmetic_that_it_was_made_in() {
    let dir = tempfile::tempdir().unwrap();
    copy("gemma2", dir.path());
    let weights = dir.path().join("model.safetensors");
    rewrite(&fixture("gemma2").join("model.safetensors"), &weights, |tensors| {
        for (entry, bytes) in tensors.values_mut() {
            let mut numbers = vec![0.0; bytes.len() / entry.dtype.size()];
            to_f32(entry.dtype, bytes, &mut numbers).unwrap();
            entry.dtype = FileDtype::F16;
            *bytes = vec![0; 2 * numbers.len()];
            from_f32(entry.dtype, &numbers, bytes).unwrap();
        }
    });
    let file = dir.path().join("m.gguf");
    let identity = ["--identity", "llama.cpp"];
    let to = ["--to", "gguf:f32", "-o"];
    run(convert().arg(dir.path()).args(identity).args(to).arg(&file)).code(0);
    run(convert().arg(dir.path()).args(identity).arg("--verify").arg(&file)).code(0);
    // One was added to norms in f16, which f32 would not have rounded.
    run(convert().arg(dir.path()).arg("--verify").arg(&file))
        .code(1)
        .says("norm.weight` is off by");
}

/// Converts `llama_256`, and returns the names of the files of tensors in the folder.
fn written_names(dir: &Path, to: &str, more: &[&str]) -> Vec<String> {
    let mut command = convert();
    command.arg(fixture("llama_256")).args(["--to", to, "-o"]).arg(dir);
    run(command.args(more)).code(0);
    let names = fs_err::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("safetensors")).collect()
}

#[test]
fn a_folder_that_is_written_over_keeps_nothing_of_the_older_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    assert!(written_names(dir.path(), "fp8", &["--split-max-size", "500K"]).len() > 2);
    assert_eq!(written_names(dir.path(), "nvfp4", &["--force"]), ["model.safetensors"]);
    let split = written_names(dir.path(), "fp8", &["--force", "--split-max-size", "500K"]);
    assert!(split.len() > 2 && !split.contains(&"model.safetensors".to_owned()), "{split:?}");
}

#[test]
fn a_changed_file_is_no_longer_its_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama");
    let file = dir.path().join("m.gguf");
    run(convert().arg(&source).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    let mut verify = convert();
    verify.arg(&source).arg("--verify").arg(&file);
    run(&mut verify).code(0);
    let file_bytes = fs_err::read(&file).unwrap();
    // One value of the last tensor.
    let mut bytes = file_bytes.clone();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&9.5_f32.to_le_bytes());
    fs_err::write(&file, &bytes).unwrap();
    run(&mut verify).code(1).says("is off by");
    // A key that other programs read.
    let key = b"llama.rope.freq_base";
    let at = file_bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len() + 4;
    let mut bytes = file_bytes;
    bytes[at..at + 4].copy_from_slice(&500_000_f32.to_le_bytes());
    fs_err::write(&file, &bytes).unwrap();
    run(&mut verify).code(1).says("key `llama.rope.freq_base` is 500000");
    run(parity().arg("check").arg(&file).arg("--reference").arg(source.join("reference")))
        .code(2)
        .says("describe another model than its `onboard.config`");
}

#[test]
fn a_name_that_ends_with_a_slash_is_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = format!("{}/new/", dir.path().display());
    run(convert().arg(fixture("llama")).args(["--to", "gguf:q8_0", "-o", &folder])).code(0);
    assert!(dir.path().join("new/llama-q8_0.gguf").is_file());
}

#[test]
fn a_config_without_architectures_is_known_by_its_model_type() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama", dir.path());
    let config = dir.path().join("config.json");
    let text = fs_err::read_to_string(&config).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["architectures"] = Value::Null;
    fs_err::write(&config, json.to_string()).unwrap();
    run(onboard().args(["show", "--dims"]).arg(dir.path())).code(0);
}

#[test]
fn what_is_missing_or_mistaken_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let help = run(convert().args(["--to", "help"])).code(0).prints("gguf:q4_k_m").prints("nvfp4");
    assert!(!help.out.contains("error"), "{}", help.out);
    let again = dir.path().join("again.gguf");
    let folder = dir.path().join("model");
    copy("qwen2", &folder);
    fs_err::rename(folder.join("tokenizer.json"), folder.join("vocab.json")).unwrap();
    run(convert().arg(&folder).args(["--to", "gguf:q8_0", "-o"]).arg(&again))
        .code(2)
        .says("has vocab.json and no tokenizer.json");
    // llama.cpp opens a file without a list of tokens if it says how many there are.
    fs_err::remove_file(folder.join("vocab.json")).unwrap();
    run(convert().arg(&folder).args(["--to", "gguf:q8_0", "-o"]).arg(&again))
        .code(0)
        .says("has no tokenizer");
    let keys = GgufFile::open(&again).unwrap();
    assert_eq!(keys.metadata().u32("qwen2.vocab_size").unwrap(), Some(314));
}

#[test]
fn weights_saved_without_a_head_are_found() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama3", dir.path());
    rewrite(
        &fixture("llama3").join("model.safetensors"),
        &dir.path().join("model.safetensors"),
        |tensors| {
            let all = std::mem::take(tensors).into_iter();
            *tensors =
                all.map(|(name, tensor)| (name["model.".len()..].to_owned(), tensor)).collect();
        },
    );
    let source = fixture("llama3");
    let mut check = parity();
    check.arg("check").arg(dir.path()).arg("--reference").arg(source.join("reference"));
    run(check.arg("--source").arg(&source).args(["--dtype", "f32"])).code(0).prints("AGREE");
}

/// Older versions of transformers stored computed buffers among the weights.
#[test]
fn buffers_among_the_weights_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["deepseek_v3", "qwen2", "gpt_neox"] {
        let model = dir.path().join(name);
        let plain = dir.path().join(format!("{name}-bf16"));
        copy(name, &model);
        rewrite(
            &fixture(name).join("model.safetensors"),
            &model.join("model.safetensors"),
            |tensors| {
                for end in ["self_attn.rotary_emb.inv_freq", "attention.masked_bias"] {
                    let entry =
                        TensorEntry { dtype: FileDtype::F16, shape: vec![2], range: (0, 0) };
                    // Minus infinity, in every second value.
                    tensors
                        .insert(format!("model.layers.0.{end}"), (entry, vec![0, 0xfc, 0, 0xfc]));
                }
            },
        );
        run(convert().arg(&model).args(["--to", "bf16", "-o"]).arg(&plain)).code(0);
        let weights = SafetensorsFile::open(&plain.join("model.safetensors")).unwrap();
        let names: Vec<_> = weights.header().tensors.keys().collect();
        assert!(!names.iter().any(|name| name.contains("inv_freq")), "{names:?}");
    }
}

/// The section under its older name, beside words that only Python reads.
#[test]
fn what_is_said_of_codes_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let coded = dir.path().join("coded");
    run(convert().arg(fixture("llama3")).args(["--to", "fp8", "-o"]).arg(&coded)).code(0);
    let path = coded.join("config.json");
    let config: Value = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    let infinite = config.to_string().replacen('{', "{\"time_step_limit\": [0.0, Infinity], ", 1);
    let mut older = config.clone();
    older["compression_config"] = older["quantization_config"].take();
    let mut generate = onboard();
    generate.arg("run").arg(&coded).args(["--tokens", "1,2,3", "-n", "4"]);
    fs_err::write(&path, config.to_string()).unwrap();
    let expected = run(&mut generate).code(0).out;
    for text in [infinite, older.to_string()] {
        fs_err::write(&path, text).unwrap();
        assert_eq!(run(&mut generate).code(0).out, expected);
    }
}

/// Converts a fixture by a route of llama.cpp's programs, and returns the path of the file.
fn by_route(dir: &Path, name: &str, route: &str, to: &str) -> (Ran, PathBuf) {
    let file = dir.join(format!("{name}-{route}-{}.gguf", to.replace(':', "-")));
    let mut command = convert();
    command.arg(fixture(name)).args(["--identity", route, "--to", to, "-o"]).arg(&file);
    (run(&mut command), file)
}

#[test]
fn a_route_of_llama_cpps_programs_is_followed_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let gate = "blk.0.ffn_gate_inp_shexp.weight";
    // The converter writes the gate of shared experts as a matrix of one row, llama-quantize as a vector.
    for (route, axes) in [("convert_hf_to_gguf", 2), ("llama.cpp", 1)] {
        let (ran, file) = by_route(dir.path(), "qwen2_moe", route, "gguf:f32");
        ran.code(0);
        let file = formats::gguf::GgufFile::open(&file).unwrap();
        assert_eq!(file.info(gate).unwrap().shape.len(), axes, "{route}");
    }
    // Weights are rounded to 16 bits in between by one route, and not by the other.
    let [rounded, plain] = ["convert_hf_to_gguf", "llama.cpp"].map(|route: &str| {
        let (ran, file) = by_route(dir.path(), "falcon_h1", route, "gguf:q8_0");
        ran.code(0);
        let file = formats::gguf::GgufFile::open(&file).unwrap();
        file.bytes("blk.0.ssm_in.weight").unwrap().to_vec()
    });
    assert!(rounded != plain);
    let (refused, _) = by_route(dir.path(), "llama", "convert_hf_to_gguf", "gguf:q4_k_m");
    refused.code(2).says("f32, f16, bf16, q8_0").says("--identity llama.cpp");
}

/// Caches of the reference have axes of size 1 for some states.
#[test]
fn axes_of_size_one_do_not_set_states_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut changed = 0;
    for (name, wider) in [("deepseek_v2", false), ("mamba2", true)] {
        let reference = dir.path().join(name);
        copy_folder(&fixture(name).join("reference"), &reference);
        remove_checksums(&reference);
        for entry in fs_err::read_dir(&reference).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_none_or(|end| end != "safetensors") {
                continue;
            }
            rewrite(&file, &file, |tensors| {
                for (name, (entry, _)) in tensors.iter_mut() {
                    if name.contains("/state/") {
                        let old = entry.shape.clone();
                        if wider {
                            entry.shape.push(1);
                        } else {
                            entry.shape.retain(|size| *size != 1);
                            if old[0] == 1 {
                                entry.shape.insert(0, 1);
                            }
                        }
                        changed += usize::from(entry.shape != old);
                    }
                }
            });
        }
        let mut check = parity();
        check.arg("check").arg(fixture(name)).arg("--reference").arg(&reference);
        run(check.args(["--dtype", "f32"])).code(0).prints("AGREE");
    }
    assert!(changed > 0);
}

/// Commands that compute reject a checkpoint that the model explains only in part.
#[test]
fn half_a_checkpoint_is_not_run() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama", dir.path());
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    config["num_hidden_layers"] = (layers - 1).into();
    fs_err::write(&path, config.to_string()).unwrap();
    let written = dir.path().join("im.gguf");
    let commands: [&[&str]; 3] = [
        &["run", "--tokens", "1,2,3", "-n", "1"],
        &["bench", "-p", "4", "-n", "1", "-r", "1"],
        &["imatrix", "--tokens", "1,2,3,4", "--chunk", "4", "-o"],
    ];
    for words in commands {
        let mut command = onboard();
        command.arg(words[0]).arg(dir.path()).args(&words[1..]);
        if words[0] == "imatrix" {
            command.arg(&written);
        }
        run(&mut command).code(2).says("do not explain each other").says("tensors used");
    }
    assert!(!written.exists());
    let mut schedules = parity();
    schedules.arg("schedules").arg(dir.path()).arg("--reference");
    run(schedules.arg(fixture("llama").join("reference")).args(["--dtype", "f32"]))
        .code(2)
        .says("do not explain each other");
    // Omitted on purpose.
    let fewer = format!("dims.layers={}", layers - 1);
    let mut command = onboard();
    command.arg("run").arg(fixture("llama")).args(["--tokens", "1,2", "-n", "1", "--set", &fewer]);
    run(&mut command).code(0).says("warning: with --set");
}

#[test]
fn scales_that_make_no_sense_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let coded = dir.path().join("fp8");
    let mut command = convert();
    command.arg(fixture("llama")).args(["--to", "fp8:tensor", "--static-activations"]);
    command.args(["--calibrate-tokens", "1,2,3,4,5,6,7,8", "--chunk", "8"]);
    run(command.arg("-o").arg(&coded)).code(0);
    let weights = coded.join("model.safetensors");
    let good = fs_err::read(&weights).unwrap();
    for (end, value) in [
        ("weight_scale", -1.0),
        ("weight_scale", 0.0),
        ("input_scale", f32::NAN),
        ("input_scale", 0.0),
    ] {
        let mut broken = String::new();
        let copied = dir.path().join("good.safetensors");
        fs_err::write(&copied, &good).unwrap();
        rewrite(&copied, &weights, |tensors| {
            let scale = tensors.iter_mut().find(|(name, _)| name.ends_with(end));
            let (name, (entry, bytes)) = scale.unwrap();
            from_f32(entry.dtype, &[value], bytes).unwrap();
            broken.clone_from(name);
        });
        let message = format!("the scale `{broken}` is {value}");
        run(onboard().arg("run").arg(&coded).args(["--tokens", "1,2", "-n", "1"]))
            .code(2)
            .says(&message);
        let out = dir.path().join("out.gguf");
        run(convert().arg(&coded).args(["--to", "gguf:f16", "-o"]).arg(&out))
            .code(2)
            .says(&message);
    }
}

#[test]
fn a_source_that_cannot_be_read_is_not_passed_over() {
    let dump = fixture("llama").join("reference");
    let mut check = parity();
    check.arg("check").arg(fixture("llama")).arg("--reference").arg(dump);
    run(check.args(["--source", "/nonexistent", "--no-schedules", "--dtype", "f32"]))
        .code(2)
        .says("--source");
}
