//! Reports of the server about itself, and its tokenizer.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use chat::{ChatRequest, OrderedJson};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::ServerState;
use crate::{body, chat_completions};

/// Says that the server works, and how it computes.
pub(crate) async fn health(State(state): State<Arc<ServerState>>) -> Response {
    let stopping = *state.stopping.borrow();
    let report = json!({
        "status": if stopping { "stopping" } else { "ok" },
        "server": "onboard",
        "version": env!("CARGO_PKG_VERSION"),
        "model": state.name,
        "engine": "native",
        "dtype": state.dtype,
        "arithmetic": state.arithmetic,
        "context": state.context,
        "vocab": state.vocab,
        "slots": state.options.slots,
        "cache_tokens": state.positions,
        "deterministic": true,
        "determinism": "An answer has the same bits alone and in any batch, with any prefix reuse; with a temperature \
                        above 0 the same `seed` gives the same answer.",
    });
    let status = if stopping { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(report)).into_response()
}

/// Says the version.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "server": "onboard" }))
}

fn card(state: &ServerState) -> Value {
    json!({
        "id": state.name, "object": "model", "created": state.created, "owned_by": "onboard",
        "root": state.name, "max_model_len": state.context, "meta": { "n_vocab": state.vocab },
        "dtype": state.dtype,
    })
}

/// Lists the model.
pub(crate) async fn models(State(state): State<Arc<ServerState>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [card(&state)] }))
}

/// Describes the model.
pub(crate) async fn model(
    State(state): State<Arc<ServerState>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    state.check_model(Some(&name))?;
    Ok(Json(card(&state)))
}

/// Lists the counters.
pub(crate) async fn metrics(State(state): State<Arc<ServerState>>) -> Response {
    let text = state.metrics.text(state.queue.len(), state.options.slots, state.positions);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenizeFields {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<OrderedJson>>,
    tools: Option<Vec<OrderedJson>>,
    add_generation_prompt: Option<bool>,
    chat_template_kwargs: Option<OrderedJson>,
    add_special_tokens: Option<bool>,
    return_token_strs: Option<bool>,
}

/// Returns the tokens of a text, or of the prompt of a conversation.
pub(crate) async fn tokenize(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let guard = state.begin()?;
    let fields: TokenizeFields = body::read(&state, request, &[]).await?;
    state.check_model(fields.model.as_ref())?;
    let (text, special) = match (fields.prompt, fields.messages) {
        (Some(text), None) => {
            state.check_text(&text, "prompt")?;
            (text, true)
        }
        (None, Some(messages)) => {
            let request = ChatRequest {
                messages,
                tools: fields.tools.filter(|tools| !tools.is_empty()),
                documents: None,
                add_generation_prompt: fields.add_generation_prompt.unwrap_or(true),
                continue_final_message: false,
                variables: chat_completions::variables(fields.chat_template_kwargs)?,
                now: None,
            };
            (guard.within(chat_completions::render(&state, request)).await?.1, false)
        }
        _ => {
            let message = "expected either `prompt` or `messages`";
            return Err(ApiError::field("prompt", message));
        }
    };
    let special = fields.add_special_tokens.unwrap_or(special);
    let tokens = guard.within(state.encode(vec![text], special)).await?.concat();
    let strings = fields.return_token_strs == Some(true);
    let server = Arc::clone(&state);
    let written = state.work(0, move || tokenize_answer(&server, &tokens, strings));
    let bytes = guard.within(written).await?.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be written as JSON")
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// Writes the answer with tokens, and their texts if `strings`.
fn tokenize_answer(
    server: &ServerState,
    tokens: &[u32],
    strings: bool,
) -> serde_json::Result<Vec<u8>> {
    let token_strs =
        strings.then(|| tokens.iter().map(|id| server.texts.text(*id)).collect::<Vec<_>>());
    let count = tokens.len();
    serde_json::to_vec(&TokenizeAnswer { count, max_model_len: server.context, tokens, token_strs })
}

#[derive(Serialize)]
struct TokenizeAnswer<'a> {
    count: usize,
    max_model_len: usize,
    tokens: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<&'a str>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DetokenizeFields {
    model: Option<String>,
    tokens: Vec<u32>,
    skip_special_tokens: Option<bool>,
}

/// Returns the text of tokens.
pub(crate) async fn detokenize(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let guard = state.begin()?;
    let fields: DetokenizeFields = body::read(&state, request, &[]).await?;
    state.check_model(fields.model.as_ref())?;
    let vocab = state.input_vocab;
    if let Some(id) = fields.tokens.iter().find(|id| **id as usize >= vocab) {
        let message = format!("`tokens` has {id}; expected ids below {vocab}");
        return Err(ApiError::field("tokens", message));
    }
    let codec = state.codec.clone().ok_or_else(|| {
        ApiError::new(StatusCode::BAD_REQUEST, "the model has no tokenizer, so texts are not known")
    })?;
    let plain = fields.skip_special_tokens.unwrap_or(false);
    let tokens = fields.tokens;
    let bytes = tokens.len().saturating_mul(size_of::<u32>());
    let text =
        guard.within(state.work(bytes, move || codec.decode(&tokens, plain))).await?.map_err(
            |error| ApiError::field("tokens", format!("the tokens cannot be decoded: {error}")),
        )?;
    Ok(Json(json!({ "prompt": text })))
}
