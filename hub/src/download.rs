//! Downloads one file: announces, locks, resumes, verifies and renames it.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cache::ModelCache;
use crate::connection::Connection;
use crate::event::Event;
use crate::http::{HubRequest, HubResponse, LINKED_ETAG, explain};
use crate::lock::lock;
use crate::names::is_plain;
use crate::retry::AttemptError;
use crate::verify::verify;
use crate::{Error, shown};

/// Number of bytes that make a broken attempt count as progress.
const PROGRESS: u64 = 1 << 20;

/// Download of one file of one commit into the cache.
pub(crate) struct Download<'a> {
    pub connection: &'a Connection,
    pub cache: ModelCache,
    pub commit: &'a str,
    pub name: &'a str,
    pub address: String,
    /// Description of the file.
    pub what: String,
}

/// Response headers of the hub about a file.
struct BlobHeaders {
    etag: String,
    size: Option<u64>,
}

impl Download<'_> {
    pub(crate) fn run(self) -> Result<PathBuf, Error> {
        let announced = self.connection.persist(|| self.fetch_headers())?;
        let etag = &announced.etag;
        self.cache.prepare(etag)?;
        let _lock = lock(self.connection, &self.cache, etag, &self.what)?;
        let blob = self.cache.blob(etag);
        let metadata = fs_err::metadata(&blob).ok().filter(std::fs::Metadata::is_file);
        if metadata.is_none_or(|metadata| announced.size.is_some_and(|size| size != metadata.len()))
        {
            self.receive(&announced, &blob)?;
        }
        Ok(self.cache.link(etag, self.commit, self.name)?)
    }

    fn fetch_headers(&self) -> Result<BlobHeaders, AttemptError> {
        let reply = self.connection.http.send(&self.address, HubRequest::Head, &self.what)?;
        let etag = reply.header(LINKED_ETAG).or(reply.header("etag")).unwrap_or_default();
        let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        if !is_plain(etag) {
            let why = format!("its etag is `{}`, expected a hash", shown(etag));
            return Err(reply.unusable(&self.what, why).into());
        }
        if let Some(commit) = reply.header("x-repo-commit").filter(|commit| *commit != self.commit)
        {
            let why = format!("it is of commit `{}`, expected `{}`", shown(commit), self.commit);
            return Err(reply.unusable(&self.what, why).into());
        }
        let length =
            if reply.status.is_redirection() { None } else { reply.header("content-length") };
        let size = reply.header("x-linked-size").or(length);
        let size = size
            .map(str::parse)
            .transpose()
            .map_err(|_| reply.unusable(&self.what, "its announced length is no number"))?;
        Ok(BlobHeaders { etag: etag.to_owned(), size })
    }

    /// Receives the bytes under a temporary name and renames them if they match the announcement.
    fn receive(&self, announced: &BlobHeaders, blob: &Path) -> Result<(), Error> {
        let mut part = blob.as_os_str().to_owned();
        part.push(".incomplete");
        let part = PathBuf::from(part);
        let mut size = announced.size;
        let received = self.connection.persist(|| self.receive_once(&part, &mut size));
        self.connection.notify(Event::End);
        received?;
        match verify(&part, &announced.etag, &self.what) {
            Ok(true) => {}
            Ok(false) => self.connection.notify(Event::Unverified { what: &self.what }),
            Err(error) => {
                fs_err::remove_file(&part)?;
                return Err(error);
            }
        }
        // A blob may be a link into a store that other models share: it is replaced, not overwritten.
        Ok(fs_err::rename(&part, blob)?)
    }

    /// Runs one attempt, which resumes with the existing bytes. Determines the size if it was not
    /// announced.
    fn receive_once(&self, part: &Path, size: &mut Option<u64>) -> Result<(), AttemptError> {
        let mut file = open(part)?;
        let mut received = file.metadata()?.len();
        if size.is_some_and(|size| received > size) {
            file.set_len(0)?;
            received = 0;
        }
        if *size == Some(received) && received > 0 {
            return Ok(());
        }
        let options = &self.connection.options;
        let left = size.unwrap_or(0).saturating_sub(received) / options.least_rate.max(1);
        let total = Duration::from_secs(left).saturating_add(options.window * 2);
        let mut reply = self.connection.http.send(
            &self.address,
            HubRequest::Bytes(received, total),
            &self.what,
        )?;
        let (from, total_size) = self.range(&reply, received)?;
        let Some(expected) = size.or(total_size) else {
            return Err(reply.unusable(&self.what, "it states no length").into());
        };
        if total_size.is_some_and(|total_size| total_size != expected) {
            let why =
                format!("it has {} bytes, announced were {expected}", total_size.unwrap_or(0));
            return Err(reply.unusable(&self.what, why).into());
        }
        *size = Some(expected);
        if from < received {
            file.set_len(0)?;
            received = 0;
        }
        self.connection.notify(Event::Begin { file: self.name, size: expected, have: received });
        let before = received;
        let ended = self.copy(&mut reply, &mut file, &mut received, expected);
        if let Err(TransferError::Disk(error)) = ended {
            return Err(error.into());
        }
        if let Err(TransferError::TooLong) = ended {
            drop(file);
            fs_err::remove_file(part)?;
            let why = format!("its body is longer than the {expected} bytes that were announced");
            return Err(reply.unusable(&self.what, why).into());
        }
        if received == expected {
            file.sync_all()?;
            return Ok(());
        }
        let why = match ended {
            Err(TransferError::Broken(why)) => why,
            _ => "the connection ended".to_owned(),
        };
        let why = format!("the transfer broke off at {received} of {expected} bytes: {why}");
        let host = reply.origin.to_string();
        let what = self.what.clone();
        let error = Error::Connection { host, what, why };
        Err(AttemptError::Temporary { error, after: None, progress: received - before >= PROGRESS })
    }

    /// Returns the start of the body and the length of the whole file, from the response.
    fn range(
        &self,
        reply: &HubResponse,
        received: u64,
    ) -> Result<(u64, Option<u64>), AttemptError> {
        match reply.status.as_u16() {
            // The server ignored the range: the body starts at the beginning.
            200 => Ok((0, content_length(reply))),
            206 => {
                let stated = reply.header("content-range").unwrap_or_default();
                let parsed = stated.strip_prefix("bytes ").and_then(|text| {
                    let (range, total_size) = text.split_once('/')?;
                    let from: u64 = range.split_once('-')?.0.parse().ok()?;
                    Some((from, total_size.parse().ok()))
                });
                let Some((from, total_size)) = parsed.filter(|(from, _)| *from == received) else {
                    let why = format!(
                        "its `Content-Range` is `{}`, asked was for bytes from {received}",
                        shown(stated)
                    );
                    return Err(reply.unusable(&self.what, why).into());
                };
                Ok((
                    from,
                    total_size.or_else(|| {
                        content_length(reply).map(|length| length.saturating_add(from))
                    }),
                ))
            }
            code => {
                let host = reply.origin.to_string();
                let what = self.what.clone();
                Err(Error::Status { code, host, what }.into())
            }
        }
    }

    /// Copies the body to the file until it ends, keeping `have` at the number of bytes written.
    fn copy(
        &self,
        reply: &mut HubResponse,
        file: &mut fs_err::File,
        received: &mut u64,
        expected: u64,
    ) -> Result<(), TransferError> {
        let options = &self.connection.options;
        let mut body = reply.body.as_reader();
        let mut buffer = vec![0; 256 << 10];
        let mut since = Instant::now();
        let mut moved = 0;
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TransferError::Broken(truncated_body(&error))),
            };
            if count as u64 > expected - *received {
                return Err(TransferError::TooLong);
            }
            file.write_all(&buffer[..count]).map_err(TransferError::Disk)?;
            *received += count as u64;
            moved += count as u64;
            self.connection.notify(Event::Bytes(count as u64));
            let elapsed = since.elapsed();
            if elapsed >= options.window {
                if (moved as f64) < options.least_rate as f64 * elapsed.as_secs_f64() {
                    return Err(TransferError::Broken("it sends too slowly".to_owned()));
                }
                (since, moved) = (Instant::now(), 0);
            }
        }
    }
}

/// Abnormal end of a body.
enum TransferError {
    Broken(String),
    TooLong,
    Disk(io::Error),
}

/// Describes a truncated body.
pub(crate) fn truncated_body(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    inner.map_or_else(|| shown(&error.to_string()), explain)
}

/// Returns the length that a response states for its body.
fn content_length(reply: &HubResponse) -> Option<u64> {
    reply.header("content-length").and_then(|text| text.parse().ok())
}

/// Opens the file of an unfinished download. A link or pipe in its place is removed, not followed.
fn open(part: &Path) -> io::Result<fs_err::File> {
    if part.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
        fs_err::remove_file(part)?;
    }
    fs_err::OpenOptions::new().create(true).append(true).open(part)
}
