//! Client for model hubs that speak the protocol of huggingface.co, with the cache of Python's
//! `huggingface_hub`.
//!
//! * [`Client::list`] requests the commit and the files of a revision;
//! * [`Client::fetch`] puts one file into the cache, resumed and verified;
//! * [`cache::ModelCache`] implements the folder layout that both programs share, and compares what other programs put
//!   there with its hash;
//! * [`HubSettings::checkpoint`] fetches all files of a checkpoint.
//!
//! Every response is untrusted. The token is sent only to the hub's own origin, every wait has a timeout,
//! and a file is renamed to its final name only after its size and hash have been compared.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_hub::{Client, HubOptions};
//!
//! # fn main() -> Result<(), onboard_hub::Error> {
//! let (hub, cache) = ("https://huggingface.co", Path::new("cache"));
//! let client = Client::new(hub, None, cache, "my-program", HubOptions::default(), |_| {})?;
//! println!("{:?}", client.list("owner/name", "main")?);
//! # Ok(())
//! # }
//! ```

mod address;
pub mod cache;
mod checked;
mod checkpoint;
mod client;
mod connection;
mod download;
mod error;
mod event;
mod http;
mod lock;
mod names;
mod options;
mod retry;
mod settings;
mod verify;

pub use checkpoint::{CheckpointError, FetchObserver};
pub use client::{Client, Listing};
pub use error::Error;
pub use event::Event;
pub use names::{check_file, check_revision, is_id};
pub use options::HubOptions;
pub use settings::HubSettings;

/// Escapes control characters in text from a hub and shortens long text, so that it is safe to show.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 160;
    let mut out: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}
