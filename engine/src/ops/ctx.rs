//! Context of a kernel in one step.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use checkpoints::checkpoint::Rounding;
use registry::dtype::Dtype;
use registry::graph::{Graph, Node, State, WeightId};

use crate::angles::{Angles, DeviceAngles};
use crate::device::{DeviceBuffer, DeviceQueue};
use crate::kernels::tokens::round_rows;
use crate::masks::SequenceMask;
use crate::states::{Memory, Slot};
use crate::value::{DeviceValue, GraphValue};
use crate::weights::{DeviceMatrix, SessionWeights, WeightMatrix};
use crate::{Error, InputObserver};

/// Ranges of rows of a step, each with its positions by axis.
pub(crate) type PlacedRows<'a> = &'a [(Range<usize>, &'a [&'a [u32]])];

/// One chunk of a step, as kernels see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRows {
    /// Index into the session's slots.
    pub slot: usize,
    /// Its rows in every value of the step (before the head of the graph).
    pub rows: Range<usize>,
    /// The position of its first token.
    pub start: usize,
    /// True if earlier steps began the sequence. False in all parts of a divided step that begins one.
    /// The rounding of `stepwise` depends on it ([decision 17](../../../docs/decisions/0017-stepwise-rounding.md)).
    pub continued: bool,
    /// The mask of the slot's sequence, this chunk included.
    pub mask: SequenceMask,
}

impl ChunkRows {
    /// Returns the parts of the chunk that lie in one document each, as positions within it.
    pub fn positions(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let start = self.start;
        let end = self.start + self.rows.len();
        let inside =
            self.mask.documents().iter().copied().filter(move |at| (start + 1..end).contains(at));
        let starts = [start].into_iter().chain(inside.clone());
        starts.zip(inside.chain([end])).map(|(from, to)| {
            let document = self.mask.document_of(from);
            from - document..to - document
        })
    }
}

/// One node of one step: inputs, weights, states, and a place for outputs.
pub struct Ctx<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) index: usize,
    pub(crate) tokens: &'a [u32],
    pub(crate) values: &'a mut [Option<GraphValue>],
    pub(crate) weights: &'a SessionWeights,
    pub(crate) slots: &'a mut [Option<Slot>],
    pub(crate) chunks: &'a [ChunkRows],
    pub(crate) angles: &'a [Angles],
    pub(crate) device: Option<&'a DeviceQueue>,
    pub(crate) device_angles: &'a [DeviceAngles],
    pub(crate) placed: PlacedRows<'a>,
    pub(crate) activation: Dtype,
    pub(crate) observer: Option<&'a dyn InputObserver>,
    pub(crate) library: bool,
}

impl<'a> Ctx<'a> {
    /// Returns the node.
    pub fn node(&self) -> &'a Node {
        &self.graph.nodes[self.index]
    }

    /// Creates an error that names this node.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Op { op: self.node().op.to_string(), node: self.index, message: message.into() }
    }

    /// Returns the dtype of activations.
    pub fn activation(&self) -> Dtype {
        self.activation
    }

    /// Returns the token of every row.
    pub fn tokens(&self) -> &'a [u32] {
        self.tokens
    }

    /// Returns the chunks of the step.
    pub fn chunks(&self) -> &'a [ChunkRows] {
        self.chunks
    }

    /// Returns the rows that were given positions, and these positions by axis.
    pub(crate) fn placed(&self) -> PlacedRows<'a> {
        self.placed
    }

    /// Returns the position of the first row of a sequence.
    pub fn first_position(&self) -> usize {
        self.graph.fed.map_or(0, |fed| fed.position)
    }

    /// Returns an input. Numbers are shared, not copied.
    pub fn input(&self, n: usize) -> Result<GraphValue, Error> {
        let id =
            self.node().inputs.get(n).ok_or_else(|| self.error(format!("input {n} is missing")))?;
        self.values
            .get(id.0)
            .and_then(Clone::clone)
            .ok_or_else(|| self.error(format!("its input `{}` has not been made", self.name(id.0))))
    }

    fn name(&self, value: usize) -> &str {
        self.graph.values.get(value).map_or("?", |v| &v.name)
    }

    /// Returns the shape of one row of an output, from the graph.
    pub fn output_shape(&self, n: usize) -> Result<&'a [usize], Error> {
        let graph: &'a Graph = self.graph;
        let id = self
            .node()
            .outputs
            .get(n)
            .ok_or_else(|| self.error(format!("output {n} is missing")))?;
        Ok(&graph.values[id.0].shape)
    }

    /// Numbers per row of an output.
    pub fn output_width(&self, n: usize) -> Result<usize, Error> {
        Ok(self.output_shape(n)?.iter().product())
    }

    /// Returns the dtype that an output is rounded to.
    pub fn output_dtype(&self, n: usize) -> Dtype {
        self.node()
            .outputs
            .get(n)
            .map_or(self.activation, |id| self.graph.values[id.0].dtype.resolve(self.activation))
    }

    /// Puts an output in place: numbers already rounded, of `[rows, ...]`.
    pub fn set(&mut self, n: usize, data: Vec<f32>) -> Result<(), Error> {
        let row = self.output_shape(n)?;
        let width: usize = row.iter().product();
        let rows = data.len().checked_div(width).unwrap_or(0);
        if rows * width != data.len() {
            return Err(self.error(format!("{} numbers are no rows of {width}", data.len())));
        }
        let mut shape = vec![rows];
        shape.extend(row);
        self.share(n, GraphValue::new(data, &shape)?)
    }

    /// Puts an output in place that shares numbers with another value.
    pub fn share(&mut self, n: usize, value: GraphValue) -> Result<(), Error> {
        let id = self
            .node()
            .outputs
            .get(n)
            .ok_or_else(|| self.error(format!("output {n} is missing")))?;
        self.values[id.0] = Some(value);
        Ok(())
    }

    fn weight(&self, role: &str) -> Result<WeightId, Error> {
        let id = self.node().weights.get(role);
        id.copied().ok_or_else(|| self.error(format!("weight `{role}` is missing")))
    }

    /// Returns a matrix by its role.
    pub fn matrix(&self, role: &str) -> Result<WeightMatrix<'a>, Error> {
        self.weights.matrix(self.weight(role)?)
    }

    /// True if someone watches what matrices and states get.
    pub fn is_watched(&self) -> bool {
        self.observer.is_some()
    }

    /// Shows rows of `inputs` numbers that a matrix is about to be multiplied with, if someone
    /// watches.
    pub fn observe_product(&self, role: &str, inputs: usize, rows: &[f32]) {
        if let (Some(watch), Some(weight)) = (self.observer, self.node().weights.get(role)) {
            watch.product(*weight, inputs, rows);
        }
    }

    /// Shows rows that a state is about to keep, if someone watches.
    pub fn observe_cached(&self, part: usize, rows: &[f32]) {
        if let (Some(watch), Some(state)) = (self.observer, self.node().state) {
            watch.cached(state, part, rows);
        }
    }

    /// Rows as a matrix multiplies them: rounded to few bits if that is how it is run.
    pub fn rows_for<'x>(&self, role: &str, inputs: usize, rows: &'x [f32]) -> Cow<'x, [f32]> {
        let Some(rounding) = self.rounding(role) else { return Cow::Borrowed(rows) };
        let mut rounded = rows.to_vec();
        round_rows(rounding, self.activation, inputs, &mut rounded);
        Cow::Owned(rounded)
    }

    /// Returns the rounding of the rows that a matrix multiplies, if it has one.
    pub fn rounding(&self, role: &str) -> Option<Rounding> {
        let weight = self.node().weights.get(role)?;
        self.weights.rounding(*weight)
    }

    /// Returns a small weight by its role; none if the node does not have it.
    pub fn vector(&self, role: &str) -> Option<&'a [f32]> {
        self.node().weights.get(role).and_then(|id| self.weights.vector(*id))
    }

    /// Returns a small weight that must exist.
    pub fn need_vector(&self, role: &str) -> Result<&'a [f32], Error> {
        self.vector(role).ok_or_else(|| self.error(format!("weight `{role}` is missing")))
    }

    /// Returns the rotary angles of the step's rows.
    pub fn angles(&self) -> Result<&'a Angles, Error> {
        let all: &'a [Angles] = self.angles;
        self.node()
            .rope
            .and_then(|id| all.get(id.0))
            .ok_or_else(|| self.error("it has no rotary table"))
    }

    /// Returns the device that the kernels run on.
    pub fn queue(&self) -> Result<&'a DeviceQueue, Error> {
        self.device.ok_or_else(|| self.error("its kernel needs a device"))
    }

    /// Returns an input in the memory of the device.
    pub fn device_input(&self, n: usize) -> Result<DeviceValue, Error> {
        let value = self.input(n)?;
        value.device().cloned().ok_or_else(|| self.error(format!("input {n} is not on the device")))
    }

    /// Allocates an output, of as many rows as given.
    pub fn device_output(&self, n: usize, rows: usize) -> Result<DeviceValue, Error> {
        let dtype = self.output_dtype(n);
        let shape: Vec<usize> = [rows].iter().chain(self.output_shape(n)?).copied().collect();
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let buffer = Arc::new(self.queue()?.allocate(bytes)?);
        Ok(DeviceValue { buffer, dtype, shape })
    }

    /// Puts an output of the device in place.
    pub fn set_device(&mut self, n: usize, value: DeviceValue) -> Result<(), Error> {
        self.share(n, GraphValue::on_device(value))
    }

    /// Returns a matrix of the device by its role.
    pub fn device_matrix(&self, role: &str) -> Result<&'a DeviceMatrix, Error> {
        let id = self.weight(role)?;
        let matrix = self.weights.device_matrix(id);
        matrix.ok_or_else(|| self.error(format!("weight `{role}` is no matrix of the device")))
    }

    /// Returns a small weight of the device by its role, in f32; none if the node does not have it.
    pub fn device_vector(&self, role: &str) -> Option<&'a DeviceBuffer> {
        self.node().weights.get(role).and_then(|id| self.weights.device_vector(*id))
    }

    /// Returns the rotary angles of the step's rows on the device.
    pub fn device_angles(&self) -> Result<&'a DeviceAngles, Error> {
        let all: &'a [DeviceAngles] = self.device_angles;
        let angles = self.node().rope.and_then(|id| all.get(id.0));
        angles.ok_or_else(|| self.error("it has no rotary table"))
    }

    /// Returns the state of this node, as the graph declares it.
    pub fn state(&self) -> Option<&'a State> {
        let graph: &'a Graph = self.graph;
        self.node().state.and_then(|id| graph.states.get(id.0))
    }

    /// Returns the memory of a slot for this node.
    pub fn memory(&self, slot: usize) -> Result<&Memory, Error> {
        let id = self.node().state.ok_or_else(|| self.error("it has no state"))?;
        self.slots
            .get(slot)
            .and_then(Option::as_ref)
            .and_then(|s| s.memories.get(id.0))
            .ok_or_else(|| self.error(format!("slot {slot} has no such state")))
    }

    /// Returns the memory of a slot for this node, to write.
    ///
    /// # Panics
    /// Never: it has been asked before.
    pub fn memory_mut(&mut self, slot: usize) -> Result<&mut Memory, Error> {
        self.memory(slot)?;
        let id = self.node().state.map_or(0, |id| id.0);
        let memory = self.slots[slot].as_mut().map(|s| &mut s.memories[id]);
        Ok(memory.expect("the slot has the state, as just asked"))
    }
}
