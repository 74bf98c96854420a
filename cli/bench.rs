//! `onboard bench`: tokens per second, in rows like those of other bench tools.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use engine::{Chunk, NoProbe, OutputRows, Session, SessionOptions};
use registry::dtype::Dtype;
use serde_json::json;

use crate::findings::engine_error;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::text::{TextTable, bytes, count};
use crate::{CommandOutcome, term};

mod draft;

/// Default number of tokens of the prefill test, unless the model handles fewer.
const PROMPT: usize = 512;

/// Measures prefill and decode in tokens per second
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard bench MODEL                          prefill of 512 tokens, decode of 128
  onboard bench MODEL -p 128 -n 32 --dtype bf16 -r 5
  onboard bench MODEL --draft mtp -k 2 -n 200  how many drafts of the model's own head are accepted

Each test runs once to warm up and then -r times; t/s is the mean ± standard deviation.
`onboard synth` makes a checkpoint of any size to measure with.")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// Tokens of the prefill test; 0 leaves it out; default: 512, or all that the model handles
    #[arg(short, value_name = "N")]
    p: Option<usize>,
    /// Tokens of the decode test; 0 leaves it out
    #[arg(short, value_name = "N", default_value_t = 128)]
    n: usize,
    /// Dtype of activations; default: as the checkpoint declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Number of measurements of each test
    #[arg(short, value_name = "N", default_value_t = 3)]
    repetitions: usize,
    /// Draft tokens with the model's own head, and count how many are accepted
    #[arg(long, value_name = "HEAD", value_parser = ["mtp"])]
    draft: Option<String>,
    /// Tokens drafted for each step of the model
    #[arg(short, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    k: u8,
    /// Tokens to begin with when drafting, with commas; default: 16, spread over the vocabulary
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tokens: Vec<u32>,
    /// Share matrices out to this many ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    tensor_parallel: usize,
    /// Worker threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        ensure!(self.repetitions > 0, "-r must be at least 1");
        ensure!(self.p != Some(0) || self.n > 0, "-p and -n are both 0: nothing to measure");
        let target = target::open(&self.which, &self.choice)?;
        let prompt = self.p.unwrap_or(PROMPT.min(target.model.context.unwrap_or(PROMPT)));
        target::explained(&target, &self.choice)?;
        let (size, parameters) = target.extent()?;
        let dtype = self.dtype.unwrap_or_else(|| target.dtype());
        target::check_dtypes(&target, &[dtype])?;
        let options = SessionOptions {
            dtype,
            poison: false,
            drafts: self.draft.is_some(),
            ranks: self.tensor_parallel,
            rollback: SessionOptions::default().rollback.max(usize::from(self.k)),
            threads: self.threads,
            ..SessionOptions::default()
        };
        let begun = Instant::now();
        let mut session = crate::engines::native()?
            .open(&target::source(&target), &options)
            .map_err(engine_error)?;
        term::note(&format!("loaded in {:.2} s", begun.elapsed().as_secs_f64()));
        if self.draft.is_some() {
            return draft::run(&self, &target, session.as_mut(), &options);
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or_else(cores);
        let mut rows = Vec::new();
        let mut table = TextTable::new(&[1, 2, 4, 6]);
        table.row(["model", "size", "params", "dtype", "threads", "test", "t/s"]);
        let tests = [(prompt, 0, format!("pp{prompt}")), (0, self.n, format!("tg{}", self.n))];
        for (prefill, decode, test) in tests.into_iter().filter(|(p, n, _)| p + n > 0) {
            let bar = term::spinner(&test);
            let rates = self.measure(session.as_mut(), prefill, decode)?;
            bar.finish_and_clear();
            let (mean, deviation) = spread(&rates);
            rows.push(json!({
                "test": test, "prefill": prefill, "decode": decode,
                "tokens_per_second": rates, "mean": mean, "deviation": deviation,
            }));
            table.row([
                target.name.clone(),
                bytes(size),
                count(parameters),
                dtype.to_string(),
                threads.to_string(),
                test,
                format!("{mean:.2} ± {deviation:.2}"),
            ]);
        }
        if self.json {
            let whole = json!({
                "schema": "onboard-bench/1",
                "model": target.name,
                "bytes": size,
                "parameters": parameters,
                "dtype": dtype.name(),
                "threads": threads,
                "tests": rows,
                "peak_memory_bytes": peak_memory(),
            });
            term::print(&serde_json::to_string_pretty(&whole)?)?;
            return Ok(CommandOutcome::Ok);
        }
        term::print(&table.markdown())?;
        if let Some(peak) = peak_memory() {
            term::print(&format!("\npeak memory: {}", bytes(peak)))?;
        }
        Ok(CommandOutcome::Ok)
    }

    /// Measures tokens per second of each repetition, after one warm-up run.
    fn measure(
        &self,
        session: &mut dyn Session,
        prefill: usize,
        decode: usize,
    ) -> Result<Vec<f64>> {
        let vocab = session.model().vocab.max(1) as u64;
        // Any tokens do; these are spread over the vocabulary and the same in every run.
        let token = |n: usize| ((n as u64 * 2_654_435_761) % vocab) as u32;
        let mut rates = Vec::new();
        for repetition in 0..=self.repetitions {
            let slot = session.open_slot();
            let begun;
            if prefill > 0 {
                let tokens: Vec<u32> = (0..prefill).map(token).collect();
                begun = Instant::now();
                session.step(
                    &[Chunk { slot, tokens: &tokens, rows: OutputRows::Last }],
                    &mut NoProbe,
                )?;
            } else {
                session.step(
                    &[Chunk { slot, tokens: &[token(0)], rows: OutputRows::Last }],
                    &mut NoProbe,
                )?;
                begun = Instant::now();
                for n in 0..decode {
                    session.step(
                        &[Chunk { slot, tokens: &[token(n + 1)], rows: OutputRows::Last }],
                        &mut NoProbe,
                    )?;
                }
            }
            let rate = (prefill + decode) as f64 / begun.elapsed().as_secs_f64().max(1e-9);
            session.release(slot)?;
            if repetition > 0 {
                rates.push(rate);
            }
        }
        Ok(rates)
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

/// Returns the peak memory of this process, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status =
        registry::file::read_text("/proc/self/status".as_ref(), registry::file::CONFIG).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(spread(&[5.0]), (5.0, 0.0));
        assert_eq!(spread(&[1.0, 3.0]), (2.0, 2.0_f64.sqrt()));
    }
}
