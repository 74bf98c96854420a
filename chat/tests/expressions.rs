//! Compares expressions and statements with their results in transformers' environment.
//!
//! `chat/tests/expressions.py` writes the golden file. `ONBOARD_EXPRESSIONS` names another one.

use std::path::{Path, PathBuf};

use onboard_chat::{ChatRequest, OrderedJson, Template};

#[test]
fn expressions_give_what_transformers_gives() {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expressions.json");
    let path = std::env::var_os("ONBOARD_EXPRESSIONS").map_or_else(own, PathBuf::from);
    let golden = OrderedJson::parse(&fs_err::read_to_string(path).unwrap()).unwrap();
    let OrderedJson::Map(variables) = golden.get("variables").unwrap() else { panic!("variables") };
    let OrderedJson::List(cases) = golden.get("cases").unwrap() else { panic!("cases") };
    let now = golden.get("now").and_then(OrderedJson::as_str).unwrap().parse().unwrap();
    let message = OrderedJson::parse(r#"{"role": "user", "content": "x"}"#).unwrap();
    let request = ChatRequest {
        messages: vec![message],
        variables: variables.clone(),
        now: Some(now),
        ..ChatRequest::default()
    };
    let (mut same, mut faults) = (0, Vec::new());
    for case in cases {
        let source = case.get("source").and_then(OrderedJson::as_str).unwrap();
        let ours = Template::from_source("case", source, []).render(&request);
        match (case.get("text").and_then(OrderedJson::as_str), ours) {
            (Some(text), Ok(ours)) if text == ours => same += 1,
            (None, Err(_)) => same += 1,
            (Some(text), Ok(ours)) => {
                faults.push(format!("{source:?}: expected {text:?}, found {ours:?}"));
            }
            (Some(text), Err(error)) => {
                faults.push(format!("{source:?}: expected {text:?}, found the error {error}"));
            }
            (None, Ok(ours)) => {
                let error = case.get("error").and_then(OrderedJson::as_str).unwrap();
                faults.push(format!("{source:?}: expected the error {error:?}, found {ours:?}"));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{same} of {} are equal; these differ:\n{}",
        cases.len(),
        faults.join("\n")
    );
}
