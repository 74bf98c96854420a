//! Results of load tests as text, Markdown, CSV, JSON or JSON lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use registry::table::{TextTable, csv_cell, markdown_cell};
use serde_json::{Map, Value, json};

use super::answer::{ChunkRule, RequestRecord};
use super::summary::{LatencyStatistics, LoadSummary, ServiceObjective, SloMetric, TokenSource};

/// Form of the results.
///
/// The table for people has the rows of another client, as [`ReportStyle`] says. The forms for programs hold the same numbers
/// in the names of the result files of `vllm bench serve`.
///
/// ```
/// use onboard_endpoints::load::{LoadSummary, ReportForm, RunSettings, render};
///
/// let settings = RunSettings::default();
/// let summary = LoadSummary::default();
/// let text = render(&summary, &settings, None, ReportForm::Jsonl).unwrap();
/// assert!(text.contains("\"schema\":\"onboard-bench-serve/1\""));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportForm {
    /// A table like those of other clients.
    Text,
    /// A Markdown table.
    Md,
    /// A header and one line.
    Csv,
    /// One document.
    Json,
    /// One object on a line.
    Jsonl,
}

/// Names and order of the rows, and the chunks that count as output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportStyle {
    /// Names of vllm, and rows that it has not.
    #[default]
    Onboard,
    /// As `vllm bench serve`.
    Vllm,
    /// As sglang.bench_serving.
    Sglang,
}

impl ReportStyle {
    /// Returns the name of the style, which results record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Onboard => "onboard",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// Returns the rule of the client whose rows these are.
    pub fn rule(self) -> ChunkRule {
        match self {
            Self::Onboard => ChunkRule::Output,
            Self::Vllm => ChunkRule::Choice,
            Self::Sglang => ChunkRule::Text,
        }
    }
}

/// Settings of a run that the results name.
#[derive(Debug, Clone, Default)]
pub struct RunSettings {
    /// Address of the server.
    pub url: String,
    /// Served name of the model.
    pub model: String,
    /// Path of the endpoint.
    pub endpoint: &'static str,
    /// Number of requests.
    pub requests: usize,
    /// Requests per second, unless all are sent at once.
    pub rate: Option<f64>,
    /// Name of the arrival process.
    pub arrivals: &'static str,
    /// Maximum number of requests in flight.
    pub concurrency: Option<usize>,
    /// Description of the prompts.
    pub prompts: String,
    /// Tokens of all prompts, if known before the run.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens that were asked for.
    pub asked_tokens: u64,
    /// Seed of lengths, tokens and arrival times.
    pub seed: u64,
    /// Style of the results.
    pub style: ReportStyle,
    /// Objectives that good requests meet.
    pub objectives: Vec<ServiceObjective>,
}

/// Value of a row.
#[derive(Debug, Clone, PartialEq)]
enum ReportValue {
    Count(u64),
    Number(f64),
    Words(String),
}

impl ReportValue {
    fn text(&self) -> String {
        match self {
            Self::Count(count) => count.to_string(),
            Self::Number(number) => format!("{number:.2}"),
            Self::Words(words) => words.clone(),
        }
    }
}

/// Section of a table: a title, and rows.
#[derive(Debug, Clone, Default)]
struct ReportSection {
    title: String,
    rows: Vec<(String, ReportValue)>,
}

impl ReportSection {
    fn new(title: &str) -> Self {
        Self { title: title.to_owned(), rows: Vec::new() }
    }

    fn count(&mut self, label: &str, count: u64) {
        self.rows.push((label.to_owned(), ReportValue::Count(count)));
    }

    fn number(&mut self, label: &str, number: f64) {
        self.rows.push((label.to_owned(), ReportValue::Number(number)));
    }

    fn words(&mut self, label: &str, words: impl Into<String>) {
        self.rows.push((label.to_owned(), ReportValue::Words(words.into())));
    }
}

/// Width of the tables of other clients.
const WIDTH: usize = 50;

/// Formats results; `records` are listed in JSON.
pub fn render(
    summary: &LoadSummary,
    settings: &RunSettings,
    records: Option<&[RequestRecord]>,
    form: ReportForm,
) -> Result<String, serde_json::Error> {
    Ok(match form {
        ReportForm::Text => plain(&sections(summary, settings)),
        ReportForm::Md => markdown(&sections(summary, settings)),
        ReportForm::Csv => csv(&object(summary, settings, records)),
        ReportForm::Json => serde_json::to_string_pretty(&object(summary, settings, records))?,
        ReportForm::Jsonl => serde_json::to_string(&object(summary, settings, records))?,
    })
}

fn plain(sections: &[ReportSection]) -> String {
    let mut text = String::new();
    for (n, section) in sections.iter().enumerate() {
        let title = if n == 0 {
            format!("{:=^WIDTH$}", format!(" {} ", section.title))
        } else {
            format!("{:-^WIDTH$}", section.title)
        };
        let _ = writeln!(text, "{title}");
        for (label, cell) in &section.rows {
            let _ = writeln!(text, "{label:<40} {:<10}", cell.text());
        }
    }
    let _ = writeln!(text, "{}", "=".repeat(WIDTH));
    text
}

fn markdown(sections: &[ReportSection]) -> String {
    let mut table = TextTable::new(&[1]);
    table.row(["metric", "value"]);
    for (label, cell) in sections.iter().flat_map(|section| &section.rows) {
        table.row([label.trim_end_matches(':').to_owned(), markdown_cell(&cell.text())]);
    }
    table.markdown()
}

fn sections(summary: &LoadSummary, settings: &RunSettings) -> Vec<ReportSection> {
    let style = settings.style;
    let mut all = vec![match style {
        ReportStyle::Sglang => sglang_head(summary, settings),
        _ => vllm_head(summary, settings),
    }];
    if style != ReportStyle::Vllm && !settings.objectives.is_empty() {
        all.push(goodput(summary, settings));
    }
    let sglang = style == ReportStyle::Sglang;
    let latencies = if sglang {
        [
            ("End-to-End Latency", "E2E Latency", &summary.e2el),
            ("Time to First Token", "TTFT", &summary.ttft),
            ("Time per Output Token (excl. 1st token)", "TPOT", &summary.tpot),
            ("Inter-Token Latency", "ITL", &summary.itl),
        ]
    } else {
        [
            ("Time to First Token", "TTFT", &summary.ttft),
            ("Time per Output Token (excl. 1st token)", "TPOT", &summary.tpot),
            ("Inter-token Latency", "ITL", &summary.itl),
            ("End-to-end Latency", "E2EL", &summary.e2el),
        ]
    };
    for (title, name, latency) in latencies {
        let mut section = ReportSection::new(title);
        section.number(&format!("Mean {name} (ms):"), latency.mean);
        section.number(&format!("Median {name} (ms):"), latency.median);
        for (rank, value) in &latency.percentiles {
            section.number(&format!("P{rank} {name} (ms):"), *value);
        }
        if name == "ITL" && style != ReportStyle::Vllm {
            section.number("Max ITL (ms):", latency.max);
        }
        all.push(section);
    }
    if style == ReportStyle::Onboard && !summary.failures.is_empty() {
        let mut section = ReportSection::new("Failed requests");
        for (kind, (count, _)) in &summary.failures {
            section.count(&format!("{kind}:"), *count as u64);
        }
        all.push(section);
    }
    all
}

const TITLE: &str = "Serving Benchmark Result";

fn title(summary: &LoadSummary) -> String {
    let partial = summary.unfinished + summary.unsent > 0;
    if partial { format!("{TITLE} (PARTIAL)") } else { TITLE.to_owned() }
}

fn vllm_head(summary: &LoadSummary, settings: &RunSettings) -> ReportSection {
    let style = settings.style;
    let ours = style == ReportStyle::Onboard;
    let mut head = ReportSection::new(&title(summary));
    head.count("Successful requests:", summary.completed as u64);
    head.count("Failed requests:", summary.failed as u64);
    if summary.unfinished + summary.unsent > 0 {
        head.count("Requests left by the stop:", (summary.unfinished + summary.unsent) as u64);
    }
    if let Some(limit) = settings.concurrency {
        head.count("Maximum request concurrency:", limit as u64);
    }
    if let Some(rate) = settings.rate {
        head.number("Request rate configured (RPS):", rate);
    }
    head.number("Benchmark duration (s):", summary.duration);
    head.count("Total input tokens:", summary.input_tokens);
    head.count("Total generated tokens:", summary.output_tokens);
    if ours {
        head.words("Generated tokens counted by:", sources(&summary.output_sources));
    }
    head.number("Request throughput (req/s):", summary.rate(summary.completed as f64));
    if let Some(good) = summary.good {
        head.number("Request goodput (req/s):", summary.rate(good as f64));
    }
    if ours {
        head.number("Input token throughput (tok/s):", summary.rate(summary.input_tokens as f64));
    }
    head.number("Output token throughput (tok/s):", summary.rate(summary.output_tokens as f64));
    head.number("Peak output token throughput (tok/s):", summary.peak_output_rate);
    head.number("Peak concurrent requests:", summary.peak_concurrent as f64);
    head.number("Total token throughput (tok/s):", total_rate(summary));
    if ours {
        head.number("Concurrency:", summary.concurrency);
    }
    head
}

fn sglang_head(summary: &LoadSummary, settings: &RunSettings) -> ReportSection {
    let mut head = ReportSection::new(&title(summary));
    head.words("Backend:", format!("onboard {}", settings.endpoint));
    let rate = settings.rate.map_or_else(|| "inf".to_owned(), |rate| rate.to_string());
    head.words("Traffic request rate:", rate);
    let limit =
        settings.concurrency.map_or_else(|| "not set".to_owned(), |limit| limit.to_string());
    head.words("Max request concurrency:", limit);
    head.count("Successful requests:", summary.completed as u64);
    head.number("Benchmark duration (s):", summary.duration);
    head.count("Total input tokens:", summary.input_tokens);
    head.count("Total generated tokens:", summary.output_tokens);
    head.number("Request throughput (req/s):", summary.rate(summary.completed as f64));
    head.number("Input token throughput (tok/s):", summary.rate(summary.input_tokens as f64));
    head.number("Output token throughput (tok/s):", summary.rate(summary.output_tokens as f64));
    head.number("Peak output token throughput (tok/s):", summary.peak_output_rate);
    head.count("Peak concurrent requests:", summary.peak_concurrent as u64);
    head.number("Total token throughput (tok/s):", total_rate(summary));
    head.number("Concurrency:", summary.concurrency);
    head
}

fn total_rate(summary: &LoadSummary) -> f64 {
    summary.rate(summary.input_tokens as f64 + summary.output_tokens as f64)
}

fn goodput(summary: &LoadSummary, settings: &RunSettings) -> ReportSection {
    let mut section = ReportSection::new("Goodput");
    let all: Vec<String> = settings
        .objectives
        .iter()
        .map(|objective: &ServiceObjective| {
            format!("{}:{}", metric(objective.metric), objective.milliseconds)
        })
        .collect();
    section.words("SLOs (ms):", all.join(" "));
    section.number("Request goodput (req/s):", summary.rate(summary.good.unwrap_or(0) as f64));
    let requests = (summary.completed + summary.failed).max(1) as f64;
    section.number("SLO attainment (%):", 100.0 * summary.good.unwrap_or(0) as f64 / requests);
    for (objective, met) in settings.objectives.iter().zip(&summary.met) {
        let label = format!("{} SLO attainment (%):", metric(objective.metric).to_uppercase());
        section.number(&label, 100.0 * *met as f64 / requests);
    }
    section
}

fn metric(metric: SloMetric) -> &'static str {
    match metric {
        SloMetric::Ttft => "ttft",
        SloMetric::Tpot => "tpot",
        SloMetric::E2el => "e2el",
    }
}

fn sources(sources: &BTreeMap<TokenSource, usize>) -> String {
    let names: Vec<&str> = sources.keys().map(|source| source.name()).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Returns the results in the names of the result files of `vllm bench serve`.
fn object(
    summary: &LoadSummary,
    settings: &RunSettings,
    records: Option<&[RequestRecord]>,
) -> Map<String, Value> {
    let mut all = Map::new();
    let mut put = |key: &str, value: Value| {
        all.insert(key.to_owned(), value);
    };
    put("schema", json!("onboard-bench-serve/1"));
    put("url", json!(settings.url));
    put("model_id", json!(settings.model));
    put("endpoint", json!(settings.endpoint));
    put("prompts", json!(settings.prompts));
    put("num_prompts", json!(settings.requests));
    put("prompt_tokens", json!(settings.prompt_tokens));
    put("asked_tokens", json!(settings.asked_tokens));
    put("request_rate", settings.rate.map_or_else(|| json!("inf"), |rate| json!(rate)));
    put("arrivals", json!(settings.arrivals));
    put("max_concurrency", json!(settings.concurrency));
    put("seed", json!(settings.seed));
    put("definitions", json!(settings.style.name()));
    put("partial", json!(summary.unfinished + summary.unsent > 0));
    put("unfinished", json!(summary.unfinished));
    put("unsent", json!(summary.unsent));
    put("duration", json!(summary.duration));
    put("completed", json!(summary.completed));
    put("failed", json!(summary.failed));
    put("total_input_tokens", json!(summary.input_tokens));
    put("total_output_tokens", json!(summary.output_tokens));
    put("input_tokens_from", by_source(&summary.input_sources));
    put("output_tokens_from", by_source(&summary.output_sources));
    put("output_chunks", json!(summary.chunks));
    put("request_throughput", json!(summary.rate(summary.completed as f64)));
    put("input_throughput", json!(summary.rate(summary.input_tokens as f64)));
    put("output_throughput", json!(summary.rate(summary.output_tokens as f64)));
    put("total_token_throughput", json!(total_rate(summary)));
    put("request_goodput", json!(summary.good.map(|good| summary.rate(good as f64))));
    let bounds = settings.objectives.iter().zip(&summary.met).map(|(objective, met)| {
        json!({ "metric": metric(objective.metric), "ms": objective.milliseconds, "met": met })
    });
    put("objectives", bounds.collect());
    put("max_output_tokens_per_s", json!(summary.peak_output_rate));
    put("max_concurrent_requests", json!(summary.peak_concurrent));
    put("max_in_flight", json!(summary.peak_in_flight));
    put("concurrency", json!(summary.concurrency));
    for (name, latency) in [
        ("ttft", &summary.ttft),
        ("tpot", &summary.tpot),
        ("itl", &summary.itl),
        ("e2el", &summary.e2el),
        ("send_delay", &summary.delay),
    ] {
        statistics(name, latency, &mut put);
    }
    let failures = summary.failures.iter().map(
        |(kind, (count, first))| json!({ "kind": kind.to_string(), "count": count, "first": first }),
    );
    put("failures", failures.collect());
    if let Some(records) = records {
        put("requests", records.iter().map(request).collect());
    }
    all
}

fn statistics(name: &str, latency: &LatencyStatistics, put: &mut impl FnMut(&str, Value)) {
    put(&format!("mean_{name}_ms"), json!(latency.mean));
    put(&format!("median_{name}_ms"), json!(latency.median));
    put(&format!("std_{name}_ms"), json!(latency.std));
    put(&format!("max_{name}_ms"), json!(latency.max));
    for (rank, value) in &latency.percentiles {
        put(&format!("p{rank}_{name}_ms"), json!(value));
    }
}

fn by_source(sources: &BTreeMap<TokenSource, usize>) -> Value {
    let counts = sources.iter().map(|(source, count)| (source.name().to_owned(), json!(count)));
    Value::Object(counts.collect())
}

fn request(record: &RequestRecord) -> Value {
    json!({
        "index": record.index,
        "due": record.due,
        "sent": record.sent,
        "ttft": record.failure.is_none().then_some(record.ttft),
        "latency": record.latency,
        "itl": record.itl,
        "chunks": record.chunks,
        "prompt_tokens": record.prompt_tokens.or(record.prompt_length),
        "output_tokens": record.output_tokens,
        "failure": record.failure.as_ref().map(ToString::to_string),
    })
}

/// Formats the scalars of the results as a header and a line.
fn csv(object: &Map<String, Value>) -> String {
    let mut names = Vec::new();
    let mut cells = Vec::new();
    for (name, value) in object {
        let cell = match value {
            Value::Array(_) | Value::Object(_) => continue,
            Value::String(text) => csv_cell(text),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        names.push(csv_cell(name));
        cells.push(cell);
    }
    format!("{}\n{}", names.join(","), cells.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadFailureKind;

    fn settings() -> RunSettings {
        RunSettings {
            url: "http://h:1".to_owned(),
            model: "a,b".to_owned(),
            endpoint: "/v1/completions",
            requests: 3,
            rate: Some(2.0),
            arrivals: "poisson",
            concurrency: Some(8),
            prompts: "random ids".to_owned(),
            prompt_tokens: Some(30),
            asked_tokens: 12,
            seed: 0,
            style: ReportStyle::Onboard,
            objectives: vec![ServiceObjective { metric: SloMetric::Ttft, milliseconds: 100.0 }],
        }
    }

    fn summary() -> LoadSummary {
        LoadSummary {
            completed: 2,
            failed: 1,
            duration: 2.0,
            input_tokens: 20,
            output_tokens: 8,
            output_sources: BTreeMap::from([(TokenSource::Usage, 2)]),
            good: Some(1),
            met: vec![1],
            ttft: LatencyStatistics {
                count: 2,
                mean: 12.345,
                percentiles: vec![(99.0, 20.0), (99.9, 21.0)],
                ..LatencyStatistics::default()
            },
            failures: BTreeMap::from([(LoadFailureKind::Timeout, (1, "late".to_owned()))]),
            ..LoadSummary::default()
        }
    }

    fn text(form: ReportForm, style: ReportStyle) -> String {
        render(&summary(), &RunSettings { style, ..settings() }, None, form).unwrap()
    }

    #[test]
    fn tables_have_the_rows_of_other_clients() {
        let vllm = text(ReportForm::Text, ReportStyle::Vllm);
        for line in [
            "============ Serving Benchmark Result ============",
            "Successful requests:                     2         ",
            "Request rate configured (RPS):           2.00      ",
            "Request goodput (req/s):                 0.50      ",
            "---------------Time to First Token----------------",
            "Mean TTFT (ms):                          12.35     ",
            "P99.9 TTFT (ms):                         21.00     ",
            "-----Time per Output Token (excl. 1st token)------",
            "---------------Inter-token Latency----------------",
            "Total token throughput (tok/s):          14.00     ",
        ] {
            assert!(vllm.contains(&format!("{line}\n")), "{line}\n{vllm}");
        }
        assert!(!vllm.contains("Max ITL") && !vllm.contains("counted by"));
        let sglang = text(ReportForm::Text, ReportStyle::Sglang);
        for line in [
            "Traffic request rate:                    2         ",
            "Max request concurrency:                 8         ",
            "----------------End-to-End Latency----------------",
            "SLO attainment (%):                      33.33     ",
            "TTFT SLO attainment (%):                 33.33     ",
            "Max ITL (ms):                            0.00      ",
        ] {
            assert!(sglang.contains(&format!("{line}\n")), "{line}\n{sglang}");
        }
        let ours = text(ReportForm::Text, ReportStyle::Onboard);
        assert!(
            ours.contains("counted by:") && ours.contains("usage") && ours.contains("timeout:"),
            "{ours}"
        );
    }

    #[test]
    fn forms_for_programs_hold_the_same_numbers() {
        let report: Value =
            serde_json::from_str(&text(ReportForm::Json, ReportStyle::Onboard)).unwrap();
        assert_eq!(report["p99.9_ttft_ms"], 21.0);
        assert_eq!(report["failures"][0]["kind"], "timeout");
        assert_eq!(report["objectives"][0]["met"], 1);
        assert_eq!(report["partial"], false);
        let csv = text(ReportForm::Csv, ReportStyle::Onboard);
        let (names, cells) = csv.split_once('\n').unwrap();
        assert!(names.split(',').any(|name| name == "model_id"), "{csv}");
        assert!(cells.contains("\"a,b\""), "{csv}");
        assert_eq!(names.split(',').count(), cells.replace("\"a,b\"", "ab").split(',').count());
        let md = text(ReportForm::Md, ReportStyle::Onboard);
        assert!(md.contains("| Successful requests "), "{md}");
        assert_eq!(text(ReportForm::Jsonl, ReportStyle::Onboard).lines().count(), 1);
    }

    #[test]
    fn a_stopped_run_is_called_partial() {
        let summary = LoadSummary { unfinished: 1, unsent: 4, ..summary() };
        let vllm = RunSettings { style: ReportStyle::Vllm, ..settings() };
        let text = render(&summary, &vllm, None, ReportForm::Text).unwrap();
        assert!(text.contains("Result (PARTIAL) ="), "{text}");
        assert!(text.contains("Requests left by the stop:               5"), "{text}");
    }
}
