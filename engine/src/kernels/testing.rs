//! Numbers for the tests of kernels.

/// Numbers from -1 to 1 that follow from a seed, which moves on.
pub(super) fn random_numbers(seed: &mut u32, count: usize) -> Vec<f32> {
    let numbers = (0..count).map(|_| {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    numbers.collect()
}

/// Returns the bits of numbers, which tell apart what `==` does not.
pub(super) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
