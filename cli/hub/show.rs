//! Progress of downloads: a bar on a terminal, a line for each file elsewhere.

use std::cell::RefCell;
use std::collections::BTreeSet;

use hub::Event;
use indicatif::ProgressBar;

use crate::term;

/// Progress state.
#[derive(Debug, Default)]
pub(crate) struct DownloadProgress {
    bar: RefCell<Option<ProgressBar>>,
    named: RefCell<BTreeSet<String>>,
}

impl DownloadProgress {
    /// Shows one event.
    pub(crate) fn show(&self, event: &Event<'_>) {
        let mut bar = self.bar.borrow_mut();
        match event {
            Event::Begin { file, size, have: received } => {
                let shown = bar.get_or_insert_with(|| term::byte_bar(*size, file));
                shown.set_position(*received);
                if shown.is_hidden() && self.named.borrow_mut().insert((*file).to_owned()) {
                    let already = match received {
                        0 => String::new(),
                        received => format!(", {} are here", registry::quantity::bytes(*received)),
                    };
                    term::note(&format!(
                        "downloading {file} ({}{already})",
                        registry::quantity::bytes(*size)
                    ));
                }
            }
            Event::Bytes(count) => {
                if let Some(bar) = &*bar {
                    bar.inc(*count);
                }
            }
            Event::End => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
            }
            Event::Retry { why, wait } => Self::next_text(
                bar.as_ref(),
                &format!("{why}; trying again in {:.0} s", wait.as_secs_f64().ceil()),
            ),
            Event::Waiting { what } => {
                Self::next_text(
                    bar.as_ref(),
                    &format!("waiting for another process that fetches {what}"),
                );
            }
            Event::Unverified { what } => Self::next_text(
                bar.as_ref(),
                &format!(
                    "warning: the hub states no hash for {what}; only its length was compared"
                ),
            ),
        }
    }

    /// Prints a line beside the bar.
    fn next_text(bar: Option<&ProgressBar>, text: &str) {
        match bar {
            Some(bar) => bar.suspend(|| term::note(text)),
            None => term::note(text),
        }
    }
}
