//! Implements `parity fit`: counts false alarms and misses of the rule on a table of checks.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use parity::fit::{RULE, fit};
use registry::table::TextTable;

use crate::{CommandOutcome, term};

/// Counts the false alarms and the misses of the rule of `parity check`, by a table of honest checks and of mutants
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity fit docs/proof.tsv                  the numbers of the rule
  parity fit docs/proof.tsv --noise 16       a tighter bound on ops in f32
  parity fit docs/proof.tsv --flips 0.25     a looser one on ops in 16 bits

A line of the table is one check: kind (`honest`, or the class of a mutant), name, dtype, the largest value of
each measure, and 1 where something else failed. docs/proof.md says how the table is made.")]
pub(crate) struct FitArgs {
    /// The table
    #[arg(value_name = "TABLE")]
    table: PathBuf,
    /// Times its noise that an op may be off in f32
    #[arg(long, value_name = "N", default_value_t = RULE[0])]
    noise: f64,
    /// Times the noise of its mean scale that an op may be scaled in f32
    #[arg(long, value_name = "N", default_value_t = RULE[1])]
    gain: f64,
    /// Share of a row that may be unequal in 16 bits
    #[arg(long, value_name = "SHARE", default_value_t = RULE[2])]
    flips: f64,
    /// Mean square difference of a row in units of rounding, in 16 bits
    #[arg(long, value_name = "N", default_value_t = RULE[3])]
    units: f64,
    /// Times the spread of the ensemble that a whole run may be off
    #[arg(long, value_name = "K", default_value_t = RULE[4])]
    factor: f64,
}

impl FitArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let path = self.table.display();
        let table = registry::file::read(&self.table, registry::file::MANIFEST)
            .with_context(|| format!("cannot read the table `{path}`"))?;
        let table = String::from_utf8_lossy(&table);
        let numbers = [self.noise, self.gain, self.flips, self.units, self.factor, self.factor];
        let counts = fit(&table, &numbers).map_err(|why| anyhow!("`{path}`: {why}"))?;
        let mut rows = TextTable::new(&[2, 3, 4]);
        rows.row(["kind", "dtype", "checks", "caught", "missed", "share"]);
        for ((kind, dtype), (fails, all)) in &counts {
            let share = *fails as f64 / (*all).max(1) as f64;
            let (caught, missed, share) = if kind == "honest" {
                (format!("{fails} false alarms"), String::new(), share)
            } else {
                (fails.to_string(), (all - fails).to_string(), share)
            };
            let percent = format!("{:.1} %", share * 100.0);
            rows.row([kind.clone(), dtype.to_string(), all.to_string(), caught, missed, percent]);
        }
        term::print(&rows.plain(""))?;
        Ok(CommandOutcome::Ok)
    }
}
