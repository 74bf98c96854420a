//! Session that is given rows in addition to tokens, with the usual interface: hidden rows of a head, or rows in the
//! place of embeddings. The rows of a prompt are set once, and each step takes those of its positions.

use engine::{
    Chunk, ChunkGiven, Error, ExtraInputs, Logits, Probe, Session, SessionFeatures, ShownParts,
    SlotId, StateValue,
};
use registry::dtype::Dtype;
use registry::model::Model;

use crate::dump::{self, Dump, GivenRows, PartViews, Prompt, RowsPart};

/// Session with the rows of the current prompt.
pub(crate) struct PromptSession {
    inner: Box<dyn Session>,
    /// `[positions, width]`; empty for a graph that reads only tokens.
    rows: Vec<f32>,
    width: usize,
    /// Rows in the place of embeddings, and positions; none for text.
    given: Option<GivenRows>,
}

impl PromptSession {
    pub(crate) fn new(inner: Box<dyn Session>) -> Self {
        let graph = &inner.model().graph;
        let width = graph.fed.map_or(0, |fed| graph.values[fed.value.0].shape.iter().product());
        Self { inner, rows: Vec::new(), width, given: None }
    }

    /// Takes the rows of a prompt of a dump.
    pub(crate) fn begin(
        &mut self,
        dump: &Dump,
        dtype: Dtype,
        prompt: &Prompt,
    ) -> Result<(), dump::Error> {
        self.rows =
            if self.width == 0 { Vec::new() } else { dump.hidden(dtype, prompt, self.width)? };
        self.given = dump.rows_of(dtype, prompt)?;
        Ok(())
    }

    /// Forgets the rows in the place of embeddings, for prompts of tokens alone.
    pub(crate) fn begin_text(&mut self) {
        self.given = None;
    }
}

impl Session for PromptSession {
    fn model(&self) -> &Model {
        self.inner.model()
    }

    fn dtype(&self) -> Dtype {
        self.inner.dtype()
    }

    fn features(&self) -> SessionFeatures {
        self.inner.features()
    }

    fn shown_parts(&self) -> Option<&ShownParts> {
        self.inner.shown_parts()
    }

    fn generate(&mut self, tokens: &[u32], count: usize) -> Result<Option<Vec<u32>>, Error> {
        self.inner.generate(tokens, count)
    }

    fn open_slot(&mut self) -> SlotId {
        self.inner.open_slot()
    }

    fn release(&mut self, slot: SlotId) -> Result<(), Error> {
        self.inner.release(slot)
    }

    fn position(&self, slot: SlotId) -> Result<usize, Error> {
        self.inner.position(slot)
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
        let mut hidden = Vec::new();
        for chunk in chunks {
            let from = self.inner.position(chunk.slot)? * self.width;
            // Tokens past the prompt are rewound later: any rows do.
            let rows = self.rows.iter().cycle().skip(from % self.rows.len().max(1));
            hidden.extend(rows.take(chunk.tokens.len() * self.width));
        }
        let Some(rows) = &self.given else {
            return self.inner.step_with(chunks, ExtraInputs { hidden: &hidden, ..extra }, probe);
        };
        let mut parts = Vec::new();
        for chunk in chunks {
            parts.push(rows.part(self.inner.position(chunk.slot)?, chunk.tokens.len()));
        }
        let views: Vec<PartViews<'_>> = parts.iter().map(RowsPart::views).collect();
        let given: Vec<ChunkGiven<'_>> =
            parts.iter().zip(&views).map(|(part, views)| part.chunk(views)).collect();
        let extra = ExtraInputs { hidden: &hidden, given: &given, ..extra };
        self.inner.step_with(chunks, extra, probe)
    }

    fn document(&self, slot: SlotId) -> Result<usize, Error> {
        self.inner.document(slot)
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        self.inner.fork(slot)
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error> {
        self.inner.truncate(slot, length)
    }

    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error> {
        self.inner.save(slot)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error> {
        self.inner.restore(bytes)
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        self.inner.states(slot)
    }

    fn nudge(&mut self, units: u32) {
        self.inner.nudge(units);
    }

    fn seed(&mut self, position: usize, states: &[StateValue]) -> Result<SlotId, Error> {
        self.inner.seed(position, states)
    }

    fn seed_in_document(
        &mut self,
        position: usize,
        document: usize,
        states: &[StateValue],
    ) -> Result<SlotId, Error> {
        self.inner.seed_in_document(position, document, states)
    }
}
