//! What ops compute: one file per op or tight group, behind one table.
//!
//! A kernel reads its inputs, weights, state and attributes from a [`Ctx`] and puts its outputs
//! there, rounded to the dtypes that the graph gives them. Another crate adds an op by
//! registering a kernel under its name.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Error;

mod activation;
mod attend;
mod causal_conv;
mod ctx;
mod delta_rule;
mod differ;
mod elementwise;
mod embed;
mod experts;
mod gated_norm;
mod gaussian_topk;
mod glu;
mod heads_linear;
mod index_topk;
mod latent_attend;
mod lightning;
mod linear;
mod norm;
mod position;
mod rg_lru;
mod rope;
mod route;
mod rows;
mod scan;
mod shape;
mod ssd_scan;
mod ssm1_scan;
mod streams;
mod xielu;

pub use ctx::{ChunkRows, Ctx};

/// Computes one op.
pub trait Kernel: Send + Sync {
    /// Reads from and writes to the context.
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error>;
}

impl<F: Fn(&mut Ctx<'_>) -> Result<(), Error> + Send + Sync> Kernel for F {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        self(ctx)
    }
}

/// Kernels by the op's name in the spec language.
#[derive(Clone)]
pub struct Kernels {
    table: BTreeMap<String, Arc<dyn Kernel>>,
}

impl Default for Kernels {
    /// Every op of `docs/spec.md`, and the fused ones that rewrites make.
    fn default() -> Self {
        let mut kernels = Self { table: BTreeMap::new() };
        kernels.add("embed", embed::run);
        kernels.add("linear", linear::run);
        kernels.add("linears", linear::run_many);
        kernels.add("rms_norm", norm::rms_norm);
        kernels.add("layer_norm", norm::layer_norm);
        kernels.add("l2_norm", norm::l2_norm);
        kernels.add("gated_norm", gated_norm::run);
        kernels.add("heads", shape::reshape);
        kernels.add("merge", shape::reshape);
        kernels.add("split", shape::split);
        kernels.add("concat", shape::concat);
        kernels.add("slice", shape::slice);
        kernels.add("softmax", route::softmax);
        kernels.add("total", route::total);
        kernels.add("p_norm", route::p_norm);
        kernels.add("choose", route::choose);
        kernels.add("pick", route::pick);
        kernels.add("near_shares", route::near_shares);
        kernels.add("experts", experts::run);
        kernels.add("rope", rope::run);
        kernels.add("attend", attend::run);
        kernels.add("latent_attend", latent_attend::run);
        kernels.add("index_topk", index_topk::run);
        kernels.add("attend_to", attend::run_to);
        kernels.add("differ", differ::run);
        kernels.add("position_embed", position::embed);
        kernels.add("sinusoid", position::sinusoid);
        kernels.add("temperature", position::temperature);
        kernels.add("zero_first", position::zero_first);
        kernels.add("mix_streams", streams::mix);
        kernels.add("outer", streams::outer);
        kernels.add("mean", streams::mean);
        kernels.add("gaussian_topk", gaussian_topk::run);
        kernels.add("causal_conv", causal_conv::run);
        kernels.add("heads_linear", heads_linear::run);
        kernels.add("rg_lru", rg_lru::run);
        kernels.add("log_decay", delta_rule::log_decay);
        kernels.add("delta_rule", delta_rule::run);
        kernels.add("lightning", lightning::run);
        kernels.add("ssd_scan", ssd_scan::run);
        kernels.add("ssm1_scan", ssm1_scan::run);
        for name in activation::NAMES {
            kernels.add(name, activation::run);
        }
        kernels.add("xielu", xielu::run);
        kernels.add("softcap", elementwise::softcap);
        kernels.add("clamp", elementwise::clamp);
        kernels.add("cast", elementwise::cast);
        kernels.add("scale", elementwise::with_number);
        kernels.add("offset", elementwise::with_number);
        kernels.add("divide", elementwise::with_number);
        kernels.add("inverse", elementwise::with_number);
        kernels.add("weight_scale", elementwise::weight_scale);
        kernels.add("weight_add", elementwise::weight_add);
        for name in ["add", "sub", "mul", "div"] {
            kernels.add(name, elementwise::of_two);
        }
        kernels.add("glu", glu::run);
        kernels
    }
}

impl Kernels {
    /// Registers a kernel; one of the same name gives way.
    pub fn add(&mut self, op: &str, kernel: impl Kernel + 'static) {
        self.table.insert(op.to_owned(), Arc::new(kernel));
    }

    /// The kernel of an op.
    pub fn get(&self, op: &str) -> Option<&Arc<dyn Kernel>> {
        self.table.get(op)
    }

    /// The ops, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.keys().map(String::as_str)
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
