//! `onboard man`: manual pages.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man as Page;

use crate::{CommandOutcome, ConvertCli, OnboardCli, ParityCli, term, write};

/// Writes manual pages for `man`
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  onboard man ~/.local/share/man/man1      then: man onboard, man parity-check, man convert")]
pub(crate) struct ManArgs {
    /// The folder to write
    folder: PathBuf,
}

impl ManArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let mut count = 0;
        for command in [OnboardCli::command(), ParityCli::command(), ConvertCli::command()] {
            let mut command = command.disable_help_subcommand(true);
            command.build();
            count += pages(&command, &self.folder)?;
        }
        term::print(&format!("wrote {count} pages to {}", self.folder.display()))?;
        Ok(CommandOutcome::Ok)
    }
}

/// Writes the page of a command and of each command below it, and returns their number.
fn pages(command: &Command, folder: &Path) -> Result<usize> {
    let mut count = 1;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        count += pages(inner, folder)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut text = Vec::new();
    Page::new(command.clone()).render(&mut text)?;
    write::atomic(&folder.join(format!("{name}.1")), &text)?;
    Ok(count)
}
