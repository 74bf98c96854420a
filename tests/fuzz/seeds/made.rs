//! Files that are made before the first case: by the commands, or directly.

use std::io::{self, Error};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::case::Case;

/// Conversions of fixtures: a folder, a fixture, and arguments after `convert MODEL -o FOLDER/...`.
const CONVERTED: &[(&str, &str, &str, &[&str])] = &[
    ("gguf/f16", "llama", "model.gguf", &["--to", "gguf:f16"]),
    ("gguf/q8", "llama", "model.gguf", &["--to", "gguf:q8_0"]),
    ("gguf/conv", "lfm2", "model.gguf", &["--to", "gguf:f32"]),
    ("gguf/window", "gemma3_text", "model.gguf", &["--to", "gguf:bf16"]),
    ("gguf/scan", "mamba2", "model.gguf", &["--to", "gguf:f16"]),
    ("gguf/experts", "qwen3_moe", "model.gguf", &["--to", "gguf:f16"]),
    ("gguf/latent", "deepseek_v3", "model.gguf", &["--to", "gguf:f16"]),
    ("sets/one", "llama", "part.gguf", &["--to", "gguf:f16", "--split-max-size", "60K"]),
    ("sets/two", "lfm2", "part.gguf", &["--to", "gguf:f32", "--split-max-size", "100K"]),
    ("shards/plain", "llama", "", &["--to", "bf16", "--split-max-size", "40K"]),
    ("shards/mixed", "gpt2", "", &["--to", "bf16", "--split-max-size", "40K"]),
    ("quantized/fp8", "llama", "", &["--to", "fp8"]),
    ("quantized/nvfp4", "llama", "", &["--to", "nvfp4"]),
];

/// Conversions of the model in `resumed` with their hashes: a folder, and a format.
pub(crate) const VERIFIED: &[(&str, &str)] = &[
    ("verify/q4_k_m", "gguf:q4_k_m"),
    ("verify/q8_0", "gguf:q8_0"),
    ("verify/f16", "gguf:f16"),
    ("verify/bf16", "bf16"),
    ("verify/fp8", "fp8"),
    ("verify/nvfp4", "nvfp4"),
];

/// Makes everything below `home`. Conversions that a command refuses are skipped.
pub(crate) fn make(home: &Path, fixtures: &Path) -> io::Result<()> {
    for (folder, family, name, words) in CONVERTED {
        let out = home.join(folder);
        fs_err::create_dir_all(&out)?;
        let target = if name.is_empty() { out.clone() } else { out.join(name) };
        run(Command::new(env!("CARGO_BIN_EXE_convert"))
            .arg(fixtures.join(family))
            .args(*words)
            .arg("-o")
            .arg(target))?;
    }
    without_config(&home.join("gguf"))?;
    for (name, family) in [("dense", "llama"), ("experts", "qwen3_moe")] {
        let kinds = [("imatrix", &[][..]), ("imatrix-shard", &["--shard", "1/1"][..])];
        for (kind, more) in kinds {
            let folder = home.join(kind).join(name);
            fs_err::create_dir_all(&folder)?;
            let mut command = Command::new(env!("CARGO_BIN_EXE_onboard"));
            command.arg("imatrix").arg(fixtures.join(family)).args(["--tokens", "1,2,3,4,5,6,7,8"]);
            command.args(["--chunk", "4"]).args(more).arg("-o");
            run(command.arg(folder.join("im.gguf")))?;
        }
    }
    stopped(&home.join("resumed"), &fixtures.join("llama_256"))?;
    for (folder, format) in VERIFIED {
        let out = home.join(folder);
        fs_err::create_dir_all(&out)?;
        let target = if format.starts_with("gguf:") { out.join("model.gguf") } else { out };
        let mut command = Command::new(env!("CARGO_BIN_EXE_convert"));
        command.arg(home.join("resumed/model")).args(["--to", format, "-o"]);
        run(command.arg(target))?;
    }
    Ok(())
}

fn run(command: &mut Command) -> io::Result<()> {
    let out = command.output()?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    Err(Error::other(format!("a seed cannot be made: {command:?}: {text}")))
}

/// Adds a copy of each file without the config inside, which has to be opened by its keys.
fn without_config(dir: &Path) -> io::Result<()> {
    use formats::gguf::{DimsStyle, GgufFile, GgufLayout, GgufTensorSpec};
    for name in ["f16", "window", "experts"] {
        let file = GgufFile::open(&dir.join(name).join("model.gguf")).map_err(Error::other)?;
        let mut keys = file.metadata().clone();
        keys.remove("onboard.config");
        let tensors: Vec<GgufTensorSpec> =
            file.tensors().iter().map(GgufTensorSpec::from).collect();
        let layout =
            GgufLayout::new(dir, &keys, &tensors, DimsStyle::Trimmed).map_err(Error::other)?;
        let mut bytes = layout.header.clone();
        bytes.resize(layout.file_len as usize, 0);
        for info in &layout.tensors {
            let from = file.bytes(&info.name).unwrap_or_default();
            let at = info.offset as usize;
            bytes[at..at + from.len()].copy_from_slice(from);
        }
        let folder = dir.join(format!("{name}-by-keys"));
        fs_err::create_dir_all(&folder)?;
        fs_err::write(folder.join("model.gguf"), bytes)?;
    }
    Ok(())
}

/// Number of journal lines of the stopped conversion.
const LINES: usize = 20;

/// Returns a conversion that writes small slabs.
fn slow_conversion(model: &Path, to: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convert"));
    command.arg(model).args(["--to", "gguf:q8_0", "--slab", "1", "--threads", "1", "-o"]);
    command.arg(to).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn line_count(path: &Path) -> usize {
    fs_err::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Stops a conversion after some slabs, and runs the same one to its end.
fn stopped(dir: &Path, fixture: &Path) -> io::Result<()> {
    let model = dir.join("model");
    let mut case = Case::read(fixture)?;
    case.files.retain(|name, _| name != "README.md");
    case.write(&model)?;
    // A journal belongs to source files of one time; kept cases need the same time again.
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for name in case.files.keys() {
        fs_err::File::options().write(true).open(model.join(name))?.file().set_modified(time)?;
    }
    run(&mut slow_conversion(&model, &dir.join("whole.gguf")))?;
    let journal = dir.join("out.gguf.part.journal");
    for _ in 0..50 {
        let output = dir.join("out.gguf");
        let mut child = slow_conversion(&model, &output).arg("--force").spawn()?;
        while line_count(&journal) <= LINES && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        child.kill().ok();
        child.wait()?;
        let text = fs_err::read_to_string(&journal).unwrap_or_default();
        if text.lines().count() > LINES {
            let kept_lines: Vec<&str> = text.lines().take(LINES + 1).collect();
            return fs_err::write(&journal, kept_lines.join("\n") + "\n");
        }
    }
    Err(Error::other("no conversion could be stopped in time"))
}

/// Returns a small file of tensors whose bytes are all 1.
pub(crate) fn tiny_safetensors(tensors: &[(&str, &str, &[usize])], key: &[&str]) -> Case {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    if let [key, value] = key {
        header.insert("__metadata__".to_owned(), json!({*key: value}));
    }
    for (name, dtype, shape) in tensors {
        let size = if dtype.ends_with("32") { 4 } else { 1 + usize::from(*dtype == "BF16") };
        let end = at + shape.iter().product::<usize>() * size;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
        header.insert((*name).to_owned(), entry);
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.resize(bytes.len() + at, 1);
    Case { files: [("model.safetensors".to_owned(), bytes)].into(), ..Case::default() }
}

/// Returns an importance matrix of the older format.
pub(crate) fn dat(entries: &[(&str, i32)], more: bool) -> Vec<u8> {
    let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
    for (name, count) in entries {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.bytes());
        bytes.extend(2_i32.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        for n in 0..*count {
            bytes.extend((n as f32).to_le_bytes());
        }
    }
    if more {
        bytes.extend(3_i32.to_le_bytes());
        bytes.extend(5_i32.to_le_bytes());
        bytes.extend(b"a.txt");
    }
    bytes
}
