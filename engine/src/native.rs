//! The native engine: runs a resolved graph on the CPU.

use std::sync::Arc;

use checkpoints::checkpoint::Checkpoint;
use checkpoints::{GgufWeights, own_names};
use formats::gguf::GgufFile;
use registry::attention_modules::attention_modules;
use registry::dtype::Dtype;
use registry::graph::{Graph, Node};
use registry::model::Model;
use registry::rope::RopeTable;
use registry::scalar::Scalar;

use crate::capability::{EngineSheet, Feature, mismatches, refuse, refuse_features};
use crate::exec::{PreparedGraph, StepInputs, WorkerPool};
use crate::finite::diagnose;
use crate::ops::{ChunkRows, Kernels};
use crate::rewrite::{self, Rewrite};
use crate::states::{Slot, saved};
use crate::value::GraphValue;
use crate::weights::{SessionWeights, WeightSource};
use crate::{
    Chunk, Engine, Error, Logits, ModelSource, OutputRows, Probe, Session, SessionOptions, SlotId,
    StateValue,
};

/// The engine of this crate.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NativeEngine {
    /// The ops of the engine; more can be added.
    pub kernels: Kernels,
    /// Rewrites of the graph, applied in order when [`SessionOptions::rewrites`] is set.
    pub rewrites: Vec<Rewrite>,
}

impl Default for NativeEngine {
    fn default() -> Self {
        Self { kernels: Kernels::default(), rewrites: rewrite::all() }
    }
}

impl NativeEngine {
    /// Creates an engine with every op of the spec language.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the native engine's sheet, with the ops that this one has kernels for.
    pub fn sheet(&self) -> EngineSheet {
        let ops = self.kernels.names().map(str::to_owned).collect();
        EngineSheet { ops, ..EngineSheet::native() }
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
        let mut program = PreparedGraph::new(graph, &self.kernels, model.ropes.len())?;
        let mut weights = pool.run(|| {
            SessionWeights::load(&program.graph, tensors, options.dtype, options.arithmetic)
        })?;
        weights.round_inputs(&program.graph, options.rounds)?;
        weights.fix_states(&attention_modules(&model.graph), &mut program.graph)?;
        let states = &program.graph.states;
        let fingerprint = saved::fingerprint(&model, states, options.dtype, options.rollback);
        Ok(Box::new(NativeSession {
            tables: tables(&program.graph),
            program,
            weights,
            pool,
            slots: Vec::new(),
            spare: Vec::new(),
            ropes: model.ropes.clone(),
            fingerprint,
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
        if !options.allow_dtype_mismatch {
            findings.extend(mismatches(model, options.dtype));
        }
        if findings.is_empty() { Ok(()) } else { Err(Error::Refused(findings)) }
    }
}

impl Engine for NativeEngine {
    fn name(&self) -> &'static str {
        "native"
    }

    fn exact(&self) -> bool {
        true
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
        self.open_with(Arc::clone(&source.model), Box::new(weights), options)
    }
}

/// Lists of numbers that nodes have, by node and attribute.
fn tables(graph: &Graph) -> Vec<(usize, String, Vec<f32>)> {
    let numbers = |attr: &Scalar| match attr {
        Scalar::List(items) => items
            .iter()
            .map(|item| if let Scalar::Float(x) = item { Some(*x as f32) } else { None })
            .collect::<Option<Vec<f32>>>(),
        _ => None,
    };
    let of = |(n, node): (usize, &Node)| -> Vec<_> {
        let lists =
            node.attrs.iter().filter_map(|(name, attr)| Some((n, name.clone(), numbers(attr)?)));
        lists.collect()
    };
    graph.nodes.iter().enumerate().flat_map(of).collect()
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
    /// The model's, which [`Session::nudge`] moves.
    ropes: Vec<RopeTable>,
    /// Lists of numbers that nodes have, by node and attribute: slopes and frequencies.
    tables: Vec<(usize, String, Vec<f32>)>,
    program: PreparedGraph,
    weights: SessionWeights,
    pool: WorkerPool,
    slots: Vec<Option<Slot>>,
    /// Memory of released slots, cleared, for the next ones.
    spare: Vec<Slot>,
    fingerprint: u64,
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
        self.spare.pop().unwrap_or_else(|| {
            Slot::new(&self.program.graph, self.options.dtype, self.options.rollback)
        })
    }

    /// Returns the input besides tokens, as a value of the graph.
    fn hidden_value(&self, hidden: &[f32], rows: usize) -> Result<Option<GraphValue>, Error> {
        let graph = &self.program.graph;
        let shape = graph.fed.map_or(&[][..], |fed| &graph.values[fed.value.0].shape);
        let wanted = if graph.fed.is_some() { rows * shape.iter().product::<usize>() } else { 0 };
        if hidden.len() != wanted {
            return Err(Error::Hidden { got: hidden.len(), wanted, rows });
        }
        if graph.fed.is_none() {
            return Ok(None);
        }
        GraphValue::new(hidden.to_vec(), &[&[rows], shape].concat()).map(Some)
    }

    /// Checks everything about a step that can be known before it runs.
    fn feed(&self, chunks: &[Chunk<'_>]) -> Result<Batch, Error> {
        let (mut tokens, mut rows, mut wanted) = (Vec::new(), Vec::<ChunkRows>::new(), Vec::new());
        for chunk in chunks {
            let slot = chunk.slot.0;
            let start = self.slot(chunk.slot)?.position;
            if chunk.tokens.is_empty() {
                return Err(Error::EmptyChunk(slot));
            }
            if rows.iter().any(|c| c.slot == slot) {
                return Err(Error::RepeatedSlot(slot));
            }
            for (n, &id) in chunk.tokens.iter().enumerate() {
                if id as usize >= self.model.vocab {
                    return Err(Error::Token {
                        id,
                        position: start + n,
                        slot,
                        vocab: self.model.vocab,
                    });
                }
            }
            let end = start.saturating_add(chunk.tokens.len());
            if let Some(context) = self.model.context
                && end > context
            {
                return Err(Error::Context { slot, wanted: end, context });
            }
            let first = tokens.len();
            tokens.extend_from_slice(chunk.tokens);
            rows.push(ChunkRows { slot, rows: first..tokens.len(), start });
            match chunk.rows {
                OutputRows::None => {}
                OutputRows::Last => wanted.push(tokens.len() - 1),
                OutputRows::All => wanted.extend(first..tokens.len()),
            }
        }
        Ok((tokens, rows, wanted))
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
        self.step_with_hidden(chunks, &[], probe)
    }

    fn step_with_hidden(
        &mut self,
        chunks: &[Chunk<'_>],
        hidden: &[f32],
        probe: &mut dyn Probe,
    ) -> Result<Vec<Logits>, Error> {
        let (tokens, rows, wanted) = self.feed(chunks)?;
        let hidden = self.hidden_value(hidden, tokens.len())?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let feed = StepInputs {
            tokens,
            hidden,
            chunks: rows,
            wanted,
            weights: &self.weights,
            ropes: &self.ropes,
            activation: self.options.dtype,
            observer: self.options.observer.as_deref(),
        };
        let mut result = self.program.run(&feed, &mut self.slots, &self.pool, probe);
        if self.options.finite && result.as_ref().is_ok_and(|made| !made.finite) {
            result = Err(diagnose(&self.program, &feed, &mut self.slots, &self.pool));
        }
        for chunk in &feed.chunks {
            if let Some(slot) = self.slots[chunk.slot].as_mut() {
                match result {
                    Ok(_) => slot.commit(chunk.start + chunk.rows.len()),
                    Err(_) => slot.undo(),
                }
            }
        }
        let data = result?.logits;
        let vocab = data.len().checked_div(feed.wanted.len()).unwrap_or(self.model.vocab);
        let mut left = data.as_slice();
        Ok(chunks
            .iter()
            .map(|chunk| {
                let rows = match chunk.rows {
                    OutputRows::None => 0,
                    OutputRows::Last => 1,
                    OutputRows::All => chunk.tokens.len(),
                };
                let (own, rest) = left.split_at(rows * vocab);
                left = rest;
                Logits { rows, vocab, data: own.to_vec() }
            })
            .collect())
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        let copy = self.slot(slot)?.clone();
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
        Ok(saved::save(self.slot(slot)?, self.fingerprint))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error> {
        let empty = Slot::new(&self.program.graph, self.options.dtype, self.options.rollback);
        let slot = saved::restore(empty, self.fingerprint, bytes);
        let slot = slot.map_err(|why| Error::Restore(why.to_string()))?;
        Ok(self.place(slot))
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        Ok(self.slot(slot)?.values(&self.program.graph))
    }

    fn nudge(&mut self, units: u32) {
        self.ropes.clone_from(&self.model.ropes);
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
        let mut slot = self.empty();
        match slot.seed(&self.program.graph, position, states) {
            Ok(()) => Ok(self.place(slot)),
            Err(why) => {
                slot.clear(self.options.poison);
                self.spare.push(slot);
                Err(Error::Seed(why.to_string()))
            }
        }
    }
}
