//! Ops on positions and on several streams, and the parts of attention that few models have,
//! against values computed by hand.

use registry::dtype::Dtype;
use registry::graph::{StateKind, ValueId};
use registry::scalar::Scalar;

use crate::build::Build;
use crate::ops::{attrs, rows, run};

fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        approx::assert_relative_eq!(*got, *want, max_relative = 1e-6, epsilon = 1e-7);
    }
}

fn floats(list: &[f64]) -> Scalar {
    Scalar::List(list.iter().map(|x| Scalar::Float(*x)).collect())
}

#[test]
fn positions_choose_rows_and_angles() {
    let mut b = Build::new(3);
    let table = b.weight(&[4, 2], &[9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let (node, x) = b.node("position_embed", &[ValueId(0)], &[2]);
    node.weights.insert("weight".into(), table);
    node.attrs = attrs(&[("offset", Scalar::Int(1))]);
    assert_eq!(run(b, x, Dtype::F32, 3), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);

    let mut b = Build::new(2);
    let (node, x) = b.node("sinusoid", &[ValueId(0)], &[4]);
    node.attrs = attrs(&[("frequencies", floats(&[1.0, 0.5])), ("offset", Scalar::Int(2))]);
    let angles = [2.0f32, 1.0, 3.0, 1.5];
    let [a, b2, c, d] = angles;
    let want = [a.sin(), b2.sin(), a.cos(), b2.cos(), c.sin(), d.sin(), c.cos(), d.cos()];
    close(&run(b, x, Dtype::F32, 2), &want);
}

#[test]
fn queries_grow_with_their_position() {
    let (mut b, x) = rows(&[&[1.0], &[1.0], &[2.0], &[2.0], &[2.0]]);
    let (node, y) = b.node("temperature", &[x], &[1]);
    node.attrs = attrs(&[
        ("scale", Scalar::Float(0.5)),
        ("every", Scalar::Float(2.0)),
        ("shift", Scalar::Float(0.0)),
    ]);
    let second = 1.0 + 0.5 * 2.0f32.ln();
    let third = 1.0 + 0.5 * 3.0f32.ln();
    let want = [1.0, 1.0, 2.0 * second, 2.0 * second, 2.0 * third];
    close(&run(b, y, Dtype::F32, 5), &want);
}

#[test]
fn streams_are_mixed_spread_and_averaged() {
    let data: &[&[f32]] = &[&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]];
    let (mut b, x) = rows(data);
    let (_, streams) = b.node("heads", &[x], &[2, 2]);
    let (_, mixed) = b.node("mix_streams", &[streams, streams], &[2, 2]);
    // The matrix of the first row is [[1, 2], [3, 4]], and so are its streams.
    assert_eq!(run(b, mixed, Dtype::F32, 1), [7.0, 10.0, 15.0, 22.0]);

    let (mut b, x) = rows(data);
    let (_, spread) = b.node("outer", &[x, x], &[4, 4]);
    assert_eq!(run(b, spread, Dtype::F32, 1)[4..8], [2.0, 4.0, 6.0, 8.0]);

    let (mut b, x) = rows(data);
    let (_, mean) = b.node("mean", &[x], &[1]);
    assert_eq!(run(b, mean, Dtype::F32, 2), [2.5, 6.5]);
}

#[test]
fn a_share_of_one_half_is_taken_off_the_other() {
    let (mut b, x) = rows(&[&[1.0, 2.0, 10.0, 20.0]]);
    let (_, heads) = b.node("heads", &[x], &[2, 2]);
    let lambdas = [[0.5, 0.0], [1.0, 3.0], [0.0, 0.25], [1.0, 1.0]];
    let ids = lambdas.map(|values| b.weight(&[2], &values));
    let (node, y) = b.node("differ", &[heads], &[1, 2]);
    for (name, id) in ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"].iter().zip(ids) {
        node.weights.insert((*name).to_owned(), id);
    }
    node.attrs = attrs(&[("init", Scalar::Float(0.2))]);
    let share = 0.5f32.exp() - 0.25f32.exp() + 0.2;
    close(&run(b, y, Dtype::F32, 1), &[1.0 - 10.0 * share, 2.0 - 20.0 * share]);
}

/// Two key heads of one number; values in pairs, and a second query to the same keys.
#[test]
fn values_in_pairs_and_keys_of_an_earlier_layer() {
    let (mut b, x) = rows(&[&[1.0, 2.0], &[3.0, 4.0]]);
    let (_, heads) = b.node("heads", &[x], &[2, 1]);
    let state = b.state(StateKind::Attention, &[("k", &[2, 1]), ("v", &[2, 1])], None);
    let scale = ("scale", Scalar::Float(0.0));
    let (node, y) = b.node("attend", &[heads, heads, heads], &[4]);
    node.state = Some(state);
    node.attrs = attrs(&[scale.clone(), ("values", Scalar::Str("paired".into()))]);
    let (node, z) = b.node("attend_to", &[heads], &[2]);
    node.state = Some(state);
    node.attrs = attrs(&[scale]);
    let (_, both) = b.node("concat", &[y, z], &[6]);
    // With a scale of 0 all positions weigh the same.
    let want = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0];
    assert_eq!(run(b, both, Dtype::F32, 2), want);
}
