use proptest::prelude::*;
use registry::weight_map::{Sizes, inverse};

use super::*;
use crate::weights::run_steps;

/// Returns tensors whose values are all different.
fn tensors(shapes: &[Vec<usize>]) -> Vec<Vec<u8>> {
    let mut next = 0.25_f32;
    let mut number = || {
        next += 0.0625;
        next.to_le_bytes()
    };
    let mut tensor =
        |shape: &Vec<usize>| (0..shape.iter().product()).flat_map(|_: usize| number()).collect();
    shapes.iter().map(&mut tensor).collect()
}

fn flows<'a>(shapes: &[Vec<usize>], bytes: &'a [Vec<u8>]) -> Vec<Flow<'a>> {
    let flow = |(shape, bytes): (&Vec<usize>, &'a Vec<u8>)| {
        Flow::plain(shape, FileDtype::F32, bytes).unwrap()
    };
    shapes.iter().zip(bytes).map(flow).collect()
}

fn whole(flow: &Flow<'_>) -> Vec<f32> {
    let mut out = vec![0.0; flow.len()];
    flow.read(0, &mut out);
    out
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Returns chains of steps that fit their tensors: experts, fused projections, heads, multipliers.
fn chains() -> Vec<(Vec<Vec<usize>>, Vec<Step>)> {
    let each = |sizes: &[usize]| Sizes::Each(sizes.to_vec());
    vec![
        (vec![vec![3, 4]; 5], vec![Step::Stack(0)]),
        (vec![vec![3, 4]; 2], vec![Step::Stack(1), Step::Transpose(0, 2)]),
        (vec![vec![2, 6, 4]], vec![Step::Split { axis: 1, sizes: Sizes::Equal(2) }]),
        (vec![vec![8, 3]], vec![Step::PermuteHeads { heads: 2, to: HeadLayout::Interleaved }]),
        (vec![vec![8]], vec![Step::PermuteHeads { heads: 1, to: HeadLayout::Half }]),
        (vec![vec![5, 1, 3]], vec![Step::Squeeze(1), Step::Transpose(0, 1)]),
        // Groups of q, k, v, z as one projection: regrouped into [q; k; v] and z.
        (
            vec![vec![2 * (2 + 2 + 6 + 6), 5]],
            vec![
                Step::Unflatten { axis: 0, sizes: vec![2, 16] },
                Step::Split { axis: 1, sizes: each(&[2, 2, 6, 6]) },
                Step::Flatten(0),
                Step::ConcatRuns { axis: 0, runs: vec![3, 1] },
            ],
        ),
        // A latent projection into keys, transposed, and values.
        (
            vec![vec![2 * (3 + 4), 5]],
            vec![
                Step::Unflatten { axis: 0, sizes: vec![2, 7] },
                Step::Split { axis: 1, sizes: each(&[3, 4]) },
                Step::At(0, Box::new(Step::Transpose(1, 2))),
            ],
        ),
        // Value heads from grouped to tiled, on columns.
        (
            vec![vec![3, 2 * 3 * 2]],
            vec![
                Step::Unflatten { axis: 1, sizes: vec![2, 3, 2] },
                Step::Transpose(1, 2),
                Step::Reshape(vec![3, 12]),
            ],
        ),
        (vec![vec![4, 3]], vec![Step::Add(1.0), Step::Mul(3.0)]),
        (vec![vec![4, 3]], vec![Step::MulRows(vec![(1, 2.0), (0, 7.0), (3, 0.5)]), Step::NegExp]),
        (vec![vec![4, 3], vec![2, 3]], vec![Step::Concat(0), Step::Transpose(0, 1)]),
        (vec![vec![4, 3]], vec![Step::Resize(7)]),
    ]
}

#[test]
fn a_flow_gives_what_the_steps_give_at_once() {
    for (shapes, steps) in chains() {
        let bytes = tensors(&shapes);
        let made = Flow::run(&steps, flows(&shapes, &bytes)).unwrap();
        let at_once = run_steps(&steps, &shapes, &bytes).unwrap();
        assert_eq!(made.len(), at_once.len(), "{steps:?}");
        for (flow, (shape, expected)) in made.iter().zip(at_once) {
            assert_eq!(flow.shape(), shape, "{steps:?}");
            assert_eq!(whole(flow), expected, "{steps:?}");
        }
    }
}

#[test]
fn the_inverse_gives_back_what_was_there() {
    for (shapes, steps) in chains() {
        let bytes = tensors(&shapes);
        let there = Flow::run(&steps, flows(&shapes, &bytes)).unwrap();
        let back = Flow::run(&inverse(&steps, shapes.clone()).unwrap(), there).unwrap();
        assert_eq!(back.len(), bytes.len(), "{steps:?}");
        let exact = !steps.iter().any(Step::computes);
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
        let (shapes, steps) = chains().swap_remove(chain);
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
                prop_assert!(flow.dtype().is_none() || steps.contains(&Step::Resize(7)));
            }
        }
    }
}

/// Adjacent tensors of a file may have no gap; joined, they are still two ranges.
#[test]
fn neighbours_are_no_stretch() {
    let bytes: Vec<u8> = (0..64).collect();
    let (first, second) = bytes.split_at(32);
    let raw = |part| Flow::raw(&[2, 16], FileDtype::U8, part).unwrap();
    assert_eq!(raw(first).stretch(), Some(first));
    let joined = Flow::run(&[Step::Concat(0)], vec![raw(first), raw(second)]).unwrap();
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
    let raw = |shape: &[usize], bytes| Flow::raw(shape, FileDtype::U8, bytes).unwrap();
    let flows = vec![raw(&[1, 2, 16], &blocks), raw(&[1, 2], &scales)];
    let made = Flow::run(&[Step::Mxfp4, Step::Unstack(0)], flows.clone()).unwrap();
    assert_eq!((made.len(), made[0].shape()), (1, &[64][..]));
    let numbers = whole(&made[0]);
    let found: Vec<_> = numbers.iter().enumerate().filter(|(_, x)| **x != 0.0).collect();
    let want = [(0, &0.25), (1, &0.5), (30, &3.0), (31, &-3.0), (32, &-2.0)];
    assert_eq!(found, want);
    let mut part = [0.0; 2];
    made[0].read(31, &mut part);
    assert_eq!(part, [-3.0, -2.0]);
    assert!(Flow::run(&[Step::Mxfp4], flows[..1].to_vec()).is_err());
    let floats = [0_u8; 8];
    let plain = Flow::plain(&[1, 2], FileDtype::F32, &floats).unwrap();
    assert!(Flow::run(&[Step::Mxfp4], vec![flows[0].clone(), plain]).is_err());
}
