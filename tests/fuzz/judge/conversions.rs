//! Judges of journals, parts of sets, and files that are copied along.

use std::path::Path;

use formats::codec::BlockType;
use formats::gguf::GgufFile;

use super::{Judged, Trial, files};

/// Judges a conversion that resumes from a damaged journal or a damaged unfinished file.
pub(crate) fn journal(trial: &Trial<'_>) -> Judged {
    let resumed = trial.program.made.join("resumed");
    let from = resumed.join("model").display().to_string();
    let out = trial.dir.join("out.gguf");
    let to = out.display().to_string();
    let words = ["convert", &from, "--to", "gguf:q8_0", "-o", &to, "--resume"];
    let more = ["--slab", "1", "--threads", "1"];
    let ran = trial.program.command(&[&words[..], &more].concat())?;
    if ran.code != 0 {
        return Ok(false);
    }
    let bytes = fs_err::read(out).map_err(|error| error.to_string())?;
    let expected = fs_err::read(resumed.join("whole.gguf")).map_err(|error| error.to_string())?;
    if bytes != expected {
        return Err("exit 0, and the resumed file has other bytes".to_owned());
    }
    Ok(true)
}

/// Judges a damaged conversion: `onboard verify` finds any damage, and `convert --verify` finds damage of blocks also without
/// hashes.
pub(crate) fn verify(trial: &Trial<'_>) -> Judged {
    let folder = trial.case.words.first().ok_or("a case names its folder")?;
    let sound_folder = trial.program.made.join(folder);
    let sound = crate::case::Case::read(&sound_folder).map_err(|error| error.to_string())?;
    let is_sound = sound.files == trial.case.files && trial.case.grown.is_none();
    let is_file = trial.case.files.contains_key("model.gguf");
    let path = if is_file { trial.path("model.gguf") } else { trial.dir.display().to_string() };
    let ran = trial.program.command(&["verify", &path])?;
    if (ran.code == 0) != is_sound {
        return Err(format!(
            "`verify` ended with {} (sound: {is_sound}): {}",
            ran.code, ran.printed
        ));
    }
    if is_file && trial.sometimes(4) {
        let hashes = trial.dir.join("model.gguf.hashes");
        fs_err::remove_file(hashes).map_err(|error| error.to_string())?;
        let source = trial.program.made.join("resumed/model").display().to_string();
        let ran = trial.program.command(&["convert", &source, "--verify", &path])?;
        let has_other_blocks =
            ran.code == 0 && other_blocks(&sound_folder.join("model.gguf"), trial)?;
        if has_other_blocks || (is_sound && ran.code != 0) {
            return Err(format!("`--verify` ended with {}: {}", ran.code, ran.printed));
        }
    }
    Ok(is_sound)
}

fn open(path: &Path) -> Result<GgufFile, String> {
    GgufFile::open(path).map_err(|error| error.to_string())
}

/// True if a quantized tensor has other bytes than in the sound file.
fn other_blocks(sound: &Path, trial: &Trial<'_>) -> Result<bool, String> {
    let sound = open(sound)?;
    let damaged = open(&trial.dir.join("model.gguf"))?;
    let quantized = sound.tensors().iter().filter(|info| BlockType::is_quantized(info.ty));
    let mut names = quantized.map(|info| &info.name);
    Ok(names.any(|name| sound.bytes(name) != damaged.bytes(name)))
}

/// Judges files beside the weights, which are copied or become a key.
pub(crate) fn carried(trial: &Trial<'_>) -> Judged {
    let dir = trial.dir.display().to_string();
    let out = trial.beside("out");
    if out.exists() {
        fs_err::remove_dir_all(&out).map_err(|error| error.to_string())?;
    }
    let to = out.display().to_string();
    let words = ["convert", &dir, "--to", "bf16", "-o", &to, "--threads", "1"];
    let ran = trial.program.command(&words)?;
    if ran.code == 0 {
        files::read_all(&out).map_err(|error| format!("converted, but {error}"))?;
    }
    let gguf = trial.beside("out.gguf").display().to_string();
    let words = ["convert", &dir, "--to", "gguf:f16", "-o", &gguf, "--force", "--threads", "1"];
    if trial.program.command(&words)?.code == 0 {
        let words = ["run", &gguf, "--tokens", "1,2", "-n", "1", "--threads", "1"];
        let ran = trial.program.command(&words)?;
        if ran.code != 0 {
            return Err(format!("converted, and the file does not run: {}", ran.printed));
        }
    }
    Ok(ran.code == 0)
}
