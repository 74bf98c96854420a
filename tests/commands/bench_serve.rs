//! `onboard bench-serve` against a server with known delays and faults. No test asserts a time.

mod server;

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::tool::{Ran, json, onboard, run};
use server::{StreamFault, StreamServer};

fn command(url: &str, words: &str) -> Command {
    let mut command = onboard();
    command.env_remove("ONBOARD_API_KEY");
    command.args(["bench-serve", url]).args(words.split_whitespace());
    command
}

fn bench(url: &str, words: &str) -> Ran {
    run(&mut command(url, words))
}

fn start(fault: StreamFault) -> StreamServer {
    StreamServer::start(fault, Duration::from_millis(1))
}

/// Runs a few short requests and returns the results as JSON.
fn results(fault: StreamFault, words: &str) -> Value {
    let usual = [("-n", "6"), ("--random-output-len", "5")];
    let missing = usual.iter().filter(|(flag, _)| !words.split(' ').any(|word| word == *flag));
    let few: Vec<String> = missing.map(|(flag, value)| format!("{flag} {value}")).collect();
    let few = format!("{} --random-input-len 8 --warmup 0 --send ids --json", few.join(" "));
    json(&bench(&start(fault).url, &format!("{few} {words}")).out)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn counts_and_orders_are_those_of_the_server() {
    let server = start(StreamFault::None);
    let words = "-n 12 --max-concurrency 3 --random-input-len 4..9 --random-output-len 5 \
                 --request-rate 500 --json --details";
    let report = json(&bench(&server.url, words).code(0).out);
    assert_eq!(report["schema"], "onboard-bench-serve/1");
    assert_eq!(report["model_id"], "the model");
    assert_eq!((&report["completed"], &report["failed"]), (&12.into(), &0.into()));
    assert_eq!(
        (&report["total_output_tokens"], &report["output_chunks"]),
        (&60.into(), &60.into())
    );
    assert_eq!(report["total_input_tokens"], report["prompt_tokens"]);
    // The probe and the warm-up come first, and are not measured.
    let bodies = server.bodies();
    assert_eq!(bodies.len(), 1 + 1 + 12);
    let sent: usize = bodies[2..].iter().map(|body| body["prompt"].as_array().unwrap().len()).sum();
    assert_eq!(report["total_input_tokens"], sent);
    assert!(server.most() <= 3 && report["max_in_flight"].as_u64().unwrap() <= 3);
    let requests = report["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 12);
    let mut due = 0.0;
    for request in requests {
        let ttft = request["ttft"].as_f64().unwrap();
        let latency = request["latency"].as_f64().unwrap();
        let gaps = numbers(&request["itl"]);
        assert!(gaps.len() == 4 && gaps.iter().all(|gap| *gap >= 0.0), "{request}");
        // Times add up: the last token ends the answer.
        assert!((ttft + gaps.iter().sum::<f64>() - latency).abs() < 1e-6, "{request}");
        let now = request["due"].as_f64().unwrap();
        let sent = request["sent"].as_f64().unwrap();
        assert!(now >= due && sent >= now, "{request}");
        due = now;
    }
    let tpot = report["mean_tpot_ms"].as_f64().unwrap();
    let mean_gap = report["mean_itl_ms"].as_f64().unwrap();
    assert!(
        (tpot - mean_gap).abs() < 1e-6,
        "with one token in each chunk, TPOT is the mean of ITL"
    );
    let rate = report["output_throughput"].as_f64().unwrap();
    assert!((rate * report["duration"].as_f64().unwrap() - 60.0).abs() < 1e-6);
}

/// Returns the requests of a short run.
fn requests(words: &str) -> Vec<Value> {
    let server = start(StreamFault::None);
    let few = "-n 4 --random-input-len 3..30 --max-concurrency 1 --warmup 0";
    bench(&server.url, &format!("{few} --random-output-len 2 {words}")).code(0);
    server.bodies()
}

#[test]
fn a_seed_gives_the_same_requests_again() {
    let first = requests("--seed 1");
    assert_eq!(first, requests("--seed 1"));
    assert_ne!(first, requests("--seed 2"));
}

#[test]
fn requests_have_the_fields_that_were_asked_for() {
    let server = start(StreamFault::None);
    let few = "-n 1 --warmup 0 --send ids --random-input-len 3 --random-output-len 2";
    bench(&server.url, few).code(0);
    let extra = r#"{"top_p":0.5,"temperature":null,"stream_options":null}"#;
    bench(&server.url, &format!("{few} --disable-ignore-eos --extra-body {extra}")).code(0);
    let words = "-n 1 --warmup 0 --endpoint chat --random-input-len 3 --random-output-len 2";
    bench(&server.url, words).code(0);
    let bodies = server.bodies();
    assert_eq!(bodies[0]["ignore_eos"], true);
    assert_eq!(bodies[0]["max_tokens"], 2);
    assert_eq!(bodies[0]["stream_options"]["include_usage"], true);
    assert_eq!(bodies[0]["model"], "the model");
    assert_eq!(bodies[1]["top_p"], 0.5);
    for key in ["ignore_eos", "temperature", "stream_options"] {
        assert!(bodies[1].get(key).is_none(), "{key}: {}", bodies[1]);
    }
    assert_eq!(bodies[2]["max_completion_tokens"], 2);
    let text = bodies[2]["messages"][0]["content"].as_str().unwrap();
    assert_eq!(text.split(' ').count(), 3, "{text}");
}

#[test]
fn text_is_sent_where_ids_are_refused() {
    let server = start(StreamFault::NoIds);
    let ran = bench(&server.url, "-n 2 --random-input-len 5 --random-output-len 2 --json").code(0);
    let ran = ran.says("prompts are sent as text: token ids gave status 400: `the reason`");
    let report = json(&ran.out);
    assert_eq!(report["prompts"], "random text");
    // The server counts 7 tokens for any text.
    assert_eq!((&report["total_input_tokens"], &report["completed"]), (&14.into(), &2.into()));
    let text = server.bodies()[1]["prompt"].as_str().unwrap().to_owned();
    assert_eq!(text.split(' ').count(), 5);
}

#[test]
fn tokens_are_counted_by_usage_else_by_chunks() {
    let report = results(StreamFault::Pairs, "--random-output-len 6");
    assert_eq!(
        (&report["total_output_tokens"], &report["output_chunks"]),
        (&36.into(), &18.into())
    );
    assert_eq!(report["output_tokens_from"]["usage"], 6);
    let tpot = &report["mean_tpot_ms"];
    let itl = &report["mean_itl_ms"];
    let ratio = tpot.as_f64().unwrap() / itl.as_f64().unwrap();
    assert!((ratio - 2.0 / 5.0).abs() < 1e-6, "two gaps between six tokens: {tpot} {itl}");
    let report = results(StreamFault::NoUsage, "");
    assert_eq!(
        (&report["total_output_tokens"], &report["total_input_tokens"]),
        (&30.into(), &48.into())
    );
    assert_eq!(report["output_tokens_from"]["chunks"], 6);
    assert_eq!(report["input_tokens_from"]["prompt"], 6);
}

#[test]
fn faults_are_counted_by_kind() {
    for (fault, kind, words) in [
        (StreamFault::Half(503), "status 503", ""),
        (StreamFault::Status(429), "status 429", ""),
        (StreamFault::Status(307), "status 307", ""),
        (StreamFault::Cut, "broken off", ""),
        (StreamFault::Html, "malformed", ""),
        (StreamFault::Compressed, "malformed", ""),
        (StreamFault::Moved, "status 307", ""),
        (StreamFault::Garbage, "malformed", ""),
        (StreamFault::Liar, "malformed", ""),
        (StreamFault::ErrorEvent, "error event", ""),
        (StreamFault::Endless, "timeout", "-n 1 --timeout 1"),
        (StreamFault::Silent, "timeout", "--timeout 0.2"),
        (StreamFault::Flood, "too long", "-n 1"),
        (StreamFault::Empty, "no output", ""),
    ] {
        let report = results(fault, words);
        let failures = report["failures"].as_array().unwrap();
        assert!(failures.len() == 1 && failures[0]["kind"] == kind, "{fault:?}: {failures:?}");
        let requests = report["num_prompts"].as_u64().unwrap();
        let failed = if matches!(fault, StreamFault::Half(_)) { 3 } else { requests };
        assert_eq!(failures[0]["count"], failed, "{fault:?}");
        assert_eq!(report["completed"].as_u64().unwrap(), requests - failed, "{fault:?}");
    }
    let nowhere = bench("http://127.0.0.1:9", "-n 2 --model m --send ids --warmup 0");
    nowhere.code(2).says("failed: 2 with connect, the first: ").prints("connect:");
}

#[test]
fn a_run_without_success_ends_with_2_and_names_the_reason() {
    let failing = start(StreamFault::Status(500));
    bench(&failing.url, "-n 2 --send ids")
        .code(2)
        .says("no request to warm up succeeded: status 500");
    let unauthorized = start(StreamFault::Status(401));
    bench(&unauthorized.url, "-n 2")
        .code(2)
        .says("the first request failed: status 401: `the reason`");
    let half = bench(&start(StreamFault::Half(500)).url, "-n 4 --send ids --warmup 0");
    half.code(0).prints("status 500:").says("failed: 2 with status 500, the first: `the reason`");
}

#[test]
fn an_answer_is_complete_with_its_last_event() {
    let report = results(StreamFault::Open, "-n 1 --timeout 1");
    assert_eq!((&report["completed"], &report["total_output_tokens"]), (&1.into(), &5.into()));
}

#[test]
fn goodput_counts_requests_within_all_objectives() {
    let loose = results(StreamFault::None, "--goodput ttft:600000 tpot:600000 e2el:600000");
    assert_eq!(loose["request_goodput"], loose["request_throughput"]);
    let strict = results(StreamFault::None, "--goodput ttft:600000 --goodput e2el:0.000001");
    assert_eq!(strict["request_goodput"], 0.0);
    assert_eq!(
        (&strict["objectives"][0]["met"], &strict["objectives"][1]["met"]),
        (&6.into(), &0.into())
    );
}

#[test]
fn prompts_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    let lines = "{\"prompt\": \"one\", \"output_tokens\": 2}\n[5, 6, 7]\n\"three\"\n";
    fs_err::write(&file, lines).unwrap();
    let server = start(StreamFault::None);
    let words = format!("--prompts {} --max-concurrency 1 --warmup 0 --json", file.display());
    let ran = bench(&server.url, &words).code(0).says("the file has 3 prompts; 100 were asked for");
    assert_eq!(json(&ran.out)["completed"], 3);
    let bodies = server.bodies();
    assert_eq!((&bodies[0]["prompt"], &bodies[0]["max_tokens"]), (&"one".into(), &2.into()));
    assert_eq!((&bodies[1]["prompt"][2], &bodies[1]["max_tokens"]), (&7.into(), &128.into()));
    bench(&server.url, &format!("{words} --endpoint chat")).code(2).says("prompt 2 of");
    fs_err::write(&file, "{\"text\": 1}\n").unwrap();
    bench(&server.url, &words).code(2).says("line 1: the object has none of the keys of a prompt");
    fs_err::write(&file, "").unwrap();
    bench(&server.url, &words).code(2).says("the file holds no prompt");
}

#[test]
fn an_interrupt_prints_what_was_measured() {
    let server = start(StreamFault::Stuck(3));
    let words = "-n 20 --max-concurrency 2 --random-input-len 3 --random-output-len 2 --send ids \
                 --warmup 0 --json";
    let mut command = command(&server.url, words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Three requests succeed, and the next two never end.
    while server.bodies().len() < 5 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!((&report["partial"], &report["completed"]), (&true.into(), &3.into()));
    assert_eq!((&report["unfinished"], &report["unsent"]), (&2.into(), &15.into()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("17 requests are missing"));
}

#[test]
fn tables_and_flags() {
    let server = start(StreamFault::None);
    let few = "-n 2 --random-input-len 3 --random-output-len 2";
    let text = bench(&server.url, &format!("{few} --percentiles 50,99.9")).code(0);
    let text = text.prints("= Serving Benchmark Result =").prints("P99.9 TTFT (ms):");
    text.prints("Generated tokens counted by:             usage");
    bench(&server.url, &format!("{few} --table sglang")).code(0).prints("Max ITL (ms):");
    bench(&server.url, &format!("{few} -o md")).code(0).prints("| Mean TTFT (ms)");
    let csv = bench(&server.url, &format!("{few} -o csv")).code(0).out;
    assert_eq!(csv.lines().count(), 2, "{csv}");
    for (words, fault) in [
        ("--random-input-len 0", "is no length; expected tokens"),
        ("--request-rate 0", "is no rate"),
        ("--max-concurrency 5000", "not an integer from 1 to 1024"),
        ("--extra-body [1]", "it is no JSON object"),
        ("--extra-body {\"stream\":false}", "only streamed answers"),
        ("--goodput itl:5", "is no objective"),
        ("--random-range-ratio 0.5 --random-input-len 3..5", "is a distribution already"),
        ("--endpoint chat --send ids", "messages of a chat are text"),
        ("--tokenizer /nowhere", "/nowhere"),
        ("--engine-option top=3", "there is no such setting of this client"),
    ] {
        bench(&server.url, words).code(2).says(fault);
    }
    bench("ftp://x", "").code(2).says("is no address of a server");
}

#[test]
fn failures_of_the_first_requests_do_not_end_a_run() {
    // The probe fails four times.
    let server = start(StreamFault::Late(4));
    let few = "-n 3 --random-input-len 3 --random-output-len 2 --json";
    let report = json(&bench(&server.url, few).code(0).out);
    assert_eq!((&report["completed"], &report["prompts"]), (&3.into(), &"random ids".into()));
    assert_eq!(server.bodies().len(), 4 + 1 + 1 + 3);
    let server = start(StreamFault::Half(503));
    let report = json(&bench(&server.url, few).code(0).out);
    assert_eq!(report["completed"].as_u64().unwrap() + report["failed"].as_u64().unwrap(), 3);
    // A server that is never ready is given up.
    let server = start(StreamFault::Status(503));
    bench(&server.url, few).code(2).says("the first request failed: status 503");
    assert_eq!(server.bodies().len(), 10);
}

#[test]
fn failures_say_what_the_server_did() {
    for (fault, words) in [
        (StreamFault::Compressed, "compressed (`gzip`)"),
        (StreamFault::Moved, "it redirects to `http://h/v1`"),
        (StreamFault::Silent, "with timeout, the first: no complete answer in time"),
    ] {
        let few = "-n 1 --warmup 0 --send ids --timeout 0.3 --random-input-len 3";
        bench(&start(fault).url, few).code(2).says(words);
    }
}

#[test]
fn statistics_without_values_are_positive_zeros() {
    let report = results(StreamFault::None, "--random-output-len 1");
    for key in ["mean_tpot_ms", "std_tpot_ms", "mean_itl_ms"] {
        assert!(report[key].as_f64().unwrap().is_sign_positive(), "{key}: {}", report[key]);
    }
    let failed = results(StreamFault::Status(500), "");
    assert!(failed["concurrency"].as_f64().unwrap().is_sign_positive());
}
