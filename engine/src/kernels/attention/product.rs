//! The inner loops of attention: a few rows of numbers times a packed tile.
//!
//! A tile has sixteen lanes per vector. Each lane is one sum, over steps of two numbers: first the odd one, then
//! the even one, each by a fused multiply-add. This is the order of `vdpbf16ps`.
#![expect(unsafe_code, reason = "raw loops over checked slices")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use lanes::{Isa, Simd, VectorTask};

/// Lanes of a vector.
pub(in crate::kernels) const LANES: usize = 16;

/// One cache line: sixteen f32, or sixteen pairs of bf16 as bits.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::kernels) struct Line(pub(in crate::kernels) [f32; LANES]);

/// Makes room for `count` numbers, at the start of a cache line.
pub(in crate::kernels) fn room(lines: &mut Vec<Line>, count: usize) -> &mut [f32] {
    let needed = count.div_ceil(LANES);
    if lines.len() < needed {
        lines.resize(needed, Line([0.0; LANES]));
    }
    // SAFETY: a line is sixteen f32 without padding, and there are enough lines for `count`.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), count) }
}

/// The place of one register tile.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct RegisterTile {
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    steps: usize,
    y: *mut f32,
    y_stride: usize,
    fresh: bool,
}

/// Rows of factors times a tile: `y[row][lane] += Σ a[row][k] · b[k][lane]`.
#[derive(Clone, Copy)]
pub(super) struct TileProduct<'a> {
    /// The rows, `a_stride` words apart. A word is an f32 or a pair of bf16.
    pub(super) a: &'a [f32],
    pub(super) a_stride: usize,
    pub(super) rows: usize,
    /// The tile: lines of `vectors` vectors for each word, `b_stride` numbers apart.
    pub(super) b: &'a [f32],
    pub(super) b_stride: usize,
    pub(super) vectors: usize,
    /// Pairs of numbers in a row.
    pub(super) steps: usize,
}

impl TileProduct<'_> {
    /// Multiplies, into rows of `y` that are `y_stride` apart. Sums begin at zero if `fresh`, otherwise at `y`.
    #[inline(always)]
    pub(super) fn multiply<S: Simd>(&self, s: S, y: &mut [f32], y_stride: usize, fresh: bool) {
        let words = if S::PAIRS { self.steps } else { 2 * self.steps };
        let rows = self.rows;
        let width = self.vectors * LANES;
        if rows == 0 || width == 0 || words == 0 {
            return;
        }
        assert!(self.a.len() >= (rows - 1) * self.a_stride + words, "rows of factors");
        assert!(self.b_stride >= width, "lines of a tile");
        assert!(self.b.len() >= (words - 1) * self.b_stride + width, "a tile of factors");
        assert!(y.len() >= (rows - 1) * y_stride + width, "rows of sums");
        // Rows and vectors of the largest register tile.
        let tallest = if S::REGISTERS < 8 { 2 } else { 6 };
        let widest = if S::REGISTERS < 32 { 1 } else { 4 };
        let mut row = 0;
        while row < rows {
            let height = (rows - row).min(tallest);
            let mut vector = 0;
            while vector < self.vectors {
                let wide = if self.vectors - vector >= widest { widest } else { 1 };
                // SAFETY: the lengths were just checked.
                let tile = unsafe {
                    RegisterTile {
                        a: self.a.as_ptr().add(row * self.a_stride),
                        a_stride: self.a_stride,
                        b: self.b.as_ptr().add(vector * LANES),
                        b_stride: self.b_stride,
                        steps: self.steps,
                        y: y.as_mut_ptr().add(row * y_stride + vector * LANES),
                        y_stride,
                        fresh,
                    }
                };
                match (height, wide) {
                    (1, 1) => s.apart(TileTask::<1, 1>(tile)),
                    (2, 1) => s.apart(TileTask::<2, 1>(tile)),
                    (3, 1) => s.apart(TileTask::<3, 1>(tile)),
                    (4, 1) => s.apart(TileTask::<4, 1>(tile)),
                    (5, 1) => s.apart(TileTask::<5, 1>(tile)),
                    (_, 1) => s.apart(TileTask::<6, 1>(tile)),
                    (1, _) => s.apart(TileTask::<1, 4>(tile)),
                    (2, _) => s.apart(TileTask::<2, 4>(tile)),
                    (3, _) => s.apart(TileTask::<3, 4>(tile)),
                    (4, _) => s.apart(TileTask::<4, 4>(tile)),
                    (5, _) => s.apart(TileTask::<5, 4>(tile)),
                    (_, _) => s.apart(TileTask::<6, 4>(tile)),
                }
                vector += wide;
            }
            row += height;
        }
    }
}

/// Transposes `rows` rows of `words` words, both multiples of sixteen, into a tile. The rows are `stride` words apart.
#[inline(always)]
pub(in crate::kernels) fn transpose<S: Simd>(
    s: S,
    from: &[f32],
    stride: usize,
    rows: usize,
    words: usize,
    to: &mut [f32],
) {
    if rows == 0 {
        return;
    }
    assert!(rows.is_multiple_of(LANES) && words.is_multiple_of(LANES), "blocks of sixteen");
    assert!(from.len() >= (rows - 1) * stride + words && stride >= words, "room for the rows");
    assert!(to.len() >= rows * words, "room for the tile");
    for row in (0..rows).step_by(LANES) {
        for word in (0..words).step_by(LANES) {
            // SAFETY: the block lies in the slices, as just checked.
            unsafe {
                let from = from.as_ptr().add(row * stride + word);
                s.transpose16(from, stride, to.as_mut_ptr().add(word * rows + row), rows);
            }
        }
    }
}

/// Runs a task with the vectors of an instruction set; with products of pairs of bf16 if `pairs`.
pub(in crate::kernels) fn dispatch<T: VectorTask>(isa: Isa, pairs: bool, task: T) -> T::Output {
    assert!(!pairs || isa.has_pairs(), "{isa:?} has no products of pairs");
    if pairs { isa.run_pairs(task) } else { isa.run(task) }
}

/// One register tile, as a task of its own.
struct TileTask<const R: usize, const N: usize>(RegisterTile);

impl<const R: usize, const N: usize> VectorTask for TileTask<R, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `TileProduct::multiply` makes these tasks, and has checked the lengths.
        unsafe { register_tile::<S, R, N>(s, self.0) }
    }
}

/// Computes one register tile.
///
/// # Safety
/// Every row, step and vector that `tile` names is readable, and writable in `y`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "these unroll before the sums become registers")]
unsafe fn register_tile<S: Simd, const R: usize, const N: usize>(s: S, tile: RegisterTile) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[s.splat16(0.0); N]; R];
        if !tile.fresh {
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = s.read16(tile.y.add(r * tile.y_stride + n * LANES).cast());
                }
            }
        }
        for step in 0..tile.steps {
            // The odd number of a pair comes first.
            for word in if S::PAIRS { 0..1 } else { 0..2 } {
                let at = if S::PAIRS { step } else { 2 * step + 1 - word };
                let b = tile.b.add(at * tile.b_stride);
                let mut factors = [s.splat16(0.0); N];
                for n in 0..N {
                    factors[n] = s.read16(b.add(n * LANES).cast());
                }
                for r in 0..R {
                    let a = s.splat16(*tile.a.add(r * tile.a_stride + at));
                    for n in 0..N {
                        sums[r][n] = s.add_products16(sums[r][n], a, factors[n]);
                    }
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                s.write16(sums[r][n], tile.y.add(r * tile.y_stride + n * LANES));
            }
        }
    }
}
