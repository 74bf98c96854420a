//! Native engine in f32, which scores the server's prompts and generated tokens, exactly or with rows rounded as
//! the server's engine rounds them.

use std::path::Path;
use std::sync::Arc;

use checkpoints::Checkpoint;
use endpoints::LogprobRow;
use engine::{Engine, ModelSource, NoProbe, OutputRows, Session, SessionOptions, SlotId};
use registry::dtype::Dtype;

use super::Error;
use super::products::EngineRounding;
use crate::check::Error as CheckError;
use crate::dump::{Dump, sha256};
use crate::metrics::log_softmax;
use crate::report::FileHashes;
use crate::run::feed_chunk;

/// Model opened by the native engine.
pub(super) struct NativeReference<'a> {
    engine: &'a dyn Engine,
    source: ModelSource<'a>,
    session: Box<dyn Session>,
    options: SessionOptions,
    /// Sum of squares and count of logits.
    power: (f64, usize),
}

/// Number of logits, and of tokens, that are computed at a time: rows of a large vocabulary take a megabyte each.
const LOGITS: usize = 1 << 24;
const CHUNK: usize = 256;

impl<'a> NativeReference<'a> {
    pub(super) fn open(
        engine: &'a dyn Engine,
        source: &ModelSource<'a>,
        options: SessionOptions,
    ) -> Result<Self, Error> {
        let session = engine.open(source, &options)?;
        Ok(Self { engine, source: source.clone(), session, options, power: (0.0, 0) })
    }

    /// Returns the same model in a run that rounds rows by the types of the weights, and ops as the engine computes
    /// them.
    pub(super) fn with_rounding(&self, rounding: &EngineRounding) -> Result<Self, Error> {
        let options =
            SessionOptions { rounds_by_type: rounding.types.clone(), ..self.options.clone() };
        let mut model = (*self.source.model).clone();
        for change in &rounding.narrow {
            change.apply(&mut model);
        }
        let source = ModelSource { model: Arc::new(model), dir: self.source.dir };
        Self::open(self.engine, &source, options)
    }

    /// Returns the rows after the tokens at these positions, which ascend.
    pub(super) fn rows(
        &mut self,
        tokens: &[u32],
        positions: &[usize],
    ) -> Result<Vec<LogprobRow>, Error> {
        let vocab = self.source.model.vocab.max(1);
        let power = &mut self.power;
        let mut rows = Vec::with_capacity(positions.len());
        run(self.session.as_mut(), tokens, positions, vocab, |position, logits| {
            power.0 += logits.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            power.1 += logits.len();
            rows.push(row(logits, tokens.get(position + 1).copied()));
        })?;
        Ok(rows)
    }

    /// Returns the root mean square of all logits so far.
    pub(super) fn scale(&self) -> f64 {
        (self.power.0 / self.power.1.max(1) as f64).sqrt()
    }

    /// Returns the rows of a run in another dtype; none if the model cannot run in it.
    pub(super) fn rounded(
        &self,
        dtype: Dtype,
        prompts: &[(&[u32], &[usize])],
    ) -> Option<Vec<Vec<LogprobRow>>> {
        let options = SessionOptions { dtype, ..self.options.clone() };
        let mut session = self.engine.open(&self.source, &options).ok()?;
        let vocab = self.source.model.vocab.max(1);
        prompts
            .iter()
            .map(|(tokens, positions)| {
                let mut rows = Vec::new();
                let session = session.as_mut();
                run(session, tokens, positions, vocab, |_, logits| rows.push(row(logits, None)))
                    .ok()?;
                Some(rows)
            })
            .collect()
    }
}

/// Returns the hashes of the model, which must match the dump.
pub(super) fn hashes(source: &ModelSource<'_>, dump: Option<&Dump>) -> Result<FileHashes, Error> {
    let mut hashes =
        FileHashes { dump: dump.map(Dump::sha256).transpose()?, ..FileHashes::default() };
    if source.dir.is_file() {
        hashes.weights = Some(file_hash(source.dir)?);
        return Ok(hashes);
    }
    let checkpoint = Checkpoint::open(source.dir).map_err(|e| Error::Check(e.into()))?;
    let path = source.dir.join("config.json");
    let config = file_hash(&path)?;
    let weights = checkpoint.fingerprint().map_err(|e| Error::Check(e.into()))?;
    if let Some(dump) = dump {
        dump.verify_model((&path, &config), (&checkpoint, &weights))?;
    }
    (hashes.config, hashes.weights) = (Some(config), Some(weights));
    Ok(hashes)
}

/// Returns the SHA-256 of a file.
fn file_hash(path: &Path) -> Result<String, Error> {
    sha256(path).map_err(|error| Error::Check(CheckError::Io(error)))
}

/// Returns the options of a run in f32.
pub(super) fn options(threads: Option<usize>) -> SessionOptions {
    SessionOptions { dtype: Dtype::F32, threads, finite: false, ..SessionOptions::default() }
}

/// Runs a prompt in a slot of its own, and calls `each` with the logits after the tokens at `positions`, which ascend.
fn run(
    session: &mut dyn Session,
    tokens: &[u32],
    positions: &[usize],
    vocab: usize,
    each: impl FnMut(usize, &[f32]),
) -> Result<(), engine::Error> {
    let slot = session.open_slot();
    let ended = feed(session, slot, tokens, positions, vocab, each);
    session.release(slot)?;
    ended
}

/// Feeds a prompt in chunks, up to the last of the positions.
fn feed(
    session: &mut dyn Session,
    slot: SlotId,
    tokens: &[u32],
    positions: &[usize],
    vocab: usize,
    mut each: impl FnMut(usize, &[f32]),
) -> Result<(), engine::Error> {
    let mut upcoming = positions.iter().copied().peekable();
    let length = (LOGITS / vocab).clamp(1, CHUNK);
    for (n, chunk) in tokens.chunks(length).enumerate() {
        let from = n * length;
        let end = from + chunk.len();
        let Some(&next) = upcoming.peek() else { break };
        let rows = if next < end { OutputRows::All } else { OutputRows::None };
        let logits = feed_chunk(session, slot, chunk, rows, &mut NoProbe)?;
        while let Some(position) = upcoming.next_if(|position| *position < end) {
            let at = (position - from) * vocab;
            if let Some(row) = logits.data.get(at..at + vocab) {
                each(position, row);
            }
        }
    }
    Ok(())
}

fn row(logits: &[f32], next: Option<u32>) -> LogprobRow {
    let mut values = vec![0.0; logits.len()];
    log_softmax(logits, &mut values);
    let target = next.and_then(|next| values.get(next as usize).copied());
    LogprobRow { ids: None, values, target }
}
