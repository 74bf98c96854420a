//! Index of a sharded checkpoint, which maps tensors to files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use registry::file::FileLimit;
use registry::layer_choice::LayerChoice;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;

use super::Error;
use formats::safetensors::MAX_HEADER;
use formats::shown;

/// Size limit of an index: it lists names alone, so it is no longer than a header may be.
const INDEX: FileLimit = FileLimit { kind: "an index", bytes: MAX_HEADER };

/// Checked index, in which every shard is a file in the checkpoint's folder.
#[derive(Debug)]
pub(super) struct Index {
    /// Maps tensor names to shard names.
    pub(super) weight_map: BTreeMap<String, String>,
    /// Maps shard names to paths.
    pub(super) shards: BTreeMap<String, PathBuf>,
}

/// Reads an index and finds its shards; with a choice of layers, those that the choice needs.
pub(super) fn read(
    folder: &Path,
    path: &Path,
    layers: Option<&LayerChoice>,
) -> Result<Index, Error> {
    let bytes = registry::file::read(path, INDEX)?;
    let mut weight_map = parse(path, &bytes)?;
    weight_map.retain(|tensor, _| layers.is_none_or(|choice| choice.includes(tensor)));
    // First tensor and number of tensors of each shard, for messages.
    let mut uses: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for (tensor, shard) in &weight_map {
        uses.entry(shard).or_insert((tensor, 0)).1 += 1;
    }
    let mut shards = BTreeMap::new();
    for (shard, (tensor, tensors)) in uses {
        if !plain(shard) {
            let tensor = shown(tensor);
            let shard = shown(shard);
            return Err(Error::ShardName { index: path.into(), tensor, shard });
        }
        let file = folder.join(shard);
        if !file.try_exists()? {
            return Err(Error::MissingShard {
                index: path.into(),
                shard: shown(shard),
                tensors,
                tensor: shown(tensor),
            });
        }
        if let Some(target) = outside(folder, &file)? {
            return Err(Error::ShardOutside { index: path.into(), shard: file, target });
        }
        shards.insert(shard.to_owned(), file);
    }
    Ok(Index { weight_map, shards })
}

/// True if a name can only denote a file in the same folder, on every system.
fn plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(_)))
        && components.next().is_none()
        && !name.contains(['/', '\\', ':', '\0'])
}

/// Returns the target of a checkpoint file that is a link out of the checkpoint.
///
/// Download caches keep `<model>/snapshots/<revision>/<name>` as links into `<model>/blobs`; those
/// belong to the checkpoint.
pub fn outside(folder: &Path, file: &Path) -> std::io::Result<Option<PathBuf>> {
    let target = fs_err::canonicalize(file)?;
    let folder = fs_err::canonicalize(folder)?;
    let cache = folder
        .parent()
        .filter(|snapshots| snapshots.file_name().is_some_and(|name| name == "snapshots"))
        .and_then(Path::parent)
        .map(|model| model.join("blobs"));
    let inside =
        target.starts_with(&folder) || cache.is_some_and(|blobs| target.starts_with(blobs));
    Ok(if inside { None } else { Some(target) })
}

fn parse(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    let raw: RawIndex = serde_json::from_slice(bytes).map_err(|error| {
        let why = error.to_string();
        // The visitor's own error begins with this marker; see `RawMap`.
        match why.strip_prefix(TWICE).and_then(|text| text.rsplit_once(" at line ")) {
            Some((tensor, _)) if error.classify() == Category::Data => {
                Error::DuplicateTensor { index: path.into(), tensor: shown(tensor) }
            }
            _ => Error::IndexNotJson { index: path.into(), why: shown(&why) },
        }
    })?;
    raw.weight_map.ok_or_else(|| Error::NoWeightMap { index: path.into() })
}

const TWICE: &str = "named twice: ";

struct RawIndex {
    weight_map: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for RawIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IndexVisitor;
        impl<'de> Visitor<'de> for IndexVisitor {
            type Value = RawIndex;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with `weight_map`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawIndex, A::Error> {
                let mut weight_map = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key != "weight_map" {
                        map.next_value::<IgnoredAny>()?;
                    } else if weight_map.replace(map.next_value::<RawMap>()?.0).is_some() {
                        return Err(A::Error::custom("`weight_map` stands there twice"));
                    }
                }
                Ok(RawIndex { weight_map })
            }
        }
        deserializer.deserialize_map(IndexVisitor)
    }
}

struct RawMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for RawMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightMapVisitor;
        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = RawMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor names and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawMap, A::Error> {
                let mut names = BTreeMap::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    if names.contains_key(&tensor) {
                        return Err(A::Error::custom(format!("{TWICE}{tensor}")));
                    }
                    names.insert(tensor, shard);
                }
                Ok(RawMap(names))
            }
        }
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_shards() {
        for name in ["model-00001-of-00002.safetensors", "a", "..a", "a b"] {
            assert!(plain(name), "{name}");
        }
        for name in ["", ".", "..", "/a", "../a", "a/b", "./a", "a/", "a\\b", "C:a", "a\0"] {
            assert!(!plain(name), "{name:?}");
        }
    }
}
