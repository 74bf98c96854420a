//! `onboard bench-serve`: latencies and rates of an inference server under load.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use endpoints::EndpointOptions;
use endpoints::load::settings::{
    parse_body, parse_connections, parse_lengths, parse_objective, parse_percentile, parse_rate,
    parse_ratio, parse_request_count,
};
use endpoints::load::{
    ArrivalProcess, CompletionsApi, LengthDistribution, LoadClient, LoadOptions, LoadPlan,
    LoadPrompt, LoadPromptError, LoadRun, LoadSummary, MOST_CONNECTIONS, PromptForm, PromptSource,
    PromptTokenizer, ReportForm, RunSettings, ServiceObjective, SummaryOptions, Vocabulary, render,
};
use serde_json::{Map, Value};
use tokenizer::ReferenceTokenizer;

use self::choices::{FormChoice, ReportChoice, StyleChoice};
use crate::engines::{api_key, parse_seconds, set_endpoint};
use crate::{CommandOutcome, interrupt, term};

mod choices;

/// Maximum bytes of one answer.
const MOST_ANSWER: u64 = 64 << 20;
/// Delay of requests, in milliseconds, that the report mentions.
const LATE: f64 = 20.0;

/// Measures latencies and rates of an inference server under load
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard bench-serve http://127.0.0.1:8000                       100 random prompts, all at once
  onboard bench-serve URL --request-rate 4 -n 200                 Poisson arrivals, 4 requests per second
  onboard bench-serve URL --max-concurrency 16 --random-input-len 512..1024 --random-output-len normal:128,32
  onboard bench-serve URL --endpoint chat --prompts prompts.jsonl -o json --details
  onboard bench-serve URL --goodput ttft:500 --goodput tpot:50    requests that meet both objectives
  onboard bench-serve URL --table sglang                          rows as in sglang.bench_serving

Any server with the streaming completions of the OpenAI API is measured. Terms are those of `vllm bench serve` and
sglang.bench_serving (`onboard help bench-serve`). Ctrl-C prints the results so far. Without a single success the exit code is 2.")]
pub(crate) struct BenchServeArgs {
    /// Address of the server, as in http://127.0.0.1:8000
    #[arg(value_name = "URL")]
    url: String,
    /// Served name of the model; default: the first that the server lists
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Endpoint of the requests
    #[arg(long, value_name = "ENDPOINT", default_value = "completions")]
    endpoint: EndpointChoice,
    /// Number of requests
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = parse_request_count)]
    num_prompts: usize,
    /// Requests per second, or inf to send all at once
    #[arg(long, value_name = "RATE", default_value = "inf", value_parser = parse_rate)]
    request_rate: f64,
    /// Times between requests: those of a Poisson process, or all equal
    #[arg(long, value_name = "PROCESS", default_value = "poisson")]
    arrivals: ArrivalChoice,
    /// Most requests in flight; default: 1024, which is the most
    #[arg(long, value_name = "N", value_parser = parse_connections)]
    max_concurrency: Option<usize>,
    /// Tokens of random prompts: 1024, 512..1024 or normal:MEAN,DEVIATION
    #[arg(long, value_name = "LENGTHS", default_value = "1024", value_parser = parse_lengths)]
    random_input_len: LengthDistribution,
    /// Generated tokens: 128, 64..256 or normal:MEAN,DEVIATION
    #[arg(long, value_name = "LENGTHS", default_value = "128", value_parser = parse_lengths)]
    random_output_len: LengthDistribution,
    /// Uniform lengths around the given ones, from L*(1-R) to L*(1+R)
    #[arg(long, value_name = "R", default_value = "0", value_parser = parse_ratio)]
    random_range_ratio: f64,
    /// Tokens that all random prompts begin with, besides their own
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    random_prefix_len: u32,
    /// File of prompts instead of random ones: JSON lines, or conversations as in ShareGPT
    #[arg(long, value_name = "FILE", alias = "dataset-path")]
    prompts: Option<PathBuf>,
    /// Form of random prompts for completions: token ids, text, or ids if the server takes them
    #[arg(long, value_name = "FORM", default_value = "auto")]
    send: FormChoice,
    /// Random token ids are below this; default: as the tokenizer or the server tells, or 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 28))]
    vocab_size: Option<u32>,
    /// Folder with a tokenizer, for random text of exact lengths and for answers without token counts
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Requests that warm the server up and are not measured
    #[arg(long, value_name = "N", default_value_t = 1, aliases = ["num-warmups", "warmup-requests"], value_parser = clap::value_parser!(u16))]
    warmup: u16,
    /// Seed of lengths, tokens and arrival times
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Let answers end before their number of tokens: do not send `ignore_eos`
    #[arg(long)]
    disable_ignore_eos: bool,
    /// JSON object, or @FILE with one, whose fields are added to each request; null removes a field
    #[arg(long, value_name = "JSON", alias = "extra-request-body", value_parser = parse_body)]
    extra_body: Option<Map<String, Value>>,
    /// Percentiles, with commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "90,95,99", alias = "metric-percentiles", value_parser = parse_percentile)]
    percentiles: Vec<f64>,
    /// Objective in milliseconds that good requests meet: ttft:MS, tpot:MS or e2el:MS (repeatable)
    #[arg(long, value_name = "METRIC:MS", num_args = 1.., value_parser = parse_objective)]
    goodput: Vec<ServiceObjective>,
    /// Client whose definitions the figures have, and whose names the rows of -o text
    #[arg(long, value_name = "STYLE", default_value = "onboard")]
    table: StyleChoice,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", default_value = "text", alias = "output-format")]
    output: ReportChoice,
    /// Print JSON: the same as -o json
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// With json and jsonl, list every request
    #[arg(long)]
    details: bool,
    /// Seconds that one request may take
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = parse_seconds)]
    timeout: Duration,
    /// Setting of the client: model, timeout, key-env, ca or insecure (repeatable)
    #[arg(long = "engine-option", value_name = "KEY=VALUE")]
    options: Vec<String>,
}

/// Endpoint on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum EndpointChoice {
    /// /v1/completions
    #[value(alias = "/v1/completions")]
    Completions,
    /// /v1/chat/completions
    #[value(alias = "/v1/chat/completions")]
    Chat,
}

impl EndpointChoice {
    fn api(self) -> CompletionsApi {
        match self {
            Self::Completions => CompletionsApi::Completions,
            Self::Chat => CompletionsApi::Chat,
        }
    }
}

/// Tokenizer that the load test reads texts with.
struct LoadedTokenizer<'a>(&'a ReferenceTokenizer);

impl PromptTokenizer for LoadedTokenizer<'_> {
    fn encode(&self, text: &str) -> Result<Vec<u32>, LoadPromptError> {
        self.0.encode(text, false).map_err(|why| LoadPromptError::Tokenizer(why.to_string()))
    }

    fn decode(&self, ids: &[u32]) -> Result<String, LoadPromptError> {
        self.0.decode(ids, true).map_err(|why| LoadPromptError::Tokenizer(why.to_string()))
    }
}

/// Arrival process on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ArrivalChoice {
    /// Exponential intervals
    Poisson,
    /// Equal intervals
    #[value(alias = "fixed")]
    Constant,
}

impl BenchServeArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let tokenizer = self.read_tokenizer()?;
        let loaded = tokenizer.as_ref().map(LoadedTokenizer);
        let loaded = loaded.as_ref().map(|tokenizer| tokenizer as &dyn PromptTokenizer);
        let mut prompts = self.prompt_source(loaded)?;
        let client = self.client(tokenizer.is_some())?;
        let vocab = self.vocab_size.map(u64::from);
        let vocab = vocab.or_else(|| tokenizer.as_ref().map(|t| t.vocab_size() as u64));
        prompts.vocabulary = Vocabulary::below(vocab.or(client.vocab()));
        if let Some(failure) = client.choose_form(&mut prompts, self.seed)? {
            term::note(&format!("note: prompts are sent as text: token ids gave {failure}"));
        }
        let requests = prompts.requests(self.num_prompts, self.seed)?;
        if requests.len() < self.num_prompts {
            let count = requests.len();
            let requested = self.num_prompts;
            term::note(&format!("note: the file has {count} prompts; {requested} were asked for"));
        }
        self.warm_up(&client, &prompts)?;
        let settings = self.settings(&client, &prompts, &requests);
        let run = self.measure(&client, requests);
        self.report(&run, &settings, tokenizer.as_ref())
    }

    fn read_tokenizer(&self) -> Result<Option<ReferenceTokenizer>> {
        let Some(dir) = &self.tokenizer else { return Ok(None) };
        let read = ReferenceTokenizer::read(dir)?;
        let read = read.with_context(|| {
            format!("`{}` has no tokenizer.json and no vocab.json with merges.txt", dir.display())
        })?;
        Ok(Some(read))
    }

    fn prompt_source<'a>(
        &self,
        tokenizer: Option<&'a dyn PromptTokenizer>,
    ) -> Result<PromptSource<'a>> {
        let chat = matches!(self.endpoint, EndpointChoice::Chat);
        ensure!(
            !(chat && self.send == FormChoice::Ids),
            "--send ids is for --endpoint completions: messages of a chat are text"
        );
        Ok(PromptSource {
            file: self.prompts.clone(),
            chat,
            input: self.spread(self.random_input_len, "--random-input-len")?,
            output: self.spread(self.random_output_len, "--random-output-len")?,
            prefix: self.random_prefix_len as usize,
            form: if chat { PromptForm::Text } else { self.send.form() },
            vocabulary: Vocabulary::below(None),
            tokenizer,
        })
    }

    /// Spreads a length by `--random-range-ratio`.
    fn spread(&self, lengths: LengthDistribution, flag: &str) -> Result<LengthDistribution> {
        match lengths {
            LengthDistribution::Fixed(length) => {
                Ok(LengthDistribution::around(length, self.random_range_ratio))
            }
            other if self.random_range_ratio == 0.0 => Ok(other),
            _ => bail!("--random-range-ratio is for one length; {flag} is a distribution already"),
        }
    }

    fn client(&self, has_tokenizer: bool) -> Result<LoadClient> {
        let mut endpoint = EndpointOptions {
            model: self.model.clone(),
            key: api_key()?,
            answer: self.timeout,
            most_bytes: MOST_ANSWER,
            ..EndpointOptions::default()
        };
        for option in &self.options {
            let (key, value) = option
                .split_once('=')
                .with_context(|| format!("--engine-option `{option}`: expected KEY=VALUE"))?;
            let known = set_endpoint(&mut endpoint, key, value);
            ensure!(
                known.with_context(|| format!("--engine-option {key}"))?,
                "--engine-option {key}: there is no such setting of this client; expected `model`, `timeout`, `key-env`, \
                 `ca` or `insecure`"
            );
        }
        let options = LoadOptions {
            api: self.endpoint.api(),
            ignore_eos: !self.disable_ignore_eos,
            extra_body: self.extra_body.clone().unwrap_or_default(),
            keep_text: has_tokenizer,
            rule: self.table.style().rule(),
        };
        // The model has a flag of its own here.
        LoadClient::connect(&self.url, &endpoint, options).map_err(|error| {
            let text = error.to_string();
            anyhow::anyhow!(
                text.replace("the engine option `model=NAME`", "the option `model NAME`")
            )
        })
    }

    fn warm_up(&self, client: &LoadClient, prompts: &PromptSource<'_>) -> Result<()> {
        let count = usize::from(self.warmup);
        if count == 0 {
            return Ok(());
        }
        let bar = term::spinner("warming up");
        let warmed = client.warm_up(prompts, count, self.seed, self.max_concurrency);
        bar.finish_and_clear();
        Ok(warmed?)
    }

    fn arrivals(&self) -> ArrivalProcess {
        if self.request_rate.is_infinite() {
            return ArrivalProcess::Immediate;
        }
        match self.arrivals {
            ArrivalChoice::Poisson => ArrivalProcess::Poisson(self.request_rate),
            ArrivalChoice::Constant => ArrivalProcess::Constant(self.request_rate),
        }
    }

    fn measure(&self, client: &LoadClient, requests: Vec<LoadPrompt>) -> LoadRun {
        let bar = term::count_bar(requests.len() as u64, "requests");
        let plan = LoadPlan {
            arrivals: self.arrivals(),
            concurrency: self.max_concurrency,
            seed: self.seed,
            ..LoadPlan::at_once(requests, 1)
        };
        // The first signal ends the measurement, and what was measured is shown.
        interrupt::on_first(|| ());
        let run = client.run(plan, &mut |progress| {
            bar.set_position(progress.finished as u64);
            bar.set_message(format!(
                "{} in flight, {} failed",
                progress.in_flight, progress.failed
            ));
            interrupt::requested().is_none()
        });
        bar.finish_and_clear();
        run
    }

    fn settings(
        &self,
        client: &LoadClient,
        prompts: &PromptSource<'_>,
        requests: &[LoadPrompt],
    ) -> RunSettings {
        RunSettings {
            url: self.url.clone(),
            model: client.model(),
            endpoint: self.endpoint.api().path(),
            requests: requests.len(),
            rate: self.arrivals().rate(),
            arrivals: match self.arrivals() {
                ArrivalProcess::Immediate => "immediate",
                ArrivalProcess::Poisson(_) => "poisson",
                ArrivalProcess::Constant(_) => "constant",
            },
            concurrency: self.max_concurrency,
            prompts: match (&prompts.file, prompts.form) {
                (Some(path), _) => path.display().to_string(),
                (None, PromptForm::Ids) => "random ids".to_owned(),
                (None, _) => "random text".to_owned(),
            },
            prompt_tokens: requests.iter().map(|prompt| prompt.tokens).sum(),
            asked_tokens: requests.iter().map(|prompt| prompt.output.unwrap_or(1) as u64).sum(),
            seed: self.seed,
            style: self.table.style(),
            objectives: self.goodput.clone(),
        }
    }

    fn report(
        &self,
        run: &LoadRun,
        settings: &RunSettings,
        tokenizer: Option<&ReferenceTokenizer>,
    ) -> Result<CommandOutcome> {
        let counter = tokenizer
            .map(|tokenizer| |text: &str| Some(tokenizer.encode(text, false).ok()?.len() as u64));
        let mut options = SummaryOptions {
            percentiles: &self.percentiles,
            objectives: &self.goodput,
            counter: None,
        };
        if let Some(counter) = &counter {
            options.counter = Some(counter);
        }
        let summary = LoadSummary::of(run, &options);
        let form = if self.json { ReportForm::Json } else { self.output.form() };
        let records = self.details.then_some(&run.records[..]);
        term::print(&render(&summary, settings, records, form)?)?;
        for (kind, (count, words)) in &summary.failures {
            term::note(&format!("failed: {count} with {kind}, the first: {words}"));
        }
        if summary.delay.max > LATE && settings.rate.is_some() {
            let late = summary.delay.max;
            let why =
                if self.max_concurrency.is_some() { "--max-concurrency" } else { "the client" };
            term::note(&format!(
                "note: requests were sent up to {late:.0} ms late, held back by {why}"
            ));
        }
        if self.max_concurrency.is_none() && summary.peak_in_flight >= MOST_CONNECTIONS {
            term::note(&format!("note: at most {MOST_CONNECTIONS} requests are in flight at once"));
        }
        if let Some(signal) = interrupt::requested() {
            let left = summary.unfinished + summary.unsent;
            term::note(&format!("stopped: the results are partial, {left} requests are missing"));
            return Ok(CommandOutcome::Stopped(signal));
        }
        let done = summary.completed > 0;
        Ok(if done { CommandOutcome::Ok } else { CommandOutcome::CouldNotRun })
    }
}
