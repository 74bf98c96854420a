//! Implements `onboard serve`, which answers requests over HTTP.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use chat::{Format, Template, TokenBytes};
use clap::Args;
use engine::{ProductArithmetic, SessionOptions};
use models::local_model::LocalModel;
use registry::dtype::Dtype;
use registry::file;
use serve::{ChatFormat, CodecError, ModelServer, ServeOptions, ServedModel, ServedTokenizer};

use crate::arithmetic::{ArithmeticArgs, available};
use crate::engines::parse_seconds;
use crate::findings::{engine_error, warn};
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::token_io::{ModelTokenizer, end_tokens};
use crate::{CommandOutcome, interrupt, term};

/// Serves a model over HTTP, with answers that can be reproduced
///
/// The API is that of OpenAI: completions, conversations, scores of prompts, and streams. Answers are
/// deterministic: a request gets the same bits alone and beside others. It is for evaluations,
/// tests of clients, and comparison with other servers, not for many users.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard serve MODEL                                  listen on http://127.0.0.1:8000
  onboard serve MODEL --port 0                         any free port, which is printed
  onboard serve MODEL --dtype f32 --arithmetic exact   the numbers of `parity check`
  onboard serve MODEL --slots 4 --context 4096         less memory

  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
      -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 32, \"temperature\": 0}'
  parity check MODEL --engine http://127.0.0.1:8000    compare the served model with its reference

With the environment variable ONBOARD_API_KEY, or --api-key-file, requests need this key.
Ctrl-C or SIGTERM lets running requests finish; a second one stops at once.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// Address or name to listen on; 0.0.0.0 lets every other machine connect
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = parse_host)]
    host: ListenHost,
    /// Further name that requests may give in `Host` and `Origin`, where no key is set; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Port to listen on; 0 takes any free port and prints it
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// Name of the model in requests and answers [default: the name of its folder]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// File with the key that requests have to carry, on one line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Format of tool calls and reasoning in the output, or `none` [default: as the chat template writes them]
    #[arg(long, value_name = "NAME", value_parser = parse_format)]
    tool_format: Option<ToolFormat>,
    /// Sequences that are computed together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = parse_count)]
    slots: usize,
    /// Tokens of prompts in one step, so that a long prompt does not stop others
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_count)]
    prefill_chunk: usize,
    /// Sequences that may wait for a slot; more get the status 429
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = parse_count)]
    queue: usize,
    /// Finished sequences kept for prompts with the same beginning
    #[arg(long, value_name = "N", default_value_t = 16)]
    keep: usize,
    /// Most tokens of a sequence [default: as the model declares, or 32768 if it declares none]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    context: Option<usize>,
    /// Most tokens of all sequences together [default: as fit in a quarter of the free memory]
    #[arg(long, value_name = "N")]
    cache_tokens: Option<usize>,
    /// Most sequences of one request: its prompts times `n`
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_count)]
    max_prompts: usize,
    /// Most log-probabilities of one answer: positions times entries
    #[arg(long, value_name = "N", default_value_t = 4 << 20)]
    max_scores: usize,
    /// Largest body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_body: u16,
    /// Most connections at a time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: u16,
    /// Most seconds for a request
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = parse_seconds)]
    request_timeout: Duration,
    /// Most seconds for the chat template of a conversation
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    template_timeout: Duration,
    /// Most seconds that a client may take to send a request or to read a part of the answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    client_timeout: Duration,
    /// Most seconds for running requests after a stop
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    drain_timeout: Duration,
    /// Dtype of activations; default: as the checkpoint declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    /// Worker threads
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Choice of `--tool-format`.
#[derive(Debug, Clone, Copy)]
struct ToolFormat(Option<&'static Format>);

/// Choice of `--host`.
#[derive(Debug, Clone)]
struct ListenHost {
    address: IpAddr,
    /// The name or address as it was given.
    name: String,
}

/// Parses an address or a name.
fn parse_host(text: &str) -> Result<ListenHost, String> {
    Ok(ListenHost { address: parse_address(text)?, name: text.to_owned() })
}

/// Parses an address. Of the addresses of a name, the first IPv4 address is taken, else the first.
fn parse_address(text: &str) -> Result<IpAddr, String> {
    const EXPECTED: &str = "expected an IP address such as 127.0.0.1, or a name of this machine";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let addresses = (text, 0).to_socket_addrs().map_err(|why| format!("{why}; {EXPECTED}"))?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.map(SocketAddr::ip).ok_or_else(|| format!("the name has no address; {EXPECTED}"))
}

/// Parses a number of at least 1.
fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse::<usize>().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("expected an integer from 1 to {}", usize::MAX))
}

fn parse_format(name: &str) -> Result<ToolFormat, String> {
    match (name, Format::named(name)) {
        ("none", _) => Ok(ToolFormat(None)),
        (_, Some(format)) => Ok(ToolFormat(Some(format))),
        _ => {
            let names = Format::names().collect::<Vec<_>>().join(", ");
            Err(format!("there is no format `{name}`; expected none, {names}"))
        }
    }
}

/// Returns the chat template of a model, and the format of its output; without a template, a note says why
/// there are no conversations.
fn chat_format(target: &LocalModel, choice: Option<ToolFormat>) -> Option<ChatFormat> {
    let opened = Template::of_model(&target.dir);
    let template = match opened.and_then(|template| template.check().map(|()| template)) {
        Ok(template) => template,
        Err(why) => {
            term::note(&format!("note: no conversations are answered: {why}"));
            return None;
        }
    };
    let format = choice.map_or_else(|| template.format(), |choice| choice.0);
    if let Some(format) = format {
        term::note(&format!(
            "note: tool calls and reasoning are read in the format `{}`",
            format.name()
        ));
    }
    Some(ChatFormat { template, format })
}

/// Environment variable with the key.
const KEY: &str = "ONBOARD_API_KEY";

/// Describes a failure of a tokenizer for clients, without the path of its file.
fn codec_error(tokenizer: &ModelTokenizer, error: &anyhow::Error) -> CodecError {
    let text = format!("{error:#}");
    CodecError(match tokenizer {
        ModelTokenizer::Json(json) => {
            text.replace(&*json.file().to_string_lossy(), "tokenizer.json")
        }
        ModelTokenizer::Gguf(_) => text,
    })
}

impl ServedTokenizer for ModelTokenizer {
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, CodecError> {
        // Rendered conversations have special tokens in their text.
        if let (Self::Gguf(loaded), false) = (self, special) {
            let tokens = loaded.conversation(text);
            return tokens.map_err(|error| codec_error(self, &error.into()));
        }
        Self::encode(self, text, special).map_err(|error| codec_error(self, &error))
    }

    fn decode(&self, tokens: &[u32], plain: bool) -> Result<String, CodecError> {
        Self::decode(self, tokens, plain).map_err(|error| codec_error(self, &error))
    }

    fn vocabulary(&self) -> Vec<TokenBytes> {
        match self {
            Self::Json(tokenizer) => tokenizer.vocabulary(),
            Self::Gguf(loaded) => loaded.vocabulary(),
        }
    }
}

impl ServeArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let api_key = self.key()?;
        let target = target::open(&self.which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        let tokenizer = match ModelTokenizer::of(&target) {
            Ok(tokenizer) => Some(tokenizer),
            Err(why) => {
                term::note(&format!("note: prompts have to be token ids: {why:#}"));
                None
            }
        };
        let dtype = self.dtype.unwrap_or_else(|| target.dtype());
        target::check_dtypes(&target, &[dtype])?;
        warn(&target.nonfinite()?);
        let arithmetic = self.arithmetic.of(&target, true)?;
        let options = SessionOptions {
            dtype,
            threads: self.threads,
            arithmetic,
            ..SessionOptions::default()
        };
        let session = crate::engines::native()?
            .open(&target::source(&target), &options)
            .map_err(engine_error)?;
        let ends = tokenizer
            .as_ref()
            .map_or_else(|| end_tokens(target.home()), |tokenizer| tokenizer.ends(target.home()));
        let name = self.name.clone().unwrap_or_else(|| target.name.clone());
        let model = ServedModel {
            name: name.clone(),
            session,
            codec: tokenizer.map(|tokenizer| Arc::new(tokenizer) as Arc<dyn ServedTokenizer>),
            chat: chat_format(&target, self.tool_format),
            ends,
            arithmetic: match arithmetic {
                ProductArithmetic::Exact => "exact",
                ProductArithmetic::Q8 { .. } => "q8",
                ProductArithmetic::Library => "library",
            },
            memory: available(),
        };
        if !self.host.address.is_loopback() && api_key.is_none() {
            term::note(&format!(
                "warning: everyone who reaches {} can use this server; set a key in {KEY} or with --api-key-file",
                self.host.name
            ));
        }
        let keyed = if api_key.is_some() { ", for requests with the key" } else { "" };
        let outcome = serve::run(model, self.options(api_key), |server| {
            let stop = server.stop_handle();
            interrupt::on_first(move || {
                term::note(
                    "stopping: running requests finish first; a second signal stops at once",
                );
                stop.stop();
            });
            self.note_limits(&name, dtype, server);
            let text = format!("listening on http://{}{keyed}", server.address());
            Ok::<(), anyhow::Error>(term::print(&text)?)
        })?;
        if outcome.cut > 0 {
            term::note(&format!("{} connections did not finish in time", outcome.cut));
        }
        Ok(CommandOutcome::Ok)
    }

    /// Notes the limits of a server that listens.
    fn note_limits(&self, name: &str, dtype: Dtype, server: &ModelServer) {
        let (tokens, bytes) = server.cache();
        if let Some(context) = self.context.filter(|context| *context > server.context()) {
            term::note(&format!(
                "note: a sequence has at most {} tokens, not the {context} of --context: the model declares no more, \
                 or no more fit in memory",
                server.context()
            ));
        }
        term::note(&format!(
            "{name}: {dtype}, {} slots, at most {} tokens each and {tokens} in all ({} MiB)",
            self.slots,
            server.context(),
            bytes.div_ceil(1 << 20),
            dtype = dtype.name(),
        ));
    }

    fn options(&self, api_key: Option<String>) -> ServeOptions {
        ServeOptions {
            host: self.host.address,
            hosts: self.allow_host.iter().cloned().chain([self.host.name.clone()]).collect(),
            port: self.port,
            api_key,
            slots: self.slots,
            prefill_chunk: self.prefill_chunk,
            queue: self.queue,
            kept: self.keep,
            context: self.context,
            cache_tokens: self.cache_tokens,
            body: usize::from(self.max_body) << 20,
            prompts: self.max_prompts,
            logprobs: self.max_scores,
            connections: usize::from(self.max_connections),
            request_time: self.request_timeout,
            template_time: self.template_timeout,
            client_time: self.client_timeout,
            drain_time: self.drain_timeout,
        }
    }

    /// Returns the key of a file or of the environment, if there is one.
    fn key(&self) -> Result<Option<String>> {
        let key = match &self.api_key_file {
            Some(path) => file::read_text(path, file::CONFIG)?,
            None => match std::env::var(KEY) {
                Ok(key) => key,
                Err(std::env::VarError::NotPresent) => return Ok(None),
                Err(error) => return Err(error).context(format!("cannot read {KEY}")),
            },
        };
        let key = key.trim();
        let place = self.api_key_file.as_ref();
        let place = place.map_or_else(|| KEY.to_owned(), |path| format!("`{}`", path.display()));
        if key.is_empty() {
            bail!("the key in {place} is empty");
        }
        ensure!(
            key.bytes().all(|byte| byte.is_ascii_graphic()),
            "the key in {place} has characters that a header cannot carry; expected one line of printable ASCII \
             without spaces"
        );
        Ok(Some(key.to_owned()))
    }
}
