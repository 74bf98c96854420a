//! Tests of `onboard launch --verify` with servers that respond from a table, and of `convert --compat`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread;

use serde_json::{Value, json};

use crate::tool::{Ran, convert, fixture, json as parsed, onboard, run};

/// Starts a server that responds to each path with a status and a body, in another thread.
fn serve(answers: Vec<(&'static str, u16, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut first = String::new();
            reader.read_line(&mut first).ok();
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                line.clear();
            }
            let path = first.split(' ').nth(1).unwrap_or_default();
            let answer = answers.iter().find(|(known, ..)| path == *known);
            let (status, body) =
                answer.map_or((404, "no such page"), |(_, status, body)| (*status, body.as_str()));
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status} X\r\nLocation: http://elsewhere.invalid/\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
            .ok();
        }
    });
    address
}

/// Verifies a launch of a fixture on the engine of a hybrid model.
fn verify(engine: &str, url: &str, more: &[&str]) -> Ran {
    run(onboard()
        .args(["launch"])
        .arg(fixture("lfm2"))
        .args(["--engine", engine, "--gpu", "h100", "--verify", url])
        .args(more))
}

fn in_force(page_size: u64) -> Value {
    json!({
        "version": "0.5.23",
        "model_path": "/somewhere/lfm2",
        "dtype": "float16",
        "page_size": page_size,
        "mamba_radix_cache_strategy": "no_buffer",
        "disable_overlap_schedule": true,
        "attention_backend": null,
    })
}

#[test]
fn a_server_that_runs_what_was_asked_for_agrees() {
    let url = serve(vec![("/server_info", 200, in_force(1).to_string())]);
    let ran = verify("sglang", &url, &["--dtype", "f16"]).code(0);
    let ran = ran.prints("agrees").prints("class").prints("not said");
    assert!(!ran.out.contains("DIFFERS"), "{}", ran.out);
}

#[test]
fn a_setting_that_the_server_changed_is_a_difference() {
    let url = serve(vec![("/server_info", 200, in_force(64).to_string())]);
    let ran = verify("sglang", &url, &["--dtype", "bf16", "--set", "page_size=1"]).code(1);
    ran.prints("page_size").prints("DIFFERS");
    let url = serve(vec![("/server_info", 200, in_force(64).to_string())]);
    let ran = verify("sglang", &url, &["--set", "page_size=1", "--as", "json"]).code(1);
    let report = parsed(&ran.out);
    assert_eq!(report["agrees"], false);
    let rows = report["settings"].as_array().unwrap();
    for (name, verdict) in [("page_size", "differs"), ("model", "agrees"), ("dtype", "differs")] {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(row["verdict"], verdict, "{name}");
    }
}

#[test]
fn a_newer_server_and_another_class_are_differences() {
    let models = json!({ "data": [{ "root": "other", "max_model_len": 128 }] });
    let info = json!({ "vllm_config": { "model_config": {
        "dtype": "torch.bfloat16", "_model_info": { "architecture": "TransformersForCausalLM" } } } });
    let url = serve(vec![
        ("/version", 200, json!({ "version": "9.0" }).to_string()),
        ("/v1/models", 200, models.to_string()),
        ("/server_info?config_format=json", 200, info.to_string()),
    ]);
    let fixture = fixture("llama_256");
    let ran = run(onboard()
        .arg("launch")
        .arg(fixture)
        .args(["--engine", "vllm", "--gpu", "h100", "--verify", &url]));
    let ran = ran.code(1);
    for line in ran
        .out
        .lines()
        .filter(|line| ["version", "model", "class"].iter().any(|name| line.starts_with(name)))
    {
        assert!(line.ends_with("DIFFERS"), "{line}");
    }
    let dtype = ran.out.lines().find(|line| line.starts_with("dtype")).unwrap();
    assert!(dtype.ends_with("agrees"), "{dtype}");
}

/// Starts a server that answers with this status and body if it is asked about its settings.
fn broken(status: u16, body: &str) -> String {
    serve(vec![("/server_info", status, body.to_owned())])
}

#[test]
fn servers_that_do_not_answer_well_are_named() {
    for (url, words) in [
        (broken(200, "<html>"), "it is no JSON"),
        (broken(200, "{\"version\": "), "it breaks off"),
        (broken(401, "who are you?"), "who are you?"),
        (broken(302, ""), "redirects to `http://elsewhere.invalid/`"),
        (broken(404, ""), "404"),
        ("http://127.0.0.1:9".to_owned(), "start the server, or correct the address"),
        ("localhost:1".to_owned(), "is no address of a server"),
    ] {
        verify("sglang", &url, &[]).code(2).says(words);
    }
}

#[test]
fn answers_deeper_than_any_server_are_refused() {
    let url = serve(vec![("/server_info", 200, "[".repeat(100_000))]);
    verify("sglang", &url, &[]).code(2).says("no JSON");
}

#[test]
fn compat_adds_keys_and_changes_none() {
    let folder = tempfile::tempdir().unwrap();
    for (name, keys) in [
        ("lfm2", &["block_dim", "conv_dim", "rope_theta"][..]),
        ("llama3", &["rope_scaling", "rope_theta"]),
        ("gpt2", &[]),
    ] {
        let path = folder.path().join(format!("{name}.json"));
        run(convert().arg(fixture(name)).args(["--compat", "-o"]).arg(&path)).code(0);
        let config = fixture(name).join("config.json");
        let before = parsed(&fs_err::read_to_string(config).unwrap());
        let after = parsed(&fs_err::read_to_string(path).unwrap());
        let before = before.as_object().unwrap();
        let after = after.as_object().unwrap();
        assert!(before.iter().all(|(key, value)| after.get(key) == Some(value)), "{name}");
        let added: Vec<&String> = after.keys().filter(|key| !before.contains_key(*key)).collect();
        let mut expected: Vec<&str> = keys.to_vec();
        expected.sort_unstable();
        let mut added: Vec<&str> = added.into_iter().map(String::as_str).collect();
        added.sort_unstable();
        assert_eq!(added, expected, "{name}");
    }
}
