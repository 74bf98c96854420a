//! Tests of `parity check` with servers: each HTTP API, and every fault of a stand-in.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod stand_in;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../support/tool.rs"]
mod tool;

use std::path::{Path, PathBuf};
use std::process::Command;

use parity::edit::Change;
use registry::dtype::Dtype;
use registry::graph::{Node, ValueId};
use registry::model::Model;
use registry::rope::RopeTable;
use registry::scalar::Scalar;
use stand_in::{Fault, Form, Products, StandIn, Twist};
use tool::{Ran, convert, fixture, json, onboard, parity, run};

/// Runs `parity check` of a fixture against a server.
fn check(name: &str, url: &str) -> Command {
    let mut command = parity();
    command.env_remove("ONBOARD_API_KEY");
    command.arg("check").arg(fixture(name)).args(["--dtype", "f32", "--engine", url]);
    command
}

fn ran(form: Form, twist: Twist, fault: Fault) -> Ran {
    let server = StandIn::start(form, "llama", twist, fault);
    run(&mut check("llama", &server.url))
}

#[test]
fn every_form_agrees() {
    for (form, title) in [
        (Form::Vllm, "on vllm 0.33.0 at http://127.0.0.1"),
        (Form::Sglang, "on sglang 0.5.23 at"),
        (Form::LlamaServer, "on llama-server at"),
        (Form::OpenAi, "on openai at"),
    ] {
        let ran =
            ran(form, Twist::None, Fault::None).code(0).prints(title).prints("AGREE in 1 run");
        assert!(ran.out.contains("f32  prefill") && ran.out.contains("f32  decode"), "{}", ran.out);
        assert!(ran.out.contains("agree with one prefill"), "{}", ran.out);
    }
}

#[test]
fn a_server_without_a_dump_is_held_to_the_native_engine() {
    let server = StandIn::start(Form::Vllm, "llama", Twist::None, Fault::None);
    let dir = tempfile::tempdir().unwrap();
    tool::copy("llama", dir.path());
    let mut command = parity();
    command.arg("check").arg(dir.path()).args(["--engine", &server.url]);
    run(&mut command).code(0).prints("no dump by the native engine in f32").prints("AGREE");
    let server = StandIn::start(Form::Vllm, "llama", Twist::Theta, Fault::None);
    let mut command = parity();
    command.arg("check").arg(dir.path()).args(["--engine", &server.url]);
    run(&mut command).code(1).prints("row 0 is right and the later ones are wrong");
}

#[test]
fn the_likeliest_tokens_are_enough() {
    for (limit, twist, code, words) in [
        (20, Twist::None, 0, "the 20 likeliest tokens and the next one"),
        (20, Twist::Theta, 1, "the 20 likeliest tokens and the next one"),
        (7, Twist::None, 0, "the 5 likeliest tokens and the next one"),
        (0, Twist::None, 0, "rows of prompts: the next token alone"),
        (0, Twist::Theta, 1, "rows of prompts: the next token alone"),
    ] {
        let server = StandIn::start(Form::Vllm, "llama", twist, Fault::Limit(limit));
        run(&mut check("llama", &server.url))
            .code(code)
            .prints(words)
            .prints("start the server with `--max-logprobs -1`")
            .prints(&format!("max allowed: {limit}"));
    }
}

#[test]
fn a_wrong_graph_is_located() {
    ran(Form::Vllm, Twist::Theta, Fault::None).code(1).prints(
        "hint: row 0 is right and the later ones are wrong: positions (theta, scaling, layout)",
    );
    ran(Form::Vllm, Twist::GateUp, Fault::None)
        .code(1)
        .prints("hint: row 0 is wrong, where attention sees one token and its position is 0");
}

#[test]
fn a_wrong_graph_is_explained() {
    for (name, twist, words) in [
        ("smollm3", Twist::Theta, "  1. rope theta = 10000 instead of 2000000"),
        ("llama", Twist::GateUp, "  1. "),
    ] {
        let server = StandIn::start(Form::Vllm, name, twist, Fault::None);
        let mut command = check(name, &server.url);
        let ran = run(command.args(["--no-schedules", "--diagnose"])).code(1);
        assert!(
            ran.out.contains("everything that was observed agrees with it"),
            "{name}:\n{}",
            ran.out
        );
        assert!(ran.out.contains(words), "{name}: no `{words}` in\n{}", ran.out);
    }
}

#[test]
fn another_model_is_no_faulty_engine() {
    ran(Form::Vllm, Twist::Other, Fault::None)
        .code(2)
        .says("serves another model than `")
        .says("nothing in common")
        .says("`/models/stand-in`");
    // This server exposes only generated tokens.
    ran(Form::OpenAi, Twist::Other, Fault::None).code(2).says("nothing in common");
    let server = StandIn::start(Form::LlamaServer, "lfm2", Twist::None, Fault::None);
    run(&mut check("llama", &server.url))
        .code(2)
        .says("its vocabulary has 312 tokens, and this one 369");
}

/// Returns the names of the schedules that fail.
fn broken(ran: &Ran) -> Vec<String> {
    let report = json(&ran.out);
    let rows = report["schedules"].as_array().unwrap();
    let failed = rows.iter().filter(|row| row["verdict"] == "fail");
    failed.map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn leaks_are_named_by_their_schedule() {
    for (name, fault, schedules) in [
        ("mamba2", Fault::ConvLeak, &["after another"][..]),
        ("llama", Fault::StalePrefix, &["warm prefix"]),
        ("llama", Fault::Padding, &["mixed batch", "scored together"]),
        ("llama", Fault::FewWarm, &["again", "crowd"]),
    ] {
        let server = StandIn::start(Form::Vllm, name, Twist::None, fault);
        let ran = run(check(name, &server.url).arg("--json")).code(1);
        let broken = broken(&ran);
        for schedule in schedules {
            assert!(broken.iter().any(|name| name == schedule), "{fault:?}: {broken:?}");
        }
        if fault == Fault::Padding {
            assert!(
                broken.iter().all(
                    |name| ["mixed batch", "crowd", "scored together"].contains(&name.as_str())
                ),
                "{broken:?}"
            );
        }
    }
}

#[test]
fn answers_are_held_to_what_every_answer_is() {
    for (fault, words) in [
        (Fault::NotGreedy, "not greedy at temperature 0"),
        (Fault::ExtraBos, "it adds a token at the beginning, as a second BOS"),
        (Fault::Flat, "all tokens are equally likely"),
        (Fault::Sum, "add up to 1."),
        (Fault::FewTokens, "the server generated 2 tokens; 16 were asked for"),
        (Fault::OneRow, "the row has log-probabilities of 0 tokens; 369 were asked for"),
    ] {
        let ran = ran(Form::Vllm, Twist::None, fault).code(1);
        assert!(ran.out.contains(words), "{fault:?}: no `{words}` in\n{}", ran.out);
    }
}

#[test]
fn unusable_answers_are_errors_with_a_remedy() {
    for (form, fault, words) in [
        (Form::Vllm, Fault::Garbage, "it is no JSON"),
        (Form::Vllm, Fault::Cut, "it breaks off after"),
        (Form::Vllm, Fault::Nan, "a number is `NaN`"),
        (Form::Sglang, Fault::Nan, "a number is `NaN`"),
        (Form::LlamaServer, Fault::Nan, "a number is `NaN`"),
        (Form::Vllm, Fault::Huge, "number out of range"),
        (Form::Vllm, Fault::Beyond, "id 99999, and the model has 369 tokens"),
        (Form::Vllm, Fault::FewRows, "`prompt_logprobs` has 2 entries for 3 tokens"),
        (Form::Vllm, Fault::Redirect, "it redirects to `http://127.0.0.2:1/v1` (307)"),
        (Form::Vllm, Fault::Status(404), "answered 404: `the model is having a rest`"),
        (
            Form::Sglang,
            Fault::Status(500),
            "answered 500: `the model is having a rest`; look into the server's log",
        ),
        (Form::Vllm, Fault::Status(403), "ONBOARD_API_KEY"),
        (Form::Vllm, Fault::Dies(30), "start the server, or correct the address"),
        (Form::Text, Fault::None, "parity is not provable here"),
        (Form::Vllm, Fault::NoRoom, "has room for 2 tokens"),
    ] {
        let ran = ran(form, Twist::None, fault).code(2);
        assert!(ran.err.contains(words), "{form:?} {fault:?}: no `{words}` in\n{}", ran.err);
    }
}

#[test]
fn time_and_size_are_limited() {
    for (fault, words) in [
        (
            Fault::Slow,
            "no complete answer in time; give it more time with --engine-option timeout=SECONDS",
        ),
        (Fault::Endless, "no complete answer in time"),
    ] {
        let server = StandIn::start(Form::Vllm, "llama", Twist::None, fault);
        let mut command = check("llama", &server.url);
        let ran = run(command.args(["--engine-option", "timeout=0.4"])).code(2);
        let longer = ran.err.contains("is longer than");
        assert!(
            ran.err.contains(words) || fault == Fault::Endless && longer,
            "{fault:?}\n{}",
            ran.err
        );
    }
}

/// A wait that a server asks for ends with the time of the request, and a report takes little memory.
#[test]
fn servers_decide_over_neither_time_nor_memory() {
    let server = StandIn::start(Form::Vllm, "llama", Twist::None, Fault::Tomorrow(503));
    let mut command = check("llama", &server.url);
    run(command.args(["--engine-timeout", "5"])).code(2).says("answered 503");
    // No attempt came after the wait that has no end.
    let posts = server.seen().iter().filter(|line| line.starts_with("POST")).count();
    assert_eq!(posts, 1, "{:?}", server.seen());
    for (bytes, words) in [(60 << 20, "is longer than 8388608 bytes"), (7 << 20, "too many values")]
    {
        let server = StandIn::start(Form::OpenAi, "llama", Twist::None, Fault::ManyModels(bytes));
        run(&mut check("llama", &server.url)).code(2).says(words);
    }
}

#[test]
fn what_may_pass_is_tried_again() {
    let server = StandIn::start(Form::Vllm, "llama", Twist::None, Fault::Busy(429, 2));
    run(check("llama", &server.url).arg("--no-schedules")).code(0);
}

#[test]
fn a_server_that_loads_its_model_is_no_unknown_one() {
    let server = StandIn::start(Form::LlamaServer, "llama", Twist::None, Fault::Loading);
    run(check("llama", &server.url).args(["--engine-timeout", "2"]))
        .code(2)
        .says("answered 503: `Loading model`; wait until the server has loaded its model");
}

#[test]
fn the_key_is_sent_and_asked_for() {
    let server = StandIn::with_key(Form::Vllm, "llama", Twist::None, Fault::None, Some("s3cret"));
    run(&mut check("llama", &server.url))
        .code(2)
        .says("answered 401: `Invalid API key`")
        .says("put the key into ONBOARD_API_KEY");
    let mut command = check("llama", &server.url);
    let ran = run(command.arg("--no-schedules").env("ONBOARD_API_KEY", "s3cret")).code(0);
    assert!(!ran.out.contains("s3cret") && !ran.err.contains("s3cret"));
    let mut command = check("llama", &server.url);
    command
        .arg("--no-schedules")
        .env("MY_KEY", "s3cret")
        .args(["--engine-option", "key-env=MY_KEY"]);
    run(&mut command).code(0);
    assert!(server.seen().iter().any(|line| line.ends_with("Bearer s3cret")));
}

#[test]
fn settings_and_addresses_are_checked() {
    let server = StandIn::start(Form::Vllm, "llama", Twist::None, Fault::None);
    for (option, words) in [
        ("model=other", "does not serve `other`; it serves `stand-in`"),
        ("driver=nobody", "there is no driver `nobody`; expected one of"),
        ("timeout=soon", "`soon` is no time"),
        ("top=0", "expected 1 to"),
        ("key-env=NOT_SET_ANYWHERE", "is not set"),
        ("ca=/nonexistent.pem", "cannot read"),
        ("insecure=maybe", "neither `true` nor `false`"),
        ("x=1", "there is no such setting of a server"),
    ] {
        let ran = run(check("llama", &server.url).args(["--engine-option", option])).code(2);
        assert!(ran.err.contains(words), "{option}: no `{words}` in\n{}", ran.err);
    }
    run(&mut check("llama", "http://127.0.0.1:9"))
        .code(2)
        .says("no connection")
        .says("start the server");
    run(&mut check("llama", "http://user@127.0.0.1:9")).code(2).says("is no address of a server");
    run(onboard().args(["engine", "list"]))
        .code(0)
        .prints("llama-server")
        .prints("--engine http://HOST:PORT");
}

/// Returns a quantized file of a fixture in a folder of its own.
fn quantized(dir: &Path, name: &str, to: &str) -> PathBuf {
    let file = dir.join(format!("{name}.gguf"));
    run(convert().arg(fixture(name)).args(["--to", to, "-o"]).arg(&file)).code(0);
    file
}

fn check_file(file: &Path, server: &StandIn) -> Ran {
    let mut command = parity();
    run(command.arg("check").arg(file).args(["--engine", &server.url]))
}

fn nodes<'m>(model: &'m Model, op: &str) -> Vec<(usize, &'m Node)> {
    model.graph.nodes.iter().enumerate().filter(|(_, node)| node.op == op).collect()
}

fn set(model: &mut Model, op: &str, key: &str, value: f64) {
    let values = nodes(model, op).into_iter().map(|(n, _)| (n, Scalar::Float(value))).collect();
    Change::Argument { key: key.to_owned(), values }.apply(model);
}

fn sound(_: &mut Model) {}

fn other_theta(model: &mut Model) {
    let table = &model.ropes[0];
    let table = Box::new(RopeTable::plain(&table.name, table.dim, 2e6));
    Change::Table { rope: 0, table }.apply(model);
}

fn other_epsilon(model: &mut Model) {
    set(model, "rms_norm", "eps", 0.05);
}

/// Returns the nodes that read a value.
fn readers(model: &Model, value: ValueId) -> Vec<usize> {
    let nodes = model.graph.nodes.iter().enumerate();
    nodes.filter(|(_, node)| node.inputs.contains(&value)).map(|(n, _)| n).collect()
}

/// Lets attention of the last layer read keys and queries that are not rotated.
fn layer_without_rope(model: &mut Model) {
    let rotated = nodes(model, "rope");
    let last = rotated.iter().filter_map(|(_, node)| node.layer).max();
    let of_last = rotated.iter().filter(|(_, node)| node.layer == last);
    let around: Vec<(ValueId, ValueId)> =
        of_last.map(|(_, node)| (node.outputs[0], node.inputs[0])).collect();
    let reroutes = around.iter().map(|(from, to)| (readers(model, *from), *from, *to)).collect();
    Change::Reroute(reroutes).apply(model);
}

/// Rows of products are rounded to 8 bits, so the server is a tenth of a nat from exact arithmetic.
#[test]
fn rounded_products_are_no_difference() {
    let dir = tempfile::tempdir().unwrap();
    for (name, to, products) in
        [("llama_256", "gguf:q4_k_m", Products::OfFile), ("qwen3", "gguf:q8_0", Products::Integers)]
    {
        let file = quantized(dir.path(), name, to);
        let server = StandIn::of_file(&file, sound, products, Fault::None);
        check_file(&file, &server)
            .code(0)
            .prints("AGREE")
            .prints("rows of products are rounded to 8 bits with a scale for");
    }
}

/// Computes GELU in f16, as from a table of f16 numbers.
fn gelu_in_f16(model: &mut Model) {
    let nodes = nodes(model, "gelu_tanh").into_iter().map(|(n, _)| n).collect();
    Change::Narrow { nodes, dtype: Dtype::F16, inputs: true }.apply(model);
}

fn gelu_in_f16_with_other_epsilon(model: &mut Model) {
    gelu_in_f16(model);
    other_epsilon(model);
}

/// The sheet of the engine says which ops it rounds, for files of every type.
#[test]
fn rounded_ops_are_no_difference() {
    for to in ["gguf:f32", "gguf:f16", "gguf:q8_0"] {
        let dir = tempfile::tempdir().unwrap();
        let file = quantized(dir.path(), "gemma3_text", to);
        let server = StandIn::of_file(&file, gelu_in_f16, Products::OfFile, Fault::None);
        check_file(&file, &server).code(0).prints("AGREE").prints("`gelu_tanh` computes in f16");
        let faulty = gelu_in_f16_with_other_epsilon;
        let server = StandIn::of_file(&file, faulty, Products::OfFile, Fault::None);
        check_file(&file, &server).code(1).prints("DIFFER");
    }
}

#[test]
fn rounded_products_hide_no_wrong_graph() {
    let dir = tempfile::tempdir().unwrap();
    let file = quantized(dir.path(), "llama_256", "gguf:q4_k_m");
    for (edit, fault) in [
        (other_theta as fn(&mut Model), Fault::None),
        (other_epsilon, Fault::None),
        (layer_without_rope, Fault::None),
        (sound, Fault::StalePrefix),
        (sound, Fault::NotGreedy),
    ] {
        let server = StandIn::of_file(&file, edit, Products::OfFile, fault);
        check_file(&file, &server).code(1).prints("DIFFER");
    }
}
