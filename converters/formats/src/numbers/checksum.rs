//! Checksums of values in memory.

/// Number of sums that are computed side by side.
const LANES: usize = 32;
/// Odd, so that every step can be undone: 2^32 and 2^64 over the golden ratio.
const FACTORS: (u32, u64) = (0x9e37_79b1, 0x9e37_79b9_7f4a_7c15);

lanes::widest! {
    /// Returns a checksum of values. Two lists that differ in one value have different checksums.
    pub fn checksum(numbers: &[f32]) -> u64 = plain_checksum;
}

#[inline(always)]
fn plain_checksum(numbers: &[f32]) -> u64 {
    let mut lanes = [0_u32; LANES];
    let (chunks, last) = numbers.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(last) {
        *lane = step(*lane, x);
    }
    lanes.into_iter().fold(numbers.len() as u64, |sum, lane| {
        (sum.rotate_left(29) ^ u64::from(lane)).wrapping_mul(FACTORS.1)
    })
}

/// Returns the sum of a lane with a value added.
#[inline(always)]
fn step(lane: u32, x: f32) -> u32 {
    (lane.rotate_left(5) ^ x.to_bits()).wrapping_mul(FACTORS.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_exchanged_value_changes_the_checksum() {
        let numbers: Vec<f32> = (0..101_u16).map(|n| f32::from(n) * 0.37).collect();
        let sound = checksum(&numbers);
        assert_eq!(sound, plain_checksum(&numbers));
        for at in 0..100 {
            let mut changed = numbers.clone();
            changed[at] = f32::from_bits(changed[at].to_bits() ^ 1);
            assert_ne!(checksum(&changed), sound, "{at}");
            let mut exchanged = numbers.clone();
            exchanged.swap(at, at + 1);
            assert_ne!(checksum(&exchanged), sound, "{at}");
        }
        assert_ne!(checksum(&numbers[..100]), sound);
    }
}
