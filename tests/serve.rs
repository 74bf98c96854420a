//! Tests of `onboard serve`: answers, limits, and clients that misbehave.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

#[expect(dead_code, reason = "other tests use the rest")]
mod tool;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tool::{fixture, onboard, parity, run};

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
        command.args(["--port", "0", "--threads", "1"]).args(arguments);
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

    fn get(&self, path: &str) -> Reply {
        reply(self.send("GET", path, "", b""))
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        reply(self.send("POST", path, "", body.to_string().as_bytes()))
    }

    fn complete(&self, body: &Value) -> Reply {
        self.post("/v1/completions", body)
    }

    /// Returns a counter of `/metrics`.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("onboard_{name} ")));
        line.unwrap_or_else(|| panic!("no `{name}` in {text}")).parse().unwrap()
    }

    /// Waits until a counter has a value.
    #[track_caller]
    fn wait(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        let begun = Instant::now();
        while !wanted(self.metric(name)) {
            assert!(begun.elapsed() < PATIENCE, "`{name}` stays {}", self.metric(name));
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Reads an answer to its end.
fn reply(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let mut body = bytes[end + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        let (mut rest, mut whole) = (&body[..], Vec::new());
        while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
            let size =
                usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
            whole.extend_from_slice(&rest[at + 2..at + 2 + size]);
            rest = &rest[at + 4 + size..];
        }
        body = whole;
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

fn ids(choice: &Value) -> Vec<u64> {
    choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// A prompt of so many tokens.
fn prompt(seed: usize, length: usize) -> Vec<usize> {
    (0..length).map(|n| 5 + (seed * 31 + n * 17) % 290).collect()
}

#[test]
fn answers_are_those_of_run() {
    let model = fixture("lfm2");
    let server = Serving::start(&model, &[]);
    let text = "The cat sat";
    let ran = run(onboard().arg("run").arg(&model).args(["--prompt", text, "-n", "24", "--json"]))
        .code(0);
    let ran = tool::json(&ran.out);
    let mut body = greedy(&json!(text), 24);
    body["ignore_eos"] = json!(false);
    let answer = server.complete(&body).ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["prompt_token_ids"], ran["prompt_tokens"]);
    let mut made = ids(choice);
    if choice["finish_reason"] == "stop" {
        made.pop();
    }
    assert_eq!(json!(made), ran["tokens"]);
    assert_eq!(choice["text"], ran["text"]);
    assert_eq!(answer["usage"]["completion_tokens"], ids(choice).len());
    // The same as token ids, and without the special tokens around a text.
    let again = server.complete(&greedy(&ran["prompt_tokens"], 24)).ok();
    assert_eq!(ids(&again["choices"][0])[..made.len()], made[..]);
    let tokens =
        server.post("/tokenize", &json!({ "prompt": text, "return_token_strs": true })).ok();
    assert_eq!(tokens["tokens"], ran["prompt_tokens"]);
    let plain =
        server.post("/tokenize", &json!({ "prompt": text, "add_special_tokens": false })).ok();
    let back = server.post("/detokenize", &json!({ "tokens": plain["tokens"] })).ok();
    assert_eq!(back["prompt"], text);
    for (path, key, want) in [
        ("/health", "status", "ok"),
        ("/health", "dtype", "bf16"),
        ("/health", "arithmetic", "q8"),
        ("/version", "server", "onboard"),
        ("/v1/models", "object", "list"),
        ("/v1/models/lfm2", "id", "lfm2"),
    ] {
        assert_eq!(server.get(path).ok()[key], want, "{path}");
    }
    server.get("/v1/models/other").refused(404, "`other` is not served");
    server.get("/../../etc/passwd").refused(404, "nothing at this path");
}

#[test]
fn scores_of_prompts_are_those_of_the_engine() {
    let model = fixture("llama");
    let server = Serving::start(&model, &["--dtype", "f32", "--prefill-chunk", "5"]);
    let prompt = prompt(1, 23);
    let ran = run(onboard()
        .arg("run")
        .arg(&model)
        .args(["-n", "1", "--json", "--dtype", "f32", "--tokens"])
        .arg(prompt.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")))
    .code(0);
    let next = tool::json(&ran.out)["tokens"][0].as_u64().unwrap();
    // As the harness of evaluations asks: the prompt, and one token that is not read.
    let body = json!({
        "prompt": [prompt], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true, "seed": 1234,
        "prompt_logprobs": -1, "return_token_ids": true,
    });
    let answer = server.complete(&body).ok();
    let choice = &answer["choices"][0];
    let lists = &choice["logprobs"];
    let token_logprobs = lists["token_logprobs"].as_array().unwrap();
    assert_eq!(token_logprobs.len(), prompt.len() + 1);
    assert_eq!((&token_logprobs[0], &lists["top_logprobs"][0]), (&Value::Null, &Value::Null));
    let rows = choice["prompt_logprobs"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]), (prompt.len(), &Value::Null));
    for (position, row) in rows.iter().enumerate().skip(1) {
        let row = row.as_object().unwrap();
        let sum: f64 = row.values().map(|entry| entry["logprob"].as_f64().unwrap().exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "row {position} sums to {sum}");
        let own = &row[&prompt[position].to_string()];
        assert_eq!(own["logprob"], token_logprobs[position], "row {position}");
        let better =
            row.values().filter(|entry| entry["logprob"].as_f64() > own["logprob"].as_f64());
        assert!(better.count() < own["rank"].as_u64().unwrap() as usize);
        // The likeliest token is the one with rank 1.
        let first = row.values().find(|entry| entry["rank"] == 1).unwrap();
        let top = lists["top_logprobs"][position].as_object().unwrap();
        assert!(top.values().any(|value| *value == first["logprob"]), "row {position}");
    }
    assert_eq!(ids(choice), [next]);
    let length = choice["text"].as_str().unwrap().chars().count() as u64;
    let offsets: Vec<u64> =
        lists["text_offset"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap()).collect();
    assert!(offsets.is_sorted() && offsets.iter().all(|at| *at <= length), "{offsets:?}");
    assert_eq!(offsets.len(), lists["tokens"].as_array().unwrap().len());
    // Nothing is generated, and the scores are the same with other chunks.
    let mut body = body;
    body["max_tokens"] = json!(0);
    let whole = Serving::start(&model, &["--dtype", "f32"]).complete(&body).ok();
    assert_eq!(whole["choices"][0]["prompt_logprobs"], choice["prompt_logprobs"]);
    assert_eq!(whole["usage"]["completion_tokens"], 0);
}

#[test]
fn a_served_model_is_proven_over_http() {
    for name in ["lfm2", "llama"] {
        let model = fixture(name);
        let server = Serving::start(&model, &["--dtype", "f32"]);
        let url = format!("http://{}", server.address);
        let check = |engine: &str| {
            let mut command = parity();
            command
                .env_remove("ONBOARD_API_KEY")
                .arg("check")
                .arg(&model)
                .args(["--engine", engine]);
            run(&mut command)
        };
        let ran = check(&url).code(0).prints("AGREE in 1 run").prints("agree with one prefill");
        assert!(
            ran.out.contains(&format!("on onboard {}", env!("CARGO_PKG_VERSION"))),
            "{}",
            ran.out
        );
        assert!(ran.out.contains("f32  prefill") && ran.out.contains("f32  decode"), "{}", ran.out);
    }
}

#[test]
fn an_answer_is_the_same_in_any_batch() {
    let model = fixture("lfm2");
    let server = Serving::start(&model, &["--prefill-chunk", "32", "--slots", "9"]);
    let bodies: Vec<Value> = (0..64)
        .map(|n| {
            let mut body = greedy(&json!(prompt(n % 40, 1 + n * 2 % 90)), 1 + n % 30);
            body["logprobs"] = json!(3);
            if n % 2 == 1 {
                (body["temperature"], body["seed"]) = (json!(0.9), json!(n));
                body["top_p"] = json!(0.95);
            }
            body
        })
        .collect();
    let answer = |server: &Serving, body: &Value| server.complete(body).ok()["choices"].clone();
    let together: Vec<Value> = thread::scope(|scope| {
        let running: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| answer(&server, body))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let alone = Serving::start(&model, &["--slots", "1", "--keep", "0"]);
    for (body, found) in bodies.iter().zip(together) {
        assert_eq!(answer(&alone, body), found, "{body}");
    }
    server.wait("slots_running", |count| count == 0.0);
    // A prompt that goes on where an answer ended takes its slot over.
    let long = prompt(7, 60);
    let first = server.complete(&greedy(&json!(long), 20)).ok();
    let more: Vec<u64> =
        long.iter().map(|id| *id as u64).chain(ids(&first["choices"][0])).chain([9, 8]).collect();
    let reused = server.metric("reused_tokens_total");
    let second = greedy(&json!(more), 20);
    assert_eq!(answer(&server, &second), answer(&alone, &second));
    assert_eq!(server.metric("reused_tokens_total") - reused, 79.0);
}

#[test]
fn streams_have_the_text_and_ids_of_whole_answers() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    for (temperature, stop) in [(0.0, json!(null)), (1.5, json!(null)), (1.5, json!(["e", "a"]))] {
        for seed in 0..12 {
            let mut body = json!({
                "prompt": "Größe: ", "max_tokens": 40, "temperature": temperature, "seed": seed, "stop": stop,
                "ignore_eos": true, "return_token_ids": true, "logprobs": 2,
            });
            let whole = server.complete(&body).ok();
            body["stream"] = json!(true);
            body["stream_options"] = json!({ "include_usage": true });
            let mut parts = chunks(&server.complete(&body));
            assert_eq!(parts.pop().unwrap()["usage"], whole["usage"]);
            let (mut text, mut ids, mut logprobs) = (String::new(), Vec::new(), Vec::new());
            for part in &parts {
                let choice = &part["choices"][0];
                let piece = choice["text"].as_str().unwrap();
                text.push_str(piece);
                ids.extend(choice["token_ids"].as_array().unwrap().clone());
                logprobs.extend(choice["logprobs"]["token_logprobs"].as_array().unwrap().clone());
            }
            let choice = &whole["choices"][0];
            assert_eq!(choice["text"], text);
            assert_eq!(choice["token_ids"], json!(ids));
            assert_eq!(choice["logprobs"]["token_logprobs"], json!(logprobs));
            assert_eq!(
                parts.last().unwrap()["choices"][0]["finish_reason"],
                choice["finish_reason"]
            );
            if stop.is_null() {
                // The text of the whole sequence, decoded at once, ends with the text of the answer.
                let all: Vec<Value> = parts[0]["choices"][0]["prompt_token_ids"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .chain(&ids)
                    .cloned()
                    .collect();
                let body = json!({ "tokens": all, "skip_special_tokens": true });
                let back = server.post("/detokenize", &body).ok();
                assert_eq!(back["prompt"], format!("Größe: {text}"));
            } else {
                assert!(!text.contains(['e', 'a']), "{text}");
            }
        }
    }
}

#[test]
fn requests_that_cannot_be_answered_say_why() {
    let server = Serving::start(
        &fixture("lfm2"),
        &["--max-prompts", "4", "--max-body", "1", "--max-scores", "900"],
    );
    let with = |key: &str, value: Value| {
        let mut body = greedy(&json!([1, 2, 3]), 4);
        body[key] = value;
        server.complete(&body)
    };
    with("max_tokens", json!(4)).ok();
    let error = with("guided_json", json!({})).refused(400, "unknown field `guided_json`");
    assert_eq!((&error["param"], &error["code"]), (&json!("guided_json"), &json!("unknown_field")));
    assert!(error["message"].as_str().unwrap().contains("`max_tokens`"), "{error}");
    for (key, value, words) in [
        ("model", json!("gpt"), ""),
        ("prompt", json!([]), "0 prompts"),
        ("prompt", json!([[]]), "no tokens"),
        ("prompt", json!(["a", 3]), "texts and token ids"),
        ("prompt", json!([99999]), "ids below 312"),
        ("prompt", json!([[1], [1], [1], [1], [1]]), "expected 1 to 4"),
        ("prompt", json!(prompt(0, 161)), "this server handles 160"),
        ("max_tokens", json!(-1), "max_tokens"),
        ("max_tokens", json!(100_000), "this server handles 160"),
        ("temperature", json!(-1), "0 or more"),
        ("temperature", json!("hot"), "temperature"),
        ("top_p", json!(0), "above 0"),
        ("top_k", json!(-5), "1 or more"),
        ("n", json!(9), "expected 1 to 4"),
        ("best_of", json!(3), "not supported"),
        ("suffix", json!("end"), "not supported"),
        ("presence_penalty", json!(0.5), "not supported"),
        ("logit_bias", json!({ "x": 1 }), "token ids below 312"),
        ("logit_bias", json!({ "5": 1000 }), "-100 to 100"),
        ("stop", json!([""]), "empty text"),
        ("prompt_logprobs", json!(-1), "at most 900"),
        ("prompt_logprobs", json!(-2), "-1 for all"),
        ("stream_options", json!({ "include_usage": true }), "needs `stream`"),
    ] {
        let reply = with(key, value.clone());
        if key == "model" {
            reply.refused(404, "expected `lfm2`");
        } else {
            assert_eq!(
                reply.refused(400, words)["param"].as_str().unwrap().split(['.', '[']).next(),
                Some(key),
                "{value}"
            );
        }
    }
    with("presence_penalty", json!(0)).ok();
    let nested = "[".repeat(100_000);
    let raw =
        |headers: &str, body: &[u8]| reply(server.send("POST", "/v1/completions", headers, body));
    for body in [
        &b"{\"prompt\": \"\xff\xfe\"}"[..],
        b"{",
        b"",
        b"{} {}",
        b"[1]",
        b"\"x\"",
        nested.as_bytes(),
    ] {
        let reply = raw("", body);
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    reply(stream).refused(415, "application/json");
    let reply = reply(server.send("DELETE", "/v1/completions", "", b""));
    reply.refused(405, "POST");
    // A body of 100 MB is refused, and the client that sends all of it gets the answer.
    let large = json!({ "prompt": "x".repeat(100_000_000) });
    server.complete(&large).refused(413, "more than 1048576 bytes");
    // The same without a length before.
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..64 {
        stream.write_all(b"10000\r\n").unwrap();
        stream.write_all(" ".repeat(65536).as_bytes()).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    self::reply(stream).refused(413, "more than 1048576 bytes");
    // A client that asks first does not send it.
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n").unwrap();
    self::reply(stream).refused(413, "more than 1048576 bytes");
    raw("Content-Encoding: gzip\r\n", b"{}").refused(415, "`gzip`");
    raw("Content-Encoding: identity\r\n", b"{\"prompt\":[1],\"max_tokens\":1}").ok();
    raw("", b"[\"lfm2\", [1, 2], 3]").refused(400, "expected a JSON object");
    for (key, value, words) in [
        ("stop", json!(1), "a text or a list of texts"),
        ("stop_token_ids", json!([4_294_967_295_u32]), "ids below 312"),
        ("temperature", json!(1e308), "is 1e+308"),
        ("stream_options", json!([true]), "expected a JSON object"),
        ("n", json!("x"), "an integer of 0 or more"),
        ("store", json!(true), "or give false"),
    ] {
        let error = with(key, value).refused(400, words);
        assert_eq!(error["param"], key);
    }
    server.get("/health").ok();
}

#[test]
fn clients_that_go_away_free_their_slots() {
    let server = Serving::start(&fixture("llama"), &["--slots", "2", "--queue", "6"]);
    let mut body = greedy(&json!(prompt(3, 4)), 120);
    body["stream"] = json!(true);
    let bytes = body.to_string();
    let begin = || server.send("POST", "/v1/completions", "", bytes.as_bytes());
    let streams: Vec<TcpStream> = (0..6).map(|_| begin()).collect();
    server.wait("requests_in_flight", |count| count <= 6.0);
    drop(streams);
    server.wait("requests_in_flight", |count| count == 0.0);
    server.wait("slots_running", |count| count == 0.0);
    server.wait("queue_sequences", |count| count == 0.0);
    // Answers at once are cancelled too.
    body["stream"] = json!(false);
    let whole: Vec<TcpStream> = (0..6)
        .map(|_| server.send("POST", "/v1/completions", "", body.to_string().as_bytes()))
        .collect();
    drop(whole);
    server.wait("requests_in_flight", |count| count == 0.0);
    server.wait("slots_running", |count| count == 0.0);
    // A half of a request is no request.
    let mut half = server.connect();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nContent-").unwrap();
    drop(half);
    server.complete(&greedy(&json!([1, 2]), 3)).ok();
}

#[test]
fn a_full_queue_refuses_more() {
    let server =
        Serving::start(&fixture("lfm2"), &["--slots", "1", "--queue", "3", "--prefill-chunk", "1"]);
    let mut body = greedy(&json!([prompt(1, 100), prompt(2, 100), prompt(3, 100)]), 50);
    let (mut refused, mut good) = (0, 0);
    thread::scope(|scope| {
        let all: Vec<_> = (0..12).map(|_| scope.spawn(|| server.complete(&body))).collect();
        for one in all {
            let reply = one.join().unwrap();
            if reply.status == 429 {
                assert_eq!(reply.refused(429, "the limit of 3")["type"], "rate_limit_error");
                assert!(reply.head.contains("retry-after:"), "{}", reply.head);
                refused += 1;
            } else {
                assert_eq!(reply.ok()["choices"].as_array().unwrap().len(), 3);
                good += 1;
            }
        }
    });
    assert!(refused > 0 && good > 0, "{refused} refused, {good} answered");
    // Free slots take what the queue has no room for, and more than both is never taken.
    server.wait("slots_running", |count| count == 0.0);
    body["prompt"] = json!(vec![prompt(1, 5); 4]);
    server.complete(&body).ok();
    body["prompt"] = json!(vec![prompt(1, 5); 5]);
    server.complete(&body).refused(400, "at most 4 at a time");
}

#[test]
fn slow_clients_are_cut_off() {
    let server = Serving::start(&fixture("lfm2"), &["--client-timeout", "0.3"]);
    let send = |bytes: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        stream
    };
    // Neither a head nor a body that does not come keeps a connection.
    let mut closed = Vec::new();
    send(b"POST /v1/completions HTT").read_to_end(&mut closed).ok();
    send(b"").read_to_end(&mut closed).ok();
    let body = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let mut late = String::new();
    send(body).read_to_string(&mut late).ok();
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

#[test]
fn a_key_is_needed_if_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    fs_err::write(&file, "secret-17\n").unwrap();
    let path = file.to_str().unwrap().to_owned();
    let from_file = Serving::start(&fixture("lfm2"), &["--api-key-file", &path]);
    let from_env = Serving::of(
        onboard().arg("serve").arg(fixture("lfm2")).env("ONBOARD_API_KEY", "secret-17"),
        &[],
    );
    for server in [from_file, from_env] {
        let body = greedy(&json!([1, 2]), 2).to_string();
        let with =
            |headers: &str| reply(server.send("POST", "/v1/completions", headers, body.as_bytes()));
        for headers in [
            "",
            "Authorization: Bearer secret-1\r\n",
            "Authorization: Bearer secret-177\r\n",
            "Authorization: secret-17\r\n",
            "Authorization: Basic secret-17\r\n",
        ] {
            let error = with(headers).refused(401, "Authorization: Bearer KEY");
            assert_eq!(error["type"], "authentication_error");
        }
        with("Authorization: Bearer secret-17\r\n").ok();
        server.get("/metrics").refused(401, "key");
        server.get("/v1/models").refused(401, "key");
        server.get("/health").ok();
    }
    fs_err::write(&file, "\n").unwrap();
    run(onboard().arg("serve").arg(fixture("lfm2")).args(["--api-key-file", &path]))
        .code(2)
        .says("is empty");
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
    // The process still takes connections, to say that it stops.
    let refused = loop {
        let reply = server.complete(&greedy(&json!([1, 2]), 1));
        if reply.status != 200 {
            break reply;
        }
    };
    refused.refused(503, "stopping");
    let whole = reply(running).ok();
    assert_eq!(whole["choices"].as_array().unwrap().len(), 40);
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
fn conversations_are_rendered_and_answered() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let chat = |body: &Value| server.post("/v1/chat/completions", body);
    let messages = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Größe?" }]);
    let body = json!({
        "model": "lfm2", "messages": messages, "max_completion_tokens": 20, "temperature": 0, "ignore_eos": true,
        "logprobs": true, "top_logprobs": 2, "return_token_ids": true,
    });
    let whole = chat(&body).ok();
    let text = "<|startoftext|><system>\nBe brief.\n<user>\nGröße?\n<assistant>\n";
    let prompt =
        server.post("/tokenize", &json!({ "prompt": text, "add_special_tokens": false })).ok();
    assert_eq!(whole["prompt_token_ids"], prompt["tokens"]);
    let same = server.post("/tokenize", &json!({ "messages": messages })).ok();
    assert_eq!(same["tokens"], prompt["tokens"]);
    // The same prompt as a completion has the same tokens.
    let plain = server.complete(&greedy(&prompt["tokens"], 20)).ok();
    let choice = &whole["choices"][0];
    assert_eq!(ids(choice), ids(&plain["choices"][0]));
    assert_eq!(choice["message"]["content"], plain["choices"][0]["text"]);
    assert_eq!(choice["finish_reason"], "length");
    let scores = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(scores.len(), 20);
    assert!(scores.iter().all(|score| score["top_logprobs"][0]["logprob"] == score["logprob"]));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({ "include_usage": true });
    let mut parts = chunks(&chat(&streamed));
    assert_eq!(parts.pop().unwrap()["usage"], whole["usage"]);
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    let (mut text, mut made, mut found) = (String::new(), Vec::new(), Vec::new());
    for part in &parts {
        let choice = &part["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        made.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        found.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(choice["message"]["content"], text);
    assert_eq!(
        (&choice["token_ids"], &choice["logprobs"]["content"]),
        (&json!(made), &json!(found))
    );
    assert_eq!(parts.last().unwrap()["choices"][0]["finish_reason"], "length");
    for (key, value, words) in [
        ("tool_choice", json!("required"), "no `tools`"),
        ("tool_choice", json!({ "type": "function", "function": { "name": "f" } }), "no `tools`"),
        ("response_format", json!({ "type": "xml" }), "expected `text`"),
        ("messages", json!([]), "no messages"),
        ("messages", json!(["Hi"]), "an object"),
        ("tools", json!([{ "type": "function" }]), "function.name"),
        ("functions", json!([{}]), "not supported"),
        ("max_completion_tokens", json!(1000), "handles 160"),
    ] {
        let mut body = body.clone();
        body[key] = value;
        chat(&body).refused(400, words);
    }
    // A model without a template has completions alone.
    let dir = tempfile::tempdir().unwrap();
    tool::copy("lfm2", dir.path());
    fs_err::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    let server = Serving::start(dir.path(), &[]);
    server
        .post("/v1/chat/completions", &json!({ "messages": messages }))
        .refused(400, "no chat template");
}

/// A copy of a fixture that takes longer sequences, and whose prompts end with the variable `tail`.
fn talking(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    tool::copy(name, dir.path());
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs_err::read_to_string(&path).unwrap()).unwrap();
    config["max_position_embeddings"] = json!(4096);
    fs_err::write(&path, config.to_string()).unwrap();
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}{{ tail }}";
    fs_err::write(dir.path().join("chat_template.jinja"), template).unwrap();
    dir
}

/// Tools whose arguments a random model ends in time.
fn tools() -> Value {
    let place = json!({
        "type": "object",
        "properties": { "lat": { "type": "integer", "minimum": -90, "maximum": 90 } },
        "required": ["lat"],
        "additionalProperties": false,
    });
    json!([
        { "type": "function", "function": { "name": "get_weather", "parameters": {
            "type": "object",
            "properties": {
                "city": { "enum": ["Köln", "Lima"] },
                "days": { "type": "integer", "minimum": 1, "maximum": 9 },
                "precise": { "type": "boolean" },
                "place": { "$ref": "#/$defs/Place" },
            },
            "required": ["city", "days", "place"],
            "$defs": { "Place": place },
        } } },
        { "type": "function", "function": { "name": "now", "strict": true } },
    ])
}

/// Checks the calls of a message, and returns them as name and arguments.
#[track_caller]
fn sound_calls(message: &Value) -> Vec<(String, Value)> {
    assert!(message["content"].is_null(), "{message}");
    let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{message}")).iter();
    let calls: Vec<(String, Value)> = calls
        .map(|call| {
            assert_eq!(call["type"], "function");
            let function = &call["function"];
            let arguments = serde_json::from_str(function["arguments"].as_str().unwrap());
            (function["name"].as_str().unwrap().to_owned(), arguments.unwrap())
        })
        .collect();
    for (name, arguments) in &calls {
        if name == "now" {
            assert_eq!(arguments, &json!({}));
            continue;
        }
        assert!(["Köln", "Lima"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
        assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
        assert!(arguments.get("precise").is_none_or(Value::is_boolean), "{arguments}");
        let lat = arguments["place"]["lat"].as_i64().unwrap();
        assert!((-90..=90).contains(&lat), "{arguments}");
        let known = ["city", "days", "precise", "place"];
        assert!(arguments.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())));
    }
    calls
}

#[test]
fn calls_are_forced_in_each_format() {
    let model = talking("lfm2");
    let (mut formats, mut several) = (0, 0);
    for format in chat::Format::all().iter().filter(|format| format.has_calls()) {
        let server = Serving::start(model.path(), &["--tool-format", format.name()]);
        let chat = |body: &Value| server.post("/v1/chat/completions", body);
        // The prompt ends behind the reasoning, where a random model would stay for long.
        let tail = format.reasoning().map_or("", |marks| marks.1);
        for seed in 0..3 {
            let mut body = json!({
                "messages": [{ "role": "user", "content": "Weather?" }], "tools": tools(), "tool_choice": "required",
                "temperature": if seed == 0 { 0.0 } else { 1.0 }, "seed": seed, "max_completion_tokens": 1500,
                "chat_template_kwargs": { "tail": tail }, "parallel_tool_calls": false,
            });
            let whole = chat(&body).ok();
            let choice = &whole["choices"][0];
            let name = format.name();
            assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {whole}");
            let calls = sound_calls(&choice["message"]);
            assert_eq!(calls.len(), 1, "{name}");
            // A stream has the same calls in pieces.
            body["stream"] = json!(true);
            let (mut streamed, mut pieces): (Vec<(String, String)>, _) = (Vec::new(), 0);
            for chunk in chunks(&chat(&body)) {
                let delta = &chunk["choices"][0]["delta"];
                assert!(delta.get("content").is_none_or(|text| text == ""), "{name}: {delta}");
                for call in delta["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    if let Some(name) = function["name"].as_str() {
                        assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                        assert_eq!(call["index"], streamed.len());
                        streamed.push((name.to_owned(), String::new()));
                    }
                    pieces += 1;
                    streamed
                        .last_mut()
                        .unwrap()
                        .1
                        .push_str(function["arguments"].as_str().unwrap());
                }
            }
            let read = |(name, text): &(String, String)| (name.clone(), tool::json(text));
            assert_eq!(streamed.iter().map(read).collect::<Vec<_>>(), calls, "{name}");
            assert!(pieces > calls.len(), "{name}");
            // Calls of one tool, and several calls: a random model may make more than the limit allows.
            body["stream"] = json!(false);
            body["parallel_tool_calls"] = json!(true);
            let more = chat(&body).ok();
            if more["choices"][0]["finish_reason"] == "tool_calls" {
                several += usize::from(sound_calls(&more["choices"][0]["message"]).len() > 1);
            } else {
                assert_eq!(more["choices"][0]["finish_reason"], "length", "{name}");
            }
            body["tool_choice"] = json!({ "type": "function", "function": { "name": "now" } });
            let named = chat(&body).ok();
            let found = sound_calls(&named["choices"][0]["message"]);
            assert_eq!(found, [("now".to_owned(), json!({}))], "{name}");
        }
        formats += 1;
    }
    assert!(formats > 40, "{formats} formats");
    assert!(several > 8, "{several} answers with several calls");
}

#[test]
fn answers_keep_their_constraint_in_any_batch() {
    let model = talking("lfm2");
    let schema = json!({
        "type": "object",
        "properties": { "z": { "type": "integer", "minimum": 0, "maximum": 99 }, "a": { "enum": ["x", "y", null] } },
        "required": ["z", "a"],
        "additionalProperties": false,
    });
    let named = json!({ "type": "json_schema", "json_schema": { "name": "pair", "strict": true, "schema": schema } });
    let rules = [
        json!({ "response_format": named }),
        json!({ "structured_outputs": { "json": schema.to_string() } }),
        json!({ "structured_outputs": { "regex": "(ab|c){3}" } }),
        json!({ "structured_outputs": { "choice": ["good", "bad", "größer"] } }),
        json!({ "structured_outputs": { "grammar": "start: \"<\" NAME \">\"\nNAME: /[a-z]{1,4}/" } }),
        json!({}),
    ];
    let holds = |rule: usize, text: &str| match rule {
        0 | 1 => {
            let value = tool::json(text);
            let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
            keys == ["z", "a"] && (0..100).contains(&value["z"].as_i64().unwrap())
        }
        2 => text.replace("ab", "c") == "ccc",
        3 => ["good", "bad", "größer"].contains(&text),
        4 => text.len() > 2 && text.starts_with('<') && text.ends_with('>'),
        _ => true,
    };
    let body = |n: usize| {
        let mut body = json!({ "max_tokens": 200, "seed": n, "temperature": if n.is_multiple_of(3) { 0.0 } else { 1.2 }, "n": 1 + n % 2 });
        for (key, value) in rules[n % rules.len()].as_object().unwrap() {
            body[key] = value.clone();
        }
        if n % 4 < 2 {
            body["prompt"] = json!("The answer: ");
        } else {
            body["messages"] = json!([{ "role": "user", "content": "Answer!" }]);
        }
        body
    };
    let path = |body: &Value| {
        if body.get("prompt").is_some() { "/v1/completions" } else { "/v1/chat/completions" }
    };
    let answer =
        |server: &Serving, body: &Value| server.post(path(body), body).ok()["choices"].clone();
    let server = Serving::start(model.path(), &["--slots", "7", "--prefill-chunk", "9"]);
    let bodies: Vec<Value> = (0..36).map(body).collect();
    let together: Vec<Value> = thread::scope(|scope| {
        let running: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| answer(&server, body))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let alone = Serving::start(model.path(), &["--slots", "1", "--keep", "0"]);
    for (n, (body, found)) in bodies.iter().zip(together).enumerate() {
        assert_eq!(answer(&alone, body), found, "{body}");
        for choice in found.as_array().unwrap() {
            let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
            assert!(holds(n % rules.len(), text), "{body}: {text}");
            if n % rules.len() < 5 {
                assert_eq!(choice["finish_reason"], "stop", "{body}");
            }
        }
    }
    // An answer that is cut says so, and log-probabilities are those of the model.
    let mut cut = bodies[0].clone();
    (cut["max_tokens"], cut["logprobs"]) = (json!(2), json!(3));
    let cut = &answer(&server, &cut)[0];
    assert_eq!(cut["finish_reason"], "length");
    // Another vocabulary, and one from the keys of a GGUF file.
    let other = talking("llama");
    let file = other.path().join("model.gguf");
    run(tool::convert().arg(other.path()).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    for model in [other.path(), &file] {
        let server = Serving::start(model, &[]);
        for n in [0, 1, 2, 3, 4] {
            let mut body = body(n);
            body.as_object_mut().unwrap().remove("messages");
            body["prompt"] = json!("The answer: ");
            for choice in answer(&server, &body).as_array().unwrap() {
                assert!(
                    holds(n, choice["text"].as_str().unwrap()),
                    "{}: {choice}",
                    model.display()
                );
            }
        }
    }
}

#[test]
fn constraints_that_cannot_be_kept_are_refused() {
    let model = talking("lfm2");
    let server = Serving::start(model.path(), &[]);
    let complete = |outputs: Value| {
        server.complete(&json!({ "prompt": "x", "max_tokens": 20, "temperature": 0, "structured_outputs": outputs }))
    };
    let schema = |schema: Value| complete(json!({ "json": schema }));
    for (reply, words) in [
        (schema(json!({ "$ref": "https://example.com/s.json" })), "nothing else is read"),
        (schema(json!({ "$ref": "/etc/passwd" })), "nothing else is read"),
        (schema(json!({ "type": "object", "not": {} })), "\"not\""),
        (schema(json!({ "type": "string", "minLength": 3, "maxLength": 1 })), "nsatisfiable"),
        (schema(json!({ "enum": (0..1_000_000).collect::<Vec<_>>() })), "at most 262144"),
        (complete(json!({ "regex": "(" })), "cannot be kept"),
        (complete(json!({ "regex": "a".repeat(10_000) })), "at most 8192"),
        (complete(json!({ "grammar": "start: missing" })), "missing"),
        (complete(json!({ "choice": [] })), "choices"),
        (complete(json!({ "structural_tag": "x" })), "not supported"),
        (complete(json!({})), "no rule"),
    ] {
        let error = reply.refused(400, words);
        assert!(error["param"].as_str().unwrap().starts_with("structured_outputs"), "{error}");
    }
    let large = "x".repeat(10 << 20);
    complete(json!({ "json": { "description": large } })).refused(413, "more than");
    // The vocabulary has no token for a part of the text that is found out on the way.
    for regex in ["(a{1000}){1000}", "(?:a?){2000}a{2000}", "(.*a.{20}){20}"] {
        let reply = complete(json!({ "regex": regex }));
        assert!([200, 400].contains(&reply.status), "{regex}: {reply:?}");
    }
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let chat = |change: Value| {
        let mut body = json!({ "messages": messages, "tools": tools(), "max_tokens": 10 });
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        server.post("/v1/chat/completions", &body)
    };
    let named =
        |name: &str| json!({ "tool_choice": { "type": "function", "function": { "name": name } } });
    chat(named("other")).refused(400, "not among `tools`");
    chat(json!({ "tool_choice": "required", "tools": [] })).refused(400, "no `tools`");
    chat(json!({ "tool_choice": "any" })).refused(400, "expected `auto`");
    let tool = |parameters: Value| json!({ "tool_choice": "required", "tools": [{ "type": "function", "function": { "name": "f", "parameters": parameters } }] });
    chat(tool(json!({ "type": "array" }))).refused(400, "expected \"object\"");
    chat(tool(json!({ "properties": { "a": { "$ref": "http://x" } } })))
        .refused(400, "nothing else");
    // The server goes on.
    complete(json!({ "choice": ["yes"] })).ok();
}

/// A text of many tokens.
fn long_text(bytes: usize) -> String {
    "aé漢 ".repeat(bytes / 7)
}

#[test]
fn texts_are_bounded_before_they_are_tokenized() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let text = long_text(300_000);
    let messages = json!([{ "role": "user", "content": text }]);
    for (path, body, param) in [
        ("/v1/completions", json!({ "prompt": text }), "prompt"),
        ("/tokenize", json!({ "prompt": text }), "prompt"),
        ("/tokenize", json!({ "messages": messages }), "messages"),
        ("/v1/chat/completions", json!({ "messages": messages }), "messages"),
    ] {
        let error = server.post(path, &body).refused(400, "this server handles 160 tokens");
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("context_length_exceeded"), &json!(param)),
            "{path}"
        );
    }
}

#[test]
fn long_texts_do_not_hold_up_short_ones() {
    let server = Serving::start(&fixture("falcon_mamba"), &[]);
    let long = json!({ "prompt": long_text(1_500_000) }).to_string();
    let waiting: Vec<TcpStream> =
        (0..10).map(|_| server.send("POST", "/tokenize", "", long.as_bytes())).collect();
    server.wait("requests_in_flight", |count| count == 10.0);
    server.complete(&json!({ "prompt": "Hi", "max_tokens": 1 })).ok();
    assert!(server.metric("requests_in_flight") > 5.0);
    // What clients no longer wait for is not begun.
    drop(waiting);
    server.wait("requests_in_flight", |count| count == 0.0);
    let short = server.post("/tokenize", &json!({ "prompt": long_text(100_000) })).ok();
    assert_eq!(short["count"], json!(short["tokens"].as_array().unwrap().len()));
}

#[test]
fn late_requests_are_told_so() {
    let server = Serving::start(
        &fixture("falcon_mamba"),
        &["--slots", "2", "--queue", "4", "--request-timeout", "1"],
    );
    let body = |streamed: bool| {
        let body = json!({ "prompt": "Hello", "max_tokens": 30000, "ignore_eos": true, "stream": streamed });
        server.complete(&body)
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|n| scope.spawn(move || (n, body(n % 2 == 0)))).collect();
        for one in all {
            let (n, reply) = one.join().unwrap();
            if n % 2 == 0 {
                assert!(reply.body.contains("\"code\":\"timeout\""), "{}", reply.body);
            } else {
                assert_eq!(reply.refused(503, "took longer")["code"], "timeout");
            }
        }
    });
}

#[test]
fn large_bodies_do_not_keep_small_requests_out() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let most = 8 << 20;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {most}\r\n\r\n"
    );
    let part = vec![b' '; most - 100];
    let mut large: Vec<TcpStream> = Vec::new();
    for _ in 0..9 {
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).unwrap();
        // The last ones may be refused before all of it is sent.
        stream.write_all(&part).ok();
        large.push(stream);
    }
    let padded = |bytes: usize| {
        let body = format!("{}{}", greedy(&json!([1, 2]), 1), " ".repeat(bytes));
        reply(server.send("POST", "/v1/completions", "", body.as_bytes()))
    };
    let begun = Instant::now();
    let refused = loop {
        let reply = padded(2 << 20);
        if reply.status != 200 {
            break reply;
        }
        assert!(begun.elapsed() < PATIENCE);
    };
    assert_eq!(refused.refused(503, "more than 128 KiB")["code"], "bodies_full");
    padded(100_000).ok();
}

#[test]
fn every_token_has_a_name_and_a_place() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let mut body = json!({
        "prompt": "Größe: 漢🙂 €", "max_tokens": 30, "temperature": 1.5, "seed": 3, "ignore_eos": true, "echo": true,
        "logprobs": 312,
    });
    let answer = server.complete(&body).ok();
    let choice = &answer["choices"][0];
    let lists = &choice["logprobs"];
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let (mut broken, mut last) = (0, 0);
    let names: Vec<&str> =
        lists["tokens"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for (n, name) in names.iter().enumerate() {
        let at = lists["text_offset"][n].as_u64().unwrap() as usize;
        assert!(at >= last && at <= text.len(), "{at} after {last}");
        last = at;
        if name.starts_with("bytes:") {
            broken += 1;
        } else if n > 0 {
            assert!(
                text[at..].iter().collect::<String>().starts_with(name),
                "`{name}` at {at}: {text:?}"
            );
        }
        if let Some(top) = lists["top_logprobs"][n].as_object() {
            assert_eq!(top.len(), 312, "an entry was lost");
            assert_eq!(top[*name], lists["token_logprobs"][n], "{name}");
        }
    }
    assert!(broken > 3, "{names:?}");
    // Names of ids are not counted.
    body["return_tokens_as_token_ids"] = json!(true);
    let again = server.complete(&body).ok();
    assert_eq!(again["choices"][0]["logprobs"]["text_offset"], lists["text_offset"]);
    // The same places in a stream, and without the prompt.
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true, "continuous_usage_stats": true });
    let parts = chunks(&server.complete(&body));
    let offsets: Vec<Value> = parts
        .iter()
        .filter_map(|part| part["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(json!(offsets), lists["text_offset"]);
    assert!(
        parts.iter().all(|part| part["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"])
    );
    // Bytes of all tokens of a conversation are its text.
    let chat = json!({
        "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 60, "temperature": 1.5, "seed": 3,
        "ignore_eos": true, "logprobs": true, "skip_special_tokens": false,
    });
    let answer = server.post("/v1/chat/completions", &chat).ok();
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let bytes = content.iter().flat_map(|token| token["bytes"].as_array().expect("bytes"));
    let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
    assert_eq!(choice["message"]["content"], String::from_utf8_lossy(&bytes).into_owned());
    assert!(content.iter().any(|token| token["token"].as_str().unwrap().starts_with("bytes:")));
}

#[test]
fn conversations_of_clients_are_understood() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let chat = |messages: &Value| {
        let body = json!({
            "messages": messages, "max_tokens": 1, "temperature": 0, "return_token_ids": true,
            "store": false, "metadata": null, "service_tier": "auto", "modalities": ["text"], "functions": null,
            "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": null, "web_search_options": null,
            "include_stop_str_in_output": false, "priority": 0, "truncate_prompt_tokens": null,
            "spaces_between_special_tokens": true,
        });
        server.post("/v1/chat/completions", &body)
    };
    let tokens = |messages: &Value| chat(messages).ok()["prompt_token_ids"].clone();
    let call =
        json!([{ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
    let parts = json!([
        { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        { "role": "assistant", "content": null, "tool_calls": call },
        { "role": "tool", "tool_call_id": "c", "content": [{ "type": "text", "text": "4" }] },
    ]);
    let texts = json!([
        { "role": "user", "content": "a\nb" },
        { "role": "assistant", "content": "", "tool_calls": call },
        { "role": "tool", "tool_call_id": "c", "content": "4" },
    ]);
    assert_eq!(tokens(&parts), tokens(&texts));
    assert_eq!(
        server.post("/tokenize", &json!({ "messages": parts })).ok()["tokens"],
        tokens(&texts)
    );
    chat(&json!([{}])).refused(400, "`messages[0].role` is missing");
    chat(&json!([{ "role": "user", "content": [{ "type": "image_url" }] }]))
        .refused(400, "`messages[0].content[0]` is of the type `image_url`");
    let body = json!({
        "prompt": [1, 2], "max_tokens": 1, "response_format": { "type": "text" }, "detokenize": true,
        "use_beam_search": false, "store": null,
    });
    server.complete(&body).ok();
}

#[test]
fn settings_that_cannot_be_used_say_why() {
    let model = fixture("lfm2");
    let serve = |arguments: &[&str]| {
        run(onboard().arg("serve").arg(&model).args(["--port", "0"]).args(arguments)).code(2)
    };
    serve(&["--slots", "18446744073709551615"])
        .says("`slots` is 18446744073709551615; expected at most 4096");
    serve(&["--keep", "5000"]).says("expected at most 4096");
    serve(&["--max-prompts", "0"]).says("--max-prompts");
    serve(&["--host", "no such host"]).says("expected an IP address");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad_key");
    fs_err::write(&file, "two words\n").unwrap();
    serve(&["--api-key-file", file.to_str().unwrap()]).says("bad_key` has characters");
    let named = Serving::start(&model, &["--host", "localhost"]);
    named.get("/health").ok();
    let port = named.address.port().to_string();
    let taken = run(onboard().arg("serve").arg(&model).args(["--port", &port])).code(2);
    assert_eq!(taken.err.matches("in use").count(), 1, "{}", taken.err);
    // A model that declares no length takes the one of the flag.
    let long = Serving::start(&fixture("falcon_mamba"), &["--context", "50000", "--slots", "2"]);
    assert_eq!(long.get("/health").ok()["context"], 50000);
}
