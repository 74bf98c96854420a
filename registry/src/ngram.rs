//! Factors of the tokens in hashes of n-grams, as `ngram_embed` and expressions of specs use them.

/// The increment of SplitMix64 (Steele et al. 2014).
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a state of SplitMix64.
fn mixed(state: u64) -> u64 {
    let state = state.wrapping_add(GAMMA);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Draws the odd factors of tokens, so small that products with tokens below `vocab` are i64.
pub fn hash_factors(seed: i64, vocab: usize, count: usize) -> Vec<i64> {
    let largest = i64::MAX as u64 / (vocab as u64).max(1);
    let half = (largest / 2).max(1);
    let states =
        (1..=count as u64).map(|n: u64| seed.cast_unsigned().wrapping_add(GAMMA.wrapping_mul(n)));
    states.map(|state: u64| (2 * (mixed(state) % half) + 1).cast_signed()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_of_the_reference() {
        // `_build_layer_multipliers(314, 3, index, 99)` of transformers 5.24.
        let first = [22_387_177_874_071_135, 13_459_485_531_532_647, 15_073_507_670_513_327];
        assert_eq!(hash_factors(99, 314, 3), first);
        let second = [8_772_027_269_495_975, 2_341_893_790_360_803, 12_912_907_449_800_799];
        assert_eq!(hash_factors(99 + 10_007, 314, 3), second);
    }
}
