//! One request and its streamed answer: only bytes and times are kept while the answer arrives.

use std::io::{self, Read as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ureq::Timeout;
use ureq::http::HeaderMap;

use super::failure::{LoadFailure, LoadFailureKind};
use super::sse::TimedBytes;
use crate::error::shown;
use crate::http::{ServerConnection, words};

/// Bytes read at a time.
const PART: usize = 16 << 10;
/// Bytes charged for the time of a part.
const ARRIVAL: u64 = 24;
/// Maximum bytes of an error message.
const MOST_ERROR: usize = 64 << 10;

/// Bounds on the memory of answers.
#[derive(Debug)]
pub(super) struct AnswerBudget {
    /// Maximum bytes of one answer.
    pub(super) one: u64,
    /// Maximum bytes of all answers that are being received.
    pub(super) all: u64,
    pub(super) held: AtomicU64,
}

impl AnswerBudget {
    /// Charges bytes to an answer, which then holds `of_answer`.
    fn charge(&self, bytes: u64, of_answer: &mut u64) -> Result<(), LoadFailure> {
        *of_answer += bytes;
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if *of_answer > self.one {
            Err(too_long("the answer is", self.one))
        } else if held > self.all {
            Err(too_long("the answers of all requests are together", self.all))
        } else {
            Ok(())
        }
    }
}

/// Returns the failure of an answer, or of all answers, beyond a limit of bytes.
fn too_long(what: &str, limit: u64) -> LoadFailure {
    let words = format!("{what} longer than {limit} bytes");
    LoadFailure::new(LoadFailureKind::TooLong, words)
}

/// Sends a request on a connection of its own and reads the answer to its last event. Times count from the moment of sending, which is
/// returned.
pub(super) fn exchange(
    http: &ServerConnection,
    path: &str,
    body: &[u8],
    budget: &AnswerBudget,
) -> (Instant, TimedBytes, Result<(), LoadFailure>) {
    let mut stream = TimedBytes::default();
    let mut part = vec![0; PART];
    let mut charged = 0;
    let begun = Instant::now();
    let result = receive(http, path, body, |reader| {
        loop {
            match reader.read(&mut part) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    stream.push(&part[..count], begun.elapsed());
                    budget.charge(count as u64 + ARRIVAL, &mut charged)?;
                    // An answer is complete with its last event, however the connection ends.
                    if stream.is_done() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                    return Err(inner.map_or_else(
                        || LoadFailure::new(LoadFailureKind::BrokenOff, shown(&error.to_string())),
                        failure,
                    ));
                }
            }
        }
    });
    budget.held.fetch_sub(charged, Ordering::Relaxed);
    (begun, stream, result)
}

fn receive(
    http: &ServerConnection,
    path: &str,
    body: &[u8],
    read: impl FnOnce(&mut dyn io::Read) -> Result<(), LoadFailure>,
) -> Result<(), LoadFailure> {
    let mut answer = http.send_once(path, body).map_err(|error| failure(&error))?;
    let status = answer.status().as_u16();
    if let Some(coding) =
        header(answer.headers(), "content-encoding").filter(|coding| coding != "identity")
        && status == 200
    {
        let words = format!(
            "the answer is compressed (`{coding}`), and only `identity` was accepted; turn compression off in the server or proxy"
        );
        return Err(LoadFailure::new(LoadFailureKind::Malformed, words));
    }
    if let Some(location) =
        header(answer.headers(), "location").filter(|_| (300..400).contains(&status))
    {
        let words = format!(
            "it redirects to `{location}`, and no redirect is followed; give the address of the server itself"
        );
        return Err(LoadFailure::new(LoadFailureKind::Status(status), words));
    }
    let mut reader = answer.body_mut().as_reader();
    if status == 200 {
        return read(&mut reader);
    }
    let mut message = Vec::new();
    let mut part = [0; 1 << 10];
    while message.len() < MOST_ERROR
        && let Ok(count @ 1..) = reader.read(&mut part)
    {
        message.extend_from_slice(&part[..count]);
    }
    Err(LoadFailure::new(LoadFailureKind::Status(status), words(&message)))
}

/// Returns the value of a header as it is shown in messages.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| shown(&String::from_utf8_lossy(value.as_bytes())))
}

fn failure(error: &ureq::Error) -> LoadFailure {
    let kind = match error {
        ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_) => LoadFailureKind::Connect,
        ureq::Error::Timeout(_) => LoadFailureKind::Timeout,
        ureq::Error::Io(io) => match io.kind() {
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => LoadFailureKind::Connect,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => LoadFailureKind::Timeout,
            _ => LoadFailureKind::BrokenOff,
        },
        _ => LoadFailureKind::BrokenOff,
    };
    let words = match (error, kind) {
        (ureq::Error::Timeout(_), LoadFailureKind::Connect) => "no connection in time".to_owned(),
        (ureq::Error::Timeout(_), _) => "no complete answer in time".to_owned(),
        _ => shown(&error.to_string()),
    };
    LoadFailure::new(kind, words)
}
