use super::*;
use proptest::prelude::*;

/// Numbers of many magnitudes and both signs, the same for the same seed.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let numbers = (0..count).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let size = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        size * [1.0, 1.0, 1e-3, 1e3, 1e-20, 1e-39][(state >> 20) as usize % 6]
    });
    numbers.collect()
}

fn bf16(numbers: &[f32]) -> (Vec<f32>, Vec<u8>) {
    let numbers: Vec<f32> = numbers.iter().map(|x| finish::bf16(*x)).collect();
    let bytes = numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
    (numbers, bytes)
}

fn check(unit: TileUnit, rows: usize, inputs: usize, outputs: usize, bias: bool, round: Dtype) {
    let x = numbers(rows * inputs, 1);
    let (weight, bytes) = bf16(&numbers(outputs * inputs, 2));
    let bias = bias.then(|| numbers(outputs, 3));
    let mut y = vec![f32::NAN; rows * outputs];
    let product = Bf16Product { weight: &bytes, outputs, bias: bias.as_deref(), round, y: &mut y };
    products(unit, &x, rows, &mut [product]);
    for row in 0..rows {
        for output in 0..outputs {
            let want = reference::product(
                &x[row * inputs..][..inputs],
                &weight[output * inputs..][..inputs],
                bias.as_ref().map(|bias| bias[output]),
                round,
            );
            let computed = y[row * outputs + output];
            assert_eq!(
                computed.to_bits(),
                want.to_bits(),
                "{unit:?} [{rows}, {inputs}] x {outputs}, row {row}, output {output}: {computed} {want}"
            );
        }
    }
}

fn units() -> Vec<TileUnit> {
    let (here, missing): (Vec<_>, Vec<_>) =
        TileUnit::ALL.into_iter().partition(|unit| unit.available());
    for unit in missing {
        eprintln!("not run here: products in tiles of {unit:?}, which this machine lacks");
    }
    here
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_unit_has_the_bits_of_the_plain_form(
        rows in 1..70_usize,
        inputs in 0..200_usize,
        outputs in 1..70_usize,
        bias in any::<bool>(),
        round in prop::sample::select(&Dtype::ALL[..]),
    ) {
        for unit in units() {
            check(unit, rows, inputs, outputs, bias, round);
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let rows = 37;
    let inputs = 96;
    let outputs = 40;
    let x = numbers(rows * inputs, 4);
    let (_, weight) = bf16(&numbers(outputs * inputs, 5));
    for unit in units() {
        let all = tile_product(unit, &weight, outputs, &x, rows);
        for (row, y) in all.chunks_exact(outputs).enumerate() {
            assert_eq!(
                tile_product(unit, &weight, outputs, &x[row * inputs..][..inputs], 1),
                y,
                "{unit:?} row {row}"
            );
        }
    }
}

fn tile_product(unit: TileUnit, weight: &[u8], outputs: usize, x: &[f32], rows: usize) -> Vec<f32> {
    let mut y = vec![0.0; rows * outputs];
    let round = Dtype::F32;
    let product = Bf16Product { weight, outputs, bias: None, round, y: &mut y };
    products(unit, x, rows, &mut [product]);
    y
}

#[test]
fn infinite_and_missing_numbers_stay_in_their_rows() {
    let mut x = vec![1.0; 3 * 32];
    x[5] = f32::NAN;
    x[32] = f32::INFINITY;
    let (_, weight) = bf16(&vec![1.0; 32 * 33]);
    for unit in units() {
        let mut y = vec![0.0; 3 * 33];
        let round = Dtype::F32;
        let product = Bf16Product { weight: &weight, outputs: 33, bias: None, round, y: &mut y };
        products(unit, &x, 3, &mut [product]);
        assert!(y[..33].iter().all(|y| y.is_nan()));
        assert!(y[33..66].iter().all(|y| *y == f32::INFINITY));
        assert!(y[66..].iter().all(|y| *y == 32.0));
    }
}
