//! Client for model hubs that speak the protocol of huggingface.co, with the cache of Python's
//! `huggingface_hub`.
//!
//! * [`Client::list`] asks for the commit and the files of a revision;
//! * [`Client::fetch`] puts one file into the cache, resumed and verified;
//! * [`cache::Cache`] knows the layout of the folder that both programs share.
//!
//! Every answer is untrusted. The token goes to the hub's own origin alone, every wait has a
//! timeout, and a file gets its name only after its size and hash have been compared.

mod address;
pub mod cache;
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
mod verify;

pub use client::{Client, Listing};
pub use error::Error;
pub use event::Event;
pub use names::{check_file, check_revision, is_id};
pub use options::Options;

/// Makes text from a hub safe to show: control characters escaped, long text cut.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 160;
    let mut out: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}
