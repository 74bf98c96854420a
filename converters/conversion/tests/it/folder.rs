//! Tests of checkpoints of 8 and 4 bits: written values are read back, with any slab size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoints::checkpoint::Checkpoint;
use checkpoints::weights::flows;
use formats::safetensors::{FileDtype, SafetensorsFile, TensorSpec, Writer};
use onboard_conversion::folder::calibrated::{PeakSite, scales};
use onboard_conversion::folder::{
    self, CalibratedScales, DtypeChoice, FolderFormat, FolderTensor, ListingOptions, ScaleKinds,
    peaks,
};
use onboard_conversion::{RunOptions, run};
use registry::config::Config;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::resolve::resolve;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn model(folder: &Path) -> Model {
    let config = Config::read(&folder.join("config.json")).unwrap();
    let library = Library::builtin();
    let names = library.find(&config);
    let spec = library.load(names.first().unwrap(), &[]).unwrap();
    resolve(&spec, &config, &OpSet::builtin()).unwrap().0
}

fn quantization(format: FolderFormat, ignored: &[String]) -> serde_json::Value {
    format.quantization(ignored, ScaleKinds::default()).unwrap_or_default()
}

fn plan<'c>(
    checkpoint: &'c Checkpoint,
    model: &Model,
    format: FolderFormat,
) -> (Vec<FolderTensor<'c>>, Vec<DtypeChoice>) {
    let (weights, _) = flows(checkpoint, &model.graph.weights, &model.rules).unwrap();
    let options = ListingOptions { apart: format.quantizes(), output: false };
    let tensors = folder::tensors(checkpoint, model, &weights, options).unwrap();
    let choices = format.choose(&tensors, &model.quant);
    (tensors, choices)
}

/// Writes a folder; `most` limits the bytes of tensors in a file.
fn write(
    source: &Path,
    format: FolderFormat,
    out: &Path,
    (threads, slab, limit): (usize, usize, u64),
) -> Result<(), String> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let model = model(source);
    let (tensors, choices) = plan(&checkpoint, &model, format);
    let peaks = peaks::peaks(&tensors, &choices, &model.quant, 2).map_err(|e| e.to_string())?;
    let items =
        folder::items(format, &tensors, &choices, Some(&peaks), &CalibratedScales::default());
    let files = folder::lay_out(out, &items, limit, "").unwrap();
    let work = folder::work(&items, &files, None, "test".to_owned());
    let settings = RunOptions { threads, slab, ..RunOptions::default() };
    run(&work, &settings, &()).map_err(|e| e.to_string())?;
    if let Some((path, text)) = folder::index(out, &items, &files) {
        fs_err::write(path, text).unwrap();
    }
    let json = serde_json::json!({ "quantization_config": quantization(format, &[]) });
    fs_err::write(out.join("config.json"), json.to_string()).unwrap();
    Ok(())
}

fn bytes(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs_err::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), fs_err::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Returns the bounds of the relative error of normally distributed values.
fn band(format: FolderFormat) -> (f64, f64) {
    match format {
        FolderFormat::Bf16 => (0.0, 0.0),
        FolderFormat::Nvfp4 => (0.05, 0.11),
        FolderFormat::Mxfp4 => (0.07, 0.14),
        // A rounding to bf16 at most.
        _ if !format.quantizes() => (0.0, 0.004),
        _ => (0.015, 0.04),
    }
}

#[test]
fn every_format_is_read_back_as_it_was_meant() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_256", "qwen3_moe", "gpt_oss_mxfp4", "granitemoe"] {
        let source = fixture(name);
        let old = Checkpoint::open(&source).unwrap();
        let model = model(&source);
        for (word, format, _) in FolderFormat::all() {
            let (tensors, choices) = plan(&old, &model, format);
            if format.quantizes() && choices.iter().all(|choice| choice.kept.is_some()) {
                assert!(
                    matches!(format, FolderFormat::Fp8Block { .. } | FolderFormat::Fp8CtBlock),
                    "{name} {word}"
                );
                continue;
            }
            let out = dir.path().join(format!("{name}-{}", word.replace(':', "-")));
            fs_err::create_dir(&out).unwrap();
            write(&source, format, &out, (1, 1000, u64::MAX)).unwrap();
            let again = dir.path().join("again");
            fs_err::create_dir(&again).unwrap();
            write(&source, format, &again, (3, 1 << 20, u64::MAX)).unwrap();
            assert_eq!(bytes(&out), bytes(&again), "{name} {word}");
            fs_err::remove_dir_all(&again).unwrap();
            let new = Checkpoint::open(&out).unwrap();
            assert_eq!(new.tensors().len(), tensors.len(), "{name} {word}");
            let mut error = 0.0;
            let mut power = 0.0;
            for (tensor, choice) in tensors.iter().zip(&choices) {
                assert_eq!(
                    new.is_quantized(&tensor.name),
                    choice.kept.is_none(),
                    "{}",
                    tensor.name
                );
                let flow = new.flow(&tensor.name).unwrap();
                if flow.numeric().is_err() {
                    continue;
                }
                let mut expected = vec![0.0; tensor.flow.len()];
                let mut decoded = expected.clone();
                tensor.flow.read(0, &mut expected);
                flow.read(0, &mut decoded);
                if choice.kept.is_some() && !word.starts_with("hf:") {
                    assert_eq!(decoded, expected, "{name} {word} `{}`", tensor.name);
                    continue;
                }
                for (x, y) in expected.iter().zip(&decoded) {
                    error += f64::from(x - y) * f64::from(x - y);
                    power += f64::from(*x) * f64::from(*x);
                }
            }
            let relative = if power > 0.0 { (error / power).sqrt() } else { 0.0 };
            let (least, largest) = band(format);
            // Values decoded from four bits may fit into them again, and into eight always.
            let least = if name == "gpt_oss_mxfp4" { 0.0 } else { least };
            assert!((least..=largest).contains(&relative), "{name} {word}: {relative}");
        }
    }
}

#[test]
fn shards_together_are_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let one = dir.path().join("one");
    let many = dir.path().join("many");
    for (out, limit) in [(&one, u64::MAX), (&many, 200_000)] {
        fs_err::create_dir(out).unwrap();
        write(&source, FolderFormat::Fp8, out, (2, 5000, limit)).unwrap();
    }
    let one = Checkpoint::open(&one).unwrap();
    let many = Checkpoint::open(&many).unwrap();
    assert!(many.files().len() > 3, "{}", many.files().len());
    assert_eq!(one.tensors().len(), many.tensors().len());
    assert_eq!(one.fingerprint().unwrap(), many.fingerprint().unwrap());
    let checkpoint = Checkpoint::open(&source).unwrap();
    let model = model(&source);
    let (tensors, choices) = plan(&checkpoint, &model, FolderFormat::Fp8);
    let items =
        folder::items(FolderFormat::Fp8, &tensors, &choices, None, &CalibratedScales::default());
    for count in [1, 2, 3, 5] {
        let limit = folder::even_limit(&items, count);
        let files = folder::lay_out(Path::new("x"), &items, limit, "").unwrap();
        assert!(files.len() <= count, "{count}");
        let less = folder::lay_out(Path::new("x"), &items, limit - 1, "").unwrap();
        assert!(less.len() > count || count == 1, "{count}");
    }
}

#[test]
fn fused_matrices_share_a_scale() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    for (format, end) in
        [(FolderFormat::Fp8Tensor, "_scale"), (FolderFormat::Nvfp4, "_global_scale")]
    {
        let out = dir.path().join(format!("{format:?}"));
        fs_err::create_dir(&out).unwrap();
        write(&source, format, &out, (1, 1 << 20, u64::MAX)).unwrap();
        let file = SafetensorsFile::open(&out.join("model.safetensors")).unwrap();
        assert_eq!(
            scale_of(&file, end, "self_attn.q_proj"),
            scale_of(&file, end, "self_attn.k_proj")
        );
        assert_eq!(
            scale_of(&file, end, "self_attn.q_proj"),
            scale_of(&file, end, "self_attn.v_proj")
        );
        assert_eq!(scale_of(&file, end, "mlp.gate_proj"), scale_of(&file, end, "mlp.up_proj"));
        assert_ne!(
            scale_of(&file, end, "self_attn.q_proj"),
            scale_of(&file, end, "self_attn.o_proj")
        );
    }
}

fn scale_of(file: &SafetensorsFile, end: &str, module: &str) -> Vec<u8> {
    let name = format!("model.layers.1.{module}.weight{end}");
    file.tensor(&name).unwrap().unwrap().1.to_vec()
}

#[test]
fn experts_keep_their_names_and_are_quantized_all_or_none() {
    // Saved one by one under names of their own; and 48 inputs do not divide into 32.
    for (name, part) in [("mixtral", ".w2.weight"), ("qwen3_moe", "down_proj.weight")] {
        let source = fixture(name);
        let checkpoint = Checkpoint::open(&source).unwrap();
        let model = model(&source);
        for format in [FolderFormat::Fp8Tensor, FolderFormat::Mxfp4] {
            let (tensors, choices) = plan(&checkpoint, &model, format);
            assert!(tensors.iter().any(|tensor| tensor.name.ends_with(part)), "{name}");
            for (tensor, choice) in tensors.iter().zip(&choices) {
                let Some(mixture) = tensor.mixture else { continue };
                let pairs = tensors.iter().zip(&choices);
                let mut experts = pairs.filter(|(other, _)| other.mixture == Some(mixture));
                assert!(experts.all(|(_, other)| other.kept.is_some() == choice.kept.is_some()));
            }
            let peaks = peaks::peaks(&tensors, &choices, &model.quant, 2).unwrap();
            for n in (0..tensors.len()).filter(|n| choices[*n].kept.is_none()) {
                for other in model.quant.scale_group(&tensors[n].weight) {
                    let m = tensors.iter().position(|tensor| tensor.weight == other).unwrap();
                    assert_eq!(peaks[n], peaks[m], "{} {}", tensors[n].name, tensors[m].name);
                }
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    for bad in [f32::NAN, f32::INFINITY] {
        let broken = dir.path().join(format!("broken{bad}"));
        fs_err::create_dir(&broken).unwrap();
        fs_err::copy(source.join("config.json"), broken.join("config.json")).unwrap();
        let old = Checkpoint::open(&source).unwrap();
        let declared: Vec<TensorSpec> = old
            .tensors()
            .iter()
            .map(|(name, info)| TensorSpec {
                name: name.clone(),
                dtype: info.dtype,
                shape: info.shape.clone(),
            })
            .collect();
        let path = broken.join("model.safetensors");
        let mut writer = Writer::create(&path, &BTreeMap::new(), &declared).unwrap();
        for tensor in &declared {
            let mut bytes = old.bytes(&tensor.name).unwrap().to_vec();
            if tensor.name.ends_with("1.mlp.up_proj.weight") {
                bytes[10..12].copy_from_slice(&formats::numbers::f32_to_bf16(bad).to_le_bytes());
            }
            writer.write(&tensor.name, &bytes).unwrap();
        }
        writer.finish().unwrap();
        for format in [FolderFormat::Fp8, FolderFormat::Nvfp4, FolderFormat::Bf16] {
            let out = dir.path().join(format!("out-{bad}-{format:?}"));
            fs_err::create_dir(&out).unwrap();
            let error = write(&broken, format, &out, (1, 1 << 20, u64::MAX)).unwrap_err();
            assert!(error.contains("model.layers.1.mlp.up_proj.weight"), "{error}");
            assert!(!out.join("model.safetensors").exists());
        }
    }
}

#[test]
fn scales_follow_from_what_was_seen_or_are_refused() {
    let both = ScaleKinds { inputs: true, caches: true };
    let source = fixture("deepseek_v3");
    let checkpoint = Checkpoint::open(&source).unwrap();
    let model = model(&source);
    let (tensors, choices) = plan(&checkpoint, &model, FolderFormat::Fp8);
    let chosen = (&tensors[..], &choices[..]);
    // The two cached parts of latent attention share one scale: that of the larger.
    let outcome = scales(FolderFormat::Fp8, both, &model, chosen, &|seen| match seen {
        PeakSite::Cache(state, part) => Some(448.0 * (1 + state.0 * 2 + part) as f32),
        // An expert without tokens has the scale of the others.
        PeakSite::Input(id) => (model.graph.weights[id.0].name.contains("experts.1.gate")
            || !model.graph.weights[id.0].name.contains(".experts."))
        .then_some(448.0 * 64.0),
    });
    let faults: Vec<String> = outcome.unwrap_err().iter().map(ToString::to_string).collect();
    assert!(
        faults.iter().all(|fault| fault.contains("down_proj") && fault.contains("longer text"))
    );
    assert_eq!(faults.len(), 2, "one for each mixture: {faults:?}");
    let outcome = scales(FolderFormat::Fp8, both, &model, chosen, &|seen| match seen {
        PeakSite::Cache(state, part) => Some(448.0 * (1 + state.0 * 2 + part) as f32),
        PeakSite::Input(_) => Some(448.0 * 64.0),
    });
    let by_name: BTreeMap<String, f32> = outcome.unwrap().all.into_iter().collect();
    assert_eq!(by_name["model.layers.0.self_attn.k_scale"], 2.0);
    assert_eq!(by_name["model.layers.0.self_attn.v_scale"], 2.0);
    // The weight that expands the latent multiplies its first part.
    assert_eq!(by_name["model.layers.1.self_attn.kv_b_proj.input_scale"], 3.0);
    assert_eq!(by_name["model.layers.1.mlp.experts.0.down_proj.input_scale"], 64.0);
    let outcome = scales(FolderFormat::Fp8, both, &model, chosen, &|_| Some(f32::NAN));
    let faults = outcome.unwrap_err();
    assert!(faults.iter().all(|fault| fault.to_string().contains("not finite")), "{faults:?}");
}

#[test]
fn a_stored_scale_that_is_none_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let stored = [("zero", vec![0.0_f32]), ("none", vec![f32::NAN]), ("two", vec![1.0, 2.0])];
    let declared: Vec<TensorSpec> = stored
        .iter()
        .map(|(name, numbers)| TensorSpec {
            name: format!("a.{name}.input_scale"),
            dtype: FileDtype::F32,
            shape: vec![numbers.len()],
        })
        .collect();
    let path = dir.path().join("model.safetensors");
    let mut writer = Writer::create(&path, &BTreeMap::new(), &declared).unwrap();
    for (name, numbers) in &stored {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.write(&format!("a.{name}.input_scale"), &bytes).unwrap();
    }
    writer.finish().unwrap();
    let config =
        r#"{"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}"#;
    fs_err::write(dir.path().join("config.json"), config).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    for (name, _) in stored {
        let error = checkpoint.scale(&format!("a.{name}.input_scale")).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("one number above 0"), "{error}");
    }
    assert_eq!(checkpoint.scale("a.absent.input_scale").unwrap(), None);
}

/// A spec without a `quant:` section, whose output matrix has any name.
#[test]
fn the_output_matrix_and_embeddings_stay_in_every_format() {
    let source = fixture("llama_256");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("own.yaml");
    fs_err::write(&file, "spec: 1\nname: own\nextends: llama\nquant: ~\n").unwrap();
    let mut library = Library::builtin();
    library.add_file(&file).unwrap();
    let spec = library.load("own", &[]).unwrap();
    let config = Config::read(&source.join("config.json")).unwrap();
    let (model, _) = resolve(&spec, &config, &OpSet::builtin()).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let (weights, _) = flows(&checkpoint, &model.graph.weights, &model.rules).unwrap();
    for (name, format, _) in FolderFormat::all().filter(|(_, format, _)| format.quantizes()) {
        for output in [false, true] {
            let options = ListingOptions { apart: true, output };
            let tensors = folder::tensors(&checkpoint, &model, &weights, options).unwrap();
            let choices = format.choose(&tensors, &model.quant);
            // Square blocks do not fit its rows; then the reason is another one.
            let place = tensors.iter().position(|tensor| tensor.name == "lm_head.weight").unwrap();
            let final_matrix = choices[place].why.contains("its product is the logits");
            assert_eq!(final_matrix, !output, "{name}");
            assert!(
                !output || is_kept(&tensors, &choices, "lm_head.weight") == name.contains("block"),
                "{name}"
            );
            assert!(is_kept(&tensors, &choices, "model.embed_tokens.weight"), "{name}");
            assert!(
                !is_kept(&tensors, &choices, "model.layers.0.self_attn.o_proj.weight"),
                "{name}"
            );
        }
    }
}

fn is_kept(tensors: &[FolderTensor<'_>], choices: &[DtypeChoice], name: &str) -> bool {
    let place = tensors.iter().position(|tensor| tensor.name == name).unwrap();
    choices[place].kept.is_some()
}

#[test]
fn plain_numbers_are_bf16_but_for_what_is_wider_on_purpose() {
    let source = fixture("glm4_moe");
    let checkpoint = Checkpoint::open(&source).unwrap();
    let model = model(&source);
    let (mut tensors, _) = plan(&checkpoint, &model, FolderFormat::Bf16);
    // Everything is f32, whatever its config declares: routers, which the reference keeps in f32,
    // stay.
    for tensor in &mut tensors {
        tensor.dtype = FileDtype::F32;
    }
    let stays = wide_names(&tensors, &model);
    let routers = [1, 2].into_iter().flat_map(|layer| {
        ["e_score_correction_bias", "weight"]
            .map(|tensor| format!("model.layers.{layer}.mlp.gate.{tensor}"))
    });
    assert_eq!(stays, routers.collect::<Vec<_>>());
    // One tensor of a 16-bit checkpoint is.
    for tensor in &mut tensors {
        tensor.dtype = FileDtype::Bf16;
    }
    tensors.iter_mut().find(|tensor| tensor.name == "model.norm.weight").unwrap().dtype =
        FileDtype::F32;
    assert_eq!(wide_names(&tensors, &model), ["model.norm.weight"]);
}

fn wide_names(tensors: &[FolderTensor<'_>], model: &Model) -> Vec<String> {
    let choices = FolderFormat::Bf16.choose(tensors, &model.quant);
    let wide = tensors.iter().zip(&choices).filter(|(_, c)| c.kept == Some(FileDtype::F32));
    wide.map(|(tensor, _)| tensor.name.clone()).collect()
}
