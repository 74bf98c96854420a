//! Implements `parity eval` and `parity eval-diff`: runs evaluations, and compares two of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use checkpoints::checkpoint::Stamp;
use clap::Args;
use converter::LineJournal;
use engine::{Engine, SessionOptions};
use formats::gguf::GgufFile;
use formats::output::part_path;
use indicatif::ProgressBar;
use models::local_model::LocalModel;
use parity::evals::{
    self, EvalItem, EvalSummary, Noise, ReadOptions, ScoredItem, ScoringOptions, TextCodec,
    TextCodecError,
};
use registry::dtype::Dtype;

use crate::arithmetic::ArithmeticArgs;
use crate::engines::{EngineArgs, ResolvedEngine};
use crate::findings::{engine_error, warn};
use crate::progress::ConversionTerminal;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::token_io::{ModelTokenizer, begin_token, end_tokens};
use crate::{CommandOutcome, interrupt, term, write};

mod journal;

/// Maximum number of positions that are requested from an engine in a child process.
const MOST: usize = 4096;

/// Compares two result files of an evaluation and names the cause of a difference
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity eval-diff vllm/samples_hellaswag_2026-01-02.jsonl server/samples_hellaswag_2026-01-03.jsonl
  parity eval-diff A.jsonl B.jsonl --metric acc_norm
  parity eval-diff A.jsonl B.jsonl --filter strict-match
  parity eval-diff A.jsonl B.jsonl --dtype f32 --json     both ran in f32: a tighter bound on noise

Files: samples of lm-eval (--log_samples), predictions of sgl-eval, bench files of SGLang (--output-details) and vLLM
(--save-detailed), and plain JSON lines; `parity eval -o` writes those. The form is recognised by its content.

Verdicts, in the order in which they are looked for:
  different inputs         prompts or token ids differ: chat template, BOS, examples, blanks
  scoring not supported    log-likelihoods are constant, or one choice is always taken
  implementation           log-probabilities differ beyond noise on equal inputs
  extraction or sampling   equal texts or log-probabilities, other answers; or sampled texts
  unexplained              the scores differ beyond noise, and the files do not hold the cause
  noise                    single answers differ, no more than chance makes (McNemar's exact test)
  agree                    nothing differs

Exit codes: 0 agree or noise, 1 a real difference, 2 could not compare. `onboard help evals` has the forms and bounds.")]
pub(crate) struct EvalDiffArgs {
    /// The first result file
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The second result file
    #[arg(value_name = "B")]
    b: PathBuf,
    /// The metric that is compared; default: acc, exact_match or correct
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// The filter of lm-eval whose answers are compared; default: the first of each file
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// The dtype that both ran in, which bounds the noise of log-probabilities; default: as the files state, else bf16
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl EvalDiffArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let options = ReadOptions { filter: self.filter };
        let a = evals::read(&self.a, &options)?;
        let b = evals::read(&self.b, &options)?;
        let noise = Noise::new(self.dtype, &a, &b);
        let outcome = evals::diff(&a, &b, &noise, self.metric.as_deref())?;
        if self.json {
            term::print(&serde_json::to_string_pretty(&evals::json(&outcome))?)?;
        } else {
            term::print(evals::text(&outcome).trim_end())?;
        }
        Ok(if outcome.verdict.differs() { CommandOutcome::Differs } else { CommandOutcome::Ok })
    }
}

/// Scores the items of a task file on an engine: multiple choice and greedy generation
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity eval MODEL tasks.jsonl -o ours.jsonl
  parity eval MODEL samples_hellaswag_2026-01-02.jsonl -o ours.jsonl    the items of an lm-eval run: a third opinion
  parity eval-diff samples_hellaswag_2026-01-02.jsonl ours.jsonl
  parity eval MODEL gsm8k.jsonl --until 'Question:' --regex '#### (-?[0-9.,]+)' --max-tokens 256

Items, one a line:
  {\"id\": 1, \"prompt\": \"The sky is\", \"choices\": [\"blue\", \"green\"], \"target\": 0}
  {\"id\": 2, \"prompt\": \"2 + 2 =\", \"target\": \"4\", \"until\": [\"\\n\"], \"max_tokens\": 8}
  {\"id\": 3, \"ids\": [1, 17, 4], \"choices\": [[5], [6, 7]], \"target\": 1}     token ids need no tokenizer

With -o, an interrupted run goes on where it stopped when the command is given again (FILE.part holds its items).

Tokens and scores are those of lm-eval 0.4.13: acc takes the choice with the largest sum of log-probabilities, acc_norm
divides it by characters, acc_bytes by bytes, acc_tokens by tokens. Texts are continued as they are, without a chat template.")]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The task file, in JSON lines; samples of lm-eval are read too
    #[arg(value_name = "TASKS")]
    tasks: PathBuf,
    /// Write the result of each item to this file, for `parity eval-diff`; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the output if it is there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    engine: EngineArgs,
    /// The dtype of activations; default: as the checkpoint says
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Score the first N items only
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Texts that end a generated answer, for items without `until` (repeatable)
    #[arg(long, value_name = "TEXT")]
    until: Vec<String>,
    /// Most tokens of a generated answer, for items without `max_tokens`
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    /// The pattern that takes the answer from a generated text: its first group, else the whole match
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
    /// Take the last match of the pattern instead of the first
    #[arg(long)]
    last: bool,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    /// Worker threads
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Items that are scored together: the weights are read once for all of them.
const TOGETHER: usize = 16;

impl EvalArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let mut items = evals::items(&self.tasks)?;
        items.truncate(self.limit.unwrap_or(items.len()));
        ensure!(!items.is_empty(), "--limit 0 leaves no item");
        if let Some(output) = self.output.as_deref().filter(|output| !write::is_stdout(output)) {
            write::allowed(output, std::slice::from_ref(&self.tasks), self.force)?;
        }
        let target = target::open(&self.which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        let dtype = self.dtype.unwrap_or_else(|| target.dtype());
        target::check_dtypes(&target, &[dtype])?;
        warn(&target.nonfinite()?);
        let needs_text = items.iter().any(EvalItem::needs_text);
        let tokenizer = if needs_text { Some(EvalTokenizer::of(&target)?) } else { None };
        if !self.engine.is_own() {
            self.arithmetic.refuse_for(self.engine.name())?;
        }
        let arithmetic = self.arithmetic.of(&target, self.engine.is_native())?;
        let options = SessionOptions {
            dtype,
            threads: self.threads,
            arithmetic,
            ..SessionOptions::default()
        };
        let engine: Box<dyn Engine> = match self.engine.find()? {
            ResolvedEngine::Child(child) => {
                Box::new(child.engine(target.model.context.unwrap_or(MOST).min(MOST)))
            }
            ResolvedEngine::InProcess(_) | ResolvedEngine::Server(_) => self.engine.of_models()?,
        };
        let mut session = engine.open(&target::source(&target), &options).map_err(engine_error)?;
        let settings = (&target.spec.sha256, self.engine.name(), &self.engine.options, dtype);
        let scoring = (self.arithmetic, &self.until, self.max_tokens, &self.regex, self.last);
        let identity =
            format!("{:?}", (stamps(&target, &self.tasks)?, settings, scoring, items.len()));
        let run = ScoringOptions {
            text: tokenizer.as_ref().map(|tokenizer| tokenizer as &dyn TextCodec),
            context: target.model.context,
            until: self.until,
            max_tokens: self.max_tokens,
            regex: self.regex,
            last: self.last,
        };
        let facts = facts(&target, &self.tasks, self.engine.name(), dtype);
        let mut records = EvalRecords::begin(&facts, self.output.as_deref(), &identity, &items)?;
        let together = if self.engine.is_native() { TOGETHER } else { 1 };
        let groups = items[records.scored.len()..].chunk_by(|a, b| a.is_choice() && b.is_choice());
        for items in groups.flat_map(|group| group.chunks(together)) {
            for scored in evals::run(&run, session.as_mut(), items) {
                records.add(scored?)?;
            }
        }
        let scored = records.write(self.output.as_deref())?;
        let dropped = scored.iter().filter(|scored| scored.dropped > 0).count();
        if dropped > 0 {
            term::note(&format!(
                "note: {dropped} prompts are longer than the model's context; their beginning was left out, as lm-eval does"
            ));
        }
        let summary = EvalSummary::of(facts, &scored);
        let text = if self.json {
            serde_json::to_string_pretty(&summary.json())?
        } else {
            summary.text().trim_end().to_owned()
        };
        if self.output.as_deref().is_some_and(write::is_stdout) {
            term::note(&text);
        } else {
            term::print_data(&text)?;
        }
        Ok(CommandOutcome::Ok)
    }
}

/// Items that were scored, with the lines of the output and a journal beside it.
struct EvalRecords {
    lines: String,
    scored: Vec<ScoredItem>,
    journal: Option<LineJournal>,
    bar: ProgressBar,
}

impl EvalRecords {
    /// Begins the records of some items, or goes on with those of an earlier run.
    fn begin(
        facts: &BTreeMap<String, String>,
        output: Option<&Path>,
        identity: &str,
        items: &[EvalItem],
    ) -> Result<Self> {
        let mut records = Self {
            lines: format!("{}\n", evals::head(facts)),
            scored: Vec::new(),
            journal: None,
            bar: term::count_bar(items.len() as u64, "items"),
        };
        let Some(output) = output.filter(|output| !write::is_stdout(output)) else {
            return Ok(records);
        };
        let work = ("onboard-eval-journal/1", "evaluation");
        let (journal, mut earlier) = LineJournal::open(
            &ConversionTerminal,
            part_path(output),
            work,
            identity,
            journal::parse,
        )?;
        earlier.truncate(items.len());
        if !earlier.is_empty() {
            let count = earlier.len();
            let all = items.len();
            term::note(&format!("{count} of {all} items were scored by an earlier run"));
        }
        for (record, scored) in earlier {
            records.lines.push_str(&record);
            records.lines.push('\n');
            records.scored.push(scored);
        }
        records.journal = Some(journal);
        records.bar.inc(records.scored.len() as u64);
        interrupt::hint("; run the command again to go on");
        Ok(records)
    }

    fn add(&mut self, mut scored: ScoredItem) -> Result<()> {
        if let Some(journal) = &mut self.journal {
            journal.add(&journal::line(&scored))?;
        }
        self.lines.push_str(&scored.record.to_string());
        self.lines.push('\n');
        // The summary only needs the scores.
        scored.record = serde_json::Value::Null;
        self.scored.push(scored);
        self.bar.inc(1);
        Ok(())
    }

    /// Writes the output, and returns the items.
    fn write(self, output: Option<&Path>) -> Result<Vec<ScoredItem>> {
        self.bar.finish_and_clear();
        if let Some(output) = output {
            write::atomic(output, self.lines.as_bytes())
                .with_context(|| format!("cannot write the results `{}`", output.display()))?;
        }
        interrupt::hint("");
        if let Some(journal) = self.journal {
            journal.finish();
        }
        Ok(self.scored)
    }
}

fn facts(
    target: &LocalModel,
    tasks: &Path,
    engine: &str,
    dtype: Dtype,
) -> BTreeMap<String, String> {
    let task =
        tasks.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let facts = [
        ("model", target.name.clone()),
        ("task", task),
        ("engine", engine.to_owned()),
        ("dtype", dtype.name().to_owned()),
    ];
    facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the stamps of the files that scores depend on: tasks, weights, config and tokenizer.
fn stamps(target: &LocalModel, tasks: &Path) -> Result<Vec<Stamp>> {
    let mut stamps = if target.is_gguf() {
        let file = GgufFile::open(&target.dir)?;
        file.files().iter().map(|path| Stamp::of(path)).collect::<Result<Vec<_>, _>>()?
    } else {
        target.checkpoint()?.stamps().to_vec()
    };
    stamps.push(Stamp::of(tasks)?);
    let beside =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    // A model need not have all of them.
    stamps.extend(beside.iter().filter_map(|name| Stamp::of(&target.home().join(name)).ok()));
    Ok(stamps)
}

/// The model's tokenizer for evaluations.
struct EvalTokenizer {
    words: ModelTokenizer,
    prefix: Option<u32>,
    ends: Vec<u32>,
}

impl EvalTokenizer {
    fn of(target: &LocalModel) -> Result<Self> {
        let words = ModelTokenizer::of(target)?;
        let ends = match &words {
            ModelTokenizer::Gguf(loaded) => loaded.ends().to_vec(),
            ModelTokenizer::Json(_) => end_tokens(target.home()),
        };
        // lm-eval takes the BOS token, else the EOS token.
        let begin = begin_token(target.home()).or_else(|| words.prompt("").ok()?.first().copied());
        let prefix = begin.or_else(|| ends.first().copied());
        Ok(Self { words, prefix, ends })
    }
}

impl TextCodec for EvalTokenizer {
    fn encode(&self, text: &str, around: bool) -> Result<Vec<u32>, TextCodecError> {
        Ok(self.words.encode(text, around)?)
    }

    fn decode(&self, ids: &[u32], plain: bool) -> Result<String, TextCodecError> {
        Ok(self.words.decode(ids, plain)?)
    }

    fn prefix(&self) -> Option<u32> {
        self.prefix
    }

    fn ends(&self) -> &[u32] {
        &self.ends
    }
}
