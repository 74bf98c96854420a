//! Divergences that a search has measured, kept beside the output: an interrupted search goes on with them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use registry::file::{self, FileLimit};
use sha2::{Digest as _, Sha256};

use crate::{interrupt, term, write};

/// First word of the file, with the version of its form.
const HEAD: &str = "onboard-divergences-1";
/// Some 100,000 measurements.
const LIMIT: FileLimit = FileLimit { kind: "a file of divergences", bytes: 8 << 20 };

/// Divergences by the hash of what was measured. Each is appended to a file.
#[derive(Debug)]
pub(super) struct MeasuredDivergences {
    path: PathBuf,
    found: RefCell<BTreeMap<String, f64>>,
}

impl MeasuredDivergences {
    /// Opens the file of a search, or begins it. Measurements of another search are dropped.
    pub(super) fn open(path: PathBuf, search: &str) -> Result<Self> {
        let head = format!("{HEAD} {search}\n");
        let mut found = BTreeMap::new();
        if let Some(text) = read(&path)? {
            if let Some(lines) = text.strip_prefix(&head) {
                found.extend(lines.split_inclusive('\n').map_while(parse));
            } else {
                term::note(&format!("`{}` is of another search and is replaced", path.display()));
            }
        }
        if !found.is_empty() {
            term::note(&format!("{} divergences were measured by an earlier run", found.len()));
        }
        // Written anew, so that no line that was cut stays.
        let lines: String = found.iter().map(|(key, kl)| line(key, *kl)).collect();
        write::atomic(&path, (head + &lines).as_bytes())?;
        interrupt::hint("; run the command again to go on");
        Ok(Self { path, found: RefCell::new(found) })
    }

    /// Returns the divergence of `what`, measured now or by an earlier run.
    pub(super) fn get(&self, what: &[u8], measure: impl FnOnce() -> Result<f64>) -> Result<f64> {
        let key = format!("{:x}", Sha256::digest(what));
        if let Some(kl) = self.found.borrow().get(&key) {
            return Ok(*kl);
        }
        let kl = measure()?;
        let file = fs_err::OpenOptions::new().append(true).open(&self.path);
        file.and_then(|mut file| file.write_all(line(&key, kl).as_bytes()))
            .context("what is measured so far cannot be kept")?;
        self.found.borrow_mut().insert(key, kl);
        Ok(kl)
    }
}

/// Removes the file of a search that has ended.
pub(super) fn remove(path: &Path) {
    fs_err::remove_file(path).ok();
    interrupt::hint("");
}

/// Reads the file, if there is one.
fn read(path: &Path) -> Result<Option<String>> {
    let text = match file::read_text(path, LIMIT) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    ensure!(text.starts_with(HEAD), "`{}` is in the way; move or remove it", path.display());
    Ok(Some(text))
}

fn line(key: &str, kl: f64) -> String {
    format!("{key} {:016x}\n", kl.to_bits())
}

/// Parses a whole line.
fn parse(line: &str) -> Option<(String, f64)> {
    let (key, bits) = line.strip_suffix('\n')?.split_once(' ')?;
    (key.len() == 64 && bits.len() == 16)
        .then(|| Some((key.to_owned(), f64::from_bits(u64::from_str_radix(bits, 16).ok()?))))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_on_after_its_last_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.measured");
        let measured = MeasuredDivergences::open(path.clone(), "search").unwrap();
        for (n, kl) in [0.25, f64::INFINITY, 1e-300].into_iter().enumerate() {
            assert_eq!(measured.get(&[n as u8], || Ok(kl)).unwrap(), kl);
        }
        let text = fs_err::read_to_string(&path).unwrap();
        // Cut anywhere in its last line, the file still has the first two measurements.
        let last = text[..text.len() - 1].rfind('\n').unwrap() + 1;
        for end in last..text.len() {
            fs_err::write(&path, &text[..end]).unwrap();
            let measured = MeasuredDivergences::open(path.clone(), "search").unwrap();
            assert_eq!(measured.get(&[1], || panic!("known")).unwrap(), f64::INFINITY);
            assert_eq!(measured.get(&[2], || Ok(7.0)).unwrap(), 7.0, "{end}");
        }
        // Another search begins anew, and a foreign file stays.
        let other = MeasuredDivergences::open(path.clone(), "other").unwrap();
        assert_eq!(other.get(&[0], || Ok(3.0)).unwrap(), 3.0);
        fs_err::write(&path, "notes").unwrap();
        MeasuredDivergences::open(path.clone(), "search").unwrap_err();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "notes");
    }
}
