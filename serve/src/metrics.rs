//! Counters of the server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A number that tasks and the engine's thread change.
#[derive(Debug, Default)]
pub(crate) struct MetricValue(AtomicU64);

impl MetricValue {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

/// Distribution of times.
#[derive(Debug, Default)]
pub(crate) struct TimeHistogram {
    buckets: [MetricValue; BOUNDS.len()],
    count: MetricValue,
    microseconds: MetricValue,
}

impl TimeHistogram {
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket].add(1);
        }
        self.microseconds.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        self.count.add(1);
    }

    fn write(&self, out: &mut String, name: &str, about: &str) {
        let mut lines = format!("# HELP {name} {about}\n# TYPE {name} histogram\n");
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.get();
            let _ = writeln!(lines, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let count = self.count.get().max(below);
        let seconds = self.microseconds.get() as f64 / 1e6;
        let _ = writeln!(lines, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(lines, "{name}_sum {seconds}\n{name}_count {count}");
        out.push_str(&lines);
    }
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Requests by path and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    pub(crate) in_flight: MetricValue,
    pub(crate) connections: MetricValue,
    pub(crate) prompt_tokens: MetricValue,
    pub(crate) reused_tokens: MetricValue,
    pub(crate) generated_tokens: MetricValue,
    pub(crate) cancelled: MetricValue,
    pub(crate) renderings: MetricValue,
    pub(crate) cancelled_renderings: MetricValue,
    pub(crate) running: MetricValue,
    pub(crate) reserved_positions: MetricValue,
    pub(crate) kept_slots: MetricValue,
    pub(crate) kept_positions: MetricValue,
    pub(crate) queue_time: TimeHistogram,
    pub(crate) first_token: TimeHistogram,
    pub(crate) request_time: TimeHistogram,
    pub(crate) steps: TimeHistogram,
}

impl Metrics {
    /// Counts an answer.
    pub(crate) fn answered(&self, path: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((path, status)).or_default() += 1;
    }

    /// Writes all counters, with these limits and the length of the queue.
    pub(crate) fn text(&self, waiting: usize, slots: usize, positions: usize) -> String {
        let mut out = String::from(
            "# HELP onboard_requests_total Answers by path and status\n# TYPE onboard_requests_total counter\n",
        );
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((path, status), count) in requests {
            let _ = writeln!(
                out,
                "onboard_requests_total{{path=\"{path}\",status=\"{status}\"}} {count}"
            );
        }
        for (name, kind, about, value) in [
            (
                "prompt_tokens_total",
                "counter",
                "Computed tokens of prompts",
                self.prompt_tokens.get(),
            ),
            (
                "reused_tokens_total",
                "counter",
                "Tokens of prompts taken from kept slots",
                self.reused_tokens.get(),
            ),
            ("generated_tokens_total", "counter", "Generated tokens", self.generated_tokens.get()),
            (
                "cancelled_sequences_total",
                "counter",
                "Sequences whose client went away",
                self.cancelled.get(),
            ),
            (
                "cancelled_renderings_total",
                "counter",
                "Renderings of chat templates that ended because their client went away",
                self.cancelled_renderings.get(),
            ),
            (
                "renderings",
                "gauge",
                "Renderings of chat templates at present",
                self.renderings.get(),
            ),
            (
                "requests_in_flight",
                "gauge",
                "Requests without a complete answer",
                self.in_flight.get(),
            ),
            ("connections", "gauge", "Open connections", self.connections.get()),
            ("queue_sequences", "gauge", "Waiting sequences", waiting as u64),
            ("slots_running", "gauge", "Slots of running sequences", self.running.get()),
            ("slots_limit", "gauge", "Most running sequences", slots as u64),
            (
                "slots_kept",
                "gauge",
                "Finished slots kept for their beginnings",
                self.kept_slots.get(),
            ),
            (
                "positions_reserved",
                "gauge",
                "Positions of running sequences",
                self.reserved_positions.get(),
            ),
            ("positions_kept", "gauge", "Positions in kept slots", self.kept_positions.get()),
            ("positions_limit", "gauge", "Most positions of all slots", positions as u64),
        ] {
            let _ = writeln!(
                out,
                "# HELP onboard_{name} {about}\n# TYPE onboard_{name} {kind}\nonboard_{name} {value}"
            );
        }
        self.queue_time.write(&mut out, "onboard_queue_seconds", "Time in the queue");
        self.first_token.write(
            &mut out,
            "onboard_first_token_seconds",
            "Time until the prompt was computed",
        );
        self.request_time.write(&mut out, "onboard_request_seconds", "Time of requests");
        self.steps.write(&mut out, "onboard_step_seconds", "Time of steps of the engine");
        out
    }
}
