//! Runs the attack: batches of cases over all kinds, in several workers, up to a limit.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::child::{Silence, Worker};
use crate::finding::{Finding, Findings};
use crate::kinds::{KINDS, Kind};
use crate::worker::{Order, Outcome, Place};

/// Duration, subject and settings of an attack.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) runs: Option<u64>,
    pub(crate) seconds: Option<u64>,
    pub(crate) kinds: Vec<String>,
    pub(crate) jobs: usize,
    pub(crate) keep: PathBuf,
    /// Number of the first case.
    pub(crate) from: u64,
}

/// Statistics of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) wrong: u64,
    /// Number of commands run in child processes, of all those.
    pub(crate) apart: u64,
    /// Bytes beyond four times the input.
    pub(crate) beyond: u64,
    pub(crate) micros: u64,
}

/// Interval of batches after which a few cases run the real binaries.
const APART: u64 = 12;
const FEW: u64 = 2;

struct Shared<'a> {
    plan: &'a Plan,
    kinds: Vec<&'a Kind>,
    next: AtomicUsize,
    /// Number of batches of each kind so far.
    batches: Vec<AtomicU64>,
    runs: AtomicU64,
    started: Instant,
    seen: Mutex<BTreeMap<&'a str, Seen>>,
    findings: Mutex<Findings>,
}

/// Runs the attack; returns statistics and findings.
pub(crate) fn run(plan: &Plan, dir: &Path) -> io::Result<(BTreeMap<&'static str, Seen>, Findings)> {
    let heaviest = KINDS.iter().map(|kind| kind.weight).max().unwrap_or(1);
    // Heavy kinds are spread over the round, so that every prefix of it has all kinds.
    let round = (0..heaviest)
        .flat_map(|n| KINDS.iter().filter(move |kind| (n * kind.weight) % heaviest < kind.weight));
    let shared = Shared {
        plan,
        kinds: round
            .filter(|kind: &&Kind| {
                plan.kinds.is_empty() || plan.kinds.iter().any(|k| k == kind.name)
            })
            .collect(),
        next: AtomicUsize::new(0),
        batches: KINDS.iter().map(|_| AtomicU64::new(0)).collect(),
        runs: AtomicU64::new(0),
        started: Instant::now(),
        seen: Mutex::default(),
        findings: Mutex::new(Findings::new(&plan.keep)),
    };
    if shared.kinds.is_empty() {
        return Err(io::Error::other("there is no such kind; `--list-kinds` names them"));
    }
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..plan.jobs)
            .map(|n| {
                let place = Place {
                    dir: dir.join(format!("worker-{n}")),
                    made: dir.join("made"),
                    seed: plan.seed,
                };
                let shared = &shared;
                scope.spawn(move || shared.work(&place))
            })
            .collect();
        jobs.into_iter().try_for_each(|job| {
            job.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the attack panicked")))
        })
    })?;
    let seen = shared.seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let findings = shared.findings.into_inner().unwrap_or_else(PoisonError::into_inner);
    let by_name = KINDS.iter().filter_map(|kind| Some((kind.name, seen.get(kind.name)?.clone())));
    Ok((by_name.collect(), findings))
}

impl Shared<'_> {
    fn over(&self) -> bool {
        let long =
            self.plan.seconds.is_some_and(|s| self.started.elapsed() >= Duration::from_secs(s));
        long || self.plan.runs.is_some_and(|runs| self.runs.load(Ordering::Relaxed) >= runs)
    }

    fn work(&self, place: &Place) -> io::Result<()> {
        let mut worker = Worker::start(place)?;
        while !self.over() {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let kind = self.kinds[n % self.kinds.len()];
            let at = KINDS.iter().position(|known| known.name == kind.name).unwrap_or(0);
            let batch = self.batches[at].fetch_add(1, Ordering::Relaxed);
            let apart = batch % APART == APART - 1;
            let count = if apart { FEW } else { kind.batch };
            let from = self.plan.from + batch * kind.batch;
            self.batch(&mut worker, place, kind, (from, from + count), apart)?;
            self.progress();
        }
        Ok(())
    }

    /// Runs the cases `from..to` in a worker; a worker that died is replaced.
    fn batch(
        &self,
        worker: &mut Worker,
        place: &Place,
        kind: &Kind,
        (mut from, to): (u64, u64),
        apart: bool,
    ) -> io::Result<()> {
        while from < to && !self.plan.seconds.is_some_and(|_| self.over()) {
            let order = Order::Make {
                kind: kind.name.to_owned(),
                from,
                // Few at a time, so that the time limit is met.
                count: (to - from).min(10),
                most: usize::MAX,
                apart,
            };
            let end = from + (to - from).min(10);
            worker.order(&order).ok();
            while from < end {
                let (outcome, beyond, micros) = match worker.report()? {
                    Ok(report) => (report.outcome, report.beyond, report.micros),
                    Err(silence) => {
                        *worker = Worker::start(place)?;
                        let text = match silence {
                            Silence::Died(text) => text,
                            Silence::Hangs => "hangs".to_owned(),
                        };
                        (Outcome::Wrong(text), 0, 0)
                    }
                };
                let died = micros == 0 && beyond == 0;
                self.count(kind, from, outcome, (beyond, micros), apart);
                from += 1;
                if died {
                    break;
                }
            }
        }
        Ok(())
    }

    fn count(&self, kind: &Kind, number: u64, outcome: Outcome, cost: (u64, u64), apart: bool) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let name = KINDS.iter().find(|known| known.name == kind.name).map_or("", |kind| kind.name);
        let seen = all.entry(name).or_default();
        seen.apart += u64::from(apart);
        seen.beyond = seen.beyond.max(cost.0);
        seen.micros = seen.micros.max(cost.1);
        match outcome {
            Outcome::Accepted => seen.accepted += 1,
            Outcome::Refused => seen.refused += 1,
            Outcome::Wrong(text) => {
                seen.wrong += 1;
                let finding = Finding { kind: name, number, text, apart };
                self.findings.lock().unwrap_or_else(PoisonError::into_inner).add(finding);
            }
        }
    }

    /// Prints a line every 30 seconds.
    fn progress(&self) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let now = self.started.elapsed().as_secs() / 30;
        if LAST.fetch_max(now, Ordering::Relaxed) < now {
            let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner).len();
            let runs = self.runs.load(Ordering::Relaxed);
            println!("{:>5} s: {runs} runs, {findings} different findings", now * 30);
        }
    }
}
