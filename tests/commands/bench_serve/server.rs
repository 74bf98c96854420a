//! Server that streams completions with known delays, and fails on request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Fault of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamFault {
    None,
    /// Prompts of token ids get status 400.
    NoIds,
    /// No `usage`.
    NoUsage,
    /// Each chunk has two tokens.
    Pairs,
    /// Every second request gets this status.
    Half(u16),
    /// All requests get this status.
    Status(u16),
    /// The connection closes after two tokens.
    Cut,
    /// The answer is no stream.
    Html,
    /// The third event is no JSON.
    Garbage,
    /// An error follows the first token.
    ErrorEvent,
    /// Tokens without end.
    Endless,
    /// One line without end.
    Flood,
    /// No answer.
    Silent,
    /// The connection stays open after the last event.
    Open,
    /// Only the closing event.
    Empty,
    /// Answers after this many never end.
    Stuck(usize),
    /// The first requests get status 503.
    Late(usize),
    /// The answer is compressed, and says so.
    Compressed,
    /// All requests are redirected.
    Moved,
    /// Counts of tokens that no sum can hold.
    Liar,
}

#[derive(Debug)]
struct ServerState {
    fault: StreamFault,
    delay: Duration,
    bodies: Mutex<Vec<Value>>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

/// Running server; it ends with the test process.
#[derive(Debug, Clone)]
pub(crate) struct StreamServer {
    pub(crate) url: String,
    state: Arc<ServerState>,
}

impl StreamServer {
    /// Starts a server that waits `delay` before each token.
    pub(crate) fn start(fault: StreamFault, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(ServerState {
            fault,
            delay,
            bodies: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || while state.serve(&stream).is_some() {});
            }
        });
        Self { url, state }
    }

    /// Returns the bodies of the requests, oldest first.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.state.bodies.lock().unwrap().clone()
    }

    /// Returns the largest number of requests that were served at once.
    pub(crate) fn most(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }
}

/// Writes a part of a body with chunked encoding.
fn part(mut to: &TcpStream, text: &str) -> Option<()> {
    to.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).ok()
}

fn refuse(to: &TcpStream, status: u16) -> Option<()> {
    answer(to, status, r#"{"error": {"message": "the reason"}}"#)
}

fn answer(mut to: &TcpStream, status: u16, text: &str) -> Option<()> {
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    to.write_all(head.as_bytes()).ok()
}

impl ServerState {
    /// Serves one request; none when the connection ends.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).ok()?;
        if first.starts_with("GET /v1/models ") {
            let entry = json!({ "id": "the model", "meta": { "n_vocab": 200 } });
            return answer(stream, 200, &json!({ "data": [entry] }).to_string());
        }
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        let number = {
            let mut bodies = self.bodies.lock().unwrap();
            bodies.push(body.clone());
            bodies.len()
        };
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.complete(stream, &first, &body, number)
    }

    fn complete(&self, mut to: &TcpStream, first: &str, body: &Value, number: usize) -> Option<()> {
        let chat = first.contains("/chat/");
        match self.fault {
            StreamFault::NoIds if body["prompt"].is_array() => return refuse(to, 400),
            StreamFault::Half(status) if number.is_multiple_of(2) => return refuse(to, status),
            StreamFault::Status(status) => return refuse(to, status),
            StreamFault::Late(until) if number <= until => return refuse(to, 503),
            StreamFault::Compressed => {
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nab";
                return to.write_all(head.as_bytes()).ok();
            }
            StreamFault::Moved => {
                let head = "HTTP/1.1 307 X\r\nlocation: http://h/v1\r\ncontent-length: 0\r\n\r\n";
                return to.write_all(head.as_bytes()).ok();
            }
            StreamFault::Html => return answer(to, 200, "<html>hello</html>"),
            StreamFault::Silent => {
                thread::sleep(Duration::from_secs(600));
                return None;
            }
            _ => {}
        }
        to.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .ok()?;
        if self.fault == StreamFault::Flood {
            while part(to, &"x".repeat(1 << 16)).is_some() {}
            return None;
        }
        let count = body["max_tokens"].as_u64().or(body["max_completion_tokens"].as_u64()).unwrap();
        if chat {
            part(
                to,
                "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n",
            )?;
        }
        let step = if self.fault == StreamFault::Pairs { 2 } else { 1 };
        let mut sent = 0;
        while sent < count || self.fault == StreamFault::Endless {
            if self.fault == StreamFault::Empty {
                break;
            }
            thread::sleep(self.delay);
            sent += step;
            let finish = if sent >= count { "\"length\"" } else { "null" };
            let inner = if chat { "\"delta\": {\"content\": \"a \"}" } else { "\"text\": \"a \"" };
            part(
                to,
                &format!("data: {{\"choices\": [{{{inner}, \"finish_reason\": {finish}}}]}}\n\n"),
            )?;
            match self.fault {
                StreamFault::Cut if sent == 2 => {
                    to.shutdown(std::net::Shutdown::Both).ok();
                    return None;
                }
                StreamFault::Garbage if sent == 2 => part(to, "data: {\"choices\": [\n\n")?,
                StreamFault::ErrorEvent => {
                    part(to, "data: {\"error\": {\"message\": \"out of memory\"}}\n\n")?;
                }
                StreamFault::Stuck(after) if number > after => {
                    thread::sleep(Duration::from_secs(600));
                }
                _ => {}
            }
        }
        let input = body["prompt"].as_array().map_or(7, Vec::len);
        match self.fault {
            StreamFault::NoUsage => {}
            StreamFault::Liar => {
                part(to, "data: {\"usage\": {\"completion_tokens\": 18446744073709551615}}\n\n")?;
            }
            _ => {
                let usage = json!({ "prompt_tokens": input, "completion_tokens": sent });
                part(to, &format!("data: {{\"choices\": [], \"usage\": {usage}}}\n\n"))?;
            }
        }
        // The client sends its next request as soon as it has the last event. Requests that fail stay
        // counted: no test of faults asks for the number in flight.
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        part(to, "data: [DONE]\n\n")?;
        if self.fault == StreamFault::Open {
            thread::sleep(Duration::from_secs(600));
        }
        to.write_all(b"0\r\n\r\n").ok()
    }
}
