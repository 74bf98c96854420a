//! Tests of files that lost their hashes: `convert --verify` compares all that the source determines.

use std::path::Path;

use formats::codec::BlockType;
use formats::gguf::{GgufFile, GgufHeader, GgufTensorSpec, Metadata, MetadataValue};

use super::verify::fuse;
use crate::tool::{Ran, convert, copy_folder, fixture, onboard, run};

/// Converts a fixture and removes the hashes.
fn unhashed(source: &Path, format: &str, more: &[&str], output: &Path) {
    run(convert().arg(source).args(["--to", format, "-o"]).arg(output).args(more)).code(0);
    let hashes = if format.starts_with("gguf:") {
        output.with_extension("gguf.hashes")
    } else {
        output.join("onboard.hashes")
    };
    fs_err::remove_file(hashes).unwrap();
}

fn compare(source: &Path, output: &Path) -> Ran {
    run(convert().arg(source).arg("--verify").arg(output))
}

/// Returns the keys of a file with one key changed; `None` removes it.
fn changed_keys(file: &GgufFile, key: &str, value: Option<MetadataValue>) -> Metadata {
    let mut keys = Metadata::new();
    for (name, stored) in file.metadata().iter() {
        match (name == key, &value) {
            (false, _) => keys.set(name, stored.clone()),
            (true, Some(value)) => keys.set(name, value.clone()),
            (true, None) => {}
        }
    }
    if let (None, Some(value)) = (file.metadata().get(key), value) {
        keys.set(key, value);
    }
    keys
}

fn tensors(file: &GgufFile) -> Vec<(GgufTensorSpec, Vec<u8>)> {
    let all = file.tensors().iter();
    all.map(|info| (GgufTensorSpec::from(info), file.bytes(&info.name).unwrap().to_vec())).collect()
}

#[test]
fn every_key_of_a_file_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let path = dir.path().join("m.gguf");
    unhashed(&source, "gguf:q4_k_m", &[], &path);
    compare(&source, &path).code(0);
    let file = GgufFile::open(&path).unwrap();
    let layers = file.metadata().u32("llama.block_count").unwrap().unwrap();
    let text = |text: &str| Some(MetadataValue::String(text.to_owned()));
    for (key, value, fault) in [
        ("llama.block_count", Some(MetadataValue::I32(layers as i32)), "(u32)"),
        ("llama.block_count", None, "key `llama.block_count` is missing"),
        ("onboard.config", text("{}"), "key `onboard.config` is `{}`"),
        (
            "general.quantization_version",
            Some(MetadataValue::U32(3)),
            "is 3; the model's would be 2",
        ),
        (
            "general.file_type",
            Some(MetadataValue::U32(14)),
            "the types of the tensors are those of 15",
        ),
        ("general.type", text("adapter"), "key `general.type` is `adapter`"),
        (
            "general.sampling.temp",
            Some(MetadataValue::F32(9.0)),
            "is none that the conversion writes",
        ),
        ("split.no", Some(MetadataValue::U16(0)), "key `split.no` is none that the conversion"),
        ("quantize.imatrix.file", text("x"), "key `quantize.imatrix.file` is none that the"),
        ("general.name", None, "key `general.name` is missing"),
        ("general.name", Some(MetadataValue::U32(1)), "key `general.name` is 1 (u32)"),
    ] {
        let other = dir.path().join("other.gguf");
        fuse::write(&changed_keys(&file, key, value), &tensors(&file), &other);
        compare(&source, &other).code(1).says(fault);
    }
    // The name of a model is that of its folder, which may be moved.
    let other = dir.path().join("other.gguf");
    fuse::write(&changed_keys(&file, "general.name", text("mine")), &tensors(&file), &other);
    compare(&source, &other).code(0).says("note: key `general.name` is `mine`");
}

#[test]
fn shapes_and_paddings_of_a_file_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let path = dir.path().join("m.gguf");
    unhashed(&source, "gguf:f16", &[], &path);
    let file = GgufFile::open(&path).unwrap();
    let sound = fs_err::read(&path).unwrap();
    let mut turned = tensors(&file);
    let is_oblong = |spec: &GgufTensorSpec| spec.shape.len() == 2 && spec.shape[0] != spec.shape[1];
    turned.iter_mut().find(|(spec, _)| is_oblong(spec)).unwrap().0.shape.reverse();
    fuse::write(file.metadata(), &turned, &path);
    compare(&source, &path).code(1).says("has shape [");

    let header = file.tensors().iter().map(|info| info.offset).min().unwrap() as usize;
    let mut padded = sound.clone();
    padded[header - 1] = 7;
    let filled = sound[header - 1] == 0;
    for (bytes, fault) in
        [(padded, "and not zero"), ([&sound[..], &[0]].concat(), "are in no tensor")]
    {
        fs_err::write(&path, bytes).unwrap();
        assert!(filled);
        compare(&source, &path).code(1).says(fault);
    }
}

/// Every byte of plain tensors is determined: the last bits of a norm, and the sign of a zero.
#[test]
fn last_bits_and_signs_of_zeros_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    copy_folder(&fixture("llama_256"), &source);
    let weights = source.join("model.safetensors");
    let mut bytes = fs_err::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // The first numbers of every dtype are zero in the source.
    bytes[header..header + 64].fill(0);
    fs_err::write(&weights, &bytes).unwrap();
    for format in ["gguf:f16", "gguf:bf16", "gguf:f32", "gguf:q8_0"] {
        let path = dir.path().join("m.gguf");
        run(convert().arg(&source).args(["--to", format, "--force", "-o"]).arg(&path)).code(0);
        fs_err::remove_file(path.with_extension("gguf.hashes")).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let sound = tensors(&file);
        compare(&source, &path).code(0);
        for (at, (spec, bytes)) in sound.iter().enumerate().step_by(3) {
            let size = spec.ty.bytes();
            let zero = bytes.chunks(size).position(|number| number.iter().all(|byte| *byte == 0));
            let signed =
                zero.filter(|_| spec.ty.elements() == 1).map(|n| (n * size + size - 1, 128));
            let changes = [Some((0, 1)), signed];
            for (place, bit) in changes.into_iter().flatten() {
                let mut damaged = sound.clone();
                damaged[at].1[place] ^= bit;
                fuse::write(file.metadata(), &damaged, &path);
                compare(&source, &path).code(1).says(&format!("tensor `{}` is off", spec.name));
            }
        }
    }
}

/// A file made by the route of another program is compared by what that route gives, if the option names it.
#[test]
fn files_of_a_named_route_are_determined() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let path = dir.path().join("m.gguf");
    let route = ["--identity", "llama.cpp"];
    unhashed(&source, "gguf:q4_k_m", &route, &path);
    let compare = |path: &Path| run(convert().arg(&source).args(route).arg("--verify").arg(path));
    compare(&path).code(0);
    let file = GgufFile::open(&path).unwrap();
    let other = dir.path().join("other.gguf");
    let window = Some(MetadataValue::U32(7));
    fuse::write(
        &changed_keys(&file, "llama.attention.sliding_window", window),
        &tensors(&file),
        &other,
    );
    compare(&other).code(1).says("is none that the conversion writes");
    let mut damaged = tensors(&file);
    for (spec, bytes) in damaged.iter_mut().filter(|(spec, _)| spec.ty.is_quantized()) {
        bytes
            .chunks_mut(spec.ty.bytes())
            .step_by(9)
            .for_each(|block| *block.last_mut().unwrap() ^= 1);
    }
    fuse::write(file.metadata(), &damaged, &other);
    compare(&other).code(1).says("have other bytes than the source gives");
}

/// Rows that no block divides stay plain, and are rounded by the intermediate file of the route as well.
#[test]
fn plain_tensors_of_a_named_route_are_determined() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("falcon_h1");
    let path = dir.path().join("m.gguf");
    let route = ["--identity", "llama.cpp"];
    unhashed(&source, "gguf:q4_k_m", &route, &path);
    let with_route = || run(convert().arg(&source).args(route).arg("--verify").arg(&path));
    with_route().code(0);
    compare(&source, &path).code(0);
    let file = GgufFile::open(&path).unwrap();
    let mut damaged = tensors(&file);
    let is_plain = |spec: &GgufTensorSpec| spec.ty == BlockType::F16;
    let (_, bytes) = damaged.iter_mut().find(|(spec, _)| is_plain(spec)).unwrap();
    bytes[0] ^= 1;
    fuse::write(file.metadata(), &damaged, &path);
    with_route().code(1);
    compare(&source, &path).code(1);
}

/// A set may have one file. In a file of no set, numbers of a set are added keys.
#[test]
fn keys_of_a_set_belong_to_sets() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let to = ["--to", "gguf:q8_0", "--split-max-size", "700M", "-o"];
    run(convert().arg(&source).args(to).arg(dir.path().join("m.gguf"))).code(0);
    let path = dir.path().join("m-00001-of-00001.gguf");
    fs_err::remove_file(path.with_extension("gguf.hashes")).unwrap();
    compare(&source, &path).code(0);
    let plain = dir.path().join("m.gguf");
    fs_err::rename(&path, &plain).unwrap();
    compare(&source, &plain).code(1).says("key `split.count` is none that the conversion writes");
}

#[test]
fn keys_of_every_file_of_a_set_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let to = ["--to", "gguf:q8_0", "--split-max-size", "700k", "-o"];
    run(convert().arg(&source).args(to).arg(dir.path().join("m.gguf"))).code(0);
    let names = fs_err::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = names.collect();
    files.sort();
    let (hashes, files): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|path| path.extension().is_some_and(|end| end == "hashes"));
    for path in &hashes {
        fs_err::remove_file(path).unwrap();
    }
    compare(&source, &files[0]).code(0);
    // A key in the header of the second file, in place of its padding.
    let bytes = fs_err::read(&files[1]).unwrap();
    let header = GgufHeader::parse(&files[1], &bytes).unwrap();
    let mut keys = header.metadata.clone();
    keys.set("general.x", 1_u32);
    let written: Vec<(GgufTensorSpec, Vec<u8>)> = header
        .tensors
        .iter()
        .map(|info| {
            let range = info.offset as usize..(info.offset + info.bytes) as usize;
            (GgufTensorSpec::from(info), bytes[range].to_vec())
        })
        .collect();
    fuse::write(&keys, &written, &files[1]);
    compare(&source, &files[0]).code(1).says("key `general.x` is none that the conversion writes");
}

/// Blocks of this program are determined, however many of them are damaged.
#[test]
fn many_damaged_blocks_are_no_other_programs() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let path = dir.path().join("m.gguf");
    unhashed(&source, "gguf:q8_0", &[], &path);
    let file = GgufFile::open(&path).unwrap();
    let mut tensors = tensors(&file);
    for (spec, bytes) in &mut tensors {
        if spec.ty.is_quantized() {
            // The last bit of a level in every block.
            bytes.chunks_mut(spec.ty.bytes()).for_each(|block| block[5] ^= 1);
        }
    }
    fuse::write(file.metadata(), &tensors, &path);
    compare(&source, &path).code(1).says("blocks have other bytes than the source gives in Q8_0");
}

/// Fault of a folder, and the change that makes it.
type Damage<'a> = (&'a str, &'a dyn Fn(&Path));

#[test]
fn every_file_of_a_folder_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let sound = dir.path().join("sound");
    unhashed(&source, "bf16", &["--split-max-size", "600k"], &sound);
    compare(&source, &sound).code(0);
    let out = dir.path().join("out");
    let index = "model.safetensors.index.json";
    let first = |folder: &Path| {
        let names = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        names.filter(|name| name.starts_with("model-00001")).min().unwrap()
    };
    let replaced = |path: &Path, from: &[u8], to: &[u8]| {
        let mut bytes = fs_err::read(path).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes.splice(at..at + from.len(), to.iter().copied());
        fs_err::write(path, bytes).unwrap();
    };
    let damages: [Damage<'_>; 9] = [
        ("tokenizer.model.v3` is read by loaders", &|out| {
            fs_err::write(out.join("tokenizer.model.v3"), "x").unwrap();
        }),
        ("pytorch_model.bin.index.json` is read by loaders", &|out| {
            fs_err::write(out.join("pytorch_model.bin.index.json"), "{}").unwrap();
        }),
        ("in another text", &|out| {
            let text = fs_err::read_to_string(out.join("config.json")).unwrap();
            let twice = text.replacen('{', "{\"hidden_size\": 7,", 1);
            fs_err::write(out.join("config.json"), twice).unwrap();
        }),
        ("model-00001-of-00099.safetensors` is read by loaders", &|out| {
            fs_err::copy(out.join(first(out)), out.join("model-00001-of-00099.safetensors"))
                .unwrap();
        }),
        ("chat_template.jinja` is read by loaders", &|out| {
            fs_err::write(out.join("chat_template.jinja"), "{{ x }}").unwrap();
        }),
        ("has another header", &|out| replaced(&out.join(first(out)), b"\"pt\"", b"\"tf\"")),
        ("index.json` has other bytes", &|out| {
            replaced(&out.join(index), b"\"total_size\": ", b"\"total_size\": 1");
        }),
        ("generation_config.json` has other bytes", &|out| {
            fs_err::write(out.join("generation_config.json"), "{}").unwrap();
        }),
        ("note: `", &|out| fs_err::write(out.join("README.md"), "mine").unwrap()),
    ];
    for (fault, damage) in damages {
        copy_folder(&sound, &out);
        damage(&out);
        let code = i32::from(!fault.starts_with("note"));
        compare(&source, &out).code(code).says(fault);
        fs_err::remove_dir_all(&out).unwrap();
    }
}

/// Scales of activations are measured on a text; all else is determined.
#[test]
fn folders_with_measured_scales_and_added_keys_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    let out = dir.path().join("out");
    let ids: Vec<String> = (1..65).map(|n| (n * 7 % 90).to_string()).collect();
    let ids = ids.join(",");
    let measured =
        ["--static-activations", "--kv-scales", "--calibrate-tokens", &ids, "--chunk", "32"];
    unhashed(&source, "fp8:tensor", &[&measured[..], &["--compat"]].concat(), &out);
    compare(&source, &out).code(0).says("scales were measured on a text");
    run(convert().arg(&source).args(["--compat", "--verify"]).arg(&out)).code(0);
    let weights = out.join("model.safetensors");
    let mut bytes = fs_err::read(&weights).unwrap();
    let last = bytes.len() - 1000;
    bytes[last] ^= 1;
    fs_err::write(&weights, bytes).unwrap();
    compare(&source, &out).code(1).says("has other bytes than the checkpoint gives");
    let file = dir.path().join("m.gguf");
    run(convert().arg(&source).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    run(convert().arg(&source).args(["--compat", "--verify"]).arg(&file))
        .code(2)
        .says("config.json");
}

/// Hashes prove that a folder is as it was written, and not that it is of this model.
#[test]
fn a_folder_of_another_model_differs() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    run(convert().arg(fixture("llama_256")).args(["--to", "fp8", "-o"]).arg(&out)).code(0);
    run(onboard().arg("verify").arg(&out)).code(0);
    compare(&fixture("gemma3"), &out).code(1);
    compare(&fixture("llama"), &out).code(1);
}

#[test]
fn a_set_is_verified_by_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let to = ["--to", "gguf:q8_0", "--split-max-size", "200k", "-o"];
    run(convert().arg(fixture("llama_256")).args(to).arg(dir.path().join("m.gguf"))).code(0);
    run(onboard().arg("verify").arg(dir.path())).code(0);
    let mut names: Vec<String> = fs_err::read_dir(dir.path())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.starts_with("m-00002"))
        .collect();
    names.sort();
    let [second, hashes] = &names[..] else { panic!("{names:?}") };
    assert!(hashes.ends_with(".hashes"));
    let alone = run(onboard().arg("verify").arg(dir.path().join(second))).code(0);
    alone.says("note: this is one file of a set");
    let renamed: Vec<(String, String)> =
        names.iter().map(|name| (name.clone(), name.replacen("m-", "other-", 1))).collect();
    // A file that was renamed alone is missing in its set, and sound by itself.
    for (from, to) in &renamed {
        fs_err::rename(dir.path().join(from), dir.path().join(to)).unwrap();
    }
    let ran = run(onboard().arg("verify").arg(dir.path())).code(1);
    ran.says(&format!("files of a set is missing, the first is `{second}`"));
    for (_, to) in &renamed {
        fs_err::remove_file(dir.path().join(to)).unwrap();
    }
    let ran = run(onboard().arg("verify").arg(dir.path())).code(1);
    ran.says(&format!("files of a set is missing, the first is `{second}`"));
}

#[test]
fn a_renamed_file_is_verified_by_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    run(convert().arg(fixture("llama_256")).args(["--to", "gguf:q8_0", "-o"]).arg(&file)).code(0);
    for end in ["gguf", "gguf.hashes"] {
        let to = dir.path().join("other").with_extension(end);
        fs_err::rename(file.with_extension(end), to).unwrap();
    }
    run(onboard().arg("verify").arg(dir.path())).code(0).prints("as written: 1 file");
}
