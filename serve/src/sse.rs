//! Answers as streams of server-sent events, and answers at once, from the same events.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::sequence::{SequenceEvent, SequenceMessage};
use crate::state::{RequestGuard, ServerState};

/// Time without an event after which a comment keeps the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An answer that grows with the events of its sequences.
pub(crate) trait GrowingAnswer: Send + 'static {
    /// Takes in an event of a sequence.
    fn accept(&mut self, index: usize, event: SequenceEvent) -> Result<(), ApiError>;

    /// True if every sequence has ended.
    fn is_complete(&self) -> bool;

    /// Returns chunks of the growth since the last call.
    fn chunks(&mut self) -> Vec<Value>;

    /// Returns the chunks after the last growth.
    fn last_chunks(&mut self) -> Vec<Value>;

    /// Returns the text at the end of a stream.
    fn end(&self) -> &'static str {
        "data: [DONE]\n\n"
    }
}

/// Waits until an answer is complete.
pub(crate) async fn complete<A: GrowingAnswer>(
    answer: &mut A,
    events: &mut Receiver<SequenceMessage>,
    guard: &RequestGuard,
) -> Result<(), ApiError> {
    while !answer.is_complete() {
        let (index, event) = guard.next(events).await?;
        answer.accept(index, event)?;
    }
    Ok(())
}

/// State of a stream.
struct AnswerStream<A> {
    answer: A,
    events: Receiver<SequenceMessage>,
    /// Ends with the stream.
    guard: RequestGuard,
    _state: Arc<ServerState>,
    begun: bool,
    ended: bool,
}

impl<A: GrowingAnswer> AnswerStream<A> {
    /// Returns the next text of the stream; none at its end.
    async fn next(&mut self) -> Option<String> {
        let mut text = String::new();
        if !self.begun {
            self.begun = true;
            frames(&mut text, &self.answer.chunks());
        }
        while text.is_empty() && !self.ended {
            let Ok(received) = timeout(KEEP_ALIVE, self.guard.next(&mut self.events)).await else {
                return Some(": keep-alive\n\n".to_owned());
            };
            let accepted = received.and_then(|(index, event)| self.answer.accept(index, event));
            if let Err(error) = accepted {
                frames(&mut text, &[error.body()]);
                self.ended = true;
                break;
            }
            frames(&mut text, &self.answer.chunks());
            if self.answer.is_complete() {
                frames(&mut text, &self.answer.last_chunks());
                text.push_str(self.answer.end());
                self.ended = true;
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

fn frames(text: &mut String, chunks: &[Value]) {
    for chunk in chunks {
        if let Some(name) = chunk.get("type").and_then(Value::as_str) {
            let _ = writeln!(text, "event: {name}");
        }
        let _ = write!(text, "data: {chunk}\n\n");
    }
}

/// Returns a response that streams an answer. When the client goes away, the sequences are cancelled.
pub(crate) fn respond<A: GrowingAnswer>(
    answer: A,
    events: Receiver<SequenceMessage>,
    guard: RequestGuard,
    state: Arc<ServerState>,
) -> Response {
    let stream = AnswerStream { answer, events, guard, _state: state, begun: false, ended: false };
    let body = stream::unfold(stream, |mut stream| async move {
        let text = stream.next().await?;
        Some((Ok::<_, Infallible>(text), stream))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
