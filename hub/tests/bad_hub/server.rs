//! Servers on the loopback interface that respond like a hub and its storage, and fail on request.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub(crate) use crate::hashes::{git_hash, sha256};

/// Single commit of the single model.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Received request, with header names in lower case.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    /// Returns the first requested byte.
    pub(crate) fn from(&self) -> usize {
        let range = self.headers.get("range").map(|range| range["bytes=".len()..].to_owned());
        range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap())
    }

    fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.path.contains(part)
    }
}

type Handler = dyn Fn(&Request, &mut TcpStream) -> bool + Send + Sync;

/// Server that records its requests. A handler that returns false passes the request to the next.
#[derive(Clone)]
pub(crate) struct Server {
    pub origin: String,
    handlers: Arc<Mutex<Vec<Arc<Handler>>>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { origin, handlers: Arc::default(), requests: Arc::default() };
        let shared = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = shared.clone();
                thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { return };
        let mut words = first.split(' ').map(str::to_owned);
        let method = words.next().unwrap();
        let path = words.next().unwrap();
        let headers = lines.take_while(|line| !line.is_empty()).map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_lowercase(), value.to_owned())
        });
        let request = Request { method, path, headers: headers.collect() };
        self.requests.lock().unwrap().push(request.clone());
        let handlers = self.handlers.lock().unwrap().clone();
        if !handlers.iter().rev().any(|handler| handler(&request, &mut stream)) {
            answer(&mut stream, "404 Not Found", &[], b"");
        }
    }

    /// Adds a handler; the handler added last is called first.
    pub(crate) fn on(
        &self,
        handler: impl Fn(&Request, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) {
        self.handlers.lock().unwrap().push(Arc::new(handler));
    }

    /// Responds to matching requests with raw bytes.
    pub(crate) fn raw(&self, method: &'static str, part: &'static str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        self.on(move |request, stream| {
            let fits = request.is(method, part);
            if fits {
                stream.write_all(&bytes).ok();
            }
            fits
        });
    }

    /// Responds like `raw`, to the first `times` matching requests.
    pub(crate) fn raw_times(
        &self,
        times: usize,
        method: &'static str,
        part: &'static str,
        bytes: impl Into<Vec<u8>>,
    ) {
        let bytes = bytes.into();
        let left = Mutex::new(times);
        self.on(move |request, stream| {
            let mut left = left.lock().unwrap();
            let fits = request.is(method, part) && *left > 0;
            if fits {
                *left -= 1;
                stream.write_all(&bytes).ok();
            }
            fits
        });
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns the requests with a matching method and path.
    pub(crate) fn seen(&self, method: &str, part: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.is(method, part)).collect()
    }
}

/// Writes a response with its length, and closes the connection. A disconnected client is ignored.
pub(crate) fn answer(stream: &mut TcpStream, status: &str, headers: &[String], body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    if !headers.iter().any(|header| header.starts_with("Content-Length")) {
        head.push_str(&["Content-Length: ", &body.len().to_string(), "\r\n"].concat());
    }
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok();
}

/// Responds with the bytes from the requested offset.
pub(crate) fn serve_range(request: &Request, stream: &mut TcpStream, bytes: &[u8]) {
    match request.from() {
        0 => answer(stream, "200 OK", &[], bytes),
        from if from >= bytes.len() => answer(stream, "416 Range Not Satisfiable", &[], b""),
        from => {
            let range = format!("Content-Range: bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            answer(stream, "206 Partial Content", &[range], &bytes[from..]);
        }
    }
}

/// Hub, and the storage at another origin for the large files.
pub(crate) struct Pair {
    pub hub: Server,
    pub storage: Server,
}

/// Returns a pair that serves `config.json` itself and `model.safetensors` from its storage.
pub(crate) fn well_behaved(config: &[u8], weights: &[u8]) -> Pair {
    let hub = Server::start();
    let storage = Server::start();
    hub.on(|request, stream| {
        let fits = request.is("GET", "/api/models/acme/tiny/revision/");
        if fits {
            let body = format!(
                r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"config.json"}},{{"rfilename":"model.safetensors"}}]}}"#
            );
            answer(stream, "200 OK", &[], body.as_bytes());
        }
        fits
    });
    let file = config.to_vec();
    hub.on(move |request, stream| {
        if !request.path.ends_with(&format!("/acme/tiny/resolve/{COMMIT}/config.json")) {
            return false;
        }
        let mut headers =
            vec![format!("X-Repo-Commit: {COMMIT}"), format!("ETag: \"{}\"", git_hash(&file))];
        if request.method == "HEAD" {
            headers.push(format!("Content-Length: {}", file.len()));
            answer(stream, "200 OK", &headers, b"");
        } else {
            answer(stream, "200 OK", &headers, &file);
        }
        true
    });
    let location = format!("{}/signed/weights?key=1", storage.origin);
    let linked = weights.to_vec();
    hub.on(move |request, stream| {
        if !request.path.ends_with(&format!("/acme/tiny/resolve/{COMMIT}/model.safetensors")) {
            return false;
        }
        let headers = [
            format!("Location: {location}"),
            format!("X-Repo-Commit: {COMMIT}"),
            format!("X-Linked-Etag: \"{}\"", sha256(&linked)),
            format!("X-Linked-Size: {}", linked.len()),
            format!("X-Xet-Hash: {}", sha256(b"xet")),
            "ETag: \"elsewhere\"".to_owned(),
        ];
        answer(stream, "302 Found", &headers, b"");
        true
    });
    let stored = weights.to_vec();
    storage.on(move |request, stream| {
        let fits = request.is("GET", "/signed/weights");
        if fits {
            serve_range(request, stream, &stored);
        }
        fits
    });
    Pair { hub, storage }
}
