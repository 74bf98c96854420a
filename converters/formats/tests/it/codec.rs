//! Tests of the codec interface: its errors, and formats without golden files.

use onboard_formats::codec::{self, BadBlock, BlockType, Error};
use proptest::prelude::*;

fn encode(ty: BlockType, numbers: &[f32], row: usize) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; numbers.len() / ty.elements() * ty.bytes()];
    codec::encode(ty, numbers, row, None, &mut out).map(|()| out)
}

fn decode(ty: BlockType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / ty.bytes() * ty.elements()];
    codec::decode(ty, bytes, &mut out).expect("a format that is read");
    out
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let ty = BlockType::Q4K;
    assert_eq!(encode(ty, &[0.0; 256], 128).unwrap_err(), Error::Row { ty, row: 128 });
    assert_eq!(encode(ty, &[0.0; 256], 512).unwrap_err(), Error::Row { ty, row: 512 });
    assert_eq!(encode(ty, &[], 0).unwrap_err(), Error::Row { ty, row: 0 });
    let short = codec::encode(ty, &[0.0; 512], 256, None, &mut [0; 144]).unwrap_err();
    assert_eq!(short, Error::Length { ty, found: 144, numbers: 512, expected: 288 });
    let short = codec::decode(ty, &[0; 143], &mut [0.0; 256]).unwrap_err();
    assert_eq!(short, Error::Length { ty, found: 143, numbers: 256, expected: 144 });
    let importance = Some(&[1.0; 512][..]);
    let long = codec::encode(ty, &[0.0; 512], 256, importance, &mut [0; 288]).unwrap_err();
    assert_eq!(long, Error::Importance { found: 512, row: 256 });
}

#[test]
fn formats_that_are_not_written_are_refused() {
    for ty in [BlockType::Q81, BlockType::Q8K, BlockType::I16, BlockType::F64] {
        let row = ty.elements();
        assert_eq!(encode(ty, &vec![1.0; row], row).unwrap_err(), Error::NotWritten { ty });
    }
    let ty = BlockType::Q81;
    assert_eq!(codec::decode(ty, &[0; 36], &mut [0.0; 32]).unwrap_err(), Error::NotWritten { ty });
}

#[test]
fn numbers_that_are_not_finite_are_named() {
    for ty in BlockType::all().filter(|ty| ty.is_quantized() && !ty.needs_importance()) {
        let row = 2 * ty.elements();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = vec![0.5; 2 * row];
            numbers[row + 3] = bad;
            let Err(error) = encode(ty, &numbers, row) else { panic!("{ty} took {bad}") };
            if error != (Error::NotWritten { ty }) {
                let value = bad.to_string();
                assert_eq!(error, Error::NotFinite { ty, at: row + 3, value });
            }
        }
    }
    let importance = [1.0, f32::NAN].repeat(16);
    let error =
        codec::encode(BlockType::Q40, &[1.0; 32], 32, Some(&importance), &mut [0; 18]).unwrap_err();
    assert_eq!(error, Error::ImportanceNotFinite { at: 1, value: "NaN".into() });
    // Formats without blocks keep their values, and f16 overflows to infinity.
    let f16 = encode(BlockType::F16, &[f32::INFINITY, 1e6], 2).unwrap();
    assert_eq!(decode(BlockType::F16, &f16), [f32::INFINITY; 2]);
}

#[test]
fn integers_and_f64_are_read_as_numbers() {
    assert_eq!(decode(BlockType::I8, &[0xff, 5]), [-1.0, 5.0]);
    assert_eq!(decode(BlockType::I16, &(-300_i16).to_le_bytes()), [-300.0]);
    assert_eq!(decode(BlockType::I32, &(1_i32 << 20).to_le_bytes()), [1_048_576.0]);
    let indices = [1_048_576.0, -3.0];
    assert_eq!(decode(BlockType::I32, &encode(BlockType::I32, &indices, 2).unwrap()), indices);
    assert_eq!(decode(BlockType::I64, &i64::MIN.to_le_bytes()), [-9_223_372_036_854_775_808.0]);
    assert_eq!(decode(BlockType::F64, &0.1_f64.to_le_bytes()), [0.1_f32]);
}

/// Formats with the offsets of their f16 scales in a block.
const SCALES: &[(BlockType, &[usize])] = &[
    (BlockType::F16, &[0]),
    (BlockType::Q40, &[0]),
    (BlockType::Q41, &[0, 2]),
    (BlockType::Q50, &[0]),
    (BlockType::Q51, &[0, 2]),
    (BlockType::Q80, &[0]),
    (BlockType::Q2K, &[80, 82]),
    (BlockType::Q3K, &[108]),
    (BlockType::Q4K, &[0, 2]),
    (BlockType::Q5K, &[0, 2]),
    (BlockType::Q6K, &[208]),
    (BlockType::Iq4Nl, &[0]),
    (BlockType::Iq4Xs, &[0]),
    (BlockType::Iq2Xxs, &[0]),
    (BlockType::Iq2Xs, &[0]),
    (BlockType::Iq2S, &[0]),
    (BlockType::Iq3Xxs, &[0]),
    (BlockType::Iq3S, &[0]),
    (BlockType::Iq1S, &[0]),
    (BlockType::Tq10, &[52]),
    (BlockType::Tq20, &[64]),
    (BlockType::Q10, &[0]),
    (BlockType::Q20, &[0]),
];

#[test]
fn scales_that_are_not_finite_are_found() {
    for &(ty, places) in SCALES {
        for &at in places {
            for (bits, value) in [(0x7c00_u16, "inf"), (0xfc00, "-inf"), (0x7e00, "NaN")] {
                let mut bytes = vec![0x33; 3 * ty.bytes()];
                assert_eq!(codec::validate(ty, &bytes), Ok(()), "{ty}");
                bytes[2 * ty.bytes() + at..][..2].copy_from_slice(&bits.to_le_bytes());
                let value = value.to_owned();
                let bad = BadBlock::Scale { ty, block: 2, value };
                assert_eq!(codec::validate(ty, &bytes), Err(bad));
            }
        }
    }
    // IQ1_M spreads its scale over the upper nibbles of four u16.
    let mut bytes = vec![0xff; 48];
    bytes.extend([0xff, 0x0f, 0xff, 0x0f, 0xff, 0x3f, 0xff, 0x7f]);
    assert_eq!(codec::validate(BlockType::Iq1M, &bytes), Ok(()));
    bytes[53] = 0xcf;
    assert!(codec::validate(BlockType::Iq1M, &bytes).is_err());
    let value = "inf".to_owned();
    let inf = [[0; 4], f32::INFINITY.to_le_bytes()].concat();
    let bad = BadBlock::Scale { ty: BlockType::F32, block: 1, value };
    assert_eq!(codec::validate(BlockType::F32, &inf), Err(bad));
    assert!(codec::validate(BlockType::Bf16, &[0x80, 0x7f]).is_err());
    assert!(codec::validate(BlockType::F64, &f64::NAN.to_le_bytes()).is_err());
}

#[test]
fn blocks_of_other_formats_are_judged() {
    let mut bytes = [7; 34];
    assert_eq!(codec::validate(BlockType::Mxfp4, &bytes), Ok(()));
    bytes[17] = 255;
    let bad = BadBlock::Exponent { ty: BlockType::Mxfp4, block: 1 };
    assert_eq!(codec::validate(BlockType::Mxfp4, &bytes), Err(bad));
    assert_eq!(codec::validate(BlockType::Nvfp4, &[255; 36]), Ok(()));
    assert_eq!(codec::validate(BlockType::I8, &[255; 3]), Ok(()));
    let bad = BadBlock::Length { ty: BlockType::Q40, found: 35 };
    assert_eq!(codec::validate(BlockType::Q40, &[0; 35]), Err(bad));
    let bad = BadBlock::NotWritten { ty: BlockType::Q8K };
    assert_eq!(codec::validate(BlockType::Q8K, &[0; 292]), Err(bad));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Encoders neither panic nor leave a block unwritten, for any bits of the values.
    #[test]
    fn any_finite_numbers_can_be_encoded(
        bits in prop::collection::vec(any::<u32>(), 512),
        exponent in 0_u32..256,
        weighted: bool,
    ) {
        // Half of the cases share one exponent, so that sums cancel and scales vanish.
        let shared = bits.iter()
            .map(|&bits| if exponent % 2 == 0 { bits & 0x807f_ffff | exponent << 23 } else { bits });
        let numbers: Vec<f32> = shared.map(f32::from_bits)
            .map(|x| if x.is_finite() { x } else { 0.0 }).collect();
        let weights: Vec<f32> = bits.iter().map(|bits| (bits & 0xffff) as f32).collect();
        for ty in BlockType::all().filter(|ty| weighted || !ty.needs_importance()) {
            let mut twice = [0, 0xff].map(|byte| vec![byte; 512 / ty.elements() * ty.bytes()]);
            for out in &mut twice {
                let importance = weighted.then_some(&weights[..]);
                match codec::encode(ty, &numbers, 512, importance, out) {
                    Ok(()) | Err(Error::NotWritten { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            let [a, b] = twice;
            prop_assert!(a == b || ty.elements() == 1 || encode(ty, &[0.0; 512], 512).is_err());
            let mut back = vec![0.0; 512];
            match codec::decode(ty, &a, &mut back) {
                Ok(()) | Err(Error::NotWritten { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Decoders take any bytes.
    #[test]
    fn any_bytes_can_be_decoded(bytes in prop::collection::vec(any::<u8>(), 8 * 292)) {
        for ty in BlockType::all() {
            let blocks = bytes.len() / ty.bytes();
            let mut out = vec![0.0; blocks * ty.elements()];
            drop(codec::decode(ty, &bytes[..blocks * ty.bytes()], &mut out));
            drop(codec::validate(ty, &bytes[..blocks * ty.bytes()]));
        }
    }
}
