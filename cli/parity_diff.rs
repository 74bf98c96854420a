//! Implements `parity diff`, which compares two dumps tap by tap.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use parity::diff::{DiffOptions, diff, text};
use parity::{Dump, Verdict};
use registry::dtype::Dtype;

use crate::target::parse_bound;
use crate::target::parse_dtype;
use crate::{CommandOutcome, term, write};

/// Compares two dumps tap by tap: two engines, two versions of one, or two of its settings
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity dump MODEL --engine mlx -o A
  parity dump MODEL --engine vllm -o B
  parity diff A B                          the first tap or row that differs
  parity diff MODEL/reference B --dtype f32

Neither side is taken for the truth. What rounding explains comes from the ensemble of a dump that has one, from the
distance of each side's decode from its own prefill, and from the number of roundings of a run.

Exit codes: 0 agree, 1 differ, 2 could not compare.")]
pub(crate) struct DiffArgs {
    /// One dump
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The other
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Dtypes, with commas; default: all that both have
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Most that the rms of a row's log-probabilities may differ by, in nats
    #[arg(long, value_name = "NATS", value_parser = parse_bound)]
    bound: Option<f64>,
    /// Print the difference as JSON, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

impl DiffArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let a = open(&self.a)?;
        let b = open(&self.b)?;
        let options = DiffOptions { dtypes: self.dtype, bound: self.bound };
        let report = diff(&a, &b, &options)?;
        match &self.json {
            Some(path) if write::is_stdout(path) => {
                term::print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
            }
            path => {
                if let Some(path) = path {
                    let json = serde_json::to_string_pretty(&report)?;
                    write::atomic(path, json.as_bytes())?;
                }
                term::print(&text(&report, [&title(&a), &title(&b)]))?;
            }
        }
        Ok(if report.verdict == Verdict::Fail {
            CommandOutcome::Differs
        } else {
            CommandOutcome::Ok
        })
    }
}

/// Returns the folder of a dump, and its producer.
fn title(dump: &Dump) -> String {
    let name = producer_word(dump, "name").unwrap_or("an unnamed program");
    let version = producer_word(dump, name)
        .map_or_else(|| name.to_owned(), |version| format!("{name} {version}"));
    let facts =
        producer_word(dump, "engine").map(|facts| facts.trim_start_matches("engine ").to_owned());
    format!("{} ({})", dump.dir.display(), facts.unwrap_or(version))
}

/// Returns a text that a dump has about the program that made it.
fn producer_word<'d>(dump: &'d Dump, key: &str) -> Option<&'d str> {
    dump.manifest.producer.get(key).and_then(|value| value.as_str())
}

fn open(path: &Path) -> Result<Dump> {
    Dump::open(path).with_context(|| format!("cannot read the dump `{}`", path.display()))
}
