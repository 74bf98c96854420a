//! Connections: bounded in number and time, and closed in order at the end.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, header};
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::routes;
use crate::state::{LAST_REQUEST, ServerState};

/// Largest head of a request, in bytes.
const HEAD: usize = 64 << 10;
/// Wait after a failed `accept`: the process may have no file descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Time for the errors of answers that were cut.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Serves connections until `stop` is set and all of them have ended, or the time to drain is over. Returns
/// the number of connections that were cut.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Arc<ServerState>,
    stop: watch::Receiver<bool>,
) -> usize {
    let router = routes::router(Arc::clone(&state));
    let permits = Arc::new(Semaphore::new(state.options.connections));
    let mut tasks = JoinSet::new();
    let mut stopped = stop.clone();
    let mut drain = pin!(async move {
        // A sender that is gone means a stop too.
        stopped.wait_for(|stop| *stop).await.ok();
    });
    let mut deadline = None;
    loop {
        let end = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let accept = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (listener.accept().await, permit)
        };
        tokio::select! {
            () = &mut drain, if deadline.is_none() => {
                state.stopping.send_replace(true);
                deadline = Some(Instant::now() + state.options.drain_time);
            }
            () = end => break,
            Some(_) = tasks.join_next() => {}
            (accepted, permit) = accept => {
                let (Ok((stream, _)), Ok(permit)) = (accepted, permit) else {
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let (router, state, stop) = (router.clone(), Arc::clone(&state), stop.clone());
                tasks.spawn(async move {
                    state.metrics.connections.add(1);
                    connection(stream, router, &state, stop).await;
                    state.metrics.connections.subtract(1);
                    drop(permit);
                });
            }
        }
        if deadline.is_some() && tasks.is_empty() {
            break;
        }
    }
    let cut = tasks.len();
    if cut > 0 {
        // Answers that are not complete end with an error, which says why.
        state.cut.send_replace(true);
        let rest = async { while tasks.join_next().await.is_some() {} };
        timeout(LAST_WORDS, rest).await.ok();
    }
    tasks.shutdown().await;
    cut
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

/// A body that counts until it is sent.
struct CountedBody {
    body: Body,
    _count: AnswerCount,
}

impl HttpBody for CountedBody {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves the requests of one connection.
async fn connection(
    stream: TcpStream,
    router: axum::Router,
    state: &ServerState,
    mut stop: watch::Receiver<bool>,
) {
    stream.set_nodelay(true).ok();
    let time = state.options.client_time;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(time));
    let (answers, mut count) = watch::channel(0_usize);
    let (router, stopping) = (TowerToHyperService::new(router), stop.clone());
    let service = service_fn(move |request| {
        let count = AnswerCount::new(&answers);
        let (answer, stopping) = (router.call(request), stopping.clone());
        async move {
            let mut response = answer.await?;
            if *stopping.borrow() {
                // A client that went on with this connection would find it closed.
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| CountedBody { body, _count: count }))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(time).max_buf_size(HEAD);
    let stream = Box::pin(stream);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Errors are of the client: it went away, was slow, or does not speak HTTP.
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // An answer that is under way is the last one. Before the first request HTTP would close the connection at once,
    // also if the request has come and was not read yet.
    if *count.borrow() > 0 {
        connection.as_mut().graceful_shutdown();
    }
    let idle = async {
        while count.wait_for(|count| *count == 0).await.is_ok() {
            if timeout(LAST_REQUEST, count.wait_for(|count| *count > 0)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        _ = connection => {}
        () = idle => {}
    }
}
