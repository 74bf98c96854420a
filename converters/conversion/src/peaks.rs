//! Finds the largest absolute value of a tensor, which must be known before anything is written.

use std::ops::Range;

use rayon::prelude::*;

use checkpoints::flow::Flow;
use formats::numbers::first_not_finite;

/// Values read at a time.
const SLAB: usize = 1 << 18;

/// Runs a closure in a pool of `threads` threads.
pub(super) fn in_threads<T: Send>(
    threads: usize,
    run: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    Ok(pool.map_err(|e| format!("cannot start {threads} threads: {e}"))?.install(run))
}

/// Returns the largest absolute value in a range of a tensor, read in slabs.
pub(super) fn peak(name: &str, flow: &Flow<'_>, numbers: Range<usize>) -> Result<f32, String> {
    let slabs: Vec<usize> = numbers.clone().step_by(SLAB).collect();
    let largest = |at: &usize| {
        let mut slab = vec![0.0_f32; SLAB.min(numbers.end - at)];
        flow.read(*at, &mut slab);
        // A maximum would drop NaN, and an infinite peak is no valid scale.
        match first_not_finite(&slab) {
            Some(n) => {
                let (name, at, x) = (formats::shown(name), at + n, slab[n]);
                Err(format!("tensor `{name}` cannot be quantized: number {at} is {x}"))
            }
            None => Ok(slab.iter().fold(0.0_f32, |most, x| most.max(x.abs()))),
        }
    };
    slabs.par_iter().map(largest).try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
}
