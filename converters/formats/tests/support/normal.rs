//! Generates values that resemble weights, the same on every machine.

/// Returns normally distributed values of a given width, rounded to bf16.
pub(crate) fn normal(count: usize, width: f32) -> Vec<f32> {
    let mut state = 1_u64;
    let numbers = (0..count).map(|_| {
        let radius = (-2.0 * uniform(&mut state).ln()).sqrt();
        let angle = std::f32::consts::TAU * uniform(&mut state);
        f32::from_bits((width * radius * angle.cos()).to_bits() & 0xffff_0000)
    });
    numbers.collect()
}

fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 40) as f32 + 0.5) / (1 << 24) as f32
}
