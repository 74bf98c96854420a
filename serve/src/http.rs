//! The listener: accepts a bounded number of connections, and ends them in order.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::connection::connection;
use crate::routes;
use crate::state::ServerState;

/// Wait after a failed `accept`: the process may have no file descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Time for the errors of answers that were cut.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Serves connections until the server is stopped and all of them have ended, or the time to drain is over.
/// Returns the number of connections that were cut.
pub(crate) async fn serve(listener: TcpListener, state: Arc<ServerState>) -> usize {
    let router = routes::router(Arc::clone(&state));
    let permits = Arc::new(Semaphore::new(state.options.connections));
    let mut tasks = JoinSet::new();
    let mut stopping = state.stopping.subscribe();
    let mut drain = pin!(stopping.wait_for(|stopping| *stopping));
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
            _ = &mut drain, if deadline.is_none() => {
                deadline = Some(Instant::now() + state.options.drain_time);
            }
            () = end => break,
            Some(_) = tasks.join_next() => {}
            (accepted, permit) = accept => {
                let (Ok((stream, _)), Ok(permit)) = (accepted, permit) else {
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let router = router.clone();
                let state = Arc::clone(&state);
                tasks.spawn(async move {
                    state.metrics.connections.add(1);
                    connection(stream, router, &state).await;
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
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        timeout(LAST_WORDS, all_ended).await.ok();
    }
    tasks.shutdown().await;
    cut
}
