//! Signs of eight values: a byte, or seven bits if the number of negative signs is made even.

/// Splits eight values into magnitudes and sign bits, with a bit set for each negative value.
pub(super) fn split(x: &[f32; 8]) -> ([f32; 8], u8) {
    let mut signs = 0;
    let magnitudes = std::array::from_fn(|i| {
        if x[i] >= 0.0 {
            x[i]
        } else {
            signs |= 1 << i;
            -x[i]
        }
    });
    (magnitudes, signs)
}

/// Makes the number of negative signs even by flipping the least important value.
pub(super) fn make_even(x: &mut [f32; 8], weight: &[f32; 8], signs: u8) -> u8 {
    if signs.count_ones().is_multiple_of(2) {
        return signs;
    }
    let costs: [f32; 8] = std::array::from_fn(|i| weight[i] * x[i] * x[i]);
    let least = (1..8).fold(0, |least, i| if costs[i] < costs[least] { i } else { least });
    x[least] = -x[least];
    signs ^ 1 << least
}

/// Restores eight signs from the first seven: the eighth makes the number of negative signs even.
#[inline(always)]
pub(super) fn eighth(seven: u32) -> u8 {
    let seven = seven as u8 & 0x7f;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_number_pays_for_evenness() {
        let (mut x, signs) = split(&[1.0, -2.0, 0.5, 3.0, 0.25, -1.0, -0.0, -4.0]);
        assert_eq!((x, signs), ([1.0, 2.0, 0.5, 3.0, 0.25, 1.0, -0.0, 4.0], 0b1010_0010));
        let weight = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.001];
        assert_eq!(make_even(&mut x, &weight, signs), 0b1110_0010);
        assert_eq!(eighth(0b1110_0010), 0b1110_0010);
        assert_eq!(make_even(&mut x, &weight, 0b11), 0b11);
    }
}
