//! Lock of one blob, compatible with that of Python's `huggingface_hub` (`flock`).

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::cache::ModelCache;
use crate::connection::Connection;
use crate::event::Event;

/// Wait between two attempts at a lock.
const PAUSE: Duration = Duration::from_millis(50);

/// Exclusive right to write a blob, released when dropped. The file stays, as in Python: a waiter may have
/// opened it.
#[derive(Debug)]
pub(crate) struct BlobLock(#[expect(dead_code, reason = "held, not read")] Option<File>);

/// Takes the lock of an etag. Waits as long as another process makes progress with it.
pub(crate) fn lock(
    connection: &Connection,
    cache: &ModelCache,
    etag: &str,
    what: &str,
) -> Result<BlobLock, Error> {
    let path = cache.lock(etag);
    let mut arrived = 0;
    let mut since = Instant::now();
    let mut told = false;
    loop {
        let file = open(&path)?;
        match file.try_lock() {
            Ok(()) if is_named(&file, &path) => return Ok(BlobLock(Some(file))),
            // Another process removed the file between the two calls: lock the current one.
            Ok(()) => continue,
            Err(TryLockError::WouldBlock) => {}
            // A file system without locks: the final hash check detects concurrent writes.
            Err(TryLockError::Error(_)) => return Ok(BlobLock(None)),
        }
        if !told {
            connection.notify(Event::Waiting { what });
            told = true;
        }
        let now = cache.partial_bytes(etag);
        if now != arrived {
            (arrived, since) = (now, Instant::now());
        }
        if since.elapsed() > connection.options.lock {
            return Err(Error::Locked { what: what.to_owned(), lock: path });
        }
        thread::sleep(PAUSE);
    }
}

fn open(path: &Path) -> Result<File, Error> {
    let mut options = fs_err::OpenOptions::new();
    options.read(true).write(true);
    let created = options.clone().create_new(true).open(path);
    let file = match created {
        Ok(file) => {
            // As in Python: users who share the cache through a group can wait for the lock.
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt as _;
                file.set_permissions(std::fs::Permissions::from_mode(0o664)).ok();
            }
            file
        }
        Err(_) => options.open(path)?,
    };
    Ok(file.into_parts().0)
}

#[cfg(unix)]
fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(ours), Ok(named)) = (file.metadata(), fs_err::metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (named.dev(), named.ino())
}

#[cfg(not(unix))]
fn is_named(_file: &File, path: &Path) -> bool {
    path.exists()
}
