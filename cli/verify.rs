//! Implements `onboard verify`, which compares files with the hashes that were written with them.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use converter::{VerifiedFiles, compare_hashes, hashes_path, read_fault};
use formats::gguf::split::SetName;
use registry::listing;
use registry::quantity::{self, bytes as size};
use serde_json::json;

use crate::{CommandOutcome, term};

/// Compares a converted file or folder with the hashes written with it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard verify model.gguf                 with model.gguf.hashes beside it
  onboard verify model-00001-of-00008.gguf  all files of a set
  onboard verify DIR                        every file that the conversion wrote, with DIR/onboard.hashes

The source is not needed. Hashes (XXH3) find accidents of disks, copies and downloads, and no forgery.
`convert MODEL --verify FILE` compares with the source too.")]
pub(crate) struct VerifyArgs {
    /// The file, the first file of a set, or the folder
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl VerifyArgs {
    pub(crate) fn run(&self) -> Result<CommandOutcome> {
        let path = &self.path;
        ensure!(
            path.exists(),
            "`{}` is not found; give a converted file, the first file of a set, or a folder",
            path.display()
        );
        let Some(mut verified) = compare_hashes(path)? else {
            bail!(
                "`{}` has no hashes: expected `{}` beside it, which `convert` writes; compare it with its source by \
                 `convert MODEL --verify {0}`",
                path.display(),
                hashes_path(path).display()
            );
        };
        if verified.faults.is_empty() {
            verified.faults.extend(read_fault(path));
        }
        let VerifiedFiles { files, ranges, bytes, faults } = &verified;
        if self.json {
            let report =
                json!({ "files": files, "ranges": ranges, "bytes": bytes, "faults": faults });
            term::print(&serde_json::to_string_pretty(&report)?)?;
        }
        if !faults.is_empty() {
            term::note(&listing::joined(faults));
            return Ok(CommandOutcome::Differs);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(later) = SetName::parse(&name).filter(|name| name.no > 1) {
            let first = later.at(1);
            term::note(&format!(
                "note: this is one file of a set of {}; give the first one, `{first}`, to verify all of them",
                later.count
            ));
        }
        if !self.json {
            let files = quantity::plural(*files, "file");
            let ranges = quantity::plural(*ranges, "range");
            term::print(&format!("as written: {files}, {ranges}, {}", size(*bytes)))?;
        }
        Ok(CommandOutcome::Ok)
    }
}
