//! Reference dumps: where they lie, and how to make one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use parity::Dump;

/// Reads a bound: more than nothing, perhaps without end.
pub(crate) fn parse_bound(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|bound| *bound > 0.0)
        .ok_or_else(|| format!("`{text}` is no bound; expected a number above 0, as 1e-3"))
}

/// The dump that lies beside a model: in its folder, or in that of its file.
pub(crate) fn beside(model: &Path) -> Option<PathBuf> {
    let home = if model.is_dir() { Some(model) } else { model.parent() };
    let places = ["reference", "dump"].map(|name| home.unwrap_or(Path::new("")).join(name));
    places.into_iter().find(|place| place.join("manifest.json").is_file())
}

/// Opens the dump that was given, or the one that lies beside the model. It is of the whole model.
pub(crate) fn open_dump(model: &Path, given: Option<&Path>) -> Result<(PathBuf, Dump)> {
    open_by(model, given, Dump::open_whole)
}

/// Opens the dump that was given, or the one that lies beside the model. It may be of some layers alone.
pub(crate) fn open_part(model: &Path, given: Option<&Path>) -> Result<(PathBuf, Dump)> {
    open_by(model, given, Dump::open)
}

fn open_by(
    model: &Path,
    given: Option<&Path>,
    open: fn(&Path) -> Result<Dump, parity::dump::Error>,
) -> Result<(PathBuf, Dump)> {
    let Some(path) = given.map(Path::to_owned).or_else(|| beside(model)) else {
        bail!("{}", no_reference(model));
    };
    let dump =
        open(&path).with_context(|| format!("cannot read the reference `{}`", path.display()))?;
    Ok((path, dump))
}

/// Says that there is nothing to compare with, and how to make it.
pub(crate) fn no_reference(model: &Path) -> String {
    let place = model.display();
    let (beside, source) = if model.is_file() {
        (" beside it", "CHECKPOINT".to_owned())
    } else {
        ("", place.to_string())
    };
    format!(
        "`{place}` has no reference dump{beside} (reference/ or dump/), so there is nothing to compare with; \
         make one with the real code: parity dump {source} -o DUMP, then give --reference DUMP"
    )
}
