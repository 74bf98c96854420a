//! State space duality over many rows of a head: `S = decay·S + dt·x⊗B`, `y = S·C + D·x`.
//!
//! The numbers of a head are lanes, so sixteen sums run side by side, and the state of sixteen numbers stays in the
//! L1 cache from row to row. Each number has the operations and the order of additions of [`SsdRow::run`].
//!
//! Chunked forms would change bits ([decision 91](../../../docs/decisions/0091-recurrences-in-lanes.md)).

#![expect(unsafe_code, reason = "vectors over checked slices")]
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use super::attention::product::{LANES, Line, dispatch, room, transpose};
use super::math::dot;
use lanes::{Isa, Simd, VectorTask};

/// Running sums of a dot product.
const SUMS: usize = 8;

/// One head at one row.
#[derive(Debug, Clone, Copy)]
pub struct SsdRow<'a> {
    /// The step.
    pub dt: f32,
    /// Multiplies the state.
    pub decay: f32,
    /// `D`, which multiplies the input.
    pub skip: f32,
    /// `[dim]`.
    pub x: &'a [f32],
    /// `[size]`.
    pub b: &'a [f32],
    /// `[size]`.
    pub c: &'a [f32],
}

impl SsdRow<'_> {
    /// Computes one row: the state after it from the state before it, both `[dim, size]`, and the output `[dim]`.
    #[inline(always)]
    pub fn run(&self, before: &[f32], after: &mut [f32], y: &mut [f32]) {
        let size = self.b.len();
        let lines = before.chunks_exact(size).zip(after.chunks_exact_mut(size));
        for (((from, to), x), y) in lines.zip(self.x).zip(y) {
            let dx = x * self.dt;
            for ((to, from), b) in to.iter_mut().zip(from).zip(self.b) {
                *to = from * self.decay + dx * b;
            }
            *y = dot(to, self.c) + self.skip * x;
        }
    }
}

/// Many rows of one head.
#[derive(Debug)]
pub struct SsdRows<'a, 'b> {
    /// The rows.
    pub rows: &'a [SsdRow<'a>],
    /// The state before the first row, `[dim, size]`.
    pub before: &'a [f32],
    /// The states after the last rows.
    pub after: &'a mut [&'b mut [f32]],
    /// `[rows, dim]`.
    pub y: &'a mut [f32],
}

/// Computes many rows of a head: the same as [`SsdRow::run`] for one row after another.
///
/// # Panics
/// If sizes do not fit.
pub fn ssd_rows(rows: SsdRows<'_, '_>) {
    ssd_rows_on(Isa::best(), rows);
}

/// Computes [`ssd_rows`] with the vectors of one instruction set.
fn ssd_rows_on(isa: Isa, rows: SsdRows<'_, '_>) {
    dispatch(isa, false, rows);
}

impl VectorTask for SsdRows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, before, after, y } = self;
        let Some(first) = rows.first() else { return };
        let dim = first.x.len();
        let size = first.b.len();
        let unkept = rows.len().saturating_sub(after.len());
        let mut lines = Vec::new();
        let state = room(&mut lines, size * LANES);
        for low in (0..dim).step_by(LANES) {
            let high = dim.min(low + LANES);
            read_lines(s, &before[low * size..high * size], size, state);
            for (n, (row, y)) in rows.iter().zip(y.chunks_exact_mut(dim)).enumerate() {
                let mut x = [0.0; LANES];
                x[..high - low].copy_from_slice(&row.x[low..high]);
                let mut outputs = Line([0.0; LANES]);
                advance(s, row, &x, state, &mut outputs);
                y[low..high].copy_from_slice(&outputs.0[..high - low]);
                if let Some(after_index) = n.checked_sub(unkept) {
                    write_lines(s, state, size, &mut after[after_index][low * size..high * size]);
                }
            }
        }
    }
}

/// Puts up to sixteen lines of a state, `[lines, size]`, side by side: `[size, LANES]`.
#[inline(always)]
fn read_lines<S: Simd>(s: S, lines: &[f32], size: usize, state: &mut [f32]) {
    if size.is_multiple_of(LANES) && lines.len() == size * LANES {
        return transpose(s, lines, size, LANES, size, state);
    }
    state.fill(0.0);
    for (lane, line) in lines.chunks_exact(size).enumerate() {
        for (at, x) in line.iter().enumerate() {
            state[at * LANES + lane] = *x;
        }
    }
}

/// Puts lines back that [`read_lines`] has read.
#[inline(always)]
fn write_lines<S: Simd>(s: S, state: &[f32], size: usize, lines: &mut [f32]) {
    if size.is_multiple_of(LANES) && lines.len() == size * LANES {
        return transpose(s, state, LANES, size, LANES, lines);
    }
    for (lane, line) in lines.chunks_exact_mut(size).enumerate() {
        for (at, x) in line.iter_mut().enumerate() {
            *x = state[at * LANES + lane];
        }
    }
}

/// Moves sixteen lines of a state, `[size, LANES]`, past one row, and reads them.
#[inline(always)]
fn advance<S: Simd>(s: S, row: &SsdRow<'_>, x: &[f32; LANES], state: &mut [f32], y: &mut Line) {
    let size = row.b.len();
    assert!(row.c.len() == size && state.len() == size * LANES, "sizes of a head");
    // As `dot` begins.
    let nothing = std::iter::empty::<f32>().sum::<f32>();
    // SAFETY: the lengths were just checked.
    unsafe {
        let x = s.read16(x.as_ptr().cast());
        let decay = s.splat16(row.decay);
        let dx = x * s.splat16(row.dt);
        let b = row.b.as_ptr();
        let c = row.c.as_ptr();
        let state = state.as_mut_ptr();
        let mut sums = [s.splat16(0.0); SUMS];
        let mut tail = s.splat16(nothing);
        let tail_start = size / SUMS * SUMS;
        for from in (0..tail_start).step_by(SUMS) {
            for (n, sum) in sums.iter_mut().enumerate() {
                let at = from + n;
                let lanes = state.add(at * LANES);
                let next = s.read16(lanes.cast()) * decay + dx * s.splat16(*b.add(at));
                s.write16(next, lanes);
                *sum = *sum + next * s.splat16(*c.add(at));
            }
        }
        for at in tail_start..size {
            let lanes = state.add(at * LANES);
            let next = s.read16(lanes.cast()) * decay + dx * s.splat16(*b.add(at));
            s.write16(next, lanes);
            tail = tail + next * s.splat16(*c.add(at));
        }
        let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
        let low = s0 + s4 + (s1 + s5);
        let read = low + (s2 + s6 + (s3 + s7)) + tail;
        s.store16(read + s.splat16(row.skip) * x, &mut y.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bits, random_numbers};
    use super::*;

    #[test]
    fn many_rows_give_the_bits_of_single_rows() {
        let mut seed = 7_u32;
        for (dim, size, count, kept_count) in
            [(1, 1, 3, 1), (16, 8, 5, 0), (17, 10, 4, 4), (64, 256, 9, 3), (5, 33, 2, 2)]
        {
            let x = random_numbers(&mut seed, count * dim);
            let b = random_numbers(&mut seed, count * size);
            let c = random_numbers(&mut seed, count * size);
            let dt = random_numbers(&mut seed, count);
            let decay = random_numbers(&mut seed, count);
            let before = random_numbers(&mut seed, dim * size);
            let rows: Vec<SsdRow<'_>> = (0..count)
                .map(|n| SsdRow {
                    dt: dt[n],
                    decay: decay[n],
                    skip: 0.3,
                    x: &x[n * dim..][..dim],
                    b: &b[n * size..][..size],
                    c: &c[n * size..][..size],
                })
                .collect();
            let mut want = Vec::new();
            let mut states = vec![before.clone()];
            for row in &rows {
                let mut after = vec![0.0; dim * size];
                let mut y = vec![0.0; dim];
                row.run(&states[states.len() - 1], &mut after, &mut y);
                states.push(after);
                want.extend(y);
            }
            for isa in Isa::available() {
                let mut places = vec![vec![f32::NAN; dim * size]; kept_count];
                let mut after: Vec<&mut [f32]> = places.iter_mut().map(Vec::as_mut_slice).collect();
                let mut y = vec![0.0; count * dim];
                let before = &before;
                ssd_rows_on(isa, SsdRows { rows: &rows, before, after: &mut after, y: &mut y });
                assert_eq!(bits(&y), bits(&want), "{isa:?}: outputs of {dim} by {size}");
                assert_eq!(
                    places,
                    states[count + 1 - kept_count..],
                    "{isa:?}: states of {dim} by {size}"
                );
            }
        }
    }
}
