//! Steps on tensors of indices: what is done and undone is as it was.

use proptest::prelude::*;

use super::*;

/// A tensor whose numbers tell where they came from.
#[derive(Debug, Clone, PartialEq)]
struct Indices {
    shape: Shape,
    data: Vec<usize>,
}

fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Builds a tensor of `shape` whose element at an index is `of(index)`.
fn build(shape: &Shape, of: impl Fn(&[usize]) -> usize) -> Indices {
    let strides = strides(shape);
    let count: usize = shape.iter().product();
    let data = (0..count).map(|flat| {
        let index = shape.iter().zip(&strides).map(|(d, s)| flat / s % d);
        of(&index.collect::<Vec<_>>())
    });
    Indices { shape: shape.clone(), data: data.collect() }
}

impl Indices {
    fn get(&self, index: &[usize]) -> usize {
        let flat: usize = index.iter().zip(strides(&self.shape)).map(|(i, s)| i * s).sum();
        self.data[flat]
    }
}

fn moved(index: &[usize], axis: usize, by: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index[axis] += by;
    index
}

fn without(index: &[usize], axis: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index.remove(axis);
    index
}

fn with(index: &[usize], axis: usize, value: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index.insert(axis, value);
    index
}

/// Applies each step by its plain definition, element by element.
fn apply(step: &WeightStep, inputs: &[Indices]) -> Vec<Indices> {
    let shapes =
        step_shapes(step, &inputs.iter().map(|input| input.shape.clone()).collect::<Vec<_>>())
            .unwrap();
    match step {
        WeightStep::Concat(axis) => vec![build(&shapes[0], |index| {
            let mut at = index[*axis];
            for input in inputs {
                if at < input.shape[*axis] {
                    let mut index = index.to_vec();
                    index[*axis] = at;
                    return input.get(&index);
                }
                at -= input.shape[*axis];
            }
            unreachable!()
        })],
        WeightStep::Stack(axis) => {
            vec![build(&shapes[0], |index| inputs[index[*axis]].get(&without(index, *axis)))]
        }
        WeightStep::Split { axis, .. } => {
            let mut start = 0;
            shapes
                .iter()
                .map(|shape| {
                    let part = build(shape, |index| inputs[0].get(&moved(index, *axis, start)));
                    start += shape[*axis];
                    part
                })
                .collect()
        }
        WeightStep::Unstack(axis) => (0..shapes.len())
            .map(|n| build(&shapes[n], |index| inputs[0].get(&with(index, *axis, n))))
            .collect(),
        alone => inputs
            .iter()
            .zip(&shapes)
            .map(|(input, shape)| match alone {
                WeightStep::Transpose(a, b) => build(shape, |index| {
                    let mut index = index.to_vec();
                    index.swap(*a, *b);
                    input.get(&index)
                }),
                WeightStep::Reverse(axis) => build(shape, |index| {
                    let mut index = index.to_vec();
                    index[*axis] = shape[*axis] - 1 - index[*axis];
                    input.get(&index)
                }),
                WeightStep::PermuteHeads { heads, to } => {
                    let rows = shape[0] / heads;
                    build(shape, |index| {
                        let head = index[0] / rows;
                        let row = index[0] % rows;
                        let from = match to {
                            HeadLayout::Half => row % (rows / 2) * 2 + row / (rows / 2),
                            HeadLayout::Interleaved => row % 2 * (rows / 2) + row / 2,
                        };
                        let mut index = index.to_vec();
                        index[0] = head * rows + from;
                        input.get(&index)
                    })
                }
                _ => Indices { shape: shape.clone(), data: input.data.clone() },
            })
            .collect(),
    }
}

fn run(steps: &[WeightStep], inputs: &[Indices]) -> Vec<Indices> {
    steps.iter().fold(inputs.to_vec(), |tensors, step| apply(step, &tensors))
}

fn step() -> impl Strategy<Value = WeightStep> {
    prop_oneof![
        (0..3usize, 0..3usize).prop_map(|(a, b)| WeightStep::Transpose(a, b)),
        (0..3usize).prop_map(WeightStep::Reverse),
        (0..4usize).prop_map(WeightStep::Squeeze),
        (0..4usize).prop_map(WeightStep::Unsqueeze),
        prop::collection::vec(1..7usize, 1..4).prop_map(WeightStep::Reshape),
        (1..4usize, any::<bool>()).prop_map(|(heads, half)| WeightStep::PermuteHeads {
            heads,
            to: if half { HeadLayout::Half } else { HeadLayout::Interleaved }
        }),
        (0..3usize, 1..4usize)
            .prop_map(|(axis, n)| WeightStep::Split { axis, sizes: SplitSizes::Equal(n) }),
        (0..3usize, prop::collection::vec(1..4usize, 1..4))
            .prop_map(|(axis, sizes)| WeightStep::Split { axis, sizes: SplitSizes::Each(sizes) }),
        (0..3usize).prop_map(WeightStep::Unstack),
        (0..3usize).prop_map(WeightStep::Concat),
        (0..4usize).prop_map(WeightStep::Stack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_global_rejects: 200_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_done_can_be_undone(
        shape in prop::collection::vec(1..7usize, 1..4),
        count in 1..4usize,
        steps in prop::collection::vec(step(), 1..5),
    ) {
        let inputs: Vec<Indices> = (0..count)
            .map(|n| {
                let strides = strides(&shape);
                build(&shape, |index| n * 10_000 + index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>())
            })
            .collect();
        // Keep the steps that fit, so that most cases do something.
        let mut tensors = vec![shape.clone(); count];
        let mut fitting = Vec::new();
        for step in steps {
            let shapes = step_shapes(&step, &tensors);
            if let (Ok(shapes), Ok(_)) = (shapes, inverse_step(&step, &tensors)) {
                tensors = shapes;
                fitting.push(step);
            }
        }
        let back = inverse(&fitting, vec![shape.clone(); count]).unwrap();
        let done = run(&fitting, &inputs);
        prop_assert_eq!(done.iter().map(|t| t.shape.clone()).collect::<Vec<_>>(), tensors);
        prop_assert_eq!(run(&back, &done), inputs);
    }

    #[test]
    fn no_shape_panics(
        shapes_in in prop::collection::vec(prop::collection::vec(any::<usize>(), 0..3), 0..3),
        steps in prop::collection::vec(step(), 0..4),
    ) {
        let _unused = shapes(&steps, shapes_in.clone());
        let _unused = inverse(&steps, shapes_in);
    }
}

#[test]
fn misfits_say_why() {
    for (step, inputs, expected) in [
        (WeightStep::Transpose(0, 2), vec![vec![2, 3]], "shape [2, 3] has no axis 2"),
        (WeightStep::Squeeze(0), vec![vec![2, 3]], "axis 0 of shape [2, 3] is not 1"),
        (WeightStep::Reshape(vec![4]), vec![vec![2, 3]], "shape [2, 3] cannot be read as [4]"),
        (
            WeightStep::Concat(0),
            vec![vec![2, 3], vec![2, 4]],
            "the shapes [2, 3] and [2, 4] differ beside axis 0",
        ),
        (WeightStep::Stack(0), vec![], "there are no tensors"),
        (
            WeightStep::Split { axis: 0, sizes: SplitSizes::Equal(3) },
            vec![vec![4]],
            "4 does not split into 3 equal parts",
        ),
        (
            WeightStep::PermuteHeads { heads: 2, to: HeadLayout::Half },
            vec![vec![6]],
            "6 rows are not 2 heads of an even size",
        ),
    ] {
        assert_eq!(step_shapes(&step, &inputs).unwrap_err().to_string(), expected);
    }
}
