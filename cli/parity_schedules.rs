//! Implements `parity schedules`.

use anyhow::Result;
use clap::Args;
use parity::beside::open_dump;
use parity::{CheckOptions, Verdict};
use registry::dtype::Dtype;
use registry::table::TextTable;

use crate::engines::DeviceArgs;
use crate::findings::check_error;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, term};

/// Feeds a model in every way its states call for; each must give what one prefill gives
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity schedules MODEL                  in f32
  parity schedules MODEL --dtype bf16

Needs no reference numbers: the engine is compared with itself. The prompts are those of the dump.")]
pub(crate) struct SchedulesArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// Dtypes, with commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// The dump whose prompts are fed; default: MODEL/reference
    #[arg(long, value_name = "DUMP")]
    reference: Option<std::path::PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
}

impl SchedulesArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let target = target::open(&self.which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        let (_, dump) = open_dump(&target.dir, self.reference.as_deref())?;
        let options = CheckOptions { dtypes: self.dtype, ..CheckOptions::default() };
        let engine = self.device.native()?;
        let rows = parity::check_schedules(
            engine.as_ref(),
            &target::source(&target),
            &dump.manifest.prompts,
            &options,
        )
        .map_err(check_error)?;
        let mut table = TextTable::new(&[2, 3, 4]);
        table.row(["dtype", "schedule", "steps", "max|dlogp|", "bound", "verdict", "shows"]);
        for row in &rows {
            let verdict = match row.verdict {
                Verdict::Pass => "pass",
                Verdict::Skip => "skip",
                Verdict::Fail => "FAIL",
            };
            table.row([
                row.dtype.to_string(),
                row.name.clone(),
                row.steps.to_string(),
                format!("{:.1e}", row.max),
                format!("{:.1e}", row.limit),
                verdict.to_owned(),
                row.note.clone().unwrap_or_else(|| row.why.to_owned()),
            ]);
        }
        term::print(&table.plain(""))?;
        let failed = rows.iter().any(|row| row.verdict == Verdict::Fail);
        Ok(if failed { CommandOutcome::Differs } else { CommandOutcome::Ok })
    }
}
