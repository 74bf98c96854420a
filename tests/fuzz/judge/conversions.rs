//! Judges of journals, parts of sets, and files that are copied along.

use super::{Judged, Trial, files};

/// Judges a conversion that resumes from a damaged journal or a damaged unfinished file.
pub(crate) fn journal(trial: &Trial<'_>) -> Judged {
    let made = &trial.program.made;
    let from = made.join("resumed/model").display().to_string();
    let out = trial.dir.join("out.gguf");
    let to = out.display().to_string();
    let words = ["convert", &from, "--to", "gguf:q8_0", "-o", &to, "--resume"];
    let more = ["--slab", "1", "--threads", "1"];
    let ran = trial.program.command(&[&words[..], &more].concat())?;
    if ran.code != 0 {
        return Ok(false);
    }
    let read = |path| fs_err::read(path).map_err(|error| error.to_string());
    if read(out)? != read(made.join("resumed/whole.gguf"))? {
        return Err("exit 0, and the resumed file has other bytes".to_owned());
    }
    Ok(true)
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
