//! Implements `parity dump`, which makes a reference with the Hugging Face code.

mod engine;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::convert::parse_shard;
use crate::target::parse_dtype;
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use parity::reference_script;
use registry::dtype::Dtype;
use registry::file;

pub(crate) use engine::model_of;

use crate::python::{PythonInterpreter, note_own_code, refuse_other_files};
use crate::{CommandOutcome, products, term};

/// Python script, by the name of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScriptFile {
    /// The script that makes the dump
    Dump,
    /// The script for --chat
    Chat,
}

impl ScriptFile {
    const ALL: [Self; 2] = [Self::Dump, Self::Chat];

    /// Returns the file name and the text.
    fn file(self) -> (&'static str, String) {
        match self {
            Self::Dump => ("dump.py", reference_script::text()),
            Self::Chat => ("chat.py", reference_script::CHAT.to_owned()),
        }
    }
}

/// Makes a reference dump with transformers, or a dump of another engine
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity dump MODEL -o MODEL/reference            needs python with torch and transformers, or uv
  parity dump MODEL -o DUMP --python venv/bin/python --dtypes f32,bf16
  parity dump MODEL -o DUMP --import my_model.py  the class is in a file of yours
  parity dump MODEL -o DUMP --trust-remote-code   the checkpoint brings its class (auto_map)
  parity dump MODEL -o DUMP --engine mlx          what another engine computes, for `parity diff`
  parity dump MODEL -o DUMP --layerwise           a model larger than the memory: the same dump
  parity dump MODEL -o DUMP --layers 0,3,60       these layers alone; shards of others may be absent
  parity dump MODEL -o DUMP --pieces DIR          keeps finished parts in DIR: run again, it goes on
  parity dump MODEL -o DUMP --pieces DIR --piece 2/8    the second of eight pieces, on any machine
  parity dump MODEL -o DUMP --pieces DIR --merge  the dump that one process would write
  parity dump MODEL -o DUMP --chat                also the chat template and the tokenizer
  parity dump MODEL -o DUMP --judge               also where the class differs from itself
  parity dump --script > dump.py                  to run it on another machine: python dump.py --help

--layerwise reads each layer's weights when they are multiplied, and carries all sequences that do
not wait for each other through a layer before the next. Of stacked experts and of the embedding only
the rows in use are read. The checkpoint is read once for every step that waits for the one before:
the longest decode (--prompts), the greedy tokens (`-- --greedy 0`), and each member of the ensemble
(`-- --no-members`). `-- --resident GB` sets the memory for weights.

--judge computes the class in f64 and compares ways to compute that are equal in exact arithmetic:
steps and chunks with the prefill, batches and padding with single sequences, sdpa with eager
attention. It also looks for weights without an effect. Each check prints a line with the first
module that differs, and the manifest gets them all (`onboard help dump`).

The interpreter is --python, else ONBOARD_PYTHON, else the python of the active environment (venv,
conda, PATH) if it has torch and transformers, else `uv run`, which installs what the script needs.
The files of code that is not transformers' own are recorded in the dump with their hashes.")]
pub(crate) struct DumpArgs {
    /// The checkpoint's folder
    #[arg(required_unless_present = "script")]
    model: Option<PathBuf>,
    /// The folder to write
    #[arg(short, long, value_name = "DUMP", required_unless_present = "script")]
    output: Option<PathBuf>,
    /// Print a script instead of running it
    #[arg(long, value_name = "SCRIPT", num_args = 0..=1, default_missing_value = "dump")]
    script: Option<ScriptFile>,
    /// Read one layer at a time, for a model larger than the memory
    #[arg(long)]
    layerwise: bool,
    /// Run these layers alone, with embedding, last norm and head: 0,3,60
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    layers: Vec<usize>,
    /// Keep finished parts in this folder, and go on with those that are there
    #[arg(long, value_name = "DIR", conflicts_with = "engine")]
    pieces: Option<PathBuf>,
    /// Make piece I of N into the folder of --pieces, and no dump
    #[arg(long, value_name = "I/N", value_parser = parse_shard, requires = "pieces", conflicts_with_all = ["merge", "plan"])]
    piece: Option<(usize, usize)>,
    /// Write the dump from the folder of --pieces, if all parts are there
    #[arg(long, requires = "pieces", conflicts_with = "plan")]
    merge: bool,
    /// Print what each of N pieces makes, and make nothing
    #[arg(long, value_name = "N", requires = "pieces", value_parser = clap::value_parser!(u16).range(1..=9999))]
    plan: Option<u16>,
    /// Also record renderings of the chat template and tokens of a corpus, for `parity check --chat`
    #[arg(long)]
    chat: bool,
    /// Also compare the class with itself in f64, and write the verdicts into the manifest
    #[arg(long, conflicts_with_all = ["layerwise", "layers", "pieces"])]
    judge: bool,
    /// The dtypes to run, with commas: f32,bf16,f16
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype)]
    dtypes: Vec<Dtype>,
    /// A JSON file of prompts to run instead of the derived ones
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    prompts: Option<String>,
    /// Run the classes that the checkpoint brings (`auto_map`): read them first
    #[arg(long)]
    trust_remote_code: bool,
    /// Import a Python file with classes of your own (repeatable)
    #[arg(long, value_name = "FILE.py")]
    import: Vec<PathBuf>,
    /// The python to run it with
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::ExecutablePath)]
    python: Option<PathBuf>,
    #[command(flatten)]
    recorded: engine::EngineDumpArgs,
    /// Further arguments for the script, after `--`
    #[arg(last = true, value_name = "ARGS")]
    more: Vec<String>,
}

impl DumpArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        if let Some(script) = self.script {
            term::print_data(&script.file().1)?;
            return Ok(CommandOutcome::Ok);
        }
        let (Some(model), Some(output)) = (&self.model, &self.output) else {
            bail!("the model's folder and --output are needed; see --help");
        };
        if let Some(engine) = &self.recorded.engine {
            for (flag, given) in [
                ("--trust-remote-code", self.trust_remote_code),
                ("--import", !self.import.is_empty()),
                ("--python", self.python.is_some()),
                ("--layerwise", self.layerwise),
                ("--layers", !self.layers.is_empty()),
                ("--chat", self.chat),
                ("--judge", self.judge),
                ("arguments after --", !self.more.is_empty()),
            ] {
                ensure!(
                    !given,
                    "{flag}: only the reference script has a use for it, not engine `{engine}`"
                );
            }
            let prompts = self.prompts.as_deref();
            return self.recorded.run(engine, model, output, &self.dtypes, prompts);
        }
        self.recorded.refuse_without_engine()?;
        ensure!(
            self.dtypes.is_empty() || self.dtypes.contains(&Dtype::F32),
            "--dtypes needs f32 too: the other runs are measured against it"
        );
        let config = model.join("config.json");
        ensure!(
            config.is_file(),
            "`{}` has no config.json; give the folder of a checkpoint",
            model.display()
        );
        refuse_other_files(&self.import)?;
        note_own_code(model, self.trust_remote_code);
        let folder = tempfile::Builder::new().prefix("onboard-dump-").tempdir()?;
        let script = folder.path().join("dump.py");
        // Python may leave compiled modules beside the scripts.
        let _watched = crate::interrupt::watch_whole(folder.path());
        for (name, text) in ScriptFile::ALL.map(ScriptFile::file) {
            let path = folder.path().join(name);
            fs_err::write(&path, text)?;
        }
        let python = PythonInterpreter::find(self.python.as_deref());
        term::note(&format!("running the reference with {}", python.name()));
        let mut command = python.command();
        command.arg(&script).args(self.arguments(model, output));
        // The script ends with this process, also if it is killed.
        command.env("ONBOARD_PARENT", std::process::id().to_string());
        // The script's output is not data: stdout stays empty.
        command.stdin(Stdio::null()).stdout(std::io::stderr());
        if self.plan.is_some() {
            command.stdout(Stdio::inherit());
        }
        let status = command
            .status()
            .with_context(|| format!("cannot start {}; give --python PATH", python.name()))?;
        if !status.success() {
            return Err(python.explain(status));
        }
        if let (Some((number, count)), Some(folder)) = (self.piece, &self.pieces) {
            return note_parts(folder, number + 1, count);
        }
        if self.plan.is_some() {
            return Ok(CommandOutcome::Ok);
        }
        if self.chat {
            let mut command = python.command();
            let record = output.join(chat::check::RECORD);
            command.arg(folder.path().join("chat.py")).arg(model).arg("-o").arg(record);
            command.stdin(Stdio::null()).stdout(std::io::stderr());
            let status = command.status().context("cannot start the script of chats")?;
            ensure!(
                status.success(),
                "the chat template was not recorded ({status}); what the script said stands above"
            );
        }
        term::note(&format!("wrote {}", output.display()));
        Ok(CommandOutcome::Ok)
    }
}

impl DumpArgs {
    /// Returns the arguments of the script.
    fn arguments(&self, model: &Path, output: &Path) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec![model.into(), "-o".into(), output.into()];
        if !self.dtypes.is_empty() {
            let names: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
            all.extend(["--dtypes".into(), names.join(",").into()]);
        }
        if let Some(prompts) = &self.prompts {
            all.extend(["--prompts".into(), prompts.into()]);
        }
        if self.layerwise {
            all.push("--layerwise".into());
        }
        if !self.layers.is_empty() {
            let numbers: Vec<String> = self.layers.iter().map(usize::to_string).collect();
            all.extend(["--layers".into(), numbers.join(",").into()]);
        }
        if let Some(folder) = &self.pieces {
            all.extend(["--pieces".into(), folder.into()]);
        }
        if let Some((number, count)) = self.piece {
            all.extend(["--piece".into(), format!("{}/{count}", number + 1).into()]);
        }
        if let Some(count) = self.plan {
            all.extend(["--plan".into(), "--piece".into(), format!("1/{count}").into()]);
        }
        if self.merge {
            all.push("--merge".into());
        }
        if self.judge {
            all.push("--judge".into());
        }
        if self.trust_remote_code {
            all.push("--trust-remote-code".into());
        }
        for file in &self.import {
            all.extend(["--import".into(), file.into()]);
        }
        all.extend(self.more.iter().map(OsString::from));
        all
    }
}

/// Notes the files that the record of a finished piece lists, and the record itself.
fn note_parts(folder: &Path, number: usize, count: usize) -> Result<CommandOutcome> {
    let path = folder.join(format!("piece-{number}-of-{count}.json"));
    let place = path.display();
    let bytes = file::read(&path, file::MANIFEST)
        .with_context(|| format!("the script ended well, but there is no `{place}`"))?;
    let record: PieceFiles = serde_json::from_slice(&bytes).with_context(|| {
        format!("`{place}` is no record of a finished piece; remove it, and make the piece again")
    })?;
    for name in &record.files {
        let plain = Path::new(name).file_name().is_some_and(|last| last == name.as_str());
        ensure!(plain, "`{place}`: `files` has `{name}`; expected the name of a file beside it");
        products::note(&folder.join(name));
    }
    products::note(&path);
    Ok(CommandOutcome::Ok)
}

/// Files of a finished piece, as the script records them.
#[derive(Debug, serde::Deserialize)]
struct PieceFiles {
    files: Vec<String>,
}
