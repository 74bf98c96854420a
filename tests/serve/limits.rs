//! Requests that are refused, and requests that hold up no others.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use crate::tool::{self, fixture, onboard, run};
use crate::{PATIENCE, Reply, Serving, changed, greedy, prompt, reply};

/// Asks for a completion with one field added or replaced.
#[track_caller]
fn complete_with(server: &Serving, key: &str, value: Value) -> Reply {
    let mut body = greedy(&json!([1, 2, 3]), 4);
    body[key] = value;
    server.complete(&body)
}

#[track_caller]
fn send_completion(server: &Serving, headers: &str, body: &[u8]) -> Reply {
    reply(server.send("POST", "/v1/completions", headers, body))
}

/// Fields whose values cannot be used, and words of the reason.
fn bad_fields() -> [(&'static str, Value, &'static str); 27] {
    [
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
        ("presence_penalty", json!(2.5), "expected -2 to 2"),
        ("frequency_penalty", json!(-3), "expected -2 to 2"),
        ("repetition_penalty", json!(0), "above 0"),
        ("min_tokens", json!(3), "not supported"),
        ("logit_bias", json!({ "x": 1 }), "token ids below 312"),
        ("logit_bias", json!({ "5": 1000 }), "-100 to 100"),
        ("logit_bias", json!({ "5": 1, "05": 1 }), "has `05`"),
        ("stop", json!([""]), "empty text"),
        ("prompt_logprobs", json!(-1), "at most 900"),
        ("prompt_logprobs", json!(-2), "-1 for all"),
        ("stream_options", json!({ "include_usage": true }), "needs `stream`"),
    ]
}

/// Fields whose values are of another type, or beyond all limits, and words of the reason.
fn badly_formed_fields() -> [(&'static str, Value, &'static str); 6] {
    [
        ("stop", json!(1), "a text or a list of texts"),
        ("stop_token_ids", json!([4_294_967_295_u32]), "ids below 312"),
        ("temperature", json!(1e308), "is 1e+308"),
        ("stream_options", json!([true]), "expected a JSON object"),
        ("n", json!("x"), "an integer of 0 or more"),
        ("store", json!(true), "or give false"),
    ]
}

#[test]
fn requests_that_cannot_be_answered_say_why() {
    let server = Serving::start(
        &fixture("lfm2"),
        &["--max-prompts", "4", "--max-body", "1", "--max-scores", "900"],
    );
    complete_with(&server, "max_tokens", json!(4)).ok();
    let error = server.complete(&json!({ "max_tokens": 4 })).refused(400, "missing field `prompt`");
    assert_eq!((&error["param"], &error["code"]), (&json!("prompt"), &json!("missing_field")));
    let reply = complete_with(&server, "guided_json", json!({}));
    let error = reply.refused(400, "unknown field `guided_json`");
    assert_eq!((&error["param"], &error["code"]), (&json!("guided_json"), &json!("unknown_field")));
    assert!(error["message"].as_str().unwrap().contains("`max_tokens`"), "{error}");
    for (key, value, words) in bad_fields() {
        let reply = complete_with(&server, key, value.clone());
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
    complete_with(&server, "presence_penalty", json!(0)).ok();
    for (key, value, words) in badly_formed_fields() {
        let error = complete_with(&server, key, value).refused(400, words);
        assert_eq!(error["param"], key);
    }
    server.get("/health").ok();
}

#[test]
fn bodies_that_are_no_requests_say_why() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let nested = "[".repeat(100_000);
    for body in [
        &b"{\"prompt\": \"\xff\xfe\"}"[..],
        b"{",
        b"",
        b"{} {}",
        b"[1]",
        b"\"x\"",
        nested.as_bytes(),
    ] {
        let reply = send_completion(&server, "", body);
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    self::reply(stream).refused(415, "application/json");
    let reply = self::reply(server.send("DELETE", "/v1/completions", "", b""));
    reply.refused(405, "POST");
    send_completion(&server, "Content-Encoding: gzip\r\n", b"{}").refused(415, "`gzip`");
    let body = b"{\"prompt\":[1],\"max_tokens\":1}";
    send_completion(&server, "Content-Encoding: identity\r\n", body).ok();
    let reply = send_completion(&server, "", b"[\"lfm2\", [1, 2], 3]");
    reply.refused(400, "expected a JSON object");
    server.get("/health").ok();
}

#[test]
fn bodies_that_are_too_large_are_refused() {
    let server = Serving::start(&fixture("lfm2"), &["--max-body", "1"]);
    // A body of 100 MB is refused, and the client that sends all of it gets the answer.
    let large = json!({ "prompt": "x".repeat(100_000_000) });
    server.complete(&large).refused(413, "more than 1048576 bytes");
    // The same without a length before.
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..64 {
        stream.write_all(b"10000\r\n").unwrap();
        stream.write_all(" ".repeat(65536).as_bytes()).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    self::reply(stream).refused(413, "more than 1048576 bytes");
    // A client that asks first does not send it.
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n").unwrap();
    self::reply(stream).refused(413, "more than 1048576 bytes");
    server.get("/health").ok();
}

/// Templates of one conversation fill their own threads alone, and end with the client that asked.
#[test]
fn long_renderings_hold_up_no_other_request() {
    let model = tempfile::tempdir().unwrap();
    tool::copy("lfm2", model.path());
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = b %}{% endfor %}{% endfor %}";
    fs_err::write(model.path().join("chat_template.jinja"), loops).unwrap();
    let server = Serving::start(model.path(), &["--template-timeout", "600"]);
    // Steps of a template are limited by the size of the conversation.
    let body =
        json!({ "messages": [{ "role": "user", "content": "x".repeat(7 << 20) }] }).to_string();
    let hostile: Vec<TcpStream> =
        (0..8).map(|_| server.send("POST", "/v1/chat/completions", "", body.as_bytes())).collect();
    server.wait("renderings", |count| count == 2.0);
    server.complete(&greedy(&json!("Hi"), 1)).ok();
    // A long text is no conversation either.
    let text = json!({ "prompt": "word ".repeat(25_000) });
    server.post("/tokenize", &text).ok();
    assert_eq!(server.metric("renderings"), 2.0, "the renderings had ended before");
    assert_eq!(server.metric("cancelled_renderings_total"), 0.0);
    drop(hostile);
    server.wait("renderings", |count| count == 0.0);
    assert!(server.metric("cancelled_renderings_total") >= 2.0);
    // A template has its time, too.
    let server = Serving::start(model.path(), &["--template-timeout", "0.2"]);
    reply(server.send("POST", "/v1/chat/completions", "", body.as_bytes()))
        .refused(400, "takes more than 0.2 seconds");
}

/// Slices of slices are charged for what they read, so eight short requests leave the server free.
#[test]
fn nested_slices_are_stopped() {
    let model = tempfile::tempdir().unwrap();
    tool::copy("lfm2", model.path());
    let slices = "{% set ns = namespace(x=range(1000)|list) %}{% for i in range(9999) %}{% set ns.x = ns.x[0:] %}{% endfor %}{{ ns.x|length }}";
    fs_err::write(model.path().join("chat_template.jinja"), slices).unwrap();
    let server = Serving::start(model.path(), &[]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let bytes = body.to_string();
    let hostile: Vec<TcpStream> =
        (0..8).map(|_| server.send("POST", "/v1/chat/completions", "", bytes.as_bytes())).collect();
    server.complete(&greedy(&json!("Hi"), 1)).ok();
    for stream in hostile {
        reply(stream).refused(400, "takes more than 2");
    }
}

/// Asks for a path with headers alone.
#[track_caller]
fn get_with(server: &Serving, path: &str, headers: &str) -> Reply {
    let head = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    reply(send_bytes(server, head.as_bytes()))
}

/// Pages of other sites cannot use a server without a key, whatever name of theirs leads to it.
#[test]
fn other_sites_are_refused() {
    let server = Serving::start(&fixture("lfm2"), &["--allow-host", "box.example"]);
    for headers in [
        "Host: localhost\r\n",
        "Host: 127.0.0.1:8000\r\nOrigin: http://localhost:3000\r\n",
        "Host: [::1]\r\nOrigin: https://box.example\r\n",
        "Host: BOX.example:1\r\n",
    ] {
        get_with(&server, "/v1/models", headers).ok();
    }
    for (path, headers) in [
        ("/v1/models", "Host: evil.example\r\n"),
        ("/health", "Host: evil.example:8000\r\n"),
        ("/", "Host: evil.example\r\n"),
        ("/v1/models", "Host: localhost.evil.example\r\n"),
        ("/v1/models", "Host: localhost\r\nOrigin: https://evil.example\r\n"),
        ("/v1/models", "Host: localhost\r\nOrigin: null\r\n"),
        ("http://evil.example/v1/models", "Host: localhost\r\n"),
    ] {
        let error = get_with(&server, path, headers).refused(403, "can allow more names");
        assert_eq!(error["code"], "other_site", "{headers}");
    }
    let body = greedy(&json!([1, 2]), 1).to_string();
    send_completion(&server, "Origin: http://127.0.0.1:5\r\n", body.as_bytes()).ok();
    send_completion(&server, "Origin: http://evil.example\r\n", body.as_bytes())
        .refused(403, "`Origin: http://evil.example`");
    // A key protects a server under every name.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    fs_err::write(&file, "secret-17").unwrap();
    let keyed = Serving::start(&fixture("lfm2"), &["--api-key-file", file.to_str().unwrap()]);
    let headers = "Origin: http://evil.example\r\nAuthorization: Bearer secret-17\r\n";
    reply(keyed.send("GET", "/v1/models", headers, b"")).ok();
}

#[test]
fn a_full_queue_refuses_more() {
    let server =
        Serving::start(&fixture("lfm2"), &["--slots", "1", "--queue", "3", "--prefill-chunk", "1"]);
    let mut body = greedy(&json!([prompt(1, 100), prompt(2, 100), prompt(3, 100)]), 50);
    let mut refused = 0;
    let mut good = 0;
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

/// Sends bytes, and leaves the connection open.
pub(super) fn send_bytes(server: &Serving, bytes: &[u8]) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(bytes).unwrap();
    stream
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
        for headers in [
            "",
            "Authorization: Bearer secret-1\r\n",
            "Authorization: Bearer secret-177\r\n",
            "Authorization: secret-17\r\n",
            "Authorization: Basic secret-17\r\n",
        ] {
            let reply = send_completion(&server, headers, body.as_bytes());
            let error = reply.refused(401, "Authorization: Bearer KEY");
            assert_eq!(error["type"], "authentication_error");
        }
        let key = "Authorization: Bearer secret-17\r\n";
        send_completion(&server, key, body.as_bytes()).ok();
        server.get("/metrics").refused(401, "key");
        server.get("/v1/models").refused(401, "key");
        server.get("/health").ok();
    }
    fs_err::write(&file, "\n").unwrap();
    run(onboard().arg("serve").arg(fixture("lfm2")).args(["--api-key-file", &path]))
        .code(2)
        .says("is empty");
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
    let body = json!({ "prompt": "Hello", "max_tokens": 30000, "ignore_eos": true });
    let [unstreamed, streamed] =
        [false, true].map(|stream| changed(&body, json!({ "stream": stream })));
    let bodies = [&streamed, &unstreamed].repeat(3);
    thread::scope(|scope| {
        let all: Vec<_> =
            bodies.into_iter().map(|body| scope.spawn(|| server.complete(body))).collect();
        for (n, one) in all.into_iter().enumerate() {
            let reply = one.join().unwrap();
            if n.is_multiple_of(2) {
                assert!(reply.body.contains("\"code\":\"timeout\""), "{}", reply.body);
            } else {
                assert_eq!(reply.refused(503, "took longer")["code"], "timeout");
            }
        }
    });
}

#[test]
fn long_renderings_are_told_so() {
    let model = tempfile::tempdir().unwrap();
    tool::copy("lfm2", model.path());
    let loops =
        "{% for a in range(9999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}";
    std::fs::write(model.path().join("chat_template.jinja"), loops).unwrap();
    let server = Serving::start(model.path(), &["--request-timeout", "0.5"]);
    // Steps of a template are limited by the size of the conversation.
    let content = "x".repeat(7 << 20);
    let body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 1 });
    for path in ["/v1/chat/completions", "/tokenize"] {
        let mut body = body.clone();
        if path == "/tokenize" {
            body.as_object_mut().unwrap().remove("max_tokens");
        }
        assert_eq!(server.post(path, &body).refused(503, "took longer")["code"], "timeout");
        server.complete(&greedy(&json!([1, 2]), 1)).ok();
    }
}

/// Asks for a completion, with blanks behind the request.
#[track_caller]
fn complete_padded(server: &Serving, blanks: usize) -> Reply {
    let body = format!("{}{}", greedy(&json!([1, 2]), 1), " ".repeat(blanks));
    send_completion(server, "", body.as_bytes())
}

#[test]
fn large_bodies_do_not_keep_small_requests_out() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let length = 8 << 20;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    let part = vec![b' '; length - 100];
    let mut large: Vec<TcpStream> = Vec::new();
    let begun = Instant::now();
    let refused = loop {
        // Bodies that arrive together may be refused together, and then more are needed.
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&part).unwrap();
        large.push(stream);
        let reply = complete_padded(&server, 2 << 20);
        if reply.status != 200 {
            break reply;
        }
        assert!(begun.elapsed() < PATIENCE);
    };
    assert_eq!(refused.refused(503, "more than 128 KiB")["code"], "bodies_full");
    complete_padded(&server, 100_000).ok();
}

/// Many clients send all of a body before they read.
#[test]
fn clients_can_read_a_refusal_after_all_of_their_body() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    fs_err::write(&file, "secret-17\n").unwrap();
    let server = Serving::start(
        &fixture("lfm2"),
        &["--api-key-file", file.to_str().unwrap(), "--max-body", "1"],
    );
    let body = " ".repeat(32 << 20);
    let key = "Authorization: Bearer secret-17\r\n";
    for (method, path, headers, status) in [
        ("POST", "/v1/completions", "", 401),
        ("POST", "/v1/completions", key, 413),
        ("DELETE", "/v1/completions", key, 405),
        ("POST", "/v1/nothing", key, 404),
        ("POST", "/v1/chat/completions", &format!("{key}Content-Encoding: gzip\r\n"), 415),
    ] {
        for _ in 0..3 {
            let reply = reply(server.send(method, path, headers, body.as_bytes()));
            assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
            let head = reply.head.to_ascii_lowercase();
            assert!(head.contains("connection: close"), "{head}");
        }
    }
}

#[test]
fn settings_that_cannot_be_used_say_why() {
    let model = fixture("lfm2");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad_key");
    fs_err::write(&file, "two words\n").unwrap();
    for (setting, words) in [
        (
            ["--slots", "18446744073709551615"],
            "`slots` is 18446744073709551615; expected at most 4096",
        ),
        (["--keep", "5000"], "expected at most 4096"),
        (["--max-prompts", "0"], "--max-prompts"),
        (["--host", "no such host"], "expected an IP address"),
        (["--api-key-file", file.to_str().unwrap()], "bad_key` has characters"),
    ] {
        let ran = run(onboard().arg("serve").arg(&model).args(["--port", "0"]).args(setting));
        ran.code(2).says(words);
    }
    let named = Serving::start(&model, &["--host", "localhost"]);
    named.get("/health").ok();
    let port = named.address.port().to_string();
    let taken = run(onboard().arg("serve").arg(&model).args(["--port", &port])).code(2);
    assert_eq!(taken.err.matches("in use").count(), 1, "{}", taken.err);
    // A model that declares no length takes the one of the flag.
    let long = Serving::start(&fixture("falcon_mamba"), &["--context", "50000", "--slots", "2"]);
    assert_eq!(long.get("/health").ok()["context"], 50000);
}
