//! Request bodies: read within bounds of size, memory and time, then parsed strictly.

use std::pin::pin;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::ApiError;
use crate::object::{self, NeutralField};
use crate::state::{LAST_REQUEST, ServerState, UNIT};

/// Bytes of every body that need no reservation, so that large bodies do not keep small requests out. The
/// number of connections limits their memory.
const SMALL: usize = 128 << 10;

/// Reads a JSON object, without the neutral fields.
pub(crate) async fn read<T: DeserializeOwned>(
    state: &ServerState,
    request: Request,
    neutral: &[NeutralField],
) -> Result<T, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("the content type is `{kind}`; expected `application/json`"),
        ));
    }
    let coding = request.headers().get(header::CONTENT_ENCODING);
    if let Some(coding) =
        coding.filter(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!(
                "the content encoding is `{}`; send the body without compression",
                coding.to_str().unwrap_or("not text")
            ),
        ));
    }
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > state.options.body as u64) {
        return Err(too_large(state.options.body));
    }
    let (bytes, _permits) = bytes(state, request.into_body()).await?;
    object::parse(&bytes, neutral)
}

/// Reads a body; the permits are for its memory.
async fn bytes(
    state: &ServerState,
    body: Body,
) -> Result<(Vec<u8>, Vec<SemaphorePermit<'_>>), ApiError> {
    let deadline = Instant::now() + state.options.client_time;
    let mut received = Vec::new();
    let mut permits = Vec::new();
    let mut stream = body.into_data_stream();
    let mut stopping = state.stopping.subscribe();
    let mut stopped = pin!(async {
        stopping.wait_for(|stopping| *stopping).await.ok();
        sleep(LAST_REQUEST).await;
    });
    loop {
        let next = tokio::select! {
            biased;
            next = timeout_at(deadline, stream.next()) => next,
            () = &mut stopped => return Err(ApiError::stopping()),
        };
        let next = next.map_err(|_| {
            ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                format!(
                    "the body did not arrive within {} seconds",
                    state.options.client_time.as_secs_f32()
                ),
            )
        })?;
        let Some(piece) = next else { return Ok((received, permits)) };
        let piece = piece.map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}"))
        })?;
        let total = received.len().saturating_add(piece.len());
        if total > state.options.body {
            return Err(too_large(state.options.body));
        }
        while permits.len() * UNIT + SMALL < total {
            permits.push(state.bodies.try_acquire().map_err(|_| {
                ApiError::coded(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "bodies_full",
                    format!(
                        "too many requests of more than {} KiB arrive at a time; try again later",
                        SMALL >> 10
                    ),
                )
            })?);
        }
        received.extend_from_slice(&piece);
    }
}

/// Returns the number of memory units for all bodies together.
pub(crate) fn units(body: usize) -> usize {
    body.saturating_mul(8).max(64 << 20) / UNIT + 1
}

fn too_large(limit: usize) -> ApiError {
    ApiError::coded(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("the body has more than {limit} bytes, the most that this server takes"),
    )
}
