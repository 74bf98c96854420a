//! The inner loops of attention: a few rows of numbers times a packed tile.
//!
//! A tile has sixteen lanes per vector. Each lane is one sum, over steps of two numbers: first the odd one, then
//! the even one, each by a fused multiply-add. This is the order of `vdpbf16ps`.
#![expect(unsafe_code, reason = "intrinsics and raw loops over checked slices")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use crate::kernels::isa::Isa;

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

/// Work that is compiled once for each kind of vectors.
pub(in crate::kernels) trait VectorTask {
    type Output;
    /// Runs the work; always inlined.
    fn run<V: Vectors>(self) -> Self::Output;
}

/// Vectors of sixteen sums.
///
/// # Safety
/// Every function needs the CPU features of its implementation; pointers must be readable (or writable) for
/// sixteen numbers, that of `splat` for one.
pub(in crate::kernels) trait Vectors: Copy {
    /// True if factors are pairs of bf16; otherwise they are f32.
    const PAIRS: bool;
    /// Rows of the largest register tile.
    const ROWS: usize;
    /// Vectors of the largest register tile.
    const WIDE: usize;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn splat(from: *const f32) -> Self;
    /// Adds `a * b` to the sums.
    unsafe fn add(self, a: Self, b: Self) -> Self;
    /// Multiplies numbers in f32.
    unsafe fn times(self, by: Self) -> Self;
    /// Adds numbers in f32.
    unsafe fn plus(self, other: Self) -> Self;
    /// Transposes sixteen words of each of sixteen rows. Reads sixteen words at `from` and every `from_stride`
    /// words on, and writes sixteen at `to` and every `to_stride` words on.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for word in 0..LANES {
            for row in 0..LANES {
                // SAFETY: the caller's promise.
                unsafe { *to.add(word * to_stride + row) = *from.add(row * from_stride + word) };
            }
        }
    }
    /// Runs a register tile, compiled for the CPU features.
    unsafe fn tile<const R: usize, const N: usize>(tile: RegisterTile);
    /// Runs a task, compiled for the CPU features.
    unsafe fn compiled<T: VectorTask>(task: T) -> T::Output;
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
    pub(super) fn multiply<V: Vectors>(&self, y: &mut [f32], y_stride: usize, fresh: bool) {
        let words = if V::PAIRS { self.steps } else { 2 * self.steps };
        let rows = self.rows;
        let width = self.vectors * LANES;
        if rows == 0 || width == 0 || words == 0 {
            return;
        }
        assert!(self.a.len() >= (rows - 1) * self.a_stride + words, "rows of factors");
        assert!(self.b_stride >= width, "lines of a tile");
        assert!(self.b.len() >= (words - 1) * self.b_stride + width, "a tile of factors");
        assert!(y.len() >= (rows - 1) * y_stride + width, "rows of sums");
        let mut row = 0;
        while row < rows {
            let height = (rows - row).min(V::ROWS);
            let mut vector = 0;
            while vector < self.vectors {
                let wide = if self.vectors - vector >= V::WIDE { V::WIDE } else { 1 };
                // SAFETY: the lengths were just checked. The kinds of vectors are chosen by `dispatch`, which
                // asks the CPU.
                unsafe {
                    let tile = RegisterTile {
                        a: self.a.as_ptr().add(row * self.a_stride),
                        a_stride: self.a_stride,
                        b: self.b.as_ptr().add(vector * LANES),
                        b_stride: self.b_stride,
                        steps: self.steps,
                        y: y.as_mut_ptr().add(row * y_stride + vector * LANES),
                        y_stride,
                        fresh,
                    };
                    match (height, wide) {
                        (1, 1) => V::tile::<1, 1>(tile),
                        (2, 1) => V::tile::<2, 1>(tile),
                        (3, 1) => V::tile::<3, 1>(tile),
                        (4, 1) => V::tile::<4, 1>(tile),
                        (5, 1) => V::tile::<5, 1>(tile),
                        (_, 1) => V::tile::<6, 1>(tile),
                        (1, _) => V::tile::<1, 4>(tile),
                        (2, _) => V::tile::<2, 4>(tile),
                        (3, _) => V::tile::<3, 4>(tile),
                        (4, _) => V::tile::<4, 4>(tile),
                        (5, _) => V::tile::<5, 4>(tile),
                        (_, _) => V::tile::<6, 4>(tile),
                    }
                }
                vector += wide;
            }
            row += height;
        }
    }
}

/// Transposes `rows` rows of `words` words, both multiples of sixteen, into a tile. The rows are `stride` words apart.
#[inline(always)]
pub(in crate::kernels) fn transpose<V: Vectors>(
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
            // SAFETY: the block lies in the slices, as just checked; `V` was chosen by `dispatch`.
            unsafe {
                let from = from.as_ptr().add(row * stride + word);
                V::transpose(from, stride, to.as_mut_ptr().add(word * rows + row), rows);
            }
        }
    }
}

/// Runs a task with the best vectors of an instruction set.
pub(in crate::kernels) fn dispatch<T: VectorTask>(isa: Isa, pairs: bool, task: T) -> T::Output {
    assert!(isa.available(), "this CPU has no {isa:?}");
    assert!(!pairs || isa == Isa::Avx512Bf16, "pairs need AVX512-BF16");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the CPU has the instruction set, as just asked.
    unsafe {
        match isa {
            Isa::Portable => PlainVectors::compiled(task),
            Isa::Avx2 => x86::Vectors256::compiled(task),
            Isa::Avx512Bf16 if pairs => x86::Pairs512::compiled(task),
            Isa::Avx512 | Isa::Avx512Bf16 => x86::Vectors512::compiled(task),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: plain vectors need no CPU feature.
    unsafe {
        PlainVectors::compiled(task)
    }
}

/// Computes one register tile.
///
/// # Safety
/// As [`Vectors`], for every row, step and vector that `tile` names.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "these unroll before the sums become registers")]
unsafe fn register_tile<V: Vectors, const R: usize, const N: usize>(tile: RegisterTile) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        if !tile.fresh {
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = V::load(tile.y.add(r * tile.y_stride + n * LANES));
                }
            }
        }
        for step in 0..tile.steps {
            // The odd number of a pair comes first.
            for word in if V::PAIRS { 0..1 } else { 0..2 } {
                let at = if V::PAIRS { step } else { 2 * step + 1 - word };
                let b = tile.b.add(at * tile.b_stride);
                let mut factors = [V::zero(); N];
                for n in 0..N {
                    factors[n] = V::load(b.add(n * LANES));
                }
                for r in 0..R {
                    let a = V::splat(tile.a.add(r * tile.a_stride + at));
                    for n in 0..N {
                        sums[r][n] = sums[r][n].add(a, factors[n]);
                    }
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                sums[r][n].store(tile.y.add(r * tile.y_stride + n * LANES));
            }
        }
    }
}

/// Plain arrays.
#[derive(Clone, Copy)]
struct PlainVectors([f32; LANES]);

impl Vectors for PlainVectors {
    const PAIRS: bool = false;
    const ROWS: usize = 2;
    const WIDE: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller lets sixteen numbers be read.
        unsafe { Self(from.cast::<[f32; LANES]>().read()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller lets sixteen numbers be written.
        unsafe { to.cast::<[f32; LANES]>().write(self.0) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: the caller lets one number be read.
        unsafe { Self([from.read(); LANES]) }
    }
    #[inline(always)]
    unsafe fn add(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|l| a.0[l].mul_add(b.0[l], self.0[l])))
    }
    #[inline(always)]
    unsafe fn times(self, by: Self) -> Self {
        Self(std::array::from_fn(|l| self.0[l] * by.0[l]))
    }
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|l| self.0[l] + other.0[l]))
    }
    unsafe fn tile<const R: usize, const N: usize>(tile: RegisterTile) {
        // SAFETY: the caller's promise.
        unsafe { register_tile::<Self, R, N>(tile) }
    }
    unsafe fn compiled<T: VectorTask>(task: T) -> T::Output {
        task.run::<Self>()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Vectors of AVX2 and AVX-512.

    use std::arch::x86_64::{
        __m256, __m512, __m512bh, _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps,
        _mm256_loadu_ps, _mm256_mul_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm512_add_ps,
        _mm512_castpd_ps, _mm512_castps_pd, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps,
        _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    };

    use super::{LANES, RegisterTile, VectorTask, Vectors, register_tile};

    #[derive(Clone, Copy)]
    pub(super) struct Vectors256(__m256, __m256);

    impl Vectors for Vectors256 {
        const PAIRS: bool = false;
        const ROWS: usize = 6;
        const WIDE: usize = 1;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller lets sixteen numbers be read.
            unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller lets sixteen numbers be written.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn splat(from: *const f32) -> Self {
            // SAFETY: the caller lets one number be read.
            unsafe {
                let all = _mm256_broadcast_ss(&*from);
                Self(all, all)
            }
        }
        #[inline(always)]
        unsafe fn add(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
        }
        #[inline(always)]
        unsafe fn times(self, by: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm256_mul_ps(self.0, by.0), _mm256_mul_ps(self.1, by.1)) }
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)]
        unsafe fn tile<const R: usize, const N: usize>(tile: RegisterTile) {
            // SAFETY: the caller's promise.
            unsafe { register_tile::<Self, R, N>(tile) }
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn compiled<T: VectorTask>(task: T) -> T::Output {
            task.run::<Self>()
        }
    }

    #[derive(Clone, Copy)]
    pub(super) struct Vectors512(__m512);

    impl Vectors for Vectors512 {
        const PAIRS: bool = false;
        const ROWS: usize = 6;
        const WIDE: usize = 4;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm512_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller lets sixteen numbers be read.
            unsafe { Self(_mm512_loadu_ps(from)) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller lets sixteen numbers be written.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn splat(from: *const f32) -> Self {
            // SAFETY: the caller lets one number be read.
            unsafe { Self(_mm512_set1_ps(*from)) }
        }
        #[inline(always)]
        unsafe fn add(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm512_fmadd_ps(a.0, b.0, self.0)) }
        }
        #[inline(always)]
        unsafe fn times(self, by: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm512_mul_ps(self.0, by.0)) }
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm512_add_ps(self.0, other.0)) }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            // SAFETY: the caller's promise.
            unsafe { transpose(from, from_stride, to, to_stride) }
        }
        #[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
        #[inline(never)]
        unsafe fn tile<const R: usize, const N: usize>(tile: RegisterTile) {
            // SAFETY: the caller's promise.
            unsafe { register_tile::<Self, R, N>(tile) }
        }
        #[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
        unsafe fn compiled<T: VectorTask>(task: T) -> T::Output {
            task.run::<Self>()
        }
    }

    /// Transposes a block of sixteen by sixteen words.
    ///
    /// # Safety
    /// As [`Vectors::transpose`], on a CPU with AVX-512F.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let zero = _mm512_setzero_ps();
            let mut a = [zero; LANES];
            let mut b = [zero; LANES];
            for (n, a) in a.iter_mut().enumerate() {
                *a = _mm512_loadu_ps(from.add(n * from_stride));
            }
            for n in 0..8 {
                b[2 * n] = _mm512_unpacklo_ps(a[2 * n], a[2 * n + 1]);
                b[2 * n + 1] = _mm512_unpackhi_ps(a[2 * n], a[2 * n + 1]);
            }
            // Afterwards quarter `l` of `a[4 n + m]` holds word `4 l + m` of rows `4 n` to `4 n + 3`.
            for n in 0..4 {
                for half in 0..2 {
                    let x = _mm512_castps_pd(b[4 * n + half]);
                    let y = _mm512_castps_pd(b[4 * n + half + 2]);
                    a[4 * n + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                    a[4 * n + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
                }
            }
            for m in 0..4 {
                let even_low = _mm512_shuffle_f32x4::<0x88>(a[m], a[4 + m]);
                let odd_low = _mm512_shuffle_f32x4::<0xdd>(a[m], a[4 + m]);
                let even_high = _mm512_shuffle_f32x4::<0x88>(a[8 + m], a[12 + m]);
                let odd_high = _mm512_shuffle_f32x4::<0xdd>(a[8 + m], a[12 + m]);
                let rows = [
                    (m, _mm512_shuffle_f32x4::<0x88>(even_low, even_high)),
                    (4 + m, _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high)),
                    (8 + m, _mm512_shuffle_f32x4::<0xdd>(even_low, even_high)),
                    (12 + m, _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high)),
                ];
                for (row, words) in rows {
                    _mm512_storeu_ps(to.add(row * to_stride), words);
                }
            }
        }
    }

    /// Sums of products of pairs of bf16.
    #[derive(Clone, Copy)]
    pub(super) struct Pairs512(__m512);

    impl Vectors for Pairs512 {
        const PAIRS: bool = true;
        const ROWS: usize = 6;
        const WIDE: usize = 4;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm512_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller lets sixteen words be read.
            unsafe { Self(_mm512_loadu_ps(from)) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller lets sixteen words be written.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn splat(from: *const f32) -> Self {
            // SAFETY: the caller lets one word be read.
            unsafe { Self(_mm512_set1_ps(*from)) }
        }
        #[inline(always)]
        unsafe fn add(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has the CPU features; the types are 512 plain bits.
            unsafe {
                let a = std::mem::transmute::<__m512, __m512bh>(a.0);
                let b = std::mem::transmute::<__m512, __m512bh>(b.0);
                Self(_mm512_dpbf16_ps(self.0, a, b))
            }
        }
        #[inline(always)]
        unsafe fn times(self, by: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm512_mul_ps(self.0, by.0)) }
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            // SAFETY: the caller has the CPU features.
            unsafe { Self(_mm512_add_ps(self.0, other.0)) }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            // SAFETY: the caller's promise.
            unsafe { transpose(from, from_stride, to, to_stride) }
        }
        #[target_feature(enable = "avx512f,avx512vl,avx512bf16,avx2,fma,f16c")]
        #[inline(never)]
        unsafe fn tile<const R: usize, const N: usize>(tile: RegisterTile) {
            // SAFETY: the caller's promise.
            unsafe { register_tile::<Self, R, N>(tile) }
        }
        #[target_feature(enable = "avx512f,avx512vl,avx512bf16,avx2,fma,f16c")]
        unsafe fn compiled<T: VectorTask>(task: T) -> T::Output {
            task.run::<Self>()
        }
    }
}
