//! Ops: what a call may be given, and what shapes, weights and states follow.
//!
//! A rule knows nothing of numbers; engines bring the kernels. Rules of other
//! crates are added with [`OpSet::register`] and are checked like these.

use std::collections::BTreeMap;

use crate::diag::Finding;
use crate::eval::Fail;
use crate::suggest;
use crate::syntax::Ident;

mod arithmetic;
mod attention;
mod conv;
mod delta;
mod experts;
mod infer;
mod latent;
mod lightning;
mod norm;
mod pointwise;
mod position;
mod project;
mod route;
mod shape;
mod signature;
mod ssm;
mod streams;

pub(crate) use infer::{Argument, PathArg, show};
pub use infer::{Infer, Input};
pub use signature::{Kind, Param, Signature};

/// The rule of one op.
pub trait OpRule: Send + Sync {
    /// The name specs call it by.
    fn name(&self) -> &str;
    /// What it takes.
    fn signature(&self) -> &Signature;
    /// Checks shapes, declares weights, and gives the outputs.
    fn infer(&self, call: &mut Infer<'_>) -> Result<(), Fail>;
}

/// The ops a spec can call.
pub struct OpSet {
    rules: BTreeMap<String, Box<dyn OpRule>>,
}

impl OpSet {
    /// Every op of `docs/spec.md`.
    pub fn builtin() -> Self {
        let groups = [
            arithmetic::rules(),
            attention::rules(),
            conv::rules(),
            delta::rules(),
            latent::rules(),
            lightning::rules(),
            experts::rules(),
            norm::rules(),
            pointwise::rules(),
            position::rules(),
            project::rules(),
            route::rules(),
            shape::rules(),
            ssm::rules(),
            streams::rules(),
        ];
        let mut set = Self { rules: BTreeMap::new() };
        for rule in groups.into_iter().flatten() {
            let _replaced = set.register(Box::new(rule));
        }
        set
    }

    /// Adds a rule; gives back the one of the same name that it replaces.
    pub fn register(&mut self, rule: Box<dyn OpRule>) -> Option<Box<dyn OpRule>> {
        self.rules.insert(rule.name().to_owned(), rule)
    }

    /// The rule of a name.
    pub fn get(&self, name: &str) -> Option<&dyn OpRule> {
        self.rules.get(name).map(|rule| &**rule)
    }

    /// The finding for a call of an unknown name, in a spec with these functions.
    pub(crate) fn unknown(&self, name: &Ident, functions: &[&str]) -> Finding {
        let known = functions.iter().copied().chain(self.names()).chain(["layers"]);
        let help = match suggest::closest(&name.name, known) {
            Some(close) => format!("did you mean `{close}`?"),
            None => "`onboard help ops` lists the ops; a new one made of those is written under `functions:`".to_owned(),
        };
        Finding::error(&name.at, format!("there is no op or function `{}`", name.name)).help(help)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.rules.keys().map(String::as_str)
    }
}

impl std::fmt::Debug for OpSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// A rule of this crate: a name, a signature, and a function.
struct Rule {
    name: &'static str,
    signature: Signature,
    infer: fn(&mut Infer<'_>) -> Result<(), Fail>,
}

impl Rule {
    fn new(
        name: &'static str,
        signature: Signature,
        infer: fn(&mut Infer<'_>) -> Result<(), Fail>,
    ) -> Self {
        Self { name, signature, infer }
    }
}

impl OpRule for Rule {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn infer(&self, call: &mut Infer<'_>) -> Result<(), Fail> {
        (self.infer)(call)
    }
}
