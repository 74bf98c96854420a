//! Ops: the declaration of each, from which all else that is known of it follows.
//!
//! A declaration has a signature with defaults, a shape rule, traits and documentation. It knows
//! nothing of numbers; engines bring the kernels. Declarations of other crates are added with
//! [`OpSet::register`] and are checked like these.

use std::collections::BTreeMap;

use crate::diag::Finding;
use crate::suggest;
use crate::syntax::Ident;

mod arithmetic;
mod attention;
mod conv;
mod delta;
mod experts;
pub mod fused;
mod infer;
mod latent;
mod lightning;
mod norm;
mod pointwise;
mod pooled;
mod position;
mod project;
mod route;
mod rule;
mod shape;
mod single;
mod ssm;
mod streams;
pub mod table;

pub use crate::op::{Declaration, Op, Param, ParamKind, Signature, Trait};
pub use arithmetic::{DIVIDE, INVERSE, OFFSET, of_values};
pub use delta::LOG_DECAY;
pub(crate) use infer::{Argument, PathArg};
pub use infer::{Infer, Input};
pub use pointwise::{DISTINCT, SCALE, WEIGHT_SCALE, activation_op};
pub use position::ZERO_FIRST;
pub use route::{INTEGERS, WEIGHT_ADD};
pub use rule::{InferShapes, OpRule};
pub use shape::{CONCAT, HEADS, MERGE};
pub use single::single_family_reason;

/// Returns the signature of an op of one value `x`.
fn takes_x() -> Signature {
    Signature::new().needs("x", ParamKind::Value)
}

/// The ops a spec can call.
#[derive(Clone)]
pub struct OpSet {
    rules: BTreeMap<String, OpRule>,
    /// Their names as they were declared, related ones together.
    order: Vec<String>,
}

impl OpSet {
    /// Returns every op of `docs/spec.md`.
    pub fn builtin() -> Self {
        let groups = [
            project::rules(),
            position::rules(),
            norm::rules(),
            shape::rules(),
            attention::rules(),
            latent::rules(),
            pooled::rules(),
            conv::rules(),
            ssm::rules(),
            delta::rules(),
            lightning::rules(),
            route::rules(),
            experts::rules(),
            pointwise::rules(),
            arithmetic::rules(),
            streams::rules(),
        ];
        let mut set = Self { rules: BTreeMap::new(), order: Vec::new() };
        for rule in groups.into_iter().flatten() {
            let _replaced = set.register(rule);
        }
        set
    }

    /// Returns the ops of [`OpSet::builtin`], and those that rewrites make of them.
    fn with_fused() -> Self {
        let mut set = Self::builtin();
        for rule in fused::rules() {
            let _replaced = set.register(rule);
        }
        set
    }

    /// Adds a declaration; gives back the one of the same name that it replaces.
    pub fn register(&mut self, rule: OpRule) -> Option<Op> {
        let name = rule.op().name().to_owned();
        if !self.rules.contains_key(&name) {
            self.order.push(name.clone());
        }
        self.rules.insert(name, rule).map(|replaced| replaced.op().clone())
    }

    /// Returns the op of a name.
    pub fn get(&self, name: &str) -> Option<&Op> {
        self.rule(name).map(OpRule::op)
    }

    /// Returns the op of a name, with its shape rule.
    pub(crate) fn rule(&self, name: &str) -> Option<&OpRule> {
        self.rules.get(name)
    }

    /// Returns all ops in the order of their declarations, related ones together.
    pub fn declared(&self) -> impl Iterator<Item = &Op> {
        self.order.iter().filter_map(|name| self.get(name))
    }

    /// Creates the finding for a call of an unknown name, in a spec with these functions.
    pub(crate) fn unknown(&self, name: &Ident, functions: &[&str]) -> Finding {
        let known = functions.iter().copied().chain(self.names()).chain(["layers"]);
        let help = match suggest::closest(&name.name, known) {
            Some(close) => format!("did you mean `{close}`?"),
            None => "`onboard help ops` lists the ops; a new one made of those is written under `functions:`".to_owned(),
        };
        Finding::error(&name.at, format!("there is no op or function `{}`", name.name)).help(help)
    }

    /// Returns all names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.rules.keys().map(String::as_str)
    }
}

impl std::fmt::Debug for OpSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
