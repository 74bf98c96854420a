//! Reference dumps beside models: their places, and the remedy where there is none.

use std::path::{Path, PathBuf};

use crate::dump::{self, Dump};
use crate::error::Error;

/// Returns the dump that lies beside a model: in its folder, or in that of its file.
pub fn beside(model: &Path) -> Option<PathBuf> {
    let home = if model.is_dir() { Some(model) } else { model.parent() };
    let places = ["reference", "dump"].map(|name| home.unwrap_or(Path::new("")).join(name));
    places.into_iter().find(|place| place.join("manifest.json").is_file())
}

/// True if the dump that was given, or that lies beside the model, is of an encoder of images. Its other files are not read.
pub fn is_of_encoder(model: &Path, given: Option<&Path>) -> bool {
    let place = given.map(Path::to_owned).or_else(|| beside(model));
    place.is_some_and(|place| Dump::manifest_of(&place).is_ok_and(|manifest| manifest.encoder))
}

/// Opens the dump that was given, or the one that lies beside the model. The dump has to be of the whole model.
pub fn open_dump(model: &Path, given: Option<&Path>) -> Result<(PathBuf, Dump), Error> {
    open_by(model, given, Dump::open_whole)
}

/// Opens the dump that was given, or the one that lies beside the model. The dump may be of some layers alone.
pub fn open_part(model: &Path, given: Option<&Path>) -> Result<(PathBuf, Dump), Error> {
    open_by(model, given, Dump::open)
}

fn open_by(
    model: &Path,
    given: Option<&Path>,
    open: fn(&Path) -> Result<Dump, dump::Error>,
) -> Result<(PathBuf, Dump), Error> {
    let Some(path) = given.map(Path::to_owned).or_else(|| beside(model)) else {
        return Err(Error::NoReference { place: model.to_owned() });
    };
    match open(&path) {
        Ok(dump) => Ok((path, dump)),
        Err(why) => Err(Error::Reference { dump: path, why: Box::new(why) }),
    }
}
