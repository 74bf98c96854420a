//! Implements `onboard completions`, which prints shell completion scripts.

use anyhow::Result;
use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use crate::{ConvertAlone, Ended, Onboard, Parity, term};

/// Prints a script that completes command lines in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard completions bash > ~/.local/share/bash-completion/completions/onboard
  onboard completions bash parity > ~/.local/share/bash-completion/completions/parity
  onboard completions zsh > ~/.zfunc/_onboard          (with ~/.zfunc in fpath)
  onboard completions fish > ~/.config/fish/completions/onboard.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
    /// The command to complete
    #[arg(value_enum, default_value = "onboard")]
    command: Name,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Name {
    Onboard,
    Parity,
    Convert,
}

impl Completions {
    pub(crate) fn run(self) -> Result<Ended> {
        let (mut command, name) = match self.command {
            Name::Onboard => (Onboard::command(), "onboard"),
            Name::Parity => (Parity::command(), "parity"),
            Name::Convert => (ConvertAlone::command(), "convert"),
        };
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        term::print(&String::from_utf8(script)?)?;
        Ok(Ended::Well)
    }
}
