//! `experts`: the MLPs of a mixture. Rows are gathered by expert, so that a weight is read once
//! in a step and only if a row wants it.
//!
//! Rounding is that of the reference's loop over experts (`experts_implementation="eager"`):
//! after each matrix, each bias and each product, and results are added expert by expert, in
//! the order of their numbers, with a rounding after every addition.

use std::collections::BTreeSet;

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::activation::{self, Activation};
use super::{Args, Ctx, Kernel, Kernels, route};
use crate::Error;
use crate::kernels::math::sigmoid;
use crate::kernels::matmul::{Linear, matmul, matmul_many};
use crate::kernels::round::{round, round1};
use crate::weights::WeightMatrix;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("experts", Experts::prepare);
}

/// The gated activation between the matrices of an expert.
struct GatedActivation {
    act: Activation,
    /// Bound on the gate from above, and on the other from both sides.
    limit: Option<f32>,
    /// The sigmoid's slope, where the gate is `g * sigmoid(alpha * g)` and the other has 1 added.
    alpha: Option<f32>,
    /// Soft caps of the gate and of the other, where `cap(g) * sigmoid(g) * cap(u)` is rounded once.
    softcaps: Option<[f32; 2]>,
    dtype: Dtype,
    /// Dtype that the activation is rounded to before the product.
    inner: Dtype,
}

/// Rows of one expert: `(row, which of its choices)`.
type ExpertRows = Vec<(usize, usize)>;

/// The rows that each expert gets, without experts that get none.
pub(super) struct ExpertUses {
    /// Experts in the order of their numbers.
    pub(super) uses: Vec<(usize, ExpertRows)>,
    /// Rows whose router saw NaN.
    pub(super) lost: BTreeSet<usize>,
}

impl ExpertUses {
    /// Sorts the choices of all rows, `k` of each, among `all` experts.
    pub(super) fn of(ctx: &Ctx<'_>, chosen: &[f32], k: usize, all: usize) -> Result<Self, Error> {
        let mut lost = BTreeSet::new();
        let mut by_expert: Vec<ExpertRows> = vec![ExpertRows::new(); all];
        for (at, place) in chosen.iter().enumerate() {
            if place.is_nan() {
                lost.insert(at / k);
                continue;
            }
            let expert = route::index(*place, all)
                .ok_or_else(|| ctx.error(format!("there is no expert {place}")))?;
            by_expert[expert].push((at / k, at));
        }
        let uses = by_expert.into_iter().enumerate().filter(|(_, uses)| !uses.is_empty());
        Ok(Self { uses: uses.collect(), lost })
    }
}

/// The arguments of a mixture.
#[expect(clippy::struct_excessive_bools, reason = "each is an argument with two words")]
pub(super) struct Experts {
    pub(super) n: usize,
    /// Numbers of a row.
    pub(super) hidden: usize,
    /// Choices of a row.
    pub(super) k: usize,
    pub(super) ffn: usize,
    act: Activation,
    pub(super) limit: Option<f32>,
    pub(super) alpha: Option<f32>,
    pub(super) on_input: bool,
    pub(super) plain: bool,
    pub(super) once: bool,
    /// True if the activation of the gate is not rounded before the product.
    pub(super) fine: bool,
    pub(super) softcaps: Option<[f32; 2]>,
    pub(super) identities: usize,
}

impl Experts {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let hidden = args.width(0)?;
        let k = args.width(1)?;
        if k == 0 || args.width(2)? != k {
            return Err(args.error(format!("{k} choices do not fit {} weights", args.width(2)?)));
        }
        args.expect_output(hidden)?;
        let n = args.count("n")?;
        let ffn = args.count("ffn")?;
        let plain = args.one_of("form", &[("glu", false), ("plain", true)])?;
        expect_matrices(args, "up", n, [ffn, hidden])?;
        expect_matrices(args, "down", n, [hidden, ffn])?;
        if !plain {
            expect_matrices(args, "gate", n, [ffn, hidden])?;
        }
        Ok(Self {
            n,
            hidden,
            k,
            ffn,
            act: activation::argument(args, "act")?,
            limit: args.number_or_null("limit")?,
            alpha: args.number_or_null("alpha")?,
            on_input: args.one_of("weigh", &[("output", false), ("input", true)])?,
            plain,
            once: args.one_of("sum", &[("each", false), ("once", true)])?,
            fine: args.one_of("inner", &[("each", false), ("once", true)])?,
            softcaps: softcaps(args)?,
            identities: args.count("identities")?,
        })
    }
}

/// Reads the soft caps of a gate and what it multiplies.
fn softcaps(args: &Args<'_>) -> Result<Option<[f32; 2]>, Error> {
    let Some(caps) = args.numbers_or_null("softcaps")? else { return Ok(None) };
    let caps = caps.try_into().map_err(|_| args.error("it has two soft caps"))?;
    Ok(Some(caps))
}

impl Kernel for Experts {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let chosen = ctx.input(1)?;
        let weights = ctx.input(2)?;
        let &Self { n, hidden, k, ffn, .. } = self;
        let &Self { act, limit, alpha, softcaps, on_input, plain, once, fine, identities, .. } =
            self;
        let rows = x.rows();
        let dtype = ctx.output_dtype(0);
        let inner = if fine { Dtype::F32 } else { dtype };
        let gate = GatedActivation { act, limit, alpha, softcaps, dtype, inner };
        // Experts without weights, which give back what they get, come behind the others.
        let ExpertUses { uses, lost } = ExpertUses::of(ctx, &chosen.view(), k, n + identities)?;
        // What is added in f32 is not rounded before.
        let each = if once { Dtype::F32 } else { dtype };
        let x = x.view();
        let x: &[f32] = &x;
        let weights = weights.view();
        let weights: &[f32] = &weights;
        let here = &*ctx;
        let results: Vec<Vec<f32>> = uses
            .par_iter()
            .map(|(expert, uses)| -> Result<Vec<f32>, Error> {
                let mut input = Vec::with_capacity(uses.len() * hidden);
                for &(row, at) in uses {
                    let from = input.len();
                    input.extend_from_slice(&x[row * hidden..(row + 1) * hidden]);
                    if on_input {
                        input[from..].iter_mut().for_each(|x| *x *= weights[at]);
                        round(dtype, &mut input[from..]);
                    }
                }
                let mut y = if *expert < n {
                    mlp(here, *expert, plain, &gate, &input, [ffn, hidden])?
                } else {
                    input
                };
                if !on_input {
                    for (&(_, at), y) in uses.iter().zip(y.chunks_exact_mut(hidden)) {
                        for y in y.iter_mut() {
                            *y *= weights[at];
                        }
                        round(each, y);
                    }
                }
                Ok(y)
            })
            .collect::<Result<_, _>>()?;
        let mut out = vec![0.0; rows * hidden];
        for ((_, uses), result) in uses.iter().zip(&results) {
            for (&(row, _), y) in uses.iter().zip(result.chunks_exact(hidden)) {
                let out = &mut out[row * hidden..(row + 1) * hidden];
                out.iter_mut().zip(y).for_each(|(out, y)| *out = round1(each, *out + y));
            }
        }
        round(dtype, &mut out);
        for row in lost {
            out[row * hidden..(row + 1) * hidden].fill(f32::NAN);
        }
        ctx.set(0, out)
    }
}

/// Computes one expert on the rows that chose it.
fn mlp(
    ctx: &Ctx<'_>,
    expert: usize,
    plain: bool,
    gate: &GatedActivation,
    x: &[f32],
    [ffn, hidden]: [usize; 2],
) -> Result<Vec<f32>, Error> {
    let dtype = gate.dtype;
    let inner = if plain {
        let mut y = expert_product(ctx, ("up", expert), [ffn, hidden], x, dtype)?;
        (gate.act)(dtype, &mut y);
        y
    } else {
        let rows = x.len() / hidden.max(1);
        let one = expert_matrix(ctx, ("gate", expert), hidden, x)?;
        let two = expert_matrix(ctx, ("up", expert), hidden, x)?;
        let mut g = vec![0.0; rows * ffn];
        let mut u = vec![0.0; rows * ffn];
        let gated = format!("gate.{expert}");
        let raised = format!("up.{expert}");
        let rows_of = ctx.rows_for(&gated, hidden, x);
        let mut linears = [
            Linear { weight: one.view(), bias: None, round: dtype, y: &mut g },
            Linear { weight: two.view(), bias: None, round: dtype, y: &mut u },
        ];
        if ctx.rounding(&gated) == ctx.rounding(&raised) {
            matmul_many(&rows_of, rows, &mut linears);
        } else {
            // Each has a scale of its own for what both multiply.
            matmul_many(&rows_of, rows, &mut linears[..1]);
            matmul_many(&ctx.rows_for(&raised, hidden, x), rows, &mut linears[1..]);
        }
        add_bias(ctx, "gate", expert, dtype, &mut g);
        add_bias(ctx, "up", expert, dtype, &mut u);
        gate.apply(&mut g, u);
        g
    };
    expert_product(ctx, ("down", expert), [hidden, ffn], &inner, dtype)
}

/// Multiplies rows by a matrix of an expert, and adds the bias if there is one.
pub(super) fn expert_product(
    ctx: &Ctx<'_>,
    (part, expert): (&str, usize),
    [outputs, inputs]: [usize; 2],
    x: &[f32],
    dtype: Dtype,
) -> Result<Vec<f32>, Error> {
    let matrix = expert_matrix(ctx, (part, expert), inputs, x)?;
    let count = x.len() / inputs.max(1);
    let rows = ctx.rows_for(&format!("{part}.{expert}"), inputs, x);
    let mut y = vec![0.0; count * outputs];
    matmul(&rows, count, &matrix.view(), None, dtype, &mut y);
    add_bias(ctx, part, expert, dtype, &mut y);
    Ok(y)
}

/// Returns a matrix of an expert, and shows the rows that it is about to multiply.
fn expert_matrix<'a>(
    ctx: &Ctx<'a>,
    (part, expert): (&str, usize),
    inputs: usize,
    rows: &[f32],
) -> Result<WeightMatrix<'a>, Error> {
    let role = format!("{part}.{expert}");
    ctx.observe_product(&role, inputs, rows);
    ctx.matrix(&role)
}

/// Checks the matrices `part.0` to `part.n` of experts, and their biases.
pub(super) fn expect_matrices(
    args: &Args<'_>,
    part: &str,
    n: usize,
    [outputs, inputs]: [usize; 2],
) -> Result<(), Error> {
    for expert in 0..n {
        let shape = args.weight(&format!("{part}.{expert}")).unwrap_or_default();
        if shape != [outputs, inputs] {
            return Err(args
                .error(format!("`{part}` of an expert is {shape:?}, not [{outputs}, {inputs}]")));
        }
        let bias = format!("bias.{part}.{expert}");
        if !args.may_have(&bias, outputs) {
            let numbers = args.numbers(&bias);
            return Err(args.error(format!("a bias of {numbers} numbers for {outputs} outputs")));
        }
    }
    Ok(())
}

/// Adds an expert's bias to every row, if it has one. The sum is rounded separately, as for a bias that is
/// not part of the matrix product.
fn add_bias(ctx: &Ctx<'_>, part: &str, expert: usize, dtype: Dtype, y: &mut [f32]) {
    let Some(bias) = ctx.vector(&format!("bias.{part}.{expert}")) else { return };
    for y in y.chunks_exact_mut(bias.len().max(1)) {
        y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        round(dtype, y);
    }
}

impl GatedActivation {
    /// Makes of the gate what goes into the last matrix.
    fn apply(&self, gate: &mut [f32], mut up: Vec<f32>) {
        let dtype = self.dtype;
        if let Some(limit) = self.limit {
            let limit = round1(dtype, limit);
            for (g, u) in gate.iter_mut().zip(&mut up) {
                // NaN stays NaN.
                (*g, *u) = (if *g > limit { limit } else { *g }, u.clamp(-limit, limit));
            }
        }
        // `(up + 1) * (gate * sigmoid(gate * alpha))`, a rounding after every step.
        if let Some(alpha) = self.alpha {
            for (g, u) in gate.iter_mut().zip(&up) {
                let turned = round1(dtype, sigmoid(round1(dtype, *g * alpha)));
                let activated = round1(dtype, *g * turned);
                *g = round1(dtype, round1(dtype, u + 1.0) * activated);
            }
        } else if let Some([gate_cap, cap]) = self.softcaps {
            for (g, u) in gate.iter_mut().zip(&up) {
                *g = (*g / gate_cap).tanh() * gate_cap * sigmoid(*g) * ((u / cap).tanh() * cap);
            }
            round(dtype, gate);
        } else {
            (self.act)(self.inner, gate);
            gate.iter_mut().zip(&up).for_each(|(g, u)| *g *= u);
            round(dtype, gate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_bend_and_round() {
        for (gate, g, u, want) in [
            (relu_gate(None, None, Dtype::F32), 2.0, -3.0, -6.0),
            (relu_gate(None, None, Dtype::F32), -2.0, -3.0, 0.0),
            (relu_gate(Some(1.5), None, Dtype::F32), 2.0, -3.0, -2.25),
            (relu_gate(Some(7.0), Some(0.0), Dtype::F32), 2.0, 3.0, 4.0),
            // 1.0078125 * 1.0078125 is 1.01568..., between two numbers of bf16.
            (relu_gate(None, None, Dtype::Bf16), 1.007_812_5, 1.007_812_5, 1.015_625),
        ] {
            let mut y = [g];
            gate.apply(&mut y, vec![u]);
            assert_eq!(y, [want], "{g} {u}");
        }
    }

    #[test]
    fn an_activation_is_rounded_before_the_product_or_with_it() {
        // silu(0.5) is 0.311229...: times 3 it is 0.933688..., and 0.310546875 in bf16.
        for (inner, want) in [(Dtype::Bf16, 0.929_687_5), (Dtype::F32, 0.933_593_75)] {
            let act = activation::by_name("silu").expect("there is one");
            let gate = GatedActivation { act, inner, ..relu_gate(None, None, Dtype::Bf16) };
            let mut y = [0.5];
            gate.apply(&mut y, vec![3.0]);
            assert_eq!(y, [want], "{inner:?}");
        }
    }

    #[test]
    fn soft_caps_bend_the_gate_and_what_it_multiplies() {
        let capped =
            |dtype| GatedActivation { softcaps: Some([2.0, 4.0]), ..relu_gate(None, None, dtype) };
        let want = 2.0 * 1.5_f32.tanh() * sigmoid(3.0) * (4.0 * 1.25_f32.tanh());
        for (dtype, want) in [(Dtype::F32, want), (Dtype::Bf16, round1(Dtype::Bf16, want))] {
            let mut y = [3.0];
            capped(dtype).apply(&mut y, vec![5.0]);
            approx::assert_relative_eq!(y[0], want, max_relative = 1e-6);
        }
    }

    fn relu_gate(limit: Option<f32>, alpha: Option<f32>, dtype: Dtype) -> GatedActivation {
        GatedActivation {
            act: activation::by_name("relu").expect("there is one"),
            limit,
            alpha,
            softcaps: None,
            dtype,
            inner: dtype,
        }
    }
}
