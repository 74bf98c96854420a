//! Session that is given rows in addition to tokens, with the usual interface: hidden rows of a head, or rows in the
//! place of embeddings. The rows of a prompt are set once, and each step takes those of its positions.

use registry::dtype::Dtype;
use registry::model::Model;

use crate::given_rows::{GivenRows, PartViews, RowsPart};
use crate::{
    Chunk, ChunkGiven, ChunkMask, Error, ExtraInputs, Logits, Probe, Session, SessionFeatures,
    ShownParts, SlotId, StateValue,
};

/// Session with the rows of the current prompt.
pub struct RowsSession {
    inner: Box<dyn Session>,
    /// `[positions, width]`; empty for a graph that reads only tokens.
    fed: Vec<f32>,
    width: usize,
    /// Rows in the place of embeddings, and positions; none for text.
    given: Option<GivenRows>,
    /// Tokens at the start that see each other, and ranges of such tokens, for steps without a mask of their own.
    prefix: usize,
    spans: Vec<(usize, usize)>,
}

impl RowsSession {
    /// Wraps a session.
    pub fn new(inner: Box<dyn Session>) -> Self {
        let graph = &inner.model().graph;
        let width = graph.fed.map_or(0, |fed| graph.values[fed.value.0].shape.iter().product());
        Self { inner, fed: Vec::new(), width, given: None, prefix: 0, spans: Vec::new() }
    }

    /// Returns the numbers of a row that is fed besides tokens; 0 for a graph that reads only tokens.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Takes the rows of a prompt: those that are fed besides its tokens, and those in the place of embeddings.
    pub fn begin(&mut self, fed: Vec<f32>, given: Option<GivenRows>) {
        self.fed = fed;
        self.given = given;
    }

    /// Takes the tokens of a prompt that see each other: so many at its start, or ranges.
    pub fn see_each_other(&mut self, prefix: usize, spans: Vec<(usize, usize)>) {
        self.prefix = prefix;
        self.spans = spans;
    }

    /// Forgets the rows in the place of embeddings, for prompts of tokens alone.
    pub fn begin_text(&mut self) {
        self.given = None;
    }
}

impl Session for RowsSession {
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
        let mask = ChunkMask { prefix: self.prefix, documents: &[], spans: &self.spans };
        let mut masks = Vec::new();
        if extra.masks.is_empty() && !mask.is_causal() {
            for chunk in chunks {
                let begins = self.inner.position(chunk.slot)? == 0;
                masks.push(if begins { mask } else { ChunkMask::default() });
            }
        }
        let extra = if masks.is_empty() { extra } else { ExtraInputs { masks: &masks, ..extra } };
        let mut hidden = Vec::new();
        for chunk in chunks {
            let from = self.inner.position(chunk.slot)? * self.width;
            // Tokens past the prompt are rewound later: any rows do.
            let rows = self.fed.iter().cycle().skip(from % self.fed.len().max(1));
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
