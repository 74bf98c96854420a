//! The native engine: runs a resolved graph on the CPU.

use std::sync::Arc;

use checkpoints::checkpoint::Checkpoint;
use checkpoints::{GgufWeights, own_names};
use formats::gguf::GgufFile;
use registry::attention_modules::attention_modules;
use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::graph::Graph;
use registry::model::Model;
use registry::rope::RopeTable;
use registry::scalar::Scalar;

use crate::angles::stretched;
use crate::capability::{EngineSheet, Feature, mismatches, refuse, refuse_features};
use crate::device::DeviceQueue;
use crate::device::product::WORKSPACE;
use crate::exec::{PreparedGraph, StepInputs, WorkerPool};
use crate::finite::diagnose;
use crate::given::{GivenLimits, refuse_rows};
use crate::masks::{ChunkMask, SequenceMask, refuse_documents, refuse_prefix, refuse_spans};
use crate::ops::{ChunkRows, Kernels};
use crate::parts::{self, SlotMark};
use crate::rewrite::{self, Rewrite};
use crate::states::{Slot, saved};
use crate::step_rows::StepGiven;
use crate::value::GraphValue;
use crate::weights::{SessionWeights, WeightSource};
use crate::{
    Chunk, Engine, Error, ExtraInputs, Logits, ModelSource, OutputRows, Probe, ProductArithmetic,
    Session, SessionOptions, SlotId, StateValue,
};

/// The engine of this crate.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NativeEngine {
    /// The ops of the engine; more can be added.
    pub kernels: Kernels,
    /// Rewrites of the graph, applied in order when [`SessionOptions::rewrites`] is set.
    pub rewrites: Vec<Rewrite>,
    /// The device that the kernels run on; none for the CPU.
    device: Option<DeviceQueue>,
}

impl Default for NativeEngine {
    fn default() -> Self {
        Self { kernels: Kernels::default(), rewrites: rewrite::all(), device: None }
    }
}

impl NativeEngine {
    /// Creates an engine with every op of the spec language.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an engine that runs on a device, with the ops that have kernels there.
    pub fn on(device: DeviceQueue) -> Self {
        let kernels = Kernels::of_devices();
        Self { kernels, device: Some(device), ..Self::default() }
    }

    /// Returns the engine's sheet, with the ops that this one has kernels for.
    pub fn sheet(&self) -> EngineSheet {
        let ops = self.kernels.names().map(str::to_owned).collect();
        let sheet =
            if self.device.is_some() { EngineSheet::of("cuda") } else { EngineSheet::native() };
        EngineSheet { ops, ..sheet }
    }

    /// Opens a model whose weights come from anywhere.
    pub fn open_with(
        &self,
        model: Arc<Model>,
        tensors: Box<dyn WeightSource>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        self.check(&model, options)?;
        let graph = if options.rewrites {
            rewrite::apply(&model.graph, &self.rewrites)
        } else {
            model.graph.clone()
        };
        let pool = WorkerPool::new(options.threads)?;
        let device = self.device.clone();
        if options.arithmetic == ProductArithmetic::Library
            && let Some(queue) = &device
        {
            queue.open_products()?;
        }
        let hidden = model.embedding().map_or(0, |(_, width)| width);
        let mut program =
            PreparedGraph::new(graph, &self.kernels, model.ropes.len(), hidden, device.clone())?;
        let mut weights = pool.run(|| {
            SessionWeights::load(&program.graph, tensors, options.dtype, options.arithmetic)
        })?;
        weights.round_inputs(&program.graph, options.rounds)?;
        weights.round_by_type(&program.graph, &options.rounds_by_type);
        weights.fix_states(&attention_modules(&model.graph), &mut program.graph)?;
        let ropes = stretched(&mut program.graph, &weights, &model.ropes)?;
        if let Some(queue) = &device {
            if let Some(op) = weights.experts_apart(&program.graph) {
                let message = format!(
                    "`{op}` has the inputs of its experts rounded with scales of their own, which the device does not \
                     do; run it without rounding, or on the CPU"
                );
                return Err(Error::Refused(vec![Finding::unplaced(message)]));
            }
            let library = options.arithmetic == ProductArithmetic::Library;
            let beside = if library { WORKSPACE as u64 } else { 0 };
            weights.upload(&program.graph, queue, beside)?;
        }
        let no_prefix = refuse_prefix(&model);
        let no_documents = refuse_documents(&model);
        let no_spans = refuse_spans(&model);
        let given_limits = GivenLimits::of(&model);
        let divides = device.is_none() && program.divides(options.dtype);
        let part = if divides { program.rows_of_part(options.part) } else { 0 };
        let states = &program.graph.states;
        let fingerprint = saved::fingerprint(&model, states, options.dtype, options.rollback);
        Ok(Box::new(NativeSession {
            tables: tables(&program.graph),
            program,
            weights,
            pool,
            slots: Vec::new(),
            spare: Vec::new(),
            device,
            unmoved: ropes.clone(),
            ropes,
            fingerprint,
            no_prefix,
            no_documents,
            no_spans,
            given_limits,
            part,
            options: options.clone(),
            model,
        }))
    }

    /// Opens a GGUF file by the `gguf` section of its model's spec.
    fn open_gguf(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        let model = &source.model;
        let file = GgufFile::open(source.dir).map_err(|e| Error::Checkpoint(Box::new(e)))?;
        let gguf = model.gguf.clone().unwrap_or_else(|| own_names(model));
        let weights = GgufWeights::new(file, &gguf, &model.graph.weights)
            .map_err(|e| Error::Checkpoint(Box::new(e)))?;
        self.open_with(Arc::clone(model), Box::new(weights), options)
    }

    fn check(&self, model: &Model, options: &SessionOptions) -> Result<(), Error> {
        let sheet = self.sheet();
        let mut findings = refuse_features(&sheet, &Feature::required(model, options));
        findings.extend(refuse(model, &sheet, options.dtype));
        if options.arithmetic == ProductArithmetic::Library && self.device.is_none() {
            findings.push(Finding::unplaced(format!(
                "engine `{}` has no library of matrix products; run on a GPU",
                sheet.engine
            )));
        }
        if options.prefix {
            findings.extend(refuse_prefix(model));
        }
        if options.spans {
            findings.extend(refuse_spans(model));
        }
        if options.rows {
            findings.extend(refuse_rows(model));
        }
        if options.documents {
            findings.extend(refuse_documents(model));
        }
        if !options.allow_dtype_mismatch {
            findings.extend(mismatches(model, options.dtype));
        }
        if findings.is_empty() { Ok(()) } else { Err(Error::Refused(findings)) }
    }
}

impl Engine for NativeEngine {
    fn name(&self) -> &'static str {
        if self.device.is_some() { "cuda" } else { "native" }
    }

    fn exact(&self) -> bool {
        true
    }

    fn has(&self, feature: Feature) -> bool {
        self.sheet().features.contains(feature.name())
    }

    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        // Refusals need no weights, so they come first.
        self.check(&source.model, options)?;
        if source.dir.extension().is_some_and(|end| end == "gguf") {
            return self.open_gguf(source, options);
        }
        let checkpoint = Checkpoint::open_part(source.dir, source.model.layers.as_ref())
            .map_err(|e| Error::Checkpoint(Box::new(e)))?;
        let model = &source.model;
        let weights = checkpoints::weights::CheckpointWeights::with_rules(
            checkpoint,
            &model.graph.weights,
            &model.rules,
        )
        .map_err(|e| Error::Checkpoint(Box::new(e)))?;
        let loaded = model.graph.weights.iter().map(|weight| weight.dtype.resolve(options.dtype));
        let weights = weights.loaded_in(loaded.collect());
        self.open_with(Arc::clone(&source.model), Box::new(weights), options)
    }
}

/// Lists of numbers that nodes have, by node and attribute.
fn tables(graph: &Graph) -> Vec<(usize, String, Vec<f32>)> {
    let nodes = graph.nodes.iter().enumerate();
    let attrs = nodes.flat_map(|(n, node)| node.attrs.iter().map(move |attr| (n, attr)));
    attrs.filter_map(|(n, (name, attr))| Some((n, name.clone(), numbers_of(attr)?))).collect()
}

/// Returns the numbers of a list; none if the attribute is something else.
fn numbers_of(attr: &Scalar) -> Option<Vec<f32>> {
    let Scalar::List(items) = attr else { return None };
    items
        .iter()
        .map(|item| if let Scalar::Float(x) = item { Some(*x as f32) } else { None })
        .collect()
}

/// Moves a number by so many units in the last place of f32, up or down by its index in a list.
fn moved(x: f32, place: usize, units: u32) -> f32 {
    if !x.is_normal() {
        return x;
    }
    let bits = x.to_bits();
    f32::from_bits(if place.is_multiple_of(2) { bits + units } else { bits - units })
}

/// Most released slots whose memory is kept for the next ones.
const SPARE: usize = 2;

/// Tokens of all chunks, their rows, and the rows whose logits are wanted.
type Batch = (Vec<u32>, Vec<ChunkRows>, Vec<usize>);

struct NativeSession {
    model: Arc<Model>,
    /// The model's, with stretched ones behind them, which [`Session::nudge`] moves.
    ropes: Vec<RopeTable>,
    /// The tables before it moves them.
    unmoved: Vec<RopeTable>,
    /// Lists of numbers that nodes have, by node and attribute: slopes and frequencies.
    tables: Vec<(usize, String, Vec<f32>)>,
    program: PreparedGraph,
    weights: SessionWeights,
    pool: WorkerPool,
    slots: Vec<Option<Slot>>,
    /// Memory of released slots, cleared, for the next ones.
    spare: Vec<Slot>,
    /// The device that states are on; none for the CPU.
    device: Option<DeviceQueue>,
    fingerprint: u64,
    /// Reasons against a bidirectional prefix, and against packed documents.
    no_prefix: Vec<Finding>,
    no_documents: Vec<Finding>,
    no_spans: Vec<Finding>,
    given_limits: GivenLimits,
    /// Rows in a part of a long step; 0 if steps are not divided.
    part: usize,
    options: SessionOptions,
}

impl NativeSession {
    fn slot(&self, slot: SlotId) -> Result<&Slot, Error> {
        self.slots.get(slot.0).and_then(Option::as_ref).ok_or(Error::UnknownSlot(slot.0))
    }

    fn slot_mut(&mut self, slot: SlotId) -> Result<&mut Slot, Error> {
        self.slots.get_mut(slot.0).and_then(Option::as_mut).ok_or(Error::UnknownSlot(slot.0))
    }

    fn place(&mut self, slot: Slot) -> SlotId {
        let free = self.slots.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(slot);
        SlotId(at)
    }

    fn empty(&mut self) -> Slot {
        self.spare.pop().unwrap_or_else(|| self.new_slot())
    }

    fn new_slot(&self) -> Slot {
        let mut slot = Slot::new(&self.program.graph, self.options.dtype, self.options.rollback);
        if let Some(queue) = &self.device {
            slot.place_on(queue);
        }
        slot
    }

    /// Returns the failure of the device that a call could not return.
    fn check_device(&self) -> Result<(), Error> {
        self.device.as_ref().map_or(Ok(()), DeviceQueue::check)
    }

    /// Checks the number of inputs besides tokens.
    fn check_hidden(&self, hidden: &[f32], rows: usize) -> Result<(), Error> {
        let expected = rows * self.fed_shape().iter().product::<usize>();
        let expected = if self.program.graph.fed.is_some() { expected } else { 0 };
        if hidden.len() == expected {
            return Ok(());
        }
        Err(Error::Hidden { got: hidden.len(), wanted: expected, rows })
    }

    /// Returns the shape of a row that is fed besides tokens.
    fn fed_shape(&self) -> &[usize] {
        let graph = &self.program.graph;
        graph.fed.map_or(&[], |fed| &graph.values[fed.value.0].shape)
    }

    /// Returns the inputs besides tokens, as a value of the graph.
    fn hidden_value(&self, hidden: &[f32], rows: usize) -> Result<Option<GraphValue>, Error> {
        if self.program.graph.fed.is_none() {
            return Ok(None);
        }
        GraphValue::new(hidden.to_vec(), &[&[rows], self.fed_shape()].concat()).map(Some)
    }

    /// Refuses a mask that the model does not have.
    fn allow(&self, slot: usize, mask: &ChunkMask<'_>) -> Result<(), Error> {
        let kinds = [
            (mask.prefix > 1, &self.no_prefix),
            (!mask.spans.is_empty(), &self.no_spans),
            (!mask.documents.is_empty(), &self.no_documents),
        ];
        let refused = kinds.into_iter().find(|(given, refusals)| *given && !refusals.is_empty());
        let Some((_, refusals)) = refused else { return Ok(()) };
        Err(Error::Mask { slot, reason: Error::Refused(refusals.clone()).to_string() })
    }

    /// Checks everything about a step that can be known before it runs.
    fn feed(&self, chunks: &[Chunk<'_>], extra: ExtraInputs<'_>) -> Result<Batch, Error> {
        let masks = extra.masks;
        let mut tokens = Vec::new();
        let mut rows = Vec::<ChunkRows>::new();
        let mut logit_rows = Vec::new();
        if !masks.is_empty() && masks.len() != chunks.len() {
            return Err(Error::Other(format!(
                "{} masks are given for {} chunks; expected one for each, or none",
                masks.len(),
                chunks.len()
            )));
        }
        if !extra.given.is_empty() && extra.given.len() != chunks.len() {
            return Err(Error::Other(format!(
                "rows are given for {} of {} chunks; expected one entry for each, or none",
                extra.given.len(),
                chunks.len()
            )));
        }
        for (n, chunk) in chunks.iter().enumerate() {
            let slot = chunk.slot.0;
            let start = self.slot(chunk.slot)?.position;
            if chunk.tokens.is_empty() {
                return Err(Error::EmptyChunk(slot));
            }
            if rows.iter().any(|c| c.slot == slot) {
                return Err(Error::RepeatedSlot(slot));
            }
            for (n, &id) in chunk.tokens.iter().enumerate() {
                let vocab = self.model.input_vocab;
                if id as usize >= vocab {
                    return Err(Error::Token { id, position: start + n, slot, vocab });
                }
            }
            let end = start.saturating_add(chunk.tokens.len());
            let mut mask = self.slot(chunk.slot)?.mask.clone();
            // Slots that were restored or seeded bring a mask that no step of this session has asked for.
            let slot_mask = ChunkMask {
                prefix: mask.prefix(),
                documents: mask.documents(),
                spans: mask.spans(),
            };
            self.allow(slot, &slot_mask)?;
            if let Some(added) = masks.get(n) {
                self.allow(slot, added)?;
                mask.add(slot, start, chunk.tokens.len(), added)?;
            }
            let given = extra.given.get(n).copied().unwrap_or_default();
            let placed = mask.is_placed();
            self.given_limits.check(slot, chunk.tokens.len(), &given, &self.model, placed)?;
            if !given.positions.is_empty() {
                mask.place();
            }
            // Positions restart at each document, so none may be longer than the context.
            let ends = mask.documents().iter().copied().filter(|at| *at > start).chain([end]);
            let longest = ends.map(|end| end - mask.document_of(end - 1)).max().unwrap_or(0);
            if let Some(context) = self.model.context
                && longest > context
            {
                return Err(Error::Context { slot, wanted: longest, context });
            }
            let first = tokens.len();
            tokens.extend_from_slice(chunk.tokens);
            let continued = start > 0;
            rows.push(ChunkRows { slot, rows: first..tokens.len(), start, continued, mask });
            match chunk.rows {
                OutputRows::None => {}
                OutputRows::Last => logit_rows.push(tokens.len() - 1),
                OutputRows::All => logit_rows.extend(first..tokens.len()),
            }
        }
        Ok((tokens, rows, logit_rows))
    }
}

impl Session for NativeSession {
    fn model(&self) -> &Model {
        &self.model
    }

    fn dtype(&self) -> Dtype {
        self.options.dtype
    }

    fn open_slot(&mut self) -> SlotId {
        let slot = self.empty();
        self.place(slot)
    }

    fn release(&mut self, slot: SlotId) -> Result<(), Error> {
        self.slot(slot)?;
        if let Some(mut memory) = self.slots[slot.0].take() {
            // Memory grows with the longest sequence, and forks bring memory of their own, so few are kept.
            if self.spare.len() < SPARE {
                memory.clear(self.options.poison);
                self.spare.push(memory);
            }
        }
        Ok(())
    }

    fn position(&self, slot: SlotId) -> Result<usize, Error> {
        Ok(self.slot(slot)?.position)
    }

    fn step(&mut self, chunks: &[Chunk<'_>], probe: &mut dyn Probe) -> Result<Vec<Logits>, Error> {
        self.step_with(chunks, ExtraInputs::default(), probe)
    }

    fn document(&self, slot: SlotId) -> Result<usize, Error> {
        let slot = self.slot(slot)?;
        Ok(slot.mask.document_of(slot.position))
    }

    fn step_with(
        &mut self,
        chunks: &[Chunk<'_>],
        extra: ExtraInputs<'_>,
        probe: &mut dyn Probe,
    ) -> Result<Vec<Logits>, Error> {
        let (tokens, rows, logit_rows) = self.feed(chunks, extra)?;
        self.check_hidden(extra.hidden, tokens.len())?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let mut parts = parts::divide(tokens.len(), self.part);
        let divided = parts.len() > 1
            && self.options.observer.is_none()
            && extra.given.is_empty()
            && parts::may_divide(&self.program, &rows, &parts, &self.ropes, probe);
        if !divided {
            parts = std::iter::once(0..tokens.len()).collect();
        }
        let slots = rows.iter().filter_map(|c| Some((c.slot, self.slots[c.slot].as_ref()?)));
        let marks: Vec<(usize, SlotMark)> = if divided {
            slots.map(|(n, slot)| (n, SlotMark::of(slot))).collect()
        } else {
            Vec::new()
        };
        let mut data = Vec::new();
        for part in parts {
            let part_rows = logit_rows.iter().filter(|row| part.contains(row));
            let width = extra.hidden.len() / tokens.len();
            let hidden_rows = &extra.hidden[part.start * width..part.end * width];
            let feed = StepInputs {
                tokens: tokens[part.clone()].to_vec(),
                hidden: self.hidden_value(hidden_rows, part.len())?,
                given: StepGiven::of(&rows, extra.given, self.given_limits.width()),
                chunks: parts::chunks_of(&rows, &part),
                wanted: part_rows.map(|row| row - part.start).collect(),
                weights: &self.weights,
                ropes: &self.ropes,
                activation: self.options.dtype,
                observer: self.options.observer.as_deref(),
                library: self.options.arithmetic == ProductArithmetic::Library,
            };
            let mut result = self.program.run(&feed, &mut self.slots, &self.pool, probe);
            // What a device has lost is the reason of what follows from it.
            result = self.check_device().and(result);
            // Rows before the last of a chunk are looked at only where the step asks for nothing.
            let checked = self.options.finite && (logit_rows.is_empty() || !feed.wanted.is_empty());
            if checked && result.as_ref().is_ok_and(|outputs| !outputs.finite) {
                result = Err(diagnose(&self.program, &feed, &mut self.slots, &self.pool));
            }
            for chunk in &feed.chunks {
                if let Some(slot) = self.slots[chunk.slot].as_mut() {
                    match result {
                        Ok(_) => {
                            slot.mask.clone_from(&chunk.mask);
                            slot.commit(chunk.start + chunk.rows.len());
                        }
                        Err(_) => slot.undo(),
                    }
                }
            }
            match result {
                Ok(outputs) if data.is_empty() => data = outputs.logits,
                Ok(outputs) => data.extend(outputs.logits),
                Err(why) => {
                    for (slot, mark) in marks {
                        if let Some(slot) = self.slots[slot].as_mut() {
                            mark.restore(slot);
                        }
                    }
                    return Err(why);
                }
            }
        }
        let vocab = data.len().checked_div(logit_rows.len()).unwrap_or(self.model.vocab);
        let mut left = data.as_slice();
        Ok(chunks
            .iter()
            .map(|chunk| {
                let rows = match chunk.rows {
                    OutputRows::None => 0,
                    OutputRows::Last => 1,
                    OutputRows::All => chunk.tokens.len(),
                };
                let (logits, remaining) = left.split_at(rows * vocab);
                left = remaining;
                Logits { rows, vocab, data: logits.to_vec() }
            })
            .collect())
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        let copy = self.slot(slot)?.clone();
        self.check_device()?;
        Ok(self.place(copy))
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error> {
        self.slot_mut(slot)?.truncate(length).map_err(|why| Error::Truncate {
            slot: slot.0,
            length,
            reason: why.to_string(),
        })
    }

    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error> {
        let bytes = saved::save(self.slot(slot)?, self.fingerprint);
        self.check_device()?;
        Ok(bytes)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error> {
        let slot = saved::restore(self.new_slot(), self.fingerprint, bytes);
        let slot = slot.map_err(|why| Error::Restore(why.to_string()))?;
        self.check_device()?;
        Ok(self.place(slot))
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        let values = self.slot(slot)?.values(&self.program.graph);
        self.check_device()?;
        Ok(values)
    }

    fn nudge(&mut self, units: u32) {
        self.ropes.clone_from(&self.unmoved);
        for table in &mut self.ropes {
            let long = table.long.iter_mut().flat_map(|long| &mut long.inv_freq);
            let all = table.inv_freq.iter_mut().chain(long).enumerate();
            // Frequencies are computed as the reference computes them, so that a unit is the most they are off.
            all.for_each(|(n, x)| *x = moved(*x, n, units.min(1)));
        }
        for (node, name, list) in &self.tables {
            let numbers = list.iter().enumerate();
            let list = numbers.map(|(n, x)| Scalar::Float(moved(*x, n, units).into())).collect();
            self.program.graph.nodes[*node].attrs.insert(name.clone(), Scalar::List(list));
        }
    }

    fn seed(&mut self, position: usize, states: &[StateValue]) -> Result<SlotId, Error> {
        self.seed_in_document(position, 0, states)
    }

    fn seed_in_document(
        &mut self,
        position: usize,
        document: usize,
        states: &[StateValue],
    ) -> Result<SlotId, Error> {
        if document > 0 && document >= position {
            return Err(Error::Seed(format!(
                "its document begins at position {document}; expected below {position}"
            )));
        }
        let mut slot = self.empty();
        match slot.seed(&self.program.graph, position, states) {
            Ok(()) => {
                self.check_device()?;
                slot.mask = SequenceMask::in_document(document);
                Ok(self.place(slot))
            }
            Err(why) => {
                slot.clear(self.options.poison);
                self.spare.push(slot);
                Err(Error::Seed(why.to_string()))
            }
        }
    }
}
