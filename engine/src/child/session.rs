//! A model that is open in a child, as a session.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use registry::dtype::Dtype;
use registry::graph::StateId;
use registry::model::Model;
use serde_json::{Value, json};

use super::wire::{ExpectedFrames, Frame, Wire};
use super::{Hello, OpenModel};
use crate::{
    Chunk, Error, Logits, ModelSource, OutputRows, Probe, Session, SessionFeatures, ShownParts,
    SlotId, StateValue,
};

/// A session of a [`super::ChildEngine`].
pub(super) struct ChildSession {
    model: Arc<Model>,
    dtype: Dtype,
    wire: RefCell<Wire>,
    can: BTreeSet<String>,
    shown: ShownParts,
    /// Width of the engine's rows; ids that the model has are the first of them.
    vocab: usize,
    /// Most tokens of a slot.
    limit: usize,
    /// The tokens that each slot has seen.
    slots: Vec<Option<usize>>,
    /// Parts of states by layer and part.
    states: BTreeMap<(usize, String), StateId>,
}

impl ChildSession {
    pub(super) fn new(
        wire: Wire,
        hello: &Hello,
        opened: OpenModel,
        source: &ModelSource<'_>,
        dtype: Dtype,
    ) -> Self {
        let model = Arc::clone(&source.model);
        let mut states = BTreeMap::new();
        for (n, state) in model.graph.states.iter().enumerate() {
            for part in &state.parts {
                states.insert((state.layer, part.name.clone()), StateId(n));
            }
        }
        let taps = if hello.can("taps") { opened.taps } else { Vec::new() };
        let parts = if hello.can("states") { opened.states } else { Vec::new() };
        let known = model.context.unwrap_or(usize::MAX);
        Self {
            dtype,
            wire: RefCell::new(wire),
            can: hello.can.iter().cloned().collect(),
            shown: ShownParts {
                taps: taps.into_iter().collect(),
                parts: parts.into_iter().collect(),
            },
            vocab: opened.vocab,
            limit: opened.tokens.unwrap_or(usize::MAX).min(known),
            slots: Vec::new(),
            states,
            model,
        }
    }

    fn place(&mut self, position: usize) -> SlotId {
        let free = self.slots.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(position);
        SlotId(at)
    }

    /// Refuses a verb that the engine does not have.
    fn has(&self, verb: &str) -> Result<(), Error> {
        if self.can.contains(verb) {
            return Ok(());
        }
        let name = self.wire.borrow().name().to_owned();
        Err(Error::Other(format!("engine `{name}` has no verb `{verb}`")))
    }

    /// Sends a verb whose answer has no numbers.
    fn plain(&self, verb: &str, ask: Value) -> Result<Value, Error> {
        self.has(verb)?;
        Ok(self.wire.borrow_mut().call(verb, ask, &ExpectedFrames::Nothing)?.body)
    }

    /// Checks everything about a step that can be known before it runs.
    fn check(&self, chunks: &[Chunk<'_>]) -> Result<(), Error> {
        for (n, chunk) in chunks.iter().enumerate() {
            let slot = chunk.slot.0;
            let start = self.position(chunk.slot)?;
            if chunk.tokens.is_empty() {
                return Err(Error::EmptyChunk(slot));
            }
            if chunks[..n].iter().any(|c| c.slot == chunk.slot) {
                return Err(Error::RepeatedSlot(slot));
            }
            if let Some(n) =
                chunk.tokens.iter().position(|id: &u32| *id as usize >= self.model.input_vocab)
            {
                let id = chunk.tokens[n];
                let vocab = self.model.input_vocab;
                return Err(Error::Token { id, position: start + n, slot, vocab });
            }
            let end = start.saturating_add(chunk.tokens.len());
            if end > self.limit {
                return Err(Error::Context { slot, wanted: end, context: self.limit });
            }
        }
        Ok(())
    }

    /// Rows of the model's tokens alone: engines pad rows to a multiple of what their kernels like.
    fn narrow(&self, rows: usize, data: &[f32]) -> Logits {
        let vocab = self.model.vocab;
        let each = data.chunks_exact(self.vocab.max(1)).flat_map(|row| &row[..vocab]);
        Logits { rows, vocab, data: each.copied().collect() }
    }

    /// Returns the chunk as the verb `step` takes it.
    fn request(&self, chunk: &Chunk<'_>) -> Value {
        let rows = match chunk.rows {
            OutputRows::None => "none",
            OutputRows::Last => "last",
            OutputRows::All => "all",
        };
        let at = self.slots[chunk.slot.0].unwrap_or(0);
        json!({ "slot": chunk.slot.0, "at": at, "tokens": chunk.tokens, "rows": rows })
    }

    fn score(&mut self, chunk: &Chunk<'_>) -> Result<Vec<Logits>, Error> {
        self.has("score")?;
        if self.position(chunk.slot)? > 0 {
            let name = self.wire.borrow().name().to_owned();
            return Err(Error::Other(format!(
                "engine `{name}` scores whole prompts; it has no `step` that continues one"
            )));
        }
        let tokens = chunk.tokens.len();
        let none = BTreeSet::new();
        let expect = ExpectedFrames::Rows { rows: tokens, vocab: self.vocab, taps: &none, tokens };
        let ask = json!({ "tokens": chunk.tokens });
        let answer = self.wire.get_mut().call("score", ask, &expect)?;
        let data = answer.frames.into_iter().next().map(|frame| frame.data).unwrap_or_default();
        self.slots[chunk.slot.0] = Some(tokens);
        let from = match chunk.rows {
            OutputRows::None => tokens,
            OutputRows::Last => tokens - 1,
            OutputRows::All => 0,
        };
        Ok(vec![self.narrow(tokens - from, &data[from * self.vocab..])])
    }
}

impl Session for ChildSession {
    fn model(&self) -> &Model {
        &self.model
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn features(&self) -> SessionFeatures {
        SessionFeatures {
            taps: !self.shown.taps.is_empty(),
            states: !self.shown.parts.is_empty(),
            seeds: false,
            feeds: false,
            steps: self.can.contains("step"),
        }
    }

    fn shown_parts(&self) -> Option<&ShownParts> {
        Some(&self.shown)
    }

    fn generate(&mut self, tokens: &[u32], count: usize) -> Result<Option<Vec<u32>>, Error> {
        if !self.can.contains("generate") {
            return Ok(None);
        }
        let body = self.plain("generate", json!({ "tokens": tokens, "count": count }))?;
        let wire = self.wire.get_mut();
        let chosen: Vec<u32> =
            wire.read("generate", body.get("tokens").cloned().unwrap_or_default())?;
        if chosen.len() > count || chosen.iter().any(|id| *id as usize >= self.vocab) {
            return Err(wire.lost(
                "generate",
                &format!(
                    "{} tokens came, the largest {}; expected at most {count}, each below {}",
                    chosen.len(),
                    chosen.iter().max().unwrap_or(&0),
                    self.vocab
                ),
            ));
        }
        Ok(Some(chosen))
    }

    fn open_slot(&mut self) -> SlotId {
        self.place(0)
    }

    fn release(&mut self, slot: SlotId) -> Result<(), Error> {
        let seen = self.position(slot)?;
        self.slots[slot.0] = None;
        if seen > 0 && self.can.contains("step") {
            self.plain("release", json!({ "slot": slot.0 }))?;
        }
        Ok(())
    }

    fn position(&self, slot: SlotId) -> Result<usize, Error> {
        self.slots.get(slot.0).copied().flatten().ok_or(Error::UnknownSlot(slot.0))
    }

    fn step(&mut self, chunks: &[Chunk<'_>], probe: &mut dyn Probe) -> Result<Vec<Logits>, Error> {
        self.check(chunks)?;
        if !self.can.contains("step") {
            return chunks.iter().try_fold(Vec::new(), |mut all, chunk| {
                all.extend(self.score(chunk)?);
                Ok(all)
            });
        }
        let taps: BTreeSet<String> =
            self.shown.taps.iter().filter(|tap| probe.wants(tap)).cloned().collect();
        let counts: Vec<usize> = chunks
            .iter()
            .map(|chunk| match chunk.rows {
                OutputRows::None => 0,
                OutputRows::Last => 1,
                OutputRows::All => chunk.tokens.len(),
            })
            .collect();
        let requests: Vec<Value> = chunks.iter().map(|chunk| self.request(chunk)).collect();
        let expect = ExpectedFrames::Rows {
            rows: counts.iter().sum(),
            vocab: self.vocab,
            taps: &taps,
            tokens: chunks.iter().map(|chunk| chunk.tokens.len()).sum(),
        };
        let ask = json!({ "chunks": requests, "taps": taps });
        let mut frames = self.wire.get_mut().call("step", ask, &expect)?.frames.into_iter();
        let rows = frames.next().map(|frame| frame.data).unwrap_or_default();
        for Frame { head, mut data } in frames {
            probe.tap(&head.name, &head.shape, &mut data);
        }
        let mut at = 0;
        let mut all = Vec::with_capacity(chunks.len());
        for (chunk, count) in chunks.iter().zip(counts) {
            let to = at + count * self.vocab;
            all.push(self.narrow(count, &rows[at..to]));
            at = to;
            if let Some(seen) = self.slots[chunk.slot.0].as_mut() {
                *seen += chunk.tokens.len();
            }
        }
        Ok(all)
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        let seen = self.position(slot)?;
        let to = self.place(seen);
        let done = if seen == 0 {
            Ok(Value::Null)
        } else {
            self.plain("fork", json!({ "slot": slot.0, "to": to.0 }))
        };
        if done.is_err() {
            self.slots[to.0] = None;
        }
        done.map(|_| to)
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error> {
        let seen = self.position(slot)?;
        if length > seen {
            let reason = "it is shorter than that already".to_owned();
            return Err(Error::Truncate { slot: slot.0, length, reason });
        }
        if length < seen {
            let verb = if length == 0 { "release" } else { "truncate" };
            self.plain(verb, json!({ "slot": slot.0, "length": length }))?;
        }
        self.slots[slot.0] = Some(length);
        Ok(())
    }

    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error> {
        self.position(slot)?;
        Err(Error::Other("the protocol gives no slot as bytes".to_owned()))
    }

    fn restore(&mut self, _bytes: &[u8]) -> Result<SlotId, Error> {
        Err(Error::Restore("the protocol takes no slot as bytes".to_owned()))
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        if self.position(slot)? == 0 {
            return Ok(Vec::new());
        }
        self.has("states")?;
        let ask = json!({ "slot": slot.0 });
        let frames = self.wire.borrow_mut().call("states", ask, &ExpectedFrames::States)?.frames;
        let values = frames.into_iter().filter_map(|Frame { head, data }| {
            let layer = head.layer?;
            // States that the spec does not have are the engine's own affair.
            let state = *self.states.get(&(layer, head.name.clone()))?;
            Some(StateValue { state, layer, part: head.name, shape: head.shape, data })
        });
        Ok(values.collect())
    }
}

impl Drop for ChildSession {
    fn drop(&mut self) {
        if self.can.contains("close") {
            // Memory of devices is given back before the process is killed.
            self.wire.get_mut().close();
        }
    }
}
