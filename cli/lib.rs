//! The commands: parse arguments, print, exit. The only crate that does.
//!
//! Exit codes are the same everywhere: 0 proven (or done), 1 differs, 2 could not run.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod add_model;
mod bench;
mod calibrate;
mod card;
mod check;
mod convert;
mod coverage;
mod draft;
mod dump;
mod engines;
mod gguf_target;
#[cfg(feature = "hub")]
mod hub;
mod imatrix;
mod interrupt;
mod list;
mod parity_check;
mod parity_more;
mod run;
mod show;
mod specs;
mod synth;
mod target;
mod term;
mod text;
mod voice;
mod write;

/// How a command ended, if it could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It did what was asked; what was to be proven is proven.
    Well,
    /// Two things that must agree do not.
    Differs,
    /// Everything there is to say has been said; the answer is that it could not run.
    CouldNotRun,
}

/// Takes a new language model from its checkpoint to a proven engine graph.
#[derive(Debug, Parser)]
#[command(name = "onboard", version, propagate_version = true, after_help = EXAMPLES)]
struct Onboard {
    #[command(subcommand)]
    command: OnboardCommand,
}

const EXAMPLES: &str = "\
Examples:
  onboard add-model checkpoints/mine      match a spec, build, run and prove it
  onboard add-model owner/name            the same for a model on a hub
  onboard show checkpoints/mine --graph   the model as it will run
  onboard parity check checkpoints/mine   compare with a reference dump

Exit codes: 0 proven or done, 1 differs, 2 could not run.";

#[derive(Debug, Subcommand)]
enum OnboardCommand {
    AddModel(add_model::AddModel),
    Show(show::Show),
    Check(check::Check),
    List(list::List),
    Run(run::Run),
    Bench(bench::Bench),
    Synth(synth::Synth),
    /// Compares engines with references: `parity check`, `dump`, `schedules`, ...
    Parity {
        #[command(subcommand)]
        command: ParityCommand,
    },
    Convert(convert::Convert),
    Imatrix(imatrix::MakeImatrix),
}

/// Proves that an engine computes what the reference computes, or names the first op that does not.
#[derive(Debug, Parser)]
#[command(name = "parity", version, propagate_version = true, after_help = PARITY_EXAMPLES)]
struct Parity {
    #[command(subcommand)]
    command: ParityCommand,
}

const PARITY_EXAMPLES: &str = "\
Examples:
  parity check MODEL                                        compare with MODEL/reference
  parity check MODEL --reference DUMP --dtype bf16 --html report.html
  parity dump MODEL -o DUMP                                 make a reference with transformers

Exit codes: 0 agree, 1 differ, 2 could not run.";

#[derive(Debug, Subcommand)]
enum ParityCommand {
    Check(parity_check::Check),
    Dump(dump::Dump),
    Schedules(parity_more::Schedules),
    Diagnose(parity_more::Diagnose),
    Mutate(parity_more::Mutate),
}

#[derive(Debug, Parser)]
#[command(name = "convert", version)]
struct ConvertAlone {
    #[command(flatten)]
    command: convert::Convert,
}

/// The `onboard` command.
pub fn onboard() -> ExitCode {
    start(|parsed: Onboard| match parsed.command {
        OnboardCommand::AddModel(args) => args.run(),
        OnboardCommand::Show(args) => args.run(),
        OnboardCommand::Check(args) => args.run(),
        OnboardCommand::List(args) => args.run(),
        OnboardCommand::Run(args) => args.run(),
        OnboardCommand::Bench(args) => args.run(),
        OnboardCommand::Synth(args) => args.run(),
        OnboardCommand::Parity { command } => command.run(),
        OnboardCommand::Convert(args) => args.run(),
        OnboardCommand::Imatrix(args) => args.run(),
    })
}

/// The `parity` command: the same as `onboard parity`.
pub fn parity() -> ExitCode {
    start(|parsed: Parity| parsed.command.run())
}

/// The `convert` command: the same as `onboard convert`.
pub fn convert() -> ExitCode {
    start(|parsed: ConvertAlone| parsed.command.run())
}

impl ParityCommand {
    fn run(self) -> Result<Ended> {
        match self {
            Self::Check(args) => args.run(),
            Self::Dump(args) => args.run(),
            Self::Schedules(args) => args.run(),
            Self::Diagnose(args) => args.run(),
            Self::Mutate(args) => args.run(),
        }
    }
}

fn start<P: Parser>(run: impl FnOnce(P) -> Result<Ended>) -> ExitCode {
    let parsed = match P::try_parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help goes to stdout and is a success; anything else goes to stderr.
            let failed = error.use_stderr();
            // Help of our own comes as an error of the parser, and is none.
            let text = error.render().to_string();
            match text.strip_prefix("error: ").filter(|_| !failed) {
                Some(help) => term::print(help.trim_end()).ok(),
                None => error.print().ok(),
            };
            return ExitCode::from(if failed { 2 } else { 0 });
        }
    };
    interrupt::install();
    match run(parsed) {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::Differs) => ExitCode::from(1),
        Ok(Ended::CouldNotRun) => ExitCode::from(2),
        Err(error) if error.is::<specs::Told>() => ExitCode::from(2),
        Err(error) if is_broken_pipe(&error) => ExitCode::from(BROKEN_PIPE),
        Err(error) => {
            let word = term::paint_if(term::colour_err(), term::Tone::Bad, "error:");
            term::note(&format!("{word} {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// What a shell reports for a command whose reader went away.
const BROKEN_PIPE: u8 = 141;

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
