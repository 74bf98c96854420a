//! Divergences that a search has measured, kept beside the output: an interrupted search goes on with them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use crate::error::Result;
use crate::line_journal::LineJournal;
use crate::observer::ConversionObserver;

/// Divergences by the hash of what was measured.
#[derive(Debug)]
pub(crate) struct MeasuredDivergences {
    found: RefCell<BTreeMap<String, f64>>,
    journal: RefCell<LineJournal>,
}

impl MeasuredDivergences {
    /// Opens the divergences of a search, of which an earlier run may have measured some.
    pub(crate) fn open(
        observer: &dyn ConversionObserver,
        path: PathBuf,
        search: &str,
    ) -> Result<Self> {
        let (journal, results) =
            LineJournal::open(observer, path, ("onboard-divergences/1", "search"), search, parse)?;
        if !results.is_empty() {
            observer
                .note(&format!("{} divergences were measured by an earlier run", results.len()));
        }
        observer.resumable("; run the command again to go on");
        let results = RefCell::new(results.into_iter().collect());
        Ok(Self { found: results, journal: RefCell::new(journal) })
    }

    /// Returns the divergence of `what`, measured now or by an earlier run.
    pub(crate) fn get(&self, what: &[u8], measure: impl FnOnce() -> Result<f64>) -> Result<f64> {
        let key = format!("{:x}", Sha256::digest(what));
        if let Some(kl) = self.found.borrow().get(&key) {
            return Ok(*kl);
        }
        let kl = measure()?;
        self.journal.borrow_mut().add(&line(&key, kl))?;
        self.found.borrow_mut().insert(key, kl);
        Ok(kl)
    }
}

fn line(key: &str, kl: f64) -> String {
    format!("{key} {:016x}", kl.to_bits())
}

fn parse(line: &str) -> Option<(String, f64)> {
    let (key, bits) = line.split_once(' ')?;
    let bits = u64::from_str_radix(bits, 16).ok().filter(|_| bits.len() == 16)?;
    (key.len() == 64).then(|| (key.to_owned(), f64::from_bits(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_not_measured_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.measured.part");
        let kls = [0.25, f64::INFINITY, 1e-300];
        let measured = MeasuredDivergences::open(&(), path.clone(), "search").unwrap();
        for (n, kl) in kls.into_iter().enumerate() {
            assert_eq!(measured.get(&[n as u8], || Ok(kl)).unwrap(), kl);
        }
        let measured = MeasuredDivergences::open(&(), path.clone(), "search").unwrap();
        for (n, kl) in kls.into_iter().enumerate() {
            assert_eq!(measured.get(&[n as u8], || panic!("it is known")).unwrap(), kl);
        }
        let other = MeasuredDivergences::open(&(), path, "other").unwrap();
        assert_eq!(other.get(&[0], || Ok(3.0)).unwrap(), 3.0);
    }
}
