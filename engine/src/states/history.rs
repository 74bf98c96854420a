//! The last rows of a sequence, stored in their declared dtype.

use registry::dtype::Dtype;

use super::past::{self, Past};
use super::store::RowStore;
use crate::Error;
use crate::device::{DeviceBuffer, DeviceQueue};
use crate::kernels::attention::{CachedColumns, CachedRows};
use crate::value::DeviceValue;

use super::store::device::{CacheArguments, DeviceRows, RowWrites};

/// Rows of a sequence by position: all of them, or the last `needed` and some more to roll
/// back by.
///
/// Rows are dropped in batches, so that a step moves few bytes; which positions can be
/// returned to depends only on how far the sequence got, never on when rows were dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    store: RowStore,
    width: usize,
    /// The number of rows before the next position that its computation reads; none means all.
    needed: Option<usize>,
    rollback: usize,
    /// Position of the first row in the store.
    first: usize,
    rows: usize,
    /// Rows before this count as dropped.
    floor: usize,
}

impl History {
    /// Creates an empty history, of rows of `width` numbers.
    pub fn new(dtype: Dtype, width: usize, needed: Option<usize>, rollback: usize) -> Self {
        Self::of(RowStore::new(dtype), width, needed, rollback)
    }

    /// Creates an empty history of 8-bit rows of `width` numbers, with a scale for each `group`.
    pub fn fp8(width: usize, group: usize, needed: Option<usize>, rollback: usize) -> Self {
        Self::of(RowStore::fp8(group), width, needed, rollback)
    }

    /// Creates an empty history of 8-bit rows of `width` numbers, all with one scale, that is read in a given
    /// dtype.
    pub fn fixed(
        width: usize,
        (scale, dtype): (f32, Dtype),
        needed: Option<usize>,
        rollback: usize,
    ) -> Self {
        Self::of(RowStore::fixed(scale, dtype), width, needed, rollback)
    }

    fn of(store: RowStore, width: usize, needed: Option<usize>, rollback: usize) -> Self {
        Self { store, width, needed, rollback, first: 0, rows: 0, floor: 0 }
    }

    /// Moves an empty history to a device.
    pub fn place_on(&mut self, queue: &DeviceQueue) {
        let empty = RowStore::new(Dtype::F32);
        self.store = std::mem::replace(&mut self.store, empty).on(queue);
    }

    /// Returns the device that rows are on; none for the CPU.
    pub(crate) fn queue(&self) -> Option<&DeviceQueue> {
        match &self.store {
            RowStore::Device(store) => Some(store.queue()),
            _ => None,
        }
    }

    fn device_store(&self) -> Result<&DeviceRows, Error> {
        match &self.store {
            RowStore::Device(store) => Ok(store),
            _ => Err(Error::Other("the state is not on the device".to_owned())),
        }
    }

    /// Makes room for rows on the device. Several writes that one launch makes need it first: a store that grows leaves the
    /// memory that earlier ones of them name.
    pub(crate) fn reserve_rows(&mut self, rows: usize) -> Result<(), Error> {
        match &mut self.store {
            RowStore::Device(store) => store.reserve((self.rows + rows) * self.width),
            _ => Ok(()),
        }
    }

    /// Adds rows `from..from + rows` of a value of the device at the end. The launch of `writes` copies them.
    pub(crate) fn append_value(
        &mut self,
        value: &DeviceValue,
        (from, rows): (usize, usize),
        writes: &mut RowWrites,
    ) -> Result<(), Error> {
        let RowStore::Device(store) = &mut self.store else {
            return Err(Error::Other("the state is not on the device".to_owned()));
        };
        let width = self.width;
        store.write_value(self.rows * width, value, (from * width, rows * width), writes)?;
        self.rows += rows;
        Ok(())
    }

    /// Returns the dtype of rows on the device.
    pub(crate) fn device_dtype(&self) -> Result<Dtype, Error> {
        self.device_store()?.plain_dtype()
    }

    /// Copies rows from a position on to row `at` of a value of the device. The launch of `writes` copies them.
    pub(crate) fn copy_tail(
        &self,
        from: usize,
        value: &DeviceValue,
        at: usize,
        writes: &mut RowWrites,
    ) -> Result<(), Error> {
        let place = from.checked_sub(self.first).ok_or_else(|| {
            let first = self.first;
            Error::Other(format!("the state holds positions from {first} on, not from {from}"))
        })?;
        let numbers = self.end().saturating_sub(from) * self.width;
        self.device_store()?.copy_to((place * self.width, numbers), value, at * self.width, writes)
    }

    /// Returns plain rows of the device from a position on: the numbers, the first of them, and their dtype. None in 8
    /// bits.
    pub(crate) fn plain_rows(&self, from: usize) -> Option<(&DeviceBuffer, usize, Dtype)> {
        let (numbers, dtype) = self.device_store().ok()?.plain()?;
        Some((numbers, from.checked_sub(self.first)? * self.width, dtype))
    }

    /// Returns the rows as kernels read them, and the position of the first.
    pub(crate) fn cache(&self) -> Result<(CacheArguments, u32), Error> {
        Ok((self.device_store()?.arguments(), self.first as u32))
    }

    /// Creates an empty history of rows of `width` numbers, which keeps the same positions on the same device.
    #[must_use]
    pub fn beside(&self, dtype: Dtype, width: usize) -> Self {
        let mut history = Self::new(dtype, width, self.needed, self.rollback);
        if let Some(queue) = self.queue() {
            history.place_on(queue);
        }
        history
    }

    /// True if no row is ever dropped.
    pub fn keeps_all(&self) -> bool {
        self.needed.is_none()
    }

    /// Returns the first position that the next step can still see.
    pub fn visible(&self) -> usize {
        self.needed.map_or(0, |needed| self.end().saturating_sub(needed))
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the position of the first row that is stored.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Returns one past the last position held.
    pub fn end(&self) -> usize {
        self.first + self.rows
    }

    /// Adds rows at the end.
    ///
    /// # Panics
    /// If `rows` is not an integer of rows.
    pub fn append(&mut self, rows: &[f32]) {
        assert!(rows.len().is_multiple_of(self.width), "whole rows");
        self.store.write(self.rows * self.width, rows);
        self.rows += rows.len() / self.width;
    }

    /// Makes `rows` the newest of `end` positions, in place of all others.
    ///
    /// # Panics
    /// If `rows` is not an integer of rows, or of more than `end`.
    pub fn seed(&mut self, end: usize, rows: &[f32]) {
        (self.first, self.rows) = (0, 0);
        self.append(rows);
        assert!(self.rows <= end, "no more rows than positions");
        self.first = end - self.rows;
        self.floor = self.first;
    }

    /// Reads columns of one row.
    ///
    /// # Panics
    /// If the position is not held.
    pub fn read(&self, position: usize, column: usize, into: &mut [f32]) {
        assert!(position >= self.first && position < self.end(), "the position is held");
        self.store.read((position - self.first) * self.width + column, into);
    }

    /// Returns columns of the rows as they are stored.
    pub fn columns(&self, column: usize, len: usize) -> CachedColumns<'_> {
        let rows =
            CachedRows { numbers: self.store.numbers(), width: self.width, first: self.first };
        CachedColumns { rows, column, len }
    }

    /// Rows `from..end`, all columns.
    ///
    /// # Panics
    /// If `from` is not held.
    pub fn tail(&self, from: usize) -> Vec<f32> {
        let mut data = vec![0.0; self.end().saturating_sub(from) * self.width];
        if !data.is_empty() {
            assert!(from >= self.first, "the position is held");
            self.store.read((from - self.first) * self.width, &mut data);
        }
        data
    }

    /// Bytes of one row as stored.
    pub fn row_bytes(&self) -> usize {
        self.store.bytes(self.width)
    }
}

impl Past for History {
    fn floor(&self) -> usize {
        self.floor
    }

    fn commit(&mut self) {
        let Some(needed) = self.needed else { return };
        let keep = needed.saturating_add(self.rollback);
        self.floor = self.floor.max(self.end().saturating_sub(keep));
        let spare = self.floor - self.first;
        if spare > keep.max(64) {
            self.store.shift(spare * self.width, (self.rows - spare) * self.width);
            self.first += spare;
            self.rows -= spare;
        }
    }

    fn shortest(&self) -> usize {
        if self.floor == 0 { 0 } else { self.floor + self.needed.unwrap_or(0) }
    }

    fn truncate(&mut self, length: usize) {
        self.rows = self.rows.min(length.saturating_sub(self.first));
    }

    fn clear(&mut self, poison: bool) {
        if poison {
            self.store.poison();
        }
        (self.first, self.rows, self.floor) = (0, 0, 0);
    }

    fn to_bytes(&self, out: &mut Vec<u8>) {
        let from = (self.floor - self.first) * self.width;
        let to = self.rows * self.width;
        self.store.to_bytes(from, to, out);
    }

    fn set_bytes(&mut self, floor: usize, end: usize, bytes: &[u8]) -> Result<(), past::Error> {
        let oldest = self
            .needed
            .map_or(0, |needed| end.saturating_sub(needed.saturating_add(self.rollback)));
        // A truncation leaves `floor` where the longer sequence put it; more rows than a fresh
        // run would keep never occur.
        if floor > end
            || (floor > 0 && end - floor < self.needed.unwrap_or(usize::MAX))
            || floor < oldest
        {
            return Err(past::Error::Rows { floor, end });
        }
        let rows = end - floor;
        if rows.checked_mul(self.row_bytes()) != Some(bytes.len()) {
            let size = self.row_bytes();
            return Err(past::Error::RowBytes { found: bytes.len(), rows, size });
        }
        (self.first, self.rows, self.floor) = (floor, rows, floor);
        self.store.set_bytes(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(needed: Option<usize>, rollback: usize, rows: usize) -> History {
        let mut history = History::new(Dtype::F32, 1, needed, rollback);
        for n in 0..rows {
            history.append(&[n as f32]);
            history.commit();
        }
        history
    }

    #[test]
    fn a_window_keeps_what_it_needs_and_what_it_can_roll_back_by() {
        let history = filled(Some(3), 2, 1000);
        assert_eq!(history.tail(997), [997.0, 998.0, 999.0]);
        assert_eq!((history.floor(), history.shortest(), history.end()), (995, 998, 1000));
        assert!(history.store.len() < 300, "dropped rows make room");
        let unbounded = filled(None, 2, 1000);
        assert_eq!((unbounded.floor(), unbounded.shortest()), (0, 0));
        assert_eq!(unbounded.tail(0).len(), 1000);
        // Nothing was dropped yet, so every length can be returned to.
        assert_eq!(filled(Some(3), 2, 5).shortest(), 0);
    }

    #[test]
    fn truncation_does_not_move_the_floor() {
        let mut history = filled(Some(3), 2, 10);
        assert_eq!(history.shortest(), 8);
        history.truncate(8);
        history.append(&[-8.0]);
        history.commit();
        assert_eq!(history.tail(5), [5.0, 6.0, 7.0, -8.0]);
        assert_eq!(history.shortest(), 8);
    }

    #[test]
    fn narrow_stores_round() {
        let mut history = History::new(Dtype::Bf16, 2, None, 0);
        history.append(&[1.003, 3.0]);
        assert_eq!(history.tail(0), [1.0, 3.0]);
        assert_eq!(history.row_bytes(), 4);
    }

    #[test]
    fn eight_bits_are_eight_bits() {
        let mut history = History::fp8(4, 2, None, 0);
        history.append(&[448.0, 224.0, 1.0, 0.3, 0.0, 0.0, -7.0, 7.0]);
        // A scale for each two: what is largest comes back exactly, the rest to four bits.
        assert_eq!(history.tail(0)[..3], [448.0, 224.0, 1.0]);
        assert!((history.tail(0)[3] - 0.3).abs() < 0.3 / 16.0 && history.tail(0)[3] != 0.3);
        assert_eq!(history.tail(1), [0.0, 0.0, -7.0, 7.0]);
        assert_eq!(history.row_bytes(), 4 + 2 * 4, "a byte each and two scales");
        let mut part = [0.0; 2];
        history.read(1, 1, &mut part);
        assert_eq!(part, [0.0, -7.0], "columns of two groups");
        let mut bytes = Vec::new();
        history.to_bytes(&mut bytes);
        let mut copy = History::fp8(4, 2, None, 0);
        copy.set_bytes(0, 2, &bytes).unwrap();
        assert_eq!(copy.tail(0), history.tail(0));
    }

    #[test]
    fn one_scale_that_is_known_saturates() {
        let mut history = History::fixed(2, (2.0, Dtype::F32), Some(3), 2);
        for n in 0..500_u16 {
            history.append(&[f32::from(n % 8) * 2.0, -5000.0]);
            history.commit();
        }
        assert_eq!(history.tail(498), [4.0, -896.0, 6.0, -896.0]);
        assert_eq!(history.row_bytes(), 2, "a byte each, and no scale");
        assert!(history.store.len() < 600, "dropped rows make room");
        let mut bytes = Vec::new();
        history.to_bytes(&mut bytes);
        let mut copy = History::fixed(2, (2.0, Dtype::F32), Some(3), 2);
        copy.set_bytes(history.floor(), 500, &bytes).unwrap();
        assert_eq!(copy.tail(497), history.tail(497));
        history.clear(true);
        history.append(&[1.0, 2.0]);
        assert_eq!(history.tail(0), [1.0, 2.0]);
    }

    #[test]
    fn every_step_with_a_known_scale_is_on_the_grid() {
        // What `fake_quantize` of compressed-tensors 0.20 gives.
        // 22 times a scale of 8 bits of mantissa has more than bf16 holds.
        assert_eq!(read_back(Dtype::F32, 0.199_218_75, 4.4), 4.382_812_5);
        assert_eq!(read_back(Dtype::Bf16, 0.199_218_75, 4.4), 4.375);
        // The quotient is 9.4902, and 9.5 in bf16; e4m3 has 9 and 10.
        assert_eq!(read_back(Dtype::F32, 0.199_218_75, 1.890_625), 1.792_968_8);
        assert_eq!(read_back(Dtype::Bf16, 0.199_218_75, 1.890_625), 1.992_187_5);
        // The scale is 1 in bf16.
        assert_eq!(read_back(Dtype::F32, 1.001, 3.0), 3.003_000_3);
        assert_eq!(read_back(Dtype::Bf16, 1.001, 3.0), 3.0);
    }

    fn read_back(dtype: Dtype, scale: f32, x: f32) -> f32 {
        let mut history = History::fixed(1, (scale, dtype), None, 0);
        history.append(&[x]);
        history.tail(0)[0]
    }

    #[test]
    fn bytes_come_back_and_lies_do_not() {
        let history = filled(Some(3), 2, 10);
        let mut bytes = Vec::new();
        history.to_bytes(&mut bytes);
        let mut copy = History::new(Dtype::F32, 1, Some(3), 2);
        copy.set_bytes(5, 10, &bytes).unwrap();
        assert_eq!(copy.tail(5), history.tail(5));
        for (floor, end) in [(0, 10), (11, 10), (5, usize::MAX), (0, usize::MAX), (9, 10)] {
            assert!(copy.set_bytes(floor, end, &bytes).is_err(), "{floor}..{end}");
        }
    }
}
