//! Checks of ids, revisions, etags and file names, which become paths and addresses.

use crate::{Error, shown};

/// True if a word is valid as one component of a path and of an address.
pub(crate) fn is_plain(word: &str) -> bool {
    (1..=128).contains(&word.len())
        && !word.starts_with('.')
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// True if a word is a valid hub id: `owner/name`.
pub fn is_id(word: &str) -> bool {
    word.split_once('/').is_some_and(|(owner, name)| is_plain(owner) && is_plain(name))
}

/// True if a word is a whole commit hash.
pub(crate) fn is_commit(word: &str) -> bool {
    word.len() == 40 && word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

pub(crate) fn check_id(id: &str) -> Result<(), Error> {
    let expected = "`owner/name`, of letters, digits, `-`, `_` and `.`";
    if is_id(id) { Ok(()) } else { Err(Error::Name { kind: "id", name: shown(id), expected }) }
}

/// Checks a branch, tag or commit; slashes are allowed, as in `refs/pr/1`.
pub fn check_revision(revision: &str) -> Result<(), Error> {
    let expected = "a branch, a tag or a commit";
    if revision.len() <= 256 && revision.split('/').all(is_plain) {
        return Ok(());
    }
    Err(Error::Name { kind: "revision", name: shown(revision), expected })
}

/// Checks that a file name stays inside its folder, on every system.
pub fn check_file(name: &str) -> Result<(), Error> {
    if name.len() <= 1024 && name.split('/').all(is_plain_part) {
        return Ok(());
    }
    let expected = "a relative path inside the repository, without `..`, `\\`, `:` and control \
                    characters";
    Err(Error::Name { kind: "file name", name: shown(name), expected })
}

/// True if a part of a path stays inside of its folder on every system.
fn is_plain_part(part: &str) -> bool {
    !matches!(part, "" | "." | "..")
        && part.len() <= 255
        && !part.chars().any(|c| c.is_control() || matches!(c, '\\' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_stay_inside() {
        for good in ["config.json", "model-00001-of-00002.safetensors", "sub/a b.json", ".x"] {
            assert!(check_file(good).is_ok(), "{good}");
        }
        for bad in
            ["", "/etc/passwd", "../x", "a/../b", "a//b", "a\\b", "a\0b", "C:x", "a/.", "x\n"]
        {
            assert!(check_file(bad).is_err(), "{bad:?}");
        }
        assert!(check_file(&"a".repeat(256)).is_err());
    }

    #[test]
    fn ids_have_one_slash_and_revisions_any_number() {
        assert!(is_id("owner/name-1.2B"));
        for bad in ["name", "a/b/c", "../x", "./x", "/abs/x", "a/", "a/..", "C:\\x/y"] {
            assert!(!is_id(bad), "{bad}");
        }
        for good in ["main", "refs/pr/1", "v1.0", "feature/x_y"] {
            assert!(check_revision(good).is_ok(), "{good}");
        }
        for bad in ["", "../../x", "a/../b", "/a", "a/", "a b", ".git", "a\0"] {
            assert!(check_revision(bad).is_err(), "{bad:?}");
        }
    }
}
