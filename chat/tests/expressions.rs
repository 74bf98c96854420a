//! Compares small expressions and templates of Jinja with their results in transformers.
//!
//! `expressions.py` writes `expressions.jsonl`. `expressions_known.txt` lists the expressions that differ, each with a
//! reason of `docs/chat.md`; `UPDATE=1` writes it again.

use std::collections::BTreeMap;
use std::path::Path;

use onboard_chat::{ChatRequest, OrderedJson, Template};

/// Returns the text of an expression or a template; none if it is refused.
fn rendered(expression: &str, request: &ChatRequest) -> Option<String> {
    let is_template = ["{{", "{%", "{#"].iter().any(|mark| expression.contains(mark));
    let source =
        if is_template { expression.to_owned() } else { format!("{{{{ {expression} }}}}") };
    Template::from_source("expression", &source, Vec::<(String, String)>::new())
        .render(request)
        .ok()
}

#[test]
fn expressions_are_those_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let lines = fs_err::read_to_string(folder.join("expressions.jsonl")).unwrap();
    let known_file = folder.join("expressions_known.txt");
    let known_text = fs_err::read_to_string(&known_file).unwrap_or_default();
    let mut reasons: BTreeMap<&str, &str> = BTreeMap::new();
    for line in known_text.lines() {
        let (reason, expression) = line.split_once('\t').unwrap();
        reasons.insert(expression, reason);
    }
    let conversation = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello "}]}"#;
    let request = ChatRequest::from_json(&OrderedJson::parse(conversation).unwrap()).unwrap();
    let mut count = 0;
    let mut differing = Vec::new();
    let mut details = Vec::new();
    for line in lines.lines() {
        let OrderedJson::List(pair) = OrderedJson::parse(line).unwrap() else { panic!("{line}") };
        let [expression, expected] = pair.as_slice() else { panic!("{line}") };
        let expression = expression.as_str().unwrap();
        let ours = rendered(expression, &request);
        count += 1;
        if ours.as_deref() != expected.as_str() {
            let reason = reasons.get(expression).copied().unwrap_or("new");
            details.push(format!("{reason}\t{expression}\t{ours:?}, expected {expected:?}"));
            differing.push(format!("{reason}\t{expression}"));
        }
    }
    assert!(count > 5_000, "{count} expressions");
    if std::env::var_os("ONBOARD_DETAILS").is_some() {
        println!("{}", details.join("\n"));
    }
    differing.sort();
    let differing = differing.join("\n") + "\n";
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&known_file, &differing).unwrap();
    }
    assert!(
        !differing.contains("new\t"),
        "expressions differ without a reason: {}",
        details.join("\n")
    );
    assert_eq!(differing, known_text, "{known_file:?} is not up to date; UPDATE=1 writes it");
}
