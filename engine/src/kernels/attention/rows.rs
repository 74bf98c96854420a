//! Rows of a cache as attention reads them: in their stored dtype, in place.
//!
//! Rows in f32 are not copied ([decision 97](../../../../docs/decisions/0097-caches-read-in-place.md)).

use std::ops::Range;

use half::f16;
use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};
use registry::dtype::Dtype;

use lanes::prefetch_to_l2;

/// Rows that lie between a row that is read and the row whose cache lines are asked for.
const AHEAD: usize = 16;
/// Numbers of a row up to which the first head asks for the rows of all heads: a span of such rows stays in the
/// L2 cache, and memory is read in its order.
const SHARED_ROW: usize = 512;

/// Numbers that are decoded on their way out of a store.
pub trait CodedNumbers: Sync {
    /// Writes the numbers from `at` on.
    fn decode(&self, at: usize, into: &mut [f32]);
}

/// Numbers of a store, one after another.
#[derive(Clone, Copy)]
pub enum StoredNumbers<'a> {
    /// f32.
    Wide(&'a [f32]),
    /// bf16 or f16.
    Half(Dtype, &'a [u16]),
    /// Any other code.
    Coded(&'a dyn CodedNumbers),
}

/// Rows of a cache by position.
#[derive(Clone, Copy)]
pub struct CachedRows<'a> {
    /// Rows of `width` numbers, the row of position `first` at the start.
    pub numbers: StoredNumbers<'a>,
    /// Numbers of a row.
    pub width: usize,
    /// Position of the first row.
    pub first: usize,
}

/// Some columns of every row of a cache.
#[derive(Clone, Copy)]
pub struct CachedColumns<'a> {
    /// The rows.
    pub rows: CachedRows<'a>,
    /// The first column.
    pub column: usize,
    /// The number of columns.
    pub len: usize,
}

impl<'a> CachedColumns<'a> {
    /// Returns the place of a row in the store.
    fn at(&self, position: usize) -> usize {
        (position - self.rows.first) * self.rows.width + self.column
    }

    /// True if the numbers are stored in bf16.
    pub(super) fn is_bf16(&self) -> bool {
        self.len == 0 || matches!(self.rows.numbers, StoredNumbers::Half(Dtype::Bf16, _))
    }

    /// Returns the bits of one row of 16-bit numbers; empty if numbers are stored otherwise.
    #[expect(clippy::inline_always, reason = "part of loops that are compiled for vectors")]
    #[inline(always)]
    pub(super) fn halves(&self, position: usize) -> &'a [u16] {
        let StoredNumbers::Half(_, bits) = self.rows.numbers else { return &[] };
        let at = self.at(position);
        let width = self.rows.width;
        let fetched = match self.column {
            _ if width > SHARED_ROW => self.len,
            0 => width,
            _ => 0,
        };
        let later = bits.as_ptr().wrapping_add(at + AHEAD * width);
        for line in (0..fetched).step_by(32) {
            prefetch_to_l2(later.wrapping_add(line).cast());
        }
        &bits[at..at + self.len]
    }

    /// Returns rows of f32 in place, and the numbers from one row to the next; none if they are stored otherwise.
    pub(super) fn in_place(&self, positions: Range<usize>) -> Option<(&'a [f32], usize)> {
        let StoredNumbers::Wide(numbers) = self.rows.numbers else { return None };
        let last = positions.end.checked_sub(1).filter(|last| *last >= positions.start)?;
        Some((&numbers[self.at(positions.start)..self.at(last) + self.len], self.rows.width))
    }

    /// Reads one row, widened to f32.
    pub(super) fn widen(&self, position: usize, into: &mut [f32]) {
        let at = self.at(position);
        let into = &mut into[..self.len];
        match self.rows.numbers {
            StoredNumbers::Wide(numbers) => into.copy_from_slice(&numbers[at..at + into.len()]),
            StoredNumbers::Half(Dtype::F16, _) => {
                let bits: &[f16] = self.halves(position).reinterpret_cast();
                bits.convert_to_f32_slice(into);
            }
            StoredNumbers::Half(..) => {
                for (x, &bits) in into.iter_mut().zip(self.halves(position)) {
                    *x = f32::from_bits(u32::from(bits) << 16);
                }
            }
            StoredNumbers::Coded(coded) => coded.decode(at, into),
        }
    }
}

/// Keys and values of one head, each in up to two stretches of columns that are read as one row.
#[derive(Clone, Copy)]
pub struct CachedHead<'a> {
    /// Columns of a key.
    pub keys: [CachedColumns<'a>; 2],
    /// Columns of a value.
    pub values: [CachedColumns<'a>; 2],
    /// Position of each key, if only some positions are keys.
    pub selected: Option<&'a [usize]>,
}

impl CachedHead<'_> {
    /// Returns the position of a key.
    pub(super) fn position(&self, key: usize) -> usize {
        self.selected.map_or(key, |selected| selected[key])
    }
}
