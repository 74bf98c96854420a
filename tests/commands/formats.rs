//! Tests of `onboard formats`, and of the parsers that `onboard launch` names for a chat template.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::tool::{convert, copy, json as parsed, onboard, run};

/// Template that writes calls as JSON between tags, and reasoning.
const TEMPLATE: &str =
    "{% for m in messages %}{{ m.content }}{% endfor %}<think></think><tool_call></tool_call>";

/// Makes a checkpoint with a chat template, and a GGUF file of it.
fn model(template: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("model");
    copy("llama3", &folder);
    fs_err::write(folder.join("chat_template.jinja"), template).unwrap();
    let file = home.path().join("model.gguf");
    run(convert().arg(&folder).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    (home, folder, file)
}

fn launch(model: &Path, engine: &str, more: &[&str]) -> String {
    let out = run(onboard()
        .arg("launch")
        .arg(model)
        .args(["--engine", engine, "--gpu", "h100"])
        .args(more));
    out.code(0).out
}

#[test]
fn a_launch_names_the_parsers_of_the_chat_template() {
    let (_home, folder, file) = model(TEMPLATE);
    let vllm = launch(&folder, "vllm", &[]);
    for flag in
        ["--tool-call-parser hermes", "--enable-auto-tool-choice", "--reasoning-parser qwen3"]
    {
        assert!(vllm.contains(flag), "{flag}: {vllm}");
    }
    let sglang = launch(&folder, "sglang", &[]);
    assert!(sglang.contains("--tool-call-parser hermes"), "{sglang}");
    assert!(!sglang.contains("--enable-auto-tool-choice"), "{sglang}");
    let mine = launch(&folder, "vllm", &["--set", "tool_parser=xlam"]);
    assert!(mine.contains("--tool-call-parser xlam"), "{mine}");
    let llama = launch(&file, "llama.cpp", &[]);
    assert!(llama.contains("--jinja"), "{llama}");
    let plain = launch(&file, "llama.cpp", &["--set", "jinja=false"]);
    assert!(
        plain.contains("--no-jinja") && plain.contains("refuses requests with tools"),
        "{plain}"
    );
    // A template of calls without marks of reasoning names a parser of calls alone.
    let calls = TEMPLATE.replace("<think></think>", "");
    let (_home, folder, _) = model(&calls);
    for engine in ["vllm", "sglang"] {
        let plain = launch(&folder, engine, &[]);
        assert!(plain.contains("--tool-call-parser hermes"), "{plain}");
        assert!(!plain.contains("--reasoning-parser"), "{plain}");
    }
    // A template without tool calls names no parser.
    let (_home, folder, _) = model("{{ messages[0].content }}");
    let none = launch(&folder, "vllm", &[]);
    assert!(!none.contains("parser") && !none.contains("--enable-auto-tool-choice"), "{none}");
}

#[test]
fn formats_are_listed_shown_and_found() {
    let list = run(onboard().args(["formats", "list"])).code(0).out;
    assert!(list.contains("hermes") && list.contains("Qwen3"), "{list}");
    let list: Value = parsed(&run(onboard().args(["formats", "list", "--json"])).code(0).out);
    let hermes =
        list["formats"].as_array().unwrap().iter().find(|one| one["name"] == "hermes").unwrap();
    assert_eq!(hermes["engines"]["vllm"]["tools"], "hermes");
    let shown = run(onboard().args(["formats", "show", "hermes"])).code(0).out;
    assert!(shown.contains("- \"<tool_call>{ }{call}{ }</tool_call>\""), "{shown}");
    run(onboard().args(["formats", "show", "hermez"])).code(2).says("did you mean `hermes`?");
    let (home, folder, file) = model(TEMPLATE);
    let alone = home.path().join("alone.jinja");
    fs_err::write(&alone, TEMPLATE).unwrap();
    for model in [&folder, &file, &alone] {
        let printed = run(onboard().args(["formats", "find", "--json"]).arg(model)).code(0).out;
        assert_eq!(parsed(&printed)["format"]["name"], "hermes", "{printed}");
    }
    fs_err::write(&alone, "{{ messages }}").unwrap();
    run(onboard().args(["formats", "find"]).arg(&alone)).code(1).prints("no known format");
}

#[test]
fn outputs_are_read_from_the_standard_input() {
    let home = tempfile::tempdir().unwrap();
    let tools = home.path().join("tools.json");
    fs_err::write(
        &tools,
        r#"[{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}]"#,
    )
    .unwrap();
    let mut child = onboard()
        .args(["formats", "parse", "--tool-format", "qwen3_coder", "--inside-reasoning", "--tools"])
        .arg(&tools)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let text = "Adding.</think>Ü <tool_call><function=add><parameter=a>12</parameter></function></tool_call>";
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let out = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (key, text) in [("reasoning", "Adding."), ("content", "Ü")] {
        let joined: String = lines.iter().filter_map(|line| line[key].as_str()).collect();
        assert_eq!(joined, text);
    }
    let call = lines.iter().find(|line| line["call"].is_object()).unwrap();
    assert_eq!(call["call"]["name"], "add");
    let pieces: String =
        lines.iter().filter_map(|line| line["arguments"]["piece"].as_str()).collect();
    assert_eq!(pieces, r#"{"a": 12}"#);
    let end = &lines.last().unwrap()["end"];
    assert_eq!(end["calls"], 1);
    let bytes = end["bytes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap());
    assert_eq!(bytes.sum::<u64>(), text.len() as u64);
}
