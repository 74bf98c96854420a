//! `--compat` without a format: writes only the config.

use anyhow::{Result, bail};

use super::ConvertArgs;
use crate::findings::converter_error;
use crate::progress::ConversionTerminal;
use crate::target::{self, ModelArgs};
use crate::{CommandOutcome, term};

impl ConvertArgs {
    /// Writes the config with the keys that engines read, or prints it without an output path.
    pub(super) fn config_alone(&self, which: &ModelArgs) -> Result<CommandOutcome> {
        let target = target::open(which, &self.choice)?;
        let text =
            converter::compat_config(&target, &ConversionTerminal).map_err(converter_error)?;
        match &self.output[..] {
            [] => term::print(text.trim_end())?,
            _ if self.plan => {}
            [path] => {
                let path = if path.is_dir() { path.join("config.json") } else { path.clone() };
                crate::write::allowed(&path, &[], self.force)?;
                crate::write::atomic(&path, text.as_bytes())?;
            }
            _ => bail!("--compat without --to writes one config; give one --output"),
        }
        Ok(CommandOutcome::Ok)
    }
}
