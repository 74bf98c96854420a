//! Fetches a checkpoint from a model hub into the cache of Python's `huggingface_hub`.

mod show;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Result;
use hub::{Event, FetchObserver, HubSettings};

use crate::{interrupt, term};

pub(crate) use hub::is_id;

/// Number of bytes that take a while to compare.
const MANY: u64 = 1 << 30;

/// Returns the folder of the checkpoint `id` at `revision`, fetched if the cache lacks a part of it.
pub(crate) fn checkpoint(id: &str, revision: &str) -> Result<PathBuf> {
    let settings = HubSettings::read(&|key| std::env::var_os(key));
    let user_agent = concat!("onboard/", env!("CARGO_PKG_VERSION"));
    let terminal: Rc<dyn FetchObserver> = Rc::new(FetchTerminal::default());
    Ok(settings.checkpoint(id, revision, user_agent, &terminal)?)
}

/// Observer that shows a download on the terminal.
#[derive(Debug, Default)]
struct FetchTerminal(show::DownloadProgress);

impl FetchObserver for FetchTerminal {
    fn event(&self, event: &Event<'_>) {
        self.0.show(event);
    }

    fn cached(&self, id: &str, folder: &Path) {
        term::note(&format!("using `{id}` from the cache: {}", folder.display()));
    }

    fn comparing(&self, bytes: u64) {
        if bytes >= MANY {
            let size = registry::quantity::bytes(bytes);
            term::note(&format!("comparing {size} with their hashes, once"));
        }
    }

    fn downloading(&self, active: bool) {
        interrupt::hint(if active {
            "; run the command again to continue the download"
        } else {
            ""
        });
    }
}
