//! How far a conversion is, on stderr where somebody watches.

use std::io::{self, IsTerminal as _};

use converters::convert::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that counts numbers.
pub(super) struct Watch(ProgressBar);

impl Watch {
    pub(super) fn new(numbers: u64) -> Self {
        if !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(Some(numbers), ProgressDrawTarget::stderr());
        let template = "  {wide_bar} {human_pos}/{human_len} weights  {per_sec}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Watch {
    fn advance(&self, numbers: u64) {
        self.0.inc(numbers);
    }
}
