//! Runs many checks at once, each on one thread from its begin to its end.
//!
//! A session hands each op whose result is compared to a worker thread of its engine, and waits: two changes of threads
//! for an op that takes microseconds in a small model. On a worker thread it computes at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Returns the results of jobs in their order. `done` receives the number of each job that ended.
pub(super) fn run<T: Send>(
    jobs: usize,
    workers: usize,
    job: &(dyn Fn(usize) -> T + Sync),
    done: &mut dyn FnMut(usize),
) -> Result<Vec<T>, String> {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    let pools = (0..workers.clamp(1, jobs.max(1)))
        .map(|_| rayon::ThreadPoolBuilder::new().num_threads(1).build())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    let mut all = std::thread::scope(|scope| {
        for pool in &pools {
            let sender = sender.clone();
            let next = &next;
            scope.spawn(move || pool.install(move || work(next, jobs, job, &sender)));
        }
        drop(sender);
        results.iter().inspect(|(n, _)| done(*n)).collect::<Vec<(usize, T)>>()
    });
    all.sort_by_key(|(n, _)| *n);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}

/// Runs jobs and sends their results, until none is left or nobody receives them.
fn work<T>(
    next: &AtomicUsize,
    jobs: usize,
    job: &(dyn Fn(usize) -> T + Sync),
    sender: &mpsc::Sender<(usize, T)>,
) {
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= jobs || sender.send((n, job(n))).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_jobs() {
        for workers in [0, 1, 3, 50] {
            let mut ended = Vec::new();
            let all =
                run(20, workers, &|n: usize| (n * n, rayon::current_num_threads()), &mut |n| {
                    ended.push(n);
                })
                .unwrap();
            let expected: Vec<_> = (0..20).map(|n| (n * n, 1)).collect();
            assert_eq!(all, expected, "{workers}");
            ended.sort_unstable();
            assert_eq!(ended, (0..20).collect::<Vec<_>>());
        }
        assert!(run(0, 2, &|n| n, &mut |_| {}).unwrap().is_empty());
    }
}
