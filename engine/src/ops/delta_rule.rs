//! `delta_rule`: a matrix per head that decays, forgets what it held for a key and learns what
//! comes in its place. `log_decay` makes the logarithm of the decay.
//!
//! The recurrence of `torch_recurrent_gated_delta_rule` (transformers), in
//! f32, one position after another. The reference computes prefills in chunks by a triangular
//! solve, which is the same in exact arithmetic.

use rayon::prelude::*;

use super::{Ctx, rows};
use crate::Error;
use crate::kernels::math;
use crate::kernels::round::round;
use crate::states::Memory;
use crate::states::recurrent::Blocks;

/// `-exp(A) * softplus(x + dt)`, or with a floor `floor * sigmoid(exp(A) * (x + dt))`.
pub(super) fn log_decay(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let (a, dt) = (ctx.need_vector("A")?, ctx.need_vector("dt")?);
    let floor = ctx.number_or_null("floor")?.map(|f| f as f32);
    let width = x.width();
    if dt.len() != width || a.is_empty() || width % a.len() != 0 {
        return Err(ctx.error(format!("{} rates and {} offsets for {width}", a.len(), dt.len())));
    }
    let rates: Vec<f32> = a.iter().map(|a| a.exp()).collect();
    let dtype = ctx.output_dtype(0);
    let per_head = width / a.len();
    let y = rows::map(&x.view(), width, width, |_, x, y| {
        for (n, ((y, x), dt)) in y.iter_mut().zip(x).zip(dt).enumerate() {
            let (rate, x) = (rates[n / per_head], x + dt);
            *y = match floor {
                Some(floor) => floor * math::sigmoid(rate * x),
                None => -rate * math::softplus(x),
            };
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

/// Sizes of a head, and how queries and keys are normed.
#[derive(Debug, Clone, Copy)]
struct Rule {
    key: usize,
    value: usize,
    /// Value heads that share a key head.
    group: usize,
    key_heads: usize,
    heads: usize,
    scale: f32,
    eps: Option<f32>,
    divides: bool,
    /// Whether each channel of the keys has a decay of its own.
    by_channel: bool,
}

/// The rows of one chunk, all heads.
struct Rows<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    g: &'a [f32],
    beta: &'a [f32],
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let (q, k, v) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let (g, beta) = (ctx.input(3)?, ctx.input(4)?);
    let (&[_, key_heads, key], &[_, heads, value]) = (k.shape(), v.shape()) else {
        return Err(ctx.error("keys and values have two axes each, heads and head size"));
    };
    let fits = key_heads > 0
        && heads % key_heads == 0
        && q.width() == k.width()
        && beta.width() == heads
        && (g.width() == heads || g.width() == heads * key);
    if !fits {
        return Err(ctx.error("its inputs do not fit"));
    }
    let rule = Rule {
        key,
        value,
        group: heads / key_heads,
        key_heads,
        heads,
        scale: ctx.number("scale")? as f32,
        eps: ctx.number_or_null("eps")?.map(|e| e as f32),
        divides: ctx.text("norm", "multiply") == "divide",
        by_channel: g.width() != heads,
    };
    let (q, k, v, g, beta) = (q.view(), k.view(), v.view(), g.view(), beta.view());
    let dtype = ctx.output_dtype(0);
    let mut y = vec![0.0; v.len()];
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold a matrix of this shape per head");
        let part = |width: usize| chunk.rows.start * width..chunk.rows.end * width;
        let rows = Rows {
            q: &q[part(key_heads * key)],
            k: &k[part(key_heads * key)],
            v: &v[part(heads * value)],
            g: &g[part(if rule.by_channel { heads * key } else { heads })],
            beta: &beta[part(heads)],
        };
        let Memory::Recurrent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
        if memory.width() != heads * key * value || memory.end() != chunk.start {
            return Err(wrong);
        }
        let Blocks { before, after } = memory.step(chunk.rows.len());
        let size = key * value;
        // [head][step]: the matrices that the chunk ends with.
        let mut places: Vec<Vec<&mut [f32]>> = (0..heads).map(|_| Vec::new()).collect();
        for block in after {
            for (head, matrix) in block.chunks_exact_mut(size).enumerate() {
                places[head].push(matrix);
            }
        }
        let made: Vec<Vec<f32>> = places
            .into_par_iter()
            .enumerate()
            .map(|(head, after)| one(&rule, head, &before[head * size..][..size], after, &rows))
            .collect();
        let y = &mut y[part(heads * value)];
        for (head, made) in made.iter().enumerate() {
            for (y, made) in y.chunks_exact_mut(heads * value).zip(made.chunks_exact(value)) {
                y[head * value..][..value].copy_from_slice(made);
            }
        }
        round(dtype, y);
    }
    ctx.set(0, y)
}

/// `[rows, value]` of one head; `after` receives its matrix after the last rows.
fn one(
    rule: &Rule,
    head: usize,
    before: &[f32],
    mut after: Vec<&mut [f32]>,
    rows: &Rows<'_>,
) -> Vec<f32> {
    let Rule { key, value, heads, .. } = *rule;
    let count = rows.beta.len() / heads;
    let first = count - after.len();
    let key_head = head / rule.group;
    let mut scratch = if first > 0 { before.to_vec() } else { Vec::new() };
    let (mut q, mut k) = (vec![0.0; key], vec![0.0; key]);
    let (mut decay, mut delta) = (vec![0.0; key], vec![0.0; value]);
    let mut y = vec![0.0; count * value];
    for (row, y) in y.chunks_exact_mut(value).enumerate() {
        let at = (row * rule.key_heads + key_head) * key;
        normed(rule, &rows.q[at..at + key], &mut q);
        normed(rule, &rows.k[at..at + key], &mut k);
        for q in &mut q {
            *q *= rule.scale;
        }
        let at = row * heads + head;
        if rule.by_channel {
            let g = &rows.g[at * key..][..key];
            decay.iter_mut().zip(g).for_each(|(d, g)| *d = g.exp());
        } else {
            decay.fill(rows.g[at].exp());
        }
        let matrix: &mut [f32] = match row.checked_sub(first) {
            None => &mut scratch,
            Some(n) => {
                let (done, left) = after.split_at_mut(n);
                let last: &[f32] = match done.last() {
                    Some(last) => last,
                    None if first > 0 => &scratch,
                    None => before,
                };
                left[0].copy_from_slice(last);
                &mut *left[0]
            }
        };
        step(
            matrix,
            &decay,
            (&q, &k),
            &rows.v[at * value..][..value],
            rows.beta[at],
            &mut delta,
            y,
        );
    }
    y
}

/// One position: the matrix decays, what it holds for `k` moves towards `v`, and `q` reads it.
fn step(
    matrix: &mut [f32], // [key, value]
    decay: &[f32],
    (q, k): (&[f32], &[f32]),
    v: &[f32],
    beta: f32,
    delta: &mut [f32],
    y: &mut [f32],
) {
    let value = v.len();
    delta.fill(0.0);
    for ((line, decay), k) in matrix.chunks_exact_mut(value).zip(decay).zip(k) {
        for (s, held) in line.iter_mut().zip(delta.iter_mut()) {
            *s *= decay;
            *held += *s * k;
        }
    }
    for (held, v) in delta.iter_mut().zip(v) {
        *held = (v - *held) * beta;
    }
    y.fill(0.0);
    for ((line, q), k) in matrix.chunks_exact_mut(value).zip(q).zip(k) {
        for ((s, delta), y) in line.iter_mut().zip(delta.iter()).zip(y.iter_mut()) {
            *s += k * delta;
            *y += *s * q;
        }
    }
}

/// To length 1, where the rule says so.
fn normed(rule: &Rule, x: &[f32], y: &mut [f32]) {
    y.copy_from_slice(x);
    let Some(eps) = rule.eps else { return };
    let length = (math::fold(x, |x| x * x) + eps).sqrt();
    let inverse = 1.0 / length;
    for y in y {
        *y = if rule.divides { *y / length } else { *y * inverse };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Rule {
        Rule {
            key: 2,
            value: 2,
            group: 1,
            key_heads: 1,
            heads: 1,
            scale: 1.0,
            eps: None,
            divides: false,
            by_channel: false,
        }
    }

    #[test]
    fn a_key_seen_again_is_overwritten() {
        let rows = Rows {
            q: &[1.0, 0.0, 1.0, 0.0, 0.0, 1.0],
            k: &[1.0, 0.0, 1.0, 0.0, 0.0, 1.0],
            v: &[3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            g: &[0.0, 0.0, 0.5f32.ln()],
            beta: &[1.0, 0.5, 1.0],
        };
        let mut last = [0.0; 4];
        let y = one(&rule(), 0, &[0.0; 4], vec![&mut last], &rows);
        // Written whole, then half way from (3, 4) to (5, 6); the last decays what is there.
        assert_eq!(y, [3.0, 4.0, 4.0, 5.0, 7.0, 8.0]);
        assert_eq!(last, [2.0, 2.5, 7.0, 8.0]);
    }

    #[test]
    fn pieces_give_the_bits_of_the_whole() {
        let numbers =
            |n: usize| -> Vec<f32> { (0..n).map(|i| ((i * 37 % 19) as f32 - 9.0) / 7.0).collect() };
        let (q, k, v, g) = (numbers(10), numbers(12), numbers(14), numbers(16));
        let g: Vec<f32> = g.iter().map(|g| -g.abs()).collect();
        let rule = Rule { eps: Some(1e-6), by_channel: true, ..rule() };
        let part = |from: usize, to: usize| Rows {
            q: &q[from * 2..to * 2],
            k: &k[from * 2..to * 2],
            v: &v[from * 2..to * 2],
            g: &g[from * 2..to * 2],
            beta: &[0.3, 0.9, 0.5, 0.7, 0.2][from..to],
        };
        let whole = {
            let mut ends = [[0.0; 4]; 2];
            let places = ends.iter_mut().map(|e| &mut e[..]).collect();
            (one(&rule, 0, &[0.1; 4], places, &part(0, 5)), ends)
        };
        let (mut a, mut b) = ([0.0; 4], [[0.0; 4]; 2]);
        let mut y = one(&rule, 0, &[0.1; 4], vec![&mut a], &part(0, 3));
        let places = b.iter_mut().map(|e| &mut e[..]).collect();
        y.extend(one(&rule, 0, &a, places, &part(3, 5)));
        assert_eq!((y, b), whole);
    }
}
