//! Other programs that run the same tests: `--against NAME` or `--against NAME=PROGRAM`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;

use registry::dtype::Dtype;
use registry::file;
use registry::shell::flag;
use serde_json::{Value, json};

use super::error::BenchError;
use super::plan::BenchTest;

/// Program of the torch peer: reads a test a line, writes a rate a line.
const TORCH: &str = include_str!("../../../benches/torch_peer.py");
/// Characters of a program's last message that an error repeats.
const SHOWN: usize = 400;

/// Kinds of programs, by the name on the command line.
const KINDS: [PeerKind; 3] = [
    PeerKind { name: "llama-bench", program: Some("llama-bench"), open: LlamaBench::open },
    PeerKind { name: "torch", program: None, open: |at| Torch::open(at, &[]) },
    PeerKind { name: "torch-compile", program: None, open: |at| Torch::open(at, &["--compile"]) },
];

/// Declaration of a kind of program.
struct PeerKind {
    name: &'static str,
    /// Program that runs unless another is given; the interpreter of Python files if it is none.
    program: Option<&'static str>,
    open: fn(&PeerSetting<'_>) -> Result<Box<dyn BenchPeer>, BenchError>,
}

/// Model and settings that a program runs with.
#[derive(Debug, Clone, Copy)]
pub struct PeerSetting<'a> {
    /// Program that runs, or the interpreter of Python files.
    pub program: &'a Path,
    /// GGUF file, or folder of weights.
    pub model: &'a Path,
    /// True if the model is a GGUF file, false if it is a folder of weights.
    pub gguf: bool,
    /// Dtype of activations.
    pub dtype: Dtype,
    /// Number of worker threads.
    pub threads: usize,
    /// True to run on the GPU.
    pub gpu: bool,
}

/// Program that is ready to run tests.
pub trait BenchPeer {
    /// Runs a test once and returns its tokens per second.
    fn run(&mut self, test: &BenchTest) -> Result<f64, BenchError>;
}

/// Program that is asked for.
#[derive(Debug, Clone)]
pub struct PeerChoice {
    /// Name and program as typed.
    pub text: String,
    kind: usize,
    program: Option<PathBuf>,
}

impl FromStr for PeerChoice {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let (name, program) = match text.split_once('=') {
            Some((name, program)) => (name, Some(PathBuf::from(program))),
            None => (text, None),
        };
        let kind = KINDS.iter().position(|kind| kind.name == name).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            BenchError::UnknownPeer { name: name.to_owned(), known: names.join(", ") }
        })?;
        Ok(Self { text: text.to_owned(), kind, program })
    }
}

impl PeerChoice {
    /// Starts the program with a model, or returns the reason why it does not read the model. `setting` has the
    /// interpreter of Python files, which another program replaces.
    pub fn open(&self, setting: PeerSetting<'_>) -> Result<Box<dyn BenchPeer>, BenchError> {
        let kind = &KINDS[self.kind];
        let program = self.program.as_deref().or(kind.program.map(Path::new));
        (kind.open)(&PeerSetting { program: program.unwrap_or(setting.program), ..setting })
    }
}

/// Describes a failed program by the last line of its messages.
fn failed(program: &Path, status: &str, messages: &[u8]) -> BenchError {
    let text = String::from_utf8_lossy(messages);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last: String = last.unwrap_or("it wrote no message").chars().take(SHOWN).collect();
    let message = last.escape_debug().to_string();
    BenchError::Failed { program: program.to_owned(), status: status.to_owned(), message }
}

/// llama.cpp's program, started anew for each test and round.
struct LlamaBench {
    program: PathBuf,
    model: PathBuf,
    threads: usize,
    gpu: bool,
}

impl LlamaBench {
    fn open(setting: &PeerSetting<'_>) -> Result<Box<dyn BenchPeer>, BenchError> {
        let PeerSetting { program, model, threads, gguf, gpu, .. } = *setting;
        if !gguf {
            return Err(unsuited("it reads GGUF files; `onboard convert` makes one"));
        }
        Ok(Box::new(Self { program: program.to_owned(), model: model.to_owned(), threads, gpu }))
    }
}

impl BenchPeer for LlamaBench {
    fn run(&mut self, test: &BenchTest) -> Result<f64, BenchError> {
        if test.batch > 1 {
            return Err(unsuited("it has no batches of sequences"));
        }
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(&self.model).args(["-r", "1", "-o", "json"]);
        // Layers on the GPU: none, or all.
        command.args(["-ngl", if self.gpu { "999" } else { "0" }]);
        command.args(["-t", &self.threads.to_string()]);
        if test.depth > 0 {
            command.args(["-d", &test.depth.to_string()]);
        }
        let prompt = test.prompt.to_string();
        let generated = test.generated.to_string();
        if test.prompt > 0 && test.generated > 0 {
            command.args(["-p", "0", "-n", "0", "-pg", &format!("{prompt},{generated}")]);
        } else {
            command.args(["-p", &prompt, "-n", &generated]);
        }
        let output = command.stdin(Stdio::null()).output().map_err(|error| BenchError::Start {
            program: self.program.clone(),
            why: error.to_string(),
            remedy: "; give its path with `NAME=PROGRAM`",
        })?;
        if !output.status.success() {
            return Err(failed(&self.program, &output.status.to_string(), &output.stderr));
        }
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let row = rows.as_array().into_iter().flatten().find(|row: &&Value| {
            row["n_prompt"] == json!(test.prompt) && row["n_gen"] == json!(test.generated)
        });
        let rate = row.and_then(|row| row["avg_ts"].as_f64()).filter(|rate| *rate > 0.0);
        rate.ok_or_else(|| failed(&self.program, "gave no `avg_ts` of the test", &output.stdout))
    }
}

/// transformers on torch, which loads the model once.
struct Torch {
    program: PathBuf,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The script, and the messages of the program.
    folder: tempfile::TempDir,
}

/// Describes why a program cannot be started.
fn start_error(setting: &PeerSetting<'_>, error: &std::io::Error) -> BenchError {
    BenchError::Start { program: setting.program.to_owned(), why: error.to_string(), remedy: "" }
}

/// Returns the error of a test or a model that a program cannot run.
fn unsuited(reason: &'static str) -> BenchError {
    BenchError::Unsuited { reason }
}

impl Torch {
    fn open(setting: &PeerSetting<'_>, more: &[&str]) -> Result<Box<dyn BenchPeer>, BenchError> {
        if setting.gguf {
            return Err(unsuited("it reads the folders of checkpoints, not GGUF files"));
        }
        let folder = tempfile::tempdir().map_err(|error| start_error(setting, &error))?;
        let script = folder.path().join("torch_peer.py");
        fs_err::write(&script, TORCH).map_err(|error| start_error(setting, &error))?;
        let messages = fs_err::File::create(folder.path().join("messages"))
            .map_err(|error| start_error(setting, &error))?;
        let mut child = Command::new(setting.program)
            .arg(script)
            .arg(setting.model)
            .args([flag("dtype"), setting.dtype.to_string()])
            .args([flag("threads"), setting.threads.to_string()])
            .args([flag("device").as_str(), if setting.gpu { "cuda" } else { "cpu" }])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(messages.into_parts().0)
            .spawn()
            .map_err(|error| start_error(setting, &error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(unsuited("its streams are not open"));
        };
        let output = BufReader::new(output);
        Ok(Box::new(Self { program: setting.program.to_owned(), child, input, output, folder }))
    }
}

impl BenchPeer for Torch {
    fn run(&mut self, test: &BenchTest) -> Result<f64, BenchError> {
        let ask = json!({
            "prompt": test.prompt, "generated": test.generated, "depth": test.depth, "batch": test.batch,
        });
        let mut line = String::new();
        let sent = writeln!(self.input, "{ask}").and_then(|()| self.input.flush());
        let answered = sent.and_then(|()| self.output.read_line(&mut line));
        let rate = answered.ok().and_then(|_| line.trim().parse::<f64>().ok());
        rate.filter(|rate| rate.is_finite() && *rate > 0.0).ok_or_else(|| {
            self.child.kill().ok();
            let messages =
                file::read(&self.folder.path().join("messages"), file::TEXT).unwrap_or_default();
            failed(&self.program, "gave no rate", &messages)
        })
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_chosen_by_name() {
        let choice: PeerChoice = "llama-bench=/usr/bin/llama-bench".parse().unwrap();
        assert_eq!(choice.program.unwrap(), Path::new("/usr/bin/llama-bench"));
        assert!("torch".parse::<PeerChoice>().unwrap().program.is_none());
        assert!(
            "gpu".parse::<PeerChoice>().unwrap_err().to_string().contains("llama-bench, torch")
        );
    }

    #[test]
    fn a_program_that_does_not_start_is_a_reason() {
        let choice: PeerChoice = "llama-bench=/does/not/exist".parse().unwrap();
        let test = BenchTest { prompt: 4, generated: 0, depth: 0, batch: 1 };
        let setting = PeerSetting {
            program: Path::new("python3"),
            model: Path::new("m.gguf"),
            gguf: true,
            dtype: Dtype::F32,
            threads: 1,
            gpu: false,
        };
        let why =
            choice.open(setting).and_then(|mut peer| peer.run(&test)).unwrap_err().to_string();
        assert!(why.contains("cannot start `/does/not/exist`"), "{why}");
        let folder = PeerSetting { gguf: false, ..setting };
        assert!(
            choice.open(folder).is_err_and(|why| why.to_string().contains("it reads GGUF files"))
        );
    }

    #[test]
    fn the_end_of_long_messages_is_shown() {
        let text = failed(Path::new("p"), "failed", "é".repeat(10_000).as_bytes()).to_string();
        assert!(text.chars().count() < SHOWN + 50, "{text}");
    }
}
