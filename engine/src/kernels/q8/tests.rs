//! Every kernel against the plain form of the law, and the law against sums in f64.

use formats::codec::{self, BlockType, Levels};
use registry::dtype::Dtype;

use super::input::round as round_block;
use lanes::Isa;

use super::{IntegerProduct, PackedMatrix, products_on};
use crate::kernels::matmul::MatrixView;
use crate::kernels::round::round1;

/// Numbers around 0 of all sizes.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn number(&mut self) -> f32 {
        let unit = self.bits() as f32 / (1_u64 << 31) as f32 - 0.5;
        unit * [1.0, 1.0, 4.0, 0.01][self.bits() as usize % 4]
    }
}

/// Random blocks with scales that are numbers.
fn weight(ty: BlockType, outputs: usize, inputs: usize, random: &mut Random) -> Vec<u8> {
    let rows: Vec<f32> = (0..outputs * inputs).map(|_| random.number()).collect();
    let importance = vec![1.0; inputs];
    let mut bytes = vec![0; outputs * ty.row_bytes(inputs).unwrap()];
    codec::encode(ty, &rows, inputs, Some(&importance), &mut bytes).unwrap();
    bytes
}

/// The plain form: one element at a time, in the order of additions of the law.
fn reference(
    x: &[f32],
    weight: &MatrixView<'_>,
    group: usize,
    bias: Option<&[f32]>,
    round: Dtype,
) -> Vec<f32> {
    let ty = weight.blocks.unwrap();
    let row = ty.row_bytes(weight.inputs).unwrap();
    let inputs = weight.inputs;
    let mut block = Levels::default();
    let rows = x.len() / inputs;
    let mut codes = vec![[0; 32]; x.len() / 32];
    let blocks = x.as_chunks().0.iter().zip(&mut codes);
    let scales: Vec<f32> = blocks.map(|(x, codes)| round_block(x, codes).0).collect();
    let mut y = vec![0.0; rows * weight.outputs];
    for o in 0..weight.outputs {
        for r in 0..rows {
            let codes = &codes.as_flattened()[r * inputs..];
            let scales = &scales[r * inputs / 32..];
            let mut sum = 0.0_f32;
            for (b, bytes) in weight.bytes[o * row..][..row].chunks(ty.bytes()).enumerate() {
                assert!(codec::levels(ty, bytes, &mut block));
                for at in (0..ty.elements()).step_by(group) {
                    let k = b * ty.elements() + at;
                    let codes = codes[k..k + group].iter().map(|&code| i32::from(code));
                    let levels = block.levels[at..].iter().map(|&level| i32::from(level));
                    let product: i32 =
                        codes.clone().zip(levels).map(|(code, level)| code * level).sum();
                    let scale = block.d * f32::from(block.scales[at / 16]);
                    sum = (product as f32).mul_add(scale * scales[k / 32], sum);
                    if block.mins.iter().any(|&min| min != 0) || block.dmin != 0.0 {
                        let min = block.dmin * f32::from(block.mins[at / 16]);
                        sum = (-min).mul_add(scales[k / 32] * codes.sum::<i32>() as f32, sum);
                    }
                }
            }
            let sum = if weight.factor == 1.0 { sum } else { sum * weight.factor };
            y[r * weight.outputs + o] = round1(round, bias.map_or(sum, |bias| sum + bias[o]));
        }
    }
    y
}

fn packed(view: &MatrixView<'_>) -> PackedMatrix {
    in_place(view).with(view.bytes)
}

fn in_place(view: &MatrixView<'_>) -> PackedMatrix {
    PackedMatrix::in_place(view.blocks.unwrap(), view.outputs, view.inputs, view.factor).unwrap()
}

fn types() -> impl Iterator<Item = BlockType> {
    BlockType::all().filter(|ty| PackedMatrix::takes(*ty, 256))
}

#[test]
fn every_kernel_keeps_the_law() {
    let mut random = Random(1);
    assert!(types().count() >= 16);
    for ty in types() {
        for (rows, outputs, inputs) in [(1, 16, 256), (2, 33, 512), (3, 7, 768), (31, 17, 256)] {
            let bytes = weight(ty, outputs, inputs, &mut random);
            let factor = if outputs == 33 { 0.37 } else { 1.0 };
            let view = MatrixView {
                blocks: Some(ty),
                factor,
                ..MatrixView::plain(Dtype::F32, &bytes, outputs, inputs)
            };
            let mut x: Vec<f32> = (0..rows * inputs).map(|_| random.number()).collect();
            x[5] = 900.0;
            x[32..64].fill(0.0);
            x[70] = 1e-38;
            let bias: Vec<f32> = (0..outputs).map(|_| random.number()).collect();
            let bias = (outputs != 16).then_some(&bias[..]);
            let packed = packed(&view);
            let in_place = in_place(&view);
            for round in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                let want = reference(&x, &view, packed.form().group, bias, round);
                let isas = Isa::available();
                for (isa, packed) in isas.flat_map(|isa| [(isa, &packed), (isa, &in_place)]) {
                    let mut y = vec![f32::NAN; rows * outputs];
                    products_on(
                        isa,
                        &x,
                        rows,
                        &mut [IntegerProduct {
                            weight: packed,
                            bytes: &bytes,
                            bias,
                            round,
                            y: &mut y,
                        }],
                    );
                    for (at, (got, want)) in y.iter().zip(&want).enumerate() {
                        assert_eq!(
                            got.to_bits(),
                            want.to_bits(),
                            "{ty} {isa:?} {at}: {got} {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn results_are_those_of_numbers_rounded_to_eight_bits() {
    let mut random = Random(2);
    for ty in types() {
        let outputs = 16;
        let inputs = 1024;
        let bytes = weight(ty, outputs, inputs, &mut random);
        let view = MatrixView {
            blocks: Some(ty),
            ..MatrixView::plain(Dtype::F32, &bytes, outputs, inputs)
        };
        let numbers: Vec<f32> = (0..inputs).map(|_| random.number()).collect();
        let packed = packed(&view);
        let mut y = vec![0.0; outputs];
        products_on(
            Isa::best(),
            &numbers,
            1,
            &mut [IntegerProduct {
                weight: &packed,
                bytes: &bytes,
                bias: None,
                round: Dtype::F32,
                y: &mut y,
            }],
        );
        let mut row = vec![0.0; inputs];
        for (o, got) in y.into_iter().enumerate() {
            view.widen_row(o, &mut row);
            let terms = row.iter().zip(&numbers).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (sum, size) =
                terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term * term));
            // Half a code of 127 in each number, independent of each other.
            let off = (f64::from(got) - sum).abs() / f64::sqrt(size);
            assert!(off < 0.05, "{ty}: {got} {sum}, {off}");
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_seen() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut random = Random(3);
        let bytes = weight(BlockType::Q4K, 16, 256, &mut random);
        let view = MatrixView {
            blocks: Some(BlockType::Q4K),
            ..MatrixView::plain(Dtype::F32, &bytes, 16, 256)
        };
        let packed = packed(&view);
        let mut x = vec![1.0; 512];
        x[300] = bad;
        let mut y = vec![0.0; 32];
        products_on(
            Isa::best(),
            &x,
            2,
            &mut [IntegerProduct {
                weight: &packed,
                bytes: &bytes,
                bias: None,
                round: Dtype::F32,
                y: &mut y,
            }],
        );
        assert!(y[..16].iter().all(|y| y.is_finite()) && y[16..].iter().all(|y| y.is_nan()));
    }
}
