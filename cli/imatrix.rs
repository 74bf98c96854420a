//! Implements `onboard imatrix`, which measures the importance of the inputs of each weight on a text.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use engine::importance::Importance;
use engine::{OutputRows, SessionOptions};
use formats::gguf::GgufFile;
use formats::imatrix::PartialImatrix;
use formats::output::{part_path, with_end};
use models::local_model::LocalModel;
use registry::dtype::Dtype;
use sha2::{Digest as _, Sha256};

use crate::arithmetic::ArithmeticArgs;
use crate::calibrate::{ChunkedText, watched};
use crate::convert::{parse_shard, several};
use crate::engines::DeviceArgs;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, interrupt, products, term, write};

/// End of the name of the file that an interrupted measurement goes on with.
const STATE: &str = ".sums";
/// Minimum time between two writes of that file.
const PAUSE: Duration = Duration::from_secs(30);

/// Measures on a text how much each input of a weight matters, for `convert`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  onboard imatrix MODEL --text calibration.txt -o model.imatrix.gguf
  convert MODEL --to gguf:iq2_xs --imatrix model.imatrix.gguf -o model.gguf
  onboard imatrix MODEL --text calibration.txt --shard 2/8 -o 2.shard    the second of eight shares of the chunks
  onboard imatrix merge *.shard -o model.imatrix.gguf                    the file that one run would write

The text is cut into chunks of tokens; what is left over at its end is not used. The file has the form that
llama.cpp's tools read. After an interruption, the same command goes on where it stopped: OUTPUT.sums holds
what was measured."
)]
pub(crate) struct ImatrixArgs {
    #[command(subcommand)]
    command: Option<ImatrixCommand>,
    #[command(flatten)]
    which: Option<ModelArgs>,
    #[command(flatten)]
    choice: SpecArgs,
    /// The text
    #[arg(long, value_name = "FILE", required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "text")]
    tokens: Vec<u32>,
    /// Output file
    #[arg(short, long, value_name = "FILE", required = true)]
    output: Option<PathBuf>,
    /// Write over a file that is there (never over one that is read)
    #[arg(long)]
    force: bool,
    /// Tokens in a chunk; default: 512, or all that the model handles
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// At most so many chunks
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Measure share I of N of the chunks, for `onboard imatrix merge`
    #[arg(long, value_name = "I/N", value_parser = parse_shard)]
    shard: Option<(usize, usize)>,
    /// Measure the output matrix too
    #[arg(long)]
    process_output: bool,
    /// Dtype of activations; default: as the checkpoint declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    /// Worker threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Subcommand)]
enum ImatrixCommand {
    /// Joins the shards of a measurement, if they are complete
    Merge(MergeArgs),
}

/// Shards that are joined.
#[derive(Debug, Args)]
struct MergeArgs {
    /// The shards that `onboard imatrix --shard` wrote, in any order
    #[arg(value_name = "SHARD", required = true)]
    shards: Vec<PathBuf>,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write over a file that is there (never over one that is read)
    #[arg(long)]
    force: bool,
}

impl ImatrixArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        if let Some(ImatrixCommand::Merge(merge)) = self.command {
            return merge.run();
        }
        let (Some(which), Some(output)) = (&self.which, &self.output) else {
            bail!("which model? onboard imatrix MODEL --text FILE -o FILE");
        };
        self.run_measurement(which, output)
    }

    fn run_measurement(&self, which: &ModelArgs, output: &Path) -> Result<CommandOutcome> {
        let target = target::open(which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        if target.model.gguf.is_none() {
            bail!("the spec has no `gguf:` section, so weights have no names in such a file");
        }
        let ids = &self.tokens;
        let text = ChunkedText::read(&target, self.text.as_deref(), ids, self.chunk, self.chunks)?;
        let identity = self.identity(&target, &text)?;
        let (no, count) = self.shard.unwrap_or((0, 1));
        let range = share(no, text.count, count)?..share(no + 1, text.count, count)?;
        let dataset = self.text.as_ref().map(|path| path.display().to_string());
        let begun = PartialImatrix {
            identity,
            chunks: range.start..range.start,
            of: u32::try_from(text.count)?,
            chunk_size: u32::try_from(text.chunk)?,
            dataset: dataset.unwrap_or_default(),
            entries: std::collections::BTreeMap::new(),
        };
        if self.shard.is_some() && output.exists() && !self.force {
            let earlier = PartialImatrix::read(output);
            if earlier
                .is_ok_and(|earlier| earlier.identity == begun.identity && earlier.chunks == range)
            {
                term::print(&format!("`{}` is measured already", output.display()))?;
                products::note(output);
                return Ok(CommandOutcome::Ok);
            }
        }
        let mut inputs = target.inputs()?;
        inputs.extend(self.text.clone());
        write::allowed(output, &inputs, self.force)?;
        let state = with_end(output, STATE);
        let begun = resumed(begun, &range, &state)?;
        let measured = self.measure(&target, &text, begun, &range, &state)?;
        let outcome = if self.shard.is_some() {
            keep(&measured, output)?;
            term::print(&format!(
                "wrote {}: chunks {}..{} of {}, {} weights",
                output.display(),
                measured.chunks.start,
                measured.chunks.end,
                measured.of,
                measured.entries.len(),
            ))?;
            CommandOutcome::Ok
        } else {
            write_whole(measured, output)?
        };
        interrupt::hint("");
        products::note(output);
        fs_err::remove_file(&state).ok();
        Ok(outcome)
    }

    /// Returns the dtype of activations.
    fn dtype(&self, target: &LocalModel) -> Dtype {
        self.dtype.unwrap_or_else(|| target.dtype())
    }

    /// Measures the rest of a range of chunks. The sums are written at times, so that an interrupted run can
    /// go on with them.
    fn measure(
        &self,
        target: &LocalModel,
        text: &ChunkedText,
        mut measured: PartialImatrix,
        range: &Range<u32>,
        state: &Path,
    ) -> Result<PartialImatrix> {
        let gguf = target.model.gguf.clone().context("a `gguf:` section")?;
        let weights = &target.model.graph.weights;
        let watch = Arc::new(Importance::default());
        let options = SessionOptions {
            dtype: self.dtype(target),
            threads: self.threads,
            arithmetic: self.arithmetic.of(target, self.device.is_cpu())?,
            ..SessionOptions::default()
        };
        let want = if self.process_output { OutputRows::All } else { OutputRows::None };
        let left = measured.chunks.end as usize..range.end as usize;
        // After the first chunk, so that a disk that cannot be written is known early.
        let mut next = Instant::now();
        let engine = self.device.native()?;
        let mut session = watched(engine.as_ref(), target, watch.clone(), &options)?;
        text.run(session.as_mut(), want, &left, |n| {
            let last = n + 1 == range.end as usize;
            let due = Instant::now() >= next;
            if last || due {
                let sums = watch.take(&gguf, weights).map_err(several)?;
                measured.add(sums)?;
                measured.chunks.end = u32::try_from(n + 1)?;
            }
            if due && !last {
                let begin = Instant::now();
                keep(&measured, state).context("what is measured so far cannot be kept")?;
                interrupt::hint("; run the command again to go on");
                next = Instant::now() + PAUSE.max(begin.elapsed() * 20);
            }
            Ok(())
        })?;
        Ok(measured)
    }

    /// Returns the hash of everything that the sums depend on, on any machine.
    fn identity(&self, target: &LocalModel, text: &ChunkedText) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(env!("CARGO_PKG_VERSION"));
        if target.is_gguf() {
            let file = GgufFile::open(&target.dir)?;
            hash.update(format!("{:?}", file.tensors()));
            for info in file.tensors() {
                let bytes = file.bytes(&info.name).unwrap_or_default();
                checkpoints::checkpoint::sample(bytes, |piece| hash.update(piece));
            }
        } else {
            hash.update(target.checkpoint()?.fingerprint()?);
        }
        hash.update(&target.spec.sha256);
        let dtype = self.dtype(target);
        hash.update(format!("{dtype} {:?} {}", self.arithmetic, self.process_output));
        if !self.device.is_cpu() {
            hash.update("device");
        }
        for chunk in text.chunks() {
            for id in chunk {
                hash.update(id.to_le_bytes());
            }
        }
        Ok(format!("{:x}", hash.finalize()))
    }
}

impl MergeArgs {
    fn run(self) -> Result<CommandOutcome> {
        write::allowed(&self.output, &self.shards, self.force)?;
        write_whole(PartialImatrix::join(&self.shards)?, &self.output)
    }
}

/// Returns the first of `chunks` chunks for piece `no` of `count`.
fn share(no: usize, chunks: usize, count: usize) -> Result<u32> {
    Ok(u32::try_from(no * chunks / count)?)
}

/// Returns the sums of an earlier run if it began with the same chunk of the same measurement.
fn resumed(begun: PartialImatrix, range: &Range<u32>, state: &Path) -> Result<PartialImatrix> {
    if !state.exists() {
        return Ok(begun);
    }
    let earlier = PartialImatrix::read(state)
        .with_context(|| format!("`{}` is in the way; move or remove it", state.display()))?;
    if earlier.identity != begun.identity
        || earlier.chunks.start != range.start
        || earlier.chunks.end > range.end
    {
        term::note(&format!("`{}` is of another measurement and is replaced", state.display()));
        return Ok(begun);
    }
    let done = earlier.chunks.len();
    let all = range.len();
    term::note(&format!("{done} of {all} chunks were measured by an earlier run"));
    Ok(PartialImatrix { of: begun.of, dataset: begun.dataset, ..earlier })
}

/// Writes sums. An interruption leaves nothing of an unfinished file.
fn keep(sums: &PartialImatrix, path: &Path) -> Result<()> {
    let _watched = interrupt::watch(&part_path(path));
    Ok(sums.write(path)?)
}

fn write_whole(measured: PartialImatrix, output: &Path) -> Result<CommandOutcome> {
    let measured = measured.importance();
    let watched = interrupt::watch(&part_path(output));
    measured.write(output)?;
    drop(watched);
    term::print(&format!(
        "wrote {}: {} weights, measured on {} chunks of {} tokens",
        output.display(),
        measured.entries.len(),
        measured.chunks,
        measured.chunk_size
    ))?;
    Ok(CommandOutcome::Ok)
}
