//! Vectorized Q6_K, with one group of 16 per lane.

use crate::codec::q6_k;
use crate::codec::simd::{Groups, SignedLanes, SimdEncoder, signed};

pub(in crate::codec) struct Q6K;

impl SimdEncoder for Q6K {
    #[inline(always)]
    fn encode<S: Groups>(
        simd: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        let rows = numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 256 * 210));
        for (numbers, out) in rows {
            let blocks = numbers.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<210>().0);
            for (n, (x, block)) in blocks.enumerate() {
                let importance = importance.map(|all| &all.as_chunks::<256>().0[n]);
                encode_block(simd, x, importance, block);
            }
        }
    }
}

#[inline(always)]
fn encode_block<S: Groups>(
    s: S,
    numbers: &[f32; 256],
    importance: Option<&[f32; 256]>,
    block: &mut [u8; 210],
) {
    let groups = numbers.as_chunks::<16>().0;
    let importance = importance.map(|all| all.as_chunks::<16>().0);
    let mut scales = [0.0; 16];
    let mut fits = [SignedLanes::default(), SignedLanes::default()];
    // Eight lanes need two iterations, sixteen one.
    for (part, (fit, scales)) in fits.iter_mut().zip(scales.chunks_exact_mut(S::LANES)).enumerate()
    {
        let mut x = [s.splat(0.0); 16];
        s.columns(&groups[part * S::LANES..][..S::LANES], &mut x);
        let mut weights = x;
        match importance {
            Some(importance) => {
                s.columns(&importance[part * S::LANES..][..S::LANES], &mut weights);
            }
            None => {
                for weight in &mut weights {
                    *weight = *weight * *weight;
                }
            }
        }
        *fit = signed(s, 32.0, &x, &weights);
        scales.copy_from_slice(&fit.scale[..S::LANES]);
    }
    q6_k::finish(
        numbers,
        &scales,
        |j: usize| fits[j / S::LANES].levels(j % S::LANES, 32, &groups[j]),
        block,
    );
}
