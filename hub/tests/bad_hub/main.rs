//! Tests of faulty hubs: each ends in a clear error or a bounded retry, and none receives the token.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod answers;
mod cache;
mod hashes;
mod redirects;
mod server;
mod transfers;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onboard_hub::{Client, Error, Event, HubOptions};

use crate::server::{COMMIT, Pair, well_behaved};

pub(crate) const CONFIG: &[u8] = b"{\"model_type\": \"tiny\"}\n";
pub(crate) const TOKEN: &str = "hf_secret";
pub(crate) const ID: &str = "acme/tiny";
pub(crate) const WEIGHTS: &str = "model.safetensors";

/// Returns the bytes of a file of several transfer chunks.
pub(crate) fn weights() -> Vec<u8> {
    (0..300_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Returns timeouts suitable for a loaded machine, with short waits between attempts.
pub(crate) fn options() -> HubOptions {
    HubOptions {
        connect: Duration::from_secs(3),
        answer: Duration::from_secs(3),
        read: Duration::from_secs(3),
        tries: 3,
        backoff: Duration::from_millis(5),
        most_backoff: Duration::from_millis(50),
        lock: Duration::from_secs(3),
        ..HubOptions::default()
    }
}

/// Returns options for a server that is silent on purpose.
pub(crate) fn hasty() -> HubOptions {
    let short = Duration::from_millis(150);
    HubOptions { answer: short, read: short, lock: short, tries: 2, ..options() }
}

/// Pair of servers, a cache and a client, with a record of its events.
pub(crate) struct Scene {
    pub pair: Pair,
    pub home: tempfile::TempDir,
    pub told: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let pair = well_behaved(CONFIG, &weights());
        Self { pair, home: tempfile::tempdir().unwrap(), told: Arc::default() }
    }

    pub(crate) fn client(&self, options: HubOptions) -> Client {
        let told = self.told.clone();
        let hub = &self.pair.hub.origin;
        Client::new(hub, Some(TOKEN), self.home.path(), "test", options, move |event: Event<'_>| {
            told.lock().unwrap().push(format!("{event:?}"));
        })
        .unwrap()
    }

    pub(crate) fn config(&self) -> Result<PathBuf, Error> {
        self.client(options()).fetch(ID, COMMIT, "config.json")
    }

    pub(crate) fn weights(&self) -> Result<PathBuf, Error> {
        self.weights_with(options())
    }

    pub(crate) fn weights_with(&self, options: HubOptions) -> Result<PathBuf, Error> {
        self.client(options).fetch(ID, COMMIT, WEIGHTS)
    }

    pub(crate) fn told(&self, word: &str) -> usize {
        self.told.lock().unwrap().iter().filter(|event| event.contains(word)).count()
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.home.path().join("models--acme--tiny").join(below)
    }

    /// Returns the names in `blobs`, sorted.
    pub(crate) fn blobs(&self) -> Vec<String> {
        let entries = fs_err::read_dir(self.path("blobs")).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Fails unless the storage, which is another origin, received requests and none with a token.
    #[track_caller]
    pub(crate) fn storage_saw_no_token(&self) {
        let seen = self.pair.storage.requests();
        assert!(!seen.is_empty());
        for request in seen {
            assert!(!format!("{request:?}").contains(TOKEN), "{request:?}");
            assert!(!request.headers.contains_key("authorization"), "{request:?}");
        }
    }
}

/// Fails unless the result is an error whose text contains these words, and not the token.
#[track_caller]
pub(crate) fn fails<T: std::fmt::Debug>(result: Result<T, Error>, words: &[&str]) {
    let error = result.unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
    assert!(!error.contains(TOKEN), "{error}");
}
