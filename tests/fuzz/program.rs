//! Program under attack: its libraries, with the built-in specs read once, and its commands.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Chunk, Engine as _, ModelSource, NativeEngine, NoProbe, OutputRows, SessionOptions};
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;

/// Shared inputs of judges.
pub(crate) struct Program {
    pub(crate) library: Library,
    pub(crate) ops: OpSet,
    /// Root of the repository.
    pub(crate) root: PathBuf,
    /// Files that were made before the first case.
    pub(crate) made: PathBuf,
    /// File that receives standard output and standard error of this process.
    pub(crate) output: PathBuf,
    /// True if commands run as processes of their own.
    pub(crate) apart: bool,
}

/// Exit code and output of a command.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) printed: String,
}

/// Time limit of a process, beyond which it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(300);

impl Program {
    /// Runs `onboard` with these words; an error is a wrong exit code, or output unsafe for a terminal.
    pub(crate) fn command(&self, words: &[&str]) -> Result<Ran, String> {
        fs_err::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&self.output)
            .map_err(|e| e.to_string())?;
        let code = if self.apart {
            self.process(words)?
        } else {
            let all = std::iter::once("onboard").chain(words.iter().copied());
            i32::from(cli::run(all.map(Into::into).collect()))
        };
        std::io::stdout().flush().ok();
        let printed = fs_err::read(&self.output).map_err(|error| error.to_string())?;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let first = words.first().copied().unwrap_or_default();
        if !(0..=2).contains(&code) {
            let last = printed.lines().last().unwrap_or_default();
            return Err(format!("`{first}` ended with {code}: {last}"));
        }
        if printed.contains("panicked at") {
            return Err(format!("`{first}` panicked: {printed}"));
        }
        if let Some(sign) = printed.chars().find(|c| is_unsafe(*c)) {
            return Err(format!("`{first}` printed the control character {sign:?}"));
        }
        if code != 0 && printed.trim().is_empty() {
            return Err(format!("`{first}` ended with {code} and said nothing"));
        }
        Ok(Ran { code, printed })
    }

    /// Returns the file of output for a process, which appends to it.
    fn appended(&self) -> Stdio {
        let file = std::fs::OpenOptions::new().append(true).open(&self.output);
        file.map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// Runs a command as a process with bounded memory and time.
    fn process(&self, words: &[&str]) -> Result<i32, String> {
        let (binary, words) = match words {
            ["convert", words @ ..] => (env!("CARGO_BIN_EXE_convert"), words),
            ["parity", words @ ..] => (env!("CARGO_BIN_EXE_parity"), words),
            all => (env!("CARGO_BIN_EXE_onboard"), all),
        };
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -v 8388608; exec \"$0\" \"$@\"", binary])
            .args(words)
            .stdin(Stdio::null())
            .stdout(self.appended())
            .stderr(self.appended())
            .spawn()
            .map_err(|error| format!("cannot start `{binary}`: {error}"))?;
        let started = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(exit_code(status)),
                Ok(None) if started.elapsed() > PATIENCE => {
                    child.kill().ok();
                    child.wait().ok();
                    return Err(format!("`{words:?}` hangs"));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Runs a model on a few tokens: true if every logit is finite, an error if it cannot run.
pub(crate) fn forward(model: Arc<Model>, dir: &Path) -> Result<bool, String> {
    let last = u32::try_from(model.vocab.saturating_sub(1)).unwrap_or(u32::MAX);
    let options = SessionOptions { threads: Some(1), ..SessionOptions::default() };
    let session = NativeEngine::new().open(&ModelSource { model, dir }, &options);
    let mut session = session.map_err(|error| error.to_string())?;
    let slot = session.open_slot();
    let mut finite = true;
    for tokens in [&[1.min(last), 5.min(last), last][..], &[2.min(last)]] {
        let chunk = Chunk { slot, tokens, rows: OutputRows::All };
        let logits = session.step(&[chunk], &mut NoProbe).map_err(|error| error.to_string())?;
        let rows = logits.iter().flat_map(|l| (0..l.rows).map(|row| l.row(row)));
        finite &= rows.flatten().all(|x| x.is_finite());
    }
    Ok(finite)
}

/// Returns the exit code, or 128 and the number of the signal that ended the process.
fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// True for a control character that a terminal may act on.
fn is_unsafe(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// Checks that a message is safe to show and not too long.
pub(crate) fn message(text: &str) -> Result<(), String> {
    if let Some(sign) = text.chars().find(|c| is_unsafe(*c)) {
        return Err(format!("the control character {sign:?} in a message: {text:?}"));
    }
    if text.is_empty() || text.len() > 20_000 {
        return Err(format!("a message of {} bytes: {:.300}", text.len(), text));
    }
    Ok(())
}
