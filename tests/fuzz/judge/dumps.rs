//! Judges of dumps of a reference: manifest and tensors.

use parity::Dump;
use parity::dump::Phase;

use super::{Judged, Trial, refused};

/// Judges a dump: every value is read, and sometimes compared with the model.
pub(crate) fn dump(trial: &Trial<'_>) -> Judged {
    let judged = match read_all(trial) {
        Ok(()) => true,
        Err(text) => refused(&text)?,
    };
    if trial.sometimes(40) {
        let family = trial.case.words.first().ok_or("a case names its family")?;
        let home = trial.program.root.join("fixtures").join(family).display().to_string();
        let dump = trial.dir.display().to_string();
        let words = ["parity", "check", &home, "--reference", &dump, "--threads", "1"];
        trial.program.command(&[&words[..], &["--dtype", "f32", "--no-schedules"]].concat())?;
    }
    Ok(judged)
}

fn read_all(trial: &Trial<'_>) -> Result<(), String> {
    let text = |error: parity::dump::Error| error.to_string();
    let dump = Dump::open(trial.dir).map_err(text)?;
    for note in &dump.notes {
        crate::program::message(note)?;
    }
    let manifest = &dump.manifest;
    for run in dump.runs() {
        for prompt in &manifest.prompts {
            for phase in Phase::ALL {
                if let Some(logprobs) = dump.logprobs(run, prompt, phase).map_err(text)? {
                    for row in 0..logprobs.rows {
                        std::hint::black_box(logprobs.row(row).values.first());
                    }
                }
                for (tap, _) in &manifest.taps.0 {
                    drop(dump.tap(run, prompt, phase, tap).map_err(text)?);
                }
                for state in &manifest.states {
                    for part in &state.parts {
                        drop(dump.state(run, prompt, phase, state.layer, part).map_err(text)?);
                    }
                }
                drop(dump.choices(run, prompt, phase.name()).map_err(text)?);
            }
        }
    }
    drop(dump.nextn().map_err(text)?);
    Ok(())
}
