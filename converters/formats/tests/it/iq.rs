//! Tests of codebook formats: importance by row, plain rows, and one peculiarity of the reference.

use onboard_formats::codec::{BlockType, decode, encode};
use proptest::prelude::*;

const TYPES: [BlockType; 7] = [
    BlockType::Iq1M,
    BlockType::Iq1S,
    BlockType::Iq2S,
    BlockType::Iq2Xs,
    BlockType::Iq2Xxs,
    BlockType::Iq3S,
    BlockType::Iq3Xxs,
];

fn encoded(ty: BlockType, numbers: &[f32], row: usize, importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0xa5; ty.row_bytes(numbers.len()).expect("whole blocks")];
    encode(ty, numbers, row, importance, &mut out).expect("finite numbers");
    out
}

fn decoded(ty: BlockType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.bytes() * ty.elements()];
    decode(ty, bytes, &mut out).expect("whole blocks");
    out
}

/// Returns pseudo-random values between -1 and 1.
fn noise(count: u32) -> Vec<f32> {
    (1..=count).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

#[test]
fn a_row_has_its_own_importance() {
    // Rows of two blocks: the second block of each row has the second half of the importance.
    let numbers = noise(1024);
    let importance = noise(512).iter().map(|x| x.abs()).collect::<Vec<_>>();
    for ty in TYPES {
        let both = encoded(ty, &numbers, 512, Some(&importance));
        for (block, bytes) in both.chunks(ty.bytes()).enumerate() {
            let half = &importance[block % 2 * 256..][..256];
            let alone = encoded(ty, &numbers[block * 256..][..256], 256, Some(half));
            assert!(alone == bytes, "{ty} block {block}");
        }
    }
}

#[test]
fn plain_rows_come_back_near() {
    let importance = [1.0; 256];
    let outlier = std::array::from_fn(|i| if i == 77 { 1.0 } else { 0.001 });
    let one = std::array::from_fn(|i| if i == 5 { -3.0 } else { 0.0 });
    // IQ2_XXS starts a row of equal values from too small a scale: its error is 0.007 of 0.01.
    for (row, error) in [([0.0; 256], 0.0), ([0.01; 256], 0.007), (outlier, 0.5), (one, 1.5)] {
        for ty in TYPES {
            let numbers = decoded(ty, &encoded(ty, &row, 256, Some(&importance)));
            let off = numbers.iter().zip(row).map(|(got, want)| (got - want).abs());
            let worst = off.fold(0.0, f32::max);
            assert!(worst <= error, "{ty}: {worst} on {:?}...", &row[..2]);
        }
    }
}

#[test]
fn iq3_s_writes_what_follows_zeros_as_early_as_the_reference() {
    let mut row = noise(256);
    let without_gap = encoded(BlockType::Iq3S, &row, 256, None);
    row[32..64].fill(0.0);
    let gap = encoded(BlockType::Iq3S, &row, 256, None);
    // Low bytes and signs of parts 2 to 7 are stored at the place of 1 to 6; high bits do not move.
    assert_eq!(gap[2 + 8..2 + 56], without_gap[2 + 16..2 + 64]);
    assert_eq!(gap[74 + 4..74 + 28], without_gap[74 + 8..74 + 32]);
    assert_eq!((gap[67], &gap[68..74]), (0, &without_gap[68..74]));
}

/// Generates finite values of any magnitude, alone or among zeros and each other.
fn numbers() -> impl Strategy<Value = Vec<f32>> {
    let bits = any::<u32>().prop_map(f32::from_bits);
    let any = bits.prop_map(|x| if x.is_finite() { x } else { 1.0 });
    let scale = (-44_i32..38).prop_map(|power| 10_f32.powi(power));
    let near = (-1.0_f32..1.0, scale.clone()).prop_map(|(x, scale)| x * scale);
    let alike = (prop::collection::vec(-1.0_f32..1.0, 256), scale)
        .prop_map(|(all, scale)| all.iter().map(|x| x * scale).collect());
    prop_oneof![alike, prop::collection::vec(prop_oneof![Just(0.0_f32), any, near], 256)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_magnitude_can_be_encoded(x in numbers(), importance in numbers()) {
        for ty in TYPES {
            decoded(ty, &encoded(ty, &x, 256, Some(&importance)));
            if !ty.needs_importance() {
                encoded(ty, &x, 256, None);
            }
        }
    }
}
