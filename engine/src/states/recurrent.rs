//! State of a recurrence: one block of numbers that every position replaces.
//!
//! A block cannot be unwound, so the blocks after the last few positions are kept in separate memory.
//! A step reads the newest and writes beside it, so a rejected draft leaves no trace.
//!
//! The reasons are in [decision 14](../../../docs/decisions/0014-recurrent-snapshots.md).

use std::borrow::Cow;
use std::collections::VecDeque;

use registry::dtype::Dtype;
use registry::graph::State;

use super::past::{self, Past};
use crate::Error;
use crate::device::{DeviceBuffer, DeviceQueue};
use crate::kernels::round::{round, to_bits};

/// Positions that every recurrence can be rolled back by, if the session asks for as many: the
/// length of a usual draft.
const ALWAYS: usize = 4;

/// Bytes that blocks kept for the sake of longer rollbacks may take, per state.
const SPARE_BYTES: usize = 16 << 20;

/// Numbers of a block, in f32.
#[derive(Debug)]
enum RecurrentBlock {
    Host(Vec<f32>),
    /// In the memory of a device.
    Device(DeviceBuffer),
}

impl RecurrentBlock {
    fn new(numbers: Vec<f32>, queue: Option<&DeviceQueue>) -> Self {
        let Some(queue) = queue else { return Self::Host(numbers) };
        let uploaded = queue.note(queue.upload(bytemuck::cast_slice(&numbers)));
        Self::Device(uploaded.unwrap_or_else(|| DeviceBuffer::none(queue)))
    }

    /// Returns a block of zeros.
    fn zeros(width: usize, queue: Option<&DeviceQueue>) -> Self {
        let Some(queue) = queue else { return Self::Host(vec![0.0; width]) };
        let filled = queue.allocate(4 * width).and_then(|buffer| {
            buffer.fill(0, 0)?;
            Ok(buffer)
        });
        Self::Device(queue.note(filled).unwrap_or_else(|| DeviceBuffer::none(queue)))
    }

    /// Returns the numbers; none if the device failed, which has been noted.
    fn numbers(&self) -> Cow<'_, [f32]> {
        match self {
            Self::Host(numbers) => Cow::Borrowed(numbers),
            Self::Device(buffer) => {
                let bytes = buffer.queue().note(buffer.read(0, buffer.bytes()));
                let numbers = bytes.unwrap_or_default();
                let numbers = numbers.chunks_exact(4);
                Cow::Owned(numbers.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
            }
        }
    }

    fn host(&self) -> Option<&[f32]> {
        if let Self::Host(numbers) = self { Some(numbers) } else { None }
    }

    fn host_mut(&mut self) -> Option<&mut [f32]> {
        if let Self::Host(numbers) = self { Some(numbers) } else { None }
    }

    /// Returns the memory of the device if it has as many numbers; none after a failure of the device.
    fn on_device(&self, width: usize) -> Option<&DeviceBuffer> {
        match self {
            Self::Device(buffer) if buffer.bytes() == 4 * width => Some(buffer),
            _ => None,
        }
    }

    fn poison(&mut self) {
        match self {
            Self::Host(numbers) => numbers.fill(f32::NAN),
            Self::Device(buffer) => {
                buffer.queue().note(buffer.fill(0, 0xff));
            }
        }
    }
}

impl Clone for RecurrentBlock {
    fn clone(&self) -> Self {
        match self {
            Self::Host(numbers) => Self::Host(numbers.clone()),
            Self::Device(buffer) => {
                let copy = buffer.queue().note(buffer.duplicate());
                Self::Device(copy.unwrap_or_else(|| DeviceBuffer::none(buffer.queue())))
            }
        }
    }
}

impl PartialEq for RecurrentBlock {
    fn eq(&self, other: &Self) -> bool {
        self.numbers() == other.numbers()
    }
}

/// The memory of one recurrence.
#[derive(Debug)]
pub struct Recurrent {
    dtype: Dtype,
    /// Numbers of a block: all parts of the state, one after another.
    width: usize,
    /// Positions it can be rolled back by.
    rollback: usize,
    /// Tokens seen.
    end: usize,
    /// The shortest length left.
    floor: usize,
    /// Blocks after positions `floor.max(1)..=end`, oldest first.
    held: VecDeque<RecurrentBlock>,
    /// Blocks of a step that has not ended, and the tokens it brought.
    fresh: (Vec<RecurrentBlock>, usize),
    /// Blocks to write into.
    spare: Vec<RecurrentBlock>,
    /// The block before the first position.
    zeros: Option<RecurrentBlock>,
    /// The device that blocks are on; none for the CPU.
    queue: Option<DeviceQueue>,
}

impl PartialEq for Recurrent {
    fn eq(&self, other: &Self) -> bool {
        self.form() == other.form() && self.held == other.held && self.fresh.0 == other.fresh.0
    }
}

/// A step of a recurrence: the block it begins with, and places for those it ends with.
#[derive(Debug)]
pub struct RecurrentStep<'a> {
    /// The block before the step, all zeros at position 0.
    pub before: &'a [f32],
    /// The buffers for the blocks after the last `after.len()` tokens, oldest first. Their contents are
    /// arbitrary.
    pub after: Vec<&'a mut [f32]>,
}

/// A [`RecurrentStep`] in the memory of a device.
#[derive(Debug)]
pub(crate) struct DeviceRecurrentStep<'a> {
    /// The block before the step.
    pub(crate) before: &'a DeviceBuffer,
    /// The blocks after the last tokens, oldest first. The step rounds them to `dtype`.
    pub(crate) after: Vec<&'a DeviceBuffer>,
    pub(crate) dtype: Dtype,
}

impl Recurrent {
    /// Creates an empty memory.
    pub fn new(state: &State, dtype: Dtype, rollback: usize) -> Self {
        let width = state.parts.iter().fold(0, |width: usize, part| {
            let numbers = part.shape.iter().fold(1, |n: usize, s| n.saturating_mul(*s));
            width.saturating_add(numbers)
        });
        let affordable = SPARE_BYTES / width.saturating_mul(4).max(1);
        Self::of(dtype, width, rollback.min(affordable.max(ALWAYS)))
    }

    fn of(dtype: Dtype, width: usize, rollback: usize) -> Self {
        Self {
            dtype,
            width,
            rollback,
            end: 0,
            floor: 0,
            held: VecDeque::new(),
            fresh: (Vec::new(), 0),
            spare: Vec::new(),
            zeros: None,
            queue: None,
        }
    }

    /// Moves an empty memory to a device.
    pub fn place_on(&mut self, queue: &DeviceQueue) {
        self.queue = Some(queue.clone());
    }

    /// Numbers of a block.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Tokens seen, those of a step that has not ended included.
    pub fn end(&self) -> usize {
        self.end + self.fresh.1
    }

    /// Makes room for the blocks of a step of `rows` tokens.
    fn begin(&mut self, rows: usize) {
        let queue = self.queue.as_ref();
        self.fresh.1 += rows;
        for _ in 0..rows.min(self.rollback + 1) {
            let spare = self.spare.pop();
            let block = spare.unwrap_or_else(|| RecurrentBlock::zeros(self.width, queue));
            self.fresh.0.push(block);
        }
        self.zeros = self.held.is_empty().then(|| RecurrentBlock::zeros(self.width, queue));
    }

    /// Begins a step of `rows` tokens on the CPU, to be ended by a commit or a truncation.
    pub fn step(&mut self, rows: usize) -> RecurrentStep<'_> {
        self.begin(rows);
        let before = self.held.back().or(self.zeros.as_ref()).and_then(RecurrentBlock::host);
        let after = self.fresh.0.iter_mut().filter_map(RecurrentBlock::host_mut).collect();
        RecurrentStep { before: before.unwrap_or_default(), after }
    }

    /// Begins a step of `rows` tokens on the device, to be ended by a commit or a truncation.
    pub(crate) fn device_step(&mut self, rows: usize) -> Result<DeviceRecurrentStep<'_>, Error> {
        self.begin(rows);
        let before = self.held.back().or(self.zeros.as_ref()).ok_or_else(not_on_device)?;
        let before = before.on_device(self.width).ok_or_else(not_on_device)?;
        let after =
            self.fresh.0.iter().map(|block| block.on_device(self.width).ok_or_else(not_on_device));
        let after = after.collect::<Result<_, _>>()?;
        Ok(DeviceRecurrentStep { before, after, dtype: self.dtype })
    }

    /// Makes `block` what there is after `end` tokens, in place of all others.
    pub fn seed(&mut self, end: usize, mut block: Vec<f32>) {
        round(self.dtype, &mut block);
        (self.end, self.floor, self.held) = (end, end, VecDeque::new());
        if end > 0 {
            self.held.push_back(RecurrentBlock::new(block, self.queue.as_ref()));
        }
    }

    /// Returns the block after the last token.
    pub fn newest(&self) -> Vec<f32> {
        let newest = self.held.back().map(|block| block.numbers().into_owned());
        newest.filter(|block| block.len() == self.width).unwrap_or_else(|| vec![0.0; self.width])
    }

    /// Returns everything but the blocks.
    fn form(&self) -> (Dtype, usize, usize, usize, usize, usize) {
        (self.dtype, self.width, self.rollback, self.end, self.floor, self.fresh.1)
    }

    fn block_bytes(&self) -> usize {
        self.width.saturating_mul(self.dtype.size())
    }
}

impl Clone for Recurrent {
    /// Clones the blocks, without the spare buffers.
    fn clone(&self) -> Self {
        Self {
            held: self.held.clone(),
            fresh: self.fresh.clone(),
            spare: Vec::new(),
            zeros: None,
            queue: self.queue.clone(),
            ..*self
        }
    }
}

impl Past for Recurrent {
    fn floor(&self) -> usize {
        self.floor
    }

    fn commit(&mut self) {
        let (blocks, rows) = std::mem::take(&mut self.fresh);
        if rows > blocks.len() {
            // The step leapt over positions whose blocks were not asked for.
            self.spare.extend(self.held.drain(..));
        }
        self.end += rows;
        for mut block in blocks {
            // A step on the device has rounded them.
            if let Some(numbers) = block.host_mut() {
                round(self.dtype, numbers);
            }
            self.held.push_back(block);
        }
        self.floor = self.floor.max(self.end.saturating_sub(self.rollback));
        let due = self.end + 1 - self.floor.max(1);
        while self.held.len() > due {
            self.spare.extend(self.held.pop_front());
        }
        // Enough for the next token; more were only needed to begin with.
        self.spare.truncate(1);
    }

    fn shortest(&self) -> usize {
        self.floor
    }

    fn truncate(&mut self, length: usize) {
        self.spare.append(&mut self.fresh.0);
        self.fresh.1 = 0;
        let gone = self.end.saturating_sub(length);
        self.spare.extend(self.held.drain(self.held.len().saturating_sub(gone)..));
        self.end -= gone;
    }

    fn clear(&mut self, poison: bool) {
        self.truncate(0);
        self.spare.truncate(1);
        if poison {
            self.spare.iter_mut().for_each(RecurrentBlock::poison);
        }
        (self.end, self.floor) = (0, 0);
    }

    fn to_bytes(&self, out: &mut Vec<u8>) {
        for block in &self.held {
            for x in &*block.numbers() {
                match self.dtype {
                    Dtype::F32 => out.extend(x.to_le_bytes()),
                    narrow => out.extend(to_bits(narrow, *x).to_le_bytes()),
                }
            }
        }
    }

    fn set_bytes(&mut self, floor: usize, end: usize, bytes: &[u8]) -> Result<(), past::Error> {
        if floor > end || end - floor > self.rollback {
            return Err(past::Error::Positions { floor, end });
        }
        let blocks = if floor == 0 { end } else { end - floor + 1 };
        if blocks.checked_mul(self.block_bytes()) != Some(bytes.len()) {
            let size = self.block_bytes();
            return Err(past::Error::BlockBytes { found: bytes.len(), blocks, size });
        }
        (self.end, self.floor) = (end, floor);
        self.held = bytes
            .chunks_exact(self.block_bytes().max(1))
            .map(|block| block.chunks_exact(self.dtype.size()).map(|b| from_bytes(self.dtype, b)))
            .map(|numbers| RecurrentBlock::new(numbers.collect(), self.queue.as_ref()))
            .collect();
        Ok(())
    }
}

fn not_on_device() -> Error {
    Error::Other("the state is not on the device".to_owned())
}

fn from_bytes(dtype: Dtype, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (Dtype::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
        _ => f32::NAN, // never: the caller cuts pieces of the dtype's size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds tokens; the block is the sum of all of them.
    fn feed(r: &mut Recurrent, tokens: &[f32], commit: bool) {
        let RecurrentStep { before, mut after } = r.step(tokens.len());
        let mut sum = before[0];
        let first = tokens.len() - after.len();
        for (n, token) in tokens.iter().enumerate() {
            sum += token;
            if n >= first {
                after[n - first][0] = sum;
            }
        }
        if commit {
            r.commit();
        }
    }

    #[test]
    fn the_last_positions_can_be_returned_to() {
        let mut r = Recurrent::of(Dtype::F32, 1, 3);
        feed(&mut r, &[1.0, 2.0], true);
        assert_eq!((r.shortest(), r.newest()), (0, vec![3.0]));
        for n in 3..=9 {
            feed(&mut r, &[n as f32], true);
        }
        assert_eq!((r.shortest(), r.end(), r.newest()), (6, 9, vec![45.0]));
        r.truncate(7);
        assert_eq!((r.shortest(), r.newest()), (6, vec![28.0]));
        // A long step forgets what came before it, a short one after a return does not.
        feed(&mut r, &[8.0], true);
        assert_eq!((r.shortest(), r.newest()), (6, vec![36.0]));
        feed(&mut r, &[1.0; 10], true);
        assert_eq!((r.shortest(), r.held.len(), r.newest()), (15, 4, vec![46.0]));
        r.truncate(15);
        assert_eq!(r.newest(), [43.0]);
    }

    #[test]
    fn a_step_that_failed_leaves_nothing() {
        let mut r = Recurrent::of(Dtype::F32, 1, 2);
        feed(&mut r, &[1.0, 2.0, 3.0], true);
        let before = r.held.clone();
        feed(&mut r, &[4.0; 5], false);
        assert_eq!(r.end(), 8);
        r.truncate(3);
        assert_eq!((r.end(), &r.held), (3, &before));
        r.truncate(1);
        r.clear(true);
        assert_eq!((r.end(), r.newest()), (0, vec![0.0]));
        assert!(r.spare.iter().all(|block| block.numbers().iter().all(|x| x.is_nan())));
    }

    #[test]
    fn bytes_come_back_and_lies_do_not() {
        for dtype in Dtype::ALL {
            let mut r = Recurrent { dtype, ..Recurrent::of(Dtype::F32, 1, 2) };
            feed(&mut r, &[0.1, 0.2, 0.3, 0.4], true);
            let mut bytes = Vec::new();
            r.to_bytes(&mut bytes);
            assert_eq!(bytes.len(), 3 * dtype.size());
            let mut copy = Recurrent { dtype, ..Recurrent::of(Dtype::F32, 1, 2) };
            copy.set_bytes(2, 4, &bytes).unwrap();
            assert_eq!((copy.held.clone(), copy.end()), (r.held.clone(), 4));
            for (floor, end) in [(0, 4), (5, 4), (3, 4), (0, 3), (0, usize::MAX)] {
                assert!(copy.set_bytes(floor, end, &bytes).is_err(), "{floor}..{end}");
            }
            assert!(copy.set_bytes(usize::MAX, usize::MAX, &bytes).is_err());
        }
    }
}
