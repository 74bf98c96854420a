//! Native engine in f32, which scores the server's prompts and generated tokens.

use std::path::Path;

use checkpoints::Checkpoint;
use endpoints::LogprobRow;
use engine::{Engine, ModelSource, NoProbe, OutputRows, Session, SessionOptions};
use registry::dtype::Dtype;

use super::Error;
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
    threads: Option<usize>,
    /// Sum of squares and count of logits.
    power: (f64, usize),
}

impl<'a> NativeReference<'a> {
    pub(super) fn open(
        engine: &'a dyn Engine,
        source: &ModelSource<'a>,
        threads: Option<usize>,
    ) -> Result<Self, Error> {
        let session = engine.open(source, &options(Dtype::F32, threads))?;
        Ok(Self { engine, source: source.clone(), session, threads, power: (0.0, 0) })
    }

    /// Returns the rows after the tokens at these positions.
    pub(super) fn rows(
        &mut self,
        tokens: &[u32],
        positions: &[usize],
    ) -> Result<Vec<LogprobRow>, Error> {
        let logits = run(self.session.as_mut(), tokens)?;
        let vocab = self.source.model.vocab.max(1);
        let mut rows = Vec::with_capacity(positions.len());
        for &position in positions {
            let Some(logits) = logits.get(position * vocab..(position + 1) * vocab) else { break };
            self.power.0 += logits.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            self.power.1 += vocab;
            rows.push(row(logits, tokens.get(position + 1).copied()));
        }
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
        let mut session = self.engine.open(&self.source, &options(dtype, self.threads)).ok()?;
        let vocab = self.source.model.vocab.max(1);
        let of = |(tokens, positions): &(&[u32], &[usize])| {
            let logits = run(session.as_mut(), tokens).ok()?;
            let rows =
                positions.iter().map(|p| Some(row(logits.get(p * vocab..(p + 1) * vocab)?, None)));
            rows.collect()
        };
        prompts.iter().map(of).collect()
    }
}

/// Returns the hashes of the model, which must match the dump.
pub(super) fn hashes(source: &ModelSource<'_>, dump: Option<&Dump>) -> Result<FileHashes, Error> {
    let mut hashes =
        FileHashes { dump: dump.map(Dump::sha256).transpose()?, ..FileHashes::default() };
    let io = |path: &Path| sha256(path).map_err(|error| Error::Check(CheckError::Io(error)));
    if source.dir.is_file() {
        hashes.weights = Some(io(source.dir)?);
        return Ok(hashes);
    }
    let checkpoint = Checkpoint::open(source.dir).map_err(|e| Error::Check(e.into()))?;
    let path = source.dir.join("config.json");
    let config = io(&path)?;
    let weights = checkpoint.fingerprint().map_err(|e| Error::Check(e.into()))?;
    if let Some(dump) = dump {
        dump.verify_model((&path, &config), (&checkpoint, &weights))?;
    }
    (hashes.config, hashes.weights) = (Some(config), Some(weights));
    Ok(hashes)
}

fn options(dtype: Dtype, threads: Option<usize>) -> SessionOptions {
    SessionOptions { dtype, threads, finite: false, ..SessionOptions::default() }
}

fn run(session: &mut dyn Session, tokens: &[u32]) -> Result<Vec<f32>, engine::Error> {
    let slot = session.open_slot();
    let logits = feed_chunk(session, slot, tokens, OutputRows::All, &mut NoProbe);
    session.release(slot)?;
    Ok(logits?.data)
}

fn row(logits: &[f32], next: Option<u32>) -> LogprobRow {
    let mut values = vec![0.0; logits.len()];
    log_softmax(logits, &mut values);
    let target = next.and_then(|next| values.get(next as usize).copied());
    LogprobRow { ids: None, values, target }
}
