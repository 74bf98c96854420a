//! Runs a text in chunks of tokens through the native engine, with an observer.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use engine::{
    Chunk, Engine, InputObserver, ModelSource, NoProbe, OutputRows, Session, SessionOptions,
};
use models::local_model::LocalModel;
use tokenizer::ReferenceTokenizer;

use crate::error::{Result, bail, ensure};
use crate::observer::ConversionObserver;

/// Default number of tokens in a chunk, unless the model handles fewer.
const CHUNK: usize = 512;

/// Tokens of a text, cut into chunks.
pub(crate) struct ChunkedText {
    tokens: Vec<u32>,
    /// First token of every chunk, if texts have one.
    begin: Option<u32>,
    /// Number of tokens in a chunk.
    pub(crate) chunk: usize,
    /// Number of chunks.
    pub(crate) count: usize,
}

impl ChunkedText {
    /// Reads a text with the tokenizer beside the model, or takes `ids` if there is no text. The incomplete
    /// chunk at the end is dropped.
    pub(crate) fn read(
        observer: &dyn ConversionObserver,
        target: &LocalModel,
        text: Option<&Path>,
        ids: &[u32],
        chunk: Option<usize>,
        limit: Option<usize>,
    ) -> Result<Self> {
        let context = target.model.context.unwrap_or(usize::MAX);
        let chunk = chunk.unwrap_or(CHUNK.min(context));
        ensure!(chunk > 0, "the option `chunk` must be at least 1");
        ensure!(
            chunk <= context,
            "the model handles {context} tokens, fewer than a chunk of {chunk}; give the option `chunk {context}`",
        );
        let (tokens, begin) = match text {
            Some(text) => encode(observer, target, text)?,
            None => (ids.to_vec(), None),
        };
        let count = (tokens.len() / chunk).min(limit.unwrap_or(usize::MAX));
        ensure!(
            count > 0,
            "{} tokens are less than a chunk of {chunk}; give a longer text, or the option `chunk`",
            tokens.len(),
        );
        Ok(Self { tokens, begin, chunk, count })
    }

    /// Returns the tokens of every chunk, each with the first token of texts.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        self.tokens.chunks_exact(self.chunk).take(self.count).map(|chunk| {
            let mut chunk = chunk.to_vec();
            if let Some(begin) = self.begin {
                chunk[0] = begin;
            }
            chunk
        })
    }

    /// Runs a range of the chunks in a session of [`watched`], each in a slot of its own; `each` is called after a
    /// chunk.
    pub(crate) fn run(
        &self,
        observer: &dyn ConversionObserver,
        session: &mut dyn Session,
        rows: OutputRows,
        range: &Range<usize>,
        mut each: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let bar = observer.count(range.len() as u64, "chunks");
        for (n, chunk) in self.chunks().enumerate().take(range.end).skip(range.start) {
            let slot = session.open_slot();
            session.step(&[Chunk { slot, tokens: &chunk, rows }], &mut NoProbe)?;
            session.release(slot)?;
            each(n)?;
            bar.advance(1);
        }
        drop(bar);
        Ok(())
    }
}

/// Opens a model whose matrices show what they are multiplied with.
pub(crate) fn watched(
    engine: &dyn Engine,
    target: &LocalModel,
    watch: Arc<dyn InputObserver>,
    options: &SessionOptions,
) -> Result<Box<dyn Session>> {
    target.check_dtypes(&[options.dtype])?;
    let options = SessionOptions {
        // Fused kernels do not expose the inputs of their matrices.
        rewrites: false,
        observer: Some(watch),
        ..options.clone()
    };
    Ok(engine.open(&source(target), &options)?)
}

/// Returns the tokens of a text, and the first token of every chunk.
fn encode(
    observer: &dyn ConversionObserver,
    target: &LocalModel,
    text: &Path,
) -> Result<(Vec<u32>, Option<u32>)> {
    let tokenizer = reference_tokenizer(observer, target.home())?;
    let text = registry::file::read_text(text, registry::file::TEXT)?;
    // The first token of a text with special tokens, if it is missing without them.
    let with = tokenizer.encode("a", true)?;
    let without = tokenizer.encode("a", false)?;
    let begin = with.first().copied().filter(|first| without.first() != Some(first));
    Ok((tokenizer.encode(&text, true)?, begin))
}

/// Reads the tokenizer beside a model.
pub fn reference_tokenizer(
    observer: &dyn ConversionObserver,
    dir: &Path,
) -> Result<ReferenceTokenizer> {
    let Some(tokenizer) = ReferenceTokenizer::read(dir)? else {
        bail!(
            "`{}` has no tokenizer.json, so text cannot be read; save one with transformers' \
             AutoTokenizer.save_pretrained, or give token ids with the option `tokens 1,2,3`",
            dir.display()
        );
    };
    for note in tokenizer.notes() {
        observer.note(&format!("note: {note}"));
    }
    Ok(tokenizer)
}

/// Returns the source that engines open.
pub(crate) fn source(target: &LocalModel) -> ModelSource<'_> {
    ModelSource { model: Arc::clone(&target.model), dir: &target.dir }
}
