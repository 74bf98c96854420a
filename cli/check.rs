//! `onboard check`: a spec, read completely before any weight is.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::coverage::Coverage;
use crate::specs::{Config, Specs};
use crate::{Ended, term, text};

/// Checks a spec, and with --model that it explains a checkpoint completely
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard check my.yaml                  what can be said without a config
  onboard check my.yaml --model MODEL    dims, shapes, every weight and config key
  onboard check --schema > spec.json     a JSON schema, for editors

All findings come at once; exit code 2 if there is an error among them.")]
pub(crate) struct Check {
    /// The spec
    #[arg(value_name = "SPEC.yaml", required_unless_present = "schema")]
    spec: Option<PathBuf>,
    /// Print the JSON schema of specs instead
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Check it against this checkpoint's config and headers
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Where specs it extends are looked for first
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
    /// Override a part of the spec (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Check {
    pub(crate) fn run(self) -> Result<Ended> {
        let Some(file) = &self.spec else {
            term::print(&serde_json::to_string_pretty(&registry::schema::schema())?)?;
            return Ok(Ended::Well);
        };
        let mut specs = Specs::open(self.specs.as_deref())?;
        let spec = specs.add(file)?;
        let mut said = format!("{}: reads as a spec\n", file.display());
        if self.model.is_none() {
            specs.lint(&spec)?;
            said.push_str("shapes, weights and config keys are checked with --model DIR\n");
        }
        if let Some(dir) = &self.model {
            let config = Config::read(&dir.join("config.json"))?;
            let model = specs.resolve(&spec, &config, &self.set)?;
            let coverage = Coverage::of(&model, &converters::Checkpoint::open(dir)?);
            coverage.refuse(dir)?;
            writeln!(
                said,
                "{}: {}, {}; {}",
                dir.display(),
                text::plural(model.graph.layers.len(), "layer"),
                text::plural(model.graph.states.len(), "state"),
                coverage.summary()
            )?;
        }
        term::print(&said)?;
        Ok(Ended::Well)
    }
}
