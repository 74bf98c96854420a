//! Finds the largest absolute value of a tensor, which must be known before anything is written.

use std::ops::Range;

use rayon::prelude::*;

use checkpoints::flow::Flow;
use formats::numbers::first_not_finite;

/// Reason that the largest value of a tensor is not known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("cannot start {threads} threads: {why}")]
    Threads { threads: usize, why: rayon::ThreadPoolBuildError },
    #[error("tensor `{tensor}` cannot be quantized: number {at} is {found}")]
    NotFinite { tensor: String, at: usize, found: f32 },
}

/// Values read at a time.
const SLAB: usize = 1 << 18;

/// Runs a closure in a pool of `threads` threads.
pub(super) fn in_threads<T: Send>(
    threads: usize,
    run: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    Ok(pool.map_err(|why| Error::Threads { threads, why })?.install(run))
}

/// Returns the largest absolute value in a range of a tensor, read in slabs.
pub(super) fn peak(name: &str, flow: &Flow<'_>, numbers: Range<usize>) -> Result<f32, Error> {
    let slabs: Vec<usize> = numbers.clone().step_by(SLAB).collect();
    let peaks = slabs.par_iter().map(|at| slab_peak(name, flow, *at..numbers.end));
    peaks.try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
}

/// Returns the largest absolute value of the first slab of these numbers.
fn slab_peak(name: &str, flow: &Flow<'_>, numbers: Range<usize>) -> Result<f32, Error> {
    let at = numbers.start;
    let mut slab = vec![0.0_f32; SLAB.min(numbers.end - at)];
    flow.read(at, &mut slab);
    // A maximum would drop NaN, and an infinite peak is no valid scale.
    match first_not_finite(&slab) {
        Some(n) => {
            let tensor = formats::shown(name);
            Err(Error::NotFinite { tensor, at: at + n, found: slab[n] })
        }
        None => Ok(slab.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()))),
    }
}
