//! Runs a graph over a ragged batch: rows of all chunks one after another.
//!
//! Ops see all rows at once; those with a state go chunk by chunk. From the head of the graph
//! on only rows whose logits are wanted exist, and a value is freed after its last use.

use std::ops::Range;
use std::sync::Arc;

use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::graph::{Graph, ValueId};
use registry::ops::Trait;
use registry::rope::RopeTable;

use crate::angles::{Angles, DeviceAngles};
use crate::device::{DeviceQueue, count};
use crate::kernels::round::round;
use crate::ops::{ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Slot;
use crate::step_rows::{NumberedRows, StepGiven};
use crate::value::{DeviceValue, GraphValue, stored_bytes};
use crate::weights::SessionWeights;
use crate::{Error, InputObserver, Probe};

/// A graph, ready to run.
pub(crate) struct PreparedGraph {
    pub(crate) graph: Graph,
    kernels: Vec<Arc<dyn Kernel>>,
    /// Values that no node reads later, by node.
    dead: Vec<Vec<usize>>,
    head: usize,
    output: usize,
    /// The node that makes the embedding, and the value.
    embedding: Option<(usize, usize)>,
    /// The node that makes what a layer gives, and the value, for the first layers behind which rows may be added.
    beside: Vec<(usize, usize)>,
    /// The device that kernels run on; none for the CPU.
    device: Option<DeviceQueue>,
}

/// The inputs of one step.
pub(crate) struct StepInputs<'a> {
    pub(crate) tokens: Vec<u32>,
    /// Rows of what is fed besides the tokens, where the graph is fed something.
    pub(crate) hidden: Option<GraphValue>,
    /// Rows in the place of embeddings, and positions.
    pub(crate) given: StepGiven<'a>,
    pub(crate) chunks: Vec<ChunkRows>,
    /// Rows whose logits are wanted, ascending.
    pub(crate) wanted: Vec<usize>,
    pub(crate) weights: &'a SessionWeights,
    pub(crate) ropes: &'a [RopeTable],
    pub(crate) activation: Dtype,
    pub(crate) observer: Option<&'a dyn InputObserver>,
    /// True if products of many rows are left to the library of the device.
    pub(crate) library: bool,
}

impl PreparedGraph {
    /// Looks every op up and plans when values die. Findings if the graph is not one that can
    /// run in order.
    pub(crate) fn new(
        graph: Graph,
        kernels: &Kernels,
        ropes: usize,
        hidden: usize,
        device: Option<DeviceQueue>,
    ) -> Result<Self, Error> {
        let mut findings = Vec::new();
        let mut node_kernels = Vec::new();
        let mut exists = vec![false; graph.values.len()];
        if let Some(tokens) = exists.first_mut() {
            *tokens = true;
        }
        if let Some(fed) = graph.fed {
            match exists.get_mut(fed.value.0) {
                Some(fed_exists) => *fed_exists = true,
                None => findings.push(Finding::unplaced("the graph is fed a value it lacks")),
            }
        }
        let mut last = vec![None; graph.values.len()];
        let mut first_free = graph.head;
        for (n, node) in graph.nodes.iter().enumerate() {
            let known = node.inputs.iter().all(|v| exists.get(v.0).copied().unwrap_or(false))
                && node.outputs.iter().all(|v| exists.get(v.0) == Some(&false))
                && node.weights.values().all(|w| w.0 < graph.weights.len())
                && node.state.is_none_or(|s| s.0 < graph.states.len())
                && node.rope.is_none_or(|r| r.0 < ropes);
            if !known {
                findings.push(Finding::error(
                    &node.at,
                    format!(
                        "op `{}` (node {n}) reads what does not exist yet, or makes a value twice",
                        node.op
                    ),
                ));
                continue;
            }
            match kernels.of(&graph, n) {
                Some(kernel) => node_kernels.push(kernel?),
                None => findings.push(Finding::error(
                    &node.at,
                    format!("there is no kernel for op `{}`", node.op),
                )),
            }
            for v in &node.inputs {
                last[v.0] = Some(n);
            }
            for v in &node.outputs {
                exists[v.0] = true;
                last[v.0] = Some(n);
            }
            // Rows can be left out only behind the last op that needs them all.
            if node.state.is_some()
                || node.rope.is_some()
                || node.op.is(Trait::Positional)
                || node.inputs.first().is_some_and(|v| v.0 == 0)
            {
                first_free = first_free.max(n + 1);
            }
        }
        let output = match graph.output {
            Some(v) if exists.get(v.0) == Some(&true) && v.0 != 0 => v.0,
            _ => {
                findings.push(Finding::unplaced("the graph makes no logits"));
                0
            }
        };
        if let Err(why) = crate::states::check(&graph) {
            findings.push(Finding::unplaced(why.to_string()));
        }
        if !findings.is_empty() {
            return Err(Error::Refused(findings));
        }
        let mut dead = vec![Vec::new(); graph.nodes.len()];
        for (value, node) in last.iter().enumerate() {
            if let Some(node) = node
                && value != output
            {
                dead[*node].push(value);
            }
        }
        let head = first_free.min(graph.nodes.len());
        let embedding = graph.embedding(hidden).and_then(|value| made_by(&graph, value));
        let beside: Vec<(usize, usize)> = (0..graph.beside)
            .map_while(|layer| made_by(&graph, graph.layer_output(layer)?))
            .collect();
        if beside.len() < graph.beside {
            let message =
                format!("layer {} gives no value that rows could be added to", beside.len());
            return Err(Error::Refused(vec![Finding::unplaced(message)]));
        }
        Ok(Self { graph, kernels: node_kernels, dead, head, output, embedding, beside, device })
    }

    /// True if the results of a kernel depend on the length of a chunk.
    pub(crate) fn needs_whole_chunks(&self) -> bool {
        self.kernels.iter().any(|kernel| kernel.needs_whole_chunks())
    }

    /// Returns for each node whether a probe wants one of its outputs.
    fn watched(&self, probe: &dyn Probe) -> Vec<bool> {
        self.graph
            .nodes
            .iter()
            .map(|node| {
                node.outputs
                    .iter()
                    .any(|v| self.graph.values[v.0].tap.as_ref().is_some_and(|t| probe.wants(t)))
            })
            .collect()
    }

    /// Returns the angles of all rotary tables.
    fn angles(&self, feed: &StepInputs<'_>) -> Vec<Angles> {
        let first = self.graph.fed.map_or(0, |fed| fed.position);
        let parts = feed.chunks.iter().flat_map(ChunkRows::positions);
        let spans: Vec<Range<usize>> =
            parts.map(|part| first + part.start..first + part.end).collect();
        feed.ropes
            .iter()
            .map(|table| Angles::placed(table, &spans, &feed.given.placed, feed.activation))
            .collect()
    }

    /// Returns the angles in the memory of the device; none on a CPU.
    fn device_angles(&self, angles: &[Angles]) -> Result<Vec<DeviceAngles>, Error> {
        self.device
            .as_ref()
            .map(|queue: &DeviceQueue| -> Result<Vec<DeviceAngles>, Error> {
                angles.iter().map(|angles| angles.upload(queue)).collect()
            })
            .transpose()
            .map(Option::unwrap_or_default)
    }

    /// Runs one step; gives the logits of the wanted rows. States have the step's rows appended,
    /// and the caller commits or undoes them.
    pub(crate) fn run(
        &self,
        feed: &StepInputs<'_>,
        slots: &mut [Option<Slot>],
        pool: &WorkerPool,
        probe: &mut dyn Probe,
    ) -> Result<StepOutputs, Error> {
        let angles = self.angles(feed);
        let device_angles = self.device_angles(&angles)?;
        let mut values: Vec<Option<GraphValue>> = vec![None; self.graph.values.len()];
        if let Some(fed) = self.graph.fed {
            let hidden = feed.hidden.clone().map(|hidden| self.placed(fed.value.0, hidden, feed));
            values[fed.value.0] = hidden.transpose()?;
        }
        let watched = self.watched(probe);
        let added: Vec<bool> =
            (0..watched.len()).map(|node| self.added(node, feed).is_some()).collect();
        let mut from = 0;
        // The nodes up to the next watched one run in one visit to the worker threads.
        while from < self.graph.nodes.len() {
            if from >= self.head && feed.wanted.is_empty() {
                break;
            }
            let to = (from..self.graph.nodes.len())
                .find(|n: &usize| {
                    watched[*n] || added[*n] || (*n + 1 == self.head && feed.wanted.is_empty())
                })
                .map_or(self.graph.nodes.len(), |n| n + 1);
            pool.run(|| {
                for index in from..to {
                    if index == self.head {
                        select(&mut values, feed)?;
                    }
                    let mut ctx = Ctx {
                        graph: &self.graph,
                        index,
                        tokens: &feed.tokens,
                        values: &mut values,
                        weights: feed.weights,
                        slots: &mut *slots,
                        chunks: &feed.chunks,
                        angles: &angles,
                        device: self.device.as_ref(),
                        device_angles: &device_angles,
                        placed: &feed.given.placed,
                        activation: feed.activation,
                        observer: feed.observer,
                        library: feed.library,
                    };
                    self.kernels[index].run(&mut ctx)?;
                    for v in &self.graph.nodes[index].outputs {
                        if values[v.0].is_none() {
                            return Err(Error::Op {
                                op: self.graph.nodes[index].op.to_string(),
                                node: index,
                                message: "its kernel made no output".to_owned(),
                            });
                        }
                    }
                    if let Some((node, value)) = self.embedding
                        && node == index
                        && !feed.given.rows.is_empty()
                    {
                        self.change(value, &mut values, feed, &feed.given.rows, |_, row| row)?;
                    }
                    // A watched value is shown before it may be freed.
                    if !watched[index] && !added[index] {
                        self.dead[index].iter().for_each(|&v| values[v] = None);
                    }
                }
                Ok(())
            })?;
            if watched[to - 1] {
                self.show(to - 1, &mut values, feed, probe)?;
            }
            if let Some((value, rows)) = self.added(to - 1, feed) {
                self.change(value, &mut values, feed, rows, |x, row| x + row)?;
            }
            if watched[to - 1] || added[to - 1] {
                self.dead[to - 1].iter().for_each(|&v| values[v] = None);
            }
            from = to;
        }
        if feed.wanted.is_empty() {
            // What is left is what logits would be made of.
            let finite = values.iter().flatten().all(|value| finite(&value.view()));
            return Ok(StepOutputs { logits: Vec::new(), finite });
        }
        if self.head == self.graph.nodes.len() {
            select(&mut values, feed)?;
        }
        let logits = values[self.output].take();
        let logits = logits.map_or_else(Vec::new, |v| v.to_vec());
        Ok(StepOutputs { finite: finite(&logits), logits })
    }

    /// Returns the output of a node that rows are added to in this step, and the rows.
    fn added<'f>(
        &self,
        node: usize,
        feed: &'f StepInputs<'_>,
    ) -> Option<(usize, NumberedRows<'f>)> {
        let layer = self.beside.iter().position(|(made, _)| *made == node)?;
        let rows = feed.given.beside.get(layer).filter(|rows| !rows.is_empty())?;
        Some((self.beside[layer].1, rows))
    }

    /// Changes some rows of a value by what is given for them, with one rounding.
    fn change(
        &self,
        value: usize,
        values: &mut [Option<GraphValue>],
        feed: &StepInputs<'_>,
        rows: NumberedRows<'_>,
        change: impl Fn(f32, f32) -> f32,
    ) -> Result<(), Error> {
        let Some(before) = &values[value] else { return Ok(()) };
        let (mut data, shape, width) = (before.to_vec(), before.shape().to_vec(), before.width());
        let dtype = self.graph.values[value].dtype.resolve(feed.activation);
        for (row, given) in rows {
            let numbers = &mut data[row * width..(row + 1) * width];
            numbers.iter_mut().zip(*given).for_each(|(x, row)| *x = change(*x, *row));
            round(dtype, numbers);
        }
        values[value] = Some(self.placed(value, GraphValue::new(data, &shape)?, feed)?);
        Ok(())
    }

    /// Shows a node's tapped outputs; what the probe writes takes their place.
    fn show(
        &self,
        node: usize,
        values: &mut [Option<GraphValue>],
        feed: &StepInputs<'_>,
        probe: &mut dyn Probe,
    ) -> Result<(), Error> {
        for v in &self.graph.nodes[node].outputs {
            let Some(tap) = &self.graph.values[v.0].tap else { continue };
            if let Some(value) = &values[v.0]
                && probe.wants(tap)
            {
                let mut data = value.to_vec();
                let shape = value.shape().to_vec();
                probe.tap(tap, &shape, &mut data);
                values[v.0] = Some(self.placed(v.0, GraphValue::new(data, &shape)?, feed)?);
            }
        }
        Ok(())
    }

    /// Puts a value where the kernels run.
    fn placed(
        &self,
        value: usize,
        numbers: GraphValue,
        feed: &StepInputs<'_>,
    ) -> Result<GraphValue, Error> {
        let Some(queue) = &self.device else { return Ok(numbers) };
        let dtype = self.graph.values[value].dtype.resolve(feed.activation);
        let buffer = Arc::new(queue.upload(&stored_bytes(dtype, &numbers.view()))?);
        let shape = numbers.shape().to_vec();
        Ok(GraphValue::on_device(DeviceValue { buffer, dtype, shape }))
    }
}

/// The results of a step.
pub(crate) struct StepOutputs {
    /// The logits of the wanted rows.
    pub(crate) logits: Vec<f32>,
    /// True if these, or what they would be made of, are finite.
    pub(crate) finite: bool,
}

fn finite(data: &[f32]) -> bool {
    data.iter().all(|x| x.is_finite())
}

/// Returns the node that gives a value, and the value.
fn made_by(graph: &Graph, value: ValueId) -> Option<(usize, usize)> {
    let node = graph.nodes.iter().position(|node| node.outputs.contains(&value))?;
    Some((node, value.0))
}

/// Leaves only the wanted rows of every value.
fn select(values: &mut [Option<GraphValue>], feed: &StepInputs<'_>) -> Result<(), Error> {
    if feed.wanted.len() == feed.tokens.len() {
        return Ok(());
    }
    for slot in values.iter_mut().flatten() {
        let value = &*slot;
        let width = value.width();
        if let Some(value) = value.device().cloned() {
            let queue = value.buffer.queue();
            let row_numbers: Vec<u8> =
                feed.wanted.iter().flat_map(|row| (*row as u32).to_le_bytes()).collect();
            let rows = queue.upload(&row_numbers)?;
            let total = feed.wanted.len() * width;
            let buffer = queue.allocate(total * value.dtype.size())?;
            let dtype = value.dtype;
            let from = &*value.buffer;
            let arguments = [
                from.into(),
                dtype.into(),
                (&rows).into(),
                (width as u32).into(),
                (&buffer).into(),
                dtype.into(),
                count(total),
            ];
            queue.launch_each("chosen_rows", total, &arguments)?;
            let mut shape = value.shape.clone();
            shape[0] = feed.wanted.len();
            let buffer = Arc::new(buffer);
            *slot = GraphValue::on_device(DeviceValue { buffer, dtype, shape });
            continue;
        }
        let mut data = Vec::with_capacity(feed.wanted.len() * width);
        {
            let view = value.view();
            feed.wanted
                .iter()
                .for_each(|&row| data.extend_from_slice(&view[row * width..(row + 1) * width]));
        }
        let mut shape = value.shape().to_vec();
        shape[0] = feed.wanted.len();
        *slot = GraphValue::new(data, &shape)?;
    }
    Ok(())
}

/// The worker threads of a session.
pub(crate) enum WorkerPool {
    /// Threads that all sessions share.
    Shared,
    /// Threads of this session alone.
    Owned(rayon::ThreadPool),
}

impl WorkerPool {
    pub(crate) fn new(threads: Option<usize>) -> Result<Self, Error> {
        match threads {
            None => Ok(Self::Shared),
            Some(n) => rayon::ThreadPoolBuilder::new()
                // Idle ones spin for work: far more than cores starve each other.
                .num_threads(n.clamp(1, 4 * rayon::current_num_threads().max(4)))
                .build()
                .map(Self::Owned)
                .map_err(|e| Error::Threads(e.to_string())),
        }
    }

    /// Runs on a worker thread, so that the loops inside start without waking one first.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Shared => rayon::scope(|_| work()),
            Self::Owned(pool) => pool.install(work),
        }
    }
}
