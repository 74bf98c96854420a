//! Importance matrices: measures the importance of the inputs of each weight on a text.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::importance::Importance;
use engine::{OutputRows, ProductArithmetic, SessionOptions};
use formats::gguf::GgufFile;
use formats::imatrix::PartialImatrix;
use formats::output::{part_path, with_end};
use models::local_model::LocalModel;
use registry::dtype::Dtype;
use sha2::{Digest as _, Sha256};

use crate::chunked_text::{ChunkedText, watched};
use crate::error::{Context as _, Result, bail, several};
use crate::observer::ConversionObserver;
use crate::options::MeasuringDevice;
use crate::output::refuse_existing;

/// End of the name of the file that an interrupted measurement goes on with.
const STATE: &str = ".sums";
/// Minimum time between two writes of that file.
const PAUSE: Duration = Duration::from_secs(30);

/// Options of a measurement of an importance matrix.
///
/// The text is cut into chunks of tokens, each in a sequence of its own; what is left over at the end is not used. A shard
/// measures a share of the chunks, and [`join_importance`] joins the shards to the file that one run would write. An
/// interrupted measurement goes on with the sums beside its output.
///
/// ```
/// use onboard_converter::ImatrixOptions;
///
/// let options = ImatrixOptions { tokens: vec![1, 2, 3, 4], chunk: Some(2), ..ImatrixOptions::default() };
/// assert!(options.shard.is_none() && !options.force);
/// ```
#[derive(Debug, Clone, Default)]
pub struct ImatrixOptions {
    /// Text to measure on.
    pub text: Option<PathBuf>,
    /// Token ids in place of a text.
    pub tokens: Vec<u32>,
    /// True to write over an existing file.
    pub force: bool,
    /// Tokens in a chunk; 512 by default, or all that the model handles.
    pub chunk: Option<usize>,
    /// Maximum number of chunks.
    pub chunks: Option<usize>,
    /// Index and number of the shares of the chunks, of which one is measured.
    pub shard: Option<(usize, usize)>,
    /// True to measure the output matrix too.
    pub process_output: bool,
    /// Dtype of activations; that of the checkpoint by default.
    pub dtype: Option<Dtype>,
    /// Products of matrices.
    pub arithmetic: ProductArithmetic,
    /// Number of worker threads; one per core by default.
    pub threads: Option<usize>,
    /// Device of the measurement.
    pub device: MeasuringDevice,
}

/// Measures how much each input of each weight matters, and writes the importance matrix or its shard.
pub fn measure_importance(
    target: &LocalModel,
    output: &Path,
    options: &ImatrixOptions,
    observer: &dyn ConversionObserver,
) -> Result<()> {
    ImportanceRun { options, observer }.run(target, output)
}

/// Joins the shards of a measurement, if they are complete.
pub fn join_importance(
    shards: &[PathBuf],
    output: &Path,
    force: bool,
    observer: &dyn ConversionObserver,
) -> Result<()> {
    refuse_existing(output, shards, force)?;
    write_whole(observer, PartialImatrix::join(shards)?, output)
}

/// Options of a measurement, and its observer.
struct ImportanceRun<'a> {
    options: &'a ImatrixOptions,
    observer: &'a dyn ConversionObserver,
}

impl ImportanceRun<'_> {
    fn run(&self, target: &LocalModel, output: &Path) -> Result<()> {
        let options = self.options;
        if target.model.gguf.is_none() {
            bail!("the spec has no `gguf:` section, so weights have no names in such a file");
        }
        let text = ChunkedText::read(
            self.observer,
            target,
            options.text.as_deref(),
            &options.tokens,
            options.chunk,
            options.chunks,
        )?;
        let identity = self.identity(target, &text)?;
        let (no, count) = options.shard.unwrap_or((0, 1));
        let range = share(no, text.count, count)?..share(no + 1, text.count, count)?;
        let dataset = options.text.as_ref().map(|path| path.display().to_string());
        let begun = PartialImatrix {
            identity,
            chunks: range.start..range.start,
            of: u32::try_from(text.count)?,
            chunk_size: u32::try_from(text.chunk)?,
            dataset: dataset.unwrap_or_default(),
            entries: std::collections::BTreeMap::new(),
        };
        if options.shard.is_some() && output.exists() && !options.force {
            let earlier = PartialImatrix::read(output);
            if earlier
                .is_ok_and(|earlier| earlier.identity == begun.identity && earlier.chunks == range)
            {
                self.observer.print(&format!("`{}` is measured already", output.display()))?;
                self.observer.product(output);
                return Ok(());
            }
        }
        let mut inputs = target.inputs()?;
        inputs.extend(options.text.clone());
        refuse_existing(output, &inputs, options.force)?;
        let state = with_end(output, STATE);
        let begun = resumed(self.observer, begun, &range, &state)?;
        let measured = self.measure(target, &text, begun, &range, &state)?;
        if options.shard.is_some() {
            keep(self.observer, &measured, output)?;
            self.observer.print(&format!(
                "wrote {}: chunks {}..{} of {}, {} weights",
                output.display(),
                measured.chunks.start,
                measured.chunks.end,
                measured.of,
                measured.entries.len(),
            ))?;
        } else {
            write_whole(self.observer, measured, output)?;
        }
        self.observer.resumable("");
        self.observer.product(output);
        fs_err::remove_file(&state).ok();
        Ok(())
    }

    /// Returns the dtype of activations.
    fn dtype(&self, target: &LocalModel) -> Dtype {
        self.options.dtype.unwrap_or_else(|| target.dtype())
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
            threads: self.options.threads,
            arithmetic: self.options.arithmetic,
            ..SessionOptions::default()
        };
        let rows = if self.options.process_output { OutputRows::All } else { OutputRows::None };
        let left = measured.chunks.end as usize..range.end as usize;
        // After the first chunk, so that a disk that cannot be written is known early.
        let mut next = Instant::now();
        let engine = self.options.device.engine()?;
        let mut session = watched(&engine, target, watch.clone(), &options)?;
        text.run(self.observer, session.as_mut(), rows, &left, |n| {
            let last = n + 1 == range.end as usize;
            let due = Instant::now() >= next;
            if last || due {
                let sums = watch.take(&gguf, weights).map_err(several)?;
                measured.add(sums)?;
                measured.chunks.end = u32::try_from(n + 1)?;
            }
            if due && !last {
                let begin = Instant::now();
                keep(self.observer, &measured, state)
                    .context("what is measured so far cannot be kept")?;
                self.observer.resumable("; run the command again to go on");
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
        let products = products_word(self.options.arithmetic);
        hash.update(format!("{dtype} {products} {}", self.options.process_output));
        if self.options.device != MeasuringDevice::Cpu {
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

/// Returns the word for the products of matrices. Repacked weights give the same numbers.
fn products_word(arithmetic: ProductArithmetic) -> &'static str {
    match arithmetic {
        ProductArithmetic::Exact => "exact",
        ProductArithmetic::Q8 { .. } => "q8",
        ProductArithmetic::Library => "library",
    }
}

/// Returns the first of `chunks` chunks for piece `no` of `count`.
fn share(no: usize, chunks: usize, count: usize) -> Result<u32> {
    Ok(u32::try_from(no * chunks / count)?)
}

/// Returns the sums of an earlier run if it began with the same chunk of the same measurement.
fn resumed(
    observer: &dyn ConversionObserver,
    begun: PartialImatrix,
    range: &Range<u32>,
    state: &Path,
) -> Result<PartialImatrix> {
    if !state.exists() {
        return Ok(begun);
    }
    let earlier = PartialImatrix::read(state)
        .with_context(|| format!("`{}` is in the way; move or remove it", state.display()))?;
    if earlier.identity != begun.identity
        || earlier.chunks.start != range.start
        || earlier.chunks.end > range.end
    {
        observer.note(&format!("`{}` is of another measurement and is replaced", state.display()));
        return Ok(begun);
    }
    let done = earlier.chunks.len();
    let all = range.len();
    observer.note(&format!("{done} of {all} chunks were measured by an earlier run"));
    Ok(PartialImatrix { of: begun.of, dataset: begun.dataset, ..earlier })
}

/// Writes sums. An interruption leaves nothing of an unfinished file.
fn keep(observer: &dyn ConversionObserver, sums: &PartialImatrix, path: &Path) -> Result<()> {
    let _watched = observer.unfinished(&part_path(path), false);
    Ok(sums.write(path)?)
}

fn write_whole(
    observer: &dyn ConversionObserver,
    measured: PartialImatrix,
    output: &Path,
) -> Result<()> {
    let measured = measured.importance();
    let watched = observer.unfinished(&part_path(output), false);
    measured.write(output)?;
    drop(watched);
    observer.print(&format!(
        "wrote {}: {} weights, measured on {} chunks of {} tokens",
        output.display(),
        measured.entries.len(),
        measured.chunks,
        measured.chunk_size
    ))?;
    Ok(())
}
