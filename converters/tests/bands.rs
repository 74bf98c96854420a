//! What each format is expected to lose is what it loses on numbers of a normal distribution.

use converters::codec::{BlockType, decode, encode, expected_error};

#[path = "support/normal.rs"]
mod normal;

use normal::normal;

const ROW: usize = 1024;
const ROWS: usize = 128;

#[test]
fn losses_are_the_expected_ones() {
    let numbers = normal(ROW * ROWS, 1.0);
    let power: f64 = numbers.iter().map(|&x| f64::from(x).powi(2)).sum();
    let mut wrong = Vec::new();
    for ty in BlockType::all().filter(|ty| ty.is_quantized()) {
        let weights = ty.needs_importance().then(|| vec![1.0; ROW]);
        let mut bytes = vec![0; numbers.len() / ty.elements() * ty.bytes()];
        if encode(ty, &numbers, ROW, weights.as_deref(), &mut bytes).is_err() {
            assert_eq!(expected_error(ty), None, "{ty} is not written");
            continue;
        }
        let mut seen = vec![0.0; numbers.len()];
        decode(ty, &bytes, &mut seen).unwrap();
        let pairs = numbers.iter().zip(&seen);
        let error: f64 = pairs.map(|(&x, &y)| f64::from(x - y).powi(2)).sum();
        let found = (error / power).sqrt();
        let expected = expected_error(ty).unwrap_or(0.0);
        if (found / expected - 1.0).abs() > 0.02 {
            wrong.push(format!("{ty} loses {found:.4}, expected {expected:.4}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
