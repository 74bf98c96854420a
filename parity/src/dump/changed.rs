//! Names the first key of a config and the first tensor of a checkpoint that changed since a dump was made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use checkpoints::Checkpoint;
use registry::config::Config;
use registry::listing;
use registry::scalar::Scalar;

use super::manifest::CheckpointContents;
use formats::shown;

/// Maximum number of characters of a value that is shown.
const LONG: usize = 60;

/// Returns the first change of a config, or else of the tensors; none if the dump does not record them.
pub(super) fn first_change(
    recorded: &CheckpointContents,
    config: &Path,
    checkpoint: &Checkpoint,
) -> Option<String> {
    changed_config(recorded.config.as_deref(), config)
        .or_else(|| changed_tensor(&recorded.tensors, &checkpoint.tensor_hashes().ok()?))
}

/// True if the recorded config has the keys and values of the config beside the weights, whatever the order and the
/// spacing of its text.
pub(super) fn is_same_config(recorded: &CheckpointContents, path: &Path) -> bool {
    configs(recorded.config.as_deref(), path)
        .is_some_and(|(before, now)| changed_key("", before.root(), now.root()).is_none())
}

fn changed_config(before: Option<&str>, path: &Path) -> Option<String> {
    let (before, now) = configs(before, path)?;
    changed_key("", before.root(), now.root())
}

/// Returns the recorded config and the config of a file, if both can be read.
fn configs(before: Option<&str>, path: &Path) -> Option<(Config, Config)> {
    let bytes = registry::file::read(path, registry::file::CONFIG).ok()?;
    let before = Config::parse("config.json", before?).ok()?;
    let now = Config::parse("config.json", std::str::from_utf8(&bytes).ok()?).ok()?;
    Some((before, now))
}

/// Returns the first key whose value changed, in order of names.
fn changed_key(path: &str, before: &Scalar, now: &Scalar) -> Option<String> {
    if before == now {
        return None;
    }
    let (Scalar::Map(old), Scalar::Map(new)) = (before, now) else {
        return Some(format!("`{path}` is {} here and {} in the dump", value(now), value(before)));
    };
    let names: BTreeSet<&str> = old.iter().chain(new).map(|(name, _)| name.as_str()).collect();
    names.into_iter().find_map(|name| {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", shown(name));
        match (entry(old, name), entry(new, name)) {
            (Some(before), Some(now)) => changed_key(&path, before, now),
            (Some(before), None) => {
                Some(format!("`{path}` is absent here and {} in the dump", value(before)))
            }
            (None, Some(now)) => {
                Some(format!("`{path}` is {} here and absent in the dump", value(now)))
            }
            (None, None) => None,
        }
    })
}

/// Returns the value of a key.
fn entry<'a>(map: &'a [(String, Scalar)], name: &str) -> Option<&'a Scalar> {
    map.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

fn value(value: &Scalar) -> String {
    format!("`{}`", shown(&listing::shortened(&value.to_string(), LONG)))
}

/// Returns the first tensor that changed, in order of names; none if none is recorded.
fn changed_tensor(
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Option<String> {
    if before.is_empty() {
        return None;
    }
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    names.into_iter().find_map(|name| {
        let named = shown(name);
        match (before.get(name), now.get(name)) {
            (Some(before), Some(now)) if before == now => None,
            (Some(_), Some(_)) => {
                Some(format!("tensor `{named}` has other values, another shape or another dtype"))
            }
            (Some(_), None) => Some(format!("tensor `{named}` is absent here")),
            _ => Some(format!("tensor `{named}` is absent in the dump")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_is_named() {
        let before = root_of(r#"{"a": 1, "rope": {"theta": 1e4, "type": "default"}, "z": 0}"#);
        for (now, text) in [
            (
                r#"{"z": 1, "a": 1, "rope": {"theta": 5e5, "type": "default"}}"#,
                "`rope.theta` is `500000.0` here and `10000.0` in the dump",
            ),
            (
                r#"{"rope": {"theta": 1e4, "type": "default"}, "z": 0}"#,
                "`a` is absent here and `1` in the dump",
            ),
            (
                r#"{"a": 1, "b\u001b": null, "rope": {}, "z": 0}"#,
                "`b\\u{1b}` is `null` here and absent in the dump",
            ),
            (r#"{"a": [1], "rope": {}, "z": 0}"#, "`a` is `[1]` here and `1` in the dump"),
        ] {
            assert_eq!(changed_key("", &before, &root_of(now)).as_deref(), Some(text));
        }
        assert_eq!(changed_key("", &before, &before), None);
        let dump = hashes(&[("a", "1"), ("b", "2")]);
        for (now, text) in [
            (&[("a", "1"), ("b", "3")][..], Some("tensor `b` has other values")),
            (&[("a", "1")], Some("tensor `b` is absent here")),
            (&[("a", "1"), ("aa", "1"), ("b", "2")], Some("tensor `aa` is absent in the dump")),
            (&[("a", "1"), ("b", "2")], None),
        ] {
            let change = changed_tensor(&dump, &hashes(now));
            assert_eq!(change.is_some(), text.is_some());
            assert!(change.is_none_or(|change| change.starts_with(text.unwrap())), "{text:?}");
        }
        assert_eq!(changed_tensor(&BTreeMap::new(), &dump), None);
    }

    #[test]
    fn a_config_is_the_same_in_another_order_and_spacing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let config = Some(r#"{"a": 1, "rope": {"theta": 1e4, "type": "default"}}"#.to_owned());
        let recorded = CheckpointContents { config, ..CheckpointContents::default() };
        for (now, is_same) in [
            (r#"{"rope":{"type":"default","theta":10000.0},"a":1}"#, true),
            (r#"{"rope":{"type":"default","theta":10001.0},"a":1}"#, false),
            (r#"{"rope":{"type":"default","theta":10000.0},"a":1,"b":0}"#, false),
        ] {
            fs_err::write(&path, now).unwrap();
            assert_eq!(is_same_config(&recorded, &path), is_same, "{now}");
            assert!(!is_same_config(&CheckpointContents::default(), &path));
        }
    }

    fn hashes(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = pairs.iter().map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned()));
        owned.collect()
    }

    fn root_of(text: &str) -> Scalar {
        Config::parse("config.json", text).unwrap().root().clone()
    }
}
