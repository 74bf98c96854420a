//! Summaries of load tests, by the definitions of `vllm bench serve` and `sglang.bench_serving`.

use std::collections::BTreeMap;

use super::LoadFailureKind;
use super::answer::RequestRecord;
use super::client::LoadRun;

/// Statistics of a latency, in milliseconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LatencyStatistics {
    /// Number of values.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Standard deviation of the population.
    pub std: f64,
    /// Maximum.
    pub max: f64,
    /// Percentiles with their ranks, in the order asked for.
    pub percentiles: Vec<(f64, f64)>,
}

impl LatencyStatistics {
    /// Returns the statistics of values in seconds. Without values, all are 0.
    pub fn of(mut seconds: Vec<f64>, ranks: &[f64]) -> Self {
        seconds.sort_by(f64::total_cmp);
        let count = seconds.len();
        let mean = total(&seconds) / count.max(1) as f64;
        let squares: Vec<f64> = seconds.iter().map(|value| (value - mean).powi(2)).collect();
        Self {
            count,
            mean: mean * 1e3,
            median: percentile(&seconds, 50.0) * 1e3,
            std: (total(&squares) / count.max(1) as f64).sqrt() * 1e3,
            max: percentile(&seconds, 100.0) * 1e3,
            percentiles: ranks
                .iter()
                .map(|rank| (*rank, percentile(&seconds, *rank) * 1e3))
                .collect(),
        }
    }
}

/// Returns a sum. `Iterator::sum` gives -0.0 for no values.
fn total(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |sum, value| sum + value)
}

/// Returns a percentile of ascending values, with linear interpolation, as numpy does.
fn percentile(sorted: &[f64], rank: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = (rank / 100.0).clamp(0.0, 1.0) * last as f64;
    let low = (place.floor() as usize).min(last);
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// Latency that an objective bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SloMetric {
    /// Time to the first token.
    Ttft,
    /// Time per output token; 0 for a single token.
    Tpot,
    /// End-to-end latency.
    E2el,
}

/// Service level objective: a bound on a latency of each request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceObjective {
    /// The latency.
    pub metric: SloMetric,
    /// Bound in milliseconds.
    pub milliseconds: f64,
}

impl ServiceObjective {
    /// True if a request, with this time per output token, meets the objective.
    fn is_met(&self, record: &RequestRecord, per_token: f64) -> bool {
        let seconds = match self.metric {
            SloMetric::Ttft => record.ttft,
            SloMetric::Tpot => per_token,
            SloMetric::E2el => record.latency,
        };
        seconds * 1e3 <= self.milliseconds
    }
}

/// Counts tokens of a text; none if it cannot be encoded.
type TokenCounter<'a> = dyn Fn(&str) -> Option<u64> + 'a;

/// Choices of a summary.
#[derive(Default)]
pub struct SummaryOptions<'a> {
    /// Ranks of percentiles, 0 to 100.
    pub percentiles: &'a [f64],
    /// Objectives that good requests meet.
    pub objectives: &'a [ServiceObjective],
    /// Tokenizer for answers without `usage`.
    pub counter: Option<&'a TokenCounter<'a>>,
}

/// Source of the counts of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenSource {
    /// The server's `usage`.
    Usage,
    /// A tokenizer of the client.
    Tokenizer,
    /// Number of chunks, which is smaller if a chunk has several tokens.
    Chunks,
    /// Length of the prompt as it was made.
    Prompt,
    /// Nothing: the tokens count as 0.
    Unknown,
}

impl TokenSource {
    /// Returns the word for a source.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Tokenizer => "tokenizer",
            Self::Chunks => "chunks",
            Self::Prompt => "prompt",
            Self::Unknown => "unknown",
        }
    }
}

/// Results of a load test.
#[derive(Debug, Clone, Default)]
pub struct LoadSummary {
    /// Number of successful requests.
    pub completed: usize,
    /// Number of failed requests.
    pub failed: usize,
    /// Duration in seconds.
    pub duration: f64,
    /// Tokens of the prompts of successful requests.
    pub input_tokens: u64,
    /// Generated tokens of successful requests.
    pub output_tokens: u64,
    /// Requests by the source of their input tokens.
    pub input_sources: BTreeMap<TokenSource, usize>,
    /// Requests by the source of their output tokens.
    pub output_sources: BTreeMap<TokenSource, usize>,
    /// Number of chunks of all answers.
    pub chunks: u64,
    /// Largest number of chunks within one second of the run.
    pub peak_output_rate: f64,
    /// Largest number of requests that were active within the same second of the run.
    pub peak_concurrent: usize,
    /// Largest number of requests in flight at one moment.
    pub peak_in_flight: usize,
    /// Mean number of requests in flight: latencies over duration.
    pub concurrency: f64,
    /// Time to the first token.
    pub ttft: LatencyStatistics,
    /// Time per output token after the first, one value for each request of at least two tokens.
    pub tpot: LatencyStatistics,
    /// Times between consecutive chunks.
    pub itl: LatencyStatistics,
    /// End-to-end latency.
    pub e2el: LatencyStatistics,
    /// Time by which requests were sent later than they were due.
    pub delay: LatencyStatistics,
    /// Number of requests that meet all objectives; none without objectives.
    pub good: Option<usize>,
    /// Number of requests that meet each objective.
    pub met: Vec<usize>,
    /// Failures by kind: number, and the words of the first one.
    pub failures: BTreeMap<LoadFailureKind, (usize, String)>,
    /// Number of requests that a stop left without an answer.
    pub unfinished: usize,
    /// Number of requests that a stop left unsent.
    pub unsent: usize,
}

impl LoadSummary {
    /// Returns the results of a run.
    pub fn of(run: &LoadRun, options: &SummaryOptions<'_>) -> Self {
        let mut summary = Self {
            duration: run.duration,
            unfinished: run.unfinished,
            unsent: run.unsent,
            ..Self::default()
        };
        let mut ttft = Vec::new();
        let mut tpot = Vec::new();
        let mut itl = Vec::new();
        let mut e2el = Vec::new();
        let mut delay = Vec::new();
        summary.met = vec![0; options.objectives.len()];
        let mut good = 0;
        let mut done = Vec::new();
        for record in &run.records {
            delay.push((record.sent - record.due).max(0.0));
            if let Some(failure) = &record.failure {
                summary.failed += 1;
                summary
                    .failures
                    .entry(failure.kind)
                    .or_insert_with(|| (0, failure.words.clone()))
                    .0 += 1;
                continue;
            }
            done.push(record);
            summary.completed += 1;
            summary.chunks += record.chunks as u64;
            let (input, source) = input(record);
            summary.input_tokens += input;
            *summary.input_sources.entry(source).or_default() += 1;
            let (output, source) = output(record, options.counter);
            summary.output_tokens += output;
            *summary.output_sources.entry(source).or_default() += 1;
            let mut per_token = 0.0;
            if output > 1 {
                per_token = (record.latency - record.ttft) / (output - 1) as f64;
                tpot.push(per_token);
            }
            ttft.push(record.ttft);
            e2el.push(record.latency);
            itl.extend(&record.itl);
            let objectives = options.objectives.iter();
            let met: Vec<bool> =
                objectives.map(|objective| objective.is_met(record, per_token)).collect();
            for (count, met) in summary.met.iter_mut().zip(&met) {
                *count += usize::from(*met);
            }
            good += usize::from(met.iter().all(|met| *met));
        }
        summary.good = (!options.objectives.is_empty()).then_some(good);
        summary.concurrency = total(&e2el) / run.duration.max(f64::MIN_POSITIVE);
        (summary.peak_output_rate, summary.peak_concurrent) = peaks_by_second(&done);
        summary.peak_in_flight = peak_in_flight(&run.records);
        summary.ttft = LatencyStatistics::of(ttft, options.percentiles);
        summary.tpot = LatencyStatistics::of(tpot, options.percentiles);
        summary.itl = LatencyStatistics::of(itl, options.percentiles);
        summary.e2el = LatencyStatistics::of(e2el, options.percentiles);
        summary.delay = LatencyStatistics::of(delay, options.percentiles);
        summary
    }

    /// Returns a count per second of the run.
    pub fn rate(&self, count: f64) -> f64 {
        if self.duration > 0.0 { count / self.duration } else { 0.0 }
    }
}

fn input(record: &RequestRecord) -> (u64, TokenSource) {
    match (record.prompt_tokens, record.prompt_length) {
        (Some(count), _) => (count, TokenSource::Usage),
        (None, Some(count)) => (count, TokenSource::Prompt),
        (None, None) => (0, TokenSource::Unknown),
    }
}

fn output(record: &RequestRecord, counter: Option<&TokenCounter<'_>>) -> (u64, TokenSource) {
    if let Some(count) = record.output_tokens {
        return (count, TokenSource::Usage);
    }
    let text = record.text.as_ref().zip(counter);
    match text.and_then(|(text, counter)| counter(text)).filter(|count| *count > 0) {
        Some(count) => (count, TokenSource::Tokenizer),
        None => (record.chunks as u64, TokenSource::Chunks),
    }
}

/// Returns the most chunks and the most active requests of the seconds of a run. Seconds count from the
/// first request.
fn peaks_by_second(records: &[&RequestRecord]) -> (f64, usize) {
    let first = records.iter().map(|record| record.sent).fold(f64::INFINITY, f64::min);
    // The second of a time is at most that of 3 years, so a map holds only seconds with events.
    let mut chunks: BTreeMap<u64, u64> = BTreeMap::new();
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for record in records {
        let mut time = record.sent + record.ttft;
        *chunks.entry(second_after(first, time)).or_default() += 1;
        for gap in &record.itl {
            time += gap;
            *chunks.entry(second_after(first, time)).or_default() += 1;
        }
        *changes.entry(second_after(first, record.sent)).or_default() += 1;
        *changes.entry(second_after(first, record.sent + record.latency) + 1).or_default() -= 1;
    }
    let peak = chunks.values().copied().max().unwrap_or(0);
    let mut active = 0_i64;
    let mut peak_active = 0;
    for change in changes.values() {
        active += change;
        peak_active = peak_active.max(active);
    }
    (peak as f64, peak_active as usize)
}

/// Returns the number of the second of a time; seconds count from `first`.
fn second_after(first: f64, time: f64) -> u64 {
    (time - first).max(0.0) as u64
}

/// Returns the most requests in flight at one moment.
fn peak_in_flight(records: &[RequestRecord]) -> usize {
    let mut changes: Vec<(f64, i64)> = Vec::with_capacity(2 * records.len());
    for record in records {
        changes.extend([(record.sent, 1), (record.ended, -1)]);
    }
    // A request that ends at the moment at which another begins comes first.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut active = 0_i64;
    let mut peak_active = 0;
    for (_, change) in changes {
        active += change;
        peak_active = peak_active.max(active);
    }
    peak_active as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadFailure;

    fn record(index: usize, sent: f64, ttft: f64, gaps: &[f64], tokens: u64) -> RequestRecord {
        let latency = ttft + gaps.iter().sum::<f64>();
        RequestRecord {
            index,
            due: sent,
            sent,
            ended: sent + latency,
            ttft,
            latency,
            itl: gaps.to_vec(),
            chunks: gaps.len() + 1,
            prompt_tokens: Some(10),
            output_tokens: Some(tokens),
            ..RequestRecord::default()
        }
    }

    /// Values computed with numpy 2.4: mean, median, std, percentile.
    #[test]
    fn statistics_are_those_of_numpy() {
        let values = vec![0.004, 0.001, 0.003, 0.002, 0.010];
        let of = LatencyStatistics::of(values, &[90.0, 95.0, 99.0, 12.5]);
        assert!(near(of.mean, 4.0) && near(of.median, 3.0) && near(of.std, 3.162_277_660_168));
        let percentiles: Vec<f64> = of.percentiles.iter().map(|(_, value)| *value).collect();
        for (value, expected) in percentiles.iter().zip([7.6, 8.8, 9.76, 1.5]) {
            assert!(near(*value, expected), "{value} {expected}");
        }
        assert_eq!(LatencyStatistics::of(Vec::new(), &[50.0]).percentiles, [(50.0, 0.0)]);
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn terms_have_their_definitions() {
        // Two chunks may have three tokens: TPOT divides by tokens, ITL counts chunks.
        let mut failed = RequestRecord { index: 2, ended: 0.5, ..RequestRecord::default() };
        failed.failure = Some(LoadFailure::new(LoadFailureKind::Status(500), "full"));
        let records =
            vec![record(0, 0.0, 1.0, &[0.5, 0.5], 5), record(1, 1.5, 0.25, &[], 1), failed];
        let run = LoadRun { records, duration: 2.0, unfinished: 1, unsent: 2 };
        let objectives = [bound(SloMetric::Ttft, 500.0), bound(SloMetric::Tpot, 250.0)];
        let options = SummaryOptions {
            percentiles: &[99.0],
            objectives: &objectives,
            ..SummaryOptions::default()
        };
        let summary = LoadSummary::of(&run, &options);
        assert_eq!((summary.completed, summary.failed), (2, 1));
        assert_eq!((summary.input_tokens, summary.output_tokens, summary.chunks), (20, 6, 4));
        assert_eq!(summary.tpot.count, 1);
        assert_eq!(summary.tpot.mean, 250.0);
        assert_eq!((summary.itl.count, summary.itl.mean), (2, 500.0));
        assert_eq!((summary.ttft.mean, summary.e2el.mean), (625.0, 1125.0));
        assert_eq!((summary.good, summary.met), (Some(1), vec![1, 2]));
        assert_eq!(summary.concurrency, 1.125);
        // Seconds 0 to 2 have 0, 3 and 1 chunks: second 1 has those at 1.0, 1.5 and 1.75.
        assert_eq!((summary.peak_output_rate, summary.peak_concurrent), (3.0, 2));
        assert_eq!(summary.peak_in_flight, 2);
        assert_eq!(summary.failures[&LoadFailureKind::Status(500)], (1, "full".to_owned()));
    }

    fn bound(metric: SloMetric, milliseconds: f64) -> ServiceObjective {
        ServiceObjective { metric, milliseconds }
    }

    #[test]
    fn tokens_are_counted_by_the_best_source() {
        let mut one = record(0, 0.0, 1.0, &[1.0], 9);
        one.prompt_tokens = None;
        let mut two = one.clone();
        two.output_tokens = None;
        two.text = Some("a b c".to_owned());
        one.prompt_length = Some(2);
        let run = LoadRun { records: vec![one, two], duration: 1.0, ..LoadRun::default() };
        let mut options = SummaryOptions {
            counter: Some(&|text: &str| Some(text.split(' ').count() as u64)),
            ..SummaryOptions::default()
        };
        let summary = LoadSummary::of(&run, &options);
        assert_eq!((summary.input_tokens, summary.output_tokens), (2, 12));
        assert_eq!(source_counts(&summary.input_sources), [("prompt", 1), ("unknown", 1)]);
        assert_eq!(source_counts(&summary.output_sources), [("usage", 1), ("tokenizer", 1)]);
        options.counter = None;
        let summary = LoadSummary::of(&run, &options);
        assert_eq!(summary.output_tokens, 11);
        assert_eq!(source_counts(&summary.output_sources), [("usage", 1), ("chunks", 1)]);
    }

    fn source_counts(sources: &BTreeMap<TokenSource, usize>) -> Vec<(&'static str, usize)> {
        sources.iter().map(|(source, count)| (source.name(), *count)).collect()
    }

    #[test]
    fn an_empty_run_has_a_summary() {
        let options = SummaryOptions { percentiles: &[50.0], ..SummaryOptions::default() };
        let summary = LoadSummary::of(&LoadRun::default(), &options);
        assert_eq!(
            (summary.rate(3.0), summary.concurrency, summary.peak_concurrent),
            (0.0, 0.0, 0)
        );
    }
}
