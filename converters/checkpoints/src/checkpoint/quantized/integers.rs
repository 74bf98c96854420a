//! Integers with a scale, and often a zero point, per group of inputs: `(code - zero) * scale`.

use super::scale_tensor::ScaleTensor;
use super::words::PackedCodes;
use crate::flow::ValueReader;

/// Layout of a weight's integer codes, independent of the packing program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct IntegerLayout {
    /// One line per output, or per input.
    pub(super) codes: PackedCodes,
    pub(super) lines: CodeAxis,
    pub(super) zeros: ZeroPoints,
    /// Number of outputs that share a row of scales and zero points.
    pub(super) down: usize,
    /// Number of inputs in a group, if groups are contiguous.
    pub(super) size: usize,
    pub(super) groups: usize,
    /// Distance between the scales of two rows, and of two groups.
    pub(super) apart: (usize, usize),
    pub(super) order: GroupOrder,
}

/// Axis that a line of codes belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeAxis {
    Output,
    Input,
}

/// Zero points of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZeroPoints {
    /// One zero point for all.
    Fixed(u32),
    /// Stored zero points: one line per row if `by_row`, else one line per group. `low` ones are stored
    /// minus one, with the lowest wrapping around.
    Stored { words: PackedCodes, by_row: bool, low: bool },
}

/// Source of the group index of each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupOrder {
    Contiguous,
    Stored,
    /// Stored, unless the tensor contains -1 for unset groups.
    StoredIfSet,
}

impl IntegerLayout {
    /// Returns the index of the zero points in the list of tensors; none if they are not stored.
    pub(super) fn zeros_at(&self) -> Option<usize> {
        matches!(self.zeros, ZeroPoints::Stored { .. }).then_some(2)
    }

    pub(super) fn order_at(&self) -> Option<usize> {
        let before = if self.zeros_at().is_some() { 3 } else { 2 };
        (self.order != GroupOrder::Contiguous).then_some(before)
    }
}

/// Weight of integer codes.
pub(super) struct IntegerWeight<'a> {
    pub(super) plan: IntegerLayout,
    pub(super) codes: &'a [u8],
    pub(super) scales: ScaleTensor<'a>,
    pub(super) zeros: &'a [u8],
    /// Group index of each input.
    pub(super) order: Option<&'a [u8]>,
    pub(super) inputs: usize,
}

impl IntegerWeight<'_> {
    fn code(&self, output: usize, input: usize) -> i32 {
        let (line, n) = match self.plan.lines {
            CodeAxis::Output => (output, input),
            CodeAxis::Input => (input, output),
        };
        self.plan.codes.at(self.codes, line, n).cast_signed()
    }

    /// Returns the zero point and scale of a group.
    fn group(&self, row: usize, group: usize) -> (i32, f32) {
        let zero = match self.plan.zeros {
            ZeroPoints::Fixed(zero) => zero,
            ZeroPoints::Stored { words, by_row, low } => {
                let (line, n) = if by_row { (row, group) } else { (group, row) };
                let zero = words.at(self.zeros, line, n);
                if low { (zero + 1) & ((1 << words.bits) - 1) } else { zero }
            }
        };
        let (rows, groups) = self.plan.apart;
        (zero.cast_signed(), self.scales.at(row * rows + group * groups))
    }
}

impl ValueReader for IntegerWeight<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let mut done = 0;
        while done < out.len() {
            let output = (at + done) / self.inputs;
            let from = (at + done) % self.inputs;
            let row = output / self.plan.down;
            let (group, end) = match self.order {
                Some(order) => (stored_group(order, from), from + 1),
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

/// Returns the group index of an input, whose existence was checked before.
fn stored_group(order: &[u8], input: usize) -> usize {
    order.as_chunks::<4>().0.get(input).map_or(0, |group| u32::from_le_bytes(*group) as usize)
}
