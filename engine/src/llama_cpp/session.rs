//! Slots over llama.cpp's sequences.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use registry::dtype::Dtype;
use registry::model::Model;

use super::LlamaCpp;
use super::worker::{LlamaFacts, Worker};
use crate::{
    Chunk, Error, Logits, OutputRows, Probe, Session, SessionFeatures, SessionOptions, SlotId,
    StateValue,
};

/// Tokens that go through the graph at once; more are cut up by llama.cpp.
const AT_ONCE: u32 = 512;

/// `LLAMA_FLASH_ATTN_TYPE_DISABLED`: its kernels keep sums in 16 bits.
const NO_FLASH_ATTENTION: i32 = 0;

/// Opens a file for `engine.slots` sequences.
pub(super) fn open(
    engine: LlamaCpp,
    model: Arc<Model>,
    path: &Path,
    options: &SessionOptions,
) -> Result<LlamaCppSession, Error> {
    let slots = u32::try_from(engine.slots.max(1)).map_err(|_| too_much(engine))?;
    // llama.cpp works in blocks of 256 positions.
    let context =
        engine.context.max(1).checked_next_multiple_of(256).ok_or_else(|| too_much(engine))?;
    let room = u32::try_from(context).ok().and_then(|c| c.checked_mul(slots));
    let room = room.and_then(NonZeroU32::new).ok_or_else(|| too_much(engine))?;
    let threads =
        options.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let threads = i32::try_from(threads.unwrap_or(1)).map_err(|_| too_much(engine))?;
    let params = LlamaContextParams::default()
        .with_n_ctx(Some(room))
        .with_n_seq_max(slots)
        .with_n_rs_seq(u32::try_from(options.rollback).map_err(|_| too_much(engine))?)
        .with_n_batch(room.get())
        .with_n_ubatch(AT_ONCE.min(room.get()))
        .with_n_threads(threads)
        .with_n_threads_batch(threads)
        .with_type_k(KvCacheType::F32)
        .with_type_v(KvCacheType::F32)
        .with_flash_attention_policy(NO_FLASH_ATTENTION)
        // Cells that left a window stay, so that truncating can bring them back.
        .with_swa_full(true)
        // Each slot has its own cells: what one holds does not depend on the others.
        .with_kv_unified(false);
    let (worker, LlamaFacts { vocab, recurrent }) = Worker::start(path.to_owned(), params)?;
    if vocab != model.vocab {
        return Err(Error::Other(format!(
            "`{}` has {vocab} tokens; the model has {}",
            path.display(),
            model.vocab
        )));
    }
    let free = (0..engine.slots.max(1)).rev().collect();
    Ok(LlamaCppSession { model, worker, context, recurrent, slots: Vec::new(), free })
}

fn too_much(engine: LlamaCpp) -> Error {
    Error::Other(format!("llama.cpp has no room for {engine:?}"))
}

/// A slot; it takes a sequence of llama.cpp's when it gets its first token.
#[derive(Debug, Clone, Copy, Default)]
struct SequenceSlot {
    position: usize,
    sequence: Option<usize>,
    /// Tokens that can be taken back from a recurrent state.
    recent: usize,
}

/// A file that llama.cpp has open.
pub(super) struct LlamaCppSession {
    model: Arc<Model>,
    worker: Worker,
    /// Positions that a slot has room for.
    context: usize,
    /// True if some state is not a cache of positions.
    recurrent: bool,
    slots: Vec<Option<SequenceSlot>>,
    /// Sequences that no slot has; the last is taken first.
    free: Vec<usize>,
}

/// One chunk as the worker gets it.
struct SequenceChunk {
    sequence: i32,
    start: usize,
    tokens: Vec<u32>,
    rows: OutputRows,
}

impl LlamaCppSession {
    fn slot(&self, slot: SlotId) -> Result<SequenceSlot, Error> {
        self.slots.get(slot.0).copied().flatten().ok_or(Error::UnknownSlot(slot.0))
    }

    fn place(&mut self, slot: SequenceSlot) -> SlotId {
        let free = self.slots.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(slot);
        SlotId(at)
    }

    fn take(&mut self) -> Result<usize, Error> {
        self.free.pop().ok_or_else(|| {
            let busy = self.slots.iter().flatten().filter(|s| s.sequence.is_some()).count();
            Error::Other(format!(
                "llama.cpp was opened for {busy} slots and all have tokens; release one first"
            ))
        })
    }

    /// Checks everything about a step that can be known before it runs.
    fn check(&self, chunks: &[Chunk<'_>]) -> Result<(), Error> {
        for (n, chunk) in chunks.iter().enumerate() {
            let slot = chunk.slot.0;
            let start = self.slot(chunk.slot)?.position;
            if chunk.tokens.is_empty() {
                return Err(Error::EmptyChunk(slot));
            }
            if chunks[..n].iter().any(|c| c.slot == chunk.slot) {
                return Err(Error::RepeatedSlot(slot));
            }
            let vocab = self.model.input_vocab;
            if let Some((n, &id)) =
                chunk.tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab)
            {
                return Err(Error::Token { id, position: start + n, slot, vocab });
            }
            let end = start.saturating_add(chunk.tokens.len());
            let context = self.model.context.unwrap_or(usize::MAX).min(self.context);
            if end > context {
                return Err(Error::Context { slot, wanted: end, context });
            }
        }
        Ok(())
    }

    /// Returns the sequence of a slot, and assigns one if it has none.
    fn sequence(&mut self, id: SlotId) -> Result<usize, Error> {
        let slot = self.slot(id)?;
        if let Some(sequence) = slot.sequence {
            return Ok(sequence);
        }
        let sequence = self.take()?;
        self.slots[id.0] = Some(SequenceSlot { sequence: Some(sequence), ..slot });
        Ok(sequence)
    }

    /// Makes llama.cpp forget a sequence from `length` on; whether it did.
    fn forget(&self, sequence: usize, length: usize) -> Result<bool, Error> {
        let sequence = small(sequence)?;
        let length = small(length)?;
        self.worker.call(move |context| {
            context.clear_kv_cache_seq(Some(sequence), Some(length), None).unwrap_or(false)
        })
    }

    /// Takes back what a failed step left behind; a slot that cannot go back is closed.
    fn undo(&mut self, chunks: &[Chunk<'_>]) {
        for chunk in chunks {
            let Ok(SequenceSlot { position, sequence: Some(sequence), .. }) = self.slot(chunk.slot)
            else {
                continue;
            };
            if !self.forget(sequence, position).unwrap_or(false) {
                self.release(chunk.slot).ok();
            }
        }
    }
}

impl Session for LlamaCppSession {
    fn model(&self) -> &Model {
        &self.model
    }

    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn features(&self) -> SessionFeatures {
        SessionFeatures { taps: false, states: false, seeds: false, feeds: false, steps: true }
    }

    fn open_slot(&mut self) -> SlotId {
        self.place(SequenceSlot::default())
    }

    fn release(&mut self, slot: SlotId) -> Result<(), Error> {
        let gone = self.slot(slot)?;
        self.slots[slot.0] = None;
        if let Some(sequence) = gone.sequence {
            // Forgetting all of a sequence is never refused.
            self.forget(sequence, 0)?;
            self.free.push(sequence);
        }
        Ok(())
    }

    fn position(&self, slot: SlotId) -> Result<usize, Error> {
        Ok(self.slot(slot)?.position)
    }

    fn step(&mut self, chunks: &[Chunk<'_>], _probe: &mut dyn Probe) -> Result<Vec<Logits>, Error> {
        self.check(chunks)?;
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        let mut parts = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let sequence = self.sequence(chunk.slot)?;
            parts.push(SequenceChunk {
                sequence: i32::try_from(sequence).map_err(|_| too_large(sequence))?,
                start: self.slot(chunk.slot)?.position,
                tokens: chunk.tokens.to_vec(),
                rows: chunk.rows,
            });
        }
        let vocab = self.model.vocab;
        let done = self.worker.call(move |context| decode(context, &parts, vocab));
        match done.and_then(|done| done) {
            Ok(logits) => {
                for chunk in chunks {
                    if let Some(slot) = self.slots[chunk.slot.0].as_mut() {
                        slot.position += chunk.tokens.len();
                        // It keeps the states within a step, and not the one before it.
                        slot.recent = chunk.tokens.len() - 1;
                    }
                }
                Ok(logits)
            }
            Err(error) => {
                self.undo(chunks);
                Err(error)
            }
        }
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        let from = self.slot(slot)?;
        let Some(sequence) = from.sequence else { return Ok(self.place(from)) };
        let to = self.take()?;
        let a = i32::try_from(sequence).map_err(|_| too_large(sequence))?;
        let b = i32::try_from(to).map_err(|_| too_large(to))?;
        let copied =
            self.worker.call(move |context| context.copy_kv_cache_seq(a, b, None, None))?;
        copied.map_err(|e| Error::Other(format!("llama.cpp cannot copy a slot: {e}")))?;
        Ok(self.place(SequenceSlot { sequence: Some(to), recent: 0, ..from }))
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error> {
        let old = self.slot(slot)?;
        if length > old.position {
            let reason = "it is shorter than that already".to_owned();
            return Err(Error::Truncate { slot: slot.0, length, reason });
        }
        // All can be taken back, and otherwise it says that it did where it did not.
        let lost = self.recurrent && length > 0 && old.position - length > old.recent;
        if let Some(sequence) = old.sequence.filter(|_| length < old.position)
            && (lost || !self.forget(sequence, length)?)
        {
            let reason =
                "llama.cpp cannot take back the last tokens of a recurrent state; fork before them"
                    .to_owned();
            return Err(Error::Truncate { slot: slot.0, length, reason });
        }
        let recent = if length < old.position { 0 } else { old.recent };
        self.slots[slot.0] = Some(SequenceSlot { position: length, recent, ..old });
        Ok(())
    }

    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error> {
        self.slot(slot)?;
        Err(Error::Other("llama.cpp's safe bindings do not give a slot as bytes".to_owned()))
    }

    fn restore(&mut self, _bytes: &[u8]) -> Result<SlotId, Error> {
        Err(Error::Restore("llama.cpp's safe bindings take no bytes".to_owned()))
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        self.slot(slot)?;
        Err(Error::Other("llama.cpp does not show its states".to_owned()))
    }
}

fn decode(
    context: &mut LlamaContext<'_>,
    parts: &[SequenceChunk],
    vocab: usize,
) -> Result<Vec<Logits>, Error> {
    let count = parts.iter().map(|p| p.tokens.len()).sum();
    let mut batch = LlamaBatch::new(count, 1);
    let mut rows_of_parts = vec![Vec::new(); parts.len()];
    let mut row = 0;
    for (part, rows) in parts.iter().zip(&mut rows_of_parts) {
        for (n, &token) in part.tokens.iter().enumerate() {
            let logits = match part.rows {
                OutputRows::None => false,
                OutputRows::Last => n + 1 == part.tokens.len(),
                OutputRows::All => true,
            };
            if logits {
                rows.push(row);
            }
            let position = i32::try_from(part.start + n).map_err(|e| decode_error(&e))?;
            let token = LlamaToken::new(i32::try_from(token).map_err(|e| decode_error(&e))?);
            batch.add(token, position, &[part.sequence], logits).map_err(|e| decode_error(&e))?;
            row += 1;
        }
    }
    context.decode(&mut batch).map_err(|e| decode_error(&e))?;
    Ok(rows_of_parts
        .iter()
        .map(|rows| Logits {
            rows: rows.len(),
            vocab,
            data: rows.iter().flat_map(|row| context.get_logits_ith(*row)).copied().collect(),
        })
        .collect())
}

fn decode_error(error: &dyn std::fmt::Display) -> Error {
    Error::Other(format!("llama.cpp cannot decode: {error}"))
}

fn small(n: usize) -> Result<u32, Error> {
    u32::try_from(n).map_err(|_| too_large(n))
}

fn too_large(n: usize) -> Error {
    Error::Other(format!("llama.cpp does not count as far as {n}"))
}
