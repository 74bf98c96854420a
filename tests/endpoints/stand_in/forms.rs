//! HTTP APIs of stand-ins, with the parts that clients read.

use serde_json::{Map, Value, json};

use super::http::Answer;
use super::{Fault, Form, State, by_id};

/// Responds to a request; none for an address that this API does not have.
pub(super) fn answer(state: &State, path: &str, body: &Value) -> Option<Answer> {
    let vocab = state.running.lock().unwrap().vocab;
    let owner = match state.form {
        Form::Vllm => "vllm",
        Form::Sglang => "sglang",
        Form::LlamaServer => "llamacpp",
        Form::OpenAi | Form::Text => "someone",
    };
    let value = match (state.form, path) {
        (_, "/v1/models") => {
            let mut model =
                json!({ "id": "stand-in", "owned_by": owner, "root": "/models/stand-in" });
            if state.fault == Fault::NoRoom {
                model["max_model_len"] = json!(2);
            }
            if state.form == Form::LlamaServer {
                model["meta"] = json!({ "n_vocab": vocab });
            }
            json!({ "object": "list", "data": [model] })
        }
        (_, "/health") => json!({ "status": "ok" }),
        (Form::Vllm, "/version") => json!({ "version": "0.33.0" }),
        (Form::Sglang, "/server_info") => {
            json!({ "version": "0.5.23", "tp_size": 1, "dtype": "float32" })
        }
        (Form::LlamaServer, "/props") => {
            json!({ "default_generation_settings": { "n_ctx": 512 }, "total_slots": 4 })
        }
        (Form::Vllm, "/v1/completions") => return Some(vllm(state, body)),
        (Form::Sglang, "/generate") => sglang(state, body),
        (Form::LlamaServer, "/completion") => llama_server(state, body),
        (Form::OpenAi, "/v1/completions") => openai(state, body),
        (Form::Text, "/v1/completions") => {
            let text = body["prompt"].as_str();
            let Some(text) = text else {
                return Some((400, r#"{"error": {"message": "prompt must be text"}}"#.to_owned()));
            };
            json!({ "choices": [{ "text": "x" }], "usage": { "prompt_tokens": text.split(' ').count() } })
        }
        _ => return None,
    };
    Some((200, value.to_string()))
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// Returns the ids that the server claims to have received.
fn echo(state: &State, tokens: &[u32]) -> Vec<u32> {
    state.company(tokens)
}

fn vllm(state: &State, body: &Value) -> Answer {
    let tokens = ids(&body["prompt"]);
    let cache = body.get("cache_salt").is_none();
    let mut choice = json!({ "prompt_token_ids": echo(state, &tokens) });
    if let Some(count) = body.get("prompt_logprobs").and_then(Value::as_i64) {
        if let Some(refusal) = limited(state, "prompt", count) {
            return refusal;
        }
        let top = if count < 0 { usize::MAX } else { count as usize };
        let rows = state.rows(&tokens, cache);
        let mut all = vec![Value::Null];
        for (row, next) in rows.iter().zip(&tokens[1..]) {
            let mut entries = by_id(row, top);
            entries.insert(*next, row[*next as usize]);
            let mut map = Map::new();
            for (rank, (id, logprob)) in entries.iter().enumerate() {
                map.insert(
                    id.to_string(),
                    json!({ "rank": rank, "decoded_token": "x", "logprob": logprob }),
                );
            }
            if state.fault == Fault::Beyond {
                map.insert("99999".to_owned(), json!({ "logprob": -20.0 }));
            }
            if state.fault == Fault::OneRow && all.len() > 1 {
                map.clear();
            }
            all.push(Value::Object(map));
        }
        if state.fault == Fault::FewRows {
            all.pop();
        }
        choice["prompt_logprobs"] = Value::Array(all);
    }
    if let Some(count) = body.get("logprobs").and_then(Value::as_i64) {
        if let Some(refusal) = limited(state, "sample", count) {
            return refusal;
        }
        let few = state.fault == Fault::FewTokens || state.fault == Fault::FewWarm && cache;
        let length = body["max_tokens"].as_u64().unwrap() as usize;
        let generated = state.generate(&tokens, if few { length.min(2) } else { length }, cache);
        choice["token_ids"] = json!(generated.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        choice["logprobs"] = logprobs(&generated, body["logprobs"].as_u64().unwrap() as usize);
    }
    (200, json!({ "choices": [choice] }).to_string())
}

/// Returns the rejection of more log-probabilities than the server provides.
fn limited(state: &State, what: &str, count: i64) -> Option<Answer> {
    let Fault::Limit(limit) = state.fault else { return None };
    (!(0..=limit).contains(&count)).then(|| {
        let words = format!(
            "Requested {what} logprobs of {count}, which is greater than max allowed: {limit}"
        );
        (400, json!({ "error": { "message": words } }).to_string())
    })
}

fn token_name(id: u32) -> String {
    format!("token_id:{id}")
}

/// Formats log-probabilities of generated tokens as in completions.
fn logprobs(generated: &[(u32, Vec<f32>)], top: usize) -> Value {
    let tops = generated.iter().map(|(_, row)| {
        let entries = by_id(row, top).into_iter().map(|(id, value)| (token_name(id), json!(value)));
        Value::Object(entries.collect())
    });
    json!({
        "tokens": generated.iter().map(|(id, _)| token_name(*id)).collect::<Vec<_>>(),
        "token_logprobs": generated.iter().map(|(id, row)| row[*id as usize]).collect::<Vec<_>>(),
        "top_logprobs": tops.collect::<Vec<_>>(),
    })
}

fn pairs(row: &[f32], top: usize) -> Value {
    by_id(row, top).into_iter().map(|(id, value)| json!([value, id, null])).collect()
}

fn sglang(state: &State, body: &Value) -> Value {
    let tokens = ids(&body["input_ids"]);
    let cache = body.get("extra_key").is_none();
    let top = body["top_logprobs_num"].as_u64().unwrap() as usize;
    let count = body["sampling_params"]["max_new_tokens"].as_u64().unwrap() as usize;
    let mut meta = json!({ "prompt_tokens": tokens.len() });
    let rows = state.rows(&tokens, cache);
    if body["logprob_start_len"] == json!(0) {
        let fed = echo(state, &tokens);
        let mut scores = vec![json!([null, fed[0], null])];
        let mut tops = vec![Value::Null];
        for (row, next) in rows.iter().zip(&fed[1..]) {
            scores.push(json!([row[*next as usize], next, null]));
            tops.push(pairs(row, top));
        }
        scores.truncate(tokens.len());
        tops.truncate(tokens.len());
        meta["input_token_logprobs"] = scores.into();
        meta["input_top_logprobs"] = tops.into();
    }
    let generated = state.generate(&tokens, count, cache);
    meta["output_token_logprobs"] =
        generated.iter().map(|(id, row)| json!([row[*id as usize], id, null])).collect();
    meta["output_top_logprobs"] = generated.iter().map(|(_, row)| pairs(row, top)).collect();
    let ids: Vec<u32> = generated.iter().map(|(id, _)| *id).collect();
    json!({ "text": "", "output_ids": ids, "meta_info": meta })
}

/// Divisor of the ids of incomplete characters in this stand-in, which hide their row if they come alone.
const HALF: u32 = 5;

fn llama_server(state: &State, body: &Value) -> Value {
    let tokens = ids(&body["prompt"]);
    let cache = body["cache_prompt"].as_bool().unwrap();
    let top = body["n_probs"].as_u64().unwrap() as usize;
    let count = body["n_predict"].as_u64().unwrap() as usize;
    let biased = body["logit_bias"][0][0].as_u64();
    let generated = state.generate(&tokens, count, cache);
    let mut probabilities = Vec::new();
    for (id, row) in &generated {
        let id = biased.map_or(*id, |id| id as u32);
        let tops =
            by_id(row, top).into_iter().map(|(id, value)| json!({ "id": id, "logprob": value }));
        probabilities.push(json!({ "id": id, "logprob": row[id as usize], "top_logprobs": tops.collect::<Vec<_>>() }));
    }
    let mut chosen: Vec<u32> = generated.iter().map(|(id, _)| *id).collect();
    // The text of a trailing incomplete character waits for the next token.
    if biased.is_none_or(|id| (id as u32).is_multiple_of(HALF))
        && chosen.last().is_some_and(|id| id.is_multiple_of(HALF))
    {
        chosen.pop();
        probabilities.pop();
    }
    json!({ "tokens": chosen, "tokens_evaluated": tokens.len(), "completion_probabilities": probabilities })
}

fn openai(state: &State, body: &Value) -> Value {
    let tokens = ids(&body["prompt"]);
    let count = body["max_tokens"].as_u64().unwrap() as usize;
    if body["echo"] == json!(true) {
        let rows = state.rows(&tokens, true);
        let scores = rows.iter().zip(&tokens[1..]).map(|(row, next)| json!(row[*next as usize]));
        let scores: Vec<Value> = std::iter::once(Value::Null).chain(scores).collect();
        let names = vec!["x"; tokens.len()];
        return json!({ "choices": [{ "logprobs": { "tokens": names, "token_logprobs": scores, "top_logprobs": null } }] });
    }
    let generated = state.generate(&tokens, count, true);
    let top = body["logprobs"].as_u64().unwrap() as usize;
    json!({ "choices": [{ "logprobs": logprobs(&generated, top) }] })
}
