//! Judge of a hub that responds with damaged bytes. The client ends soon, keeps its token, and never stores
//! a file with unannounced bytes.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Judged, Trial, refused};
use crate::case::Case;
use crate::seeds::hubs::{BODY, HEAD, HUB, LISTING, STORE, STORED};
use hub::{Client, HubOptions};

#[path = "../../../hub/tests/bad_hub/hashes.rs"]
pub(crate) mod hashes;

use hashes::{git_hash, sha256};

const TOKEN: &str = "hf_secret";
/// Maximum number of requests for three files, with every retry and redirect.
const MOST_REQUESTS: usize = 400;
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the file of a case that responds to a request.
fn file_of(request: &str) -> &'static str {
    match request {
        head if head.starts_with("HEAD") => HEAD,
        listing if listing.contains("/api/") => LISTING,
        _ => BODY,
    }
}

/// Lists a model and fetches its files from servers that respond with the case.
pub(crate) fn hub(trial: &Trial<'_>) -> Judged {
    let started = Instant::now();
    let store = Server::start(|_| STORED, trial.case, "").map_err(|error| error.to_string())?;
    let hub = Server::start(file_of, trial.case, &store.origin);
    let hub = hub.map_err(|error| error.to_string())?;
    let cache = trial.beside("cache");
    let judged = fetch_all(&hub.origin, &cache);
    if started.elapsed() > PATIENCE {
        return Err(format!("took {} seconds", started.elapsed().as_secs()));
    }
    let elsewhere = store.requests();
    let count = hub.requests().len() + elsewhere.len();
    if count > MOST_REQUESTS {
        return Err(format!("{count} requests"));
    }
    if elsewhere.iter().any(|request| request.contains(TOKEN)) {
        return Err("the token went to another origin".to_owned());
    }
    let parent = trial.dir.parent().ok_or("a case lies in a folder")?;
    for entry in fs_err::read_dir(parent).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path != trial.dir && path != cache && !path.ends_with("output") {
            return Err(format!("wrote `{}`", path.display()));
        }
    }
    judged
}

fn fetch_all(endpoint: &str, cache: &Path) -> Judged {
    let short = Duration::from_millis(300);
    let options = HubOptions {
        connect: short,
        answer: short,
        read: short,
        window: short,
        tries: 3,
        backoff: Duration::from_millis(1),
        most_backoff: Duration::from_millis(5),
        lock: short,
        most_listing: 1 << 20,
        ..HubOptions::default()
    };
    let client = Client::new(endpoint, Some(TOKEN), cache, "fuzz", options, |_| {});
    let client = client.map_err(|error| format!("no client: {error}"))?;
    let listing = match client.list("acme/tiny", "main") {
        Ok(listing) => listing,
        Err(error) => return refused(&error.to_string()),
    };
    let mut fetched = false;
    for name in listing.files.iter().take(3) {
        match client.fetch("acme/tiny", &listing.commit, name) {
            Ok(path) => fetched |= arrived(&path, cache)?,
            Err(error) => {
                refused(&error.to_string())?;
            }
        }
    }
    Ok(fetched)
}

/// Checks the location and the hash of a stored file.
fn arrived(path: &Path, cache: &Path) -> Judged {
    let wrong = |error: io::Error| format!("`{}`: {error}", path.display());
    let blob = fs_err::canonicalize(path).map_err(wrong)?;
    if !blob.starts_with(fs_err::canonicalize(cache).map_err(wrong)?) {
        return Err(format!("`{}` lies outside of the cache", blob.display()));
    }
    let bytes = fs_err::read(&blob).map_err(wrong)?;
    let stated = blob.file_name().unwrap_or_default().to_string_lossy();
    let hash = match stated.len() {
        64 => sha256(&bytes),
        40 => git_hash(&bytes),
        _ => return Ok(true),
    };
    let is_hash = stated.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if is_hash && *stated != hash {
        return Err(format!("a file has the name {stated} and the hash {hash}"));
    }
    Ok(true)
}

/// Server that responds to every request with a file of the case, until it is dropped.
struct Server {
    origin: String,
    ended: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that responds with the file that `kind` selects, with the addresses of both servers
    /// in it.
    fn start(kind: fn(&str) -> &'static str, case: &Case, store: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let origin = format!("http://{}", listener.local_addr()?);
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<(String, Vec<u8>)> = case
            .files
            .iter()
            .map(|(name, bytes): (&String, &Vec<u8>)| {
                let bytes = replace(bytes, HUB.as_bytes(), origin.as_bytes());
                (name.clone(), replace(&bytes, STORE.as_bytes(), store.as_bytes()))
            })
            .collect();
        let over = Arc::clone(&ended);
        let requests = Arc::clone(&seen);
        let thread = std::thread::Builder::new().spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let request = request(&mut stream);
                let name = kind(&request);
                requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
                let answer = answers.iter().find(|(known, _)| known == name);
                // A client may have disconnected.
                answer.and_then(|(_, bytes)| stream.write_all(bytes).ok());
            }
        })?;
        Ok(Self { origin, ended, seen, thread: Some(thread) })
    }

    fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The loop checks the flag once more for this connection.
        TcpStream::connect(self.origin.trim_start_matches("http://")).ok();
        self.thread.take().map(JoinHandle::join);
    }
}

/// Reads the head of a request; returns the part received if it is incomplete.
fn request(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_millis(300))).ok();
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1 << 16 {
        match stream.read(&mut piece) {
            Ok(count @ 1..) => head.extend_from_slice(&piece[..count]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut tail = bytes;
    while let [first, after @ ..] = tail {
        if let Some(behind) = tail.strip_prefix(from) {
            out.extend_from_slice(to);
            tail = behind;
        } else {
            out.push(*first);
            tail = after;
        }
    }
    out
}
