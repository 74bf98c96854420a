//! Progress of a conversion, on stderr if it is a terminal.

use conversion::Progress;
use indicatif::ProgressBar;

use crate::term;

/// Progress bar that counts values.
pub(super) struct ConversionBar(ProgressBar);

impl ConversionBar {
    pub(super) fn new(numbers: u64) -> Self {
        Self(term::count_bar(numbers, "weights"))
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for ConversionBar {
    fn advance(&self, numbers: u64) {
        self.0.inc(numbers);
    }
}
