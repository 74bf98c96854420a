//! Implements `onboard list`, which lists known models and engines.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use registry::table::TextTable;
use serde_json::json;

use crate::engines::catalog;
use crate::specs;
use crate::{CommandOutcome, term};

/// Lists the specs and engines that are known
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Look for specs in this folder too; default: ONBOARD_SPECS
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
}

impl ListArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let specs = specs::open(self.specs.as_deref())?;
        let engines: Vec<String> = catalog()?.into_iter().map(|entry| entry.name).collect();
        if self.json {
            let specs: Vec<_> = specs
                .all()
                .map(|spec| json!({ "name": spec.name, "matches": spec.matches, "inside": spec.inside, "extends": spec.extends, "path": spec.path }))
                .collect();
            let list = json!({ "specs": specs, "engines": engines });
            term::print(&serde_json::to_string_pretty(&list)?)?;
            return Ok(CommandOutcome::Ok);
        }
        let mut table = TextTable::new(&[]);
        table.row(["spec", "extends", "architectures"]);
        for spec in specs.all() {
            let inside = spec.inside.iter().map(|class| format!("in {class}"));
            let matches: Vec<String> = spec.matches.iter().cloned().chain(inside).collect();
            let matches = matches.join(", ");
            table.row([spec.name, spec.extends.unwrap_or_default(), matches]);
        }
        term::print(&table.plain(""))?;
        term::print(&format!("\nengines: {}", engines.join(", ")))?;
        Ok(CommandOutcome::Ok)
    }
}
