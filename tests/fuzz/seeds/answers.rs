//! Responses of inference servers, one file for each address and kind of request.

use std::f64::consts::{LN_2, LN_10};
use std::io;

use serde_json::{Map, Value, json};

use crate::case::Case;
use crate::seeds::Sources;

/// Log-probabilities of six tokens, whose probabilities add up to 1.
const ROW: [f64; 6] = [-LN_2, -LN_10, -LN_10, -LN_10, -LN_10, -LN_10];

/// Returns the list of models of a server.
fn models(owner: &str) -> Value {
    let model = json!({"id": "m", "owned_by": owner, "root": "/m", "meta": {"n_vocab": 6}});
    json!({"object": "list", "data": [model]})
}

/// Returns an object with an entry for each token.
fn row(entry: fn(usize) -> (String, Value)) -> Value {
    (0..6).map(entry).collect::<Map<_, _>>().into()
}

/// Returns a server with these responses.
fn case(files: &[(&str, Value)]) -> Case {
    Case {
        files: files
            .iter()
            .map(|(name, value): &(&str, Value)| {
                ((*name).to_owned(), value.to_string().into_bytes())
            })
            .collect(),
        ..Case::default()
    }
}

/// Returns a list of 2 MiB, in which each item takes a hundred times its text if it is kept.
fn many(item: &str) -> String {
    format!("[{}{item}]", format!("{item},").repeat((2 << 20) / item.len()))
}

/// Returns a server with one response replaced by a large text.
fn large(name: &str, files: &[(&str, Value)], text: String) -> Case {
    let mut large = case(files);
    large.files.insert(name.to_owned(), text.into_bytes());
    Case { hostile: true, ..large }
}

/// Returns one server of each API, with a prompt of three tokens and two generated ones.
#[expect(clippy::unnecessary_wraps, reason = "every kind has seeds of one type")]
pub(crate) fn answers(_: &Sources) -> io::Result<Vec<Case>> {
    let map = row(|id| (id.to_string(), json!({"rank": id, "logprob": ROW[id]})));
    let named = row(|id| (format!("token_id:{id}"), json!(ROW[id])));
    let pairs: Vec<Value> = (0..6).map(|id| json!([ROW[id], id, null])).collect();
    let tops: Vec<Value> = (0..6).map(|id| json!({"id": id, "logprob": ROW[id]})).collect();
    let logprobs = json!({
        "tokens": ["token_id:0", "token_id:0"],
        "token_logprobs": [ROW[0], ROW[0]],
        "top_logprobs": [named, named],
    });
    let vllm = [
        ("version.json", json!({"version": "0.33.0"})),
        ("v1_models.json", models("vllm")),
        ("v1_completions.rows.json", json!({"choices": [{"prompt_logprobs": [null, map, map]}]})),
        (
            "v1_completions.json",
            json!({"choices": [{"prompt_token_ids": [1, 2, 3], "token_ids": [0, 0], "logprobs": logprobs}]}),
        ),
    ];
    let outputs = json!([[ROW[0], 0, null], [ROW[0], 0, null]]);
    let sglang = [
        ("server_info.json", json!({"version": "0.5.23", "tp_size": 1, "dtype": "float32"})),
        ("v1_models.json", models("sglang")),
        (
            "generate.rows.json",
            json!({"text": "", "output_ids": [0], "meta_info": {
                "input_token_logprobs": [[null, 1, null], [ROW[2], 2, null]],
                "input_top_logprobs": [null, pairs],
                "output_token_logprobs": [[ROW[0], 0, null]],
                "output_top_logprobs": [pairs],
            }}),
        ),
        (
            "generate.json",
            json!({"text": "", "output_ids": [0, 0], "meta_info": {
                "prompt_tokens": 3, "output_token_logprobs": outputs, "output_top_logprobs": [pairs, pairs],
            }}),
        ),
    ];
    let one = json!({"id": 0, "logprob": ROW[0], "top_logprobs": tops});
    let llama = [
        ("props.json", json!({"default_generation_settings": {"n_ctx": 512}, "total_slots": 4})),
        ("v1_models.json", models("llamacpp")),
        ("completion.json", json!({"tokens": [0], "completion_probabilities": [one]})),
    ];
    let openai = [
        ("v1_models.json", models("someone")),
        (
            "v1_completions.rows.json",
            json!({"choices": [{"logprobs": {
                "tokens": ["x", "x", "x"], "token_logprobs": [null, ROW[2], ROW[3]], "top_logprobs": null,
            }}]}),
        ),
        ("v1_completions.json", json!({"choices": [{"token_ids": [0, 0], "logprobs": logprobs}]})),
    ];
    let maps = many("{\"a\":1}");
    let top = format!("{{\"tokens\":[],\"token_logprobs\":[],\"top_logprobs\":{maps}}}");
    Ok(vec![
        case(&vllm),
        case(&sglang),
        case(&llama),
        case(&openai),
        large("v1_models.json", &vllm, format!("{{\"data\":{maps}}}")),
        large("version.json", &vllm, format!("{{\"version\":{}}}", many("{}"))),
        large("props.json", &llama, format!("{{\"default_generation_settings\":{maps}}}")),
        large("v1_completions.json", &openai, format!("{{\"choices\":{}}}", many("{}"))),
        large("v1_completions.json", &vllm, format!("{{\"choices\":[{{\"logprobs\":{top}}}]}}")),
        large("generate.json", &sglang, many("{\"meta_info\":{}}")),
    ])
}
