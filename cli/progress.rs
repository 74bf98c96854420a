//! Remarks and progress of the converter on the terminal.

use std::any::Any;
use std::io;
use std::path::Path;

use conversion::Progress;
use converter::ConversionObserver;
use indicatif::ProgressBar;
use registry::diag::Finding;

use crate::findings::warn;
use crate::{interrupt, products, term};

/// Observer that shows remarks and bars, and registers unfinished files for removal.
pub(crate) struct ConversionTerminal;

impl ConversionObserver for ConversionTerminal {
    fn note(&self, text: &str) {
        term::note(text);
    }

    fn findings(&self, findings: &[Finding]) {
        warn(findings);
    }

    fn print(&self, text: &str) -> io::Result<()> {
        term::print(text)
    }

    fn count(&self, length: u64, noun: &'static str) -> Box<dyn Progress> {
        Box::new(ConversionBar(term::count_bar(length, noun)))
    }

    fn unfinished(&self, path: &Path, with_contents: bool) -> Box<dyn Any> {
        Box::new(if with_contents { interrupt::watch_whole(path) } else { interrupt::watch(path) })
    }

    fn resumable(&self, hint: &'static str) {
        interrupt::hint(hint);
    }

    fn product(&self, path: &Path) {
        products::note(path);
    }
}

/// Progress bar, cleared at its end.
pub(crate) struct ConversionBar(pub(crate) ProgressBar);

impl Progress for ConversionBar {
    fn advance(&self, numbers: u64) {
        self.0.inc(numbers);
    }
}

impl Drop for ConversionBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
