use super::*;
use crate::kernels::round::round;
use proptest::prelude::*;

/// Numbers of both signs on the grid of `dtype`, the same for the same seed.
fn numbers(count: usize, seed: u64, dtype: Dtype) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut values: Vec<f32> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    round(dtype, &mut values);
    values
}

fn encode(values: &[f32], dtype: Dtype, offset: usize) -> Vec<u8> {
    let mut bytes = vec![0; offset];
    for &value in values {
        match dtype {
            Dtype::F32 => bytes.extend(value.to_le_bytes()),
            Dtype::Bf16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
            Dtype::F16 => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
        }
    }
    bytes
}

#[derive(Debug, Clone, Copy)]
struct Case {
    rows: usize,
    inner: usize,
    out: usize,
    weight: Dtype,
    run: Dtype,
    bias: bool,
    offset: usize,
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(&Dtype::ALL[..])
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (1..40_usize, 0..700_usize, 1..90_usize);
    (shape, dtype(), dtype(), any::<bool>(), 0..4_usize).prop_map(
        |((rows, inner, out), weight, run, bias, offset)| Case {
            rows,
            inner,
            out,
            weight,
            run,
            bias,
            offset,
        },
    )
}

fn check(case: Case) {
    let Case { rows, inner, out, weight, run, bias, offset } = case;
    let x = numbers(rows * inner, 1, run);
    let bytes = encode(&numbers(out * inner, 2, weight), weight, offset);
    let bias = bias.then(|| numbers(out, 3, Dtype::F32));
    let weight = MatrixView::plain(weight, &bytes[offset..], out, inner);
    let mut expected = vec![f32::NAN; rows * out];
    reference::matmul(&x, rows, &weight, bias.as_deref(), run, &mut expected);
    let expected: Vec<u32> = expected.into_iter().map(f32::to_bits).collect();
    for isa in Isa::available() {
        let mut y = vec![f32::NAN; rows * out];
        let linear = Linear { weight, bias: bias.as_deref(), round: run, y: &mut y };
        matmul_many_on(isa, &x, rows, &mut [linear]);
        let computed: Vec<u32> = y.into_iter().map(f32::to_bits).collect();
        assert_eq!(computed, expected, "{isa:?} {case:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_plain_loop(case in case()) {
        check(case);
    }
}

#[test]
fn long_rows_take_several_passes() {
    for weight in Dtype::ALL {
        let run = weight;
        check(Case { rows: 13, inner: 4621, out: 70, weight, run, bias: true, offset: 1 });
    }
}

#[test]
fn very_long_rows_end_with_their_last_stretch() {
    for weight in Dtype::ALL {
        let inner = 65 * 1024 + 39;
        check(Case { rows: 6, inner, out: 5, weight, run: weight, bias: false, offset: 0 });
    }
}

/// Returns rows in a block format; none if it is not written.
fn block_rows(ty: BlockType, rows: usize, inner: usize) -> Option<Vec<u8>> {
    let numbers = numbers(rows * inner, 2, Dtype::F32);
    let importance = vec![1.0; inner];
    let mut bytes = vec![0; rows * ty.row_bytes(inner)?];
    codec::encode(ty, &numbers, inner, Some(&importance), &mut bytes).ok()?;
    Some(bytes)
}

#[test]
fn rows_of_blocks_are_multiplied_as_their_numbers_are() {
    let mut seen = 0;
    for ty in BlockType::all() {
        for (rows, inner, out) in
            [(1, 256, 1), (1, 2304, 9), (5, 1280, 6), (6, 1024, 3), (17, 768, 67)]
        {
            let Some(bytes) = block_rows(ty, out, inner) else { continue };
            seen += 1;
            let x = numbers(rows * inner, 1, Dtype::F32);
            let mut widened = vec![0.0; out * inner];
            decode(ty, 0.5, &bytes, &mut widened);
            let plain = encode(&widened, Dtype::F32, 0);
            let dtype = Dtype::F32;
            let mut expected = vec![f32::NAN; rows * out];
            let numbers = MatrixView::plain(dtype, &plain, out, inner);
            reference::matmul(&x, rows, &numbers, None, dtype, &mut expected);
            for isa in Isa::available() {
                let mut y = vec![f32::NAN; rows * out];
                let weight = MatrixView {
                    blocks: Some(ty),
                    factor: 0.5,
                    ..MatrixView::plain(dtype, &bytes, out, inner)
                };
                let linear = Linear { weight, bias: None, round: dtype, y: &mut y };
                matmul_many_on(isa, &x, rows, &mut [linear]);
                assert!(
                    y.iter().zip(&expected).all(|(y, e)| y.to_bits() == e.to_bits()),
                    "{ty:?} {isa:?} {rows} x {inner} x {out}"
                );
            }
        }
    }
    assert!(seen >= 5 * 20, "{seen}");
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    let rows = 23;
    let inner = 333;
    let out = 130;
    for dtype in Dtype::ALL {
        let x = numbers(rows * inner, 1, Dtype::F32);
        let bytes = encode(&numbers(out * inner, 2, dtype), dtype, 0);
        let weight = MatrixView::plain(dtype, &bytes, out, inner);
        let together = product(&x, rows, &weight);
        let alone: Vec<f32> = x.chunks(inner).flat_map(|x| product(x, 1, &weight)).collect();
        assert_eq!(together, alone, "{dtype}");
    }
}

fn product(x: &[f32], rows: usize, weight: &MatrixView<'_>) -> Vec<f32> {
    let mut y = vec![0.0; rows * weight.outputs];
    matmul(x, rows, weight, None, Dtype::F32, &mut y);
    y
}

#[test]
fn ops_over_the_same_x_may_differ_in_dtype() {
    let rows = 5;
    let inner = 77;
    let x = numbers(rows * inner, 1, Dtype::Bf16);
    let bytes = Dtype::ALL.map(|dtype| encode(&numbers(9 * inner, 2, dtype), dtype, 0));
    let weights: Vec<MatrixView<'_>> = Dtype::ALL
        .into_iter()
        .zip(&bytes)
        .map(|(dtype, bytes)| MatrixView::plain(dtype, bytes, 9, inner))
        .collect();
    let mut results = [(); 3].map(|()| vec![0.0; rows * 9]);
    let mut linears: Vec<Linear<'_>> = weights
        .iter()
        .zip(&mut results)
        .map(|(&weight, y)| Linear { weight, bias: None, round: Dtype::Bf16, y })
        .collect();
    matmul_many(&x, rows, &mut linears);
    for (weight, result) in weights.iter().zip(&results) {
        let mut y = vec![0.0; rows * 9];
        reference::matmul(&x, rows, weight, None, Dtype::Bf16, &mut y);
        assert_eq!(&y, result, "{}", weight.dtype);
    }
}

#[test]
fn nothing_in_nothing_out() {
    let mut y = [1.0; 2];
    let bias = [2.0, 3.0];
    let weight = MatrixView::plain(Dtype::Bf16, &[], 2, 0);
    matmul(&[], 1, &weight, Some(&bias), Dtype::Bf16, &mut y);
    assert_eq!(y, bias);
    matmul(&[], 0, &weight, Some(&bias), Dtype::Bf16, &mut []);
    matmul_many(&[], 3, &mut []);
}

#[test]
fn sums_of_rows_are_multiplied_before_the_bias() {
    let numbers = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weight = MatrixView {
        row_factors: Some(&[2.0, 0.5, -1.0]),
        ..MatrixView::plain(Dtype::F32, &bytes, 3, 2)
    };
    let other = MatrixView { row_factors: None, ..weight };
    let x = [1.0, 1.0, 1.0, 0.5];
    let bias = [0.25, 0.0, 1.0];
    let mut y = [0.0; 6];
    let mut plain = [0.0; 6];
    let first = Linear { weight, bias: Some(&bias), round: Dtype::Bf16, y: &mut y };
    let second = Linear { weight: other, bias: Some(&bias), round: Dtype::Bf16, y: &mut plain };
    matmul_many(&x, 2, &mut [first, second]);
    // The sums are 3, 7, 11 and 2, 5, 8.
    assert_eq!(y, [6.25, 3.5, -10.0, 4.25, 2.5, -7.0]);
    assert_eq!(plain, [3.25, 7.0, 12.0, 2.25, 5.0, 9.0]);
    let mut row = [0.0; 2];
    weight.widen_row(1, &mut row);
    assert_eq!(row, [1.5, 2.0]);
}

#[test]
fn rows_of_several_matrices_are_those_of_one() {
    let inputs = 256;
    let rows = 7;
    let types = [Some(BlockType::Q4K), Some(BlockType::Q80), None];
    let sizes = [6, 3, 4];
    let bytes: Vec<Vec<u8>> = std::iter::zip(types, sizes)
        .map(|(ty, outputs)| {
            let values = numbers(outputs * inputs, outputs as u64, Dtype::F32);
            let Some(ty) = ty else { return encode(&values, Dtype::F16, 0) };
            let mut blocks = vec![0; ty.row_bytes(inputs).unwrap() * outputs];
            codec::encode(ty, &values, inputs, None, &mut blocks).unwrap();
            blocks
        })
        .collect();
    let layouts: Vec<Option<PackedMatrix>> = std::iter::zip(types, sizes)
        .zip(&bytes)
        .map(|((ty, outputs), bytes)| {
            Some(PackedMatrix::in_place(ty?, outputs, inputs, 1.0)?.with(bytes))
        })
        .collect();
    let runs = [(1, 1, 2), (0, 0, 5), (2, 0, 4), (1, 0, 1), (0, 5, 1)];
    let runs = runs.map(|(part, first, count)| RowRun { part, first, count });
    let x = numbers(rows * inputs, 1, Dtype::F32);
    let bias = numbers(13, 2, Dtype::F32);
    for exact in [true, false] {
        let parts: Vec<MatrixView<'_>> = (0..3)
            .map(|n| MatrixView {
                blocks: types[n],
                packed: layouts[n].as_ref().filter(|_| !exact),
                ..MatrixView::plain(
                    if types[n].is_some() { Dtype::F32 } else { Dtype::F16 },
                    &bytes[n],
                    sizes[n],
                    inputs,
                )
            })
            .collect();
        let weight = MatrixView {
            parts: Some(MatrixParts { parts: &parts, runs: &runs }),
            ..MatrixView::plain(Dtype::F32, &[], 13, inputs)
        };
        assert!(!weight.is_packed());
        let mut y = vec![0.0; rows * 13];
        matmul(&x, rows, &weight, Some(&bias), Dtype::Bf16, &mut y);
        let mut output = 0;
        for run in &runs {
            let part = &parts[run.part];
            let mut all = vec![0.0; rows * part.outputs];
            matmul(&x, rows, part, None, Dtype::F32, &mut all);
            for row in run.first..run.first + run.count {
                for n in 0..rows {
                    let mut expected = [all[n * part.outputs + row]];
                    finish(&mut expected, Some(&bias[output..=output]), Dtype::Bf16);
                    assert_eq!(y[n * 13 + output], expected[0], "output {output} of row {n}");
                }
                let mut of_part = vec![0.0; inputs];
                let mut of_all = vec![0.0; inputs];
                part.widen_row(row, &mut of_part);
                weight.widen_row(output, &mut of_all);
                assert_eq!(of_part, of_all);
                output += 1;
            }
        }
    }
}

#[test]
fn a_part_of_a_transposed_matrix_is_multiplied_as_its_copy() {
    for stored in Dtype::ALL {
        // Every other column of a matrix [inputs, 2 * outputs], from the second on.
        for (rows, inputs, outputs) in [(1, 40, 3), (1, 129, 131), (7, 33, 70)] {
            let all = numbers(inputs * 2 * outputs, 3, stored);
            let bytes = encode(&all, stored, 0);
            for round in [Dtype::F32, Dtype::Bf16] {
                let mut copy: Vec<f32> = (0..outputs * inputs)
                    .map(|n: usize| all[1 + n % inputs * 2 * outputs + n / inputs * 2])
                    .collect();
                super::super::round::round(round, &mut copy);
                let plain = encode(&copy, Dtype::F32, 0);
                let strides = Strides { dtype: stored, round, by: [2, 2 * outputs] };
                let strided = MatrixView {
                    strides: Some(strides),
                    ..MatrixView::plain(Dtype::F32, &bytes[stored.size()..], outputs, inputs)
                };
                let copied = MatrixView::plain(Dtype::F32, &plain, outputs, inputs);
                let x = numbers(rows * inputs, 1, Dtype::F32);
                for isa in Isa::available() {
                    let [of_strided, of_copied] = [strided, copied].map(|weight| {
                        let mut y = vec![f32::NAN; rows * outputs];
                        let linear = Linear { weight, bias: None, round, y: &mut y };
                        matmul_many_on(isa, &x, rows, &mut [linear]);
                        y
                    });
                    assert_eq!(of_strided, of_copied, "{isa:?} {stored} {inputs}");
                }
                let mut row = vec![0.0; inputs];
                strided.widen_row(outputs - 1, &mut row);
                assert_eq!(row, copy[(outputs - 1) * inputs..]);
            }
        }
    }
}
