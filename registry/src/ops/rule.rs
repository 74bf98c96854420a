//! Declarations of ops, each with its shape rule.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::{Infer, OpSet};
use crate::eval::EvalError;
use crate::op::{Declaration, Op, Signature, Trait};

/// Checks the shapes of a call, declares weights and gives the outputs.
pub type InferShapes = fn(&mut Infer<'_>) -> Result<(), EvalError>;

/// The declaration of one op: all that is known of it but its kernel.
#[derive(Debug, Clone)]
pub struct OpRule {
    op: Op,
    infer: InferShapes,
}

impl OpRule {
    /// Declares an op without traits and without a word of documentation.
    pub fn new(name: &'static str, signature: Signature, infer: InferShapes) -> Self {
        Self::of(Cow::Borrowed(name), signature, infer)
    }

    fn of(name: Cow<'static, str>, signature: Signature, infer: InferShapes) -> Self {
        let declaration =
            Declaration { name, signature, traits: &[], gives: "", notes: "", renamed: false };
        Self { op: Op::new(declaration), infer }
    }

    fn with(mut self, edit: impl FnOnce(&mut Declaration)) -> Self {
        let mut declaration = (*self.op).clone();
        edit(&mut declaration);
        self.op = Op::new(declaration);
        self
    }

    /// Declares its traits.
    #[must_use]
    pub fn is_a(self, traits: &'static [Trait]) -> Self {
        self.with(|declaration| declaration.traits = traits)
    }

    /// Documents the shape of one row of its output, in Markdown.
    #[must_use]
    pub fn gives(self, gives: &'static str) -> Self {
        self.with(|declaration| declaration.gives = gives)
    }

    /// Documents what it computes, in Markdown.
    #[must_use]
    pub fn notes(self, notes: &'static str) -> Self {
        self.with(|declaration| declaration.notes = notes)
    }

    /// Marks an op whose calls stand in the graph as another op, so that it needs no kernel.
    #[must_use]
    pub(super) fn renamed(self) -> Self {
        self.with(|declaration| declaration.renamed = true)
    }

    /// Returns the op, as nodes carry it.
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// Checks shapes, declares weights, and gives the outputs.
    pub(crate) fn infer(&self, call: &mut Infer<'_>) -> Result<(), EvalError> {
        (self.infer)(call)
    }
}

/// Finds an op of this crate, fused ones among them. Another name has no parameters and no traits.
impl From<&str> for Op {
    fn from(name: &str) -> Self {
        static ALL: LazyLock<OpSet> = LazyLock::new(OpSet::with_fused);
        ALL.get(name).cloned().unwrap_or_else(|| {
            OpRule::of(Cow::Owned(name.to_owned()), Signature::new(), undeclared).op
        })
    }
}

/// Reports a call of an op that is not declared.
fn undeclared(call: &mut Infer<'_>) -> Result<(), EvalError> {
    Err(crate::diag::Finding::error(call.at(), "this op is not declared").into())
}
