//! The largest number of a tensor, which has to be known before the first is written.

use std::ops::Range;

use rayon::prelude::*;

use checkpoints::flow::Flow;
use formats::numbers::first_not_finite;

/// Numbers read at a time.
const SLAB: usize = 1 << 18;

/// Runs something with so many threads.
pub(super) fn in_threads<T: Send>(
    threads: usize,
    run: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    Ok(pool.map_err(|e| format!("cannot start {threads} threads: {e}"))?.install(run))
}

/// The largest of some numbers of a tensor, read in slabs.
pub(super) fn peak(name: &str, flow: &Flow<'_>, numbers: Range<usize>) -> Result<f32, String> {
    let slabs: Vec<usize> = numbers.clone().step_by(SLAB).collect();
    let largest = |at: &usize| {
        let mut slab = vec![0.0_f32; SLAB.min(numbers.end - at)];
        flow.read(*at, &mut slab);
        // NaN would be lost in a maximum, and infinity is as bad.
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
