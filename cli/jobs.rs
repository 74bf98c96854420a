//! Implements `onboard jobs`, which divides a long command into pieces for many machines.

mod kinds;
mod submit;
mod words;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use jobs::{
    CommandHost, CommandRun, DividedCommand, PieceOutcome, SchedulerOptions, kubernetes,
    number_ranges, plan_json, plan_text, slurm, unmade_numbers, unmade_reasons,
};
use serde_json::json;

use crate::{CommandOutcome, products, term, write};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  onboard jobs plan -n 8 convert MODEL --to gguf:q8_0 -o model.gguf        the pieces, and the shared paths
  onboard jobs plan -n 8 --on slurm parity dump MODEL -o DUMP --layerwise > dump.sbatch
  onboard jobs submit -n 8 --on ray imatrix MODEL --text t.txt -o m.imatrix.gguf
  onboard jobs status -n 8 imatrix MODEL --text t.txt -o m.imatrix.gguf    which pieces are made
  onboard jobs merge -n 8 imatrix MODEL --text t.txt -o m.imatrix.gguf     the file that one process writes

Commands that can be divided: convert, parity dump, imatrix. A piece that is made is not made again, and
an interrupted one goes on where it stopped.")]
pub(crate) enum JobsCommand {
    /// Prints the pieces of a command, or the script of a scheduler
    Plan(PlanArgs),
    /// Runs a piece on this machine, or all that are left, one after another
    Run(PieceRunArgs),
    /// Checks that all pieces are made, and joins them
    Merge(DivisionArgs),
    /// Shows which pieces are made; exit code 1 while some are left
    Status(StatusArgs),
    /// Hands the pieces to Ray, Slurm or Kubernetes
    Submit(SubmitArgs),
}

/// Program that starts pieces on machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobScheduler {
    /// Tasks of Ray (PyPI `ray`), on one machine or a cluster
    Ray,
    /// Array of Slurm, by `sbatch`
    Slurm,
    /// Indexed job of Kubernetes, by `kubectl`
    Kubernetes,
}

/// Command and number of its pieces.
#[derive(Debug, Args)]
pub(crate) struct DivisionArgs {
    /// Number of pieces
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=9999))]
    pieces: u16,
    /// Folder of the records of finished pieces; default: OUTPUT.jobs
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The command to divide: convert, parity dump or imatrix, with its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

impl DivisionArgs {
    fn divided(&self) -> Result<DividedCommand> {
        let host = CommandHost { kinds: kinds::KINDS, parse: words::parse, write: write_record };
        let state = self.state.as_deref();
        Ok(DividedCommand::new(host, &self.command, self.pieces.into(), state)?)
    }
}

/// Writes a record of a piece.
fn write_record(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write::atomic(path, bytes).map_err(io::Error::other)
}

/// Settings of schedulers.
#[derive(Debug, Args)]
pub(crate) struct SchedulerArgs {
    /// This program on the machines; default: its path here
    #[arg(long, value_name = "PATH")]
    program: Option<String>,
    /// Working directory on the machines; default: that of this command
    #[arg(long, value_name = "DIR")]
    directory: Option<String>,
    /// Times that a failed piece is tried again (Ray, Kubernetes)
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(0..=1000))]
    retries: u16,
    /// CPUs that a piece occupies (Ray)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    cpus: u16,
    /// Address of a Ray cluster; default: RAY_ADDRESS, a cluster on this machine, or a new one
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Python with ray (Ray)
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// Option of sbatch, as `--partition=long` (Slurm, repeatable)
    #[arg(long = "option", value_name = "OPTION", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Container image that has this program (Kubernetes)
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Volume claim of the shared folder (Kubernetes)
    #[arg(long, value_name = "NAME")]
    claim: Option<String>,
    /// Place of the shared folder in containers; default: the working directory (Kubernetes)
    #[arg(long, value_name = "DIR")]
    mount: Option<String>,
    /// Pieces at a time; default: all (Kubernetes)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=9999))]
    parallel: Option<u16>,
}

impl SchedulerArgs {
    fn options(&self) -> Result<SchedulerOptions> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => named(std::env::current_exe().context("this program has no path")?)?,
        };
        let directory = match &self.directory {
            Some(directory) => directory.clone(),
            None => named(std::env::current_dir().context("the working directory is gone")?)?,
        };
        Ok(SchedulerOptions {
            program,
            directory,
            retries: self.retries,
            options: self.options.clone(),
            image: self.image.clone(),
            claim: self.claim.clone(),
            mount: self.mount.clone(),
            parallel: self.parallel,
        })
    }
}

/// Returns a path as text, in which scripts and JSON can name it.
fn named(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        anyhow::anyhow!("`{}` is not UTF-8; name another path", path.to_string_lossy())
    })
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Print the script for this scheduler
    #[arg(long, value_name = "SCHEDULER")]
    on: Option<JobScheduler>,
    /// Print the plan as JSON
    #[arg(long, conflicts_with = "on")]
    json: bool,
    #[command(flatten)]
    scheduler: SchedulerArgs,
    #[command(flatten)]
    division: DivisionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PieceRunArgs {
    /// Number of the piece, from 1; default: all that are left
    #[arg(long, value_name = "I")]
    piece: Option<usize>,
    /// Environment variable with the number of the piece, from 0
    #[arg(long, value_name = "NAME", conflicts_with = "piece")]
    index_env: Option<String>,
    #[command(flatten)]
    division: DivisionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print the state as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    division: DivisionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// The scheduler
    #[arg(long, value_name = "SCHEDULER")]
    on: JobScheduler,
    #[command(flatten)]
    scheduler: SchedulerArgs,
    #[command(flatten)]
    division: DivisionArgs,
}

impl JobsCommand {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        match self {
            Self::Plan(args) => args.run(),
            Self::Run(args) => args.run(),
            Self::Merge(args) => Ok(run_words(&args.divided()?.merge_of_made()?)),
            Self::Status(args) => args.run(),
            Self::Submit(args) => {
                let divided = args.division.divided()?;
                if !divided.left()?.is_empty() {
                    divided.refuse_output()?;
                }
                note_absent(&divided);
                submit::submit(&divided, args.on, &args.scheduler)
            }
        }
    }
}

impl PlanArgs {
    fn run(self) -> Result<CommandOutcome> {
        let divided = self.division.divided()?;
        note_absent(&divided);
        let options = self.scheduler.options()?;
        let text = match self.on {
            Some(JobScheduler::Slurm) => slurm(&divided, &options)?,
            Some(JobScheduler::Kubernetes) => kubernetes(&divided, &options)?,
            Some(JobScheduler::Ray) => format!("{:#}", plan_json(&divided, &options)?),
            None if self.json => format!("{:#}", plan_json(&divided, &options)?),
            None => plan_text(&divided, &options)?,
        };
        term::print(text.trim_end())?;
        Ok(CommandOutcome::Ok)
    }
}

impl PieceRunArgs {
    fn run(self) -> Result<CommandOutcome> {
        let divided = self.division.divided()?;
        let numbers = match (&self.piece, &self.index_env) {
            (Some(number), _) => vec![*number],
            (None, Some(name)) => vec![index(name)?],
            (None, None) => unmade_numbers(&divided.left()?),
        };
        for number in numbers {
            let outcome = run_piece(&divided, number)?;
            if outcome != CommandOutcome::Ok {
                return Ok(outcome);
            }
        }
        Ok(CommandOutcome::Ok)
    }
}

/// Returns the number of the piece in an environment variable, in which a scheduler counts from 0.
fn index(name: &str) -> Result<usize> {
    let text = std::env::var_os(name).with_context(|| {
        format!("the variable `{name}` is not set; the scheduler sets it for each task")
    })?;
    let text = text.to_string_lossy();
    let index: usize =
        text.parse().ok().filter(|index| *index < 9999).with_context(|| {
            format!("`{name}` is `{text}`; expected the number of a task, from 0")
        })?;
    Ok(index + 1)
}

/// Notes inputs that this machine does not have. The machines of the pieces may have them.
fn note_absent(divided: &DividedCommand) {
    for path in divided.absent() {
        term::note(&format!("note: `{path}` is not on this machine; the pieces need it on theirs"));
    }
}

/// Runs a piece in this process, and records its files and inputs.
fn run_piece(divided: &DividedCommand, number: usize) -> Result<CommandOutcome> {
    let piece = format!("piece {number} of {}", divided.count);
    let mut outcome = CommandOutcome::Ok;
    let made = divided.make(
        number,
        |why| term::note(&format!("{piece} is made again: {why}")),
        |words| run_recorded(words, &mut outcome),
    )?;
    match made {
        PieceOutcome::MadeBefore => term::print(&format!("{piece} is made already"))?,
        PieceOutcome::Made => term::note(&format!("{piece} is made")),
        PieceOutcome::Failed => {}
    }
    Ok(outcome)
}

/// Runs a command of this program, and lists the files that it wrote.
fn run_recorded(words: &[String], outcome: &mut CommandOutcome) -> CommandRun {
    let (run_outcome, written) = products::during(|| run_words(words));
    *outcome = run_outcome;
    CommandRun { succeeded: run_outcome == CommandOutcome::Ok, written }
}

/// Runs a command of this program.
fn run_words(words: &[String]) -> CommandOutcome {
    let arguments = std::iter::once("onboard").chain(words.iter().map(String::as_str));
    match crate::run(arguments.map(Into::into).collect()) {
        0 => CommandOutcome::Ok,
        1 => CommandOutcome::Differs,
        _ => CommandOutcome::CouldNotRun,
    }
}

impl StatusArgs {
    fn run(self) -> Result<CommandOutcome> {
        let divided = self.division.divided()?;
        let left = divided.left()?;
        let count = divided.count;
        let done = count - left.len();
        if self.json {
            let all = json!({
                "schema": "onboard-jobs/1", "command": divided.words, "identity": divided.identity(),
                "of": count, "made": done, "left": unmade_numbers(&left),
                "why": left.iter().map(|(_, why)| why).collect::<Vec<_>>(),
            });
            term::print(&format!("{all:#}"))?;
        } else if left.is_empty() {
            term::print(&format!("all {count} pieces are made"))?;
        } else {
            term::print(&format!(
                "{done} of {count} pieces are made; left: {}{}",
                number_ranges(&unmade_numbers(&left)),
                unmade_reasons(&left)
            ))?;
        }
        Ok(if left.is_empty() { CommandOutcome::Ok } else { CommandOutcome::Differs })
    }
}
