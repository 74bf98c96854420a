//! States of slots between steps.

use registry::dtype::Dtype;
use registry::graph::{Graph, State, StateId, StateKind, StatePart};

use crate::StateValue;
use crate::device::DeviceQueue;
use crate::masks::SequenceMask;

pub mod attention;
pub mod conv;
pub mod history;
pub mod latent;
pub mod past;
pub mod pooled;
pub mod recurrent;
pub mod saved;
pub mod store;

use attention::Attention;
use conv::Conv;
use history::History;
use latent::Latent;
use past::Past;
use pooled::Pooled;
use recurrent::Recurrent;

/// Reason that a slot cannot have the asked states.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("state `{state}` of layer {layer} is not of the form of its kind `{}`", kind.name())]
    Form { state: String, layer: usize, kind: StateKind },
    #[error("it has seen only {position} tokens")]
    Ahead { position: usize },
    #[error(
        "a window, convolution or recurrence has dropped what lies before, {shortest} is the shortest length left; \
         open the session with a larger `rollback`"
    )]
    Dropped { shortest: usize },
    #[error(
        "the first {prefix} tokens see each other, so none of them can be forgotten alone; truncate to 0 or to \
         {prefix} and more"
    )]
    Prefix { prefix: usize },
    #[error(
        "the tokens at {start} to {end} see each other, so none of them can be forgotten alone; truncate to {start} or \
         to {end}"
    )]
    Span { start: usize, end: usize },
    #[error("there is no `{part}` of layer {layer}")]
    NoPart { part: String, layer: usize },
    #[error(
        "`{part}` of layer {layer} has {found} numbers; expected {least} to {most} times {size}"
    )]
    Numbers { part: String, layer: usize, found: usize, least: usize, most: usize, size: usize },
}

/// The memory of one state of the graph.
#[derive(Debug, Clone, PartialEq)]
pub enum Memory {
    /// Keys and values.
    Attention(Attention),
    /// Inputs of a convolution.
    Conv(Conv),
    /// Latent rows that keys and values are expanded from.
    Latent(Latent),
    /// Keys of an index, `[position, size]`.
    Index(History),
    /// Blocks that a recurrence carries.
    Recurrent(Recurrent),
    /// Keys of the last positions, and pooled keys of blocks.
    Pooled(Pooled),
}

impl Memory {
    /// Returns the memories of the past, always in the same order.
    pub fn pasts(&self) -> Vec<&dyn Past> {
        match self {
            Self::Attention(a) => vec![&a.keys, &a.values],
            Self::Conv(c) => vec![&c.inputs],
            Self::Latent(l) => vec![&l.latent, &l.shared],
            Self::Index(keys) => vec![keys],
            Self::Recurrent(r) => vec![r],
            Self::Pooled(p) => vec![&p.keys, &p.blocks],
        }
    }

    /// Returns the memories of [`Memory::pasts`], to write.
    pub fn pasts_mut(&mut self) -> Vec<&mut dyn Past> {
        match self {
            Self::Attention(a) => vec![&mut a.keys, &mut a.values],
            Self::Conv(c) => vec![&mut c.inputs],
            Self::Latent(l) => vec![&mut l.latent, &mut l.shared],
            Self::Index(keys) => vec![keys],
            Self::Recurrent(r) => vec![r],
            Self::Pooled(p) => vec![&mut p.keys, &mut p.blocks],
        }
    }
}

/// One sequence: its length and the memory of every state of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// Tokens seen.
    pub position: usize,
    /// The mask of the sequence.
    pub mask: SequenceMask,
    /// The memories of states, by `StateId`.
    pub memories: Vec<Memory>,
}

/// Refuses a graph with a state whose parts are not those of its kind.
pub fn check(graph: &Graph) -> Result<(), Error> {
    for state in &graph.states {
        let shapes: Vec<usize> = state.parts.iter().map(|p| p.shape.len()).collect();
        let fits = match state.kind {
            StateKind::Attention => shapes.len() == 2,
            StateKind::Latent => shapes == [2, 2],
            StateKind::Index => shapes == [2] && state.window.is_none(),
            StateKind::Conv => shapes == [2],
            StateKind::Recurrent => !shapes.is_empty(),
            StateKind::Pooled => {
                shapes == [2, 2] && state.window.is_some() && state.block.is_some_and(|n| n > 0)
            }
        };
        // A kernel of width 1 needs no earlier inputs, so a convolution may keep 0 columns.
        let axes = if state.kind == StateKind::Conv { 1 } else { usize::MAX };
        let empty = state.parts.iter().any(|p| p.shape.iter().take(axes).product::<usize>() == 0);
        if !fits || empty || state.window == Some(0) {
            return Err(Error::Form {
                state: state.name.clone(),
                layer: state.layer,
                kind: state.kind,
            });
        }
    }
    Ok(())
}

impl Slot {
    /// Creates an empty slot, for a graph that [`check`] has passed.
    pub fn new(graph: &Graph, activation: Dtype, rollback: usize) -> Self {
        let memories = graph
            .states
            .iter()
            .map(|state| {
                let dtype = state.dtype.resolve(activation);
                match state.kind {
                    StateKind::Attention => {
                        Memory::Attention(Attention::new(state, dtype, rollback))
                    }
                    StateKind::Conv => Memory::Conv(Conv::new(state, dtype, rollback)),
                    StateKind::Latent => {
                        Memory::Latent(Latent::new(state, dtype, activation, rollback))
                    }
                    StateKind::Index => {
                        let width = state.parts[0].shape.iter().product();
                        Memory::Index(History::new(dtype, width, None, rollback))
                    }
                    StateKind::Recurrent => {
                        Memory::Recurrent(Recurrent::new(state, dtype, rollback))
                    }
                    StateKind::Pooled => Memory::Pooled(Pooled::new(state, dtype, rollback)),
                }
            })
            .collect();
        Self { position: 0, mask: SequenceMask::default(), memories }
    }

    /// Moves an empty slot to a device.
    pub fn place_on(&mut self, queue: &DeviceQueue) {
        for memory in &mut self.memories {
            match memory {
                Memory::Attention(a) => {
                    a.keys.place_on(queue);
                    a.values.place_on(queue);
                }
                Memory::Conv(c) => c.inputs.place_on(queue),
                Memory::Latent(l) => {
                    l.latent.place_on(queue);
                    l.shared.place_on(queue);
                    l.expanded.place_on(queue);
                }
                Memory::Index(keys) => keys.place_on(queue),
                Memory::Recurrent(r) => r.place_on(queue),
                Memory::Pooled(p) => p.place_on(queue),
            }
        }
    }

    fn pasts(&mut self) -> impl Iterator<Item = &mut dyn Past> {
        self.memories.iter_mut().flat_map(Memory::pasts_mut)
    }

    /// Ends a step that brought the sequence to `position`.
    pub fn commit(&mut self, position: usize) {
        self.position = position;
        self.pasts().for_each(Past::commit);
        for memory in &mut self.memories {
            if let Memory::Latent(latent) = memory {
                latent.expanded.commit();
            }
        }
    }

    /// Takes back what a failed step appended.
    pub fn undo(&mut self) {
        let position = self.position;
        self.pasts().for_each(|past| past.truncate(position));
    }

    /// Forgets every position from `length` on.
    pub fn truncate(&mut self, length: usize) -> Result<(), Error> {
        if length > self.position {
            return Err(Error::Ahead { position: self.position });
        }
        let prefix = self.mask.prefix();
        if (1..prefix).contains(&length) {
            return Err(Error::Prefix { prefix });
        }
        if let Some((start, end)) = self.mask.span_of(length)
            && length > start
        {
            return Err(Error::Span { start, end });
        }
        let shortest = self.pasts().map(|past| past.shortest()).max().unwrap_or(0);
        if length < shortest && length < self.position {
            return Err(Error::Dropped { shortest });
        }
        self.position = length;
        self.mask.truncate(length);
        self.pasts().for_each(|past| past.truncate(length));
        Ok(())
    }

    /// Makes it an empty slot again.
    pub fn clear(&mut self, poison: bool) {
        self.position = 0;
        self.mask = SequenceMask::default();
        self.pasts().for_each(|past| past.clear(poison));
        for memory in &mut self.memories {
            if let Memory::Latent(latent) = memory {
                latent.expanded.clear(poison);
            }
        }
    }

    /// Fills an empty slot with these states, at `position` tokens.
    pub fn seed(
        &mut self,
        graph: &Graph,
        position: usize,
        values: &[StateValue],
    ) -> Result<(), Error> {
        for (n, (state, memory)) in graph.states.iter().zip(&mut self.memories).enumerate() {
            let parts = state
                .parts
                .iter()
                .map(|part| numbers_of(StateId(n), state, part, position, values))
                .collect::<Result<Vec<_>, _>>()?;
            match memory {
                Memory::Attention(a) => {
                    a.keys.seed(position, parts[0]);
                    a.values.seed(position, parts[1]);
                }
                Memory::Latent(l) => {
                    l.latent.seed(position, parts[0]);
                    l.shared.seed(position, parts[1]);
                }
                Memory::Index(keys) => keys.seed(position, parts[0]),
                Memory::Conv(c) => c.seed(position, parts[0]),
                Memory::Recurrent(r) => r.seed(position, parts.concat()),
                Memory::Pooled(p) => {
                    p.keys.seed(position, parts[0]);
                    p.blocks.rows.seed(position / p.blocks.size, parts[1]);
                }
            }
        }
        self.position = position;
        Ok(())
    }

    /// Returns the states of the slot, in the layouts of `docs/dump.md`.
    pub fn values(&self, graph: &Graph) -> Vec<StateValue> {
        let mut values = Vec::new();
        for (n, (state, memory)) in graph.states.iter().zip(&self.memories).enumerate() {
            let id = StateId(n);
            match memory {
                Memory::Attention(a) => {
                    for (part, history) in [&a.keys, &a.values].into_iter().enumerate() {
                        let data = history.tail(history.visible());
                        let mut shape = vec![self.position - history.visible()];
                        shape.extend(&state.parts[part].shape);
                        values.push(part_value(id, state, part, shape, data));
                    }
                }
                Memory::Latent(l) => {
                    for (part, history) in [&l.latent, &l.shared].into_iter().enumerate() {
                        let data = history.tail(history.visible());
                        let rows = self.position - history.visible();
                        let shape = [&[rows][..], &state.parts[part].shape].concat();
                        values.push(part_value(id, state, part, shape, data));
                    }
                }
                Memory::Index(keys) => {
                    let shape = [&[self.position][..], &state.parts[0].shape].concat();
                    values.push(part_value(id, state, 0, shape, keys.tail(0)));
                }
                Memory::Conv(c) => {
                    let shape = state.parts[0].shape.clone();
                    values.push(part_value(id, state, 0, shape, c.columns()));
                }
                Memory::Pooled(p) => {
                    let rows = [p.keys.tail(p.keys.visible()), p.blocks.rows.tail(0)];
                    for (part, data) in rows.into_iter().enumerate() {
                        let width = state.parts[part].shape.iter().product::<usize>().max(1);
                        let rows = data.len() / width;
                        let shape = [&[rows][..], &state.parts[part].shape].concat();
                        values.push(part_value(id, state, part, shape, data));
                    }
                }
                Memory::Recurrent(r) => {
                    let mut all = r.newest();
                    for (n, part) in state.parts.iter().enumerate().rev() {
                        let data = all.split_off(all.len() - part.shape.iter().product::<usize>());
                        values.push(part_value(id, state, n, part.shape.clone(), data));
                    }
                }
            }
        }
        values
    }
}

/// Returns the numbers that an empty slot takes as a part of a state.
fn numbers_of<'a>(
    id: StateId,
    state: &State,
    part: &StatePart,
    position: usize,
    values: &'a [StateValue],
) -> Result<&'a [f32], Error> {
    let layer = state.layer;
    let value = values.iter().find(|value| value.state == id && value.part == part.name);
    let value = value.ok_or_else(|| Error::NoPart { part: part.name.clone(), layer })?;
    let size: usize = part.shape.iter().product();
    if size == 0 {
        return Ok(&[]); // of a kernel that is one wide
    }
    let rows = value.data.len() / size;
    let blocks = position / state.block.unwrap_or(1).max(1);
    let (least, most) = match state.kind {
        StateKind::Conv | StateKind::Recurrent => (1, 1),
        StateKind::Pooled if part.name == state.parts[1].name => (blocks, blocks),
        _ => (state.window.map_or(position, |w| position.min(w - 1)), position),
    };
    if value.data.len() != rows * size || rows < least || rows > most {
        return Err(Error::Numbers {
            part: part.name.clone(),
            layer,
            found: value.data.len(),
            least,
            most,
            size,
        });
    }
    Ok(&value.data)
}

/// Returns a part of a state as a value.
fn part_value(
    id: StateId,
    state: &State,
    part: usize,
    shape: Vec<usize>,
    data: Vec<f32>,
) -> StateValue {
    let name = state.parts[part].name.clone();
    StateValue { state: id, layer: state.layer, part: name, shape, data }
}
