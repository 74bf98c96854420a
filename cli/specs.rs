//! Known specs of a command: the built-in ones, and those of the user's folders.

use std::path::{Path, PathBuf};

use anyhow::Result;
use models::config::ConfigFile;
use models::specs::Specs;
use models::{Error, FindingSubject};
use registry::model::Model;

use crate::findings::{model_error, reported_error, warn};

/// Environment variable that lists folders of specs.
const FOLDERS: &str = "ONBOARD_SPECS";

/// Opens the built-in specs and those of a folder. Without a folder, it opens those that `ONBOARD_SPECS`
/// lists in the syntax of `PATH`, of which the first takes precedence.
pub(crate) fn open(dir: Option<&Path>) -> Result<Specs> {
    let set = std::env::var_os(FOLDERS).unwrap_or_default();
    let folders = match dir {
        Some(dir) => vec![dir.to_owned()],
        None => std::env::split_paths(&set).collect::<Vec<PathBuf>>(),
    };
    let mut specs = Specs::builtin();
    for folder in folders.iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
        specs.add_folder(folder).map_err(|error| match error {
            Error::Refused { refusal: refusal @ FindingSubject::Folder { .. }, findings }
                if dir.is_none() =>
            {
                reported_error(&findings, &format!("{refusal} ({FOLDERS})"))
            }
            other => model_error(other),
        })?;
    }
    Ok(specs)
}

/// Resolves a spec with a config; warnings are shown.
pub(crate) fn resolve(
    specs: &Specs,
    spec: &str,
    config: &ConfigFile,
    set: &[String],
) -> Result<Model> {
    let (model, warnings) = specs.resolve(spec, config, set).map_err(model_error)?;
    warn(&warnings);
    Ok(model)
}
