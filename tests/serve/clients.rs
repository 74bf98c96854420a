//! Clients that go away, wait or read nothing, and servers that are stopped.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::limits::send_bytes;
use crate::tool::{self, fixture, onboard};
use crate::{Serving, greedy, prompt, reply};

#[test]
fn clients_that_go_away_free_their_slots() {
    let server = Serving::start(&fixture("llama"), &["--slots", "2", "--queue", "6"]);
    let mut body = greedy(&json!(prompt(3, 4)), 120);
    body["stream"] = json!(true);
    let bytes = body.to_string();
    let streams: Vec<TcpStream> =
        (0..6).map(|_| server.send("POST", "/v1/completions", "", bytes.as_bytes())).collect();
    server.wait("requests_in_flight", |count| count <= 6.0);
    drop(streams);
    server.wait("requests_in_flight", |count| count == 0.0);
    server.wait("slots_running", |count| count == 0.0);
    server.wait("queue_sequences", |count| count == 0.0);
    // Answers at once are cancelled too.
    body["stream"] = json!(false);
    let requests: Vec<TcpStream> = (0..6)
        .map(|_| server.send("POST", "/v1/completions", "", body.to_string().as_bytes()))
        .collect();
    drop(requests);
    server.wait("requests_in_flight", |count| count == 0.0);
    server.wait("slots_running", |count| count == 0.0);
    // A half of a request is no request.
    let mut half = server.connect();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nContent-").unwrap();
    drop(half);
    server.complete(&greedy(&json!([1, 2]), 3)).ok();
}

/// A client that reads nothing of its stream frees the slots after the time of a client.
#[test]
fn streams_that_nobody_reads_are_ended() {
    let server = Serving::start(
        &fixture("falcon_mamba"),
        &["--client-timeout", "0.3", "--request-timeout", "3000", "--slots", "4"],
    );
    // More than the buffers of the connection hold.
    let mut body = greedy(&json!([1, 2, 3]), 15_000);
    body["n"] = json!(4);
    body["logprobs"] = json!(50);
    body["stream"] = json!(true);
    let unread = server.send("POST", "/v1/completions", "", body.to_string().as_bytes());
    server.wait("slots_running", |count| count == 4.0);
    server.wait("slots_running", |count| count == 0.0);
    assert_eq!(server.metric("cancelled_sequences_total"), 4.0);
    drop(unread);
}

#[test]
fn slow_clients_are_cut_off() {
    let server = Serving::start(&fixture("lfm2"), &["--client-timeout", "0.3"]);
    // Neither a head nor a body that does not come keeps a connection.
    let mut closed = Vec::new();
    send_bytes(&server, b"POST /v1/completions HTT").read_to_end(&mut closed).ok();
    send_bytes(&server, b"").read_to_end(&mut closed).ok();
    let body = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let mut late = String::new();
    send_bytes(&server, body).read_to_string(&mut late).ok();
    assert!(late.starts_with("HTTP/1.1 408"), "{late}");
    server.wait("connections", |count| count <= 1.0);
    // A request has its time, too.
    let server =
        Serving::start(&fixture("lfm2"), &["--request-timeout", "0.05", "--prefill-chunk", "1"]);
    let body = greedy(&json!(vec![prompt(1, 100); 60]), 50);
    let error = server.complete(&body).refused(503, "took longer");
    assert_eq!(error["code"], "timeout");
    server.wait("slots_running", |count| count == 0.0);
}

/// Sends a signal to the server.
fn signal(server: &Serving, name: &str) {
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

#[test]
fn a_signal_lets_running_requests_finish() {
    let mut server = Serving::start(&fixture("lfm2"), &["--prefill-chunk", "1", "--slots", "1"]);
    let mut body = greedy(&json!(vec![prompt(1, 100); 40]), 50);
    body["logprobs"] = json!(5);
    let running = server.send("POST", "/v1/completions", "", body.to_string().as_bytes());
    server.wait("slots_running", |count| count == 1.0);
    signal(&server, "-TERM");
    // The process still takes connections, to say that it stops. A request before it knows would wait in the
    // queue until the end.
    while server.get("/health").status == 200 {}
    server.complete(&greedy(&json!([1, 2]), 1)).refused(503, "stopping");
    let answer = reply(running).ok();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 40);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    // Requests that do not finish in time are cut, and that is a success too.
    let mut server = Serving::start(
        &fixture("lfm2"),
        &["--prefill-chunk", "1", "--slots", "1", "--drain-timeout", "0.05"],
    );
    let body = greedy(&json!(vec![prompt(1, 100); 200]), 50).to_string();
    let running = server.send("POST", "/v1/completions", "", body.as_bytes());
    let streamed = body.replacen('{', "{\"stream\":true,", 1);
    let stream = server.send("POST", "/v1/completions", "", streamed.as_bytes());
    server.wait("slots_running", |count| count == 1.0);
    server.wait("requests_in_flight", |count| count == 2.0);
    signal(&server, "-INT");
    let error = reply(running).refused(503, "stopped before the answer was complete");
    assert_eq!(error["code"], "stopping");
    assert!(reply(stream).body.contains("stopped before the answer was complete"));
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    // A second signal stops at once.
    let mut server = Serving::start(&fixture("lfm2"), &["--prefill-chunk", "1", "--slots", "1"]);
    let _running = server.send("POST", "/v1/completions", "", body.as_bytes());
    server.wait("slots_running", |count| count == 1.0);
    signal(&server, "-TERM");
    thread::sleep(Duration::from_millis(200));
    signal(&server, "-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(143));
}

#[test]
fn half_requests_do_not_hold_up_a_stop() {
    let mut server =
        Serving::start(&fixture("lfm2"), &["--drain-timeout", "3600", "--client-timeout", "3600"]);
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n";
    let parts = ["", "POST /v1/compl", head, &format!("{head}{{\"prompt\"")];
    let mut waiting: Vec<TcpStream> = parts.iter().map(|_| server.connect()).collect();
    for (stream, part) in waiting.iter_mut().zip(parts) {
        stream.write_all(part.as_bytes()).unwrap();
    }
    // A connection that was used and is kept.
    let mut used_connection = server.connect();
    used_connection.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(used_connection.read(&mut [0; 4096]).unwrap() > 0);
    server.wait("connections", |count| count >= 5.0);
    signal(&server, "-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    // A body that was begun is answered.
    let mut text = String::new();
    waiting[3].read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
}

fn files(folders: &[&Path]) -> Vec<PathBuf> {
    let entries = folders.iter().flat_map(|folder| fs_err::read_dir(*folder).unwrap());
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Serves a model with another folder for temporary files.
fn serve(model: &Path, temporary: &Path) -> Command {
    let mut command = onboard();
    command.env("TMPDIR", temporary).arg("serve").arg(model);
    command
}

#[test]
fn a_killed_server_leaves_nothing_behind() {
    let model = tempfile::tempdir().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    tool::copy("lfm2", model.path());
    let folders = [model.path(), temporary.path()];
    let before = files(&folders);
    let mut command = serve(model.path(), temporary.path());
    let mut server = Serving::of(&mut command, &["--slots", "1", "--prefill-chunk", "1"]);
    let body = greedy(&json!(vec![prompt(1, 100); 200]), 50).to_string();
    let running = server.send("POST", "/v1/completions", "", body.as_bytes());
    server.wait("slots_running", |count| count == 1.0);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(running);
    assert_eq!(files(&folders), before);
    // The next server takes the same port, although connections to it were open.
    let port = server.address.port().to_string();
    let again = Serving::on(&mut serve(model.path(), temporary.path()), &port, &[]);
    assert_eq!(again.address, server.address);
    again.complete(&greedy(&json!([1, 2]), 1)).ok();
}
