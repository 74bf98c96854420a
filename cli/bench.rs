//! `onboard bench`: tokens per second, in rows like those of other bench tools.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use engine::bench::{
    BenchForm, BenchGrid, BenchRow, BenchSubject, BenchTest, DraftComparison, NamedPeer,
    PeerChoice, PeerSetting, measure, parse_count, parse_pair, parse_tokens, render, spread_tokens,
};
use engine::{ModelSource, Session, SessionOptions};
use models::local_model::LocalModel;
use parity::beside::beside;
use parity::{CheckOptions, Dump, Verdict};
use registry::check::has_head;
use registry::dtype::Dtype;

use crate::arithmetic::ArithmeticArgs;
use crate::engines::{self, DeviceArgs};
use crate::findings::engine_error;
use crate::progress::ConversionBar;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, term};

/// Default number of tokens of the prefill test, unless the model handles fewer.
const PROMPT: usize = 512;
/// Default number of tokens of the decode test, unless the model handles fewer.
const GENERATED: usize = 128;

/// Measures prefill and decode in tokens per second
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard bench MODEL                          prefill of 512 tokens, decode of 128
  onboard bench A.gguf B.gguf -p 128,512 -n 32 -r 5
  onboard bench MODEL -d 0,4096 --batch 1,16   behind 4096 tokens, and 16 sequences at once
  onboard bench MODEL --pg 512,128 -o csv      prefill and decode in one test, as CSV
  onboard bench FILE.gguf --against llama-bench=build/bin/llama-bench
  onboard bench MODEL --against torch          the same tests in turn, with ratios (or torch-compile)
  onboard bench MODEL --draft mtp -k 2 -n 200  how many drafts of the model's own head are accepted

Each test runs once to warm up and then -r times; t/s is the mean ± standard deviation. Programs of --against run each
test in the same rounds, and a ratio is the median of the rounds (above 1, this program is faster).
`onboard synth` makes a checkpoint of any size to measure with.")]
pub(crate) struct BenchArgs {
    /// Checkpoints (folders or .safetensors files), GGUF files, or owner/name on a hub
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<PathBuf>,
    #[command(flatten)]
    choice: SpecArgs,
    /// Tokens of the prefill tests, with commas; 0 leaves them out; default: 512, or all that the model handles
    #[arg(short, value_name = "LIST", value_delimiter = ',', value_parser = parse_tokens)]
    p: Vec<usize>,
    /// Tokens of the decode tests, with commas; 0 leaves them out; default: 128, or all that the model handles
    #[arg(short, value_name = "LIST", value_delimiter = ',', value_parser = parse_tokens)]
    n: Vec<usize>,
    /// Tokens of a test of prefill and decode together (repeatable)
    #[arg(long, value_name = "P,N", value_parser = parse_pair)]
    pg: Vec<(usize, usize)>,
    /// Tokens that a sequence holds before a test, with commas
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "0", value_parser = parse_tokens)]
    depth: Vec<usize>,
    /// Sequences that run a test together, with commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = parse_count)]
    batch: Vec<usize>,
    /// Dtypes of activations, with commas; default: as the checkpoint declares
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Number of measurements of each test
    #[arg(short, value_name = "N", default_value_t = 3, value_parser = parse_count)]
    repetitions: usize,
    /// Run the same tests with another program: llama-bench (GGUF files) or torch (checkpoints), or NAME=PROGRAM
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    against: Vec<PeerChoice>,
    /// Draft tokens with the model's own head, and count how many are accepted
    #[arg(
        long, value_name = "HEAD", value_parser = ["mtp"],
        conflicts_with_all = ["p", "pg", "depth", "batch", "against", "output"]
    )]
    draft: Option<String>,
    /// Tokens drafted for each step of the model
    #[arg(short, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    k: u8,
    /// Tokens to begin with when drafting, with commas; default: 16, spread over the vocabulary
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tokens: Vec<u32>,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Share matrices out to this many ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    tensor_parallel: usize,
    /// Worker threads, with commas; default: one per core
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    threads: Vec<usize>,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    output: BenchFormChoice,
    /// Print JSON: the same as -o json
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Form of the results on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchFormChoice {
    /// A Markdown table
    Md,
    /// A header and one line for each test
    Csv,
    /// One document
    Json,
    /// One object on a line for each test
    Jsonl,
}

impl BenchFormChoice {
    fn form(self) -> BenchForm {
        match self {
            Self::Md => BenchForm::Md,
            Self::Csv => BenchForm::Csv,
            Self::Json => BenchForm::Json,
            Self::Jsonl => BenchForm::Jsonl,
        }
    }
}

/// Returns the lengths that are given, or the default.
fn lengths_or(list: &[usize], default: usize) -> Vec<usize> {
    if list.is_empty() { vec![default] } else { list.to_vec() }
}

impl BenchArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        if self.draft.is_some() {
            return self.draft();
        }
        let mut rows = Vec::new();
        for model in &self.models {
            let target = self.open(model)?;
            let tests = self.tests(&target)?;
            let threads = if self.threads.is_empty() {
                vec![std::thread::available_parallelism().map_or(1, usize::from)]
            } else {
                self.threads.clone()
            };
            let dtypes =
                if self.dtype.is_empty() { vec![target.dtype()] } else { self.dtype.clone() };
            target::check_dtypes(&target, &dtypes)?;
            for &dtype in &dtypes {
                for &threads in &threads {
                    rows.extend(self.measure(&target, dtype, threads, &tests)?);
                }
            }
        }
        let form = if self.json { BenchForm::Json } else { self.output.form() };
        term::print(&render(&rows, form, peak_memory())?)?;
        for (n, choice) in self.against.iter().enumerate() {
            let mut results = rows.iter().map(|row| &row.peers[n].rates);
            let reason = results.clone().find_map(|rates| rates.as_ref().err());
            let ran = results.any(|rates| rates.as_ref().is_ok_and(|rates| !rates.is_empty()));
            match reason {
                Some(why) if !ran => bail!("`{}` ran no test: {why}", choice.text),
                Some(why) if form == BenchForm::Csv => {
                    term::note(&format!("`{}` did not run every test: {why}", choice.text));
                }
                _ => {}
            }
        }
        Ok(CommandOutcome::Ok)
    }

    fn open(&self, model: &Path) -> Result<LocalModel> {
        let target = target::open(&ModelArgs::at(model.to_owned()), &self.choice)?;
        target::explained(&target, &self.choice)?;
        Ok(target)
    }

    /// Lists the tests of a model, and refuses those that are longer than it handles.
    fn tests(&self, target: &LocalModel) -> Result<Vec<BenchTest>> {
        let context = target.model.context.unwrap_or(usize::MAX);
        let room = context.saturating_sub(self.depth.iter().copied().max().unwrap_or(0)).max(1);
        let prompts = lengths_or(&self.p, PROMPT.min(room));
        let generated = lengths_or(&self.n, GENERATED.min(room.saturating_sub(1)));
        let grid = BenchGrid {
            prompts: &prompts,
            generated: &generated,
            both: &self.pg,
            depths: &self.depth,
            batches: &self.batch,
        };
        let tests = grid.tests();
        ensure!(!tests.is_empty(), "-p and -n are both 0: nothing to measure");
        for test in &tests {
            ensure!(
                test.positions() <= context,
                "test {} needs {} positions; `{}` handles {context}",
                test.name(),
                test.positions(),
                target.name
            );
        }
        Ok(tests)
    }

    fn options(
        &self,
        target: &LocalModel,
        dtype: Dtype,
        threads: Option<usize>,
    ) -> Result<SessionOptions> {
        Ok(SessionOptions {
            dtype,
            poison: false,
            drafts: self.draft.is_some(),
            ranks: self.tensor_parallel,
            rollback: SessionOptions::default().rollback.max(usize::from(self.k)),
            threads,
            arithmetic: self.arithmetic.of(target, self.device.is_cpu())?,
            ..SessionOptions::default()
        })
    }

    /// Runs the tests of one model, dtype and number of threads, in turn with the other programs.
    fn measure(
        &self,
        target: &LocalModel,
        dtype: Dtype,
        threads: usize,
        tests: &[BenchTest],
    ) -> Result<Vec<BenchRow>> {
        let (bytes, parameters) = target.extent()?;
        let options = self.options(target, dtype, Some(threads))?;
        let begun = Instant::now();
        let mut session =
            self.device.native()?.open(&target::source(target), &options).map_err(engine_error)?;
        term::note(&format!("loaded in {:.2} s", begun.elapsed().as_secs_f64()));
        let python = engines::python();
        let setting = PeerSetting {
            program: Path::new(&python),
            model: &target.dir,
            gguf: target.is_gguf(),
            dtype,
            threads,
            gpu: !self.device.is_cpu(),
        };
        let peers = self.against.iter().map(|choice| (choice.text.clone(), choice.open(setting)));
        let mut peers: Vec<NamedPeer> = peers.collect();
        let model = target.name.clone();
        let subject = BenchSubject { model, bytes, parameters, dtype: dtype.to_string(), threads };
        measure(session.as_mut(), tests, self.repetitions, &mut peers, &subject, &|test, round| {
            let text = format!("{} {round}/{}", test.name(), self.repetitions);
            Box::new(ConversionBar(term::spinner(&text)))
        })
        .map_err(engine_error)
    }

    fn draft(&self) -> Result<CommandOutcome> {
        let [model] = &self.models[..] else {
            bail!("--draft measures one model; {} are given", self.models.len());
        };
        let longest = self.n.len().max(self.dtype.len()).max(self.threads.len());
        ensure!(
            longest <= 1,
            "--draft takes one number for -n, one dtype and one number of threads"
        );
        let target = self.open(model)?;
        let dtype = self.dtype.first().copied().unwrap_or_else(|| target.dtype());
        target::check_dtypes(&target, &[dtype])?;
        let options = self.options(&target, dtype, self.threads.first().copied())?;
        let mut session = self
            .device
            .native()?
            .open(&target::source(&target), &options)
            .map_err(engine_error)
            .context("cannot open the model")?;
        self.compare_drafts(&target, session.as_mut(), &options)
    }

    /// Decodes with the model's own head and without it.
    fn compare_drafts(
        &self,
        target: &LocalModel,
        session: &mut dyn Session,
        options: &SessionOptions,
    ) -> Result<CommandOutcome> {
        let count = self.n.first().copied().unwrap_or(GENERATED);
        ensure!(count > 1, "-n must be at least 2 to draft");
        let Some(nextn) = &target.model.nextn else {
            bail!(
                "`{}` has no head: its spec has no `nextn`, or its config counts none",
                target.name
            );
        };
        // A file without a head was opened as a model without one.
        ensure!(
            target.is_gguf() || has_head(&target.model, &target.checkpoint()?.shapes()),
            "`{}` has no tensors of the head that its spec and config describe",
            target.dir.display()
        );
        let Some(model) = nextn.layers.first() else { bail!("the head has no layers") };
        let source = ModelSource { model: Arc::clone(model), dir: &target.dir };
        let mut head = self.device.native()?.open(&source, options).map_err(engine_error)?;
        let prompt = match &self.tokens[..] {
            [] => spread_tokens(target.model.vocab, 0..16),
            tokens => tokens.to_vec(),
        };
        let k = usize::from(self.k);
        let drafts = DraftComparison::measure(session, head.as_mut(), &prompt, count, k)?;
        let proven = if drafts.is_suspect() { proven(target, &source)? } else { None };
        let text = if self.json {
            serde_json::to_string_pretty(&drafts.json(&target.name, proven))?
        } else {
            drafts.text(proven)
        };
        term::print(text.trim_end())?;
        Ok(if drafts.differs(proven) { CommandOutcome::Differs } else { CommandOutcome::Ok })
    }
}

/// True if the head agrees with the reference beside the model; none if there is no dump of it.
fn proven(target: &LocalModel, source: &ModelSource<'_>) -> Result<Option<bool>> {
    let Some(path) = beside(&target.dir) else { return Ok(None) };
    let Some(dump) = Dump::open(&path)?.nextn()? else { return Ok(None) };
    let options =
        CheckOptions { dtypes: vec![Dtype::F32], schedules: false, ..CheckOptions::default() };
    let report = parity::check(source, &dump, &options)?;
    Ok(Some(report.verdict() != Verdict::Fail))
}

/// Returns the peak memory of this process, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status =
        registry::file::read_text("/proc/self/status".as_ref(), registry::file::CONFIG).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
