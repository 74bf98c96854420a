//! Tests of `onboard run`: conversations through a chat template, and plain continuation without a terminal.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::tool::{Ran, convert, copy, fixture, json, onboard, run};

/// Runs `onboard run MODEL ...` with a text on standard input.
fn typed(model: &Path, more: &[&str], input: &str) -> Ran {
    typed_bytes(model, more, input.as_bytes())
}

fn typed_bytes(model: &Path, more: &[&str], input: &[u8]) -> Ran {
    let mut command = onboard();
    command.arg("run").arg(model).args(more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let out = child.wait_with_output().unwrap();
    Ran {
        code: out.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&out.stdout).into_owned(),
        err: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Returns the number of tokens in the prompt of an answer.
fn prompt_len(answer: &Value) -> usize {
    answer["prompt_tokens"].as_array().unwrap().len()
}

/// Splits printed objects.
fn objects(text: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(text).into_iter().map(Result::unwrap).collect()
}

fn ids(value: &Value) -> String {
    let ids = value.as_array().unwrap().iter().map(ToString::to_string);
    ids.collect::<Vec<_>>().join(",")
}

#[test]
fn a_conversation_goes_on_from_what_was_computed() {
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("m.gguf");
    run(convert().arg(fixture("qwen2")).args(["--to", "gguf:f32", "-o"]).arg(&path)).code(0);
    // One model takes its states back to a common beginning, and the other cannot.
    for model in [fixture("qwen2"), path, fixture("lfm2")] {
        let ran = typed(&model, &["--chat", "--json", "-n", "5"], "Hi\nWhy?\n/clear\nHi\n").code(0);
        let answers = objects(&ran.out);
        assert_eq!(answers.len(), 3, "{}", ran.out);
        assert!(prompt_len(&answers[1]) > prompt_len(&answers[0]), "{}", ran.out);
        assert_eq!(answers[0], answers[2], "{}", ran.out);
        for answer in &answers {
            let tokens = ids(&answer["tokens"]);
            let count = answer["tokens"].as_array().unwrap().len().to_string();
            let mut alone = onboard();
            alone.arg("run").arg(&model).args(["--tokens", &ids(&answer["prompt_tokens"])]);
            let alone = run(alone.args(["-n", &count])).code(0).out;
            assert_eq!(alone.trim(), tokens, "{answer:#}");
        }
    }
}

#[test]
fn commands_of_a_conversation_are_no_messages() {
    let model = fixture("qwen2");
    let ran =
        typed(&model, &["--chat", "--json", "-n", "2"], "/help\n/reset\n /help\n/a/b\n/clear x\n")
            .code(0);
    assert_eq!(objects(&ran.out).len(), 2, "{}", ran.out);
    ran.says("/clear forgets what was said")
        .says("`/reset` is no command")
        .says("`/clear` is a command of one word");
}

#[test]
fn a_message_without_an_answer_ends_no_conversation() {
    let model = fixture("qwen2");
    let long = "many words ".repeat(2000);
    let chat = ["--chat", "--json", "-n", "2"];
    let alone = objects(&typed(&model, &chat, "Hi\n").code(0).out);
    let ran = typed(&model, &chat, &format!("{long}\nHi\n")).code(2);
    assert_eq!(objects(&ran.out), alone, "{}", ran.out);
    ran.says("begin anew with /clear").says("1 message got no answer");
    let ran = typed_bytes(&model, &chat, b"\xff\xfe\nHi\n").code(2);
    assert_eq!(objects(&ran.out), alone, "{}", ran.out);
    ran.says("is not UTF-8").says("1 message got no answer");
}

#[test]
fn a_pipe_continues_text_and_a_flag_renders_it() {
    let model = fixture("qwen2");
    let plain = typed(&model, &["Hello", "-n", "4", "--json"], "").code(0);
    let same = typed(&model, &["-n", "4", "--json"], "Hello\n").code(0);
    assert_eq!(plain.out, same.out);
    let flag = typed(&model, &["--prompt", "Hello", "-n", "4", "--json", "--raw"], "").code(0);
    assert_eq!(plain.out, flag.out);
    let rendered = typed(&model, &["Hello", "-n", "4", "--json", "--chat"], "").code(0);
    let rendered_len = prompt_len(&json(&rendered.out));
    assert!(rendered_len > prompt_len(&json(&plain.out)), "{}", rendered.out);
    let system = ["Hello", "-n", "4", "--json", "--system", "Be brief."];
    assert!(prompt_len(&json(&typed(&model, &system, "").code(0).out)) > rendered_len);
    typed(&model, &["Hello", "--chat", "--raw"], "").code(2).says("--raw");
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    copy("mamba", &plain);
    fs_err::remove_file(plain.join("chat_template.jinja")).unwrap();
    typed(&plain, &["--chat"], "Hello\n").code(2).says("chat template");
}

/// Writes the generation config of a model, and returns an answer with it.
fn answer_with(model: &Path, settings: &str, more: &[&str]) -> Value {
    fs_err::write(model.join("generation_config.json"), settings).unwrap();
    let ran = typed(model, &[&["Hello", "--chat", "--json", "-n", "12"], more].concat(), "");
    json(&ran.code(0).out)
}

#[test]
fn an_answer_is_sampled_as_the_model_recommends_and_ends_at_its_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("qwen2", &model);
    let greedy = answer_with(&model, r#"{"temperature": 9.0}"#, &[]);
    let settings = r#"{"do_sample": true, "temperature": 9.0}"#;
    let sampled = answer_with(&model, settings, &[]);
    assert_ne!(greedy["tokens"], sampled["tokens"]);
    let cold = answer_with(&model, settings, &["--temperature", "0"]);
    assert_eq!(cold["tokens"], greedy["tokens"]);
    // Any token of the list ends an answer.
    let first = greedy["tokens"][2].as_u64().unwrap();
    let ended = answer_with(&model, &format!(r#"{{"eos_token_id": [1, {first}]}}"#), &[]);
    assert_eq!(ended["ended"], "end token", "{ended:#}");
    assert!(ended["tokens"].as_array().unwrap().len() <= 2, "{ended:#}");
}

#[test]
fn weights_that_are_not_repacked_give_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    run(convert().arg(fixture("llama_256")).args(["--to", "gguf:q4_k_m", "-o"]).arg(&file)).code(0);
    let plain = typed(&file, &["--tokens", "1,5,9", "-n", "8"], "").code(0);
    let flags = ["--tokens", "1,5,9", "-n", "8", "--no-repack"];
    assert_eq!(typed(&file, &flags, "").code(0).out, plain.out);
}
