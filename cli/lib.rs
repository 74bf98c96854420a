//! Command-line interface: parses arguments, prints and exits. No other crate does.
//!
//! Exit codes are the same for all commands: 0 proven (or done), 1 differs, 2 could not run.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use annotate::FormatArgs;
use anyhow::Result;
use clap::{Parser, Subcommand};
use formats::mmap::{ExitMessage, on_shrink};

mod add_model;
mod annotate;
mod arithmetic;
mod bench;
mod bench_serve;
mod check;
mod compile;
mod completions;
mod convert;
mod docs;
mod dump;
mod engine_command;
mod engines;
mod eval;
mod findings;
mod formats_command;
mod help;
#[cfg(feature = "hub")]
mod hub;
mod imatrix;
mod interrupt;
mod jobs;
mod launch;
mod list;
mod man;
mod matrix;
mod new;
mod overview;
mod parity_check;
mod parity_diff;
mod parity_fit;
mod parity_mutate;
mod parity_schedules;
mod plugin;
mod products;
mod progress;
mod python;
mod run;
mod sampling;
mod schema;
mod serve_command;
mod show;
mod skill;
mod specs;
mod synth;
mod target;
mod term;
mod token_io;
mod verify;
mod write;

/// Outcome of a command that could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// The command succeeded, and the proof holds if there is one.
    Ok,
    /// Two things that must agree differ.
    Differs,
    /// The command could not run, and has reported the reason.
    CouldNotRun,
    /// A signal stopped the command, which has reported its results so far.
    Stopped(i32),
}

/// Takes a new language model from its checkpoint to a proven engine graph.
#[derive(Debug, Parser)]
#[command(
    name = "onboard",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    help_template = overview::template(),
    after_help = EXAMPLES
)]
struct OnboardCli {
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: OnboardCommand,
}

const EXAMPLES: &str = "\
Examples:
  onboard add-model checkpoints/mine      match a spec, build, run and prove it
  onboard add-model owner/name            the same for a model on a hub
  onboard show checkpoints/mine --graph   the model as it will run
  onboard parity check checkpoints/mine   compare with a reference dump
  onboard launch checkpoints/mine --engine vllm --gpu h100   the command to serve it with
  onboard new mine --like SPEC            a spec to begin with
  onboard help spec                       the spec language; `onboard help ops` lists its ops

Exit codes: 0 proven or done, 1 differs, 2 could not run.";

#[derive(Debug, Subcommand)]
enum OnboardCommand {
    AddModel(add_model::AddModelArgs),
    New(new::NewArgs),
    Show(show::ShowArgs),
    Check(check::CheckArgs),
    List(list::ListArgs),
    Run(run::RunArgs),
    Serve(serve_command::ServeArgs),
    Bench(bench::BenchArgs),
    BenchServe(bench_serve::BenchServeArgs),
    Synth(synth::SynthArgs),
    /// Compares engines with references: `parity check`, `dump`, `schedules`, ...
    Parity {
        #[command(subcommand)]
        command: ParityCommand,
    },
    /// Lists engines and tests plugins
    Engine {
        #[command(subcommand)]
        command: engine_command::EngineCommand,
    },
    Convert(convert::ConvertArgs),
    Verify(verify::VerifyArgs),
    Imatrix(imatrix::ImatrixArgs),
    /// Divides a long command into pieces for many machines
    Jobs {
        #[command(subcommand)]
        command: jobs::JobsCommand,
    },
    Launch(launch::LaunchArgs),
    /// Formats of tool calls and reasoning: lists them, finds a model's, and reads outputs
    Formats {
        #[command(subcommand)]
        command: formats_command::FormatsCommand,
    },
    Plugin(plugin::PluginArgs),
    Compile(compile::CompileArgs),
    Help(help::HelpArgs),
    Skill(skill::SkillArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// Proves that an engine computes what the reference computes, or names the first op that does not.
#[derive(Debug, Parser)]
#[command(name = "parity", version, propagate_version = true, after_help = PARITY_EXAMPLES)]
struct ParityCli {
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: ParityCommand,
}

const PARITY_EXAMPLES: &str = "\
Examples:
  parity check MODEL                                        compare with MODEL/reference
  parity check MODEL --reference DUMP --dtype bf16 --html report.html
  parity dump MODEL -o DUMP                                 make a reference with transformers
  parity diff A B                                           two dumps, tap by tap
  parity matrix parity.yaml                                 models by engines by dtypes, for CI
  parity eval MODEL tasks.jsonl -o results.jsonl            score multiple choice and generation
  parity eval-diff A.jsonl B.jsonl                          two evaluations: the cause of a difference

Exit codes: 0 agree, 1 differ, 2 could not run.";

#[derive(Debug, Subcommand)]
enum ParityCommand {
    Check(parity_check::ParityCheckArgs),
    Dump(dump::DumpArgs),
    Schedules(parity_schedules::SchedulesArgs),
    Diagnose(parity_check::DiagnoseArgs),
    Mutate(parity_mutate::MutateArgs),
    Diff(parity_diff::DiffArgs),
    Matrix(matrix::MatrixArgs),
    Fit(parity_fit::FitArgs),
    Eval(eval::EvalArgs),
    EvalDiff(eval::EvalDiffArgs),
}

#[derive(Debug, Parser)]
#[command(name = "convert", version)]
struct ConvertCli {
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    command: convert::ConvertArgs,
}

/// Runs the command that the program name selects, `onboard` by default.
pub fn main() -> ExitCode {
    engine::keep_freed_memory();
    raise_open_files();
    run(std::env::args_os().collect()).into()
}

/// Raises the limit on open files as far as allowed. Each file of a checkpoint stays open, and each request of a
/// server has a connection.
fn raise_open_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        // macOS refuses more than 10,240 where it names no limit. Some child processes close all that they may have.
        let raised = limit.maximum.map_or(10_240, |maximum| maximum.min(65_536));
        if limit.current.is_some_and(|now| now < raised) {
            limit.current = Some(raised);
            setrlimit(Resource::Nofile, limit).ok();
        }
    }
}

/// Runs the command named by `words`, which begin with the program name, and returns its exit code.
pub fn run(words: Vec<OsString>) -> u8 {
    let name = words.first().and_then(|name| Some(Path::new(name).file_stem()?.to_owned()));
    match name.as_deref().and_then(OsStr::to_str) {
        Some("parity") => start(words, |parsed: ParityCli| (parsed.format, parsed.command.into())),
        Some("convert") => start(words, |parsed: ConvertCli| {
            (parsed.format, OnboardCommand::Convert(parsed.command))
        }),
        _ => start(words, |parsed: OnboardCli| (parsed.format, parsed.command)),
    }
}

impl From<ParityCommand> for OnboardCommand {
    fn from(command: ParityCommand) -> Self {
        Self::Parity { command }
    }
}

impl OnboardCommand {
    fn run(self) -> Result<CommandOutcome> {
        match self {
            Self::AddModel(args) => args.run(),
            Self::New(args) => args.run(),
            Self::Show(args) => args.run(),
            Self::Check(args) => args.run(),
            Self::List(args) => args.run(),
            Self::Run(args) => args.run(),
            Self::Serve(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::BenchServe(args) => args.run(),
            Self::Synth(args) => args.run(),
            Self::Parity { command } => command.run(),
            Self::Engine { command } => command.run(),
            Self::Convert(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Imatrix(args) => args.run(),
            Self::Jobs { command } => command.run(),
            Self::Launch(args) => args.run(),
            Self::Formats { command } => command.run(),
            Self::Plugin(args) => args.run(),
            Self::Compile(args) => args.run(),
            Self::Help(args) => args.run(),
            Self::Skill(args) => args.run(),
            Self::Completions(args) => args.run(),
            Self::Man(args) => args.run(),
        }
    }
}

impl ParityCommand {
    fn run(self) -> Result<CommandOutcome> {
        match self {
            Self::Check(args) => args.run(),
            Self::Dump(args) => args.run(),
            Self::Schedules(args) => args.run(),
            Self::Diagnose(args) => args.run(),
            Self::Mutate(args) => args.run(),
            Self::Diff(args) => args.run(),
            Self::Matrix(args) => args.run(),
            Self::Fit(args) => args.run(),
            Self::Eval(args) => args.run(),
            Self::EvalDiff(args) => args.run(),
        }
    }
}

fn start<P: Parser>(
    words: Vec<OsString>,
    command: impl FnOnce(P) -> (FormatArgs, OnboardCommand),
) -> u8 {
    let parsed = match P::try_parse_from(words) {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help goes to stdout and is a success; everything else goes to stderr.
            let failed = error.use_stderr();
            // Help texts of this program also come as errors of the parser.
            let text = error.render().to_string();
            match text.strip_prefix("error: ").filter(|_| !failed) {
                Some(help) => term::print(help.trim_end()).ok(),
                None => error.print().ok(),
            };
            return if failed { 2 } else { 0 };
        }
    };
    interrupt::install();
    on_shrink(ExitMessage {
        before: "error: `",
        after: "` became shorter while it was read; whatever was being written is unfinished and has no name. \
                Wait until nothing writes to the file, then run the command again\n",
        code: 2,
    });
    let (format, command) = command(parsed);
    format.install();
    match command.run() {
        Ok(CommandOutcome::Ok) => 0,
        Ok(CommandOutcome::Differs) => 1,
        Ok(CommandOutcome::CouldNotRun) => 2,
        // The exit code of a shell for a signal.
        Ok(CommandOutcome::Stopped(signal)) => (128 + signal) as u8,
        Err(error) if error.is::<findings::ReportedError>() => 2,
        Err(error) if is_broken_pipe(&error) => BROKEN_PIPE,
        Err(error) => {
            let word = term::paint_if(term::colour_err(), term::Tone::Bad, "error:");
            term::note(&format!("{word} {error:#}"));
            annotate::error(&format!("{error:#}"));
            // The model ran and computed wrong values.
            if is_not_finite(&error) { 1 } else { 2 }
        }
    }
}

fn is_not_finite(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(engine::Error::NotFinite { .. })))
}

/// Exit code of a shell for a command whose reader has closed the pipe.
const BROKEN_PIPE: u8 = 141;

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
