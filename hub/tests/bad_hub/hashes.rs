//! Hashes that hubs state for files, computed without the client.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

pub(crate) fn git_hash(bytes: &[u8]) -> String {
    let mut digest = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    digest.update(bytes);
    format!("{:x}", digest.finalize())
}
