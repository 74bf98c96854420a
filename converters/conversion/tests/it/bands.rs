//! Checks the expected error of each format on normally distributed values.

use formats::codec::{BlockType, decode, encode, expected_error};
use formats::numbers::{f4_e2m1_to_f32, f8_e4m3_to_f32};
use formats::safetensors::FileDtype;
use onboard_conversion::Encode as _;
use onboard_conversion::folder::FolderFormat;
use onboard_conversion::folder::scaled::{
    QuantizedEncoder, QuantizedPart, ScaleScheme, global_scale, whole_scale,
};

use crate::normal::normal;

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
        let loss = (error / power).sqrt();
        let expected = expected_error(ty).unwrap_or(0.0);
        if (loss / expected - 1.0).abs() > 0.02 {
            wrong.push(format!("{ty} loses {loss:.4}, expected {expected:.4}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the least loss of normally distributed values in codes of these sizes. It is the mean squared
/// distance to the nearest code, for the best of all scales.
fn least_loss(sizes: &[f64]) -> f64 {
    // e4m3 has the same steps for every power of two; e2m1 has to be scaled well.
    let scales =
        (0..60).map(|n| 6.0 / sizes.iter().copied().fold(0.0, f64::max) * 0.97_f64.powi(n));
    scales.map(|scale| loss_at(sizes, scale)).fold(f64::INFINITY, f64::min)
}

/// Density of the normal distribution, but for a factor.
fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp()
}

fn loss_at(sizes: &[f64], scale: f64) -> f64 {
    let points = (0..6000).map(|n| f64::from(n) * 0.001);
    let mut error = 0.0;
    let mut power = 0.0;
    for x in points {
        let distances = sizes.iter().map(|size| (x - size * scale).abs());
        error += density(x) * distances.fold(f64::INFINITY, f64::min).powi(2);
        power += density(x) * x * x;
    }
    (error / power).sqrt()
}

#[test]
fn eight_and_four_bits_lose_what_they_must() {
    let numbers = normal(ROW * ROWS, 0.02);
    let power: f64 = numbers.iter().map(|&x| f64::from(x).powi(2)).sum();
    let peak = numbers.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let e4m3: Vec<f64> = (0..=126).map(|bits| f64::from(f8_e4m3_to_f32(bits))).collect();
    let e2m1: Vec<f64> = (0..8).map(|bits| f64::from(f4_e2m1_to_f32(bits))).collect();
    // Steps of an eighth, uniformly distributed: (1/8)^2 / 12 over the mean square of 1..2, 7/3.
    let eighths = ((1.0_f64 / 64.0 / 12.0) / (7.0 / 3.0)).sqrt();
    let eight = least_loss(&e4m3);
    let four = least_loss(&e2m1);
    assert!((eighths..1.15 * eighths).contains(&eight), "{eight} {eighths}");
    let mut wrong = Vec::new();
    for (name, format, _) in FolderFormat::all() {
        let shared = match format {
            FolderFormat::Nvfp4 => global_scale(peak),
            _ => whole_scale(peak, FileDtype::Bf16),
        };
        let Some(scheme) = format.scheme(shared) else { continue };
        let (least, largest) = match scheme {
            // Loss of NVFP4 with a global scale in torch: 0.095.
            ScaleScheme::Nvfp4(_) => (0.98 * 0.095, 1.02 * 0.095),
            // Blocks have power-of-two scales of their own: close to the best common scale, and better than
            // ggml's, whose exponent follows from the largest value alone.
            ScaleScheme::Mxfp4 => (0.96 * four, expected_error(BlockType::Mxfp4).unwrap()),
            // In 8 bits the position of values hardly matters: the loss is the theoretical one.
            _ => (0.98 * eight, 1.02 * eight),
        };
        let codes = QuantizedEncoder { scheme, part: QuantizedPart::Codes };
        let mut bytes = vec![0; codes.bytes(ROWS, ROW)];
        codes.encode(0, &numbers, ROW, &mut bytes).unwrap();
        let mut seen = vec![0.0; numbers.len()];
        assert!(codes.decode(0, &numbers, &bytes, ROW, &mut seen));
        let pairs = numbers.iter().zip(&seen);
        let error: f64 = pairs.map(|(&x, &y)| f64::from(x - y).powi(2)).sum();
        let loss = (error / power).sqrt();
        if !(least..=largest).contains(&loss) {
            wrong.push(format!("{name} loses {loss:.5}, expected {least:.5} to {largest:.5}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
