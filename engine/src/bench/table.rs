//! Results of a benchmark as Markdown, CSV, JSON or JSON lines.

use std::fmt::Write as _;

use registry::quantity::{bytes, count};
use registry::table::{TextTable, csv_cell, markdown_cell};
use serde_json::{Map, Value, json};

use super::error::BenchError;
use super::plan::{BenchSubject, BenchTest};

/// Form of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchForm {
    /// Markdown table.
    Md,
    /// Header and one line for each test.
    Csv,
    /// One document.
    Json,
    /// One object on a line for each test.
    Jsonl,
}

/// Rates of one program in one test.
#[derive(Debug, Clone)]
pub struct BenchSamples {
    /// Name of the program.
    pub program: String,
    /// Tokens per second of each round, or the reason why the program did not run.
    pub rates: Result<Vec<f64>, BenchError>,
}

impl BenchSamples {
    /// Returns a program without results.
    pub(super) fn new(program: &str) -> Self {
        Self { program: program.to_owned(), rates: Ok(Vec::new()) }
    }

    /// Runs a program that has not failed yet, and keeps its rate if `counts`.
    pub(super) fn add(&mut self, run: impl FnOnce() -> Result<f64, BenchError>, counts: bool) {
        let Ok(rates) = &mut self.rates else { return };
        match run() {
            Ok(rate) if counts => rates.push(rate),
            Ok(_) => {}
            Err(why) => self.rates = Err(why),
        }
    }
}

/// Result of one test.
#[derive(Debug, Clone)]
pub struct BenchRow {
    /// Model and settings.
    pub subject: BenchSubject,
    /// Test that was run.
    pub test: BenchTest,
    /// Tokens per second of each round.
    pub rates: Vec<f64>,
    /// Other programs, in the order of the command line.
    pub peers: Vec<BenchSamples>,
}

/// Returns the median, which a single slow round does not move.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Returns mean and standard deviation of a sample.
fn spread(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

impl BenchRow {
    /// Returns the median of the ratios of each round to a program that ran in the same round.
    fn ratio(&self, peer: &BenchSamples) -> Option<f64> {
        let rates = peer.rates.as_ref().ok()?;
        let ratios: Vec<f64> =
            self.rates.iter().zip(rates).map(|(ours, theirs)| ours / theirs).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }

    /// Returns the fields of a test, in the names of llama-bench.
    fn fields(&self) -> Vec<(&'static str, Value)> {
        let (mean, deviation) = spread(&self.rates);
        let mut fields = vec![
            ("model", json!(self.subject.model)),
            ("model_size", json!(self.subject.bytes)),
            ("model_n_params", json!(self.subject.parameters)),
            ("dtype", json!(self.subject.dtype)),
            ("n_threads", json!(self.subject.threads)),
            ("test", json!(self.test.name())),
            ("n_prompt", json!(self.test.prompt)),
            ("n_gen", json!(self.test.generated)),
            ("n_depth", json!(self.test.depth)),
            ("n_batch", json!(self.test.batch)),
            ("avg_ts", json!(mean)),
            ("stddev_ts", json!(deviation)),
            ("median_ts", json!(median(&self.rates))),
            ("samples_ts", json!(self.rates)),
        ];
        if !self.peers.is_empty() {
            let peers = self.peers.iter().map(|peer| {
                let (rates, reason) = match &peer.rates {
                    Ok(rates) => (json!(rates), Value::Null),
                    Err(why) => (Value::Null, json!(why.to_string())),
                };
                json!({
                    "program": peer.program, "samples_ts": rates, "not_run": reason,
                    "median_ts": peer.rates.as_ref().ok().map(|rates| median(rates)),
                    "ratio": self.ratio(peer),
                })
            });
            fields.push(("against", peers.collect()));
        }
        fields
    }

    fn object(&self) -> Map<String, Value> {
        self.fields().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Formats results. `peak` is the largest memory of this process, if the system reports it.
pub fn render(
    rows: &[BenchRow],
    form: BenchForm,
    peak: Option<u64>,
) -> Result<String, serde_json::Error> {
    Ok(match form {
        BenchForm::Md => markdown(rows, peak),
        BenchForm::Csv => csv(rows),
        BenchForm::Json => {
            let tests: Vec<Map<String, Value>> = rows.iter().map(BenchRow::object).collect();
            let report =
                json!({ "schema": "onboard-bench/2", "tests": tests, "peak_memory_bytes": peak });
            serde_json::to_string_pretty(&report)?
        }
        BenchForm::Jsonl => {
            let lines = rows.iter().map(|row| serde_json::to_string(&row.object()));
            lines.collect::<Result<Vec<String>, _>>()?.join("\n")
        }
    })
}

fn markdown(rows: &[BenchRow], peak: Option<u64>) -> String {
    let peers: &[BenchSamples] = rows.first().map_or(&[], |row| &row.peers);
    let last = 7 + 2 * peers.len();
    let right: Vec<usize> = [1, 2, 4].into_iter().chain(6..last).collect();
    let mut table = TextTable::new(&right);
    let columns = ["model", "size", "params", "dtype", "threads", "test", "t/s"];
    let names = peers.iter().flat_map(|peer| [peer.program.clone(), "ratio".to_owned()]);
    table.row(columns.into_iter().map(str::to_owned).chain(names));
    for row in rows {
        let ours = [
            markdown_cell(&row.subject.model),
            bytes(row.subject.bytes),
            count(row.subject.parameters),
            row.subject.dtype.clone(),
            row.subject.threads.to_string(),
            row.test.name(),
            rate_text(&row.rates),
        ];
        let peers = row.peers.iter().flat_map(|peer| {
            let rate = peer.rates.as_ref();
            let rate = rate.map_or_else(|_| "not run".to_owned(), |rates| rate_text(rates));
            [rate, row.ratio(peer).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))]
        });
        table.row(ours.into_iter().chain(peers));
    }
    let mut text = table.markdown();
    let mut reasons: Vec<String> = Vec::new();
    for peer in rows.iter().flat_map(|row| &row.peers) {
        if let Err(why) = &peer.rates {
            let reason = format!("{} did not run: {why}", peer.program);
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    if let Some(peak) = peak {
        let _ = writeln!(text, "\npeak memory: {}", bytes(peak));
    }
    for reason in reasons {
        let _ = writeln!(text, "{reason}");
    }
    text.trim_end().to_owned()
}

/// Returns the mean of rates with its deviation.
fn rate_text(rates: &[f64]) -> String {
    let (mean, deviation) = spread(rates);
    format!("{mean:.2} ± {deviation:.2}")
}

fn csv(rows: &[BenchRow]) -> String {
    let mut lines = Vec::new();
    for row in rows {
        let numbers =
            row.fields().into_iter().filter(|(key, _)| !["samples_ts", "against"].contains(key));
        let mut fields: Vec<(String, Value)> =
            numbers.map(|(key, value)| (key.to_owned(), value)).collect();
        for peer in &row.peers {
            let rate = peer.rates.as_ref().ok().map(|rates| median(rates));
            fields.push((format!("{}_median_ts", peer.program), json!(rate)));
            fields.push((format!("{}_ratio", peer.program), json!(row.ratio(peer))));
        }
        if lines.is_empty() {
            let names: Vec<String> = fields.iter().map(|(name, _)| csv_cell(name)).collect();
            lines.push(names.join(","));
        }
        let cells = fields.iter().map(|(_, value)| match value {
            Value::String(text) => csv_cell(text),
            Value::Null => String::new(),
            other => other.to_string(),
        });
        lines.push(cells.collect::<Vec<_>>().join(","));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> BenchRow {
        BenchRow {
            subject: BenchSubject {
                model: "a,\"b".to_owned(),
                bytes: 2048,
                parameters: 1024,
                dtype: "f32".to_owned(),
                threads: 2,
            },
            test: BenchTest { prompt: 8, generated: 0, depth: 0, batch: 1 },
            rates: vec![1.0, 3.0, 8.0],
            peers: vec![
                BenchSamples { program: "one".to_owned(), rates: Ok(vec![2.0, 2.0, 2.0]) },
                BenchSamples {
                    program: "two".to_owned(),
                    rates: Err(BenchError::Unsuited { reason: "no file" }),
                },
            ],
        }
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(spread(&[5.0]), (5.0, 0.0));
        assert_eq!(spread(&[1.0, 3.0]), (2.0, 2.0_f64.sqrt()));
        assert_eq!((median(&[3.0, 1.0, 9.0]), median(&[1.0, 2.0]), median(&[])), (3.0, 1.5, 0.0));
    }

    #[test]
    fn ratios_are_medians_of_the_ratios_of_rounds() {
        let row = row();
        assert_eq!(row.ratio(&row.peers[0]), Some(1.5));
        assert_eq!(row.ratio(&row.peers[1]), None);
    }

    #[test]
    fn every_form_holds_the_ratio_and_the_reason() {
        let rows = [row()];
        let text = render(&rows, BenchForm::Md, Some(1024)).unwrap();
        assert!(text.contains("1.50") && text.contains("two did not run: no file"), "{text}");
        let text = render(&rows, BenchForm::Csv, None).unwrap();
        let (header, line) = text.split_once('\n').unwrap();
        assert!(header.starts_with("model,") && header.ends_with("two_ratio"), "{header}");
        assert!(line.starts_with("\"a,\"\"b\",2048,"), "{line}");
        let text = render(&rows, BenchForm::Json, None).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["tests"][0]["against"][0]["ratio"], 1.5);
        let text = render(&rows, BenchForm::Jsonl, None).unwrap();
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["against"][1]["not_run"], "no file");
    }
}
