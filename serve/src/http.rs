//! Connections: bounded in number and time, and closed in order at the end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::routes;
use crate::state::ServerState;

/// Largest head of a request, in bytes.
const HEAD: usize = 64 << 10;
/// Wait after a failed `accept`: the process may have no file descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Time for the errors of answers that were cut.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Time after a stop for the first byte of a new connection.
const FIRST_BYTE: Duration = Duration::from_secs(1);

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
                state.stopping.store(true, Ordering::Relaxed);
                deadline = Some(Instant::now() + state.options.drain_time);
            }
            () = end => break,
            Some(_) = tasks.join_next() => {}
            (accepted, permit) = accept => {
                let (Ok((stream, _)), Ok(permit)) = (accepted, permit) else {
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let service = TowerToHyperService::new(router.clone());
                let (state, stop) = (Arc::clone(&state), stop.clone());
                tasks.spawn(async move {
                    state.metrics.connections.add(1);
                    connection(stream, service, &state, stop).await;
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

/// Serves the requests of one connection.
async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
    state: &ServerState,
    mut stop: watch::Receiver<bool>,
) {
    stream.set_nodelay(true).ok();
    let time = state.options.client_time;
    // To stop HTTP on a connection before its first byte closes it without an answer. A client that was just
    // let in has to get one.
    let mut stopped = stop.clone();
    let stopped = async {
        stopped.wait_for(|stop| *stop).await.ok();
        sleep(FIRST_BYTE).await;
    };
    tokio::select! {
        biased;
        _ = stream.readable() => {}
        () = stopped => return,
        () = sleep(time) => return,
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(time));
    // A connection that comes after the stop still gets an answer, which says so.
    let mut draining = *stop.borrow();
    let mut builder = http1::Builder::new();
    builder.keep_alive(!draining);
    builder.timer(TokioTimer::new()).header_read_timeout(time).max_buf_size(HEAD);
    let stream = Box::pin(stream);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            // What has arrived is read before the connection learns of a stop.
            biased;
            // Errors are of the client: it went away, was slow, or does not speak HTTP.
            _ = connection.as_mut() => return,
            _ = stop.wait_for(|stop| *stop), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
