//! Implements `onboard skill`, which writes a guide for coding agents.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use registry::file;

use crate::{CommandOutcome, term, write};

/// Guide to bringing up a model, as agents read it.
const SKILL: &str = include_str!("../docs/skill/SKILL.md");

/// Writes SKILL.md, a guide for coding agents that bring up a model
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard skill                          writes onboard-model/SKILL.md
  onboard skill .agent/skills/onboard-model

The guide has the loop of `add-model --derive`, holes, `parity check`, `parity diagnose` and `compile`, and rules for
an agent: results are those that commands print.")]
pub(crate) struct SkillArgs {
    /// The folder to write into
    #[arg(value_name = "DIR", default_value = "onboard-model")]
    folder: PathBuf,
}

impl SkillArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let path = self.folder.join("SKILL.md");
        let differs = path.is_file() && file::read(&path, file::TEXT)? != SKILL.as_bytes();
        ensure!(
            !differs,
            "`{}` is there already and differs from this guide; remove it, or name another folder",
            path.display()
        );
        write::atomic(&path, SKILL.as_bytes())?;
        term::note(&format!("wrote {}", path.display()));
        Ok(CommandOutcome::Ok)
    }
}
