//! Errors: of starting a server, and of requests in the form of the OpenAI API.

use std::net::SocketAddr;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Failure of a server as a whole.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum ServeError {
    #[error("cannot listen on {address}: {why}; choose another port, or 0 for any free one")]
    Listen { address: SocketAddr, why: std::io::Error },
    #[error("cannot start the threads of the server: {0}")]
    Threads(std::io::Error),
    #[error("`{name}` is 0; expected at least 1")]
    Zero { name: &'static str },
    #[error("`{name}` is {found}; expected at most {most}")]
    Above { name: &'static str, found: usize, most: usize },
    #[error(
        "the memory for {tokens} positions is less than one sequence needs; expected at least {least}: \
         free memory, or lower the maximum length of a sequence"
    )]
    Memory { tokens: usize, least: usize },
    #[error("the engine cannot continue sequences, which a server needs")]
    Steps,
    #[error("the engine stopped: {0}")]
    Engine(String),
}

/// Refusal or failure of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// Field of the request, if one is at fault.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// Returns an error of a field's value.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        Self {
            param: Some(name.to_owned()),
            code: Some("invalid_value"),
            ..Self::new(StatusCode::BAD_REQUEST, message)
        }
    }

    pub(crate) fn coded(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { code: Some(code), ..Self::new(status, message) }
    }

    /// Returns the error that requests get while the server stops.
    pub(crate) fn stopping() -> Self {
        Self::coded(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "the server is stopping and takes no new requests",
        )
    }

    /// Returns the error of an answer that was not complete when the server ended.
    pub(crate) fn cut_off() -> Self {
        Self::coded(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "the server stopped before the answer was complete",
        )
    }

    /// Returns the error of a request that took too long.
    pub(crate) fn too_late() -> Self {
        Self::coded(
            StatusCode::SERVICE_UNAVAILABLE,
            "timeout",
            "the request took longer than the server allows; ask for fewer tokens, or try again when it is less busy",
        )
    }

    /// Returns the error of a server whose engine has stopped.
    pub(crate) fn engine_gone() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has stopped; the server ends")
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            404 if self.code == Some("model_not_found") => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Returns the body of the response.
    pub(crate) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
