use proptest::prelude::*;
use registry::weight_map::SplitSizes;

use super::*;

/// Returns tensors whose values are all different.
fn tensors(shapes: &[Vec<usize>]) -> Vec<Vec<u8>> {
    let mut next = 0.25_f32;
    let tensors = shapes.iter().map(|shape| {
        let numbers = (0..shape.iter().product()).flat_map(|_: usize| {
            next += 0.0625;
            next.to_le_bytes()
        });
        numbers.collect::<Vec<u8>>()
    });
    tensors.collect()
}

fn flows<'a>(shapes: &[Vec<usize>], bytes: &'a [Vec<u8>]) -> Vec<Flow<'a>> {
    shapes
        .iter()
        .zip(bytes)
        .map(|(shape, bytes): (&Vec<usize>, &'a Vec<u8>)| {
            Flow::plain(shape, FileDtype::F32, bytes).unwrap()
        })
        .collect()
}

fn whole(flow: &Flow<'_>) -> Vec<f32> {
    let mut out = vec![0.0; flow.len()];
    flow.read(0, &mut out);
    out
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Index of the source, and the index in it, of a value.
type Origin = fn(usize, &[usize]) -> Option<(usize, Vec<usize>)>;

/// Steps that fit their tensors, with the place that each value comes from.
struct Chain {
    shapes: Vec<Vec<usize>>,
    steps: Vec<WeightStep>,
    /// Returns the tensor and the index in it, for a result and the index in that; none for a zero.
    from: Origin,
    /// Computes a value of the result from that of the source, for its row.
    value: fn(f32, usize) -> f32,
}

impl Chain {
    fn moves(shapes: Vec<Vec<usize>>, steps: Vec<WeightStep>, from: Origin) -> Self {
        Self { shapes, steps, from, value: |x, _| x }
    }

    fn computes(steps: Vec<WeightStep>, value: fn(f32, usize) -> f32) -> Self {
        Self { shapes: vec![vec![4, 3]], steps, from: |_, i| Some((0, i.to_vec())), value }
    }
}

/// Returns chains of steps: experts, fused projections, heads, multipliers.
fn chains() -> Vec<Chain> {
    vec![
        Chain::moves(vec![vec![3, 4]; 5], vec![WeightStep::Stack(0)], |_, i| {
            Some((i[0], i[1..].to_vec()))
        }),
        Chain::moves(
            vec![vec![3, 4]; 2],
            vec![WeightStep::Stack(1), WeightStep::Transpose(0, 2)],
            |_, i| Some((i[1], vec![i[2], i[0]])),
        ),
        Chain::moves(
            vec![vec![2, 6, 4]],
            vec![WeightStep::Split { axis: 1, sizes: SplitSizes::Equal(2) }],
            |part, i| Some((0, vec![i[0], part * 3 + i[1], i[2]])),
        ),
        Chain::moves(vec![vec![8, 3]], permuted(2, HeadLayout::Interleaved), |_, i| {
            Some((0, vec![i[0] / 4 * 4 + i[0] % 4 / 2 + i[0] % 2 * 2, i[1]]))
        }),
        Chain::moves(vec![vec![8]], permuted(1, HeadLayout::Half), |_, i| {
            Some((0, vec![i[0] % 4 * 2 + i[0] / 4]))
        }),
        Chain::moves(
            vec![vec![5, 1, 3]],
            vec![WeightStep::Squeeze(1), WeightStep::Transpose(0, 1)],
            |_, i| Some((0, vec![i[1], 0, i[0]])),
        ),
        // Groups of q, k, v, z as one projection: regrouped into [q; k; v] and z.
        Chain::moves(
            vec![vec![2 * (2 + 2 + 6 + 6), 5]],
            vec![
                WeightStep::Unflatten { axis: 0, sizes: vec![2, 16] },
                WeightStep::Split { axis: 1, sizes: SplitSizes::Each(vec![2, 2, 6, 6]) },
                WeightStep::Flatten(0),
                WeightStep::ConcatRuns { axis: 0, runs: vec![3, 1] },
            ],
            |part, i| {
                let (group, row) = match (part, i[0]) {
                    (0, q) if q < 4 => (q / 2, q % 2),
                    (0, k) if k < 8 => (k / 2 - 2, 2 + k % 2),
                    (0, v) => ((v - 8) / 6, 4 + (v - 8) % 6),
                    (_, z) => (z / 6, 10 + z % 6),
                };
                Some((0, vec![group * 16 + row, i[1]]))
            },
        ),
        // A latent projection into keys, transposed, and values.
        Chain::moves(
            vec![vec![2 * (3 + 4), 5]],
            vec![
                WeightStep::Unflatten { axis: 0, sizes: vec![2, 7] },
                WeightStep::Split { axis: 1, sizes: SplitSizes::Each(vec![3, 4]) },
                WeightStep::At(0, Box::new(WeightStep::Transpose(1, 2))),
            ],
            |part, i| {
                let (row, column) = if part == 0 { (i[2], i[1]) } else { (3 + i[1], i[2]) };
                Some((0, vec![i[0] * 7 + row, column]))
            },
        ),
        // Value heads from grouped to tiled, on columns.
        Chain::moves(
            vec![vec![3, 2 * 3 * 2]],
            vec![
                WeightStep::Unflatten { axis: 1, sizes: vec![2, 3, 2] },
                WeightStep::Transpose(1, 2),
                WeightStep::Reshape(vec![3, 12]),
            ],
            |_, i| Some((0, vec![i[0], i[1] / 2 % 2 * 6 + i[1] / 4 * 2 + i[1] % 2])),
        ),
        Chain::moves(
            vec![vec![4, 3], vec![2, 3]],
            vec![WeightStep::Concat(0), WeightStep::Transpose(0, 1)],
            |_, i| Some(if i[1] < 4 { (0, vec![i[1], i[0]]) } else { (1, vec![i[1] - 4, i[0]]) }),
        ),
        Chain::moves(vec![vec![4, 3]], vec![WeightStep::Resize(7)], |_, i| {
            (i[0] < 4).then(|| (0, i.to_vec()))
        }),
        Chain::computes(vec![WeightStep::Add(1.0), WeightStep::Mul(3.0)], |x, _| (x + 1.0) * 3.0),
        Chain::computes(
            vec![WeightStep::MulRows(vec![(1, 2.0), (0, 7.0), (3, 0.5)]), WeightStep::NegExp],
            |x, row| -((x * if row == 0 { 2.0 } else { 0.5 }) as f64).exp() as f32,
        ),
    ]
}

fn permuted(heads: usize, to: HeadLayout) -> Vec<WeightStep> {
    vec![WeightStep::PermuteHeads { heads, to }]
}

/// Returns the index of each axis, for a position in a tensor.
fn index(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &dim) in index.iter_mut().zip(shape).rev() {
        (*place, at) = (at % dim, at / dim);
    }
    index
}

#[test]
fn each_value_comes_from_its_place() {
    for Chain { shapes, steps, from, value } in chains() {
        let bytes = tensors(&shapes);
        let sources: Vec<_> = bytes.iter().map(|bytes| numbers(bytes)).collect();
        let results = Flow::run(&steps, flows(&shapes, &bytes)).unwrap();
        for (part, flow) in results.iter().enumerate() {
            let computed = whole(flow);
            let expected = (0..flow.len()).map(|at| {
                let index = index(flow.shape(), at);
                from(part, &index).map_or(0.0, |(tensor, place)| {
                    let at = place.iter().zip(&shapes[tensor]).fold(0, |at, (i, dim)| at * dim + i);
                    value(sources[tensor][at], index[0])
                })
            });
            assert_eq!(computed, expected.collect::<Vec<_>>(), "{steps:?}");
            assert_eq!(numbers(&flow.bytes()), computed, "{steps:?}");
        }
    }
}

#[test]
fn the_inverse_gives_back_what_was_there() {
    for Chain { shapes, steps, .. } in chains() {
        let bytes = tensors(&shapes);
        let there = Flow::run(&steps, flows(&shapes, &bytes)).unwrap();
        let back = Flow::run(&inverse(&steps, shapes.clone()).unwrap(), there).unwrap();
        assert_eq!(back.len(), bytes.len(), "{steps:?}");
        let exact = !steps.iter().any(WeightStep::computes);
        for ((flow, shape), bytes) in back.iter().zip(&shapes).zip(&bytes) {
            assert_eq!(flow.shape(), shape);
            for (x, y) in whole(flow).iter().zip(numbers(bytes)) {
                let bound = if exact { 0.0 } else { 1e-6 * y.abs() };
                assert!((x - y).abs() <= bound, "{steps:?}: {x} {y}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_stretch_is_that_stretch_of_the_whole(
        chain in 0..13_usize, from in 0.0..1.0_f64, part in 0.0..1.0_f64,
    ) {
        let Chain { shapes, steps, .. } = chains().swap_remove(chain);
        let bytes = tensors(&shapes);
        for flow in Flow::run(&steps, flows(&shapes, &bytes)).unwrap() {
            let all = whole(&flow);
            let at = (from * all.len() as f64) as usize;
            let count = (part * (all.len() - at) as f64) as usize;
            let mut out = vec![0.0; count];
            flow.read(at, &mut out);
            prop_assert_eq!(&out[..], &all[at..at + count]);
            let mut bytes = vec![0; count * 4];
            if flow.copy(FileDtype::F32, at, &mut bytes) {
                prop_assert_eq!(&numbers(&bytes)[..], &all[at..at + count]);
            } else {
                prop_assert!(flow.dtype().is_none());
            }
        }
    }
}

/// Adjacent tensors of a file may have no gap; joined, they are still two ranges.
#[test]
fn neighbours_are_no_stretch() {
    let bytes: Vec<u8> = (0..64).collect();
    let (first, second) = bytes.split_at(32);
    assert_eq!(raw(&[2, 16], first).stretch(), Some(first));
    let joined =
        Flow::run(&[WeightStep::Concat(0)], vec![raw(&[2, 16], first), raw(&[2, 16], second)])
            .unwrap();
    assert_eq!(joined[0].stretch(), None);
    let mut copied = vec![0; 64];
    assert!(joined[0].copy(FileDtype::U8, 0, &mut copied) && copied == bytes);
}

/// MXFP4 blocks as in checkpoints: even values low, scales of 2^-1 (126) and 2^1 (128).
#[test]
fn blocks_of_four_bits_become_numbers() {
    let mut blocks = vec![0_u8; 32];
    blocks[0] = 0x21; // 0.5 and 1
    blocks[15] = 0xf7; // 6 and -6
    blocks[16] = 0x0a; // -1 and 0
    let scales = [126_u8, 128];
    let flows = vec![raw(&[1, 2, 16], &blocks), raw(&[1, 2], &scales)];
    let results = Flow::run(&[WeightStep::Mxfp4, WeightStep::Unstack(0)], flows.clone()).unwrap();
    assert_eq!((results.len(), results[0].shape()), (1, &[64][..]));
    let numbers = whole(&results[0]);
    let nonzero: Vec<_> = numbers.iter().enumerate().filter(|(_, x)| **x != 0.0).collect();
    let want = [(0, &0.25), (1, &0.5), (30, &3.0), (31, &-3.0), (32, &-2.0)];
    assert_eq!(nonzero, want);
    let mut part = [0.0; 2];
    results[0].read(31, &mut part);
    assert_eq!(part, [-3.0, -2.0]);
    assert!(Flow::run(&[WeightStep::Mxfp4], flows[..1].to_vec()).is_err());
    let floats = [0_u8; 8];
    let plain = Flow::plain(&[1, 2], FileDtype::F32, &floats).unwrap();
    assert!(Flow::run(&[WeightStep::Mxfp4], vec![flows[0].clone(), plain]).is_err());
}

fn raw<'a>(shape: &[usize], bytes: &'a [u8]) -> Flow<'a> {
    Flow::stored(shape, FileDtype::U8, bytes).unwrap()
}

static CUBE: [u8; 24] =
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];

/// Returns a tensor `[2, 4, 3]` of bytes 0..24.
fn cube() -> Flow<'static> {
    Flow::stored(&[2, 4, 3], FileDtype::U8, &CUBE).unwrap()
}

fn only(steps: &[WeightStep], flow: Flow<'static>) -> Flow<'static> {
    let mut all = Flow::run(steps, vec![flow]).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn steps_and_their_inverses_cancel() {
    let heads = [HeadLayout::Interleaved, HeadLayout::Half]
        .map(|to| WeightStep::PermuteHeads { heads: 2, to });
    let flat = WeightStep::Reshape(vec![8, 3]);
    let back = WeightStep::Reshape(vec![2, 4, 3]);
    let pairs: [(&[WeightStep], &[WeightStep]); 8] = [
        (&[WeightStep::Transpose(0, 2)], &[WeightStep::Transpose(0, 2)]),
        (&[WeightStep::Transpose(1, 2)], &[WeightStep::Transpose(1, 2)]),
        (&[WeightStep::Unsqueeze(1)], &[WeightStep::Squeeze(1)]),
        (&[WeightStep::Reshape(vec![24])], &[WeightStep::Reshape(vec![2, 4, 3])]),
        (&[WeightStep::Unstack(1)], &[WeightStep::Stack(1)]),
        (&[WeightStep::Unstack(2)], &[WeightStep::Stack(2)]),
        (
            &[WeightStep::Split { axis: 1, sizes: SplitSizes::Each(vec![1, 3]) }],
            &[WeightStep::Concat(1)],
        ),
        (&[flat, heads[0].clone()], &[heads[1].clone(), back]),
    ];
    for (there, back) in pairs {
        let restored = only(&[there, back].concat(), cube());
        assert_eq!(
            (restored.shape(), restored.bytes()),
            (cube().shape(), CUBE.to_vec()),
            "{there:?}"
        );
        assert_eq!(restored.dtype(), Some(FileDtype::U8));
    }
}

#[test]
fn a_range_of_a_tensor_is_borrowed() {
    let split = WeightStep::Split { axis: 0, sizes: SplitSizes::Equal(2) };
    let parts = Flow::run(&[split], vec![cube()]).unwrap();
    assert_eq!(
        parts.iter().map(range_in_cube).collect::<Vec<_>>(),
        [Some((0, 12)), Some((12, 24))]
    );
    let ranges: [(&[WeightStep], _); 7] = [
        (&[], Some((0, 24))),
        (&[WeightStep::Reshape(vec![8, 3]), WeightStep::Resize(5)], Some((0, 15))),
        (&[WeightStep::Unsqueeze(0), WeightStep::Transpose(0, 1)], Some((0, 24))),
        (
            &[WeightStep::Split { axis: 1, sizes: SplitSizes::Equal(2) }, WeightStep::Concat(1)],
            Some((0, 24)),
        ),
        (&[WeightStep::Transpose(0, 1)], None),
        (&[WeightStep::Resize(3)], None),
        (&[WeightStep::Unstack(0), WeightStep::Concat(1)], None),
    ];
    for (steps, expected) in ranges {
        assert_eq!(range_in_cube(&only(steps, cube())), expected, "{steps:?}");
    }
}

fn range_in_cube(flow: &Flow<'_>) -> Option<(usize, usize)> {
    let bytes = flow.stretch()?;
    let begin = bytes.as_ptr().addr().checked_sub(CUBE.as_ptr().addr())?;
    Some((begin, begin + bytes.len()))
}

#[test]
fn steps_that_do_not_fit_say_why() {
    assert!(fault_of_cubes(WeightStep::Transpose(0, 3)).contains("no axis 3"));
    assert!(fault_of_cubes(WeightStep::Squeeze(0)).contains("is not 1"));
    assert!(fault_of_cubes(WeightStep::Unsqueeze(4)).contains("no place"));
    assert!(fault_of_cubes(WeightStep::Reshape(vec![usize::MAX, 2])).contains("cannot be read as"));
    assert!(fault_of_cubes(WeightStep::Concat(3)).contains("no axis 3"));
    assert!(fault_of_cubes(WeightStep::Resize(1 << 40)).contains("rows are more than"));
    let sizes = SplitSizes::Equal(3);
    assert!(fault_of_cubes(WeightStep::Split { axis: 1, sizes }).contains("3 equal parts"));
    let sizes = SplitSizes::Each(vec![usize::MAX, 5]);
    assert!(fault_of_cubes(WeightStep::Split { axis: 1, sizes }).contains("do not add up"));
    let to = HeadLayout::Half;
    assert!(fault_of_cubes(WeightStep::PermuteHeads { heads: 0, to }).contains("0 heads"));
    assert!(fault_of(&[WeightStep::Concat(0)], vec![]).contains("no tensors"));
}

fn fault_of(steps: &[WeightStep], flows: Vec<Flow<'_>>) -> String {
    match Flow::run(steps, flows) {
        Ok(_) => panic!("{steps:?} should not fit"),
        Err(why) => why.to_string(),
    }
}

fn fault_of_cubes(step: WeightStep) -> String {
    fault_of(&[step], vec![cube(), cube()])
}

#[test]
fn bytes_that_are_no_numbers_are_only_moved() {
    let other = Flow::stored(&[2, 4, 3], FileDtype::I8, &CUBE).unwrap();
    let joined = Flow::run(&[WeightStep::Concat(0)], vec![cube(), other]).unwrap();
    assert_eq!(joined[0].dtype(), None);
    assert!(joined[0].numeric().unwrap_err().to_string().contains("dtype `U8` cannot be read"));
    assert!(Flow::plain(&[24], FileDtype::U8, &CUBE).is_err());
}

#[test]
fn tensors_without_numbers_pass_through() {
    let steps = [
        WeightStep::Transpose(0, 1),
        WeightStep::Unstack(0),
        WeightStep::Stack(1),
        WeightStep::Transpose(0, 1),
    ];
    let result = only(&steps, without_numbers(&[0, 4]));
    assert_eq!(
        (result.shape(), result.bytes(), result.stretch()),
        (&[4, 0][..], vec![], Some(&[][..]))
    );
    let split = WeightStep::Split { axis: 1, sizes: SplitSizes::Equal(2) };
    assert_eq!(Flow::run(&[split], vec![without_numbers(&[0, 4])]).unwrap()[1].shape(), [0, 2]);
    for (shape, steps) in [
        (vec![0, usize::MAX, 2], vec![WeightStep::Transpose(0, 2), WeightStep::Concat(0)]),
        (vec![0, usize::MAX, 2], vec![WeightStep::Unstack(2), WeightStep::Stack(0)]),
    ] {
        assert!(only(&steps, without_numbers(&shape)).bytes().is_empty());
    }
    let many = Flow::run(&[WeightStep::Unstack(0)], vec![without_numbers(&[usize::MAX, 0])]);
    assert!(many.err().unwrap().to_string().contains("parts"));
}

fn without_numbers(shape: &[usize]) -> Flow<'static> {
    Flow::stored(shape, FileDtype::F32, &[]).unwrap()
}

#[test]
fn parts_of_transposed_tensors_lie_at_constant_distances() {
    // Gates and ups side by side, of experts that are stored transposed: [experts, inputs, 2 * outputs].
    let interleaved = vec![
        WeightStep::Unstack(0),
        WeightStep::Transpose(0, 1),
        WeightStep::Unflatten { axis: 0, sizes: vec![3, 2] },
        WeightStep::Unstack(1),
    ];
    let halves = vec![
        WeightStep::Unstack(0),
        WeightStep::Transpose(0, 1),
        WeightStep::Split { axis: 0, sizes: SplitSizes::Each(vec![3, 3]) },
    ];
    let shapes = [vec![2, 5, 6]];
    let bytes = tensors(&shapes);
    let source = numbers(&bytes[0]);
    for (steps, strides) in [(interleaved, [2, 6]), (halves, [1, 6])] {
        let parts = Flow::run(&steps, flows(&shapes, &bytes)).unwrap();
        assert_eq!(parts.len(), 4);
        for part in &parts {
            let values = part.strided().unwrap();
            assert_eq!((part.shape(), values.strides.as_slice()), (&[3, 5][..], &strides[..]));
            let places = (0..15).map(|n| values.first + n / 5 * strides[0] + n % 5 * strides[1]);
            let gathered: Vec<f32> = places.map(|place| source[place]).collect();
            assert_eq!(gathered, whole(part));
        }
    }
}

/// Returns the values of a strided flow; none if it is not strided.
fn gathered(flow: &Flow<'_>) -> Option<Vec<f32>> {
    let values = flow.strided()?;
    let source = numbers(values.bytes);
    let places = (0..flow.len()).map(|n| {
        let axes = flow.shape.iter().zip(&values.strides).rev();
        let sum = axes.fold((n, values.first), |(n, place), (size, stride)| {
            (n / size, place + n % size * stride)
        });
        sum.1
    });
    Some(places.map(|place| source[place]).collect())
}

#[test]
fn strided_values_are_those_that_are_read() {
    let mut strided = 0;
    for Chain { shapes, steps, .. } in chains() {
        let bytes = tensors(&shapes);
        for flow in Flow::run(&steps, flows(&shapes, &bytes)).unwrap() {
            if let Some(values) = gathered(&flow) {
                strided += 1;
                assert_eq!(values, whole(&flow), "{steps:?}");
            }
        }
    }
    assert!(strided >= 5, "{strided}");
    // A reshape that mixes transposed axes has no constant distances.
    let shapes = [vec![4, 3]];
    let bytes = tensors(&shapes);
    let steps = [WeightStep::Transpose(0, 1), WeightStep::Reshape(vec![4, 3])];
    let mixed = Flow::run(&steps, flows(&shapes, &bytes)).unwrap();
    assert_eq!(gathered(&mixed[0]), None);
}
