//! Implements `onboard completions`, which prints shell completion scripts.

use anyhow::Result;
use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use crate::{CommandOutcome, ConvertCli, OnboardCli, ParityCli, term};

/// Prints a script that completes command lines in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard completions bash > ~/.local/share/bash-completion/completions/onboard
  onboard completions bash parity > ~/.local/share/bash-completion/completions/parity
  onboard completions zsh > ~/.zfunc/_onboard          (with ~/.zfunc in fpath)
  onboard completions fish > ~/.config/fish/completions/onboard.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
    /// The command to complete
    #[arg(value_enum, default_value = "onboard")]
    command: ProgramName,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProgramName {
    Onboard,
    Parity,
    Convert,
}

impl CompletionsArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let (mut command, name) = match self.command {
            ProgramName::Onboard => (OnboardCli::command(), "onboard"),
            ProgramName::Parity => (ParityCli::command(), "parity"),
            ProgramName::Convert => (ConvertCli::command(), "convert"),
        };
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        term::print(&String::from_utf8(script)?)?;
        Ok(CommandOutcome::Ok)
    }
}
