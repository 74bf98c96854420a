//! Paths of the server, with the checks before every request.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::error::ApiError;
use crate::state::ServerState;
use crate::{chat_completions, completions, origin, page, reports, responses};

/// Paths with counters of their own.
const PATHS: [&str; 10] = [
    "/",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/health",
    "/version",
    "/metrics",
];

/// Returns the service of all paths.
pub(crate) fn router(state: Arc<ServerState>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat_completions::chat_completions))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/models", get(reports::models))
        .route("/v1/models/{*name}", get(reports::model))
        .route("/tokenize", post(reports::tokenize))
        .route("/detokenize", post(reports::detokenize))
        .route("/", get(page::page))
        .route("/health", get(reports::health))
        .route("/version", get(reports::version))
        .route("/metrics", get(reports::metrics))
        .fallback(missing)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), checked))
        .with_state(state)
}

async fn missing() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        format!("there is nothing at this path; there are {}", PATHS.join(", ")),
    )
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take the method of the request; requests with a body use POST, others GET",
    )
}

/// Checks the names of the server and the key, and counts the answer.
async fn checked(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let path = PATHS.into_iter().find(|known| *known == path).unwrap_or("other");
    // The page asks for the key, and holds nothing of the model.
    let open = path == "/health" || path == "/";
    let refused = origin::check(&state.options, &request).err();
    let response = match (refused, &state.options.api_key) {
        (Some(refused), _) => refused.into_response(),
        (None, Some(key)) if !open && !carries(request.headers(), key) => ApiError::coded(
            StatusCode::UNAUTHORIZED,
            "invalid_api_key",
            "the request does not carry the key of this server; expected the header `Authorization: Bearer KEY`",
        )
        .into_response(),
        _ => next.run(request).await,
    };
    state.metrics.answered(path, response.status().as_u16());
    response
}

/// True if the headers carry the key. Digests are compared in constant time, whatever the lengths are.
fn carries(headers: &HeaderMap, key: &str) -> bool {
    let value = headers.get(header::AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
    let given = match value.split_first_chunk::<7>() {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"bearer ") => given,
        _ => return false,
    };
    Sha256::digest(given).as_slice().ct_eq(Sha256::digest(key).as_slice()).into()
}
