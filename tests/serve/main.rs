//! Tests of `onboard serve`: answers, limits, and clients that misbehave.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod answers;
mod clients;
mod conversations;
mod limits;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../support/tool.rs"]
mod tool;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tool::onboard;

/// Longest wait for anything. No test asserts a shorter time.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running server; it is killed when the test ends.
struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Status and body of an answer.
#[derive(Debug, Clone, PartialEq)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Returns the answer of a successful request.
    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Fails unless this is an error of that status whose message has these words.
    #[track_caller]
    fn refused(&self, status: u16, words: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(words), "no `{words}` in {error}");
        assert!(error["type"].is_string() && error.get("param").is_some(), "{error}");
        error
    }
}

impl Serving {
    fn start(model: &Path, arguments: &[&str]) -> Self {
        Self::of(onboard().arg("serve").arg(model), arguments)
    }

    fn of(command: &mut Command, arguments: &[&str]) -> Self {
        Self::on(command, "0", arguments)
    }

    fn on(command: &mut Command, port: &str, arguments: &[&str]) -> Self {
        command.args(["--port", port, "--threads", "1"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("listening on http://");
        let address =
            address.split(',').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        Self { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request and leaves its answer unread.
    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {headers}Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    #[track_caller]
    fn get(&self, path: &str) -> Reply {
        reply(self.send("GET", path, "", b""))
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Reply {
        reply(self.send("POST", path, "", body.to_string().as_bytes()))
    }

    #[track_caller]
    fn complete(&self, body: &Value) -> Reply {
        self.post("/v1/completions", body)
    }

    #[track_caller]
    fn chat(&self, body: &Value) -> Reply {
        self.post("/v1/chat/completions", body)
    }

    /// Returns a counter of `/metrics`.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("onboard_{name} ")));
        line.unwrap_or_else(|| panic!("no `{name}` in {text}")).parse().unwrap()
    }

    /// Waits until a counter has a value.
    #[track_caller]
    fn wait(&self, name: &str, is_reached: impl Fn(f64) -> bool) {
        let begun = Instant::now();
        while !is_reached(self.metric(name)) {
            assert!(begun.elapsed() < PATIENCE, "`{name}` stays {}", self.metric(name));
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Reads an answer to its end.
#[track_caller]
fn reply(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        panic!("no head in {:?}", String::from_utf8_lossy(&bytes));
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let mut body = bytes[end + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        let mut tail = &body[..];
        let mut decoded = Vec::new();
        while let Some(at) = tail.windows(2).position(|two| two == b"\r\n") {
            let size =
                usize::from_str_radix(std::str::from_utf8(&tail[..at]).unwrap(), 16).unwrap();
            decoded.extend_from_slice(&tail[at + 2..at + 2 + size]);
            tail = &tail[at + 4 + size..];
        }
        body = decoded;
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head, body: String::from_utf8(body).unwrap() }
}

/// Returns the chunks of a stream, and checks its end.
#[track_caller]
fn chunks(reply: &Reply) -> Vec<Value> {
    assert!(reply.head.contains("content-type: text/event-stream"), "{reply:?}");
    let frames =
        reply.body.split("\n\n").filter(|frame| !frame.is_empty() && !frame.starts_with(':'));
    let mut data: Vec<&str> = frames.map(|frame| frame.strip_prefix("data: ").unwrap()).collect();
    assert_eq!(data.pop(), Some("[DONE]"));
    data.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn greedy(prompt: &Value, count: usize) -> Value {
    json!({
        "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    })
}

/// Returns a request with some fields added or replaced.
fn changed(body: &Value, change: Value) -> Value {
    let mut body = body.clone();
    match change {
        Value::Object(fields) => body.as_object_mut().unwrap().extend(fields),
        other => panic!("{other} is no object"),
    }
    body
}

fn ids(choice: &Value) -> Vec<u64> {
    choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// A prompt of so many tokens.
fn prompt(seed: usize, length: usize) -> Vec<usize> {
    (0..length).map(|n| 5 + (seed * 31 + n * 17) % 290).collect()
}
