//! Handles one connection: reads a request, writes a response, and closes the connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Fault, State, forms};

/// Response: status, and body.
pub(super) type Answer = (u16, String);

pub(super) fn serve(state: &State, stream: &TcpStream) {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    let mut length = 0_usize;
    let mut key = String::new();
    if reader.read_line(&mut first).is_err() || first.is_empty() {
        return;
    }
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => value.trim().clone_into(&mut key),
            _ => {}
        }
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let path = first.split(' ').nth(1).unwrap_or("/").to_owned();
    state.seen.lock().unwrap().push(format!("{} {key}", first.trim()));
    if state.key.as_ref().is_some_and(|expected| key != format!("Bearer {expected}")) {
        return write(stream, 401, r#"{"error": {"message": "Invalid API key"}}"#);
    }
    let works = body.is_object();
    let many = state.seen.lock().unwrap().iter().filter(|line| line.starts_with("POST")).count();
    match state.fault {
        Fault::Endless if works => {
            let mut out = stream;
            out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[").unwrap();
            while out.write_all(&[b' '; 1 << 12]).is_ok() {}
            return;
        }
        Fault::Slow if works => {
            thread::sleep(Duration::from_secs(4));
            return;
        }
        Fault::Garbage if works => return write(stream, 200, "<html>hello</html>"),
        Fault::Status(code) if works => {
            return write(stream, code, r#"{"error": {"message": "the model is having a rest"}}"#);
        }
        Fault::Loading => {
            return write(stream, 503, r#"{"error": {"message": "Loading model"}}"#);
        }
        Fault::Busy(code, times) if works && many <= times => return write(stream, code, "{}"),
        Fault::Tomorrow(code) if works => {
            let text = format!(
                "HTTP/1.1 {code} X\r\nretry-after: 86400\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
            );
            let mut out = stream;
            out.write_all(text.as_bytes()).ok();
            return;
        }
        Fault::ManyModels(bytes) if path == "/v1/models" => {
            let models = "{\"\":0},".repeat(bytes / 7);
            return write(stream, 200, &format!("{{\"data\":[{models}{{}}]}}"));
        }
        Fault::Redirect if works => {
            let text = "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.2:1/v1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let mut out = stream;
            out.write_all(text.as_bytes()).ok();
            return;
        }
        _ => {}
    }
    let (status, mut text) = forms::answer(state, &path, &body).unwrap_or_else(|| {
        (404, json!({ "error": { "message": format!("no {path}") } }).to_string())
    });
    if works && status == 200 {
        match state.fault {
            Fault::Nan => text = spoil(&text, "NaN"),
            Fault::Huge => text = spoil(&text, "-1e999"),
            Fault::Cut => text.truncate(text.len() / 2),
            _ => {}
        }
    }
    write(stream, status, &text);
}

/// Replaces the last log-probability by a word.
fn spoil(text: &str, word: &str) -> String {
    let Some(at) = text.rfind("-0.").or_else(|| text.rfind(":-")).or_else(|| text.rfind('-'))
    else {
        return text.to_owned();
    };
    let at = if text[at..].starts_with(':') { at + 1 } else { at };
    let end = text[at..].find([',', '}', ']']).unwrap_or(0);
    format!("{}{word}{}", &text[..at], &text[at + end..])
}

fn write(mut stream: &TcpStream, status: u16, text: &str) {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    // The client may have disconnected.
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes())).ok();
}
