//! Conversations, constrained answers and forced calls.

use std::thread;

use serde_json::{Value, json};

use crate::tool::{self, fixture, run};
use crate::{Reply, Serving, changed, chunks, greedy, ids, reply};

#[test]
fn conversations_are_rendered_and_answered() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let messages = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Größe?" }]);
    let body = json!({
        "model": "lfm2", "messages": messages, "max_completion_tokens": 20, "temperature": 0, "ignore_eos": true,
        "logprobs": true, "top_logprobs": 2, "return_token_ids": true,
    });
    let answer = server.chat(&body).ok();
    let text = "<|startoftext|><system>\nBe brief.\n<user>\nGröße?\n<assistant>\n";
    let prompt =
        server.post("/tokenize", &json!({ "prompt": text, "add_special_tokens": false })).ok();
    assert_eq!(answer["prompt_token_ids"], prompt["tokens"]);
    let same = server.post("/tokenize", &json!({ "messages": messages })).ok();
    assert_eq!(same["tokens"], prompt["tokens"]);
    // The same prompt as a completion has the same tokens.
    let plain = server.complete(&greedy(&prompt["tokens"], 20)).ok();
    let choice = &answer["choices"][0];
    assert_eq!(ids(choice), ids(&plain["choices"][0]));
    assert_eq!(choice["message"]["content"], plain["choices"][0]["text"]);
    assert_eq!(choice["finish_reason"], "length");
    let scores = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(scores.len(), 20);
    assert!(scores.iter().all(|score| score["top_logprobs"][0]["logprob"] == score["logprob"]));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({ "include_usage": true });
    let mut parts = chunks(&server.chat(&streamed));
    assert_eq!(parts.pop().unwrap()["usage"], answer["usage"]);
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    let mut text = String::new();
    let mut tokens = Vec::new();
    let mut logprobs = Vec::new();
    for part in &parts {
        let choice = &part["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        tokens.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(choice["message"]["content"], text);
    assert_eq!(
        (&choice["token_ids"], &choice["logprobs"]["content"]),
        (&json!(tokens), &json!(logprobs))
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
        server.chat(&body).refused(400, words);
    }
    // A model without a template has completions alone.
    let dir = tempfile::tempdir().unwrap();
    tool::copy("lfm2", dir.path());
    fs_err::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    let server = Serving::start(dir.path(), &[]);
    server.chat(&json!({ "messages": messages })).refused(400, "no chat template");
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
    let mut formats = 0;
    let mut several = 0;
    for format in chat::Format::all().iter().filter(|format| format.has_calls()) {
        let server = Serving::start(model.path(), &["--tool-format", format.name()]);
        // The prompt ends behind the reasoning, where a random model would stay for long.
        let tail = format.reasoning().map_or("", |marks| marks.1);
        for seed in 0..3 {
            let mut body = json!({
                "messages": [{ "role": "user", "content": "Weather?" }], "tools": tools(), "tool_choice": "required",
                "temperature": if seed == 0 { 0.0 } else { 1.0 }, "seed": seed, "max_completion_tokens": 1500,
                "chat_template_kwargs": { "tail": tail }, "parallel_tool_calls": false,
            });
            let answer = server.chat(&body).ok();
            let choice = &answer["choices"][0];
            let name = format.name();
            assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {answer}");
            let calls = sound_calls(&choice["message"]);
            assert_eq!(calls.len(), 1, "{name}");
            // A stream has the same calls in pieces.
            body["stream"] = json!(true);
            let mut streamed: Vec<(String, String)> = Vec::new();
            let mut pieces = 0;
            for chunk in chunks(&server.chat(&body)) {
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
            assert_eq!(
                streamed
                    .iter()
                    .map(|(name, text): &(String, String)| (name.clone(), tool::json(text)))
                    .collect::<Vec<_>>(),
                calls,
                "{name}"
            );
            assert!(pieces > calls.len(), "{name}");
            // Calls of one tool, and several calls: a random model may make more than the limit allows.
            body["stream"] = json!(false);
            body["parallel_tool_calls"] = json!(true);
            let more = server.chat(&body).ok();
            if more["choices"][0]["finish_reason"] == "tool_calls" {
                several += usize::from(sound_calls(&more["choices"][0]["message"]).len() > 1);
            } else {
                assert_eq!(more["choices"][0]["finish_reason"], "length", "{name}");
            }
            body["tool_choice"] = json!({ "type": "function", "function": { "name": "now" } });
            let named = server.chat(&body).ok();
            let calls = sound_calls(&named["choices"][0]["message"]);
            assert_eq!(calls, [("now".to_owned(), json!({}))], "{name}");
        }
        formats += 1;
    }
    assert!(formats > 40, "{formats} formats");
    assert!(several > 8, "{several} answers with several calls");
}

/// True if a text keeps one of the rules of [`answers_keep_their_constraint_in_any_batch`].
fn keeps_rule(rule: usize, text: &str) -> bool {
    match rule {
        0 | 1 => {
            let value = tool::json(text);
            let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
            keys == ["z", "a"] && (0..100).contains(&value["z"].as_i64().unwrap())
        }
        2 => text.replace("ab", "c") == "ccc",
        3 => ["good", "bad", "größer"].contains(&text),
        4 => text.len() > 2 && text.starts_with('<') && text.ends_with('>'),
        _ => true,
    }
}

/// Returns a request with one of the rules, as a completion or a conversation.
fn ruled_request(n: usize, rules: &[Value]) -> Value {
    let mut body = json!({ "max_tokens": 200, "seed": n, "temperature": if n.is_multiple_of(3) { 0.0 } else { 1.2 }, "n": 1 + n % 2 });
    if n % 4 < 2 {
        body["prompt"] = json!("The answer: ");
    } else {
        body["messages"] = json!([{ "role": "user", "content": "Answer!" }]);
    }
    changed(&body, rules[n % rules.len()].clone())
}

fn choices(server: &Serving, body: &Value) -> Value {
    let is_completion = body.get("prompt").is_some();
    let reply = if is_completion { server.complete(body) } else { server.chat(body) };
    reply.ok()["choices"].clone()
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
    let server = Serving::start(model.path(), &["--slots", "7", "--prefill-chunk", "9"]);
    let bodies: Vec<Value> = (0..36).map(|n| ruled_request(n, &rules)).collect();
    let together: Vec<Value> = thread::scope(|scope| {
        let running: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| choices(&server, body))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let alone = Serving::start(model.path(), &["--slots", "1", "--keep", "0"]);
    for (n, (body, answer)) in bodies.iter().zip(together).enumerate() {
        assert_eq!(choices(&alone, body), answer, "{body}");
        for choice in answer.as_array().unwrap() {
            let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
            assert!(keeps_rule(n % rules.len(), text), "{body}: {text}");
            if n % rules.len() < 5 {
                assert_eq!(choice["finish_reason"], "stop", "{body}");
            }
        }
    }
    // An answer that is cut says so, and log-probabilities are those of the model.
    let mut cut = bodies[0].clone();
    (cut["max_tokens"], cut["logprobs"]) = (json!(2), json!(3));
    let cut = &choices(&server, &cut)[0];
    assert_eq!(cut["finish_reason"], "length");
    // Another vocabulary, and one from the keys of a GGUF file.
    let other = talking("llama");
    let file = other.path().join("model.gguf");
    run(tool::convert().arg(other.path()).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    for model in [other.path(), &file] {
        let server = Serving::start(model, &[]);
        for n in [0, 1, 2, 3, 4] {
            let mut body = ruled_request(n, &rules);
            body.as_object_mut().unwrap().remove("messages");
            body["prompt"] = json!("The answer: ");
            for choice in choices(&server, &body).as_array().unwrap() {
                assert!(
                    keeps_rule(n, choice["text"].as_str().unwrap()),
                    "{}: {choice}",
                    model.display()
                );
            }
        }
    }
}

/// Asks for a completion with rules.
#[track_caller]
fn complete_with(server: &Serving, rules: &Value) -> Reply {
    server.complete(
        &json!({ "prompt": "x", "max_tokens": 20, "temperature": 0, "structured_outputs": rules }),
    )
}

#[test]
fn constraints_that_cannot_be_kept_are_refused() {
    let model = talking("lfm2");
    let server = Serving::start(model.path(), &[]);
    let either = json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] });
    for (rules, words) in [
        (json!({ "json": { "$ref": "https://example.com/s.json" } }), "nothing else is read"),
        (json!({ "json": { "$ref": "/etc/passwd" } }), "nothing else is read"),
        (json!({ "json": { "type": "object", "not": {} } }), "\"not\""),
        (json!({ "json": { "type": "string", "minLength": 3, "maxLength": 1 } }), "nsatisfiable"),
        (json!({ "json": either }), "`anyOf`"),
        (json!({ "json": { "enum": (0..1_000_000).collect::<Vec<_>>() } }), "at most 262144"),
        (json!({ "regex": "(" }), "cannot be kept"),
        (json!({ "regex": "a".repeat(10_000) }), "at most 8192"),
        (json!({ "grammar": "start: missing" }), "missing"),
        (json!({ "choice": [] }), "choices"),
        (json!({ "structural_tag": "x" }), "not supported"),
        (json!({}), "no rule"),
    ] {
        let error = complete_with(&server, &rules).refused(400, words);
        assert!(error["param"].as_str().unwrap().starts_with("structured_outputs"), "{error}");
    }
    let large = json!({ "json": { "description": "x".repeat(10 << 20) } });
    complete_with(&server, &large).refused(413, "more than");
    // The vocabulary has no token for a part of the text that is found out on the way.
    for regex in ["(a{1000}){1000}", "(?:a?){2000}a{2000}", "(.*a.{20}){20}"] {
        let reply = complete_with(&server, &json!({ "regex": regex }));
        assert!([200, 400].contains(&reply.status), "{regex}: {reply:?}");
    }
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let body = json!({ "messages": messages, "tools": tools(), "max_tokens": 10 });
    let other = json!({ "type": "function", "function": { "name": "other" } });
    for (change, words) in [
        (json!({ "tool_choice": other }), "not among `tools`"),
        (json!({ "tool_choice": "required", "tools": [] }), "no `tools`"),
        (json!({ "tool_choice": "any" }), "expected `auto`"),
    ] {
        server.chat(&changed(&body, change)).refused(400, words);
    }
    for (parameters, words) in [
        (json!({ "type": "array" }), "expected \"object\""),
        (json!({ "properties": { "a": { "$ref": "http://x" } } }), "nothing else"),
    ] {
        let function = json!({ "name": "f", "parameters": parameters });
        let tools = json!([{ "type": "function", "function": function }]);
        let change = json!({ "tool_choice": "required", "tools": tools });
        server.chat(&changed(&body, change)).refused(400, words);
    }
    for name in ["messages", "add_generation_prompt"] {
        let change = json!({ "chat_template_kwargs": { name: true } });
        let error = server.chat(&changed(&body, change)).refused(400, name);
        assert_eq!(error["param"], "chat_template_kwargs");
    }
    // The server goes on.
    complete_with(&server, &json!({ "choice": ["yes"] })).ok();
}

#[test]
fn rules_that_take_long_do_not_hold_up_the_server() {
    let server = Serving::start(&fixture("falcon_mamba"), &[]);
    let outputs = json!({ "grammar": "start: e\ne: e e e | e e | /(?s:.)/ " });
    let body = json!({ "prompt": "x", "max_tokens": 20_000, "structured_outputs": outputs, "ignore_eos": true });
    assert_eq!(server.complete(&body).refused(400, "cannot go on")["code"], "constraint_failed");
    server.complete(&greedy(&json!([1, 2]), 1)).ok();
}

/// Sends a conversation with the fields that clients add.
#[track_caller]
fn client_chat(server: &Serving, messages: &Value) -> Reply {
    server.chat(&json!({
        "messages": messages, "max_tokens": 1, "temperature": 0, "return_token_ids": true,
        "store": false, "metadata": null, "service_tier": "auto", "modalities": ["text"], "functions": null,
        "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": null, "web_search_options": null,
        "include_stop_str_in_output": false, "priority": 0, "truncate_prompt_tokens": null,
        "spaces_between_special_tokens": true,
    }))
}

#[track_caller]
fn prompt_tokens(server: &Serving, messages: &Value) -> Value {
    client_chat(server, messages).ok()["prompt_token_ids"].clone()
}

#[test]
fn conversations_of_clients_are_understood() {
    let server = Serving::start(&fixture("lfm2"), &[]);
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
    let expected = prompt_tokens(&server, &texts);
    assert_eq!(prompt_tokens(&server, &parts), expected);
    let tokenized = server.post("/tokenize", &json!({ "messages": parts })).ok();
    assert_eq!(tokenized["tokens"], expected);
    // A template that does not know developers gets their words as the system's.
    let developer =
        json!([{ "role": "user", "content": "a" }, { "role": "developer", "content": "b" }]);
    let system = json!([{ "role": "system", "content": "b" }, { "role": "user", "content": "a" }]);
    assert_eq!(prompt_tokens(&server, &developer), prompt_tokens(&server, &system));
    client_chat(&server, &json!([{}])).refused(400, "`messages[0].role` is missing");
    let image = json!([{ "role": "user", "content": [{ "type": "image_url" }] }]);
    client_chat(&server, &image)
        .refused(400, "`messages[0].content[0]` is of the type `image_url`");
    let body = json!({
        "prompt": [1, 2], "max_tokens": 1, "response_format": { "type": "text" }, "detokenize": true,
        "use_beam_search": false, "store": null,
    });
    server.complete(&body).ok();
    // Clients without integers, and fields that ask for nothing.
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let body = json!({ "messages": messages, "max_tokens": 4.0, "n": 2.0, "seed": 1.0, "lora_path": null,
        "prompt_embeds": null, "echo": false, "best_of": 1, "request_id": "r", "include_reasoning": true });
    let float_answer = server.chat(&body).ok();
    assert_eq!(float_answer["choices"].as_array().unwrap().len(), 2);
    let integers = changed(&body, json!({ "max_tokens": 4, "n": 2, "seed": 1 }));
    assert_eq!(server.chat(&integers).ok()["choices"], float_answer["choices"]);
    for (change, words) in [
        (json!({ "max_tokens": 4.5 }), "an integer of 0 or more"),
        (json!({ "echo": true }), "`echo` is true"),
        (json!({ "tools": [{ "type": "custom", "name": "f" }] }), "`tools[0].type` is"),
        (json!({ "tools": [{ "type": "web_search", "name": "f" }] }), "`tools[0].type` is"),
        (json!({ "response_format": { "type": "text", "schema": {} } }), "`text`"),
    ] {
        server.chat(&changed(&body, change)).refused(400, words);
    }
    let adapted = changed(&body, json!({ "lora_path": "x" }));
    let error = server.chat(&adapted).refused(400, "unknown field `lora_path`");
    assert_eq!(error["param"], "lora_path");
    for format in [
        json!({ "type": "json_object", "schema": { "const": 7 } }),
        json!({ "type": "json_schema", "schema": { "const": 7 } }),
    ] {
        let formatted = changed(&body, json!({ "response_format": format }));
        let answer = server.chat(&formatted).ok();
        assert_eq!(answer["choices"][0]["message"]["content"], "7", "{format}");
    }
    let regex = json!({ "response_format": { "type": "regex", "pattern": "a" } });
    let reply = server.chat(&changed(&body, regex));
    let error = reply.refused(400, "at `response_format.pattern`: unknown field `pattern`");
    assert_eq!(error["param"], "response_format.pattern");
    let half = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\\ud83d b\"}]}";
    let sent = server.send("POST", "/v1/chat/completions", "", half.as_bytes());
    self::reply(sent).refused(400, "half of a character");
}

/// Returns the events of a stream of `/v1/responses`.
fn events(body: &str) -> Vec<Value> {
    let frames = body.split("\n\n").filter(|frame| !frame.is_empty());
    frames
        .map(|frame: &str| {
            let (name, data) = frame.split_once('\n').unwrap();
            let event = tool::json(data.strip_prefix("data: ").unwrap());
            assert_eq!(name, format!("event: {}", event["type"].as_str().unwrap()));
            event
        })
        .collect()
}

#[test]
fn responses_have_the_text_of_conversations() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let input =
        json!([{ "role": "user", "content": [{ "type": "input_text", "text": "Größe?" }] }]);
    let mut body = json!({
        "model": "lfm2", "instructions": "Be brief.", "input": input, "max_output_tokens": 20, "temperature": 0,
        "ignore_eos": true, "store": false, "truncation": "disabled", "include": [], "previous_response_id": null,
    });
    let response = server.post("/v1/responses", &body).ok();
    let chat = json!({
        "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Größe?" }],
        "max_tokens": 20, "temperature": 0, "ignore_eos": true,
    });
    let chat = server.chat(&chat).ok();
    let item = &response["output"][0];
    assert_eq!(item["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(
        (&response["status"], &response["object"]),
        (&json!("incomplete"), &json!("response"))
    );
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(response["usage"]["output_tokens"], 20);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    body["stream"] = json!(true);
    let streamed = events(&server.post("/v1/responses", &body).body);
    let names: Vec<&str> = streamed.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        names[names.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    let deltas = streamed.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(item["content"][0]["text"], deltas.collect::<String>());
    for (n, event) in streamed.iter().enumerate() {
        assert_eq!(event["sequence_number"], n);
    }
    let last = &streamed.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"], item["content"]);
    assert_eq!(last["usage"], response["usage"]);
    for (key, value, words) in [
        ("input", json!([{ "type": "item_reference", "id": "x" }]), "`input[0]` is of the type"),
        ("previous_response_id", json!("resp-1"), "`previous_response_id` is"),
        ("background", json!(true), "or give false"),
        ("max_output_tokens", json!(1000), "handles 160"),
        ("tools", json!([{ "type": "web_search" }]), "`tools[0].type` is"),
        ("temperature", json!(-1), "0 or more"),
        ("unknown", json!(1), "unknown field `unknown`"),
    ] {
        let mut body = body.clone();
        body[key] = value;
        let error = server.post("/v1/responses", &body).refused(400, words);
        assert_eq!(error["param"], key, "{error}");
    }
    // Calls and formats in the form of this API.
    let model = talking("lfm2");
    let server = Serving::start(model.path(), &[]);
    let tool = json!({ "type": "function", "name": "f", "parameters": {
        "type": "object", "properties": { "n": { "enum": [7] } }, "required": ["n"], "additionalProperties": false,
    } });
    let call = json!({
        "input": "Call it.", "tools": [tool], "tool_choice": { "type": "function", "name": "f" }, "temperature": 0,
        "max_output_tokens": 300, "stream": true,
    });
    let streamed = events(&server.post("/v1/responses", &call).body);
    let done = &streamed.last().unwrap()["response"];
    assert_eq!(done["status"], "completed", "{done}");
    let output = done["output"].as_array().unwrap();
    let answer = output.iter().find(|item| item["type"] == "function_call").unwrap();
    assert_eq!(answer["name"], "f");
    assert_eq!(tool::json(answer["arguments"].as_str().unwrap()), json!({ "n": 7 }));
    let pieces =
        streamed.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
    let pieces: String = pieces.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(answer["arguments"], pieces);
    let next = json!({
        "input": [
            { "role": "user", "content": "Call it." }, answer,
            { "type": "function_call_output", "call_id": answer["call_id"], "output": "4" },
        ],
        "tools": [tool], "temperature": 0, "max_output_tokens": 40,
        "text": { "format": { "type": "json_schema", "name": "n", "schema": { "const": 7 } } },
    });
    let next = server.post("/v1/responses", &next).ok();
    assert_eq!(next["output"][0]["content"][0]["text"], "7");
    assert_eq!(next["status"], "completed");
}

#[test]
fn the_page_shows_the_server() {
    let server = Serving::start(&fixture("lfm2"), &[]);
    let page = server.get("/");
    assert_eq!(page.status, 200, "{page:?}");
    assert!(
        page.head.contains("content-type: text/html") && page.head.contains("default-src 'none'")
    );
    for path in ["/v1/chat/completions", "/v1/responses", "/metrics"] {
        assert!(page.body.contains(path), "{path}");
    }
    server.get("/v1/nothing").refused(404, "/v1/responses");
}
