//! An engine with a fault.

use std::collections::BTreeMap;

use engine::capability::Feature;
use engine::{
    Chunk, ChunkMask, Engine, Error, ExtraInputs, Logits, ModelSource, OutputRows, Probe, Session,
    SessionFeatures, SessionOptions, SlotId, StateValue,
};
use registry::dtype::Dtype;
use registry::model::Model;

use super::faults::{EngineFault, StateChange, StateFault, TapChange, TapFault};
use super::slots;

/// Engine whose sessions have a fault.
pub(super) struct FaultyEngine<'a> {
    inner: &'a dyn Engine,
    fault: EngineFault,
}

impl<'a> FaultyEngine<'a> {
    pub(super) fn new(inner: &'a dyn Engine, fault: EngineFault) -> Self {
        Self { inner, fault }
    }
}

impl Engine for FaultyEngine<'_> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn exact(&self) -> bool {
        self.inner.exact()
    }

    fn has(&self, feature: Feature) -> bool {
        self.inner.has(feature)
    }

    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        let inner = self.inner.open(source, options)?;
        let fault = self.fault.clone();
        Ok(Box::new(FaultySession {
            inner,
            fault,
            slots: BTreeMap::new(),
            next: 0,
            stale: None,
            reused: BTreeMap::new(),
        }))
    }
}

/// Session with a fault. Its slot ids differ from the inner session's, which change when states do.
pub(super) struct FaultySession {
    pub(super) inner: Box<dyn Session>,
    fault: EngineFault,
    slots: BTreeMap<usize, SlotId>,
    next: usize,
    /// States left by the slot that was released last.
    stale: Option<Vec<StateValue>>,
    /// Such states for slots that were not fed yet.
    reused: BTreeMap<usize, Vec<StateValue>>,
}

impl FaultySession {
    /// Returns the inner session's slot.
    fn inner_slot(&self, slot: SlotId) -> Result<SlotId, Error> {
        self.slots.get(&slot.0).copied().ok_or(Error::UnknownSlot(slot.0))
    }

    fn place(&mut self, slot: SlotId) -> SlotId {
        let id = self.next;
        self.next += 1;
        self.slots.insert(id, slot);
        SlotId(id)
    }

    /// Replaces a slot by one with other states.
    fn replace(
        &mut self,
        slot: SlotId,
        position: usize,
        values: &[StateValue],
    ) -> Result<(), Error> {
        let document = self.inner.document(self.inner_slot(slot)?)?;
        // A truncated slot has forgotten documents that began later.
        let document = if document < position { document } else { 0 };
        let seeded = self.inner.seed_in_document(position, document, values)?;
        if let Some(old) = self.slots.insert(slot.0, seeded) {
            self.inner.release(old)?;
        }
        Ok(())
    }

    fn state_fault(&self) -> Option<StateFault> {
        match &self.fault {
            EngineFault::State(fault) => Some(fault.clone()),
            EngineFault::Tap(_) | EngineFault::Mask(_) => None,
        }
    }

    /// Changes the states of a slot after a chunk of tokens.
    fn after(&mut self, slot: SlotId, tokens: &[u32]) -> Result<(), Error> {
        let Some(fault) = self.state_fault() else { return Ok(()) };
        let inner = self.inner_slot(slot)?;
        let position = self.inner.position(inner)?;
        let mut values = self.inner.states(inner)?;
        let graph = &self.inner.model().graph;
        let changed = match &fault.what {
            StateChange::Stale => match self.reused.remove(&slot.0) {
                Some(stale) => slots::leak_state(&mut values, &stale, graph, position),
                None => false,
            },
            StateChange::Padded
                if tokens.len() % 2 == 1 && tokens.len() > 1 && graph.fed.is_none() =>
            {
                let fork = self.inner.fork(inner)?;
                let last = &tokens[tokens.len() - 1..];
                let fed = crate::run::feed_chunk(
                    &mut *self.inner,
                    fork,
                    last,
                    OutputRows::None,
                    &mut engine::NoProbe,
                );
                let padded = fed.and_then(|_| self.inner.states(fork));
                self.inner.release(fork)?;
                slots::take(&mut values, &padded?, &fault.states)
            }
            what => slots::change(&mut values, what, &fault.states, position),
        };
        if changed { self.replace(slot, position, &values) } else { Ok(()) }
    }

    fn feed(
        &mut self,
        chunks: &[Chunk<'_>],
        extra: ExtraInputs<'_>,
        probe: &mut dyn Probe,
    ) -> Result<Vec<Logits>, Error> {
        let mut inner = Vec::new();
        let mut rows = Vec::new();
        let mut logit_rows = Vec::new();
        for chunk in chunks {
            let slot = self.inner_slot(chunk.slot)?;
            let start = self.inner.position(slot)?;
            rows.extend(start..start + chunk.tokens.len());
            logit_rows.extend(match chunk.rows {
                OutputRows::None => 0..0,
                OutputRows::Last => start + chunk.tokens.len() - 1..start + chunk.tokens.len(),
                OutputRows::All => start..start + chunk.tokens.len(),
            });
            inner.push(Chunk { slot, ..*chunk });
        }
        match self.fault.clone() {
            EngineFault::Tap(fault) => {
                let mut tamper = FaultProbe {
                    probe,
                    fault: &fault,
                    rows,
                    logit_rows,
                    chosen: Vec::new(),
                    dtype: self.dtype(),
                };
                self.inner.step_with(&inner, extra, &mut tamper)
            }
            EngineFault::State(StateFault { states, what: StateChange::ReadNarrow(dtype) }) => {
                slots::read_narrow(&mut *self.inner, &inner, extra, probe, &states, dtype)
            }
            EngineFault::State(_) => self.inner.step_with(&inner, extra, probe),
            EngineFault::Mask(fault) => {
                let mut owned: Vec<(usize, Vec<usize>)> =
                    extra.masks.iter().map(|m| (m.prefix, m.documents.to_vec())).collect();
                for ((prefix, documents), chunk) in owned.iter_mut().zip(&inner) {
                    fault.apply(prefix, documents, chunk.tokens.len());
                }
                let masks: Vec<ChunkMask<'_>> = owned
                    .iter()
                    .zip(extra.masks)
                    .map(|((prefix, documents), mask)| ChunkMask {
                        prefix: *prefix,
                        documents,
                        spans: mask.spans,
                    })
                    .collect();
                self.inner.step_with(&inner, ExtraInputs { masks: &masks, ..extra }, probe)
            }
        }
    }
}

impl Session for FaultySession {
    fn model(&self) -> &Model {
        self.inner.model()
    }

    fn dtype(&self) -> Dtype {
        self.inner.dtype()
    }

    fn features(&self) -> SessionFeatures {
        self.inner.features()
    }

    fn open_slot(&mut self) -> SlotId {
        let slot = self.inner.open_slot();
        let slot = self.place(slot);
        if let Some(stale) = self.stale.take() {
            self.reused.insert(slot.0, stale);
        }
        slot
    }

    fn release(&mut self, slot: SlotId) -> Result<(), Error> {
        let inner = self.inner_slot(slot)?;
        if let Some(StateFault { states, what: StateChange::Stale }) = self.state_fault() {
            let values = self.inner.states(inner)?;
            self.stale =
                Some(values.into_iter().filter(|value| states.contains(&value.state)).collect());
        }
        self.reused.remove(&slot.0);
        self.slots.remove(&slot.0);
        self.inner.release(inner)
    }

    fn position(&self, slot: SlotId) -> Result<usize, Error> {
        self.inner.position(self.inner_slot(slot)?)
    }

    fn step(&mut self, chunks: &[Chunk<'_>], probe: &mut dyn Probe) -> Result<Vec<Logits>, Error> {
        self.step_with(chunks, ExtraInputs::default(), probe)
    }

    fn step_with(
        &mut self,
        chunks: &[Chunk<'_>],
        extra: ExtraInputs<'_>,
        probe: &mut dyn Probe,
    ) -> Result<Vec<Logits>, Error> {
        let logits = self.feed(chunks, extra, probe)?;
        for chunk in chunks {
            self.after(chunk.slot, chunk.tokens)?;
        }
        Ok(logits)
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        let inner = self.inner_slot(slot)?;
        let fork = self.inner.fork(inner)?;
        let fork = self.place(fork);
        if let Some(StateFault { what: StateChange::Further, .. }) = self.state_fault() {
            let position = self.inner.position(inner)?;
            let mut values = self.inner.states(inner)?;
            slots::repeat_last(&mut values, &self.inner.model().graph, position);
            self.replace(fork, position + 1, &values)?;
        }
        Ok(fork)
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error> {
        let inner = self.inner_slot(slot)?;
        let Some(StateFault { states, what: StateChange::NotTruncated }) = self.state_fault()
        else {
            return self.inner.truncate(inner, length);
        };
        let before = self.inner.states(inner)?;
        self.inner.truncate(inner, length)?;
        let mut values = self.inner.states(inner)?;
        slots::take(&mut values, &before, &states);
        self.replace(slot, length, &values)
    }

    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error> {
        self.inner.save(self.inner_slot(slot)?)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error> {
        let slot = self.inner.restore(bytes)?;
        Ok(self.place(slot))
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        self.inner.states(self.inner_slot(slot)?)
    }

    fn nudge(&mut self, units: u32) {
        self.inner.nudge(units);
    }

    fn seed(&mut self, position: usize, states: &[StateValue]) -> Result<SlotId, Error> {
        self.seed_in_document(position, 0, states)
    }

    fn document(&self, slot: SlotId) -> Result<usize, Error> {
        self.inner.document(self.inner_slot(slot)?)
    }

    fn seed_in_document(
        &mut self,
        position: usize,
        document: usize,
        states: &[StateValue],
    ) -> Result<SlotId, Error> {
        let mut values = states.to_vec();
        if let Some(StateFault { states, what }) = self.state_fault() {
            slots::change(&mut values, &what, &states, position);
        }
        let slot = self.inner.seed_in_document(position, document, &values)?;
        Ok(self.place(slot))
    }
}

/// Probe that changes a tap before the real one sees it.
struct FaultProbe<'a> {
    probe: &'a mut dyn Probe,
    fault: &'a TapFault,
    /// Positions of all rows, and of those whose logits are returned.
    rows: Vec<usize>,
    logit_rows: Vec<usize>,
    /// Values and row width of the tap that selects the changed rows.
    chosen: Vec<Vec<f32>>,
    dtype: Dtype,
}

impl Probe for FaultProbe<'_> {
    fn wants(&self, tap: &str) -> bool {
        tap == self.fault.tap
            || self.fault.chosen.as_ref().is_some_and(|(chosen, _)| chosen == tap)
            || self.probe.wants(tap)
    }

    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        let count = shape.first().copied().unwrap_or(0);
        let width = data.len().checked_div(count).unwrap_or(0).max(1);
        if tap == self.fault.tap {
            let positions = if count == self.rows.len() { &self.rows } else { &self.logit_rows };
            for (n, row) in data.chunks_exact_mut(width).enumerate() {
                let reached = positions.get(n).is_some_and(|at| self.fault.at.contain(*at));
                let sent = self.fault.chosen.as_ref().is_none_or(|(_, expert)| {
                    self.chosen.get(n).is_some_and(|row| row.contains(&(*expert as f32)))
                });
                let part = self.fault.part.clone().unwrap_or(0..width);
                if reached
                    && sent
                    && let Some(part) = row.get_mut(part)
                {
                    for x in part {
                        *x = changed(*x, self.fault.how, self.dtype);
                    }
                }
            }
        }
        if self.probe.wants(tap) {
            self.probe.tap(tap, shape, data);
        }
        if self.fault.chosen.as_ref().is_some_and(|(chosen, _)| chosen == tap) {
            self.chosen = data.chunks_exact(width).map(<[f32]>::to_vec).collect();
        }
    }
}

fn changed(x: f32, how: TapChange, dtype: Dtype) -> f32 {
    match (how, dtype) {
        (TapChange::Times(factor), _) => slots::round_to_dtype(x * factor, dtype),
        (TapChange::Noise, _) => {
            let up = x.to_bits().wrapping_mul(0x9E37_79B9) >> 31 == 0;
            slots::round_to_dtype(x * if up { 1.01 } else { 0.99 }, dtype)
        }
        (TapChange::Rounded, Dtype::F32) => slots::rounded(x, 10),
        (TapChange::Rounded, Dtype::F16) => slots::rounded(x, 7),
        (TapChange::Rounded, Dtype::Bf16) => slots::rounded(x, 5),
    }
}
