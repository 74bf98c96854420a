//! Model hub on this machine, which responds like the real one and fails on request.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// Single commit of the single repository.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Fault of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends after this many bytes of the body, once.
    CutOnce(usize),
    /// The body stops after this many bytes, once, and the connection stays open.
    StallOnce(usize),
    /// One byte contradicts the hash.
    Corrupt,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: BTreeMap<String, Fault>,
    status: Option<u16>,
    requests: Vec<String>,
}

/// Running hub; it ends with the test process.
#[derive(Debug, Clone)]
pub(crate) struct FakeHub {
    /// Value for HF_ENDPOINT.
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    /// Starts a hub whose every repository has these files.
    pub(crate) fn start(files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let hub = Self { endpoint, state };
        let shared = hub.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = shared.clone();
                thread::spawn(move || hub.serve(&stream));
            }
        });
        hub
    }

    /// Makes `file` arrive with a fault.
    pub(crate) fn fault(&self, file: &str, fault: Fault) {
        self.state.lock().unwrap().faults.insert(file.to_owned(), fault);
    }

    /// Sets the status of every response.
    pub(crate) fn answer(&self, status: u16) {
        self.state.lock().unwrap().status = Some(status);
    }

    /// Returns request lines with their range and authorization, oldest first.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    fn serve(&self, stream: &TcpStream) {
        let mut lines = BufReader::new(stream).lines();
        let Some(Ok(first)) = lines.next() else { return };
        let mut range = None;
        let mut seen = first.clone();
        for line in lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
            let lower = line.to_lowercase();
            if let Some(value) = lower.strip_prefix("range: bytes=") {
                range = Some(value.trim_end_matches('-').parse::<usize>().unwrap());
            }
            if lower.starts_with("range:") || lower.starts_with("authorization:") {
                seen.push_str(" | ");
                seen.push_str(&line);
            }
        }
        let mut words = first.split(' ');
        let head = words.next() == Some("HEAD");
        let path = words.next().unwrap_or("/").to_owned();
        let mut state = self.state.lock().unwrap();
        state.requests.push(seen);
        if let Some(status) = state.status {
            reply(stream, &format!("{status} No"), &[], b"");
            return;
        }
        if path.starts_with("/api/models/") {
            let names = state.files.keys().map(|name| format!("{{\"rfilename\":\"{name}\"}}"));
            let names = names.collect::<Vec<_>>().join(",");
            let body = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{names}]}}");
            reply(stream, "200 OK", &[], body.as_bytes());
            return;
        }
        let file =
            path.split_once("/resolve/").and_then(|(_, path)| path.split_once('/')).map_or_else(
                || path.trim_start_matches("/cdn/").to_owned(),
                |(_, file)| file.to_owned(),
            );
        let Some(bytes) = state.files.get(&file).cloned() else {
            reply(stream, "404 Not Found", &[], b"");
            return;
        };
        let mut headers = vec![format!("X-Repo-Commit: {COMMIT}")];
        if file.ends_with(".safetensors") && path.contains("/resolve/") {
            // The hub stores large files elsewhere and names their hash in the redirect.
            headers.push(format!("Location: {}/cdn/{file}", self.endpoint));
            headers.push(format!("X-Linked-Etag: \"{:x}\"", Sha256::digest(&bytes)));
            headers.push(format!("X-Linked-Size: {}", bytes.len()));
            reply(stream, "302 Found", &headers, b"");
            return;
        }
        let mut git = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
        git.update(&bytes);
        headers.push(format!("ETag: \"{:x}\"", git.finalize()));
        if head {
            headers.push(format!("Content-Length: {}", bytes.len()));
            reply(stream, "200 OK", &headers, b"");
            return;
        }
        let fault = state.faults.get(&file).copied();
        if matches!(fault, Some(Fault::CutOnce(_) | Fault::StallOnce(_))) {
            state.faults.remove(&file);
        }
        drop(state);
        let from = range.unwrap_or(0);
        let mut body = bytes[from..].to_vec();
        if from > 0 {
            headers.push(format!(
                "Content-Range: bytes {from}-{}/{}",
                bytes.len() - 1,
                bytes.len()
            ));
        }
        headers.push(format!("Content-Length: {}", body.len()));
        match fault {
            Some(Fault::Corrupt) => {
                let middle = body.len() / 2;
                body[middle] ^= 1;
            }
            Some(Fault::CutOnce(n) | Fault::StallOnce(n)) => body.truncate(n),
            None => {}
        }
        let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
        reply(stream, status, &headers, &body);
        if matches!(fault, Some(Fault::StallOnce(_))) {
            thread::sleep(Duration::from_secs(60));
        }
    }
}

fn reply(mut stream: &TcpStream, status: &str, headers: &[String], body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    if !headers.iter().any(|header| header.starts_with("Content-Length")) {
        let length = body.len().to_string();
        head.push_str(&["Content-Length: ", &length, "\r\n"].concat());
    }
    head.push_str("\r\n");
    // The client may have disconnected, which is no error.
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok();
    stream.flush().ok();
}
