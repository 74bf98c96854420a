//! Kernels of ops: one file per op or tight group, behind one table.
//!
//! A kernel is made of a node's arguments ([`Args`]) when a session opens. In each step it reads
//! inputs, weights and state from a [`Ctx`] and puts its outputs there, rounded to the dtypes that
//! the graph gives them. Another crate adds an op by registering a kernel under its name.

use std::collections::BTreeMap;
use std::sync::Arc;

use registry::graph::Graph;

use crate::Error;

mod activation;
mod args;
mod attend;
mod attend_pooled;
mod block_mean;
mod block_pool;
mod causal_conv;
mod ctx;
mod delta_rule;
mod device;
mod differ;
mod elementwise;
mod embed;
mod expert_linear;
mod experts;
mod gated_norm;
mod glu;
mod grid_embed;
mod grouped_conv;
mod heads_linear;
mod index_blocks;
mod index_topk;
mod latent_attend;
mod lightning;
mod linear;
mod mlstm;
mod ngram_embed;
mod norm;
mod position;
mod previous;
mod rg_lru;
mod rope;
mod route;
mod row_scores;
mod rows;
mod scan;
mod shape;
mod ssd_scan;
mod ssm1_scan;
mod streams;
mod wkv;
mod xielu;

pub use args::Args;
pub use ctx::{ChunkRows, Ctx};

/// Every file of kernels registers its own ops.
const FILES: &[fn(&mut Kernels)] = &[
    activation::kernels,
    attend::kernels,
    attend_pooled::kernels,
    block_mean::kernels,
    block_pool::kernels,
    causal_conv::kernels,
    delta_rule::kernels,
    differ::kernels,
    elementwise::kernels,
    embed::kernels,
    expert_linear::kernels,
    experts::kernels,
    gated_norm::kernels,
    glu::kernels,
    grid_embed::kernels,
    grouped_conv::kernels,
    heads_linear::kernels,
    index_blocks::kernels,
    index_topk::kernels,
    latent_attend::kernels,
    lightning::kernels,
    linear::kernels,
    mlstm::kernels,
    ngram_embed::kernels,
    norm::kernels,
    position::kernels,
    previous::kernels,
    rg_lru::kernels,
    rope::kernels,
    route::kernels,
    shape::kernels,
    ssd_scan::kernels,
    ssm1_scan::kernels,
    streams::kernels,
    wkv::kernels,
    xielu::kernels,
];

/// Computes one op.
pub trait Kernel: Send + Sync {
    /// Reads from and writes to the context.
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error>;

    /// True if the results depend on the length of a chunk. Long steps with such a kernel are not divided.
    fn needs_whole_chunks(&self) -> bool {
        false
    }
}

impl<F: Fn(&mut Ctx<'_>) -> Result<(), Error> + Send + Sync> Kernel for F {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        self(ctx)
    }
}

/// Makes a kernel of the arguments of a node.
type Prepare = dyn Fn(&Args<'_>) -> Result<Arc<dyn Kernel>, Error> + Send + Sync;

/// Kernels by the op's name in the spec language.
#[derive(Clone)]
pub struct Kernels {
    table: BTreeMap<String, Arc<Prepare>>,
}

impl Default for Kernels {
    /// Returns every op of `docs/spec.md`, and the fused ones that rewrites make.
    fn default() -> Self {
        let mut kernels = Self { table: BTreeMap::new() };
        for register in FILES {
            register(&mut kernels);
        }
        kernels
    }
}

impl Kernels {
    /// Returns the ops that have kernels on devices.
    pub fn of_devices() -> Self {
        let mut kernels = Self { table: BTreeMap::new() };
        for register in device::FILES {
            register(&mut kernels);
        }
        kernels
    }

    /// Registers a kernel of an op without arguments; one of the same name gives way.
    pub fn add(&mut self, op: &str, kernel: impl Kernel + 'static) {
        let kernel: Arc<dyn Kernel> = Arc::new(kernel);
        self.table.insert(op.to_owned(), Arc::new(move |_: &Args<'_>| Ok(Arc::clone(&kernel))));
    }

    /// Registers a kernel by the function that makes one of a node's arguments.
    pub fn prepared<K: Kernel + 'static>(
        &mut self,
        op: &str,
        prepare: impl Fn(&Args<'_>) -> Result<K, Error> + Send + Sync + 'static,
    ) {
        self.table.insert(
            op.to_owned(),
            Arc::new(move |args: &Args<'_>| Ok(Arc::new(prepare(args)?) as Arc<dyn Kernel>)),
        );
    }

    /// Removes the kernel of an op, which is then refused.
    pub fn remove(&mut self, op: &str) {
        self.table.remove(op);
    }

    /// Makes the kernel of a node; none if there is none for its op.
    pub(crate) fn of(&self, graph: &Graph, index: usize) -> Option<Result<Arc<dyn Kernel>, Error>> {
        let prepare = self.table.get(graph.nodes[index].op.as_str())?;
        Some(prepare(&Args::new(graph, index)))
    }

    /// Returns the ops, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.keys().map(String::as_str)
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
