//! The gated delta rule over many rows of a head: a matrix decays, its value for `k` moves towards `v`, and `q` reads it.
//!
//! Columns of the matrix do not depend on each other, so some columns of all rows of the matrix stay in the L1 cache
//! while they pass all rows of a chunk. Each column has the operations and the order of [`DeltaRow::run`].
//!
//! Chunked forms would change bits ([decision 91](../../../docs/decisions/0091-recurrences-in-lanes.md)).

#![expect(unsafe_code, reason = "vectors over checked slices")]
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use super::attention::product::{LANES, dispatch, room};
use lanes::{Isa, Simd, VectorTask};

/// Vectors of columns that are computed together.
const WIDE: usize = 4;
/// Columns that are computed together.
const COLUMNS: usize = WIDE * LANES;

/// One head at one row.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRow<'a> {
    /// Multiplies the matrix: one number, or one for each of its rows.
    pub decay: &'a [f32],
    /// `[key]`.
    pub q: &'a [f32],
    /// `[key]`.
    pub k: &'a [f32],
    /// `[value]`.
    pub v: &'a [f32],
    /// The share of the way towards `v`.
    pub beta: f32,
}

impl DeltaRow<'_> {
    /// Computes one row: the matrix after it from the matrix before it, both `[key, value]`, and the output `[value]`.
    #[inline(always)]
    pub fn run(&self, before: &[f32], after: &mut [f32], y: &mut [f32]) {
        let value = self.v.len();
        let mut delta = vec![0.0; value];
        let lines = before.chunks_exact(value).zip(after.chunks_exact_mut(value));
        for (((from, to), decay), k) in lines.zip(self.decay.iter().cycle()).zip(self.k) {
            for ((to, from), held) in to.iter_mut().zip(from).zip(delta.iter_mut()) {
                *to = from * decay;
                *held += *to * k;
            }
        }
        for (held, v) in delta.iter_mut().zip(self.v) {
            *held = (v - *held) * self.beta;
        }
        y.fill(0.0);
        for ((line, q), k) in after.chunks_exact_mut(value).zip(self.q).zip(self.k) {
            for ((s, delta), y) in line.iter_mut().zip(&delta).zip(y.iter_mut()) {
                *s += k * delta;
                *y += *s * q;
            }
        }
    }
}

/// Many rows of one head.
#[derive(Debug)]
pub struct DeltaRows<'a, 'b> {
    /// The rows.
    pub rows: &'a [DeltaRow<'a>],
    /// The matrix before the first row, `[key, value]`.
    pub before: &'a [f32],
    /// The matrices after the last rows.
    pub after: &'a mut [&'b mut [f32]],
    /// `[rows, value]`.
    pub y: &'a mut [f32],
}

/// Computes many rows of a head: the same as [`DeltaRow::run`] for one row after another.
///
/// # Panics
/// If sizes do not fit.
pub fn delta_rows(rows: DeltaRows<'_, '_>) {
    delta_rows_on(Isa::best(), rows);
}

/// Computes [`delta_rows`] with the vectors of one instruction set.
fn delta_rows_on(isa: Isa, rows: DeltaRows<'_, '_>) {
    dispatch(isa, false, rows);
}

/// Some columns of one row.
type Columns = [f32; COLUMNS];

impl VectorTask for DeltaRows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, before, after, y } = self;
        let Some(first) = rows.first() else { return };
        let key = first.k.len();
        let value = first.v.len();
        let unkept = rows.len().saturating_sub(after.len());
        let mut lines = Vec::new();
        let matrix = room(&mut lines, key * COLUMNS);
        matrix.fill(0.0);
        for low in (0..value).step_by(COLUMNS) {
            let high = value.min(low + COLUMNS);
            for (columns, line) in matrix.chunks_exact_mut(COLUMNS).zip(before.chunks_exact(value))
            {
                columns[..high - low].copy_from_slice(&line[low..high]);
            }
            let mut outputs = [0.0; COLUMNS];
            let mut delta = [0.0; COLUMNS];
            forget(s, first, matrix, &mut delta);
            for (n, (row, y)) in rows.iter().zip(y.chunks_exact_mut(value)).enumerate() {
                for (held, v) in delta.iter_mut().zip(&row.v[low..high]) {
                    *held = (v - *held) * row.beta;
                }
                let after_index = n.checked_sub(unkept);
                let next = rows.get(n + 1);
                if let (Some(next), None) = (next, after_index) {
                    // A matrix that is not kept may forget for the next row at once.
                    learn_and_forget(s, row, next, matrix, &mut delta, &mut outputs);
                } else {
                    learn(s, row, matrix, &delta, &mut outputs);
                }
                y[low..high].copy_from_slice(&outputs[..high - low]);
                let Some(after_index) = after_index else { continue };
                let lines = after[after_index].chunks_exact_mut(value);
                for (columns, line) in matrix.chunks_exact(COLUMNS).zip(lines) {
                    line[low..high].copy_from_slice(&columns[..high - low]);
                }
                if let Some(next) = next {
                    forget(s, next, matrix, &mut delta);
                }
            }
        }
    }
}

/// Checks the sizes of a row, and returns the number of keys and the distance between decays.
#[inline(always)]
fn sizes(row: &DeltaRow<'_>, matrix: &[f32]) -> (usize, usize) {
    let key = row.k.len();
    let decays = row.decay.len();
    assert!(row.q.len() == key && (decays == 1 || decays == key), "sizes of a row");
    assert!(matrix.len() == key * COLUMNS, "sizes of a matrix");
    (key, usize::from(decays > 1))
}

/// Decays the matrix, and reads its value for `k`.
#[inline(always)]
fn forget<S: Simd>(s: S, row: &DeltaRow<'_>, matrix: &mut [f32], held: &mut Columns) {
    let (key, stride) = sizes(row, matrix);
    // SAFETY: the lengths were just checked.
    unsafe {
        let decay = row.decay.as_ptr();
        let k = row.k.as_ptr();
        let matrix = matrix.as_mut_ptr();
        let mut sums = [s.splat16(0.0); WIDE];
        for at in 0..key {
            let decay = s.splat16(*decay.add(at * stride));
            let k = s.splat16(*k.add(at));
            for (n, sum) in sums.iter_mut().enumerate() {
                let place = matrix.add(at * COLUMNS + n * LANES);
                let decayed = s.read16(place.cast()) * decay;
                s.write16(decayed, place);
                *sum = *sum + decayed * k;
            }
        }
        store(s, &sums, held);
    }
}

/// Moves the value of the matrix for `k` by `delta`, and reads its value for `q`.
#[inline(always)]
fn learn<S: Simd>(s: S, row: &DeltaRow<'_>, matrix: &mut [f32], delta: &Columns, y: &mut Columns) {
    let (key, _) = sizes(row, matrix);
    // SAFETY: as in `forget`.
    unsafe {
        let q = row.q.as_ptr();
        let k = row.k.as_ptr();
        let matrix = matrix.as_mut_ptr();
        let delta: [S::Wide; WIDE] = load(s, delta);
        let mut sums = [s.splat16(0.0); WIDE];
        for at in 0..key {
            let q = s.splat16(*q.add(at));
            let k = s.splat16(*k.add(at));
            for (n, sum) in sums.iter_mut().enumerate() {
                let place = matrix.add(at * COLUMNS + n * LANES);
                let learned = s.read16(place.cast()) + k * delta[n];
                s.write16(learned, place);
                *sum = *sum + learned * q;
            }
        }
        store(s, &sums, y);
    }
}

/// Computes [`learn`] for a row and [`forget`] for the next one in one pass over the matrix.
#[inline(always)]
fn learn_and_forget<S: Simd>(
    s: S,
    row: &DeltaRow<'_>,
    next: &DeltaRow<'_>,
    matrix: &mut [f32],
    delta: &mut Columns,
    y: &mut Columns,
) {
    let (key, _) = sizes(row, matrix);
    let (_, stride) = sizes(next, matrix);
    // SAFETY: as in `forget`.
    unsafe {
        let q = row.q.as_ptr();
        let k = row.k.as_ptr();
        let matrix = matrix.as_mut_ptr();
        let decay = next.decay.as_ptr();
        let next_k = next.k.as_ptr();
        let old: [S::Wide; WIDE] = load(s, delta);
        let mut sums = [s.splat16(0.0); WIDE];
        let mut held = [s.splat16(0.0); WIDE];
        for at in 0..key {
            let q = s.splat16(*q.add(at));
            let k = s.splat16(*k.add(at));
            let decay = s.splat16(*decay.add(at * stride));
            let next_k = s.splat16(*next_k.add(at));
            for n in 0..WIDE {
                let place = matrix.add(at * COLUMNS + n * LANES);
                let learned = s.read16(place.cast()) + k * old[n];
                sums[n] = sums[n] + learned * q;
                let decayed = learned * decay;
                s.write16(decayed, place);
                held[n] = held[n] + decayed * next_k;
            }
        }
        store(s, &sums, y);
        store(s, &held, delta);
    }
}

/// Loads some columns. A loop, because `from_fn` is not inlined everywhere.
#[inline(always)]
fn load<S: Simd>(s: S, from: &Columns) -> [S::Wide; WIDE] {
    let mut vectors = [s.splat16(0.0); WIDE];
    for (vector, from) in vectors.iter_mut().zip(from.as_chunks().0) {
        *vector = s.load16(from);
    }
    vectors
}

/// Stores some columns.
#[inline(always)]
fn store<S: Simd>(s: S, from: &[S::Wide; WIDE], to: &mut Columns) {
    for (vector, to) in from.iter().zip(to.as_chunks_mut().0) {
        s.store16(*vector, to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bits, random_numbers};
    use super::*;

    #[test]
    fn a_key_seen_again_is_overwritten() {
        let mut matrix = vec![0.0; 4];
        let mut outputs = Vec::new();
        for (key, v, decay, beta) in [
            ([1.0, 0.0], [3.0, 4.0], 1.0, 1.0),
            ([1.0, 0.0], [5.0, 6.0], 1.0, 0.5),
            ([0.0, 1.0], [7.0, 8.0], 0.5, 1.0),
        ] {
            let mut after = vec![0.0; 4];
            let mut y = [0.0; 2];
            let row = DeltaRow { decay: &[decay], q: &key, k: &key, v: &v, beta };
            row.run(&matrix, &mut after, &mut y);
            matrix = after;
            outputs.extend(y);
        }
        // Written whole, then half way from (3, 4) to (5, 6); the last decays what is there.
        assert_eq!(outputs, [3.0, 4.0, 4.0, 5.0, 7.0, 8.0]);
        assert_eq!(matrix, [2.0, 2.5, 7.0, 8.0]);
    }

    #[test]
    fn channels_decay_apart() {
        let mut after = [0.0; 4];
        let mut y = [0.0; 2];
        let row = DeltaRow {
            decay: &[0.5, 0.25],
            q: &[1.0, 1.0],
            k: &[0.0, 0.0],
            v: &[9.0, 9.0],
            beta: 1.0,
        };
        row.run(&[1.0, 2.0, 3.0, 4.0], &mut after, &mut y);
        assert_eq!((after, y), ([0.5, 1.0, 0.75, 1.0], [1.25, 2.0]));
    }

    #[test]
    fn many_rows_give_the_bits_of_single_rows() {
        let mut seed = 3_u32;
        for (key, value, channels, count, kept_count) in [
            (1, 1, 1, 3, 1),
            (8, 10, 1, 5, 0),
            (9, 70, 9, 4, 4),
            (128, 128, 1, 9, 3),
            (128, 128, 128, 3, 2),
        ] {
            let q = random_numbers(&mut seed, count * key);
            let k = random_numbers(&mut seed, count * key);
            let v = random_numbers(&mut seed, count * value);
            let decay = random_numbers(&mut seed, count * channels);
            let beta = random_numbers(&mut seed, count);
            let before = random_numbers(&mut seed, key * value);
            let rows: Vec<DeltaRow<'_>> = (0..count)
                .map(|n| DeltaRow {
                    decay: &decay[n * channels..][..channels],
                    q: &q[n * key..][..key],
                    k: &k[n * key..][..key],
                    v: &v[n * value..][..value],
                    beta: beta[n],
                })
                .collect();
            let mut want = Vec::new();
            let mut states = vec![before.clone()];
            for row in &rows {
                let mut after = vec![0.0; key * value];
                let mut y = vec![0.0; value];
                row.run(&states[states.len() - 1], &mut after, &mut y);
                states.push(after);
                want.extend(y);
            }
            for isa in Isa::available() {
                let mut places = vec![vec![f32::NAN; key * value]; kept_count];
                let mut after: Vec<&mut [f32]> = places.iter_mut().map(Vec::as_mut_slice).collect();
                let mut y = vec![0.0; count * value];
                let before = &before;
                delta_rows_on(isa, DeltaRows { rows: &rows, before, after: &mut after, y: &mut y });
                assert_eq!(bits(&y), bits(&want), "{isa:?}: outputs of {key} by {value}");
                assert_eq!(
                    places,
                    states[count + 1 - kept_count..],
                    "{isa:?}: states of {key} by {value}"
                );
            }
        }
    }
}
