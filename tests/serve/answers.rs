//! Answers are those of the engine, alone and in any batch.

use std::thread;

use serde_json::{Value, json};

use crate::tool::{self, fixture, onboard, parity, run};
use crate::{Serving, changed, chunks, greedy, ids, prompt};

fn choices(server: &Serving, body: &Value) -> Value {
    server.complete(body).ok()["choices"].clone()
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
    let mut tokens = ids(choice);
    if choice["finish_reason"] == "stop" {
        tokens.pop();
    }
    assert_eq!(json!(tokens), ran["tokens"]);
    assert_eq!(choice["text"], ran["text"]);
    assert_eq!(answer["usage"]["completion_tokens"], ids(choice).len());
    // The same as token ids, and without the special tokens around a text.
    let again = server.complete(&greedy(&ran["prompt_tokens"], 24)).ok();
    assert_eq!(ids(&again["choices"][0])[..tokens.len()], tokens[..]);
    let tokenized =
        server.post("/tokenize", &json!({ "prompt": text, "return_token_strs": true })).ok();
    assert_eq!(tokenized["tokens"], ran["prompt_tokens"]);
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
        let given = &row[&prompt[position].to_string()];
        assert_eq!(given["logprob"], token_logprobs[position], "row {position}");
        let better =
            row.values().filter(|entry| entry["logprob"].as_f64() > given["logprob"].as_f64());
        assert!(better.count() < given["rank"].as_u64().unwrap() as usize);
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
    let scored = Serving::start(&model, &["--dtype", "f32"]).complete(&body).ok();
    assert_eq!(scored["choices"][0]["prompt_logprobs"], choice["prompt_logprobs"]);
    assert_eq!(scored["usage"]["completion_tokens"], 0);
}

#[test]
fn a_served_model_is_proven_over_http() {
    for name in ["lfm2", "llama"] {
        let model = fixture(name);
        let server = Serving::start(&model, &["--dtype", "f32"]);
        let url = format!("http://{}", server.address);
        let mut check = parity();
        check.env_remove("ONBOARD_API_KEY").arg("check").arg(&model).args(["--engine", &url]);
        let ran = run(&mut check).code(0);
        let ran = ran.prints("AGREE in 1 run").prints("agree with one prefill");
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
    let together: Vec<Value> = thread::scope(|scope| {
        let running: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| choices(&server, body))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let alone = Serving::start(&model, &["--slots", "1", "--keep", "0"]);
    for (body, answer) in bodies.iter().zip(together) {
        assert_eq!(choices(&alone, body), answer, "{body}");
    }
    server.wait("slots_running", |count| count == 0.0);
    // A prompt that goes on where an answer ended takes its slot over.
    let long = prompt(7, 60);
    let first = server.complete(&greedy(&json!(long), 20)).ok();
    let more: Vec<u64> =
        long.iter().map(|id| *id as u64).chain(ids(&first["choices"][0])).chain([9, 8]).collect();
    let reused = server.metric("reused_tokens_total");
    let second = greedy(&json!(more), 20);
    assert_eq!(choices(&server, &second), choices(&alone, &second));
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
            let answer = server.complete(&body).ok();
            body["stream"] = json!(true);
            body["stream_options"] = json!({ "include_usage": true });
            let mut parts = chunks(&server.complete(&body));
            assert_eq!(parts.pop().unwrap()["usage"], answer["usage"]);
            let mut text = String::new();
            let mut ids = Vec::new();
            let mut logprobs = Vec::new();
            for part in &parts {
                let choice = &part["choices"][0];
                let piece = choice["text"].as_str().unwrap();
                text.push_str(piece);
                ids.extend(choice["token_ids"].as_array().unwrap().clone());
                logprobs.extend(choice["logprobs"]["token_logprobs"].as_array().unwrap().clone());
            }
            let choice = &answer["choices"][0];
            assert_eq!(choice["text"], text);
            assert_eq!(choice["token_ids"], json!(ids));
            assert_eq!(choice["logprobs"]["token_logprobs"], json!(logprobs));
            assert_eq!(
                parts.last().unwrap()["choices"][0]["finish_reason"],
                choice["finish_reason"]
            );
            if stop.is_null() {
                // The chunk that closes the answer is that of its last token.
                let last = &parts.last().unwrap()["choices"][0]["token_ids"];
                assert_eq!(last.as_array().unwrap().len(), 1, "{parts:?}");
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
    let mut broken = 0;
    let mut last = 0;
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
fn penalties_change_what_is_repeated() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let tokens = prompt(4, 6);
    let plain = greedy(&json!(tokens), 24);
    let neutral =
        json!({ "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1 });
    let expected = ids(&choices(&server, &plain)[0]);
    assert_eq!(ids(&choices(&server, &changed(&plain, neutral))[0]), expected);
    // A bias makes one token the most likely one, and a penalty counts after it.
    let likely = (0..300_usize).find(|id| !tokens.contains(id)).unwrap();
    let biased = changed(&plain, json!({ "logit_bias": { likely.to_string(): 20.0 } }));
    for (change, count) in [
        (json!({}), 24),
        (json!({ "presence_penalty": 2 }), 24),
        (json!({ "repetition_penalty": 100 }), 1),
    ] {
        let chosen = ids(&choices(&server, &changed(&biased, change))[0]);
        assert_eq!(chosen.into_iter().filter(|id| *id == likely as u64).count(), count);
    }
    // Nothing comes twice if what was there is divided by 100.
    let divided = changed(&plain, json!({ "repetition_penalty": 100 }));
    let repeated = ids(&choices(&server, &divided)[0]);
    let mut seen: Vec<u64> = tokens.iter().map(|id| *id as u64).collect();
    for id in &repeated {
        assert!(!seen.contains(id), "{id} is repeated in {repeated:?}");
        seen.push(*id);
    }
    // The same answer in conversations and streams, and with a rule.
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 12, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "frequency_penalty": 2, "repetition_penalty": 50,
    });
    let answer = server.post("/v1/chat/completions", &body).ok();
    let chosen = ids(&answer["choices"][0]);
    let mut unique = chosen.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), chosen.len(), "{chosen:?}");
    body["structured_outputs"] = json!({ "regex": "(ab){8}" });
    body["max_tokens"] = json!(60);
    let ruled = server.post("/v1/chat/completions", &body).ok();
    assert_eq!(ruled["choices"][0]["message"]["content"], "ab".repeat(8));
}
