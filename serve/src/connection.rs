//! A connection: bounded in time, and closed so that the client can read its last answer.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::HttpBody;
use axum::http::{HeaderValue, header};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::state::{LAST_REQUEST, ServerState};

/// Largest head of a request, in bytes.
const HEAD: usize = 64 << 10;
/// Most bytes of a refused body that are read and dropped. Many clients send all of it before they read.
const DISCARDED: u64 = 128 << 20;

/// Serves the requests of one connection.
pub(crate) async fn connection(stream: TcpStream, router: axum::Router, state: &ServerState) {
    stream.set_nodelay(true).ok();
    let mut stop = state.stopping.subscribe();
    let time = state.options.client_time;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(time));
    let (answers, mut count) = watch::channel(0_usize);
    let unread = Arc::new(AtomicBool::new(false));
    let router = TowerToHyperService::new(router);
    let stopping = stop.clone();
    let left = Arc::clone(&unread);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let count = AnswerCount::new(&answers);
        left.store(!request.body().is_end_stream(), Ordering::Release);
        let read = Arc::clone(&left);
        let answer = router.call(request.map(|body| WatchedBody {
            body,
            at_end: move || read.store(false, Ordering::Release),
        }));
        let stopping = stopping.clone();
        let unread = Arc::clone(&left);
        Box::pin(async move {
            let mut response = answer.await?;
            if *stopping.borrow() || unread.load(Ordering::Acquire) {
                // A client that went on with this connection would find it closed.
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            // The answer counts until its body is dropped.
            Ok::<_, Infallible>(
                response.map(|body| WatchedBody { body, at_end: move || _ = &count }),
            )
        })
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(time).max_buf_size(HEAD);
    let mut connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut ended = tokio::select! {
        biased;
        ended = poll_fn(|context| connection.poll_without_shutdown(context)) => Some(ended),
        _ = stop.wait_for(|stop| *stop) => None,
    };
    if ended.is_none() {
        // An answer that is under way is the last one. Before the first request HTTP would close the connection at once,
        // also if the request has come and was not read yet.
        if *count.borrow() > 0 {
            Pin::new(&mut connection).graceful_shutdown();
        }
        let idle = async {
            while count.wait_for(|count| *count == 0).await.is_ok() {
                if timeout(LAST_REQUEST, count.wait_for(|count| *count > 0)).await.is_err() {
                    return;
                }
            }
        };
        ended = tokio::select! {
            biased;
            ended = poll_fn(|context| connection.poll_without_shutdown(context)) => Some(ended),
            () = idle => None,
        };
    }
    // Errors are of the client: it went away, was slow, or does not speak HTTP.
    let Some(Ok(())) = ended else { return };
    let mut stream = connection.into_parts().io.into_inner();
    stream.shutdown().await.ok();
    if unread.load(Ordering::Acquire) {
        // The client still sends. If its bytes were left unread it would get a reset, which drops the answer.
        let mut remaining = stream.take(DISCARDED);
        let mut nothing = tokio::io::sink();
        tokio::select! {
            _ = timeout(time, tokio::io::copy(&mut remaining, &mut nothing)) => {}
            () = async {
                stop.wait_for(|stop| *stop).await.ok();
                sleep(LAST_REQUEST).await;
            } => {}
        }
    }
}

/// Counts an answer of a connection until it is sent.
struct AnswerCount(watch::Sender<usize>);

impl AnswerCount {
    fn new(answers: &watch::Sender<usize>) -> Self {
        answers.send_modify(|count| *count += 1);
        Self(answers.clone())
    }
}

impl Drop for AnswerCount {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A body that tells when it was read to its end.
struct WatchedBody<B, F> {
    body: B,
    at_end: F,
}

impl<B: HttpBody + Unpin, F: FnMut() + Unpin> HttpBody for WatchedBody<B, F> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(context);
        if matches!(next, Poll::Ready(None)) || self.body.is_end_stream() {
            (self.at_end)();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
