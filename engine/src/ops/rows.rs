//! Loops over rows, on all threads when there is enough to do.

use rayon::prelude::*;

/// Numbers below which one thread is faster than several.
const PARALLEL: usize = 1 << 15;

/// Makes each output row from the input row of the same index.
pub(super) fn map(
    x: &[f32],
    width: usize,
    out_width: usize,
    each: impl Fn(usize, &[f32], &mut [f32]) + Sync,
) -> Vec<f32> {
    let rows = x.len().checked_div(width).unwrap_or(0);
    let mut y = vec![0.0; rows * out_width];
    if out_width == 0 {
        return y;
    }
    if x.len() < PARALLEL || rows < 2 {
        for (n, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(out_width)).enumerate() {
            each(n, x, y);
        }
    } else {
        let batch = rows.div_ceil(rayon::current_num_threads() * 4).max(1);
        x.par_chunks(width * batch).zip(y.par_chunks_mut(out_width * batch)).enumerate().for_each(
            |(b, (x, y))| {
                for (n, (x, y)) in
                    x.chunks_exact(width).zip(y.chunks_exact_mut(out_width)).enumerate()
                {
                    each(b * batch + n, x, y);
                }
            },
        );
    }
    y
}

/// Makes a vector of the length of `x`, piece by piece; pieces are short enough for the cache.
pub(super) fn pieces(x: &[f32], each: impl Fn(usize, &[f32], &mut [f32]) + Sync) -> Vec<f32> {
    const PIECE: usize = 4096;
    let mut y = vec![0.0; x.len()];
    if x.len() < PARALLEL {
        for (n, (x, y)) in x.chunks(PIECE).zip(y.chunks_mut(PIECE)).enumerate() {
            each(n * PIECE, x, y);
        }
    } else {
        x.par_chunks(PIECE)
            .zip(y.par_chunks_mut(PIECE))
            .enumerate()
            .for_each(|(n, (x, y))| each(n * PIECE, x, y));
    }
    y
}
