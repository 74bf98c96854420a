//! Events of a client.

use std::time::Duration;

use crate::Error;

/// Progress of a client, for whoever shows it.
#[derive(Debug)]
pub enum Event<'a> {
    /// The transfer of a file begins, or begins again with the bytes that are here.
    Begin {
        /// Its name.
        file: &'a str,
        /// Its length.
        size: u64,
        /// Bytes that are here.
        have: u64,
    },
    /// So many more bytes have arrived.
    Bytes(u64),
    /// The transfer is over, for good or not.
    End,
    /// An attempt failed and another one follows.
    Retry {
        /// The failure.
        why: &'a Error,
        /// The wait before the next attempt.
        wait: Duration,
    },
    /// Another process is fetching the file.
    Waiting {
        /// The file.
        what: &'a str,
    },
    /// The hub states no hash for a file, so only its length was compared.
    Unverified {
        /// The file.
        what: &'a str,
    },
}
