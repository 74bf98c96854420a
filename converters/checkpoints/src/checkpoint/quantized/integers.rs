//! Whole numbers with a scale, and often a zero, per group of inputs: `(code - zero) * scale`.

use super::read::Scales;
use super::words::Words;
use crate::flow::Numbers;

/// What the codes of a weight are, whoever packed them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Plan {
    /// A line per output, or per input.
    pub(super) codes: Words,
    pub(super) lines: Lines,
    pub(super) zeros: Zeros,
    /// How many outputs share a row of scales and zeros.
    pub(super) down: usize,
    /// How many inputs are a group, where groups are stretches.
    pub(super) size: usize,
    pub(super) groups: usize,
    /// How far apart the scales of two rows are, and of two groups.
    pub(super) apart: (usize, usize),
    pub(super) order: Order,
}

/// What a line of numbers belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lines {
    Output,
    Input,
}

/// The codes that stand for 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zeros {
    /// One for all.
    Fixed(u32),
    /// A line per group with a number for each row, or the other way round; `low` ones are kept
    /// one too low, and the lowest wraps.
    Kept { words: Words, by_row: bool, low: bool },
}

/// Whether a tensor says which group each input is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Stretches,
    Told,
    /// Unless it has a -1 for groups that nobody chose.
    ToldIfSet,
}

impl Plan {
    /// How many tensors it takes: codes, scales, and zeros and groups if they are kept.
    pub(super) fn zeros_at(&self) -> Option<usize> {
        matches!(self.zeros, Zeros::Kept { .. }).then_some(2)
    }

    pub(super) fn order_at(&self) -> Option<usize> {
        let before = if self.zeros_at().is_some() { 3 } else { 2 };
        (self.order != Order::Stretches).then_some(before)
    }
}

/// A weight of whole numbers.
pub(super) struct Integers<'a> {
    pub(super) plan: Plan,
    pub(super) codes: &'a [u8],
    pub(super) scales: Scales<'a>,
    pub(super) zeros: &'a [u8],
    /// The group of each input.
    pub(super) order: Option<&'a [u8]>,
    pub(super) inputs: usize,
}

impl Integers<'_> {
    fn code(&self, output: usize, input: usize) -> i32 {
        let (line, n) = match self.plan.lines {
            Lines::Output => (output, input),
            Lines::Input => (input, output),
        };
        self.plan.codes.at(self.codes, line, n).cast_signed()
    }

    /// Zero and scale of a group.
    fn group(&self, row: usize, group: usize) -> (i32, f32) {
        let zero = match self.plan.zeros {
            Zeros::Fixed(zero) => zero,
            Zeros::Kept { words, by_row, low } => {
                let (line, n) = if by_row { (row, group) } else { (group, row) };
                let zero = words.at(self.zeros, line, n);
                if low { (zero + 1) & ((1 << words.bits) - 1) } else { zero }
            }
        };
        let (rows, groups) = self.plan.apart;
        (zero.cast_signed(), self.scales.at(row * rows + group * groups))
    }
}

impl Numbers for Integers<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let mut done = 0;
        while done < out.len() {
            let (output, from) = ((at + done) / self.inputs, (at + done) % self.inputs);
            let row = output / self.plan.down;
            let (group, end) = match self.order {
                Some(order) => (told(order, from), from + 1),
                None => (from / self.plan.size, (from / self.plan.size + 1) * self.plan.size),
            };
            let now = (end.min(self.inputs) - from).min(out.len() - done);
            let (zero, scale) = self.group(row, group);
            for (input, x) in (from..).zip(&mut out[done..done + now]) {
                *x = (self.code(output, input) - zero) as f32 * scale;
            }
            done += now;
        }
    }
}

/// The group of an input; it has been seen that it exists.
fn told(order: &[u8], input: usize) -> usize {
    order.as_chunks::<4>().0.get(input).map_or(0, |group| u32::from_le_bytes(*group) as usize)
}
