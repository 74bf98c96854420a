//! Implements `onboard run`, which continues a prompt or holds a conversation.

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, ensure};
use chat::Template;
use clap::Args;
use engine::sample::{Sampler, Sampling};
use engine::{ProductArithmetic, Session, SessionOptions, refuse_prefix, refuse_spans};
use models::local_model::LocalModel;
use registry::dtype::Dtype;
use serde_json::json;

use crate::arithmetic::ArithmeticArgs;
use crate::engines::DeviceArgs;
use crate::findings::{engine_error, warn};
use crate::sampling::SamplingDefaults;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::token_io::{ModelTokenizer, TokenIo};
use crate::{CommandOutcome, term};

mod conversation;
mod generation;
mod pictures;

use generation::{GeneratedTokens, generate};

/// Continues a prompt with a model, or chats with it
///
/// On a terminal, a model with a chat template answers: a prompt is the user's message, and without one
/// a conversation is held, a line for each message. Without a terminal, a prompt is continued as it is.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard run FILE.gguf                              a conversation, on a terminal
  onboard run FILE.gguf 'Why is the sky blue?'       one answer
  onboard run MODEL --raw 'Once upon a time' -n 64   the text is continued, without the chat template
  onboard run MODEL --chat < questions.txt           a conversation, a line for each message
  onboard run MODEL --tokens 1,17,4 -n 8             token ids in and out; needs no tokenizer
  onboard run MODEL 'Hi' --temperature 0.7 --top-p 0.9 --seed 1
  onboard run MODEL --prompt - < prompt.txt          the prompt from standard input
  onboard run MODEL --prompt Hi --json               tokens and text as one object
  onboard run MODEL 'What is this?' --image cat.png  an answer about a picture

In a conversation, Ctrl-C ends an answer, and twice the program; /clear forgets what was said, /exit or the end of the input ends.
Sampling there is as generation_config.json or the file says; a continued text takes the likeliest tokens.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    which: ModelArgs,
    /// The text to continue, or the message to answer
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "tokens"])]
    words: Option<String>,
    #[command(flatten)]
    choice: SpecArgs,
    /// The same as PROMPT; `-` reads it from standard input, without a newline at its end
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    prompt: Option<String>,
    /// A picture that the prompt is about, a PNG, JPEG or WebP file (repeatable)
    ///
    /// Pictures come before the text of a prompt that has no placeholder.
    #[arg(long = "image", value_name = "FILE", conflicts_with = "tokens")]
    images: Vec<PathBuf>,
    /// The token ids to continue, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    tokens: Vec<u32>,
    /// Answer through the chat template, without a terminal too
    #[arg(long, conflicts_with_all = ["raw", "tokens"])]
    chat: bool,
    /// Continue the text as it is, on a terminal too
    #[arg(long)]
    raw: bool,
    /// A message of the system before the conversation
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "tokens"])]
    system: Option<String>,
    /// Number of tokens to add [default: 32; in a conversation as many as the model takes]
    #[arg(short, value_name = "N")]
    n: Option<usize>,
    /// 0 takes the likeliest token; higher is more varied [default: 0; in a conversation as the model recommends]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Choose among the K likeliest only
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the likeliest that together reach this probability only
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// The same seed gives the same tokens
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Dtype of activations; default: as the checkpoint declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    /// Leave weights in blocks as they lie in the file: opens at once, and every token takes longer
    #[arg(long)]
    no_repack: bool,
    #[command(flatten)]
    device: DeviceArgs,
    /// Worker threads
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print JSON, when the last token is there
    #[arg(long)]
    json: bool,
}

/// Maximum size of a prompt on standard input, in bytes.
const MOST: u64 = 64 << 20;

/// Number of tokens that a text is continued by.
const CONTINUED: usize = 32;

impl RunArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        ensure!(
            self.temperature.is_none_or(|t| t >= 0.0 && t.is_finite()),
            "--temperature must be 0 or more"
        );
        ensure!(self.top_k != Some(0), "--top-k must be at least 1");
        ensure!(
            self.top_p.is_none_or(|p| p > 0.0 && p <= 1.0),
            "--top-p must be above 0 and at most 1"
        );
        let target = target::open(&self.which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        if !self.images.is_empty() {
            return pictures::answer(&self, &target);
        }
        match self.template(&target)? {
            Some(template) => conversation::hold(&self, &target, &template),
            None => self.continue_text(&target),
        }
    }

    /// Returns the chat template if the prompt is a message to answer.
    fn template(&self, target: &LocalModel) -> Result<Option<Template>> {
        if self.raw || !self.tokens.is_empty() {
            return Ok(None);
        }
        let opened = Template::of_model(&target.dir);
        if self.chat || self.system.is_some() {
            let template = opened.context("--chat and --system need a chat template")?;
            return Ok(Some(template));
        }
        if self.json || !std::io::stdout().is_terminal() {
            return Ok(None);
        }
        let usable = opened.and_then(|template| template.check().map(|()| template));
        if let Err(why) = &usable {
            term::note(&format!("note: the text is continued as it is: {why}"));
        }
        Ok(usable.ok())
    }

    /// Returns the text of the prompt; none if there is none, and standard input has it.
    fn text(&self) -> Result<Option<String>> {
        match self.words.as_deref().or(self.prompt.as_deref()) {
            Some("-") => standard_input().map(Some),
            text => Ok(text.map(str::to_owned)),
        }
    }

    /// Opens a session.
    fn session(&self, target: &LocalModel, dtype: Dtype) -> Result<Box<dyn Session>> {
        target::check_dtypes(target, &[dtype])?;
        warn(&target.nonfinite()?);
        let arithmetic = match self.arithmetic.of(target, self.device.is_cpu())? {
            ProductArithmetic::Q8 { .. } if self.no_repack => {
                ProductArithmetic::Q8 { repack: false }
            }
            arithmetic => arithmetic,
        };
        let pictures = !self.images.is_empty();
        let options = SessionOptions {
            dtype,
            threads: self.threads,
            arithmetic,
            rows: pictures,
            prefix: pictures && refuse_prefix(&target.model).is_empty(),
            spans: pictures && refuse_spans(&target.model).is_empty(),
            ..SessionOptions::default()
        };
        let engine = self.device.native()?;
        engine.open(&target::source(target), &options).map_err(engine_error)
    }

    /// Opens a session, and reads the tokenizer meanwhile: both take long for large vocabularies.
    fn open_with_tokenizer(
        &self,
        target: &LocalModel,
    ) -> Result<(ModelTokenizer, Box<dyn Session>)> {
        let path = target.dir.as_path();
        let home = target.home();
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || ModelTokenizer::at(path, home));
            let session = self.session(target, self.dtype(target));
            let read = reader.join().map_err(|_| anyhow!("reading the tokenizer failed"))?;
            Ok((read?, session?))
        })
    }

    fn dtype(&self, target: &LocalModel) -> Dtype {
        self.dtype.unwrap_or_else(|| target.dtype())
    }

    fn sampler(&self, defaults: SamplingDefaults) -> Sampler {
        Sampler::new(Sampling {
            temperature: self.temperature.or(defaults.temperature).unwrap_or(0.0),
            top_k: self.top_k.or(defaults.top_k),
            top_p: self.top_p.or(defaults.top_p),
            min_p: defaults.min_p,
            seed: self.seed,
        })
    }

    /// Continues a text or tokens once.
    fn continue_text(&self, target: &LocalModel) -> Result<CommandOutcome> {
        let ids = !self.tokens.is_empty();
        let text = match self.text()? {
            None if !ids => {
                ensure!(
                    !std::io::stdin().is_terminal(),
                    "what shall be continued? give a prompt, or --tokens 1,2,3"
                );
                Some(standard_input()?)
            }
            text => text,
        };
        let dtype = self.dtype(target);
        let (mut output, mut session) = if ids {
            (TokenIo::Ids { first: true }, self.session(target, dtype)?)
        } else {
            let (tokenizer, session) = self.open_with_tokenizer(target)?;
            (TokenIo::with(tokenizer), session)
        };
        let prompt = output.prompt(text.as_deref(), &self.tokens)?;
        self.write_answer(target, session.as_mut(), &mut output, &prompt)
    }

    /// Generates what follows a prompt, and writes it as it is made, or as one object.
    fn write_answer(
        &self,
        target: &LocalModel,
        session: &mut dyn Session,
        output: &mut TokenIo,
        prompt: &[u32],
    ) -> Result<CommandOutcome> {
        let ids = !self.tokens.is_empty();
        let dtype = self.dtype(target);
        let slot = session.open_slot();
        let limit = self.n.unwrap_or(CONTINUED);
        let room =
            target.model.context.map_or(usize::MAX, |context| context.saturating_sub(prompt.len()));
        if room < limit {
            term::note(&format!("note: the model handles {room} more tokens, not {limit}"));
        }
        let mut answer = String::new();
        let ends = output.ends(target.home());
        let GeneratedTokens { tokens, ended } = generate(
            session,
            slot,
            prompt,
            &mut self.sampler(SamplingDefaults::default()),
            generation::Limits { asked: limit, room, ends: &ends, stop: None },
            |token| {
                let piece = output.next_text(token);
                if self.json {
                    answer.push_str(&piece);
                    return Ok(());
                }
                Ok(term::stream(&piece)?)
            },
        )?;
        if !self.json {
            term::print_data(&output.remaining_text())?;
            return Ok(CommandOutcome::Ok);
        }
        answer.push_str(&output.remaining_text());
        let result = json!({
            "schema": "onboard-run/1",
            "model": target.name,
            "dtype": dtype.name(),
            "prompt_tokens": prompt,
            "tokens": tokens,
            "text": (!ids).then_some(answer),
            "ended": ended.word(),
        });
        term::print_data(&serde_json::to_string_pretty(&result)?)?;
        Ok(CommandOutcome::Ok)
    }
}

/// Reads the text on standard input.
fn standard_input() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::copy(&mut std::io::stdin().take(MOST + 1), &mut bytes)
        .context("cannot read standard input")?;
    ensure!(
        bytes.len() as u64 <= MOST,
        "standard input has more than {MOST} bytes, the most of a prompt"
    );
    let mut text = String::from_utf8(bytes).context("standard input is not UTF-8")?;
    let end = text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text).len());
    text.truncate(end.unwrap_or(text.len()));
    Ok(text)
}
