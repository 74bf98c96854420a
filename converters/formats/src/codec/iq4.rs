//! IQ4_NL and IQ4_XS: levels of 4 bits that index 16 unevenly spread values.
//!
//! IQ4_NL: `d` (f16), `qs[16]` for 32 values. IQ4_XS: `d`, `scales_h` (u16), `scales_l[4]`, `qs[128]` for
//! 256 values in 8 groups with scales of 6 bits. `qs` as in Q4_0.

use super::BlockType;
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{
    blocks, each_block, error_weights, get_f16, peak, put_f16, squares, weights_of,
};
use super::levels::Levels;
use super::nibbles::{join4, split4};
use super::rounding::nearest;
use super::search::TINY;

pub(super) const IQ4_NL: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| to.set(get_f16(block, 0), &split4(&block[2..]), entry)),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.0755),
    file_types: &[FileType::new("IQ4_NL", 25)],
    encode: Some(|numbers, row, importance, out| match importance {
        None => {
            for (x, block) in blocks::<32, 18>(numbers, out) {
                encode_nl(x, None, block);
            }
        }
        Some(importance) => {
            let weights = weights_of::<32>(importance, numbers.len() / row);
            for ((x, block), importance) in blocks::<32, 18>(numbers, out).zip(weights) {
                encode_nl(x, Some(importance), block);
            }
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<18, 32>(bytes, out, |block, out| {
            let d = get_f16(block, 0);
            *out = split4(&block[2..]).map(|q| d * value(q));
        });
    }),
    ..BlockDeclaration::new("IQ4_NL", 20, 32, 18)
};

pub(super) const IQ4_XS: BlockDeclaration = BlockDeclaration {
    levels: Some(levels_xs),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.0768),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ4_XS", 30)],
    encode: Some(|numbers, row, importance, out| match importance {
        None => {
            for (x, block) in blocks::<256, 136>(numbers, out) {
                encode_xs(x, None, block);
            }
        }
        Some(importance) => {
            let weights = weights_of::<256>(importance, numbers.len() / row);
            for ((x, block), importance) in blocks::<256, 136>(numbers, out).zip(weights) {
                encode_xs(x, Some(importance), block);
            }
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<136, 256>(bytes, out, |block, out| {
            let d = get_f16(block, 0);
            let high = u16::from_le_bytes([block[2], block[3]]);
            let groups = out.as_chunks_mut::<32>().0.iter_mut();
            for (j, (out, bytes)) in groups.zip(block[8..].as_chunks::<16>().0).enumerate() {
                let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
                let scale = low as i32 | ((high >> (2 * j) & 3) as i32) << 4;
                let scale = d * (scale - 32) as f32;
                *out = split4(bytes).map(|q| scale * value(q));
            }
        });
    }),
    ..BlockDeclaration::new("IQ4_XS", 23, 256, 136)
};

/// Values of the levels (`kvalues_iq4nl`).
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn value(level: u8) -> f32 {
    VALUES[level as usize & 15] as f32
}

/// Returns the integer that a level encodes.
pub(super) fn entry(level: u8) -> i8 {
    VALUES[level as usize & 15]
}

/// Reads a block of IQ4_XS as levels.
pub(super) fn levels_xs(block: &[u8], to: &mut Levels) {
    to.d = get_f16(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    to.scales32(std::array::from_fn(|j| {
        let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
        (low as i8 | ((high >> (2 * j) & 3) as i8) << 4) - 32
    }));
    let groups = to.levels.as_chunks_mut::<32>().0.iter_mut();
    for (levels, bytes) in groups.zip(block[8..].as_chunks::<16>().0) {
        *levels = split4(bytes).map(entry);
    }
}

/// Returns the level whose value is nearest; in a tie, the upper.
fn level(x: f32) -> u8 {
    let above = VALUES.iter().position(|&value| x < value as f32).unwrap_or(16);
    if above == 0 || x <= VALUES[0] as f32 {
        return 0;
    }
    if above == 16 {
        return 15;
    }
    let (low, high) = (VALUES[above - 1] as f32, VALUES[above] as f32);
    (if x - low < high - x { above - 1 } else { above }) as u8
}

/// Finds the scale of a group by trying those that put the peak near the lowest value.
fn fit(x: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let max = peak(x);
    if max.abs() < TINY {
        return 0.0;
    }
    let sums = |inverse: f32| {
        let (mut xq, mut q2) = (0.0_f32, 0.0_f32);
        for (&x, &w) in x.iter().zip(weights) {
            let q = value(level(inverse * x));
            xq += w * q * x;
            q2 += w * q * q;
        }
        (xq, q2)
    };
    let lowest = value(0);
    let (xq, q2) = sums(1.0 / (-max / lowest));
    let mut scale = if q2 > 0.0 { xq / q2 } else { 0.0 };
    let mut best = scale * xq;
    for step in -7_i8..=7 {
        let (xq, q2) = sums((step as f32 + lowest) / max);
        if q2 > 0.0 && xq * xq > best * q2 {
            scale = xq / q2;
            best = scale * xq;
        }
    }
    scale
}

/// Returns the error weights: by importance, or `x*x`.
fn weigh(x: &[f32; 32], importance: Option<&[f32; 32]>, variance: f32) -> [f32; 32] {
    match importance {
        Some(importance) => error_weights(x, importance, variance),
        None => x.map(|x| x * x),
    }
}

fn encode_nl(x: &[f32; 32], importance: Option<&[f32; 32]>, block: &mut [u8; 18]) {
    let variance = squares(x) * (2.0 / 32.0);
    let scale = fit(x, &weigh(x, importance, variance));
    put_f16(block, 0, scale);
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    join4(&x.map(|x| level(inverse * x)), &mut block[2..]);
}

fn encode_xs(x: &[f32; 256], importance: Option<&[f32; 256]>, block: &mut [u8; 136]) {
    let variance = squares(x) * (2.0 / 256.0);
    let groups = x.as_chunks::<32>().0;
    let mut scales = [0.0; 8];
    for (j, x) in groups.iter().enumerate() {
        let importance = importance.map(|all| &all.as_chunks::<32>().0[j]);
        scales[j] = fit(x, &weigh(x, importance, variance));
    }
    let d = -peak(&scales) / 32.0;
    put_f16(block, 0, d);
    block[2..8].fill(0);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut high = 0_u16;
    for (j, x) in groups.iter().enumerate() {
        let scale = nearest(inverse * scales[j]).clamp(-32, 31);
        // The levels are chosen for the scale before it is rounded to f16.
        let inverse = d * scale as f32;
        let inverse = if inverse == 0.0 { 0.0 } else { 1.0 / inverse };
        join4(&x.map(|x| level(inverse * x)), &mut block[8 + 16 * j..]);
        let scale = (scale + 32) as u8;
        block[4 + j / 2] |= (scale & 15) << (4 * (j % 2));
        high |= (scale as u16 >> 4) << (2 * j);
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::{VALUES, level};

    #[test]
    fn ties_go_up_and_ends_hold() {
        assert_eq!(level(-1e30), 0);
        assert_eq!(level(f32::INFINITY), 15);
        assert_eq!(level(-127.0), 0);
        assert_eq!(level(7.0), 9, "halfway between 1 and 13");
        for (at, &value) in VALUES.iter().enumerate() {
            assert_eq!(level(value as f32) as usize, at);
        }
    }
}
