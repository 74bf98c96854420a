//! The declaration of one op, and the handle by which nodes carry it.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock};

use super::{Infer, OpSet, Signature, Trait};
use crate::eval::Fail;
use crate::scalar::Scalar;

/// Checks the shapes of a call, declares weights and gives the outputs.
pub type InferShapes = fn(&mut Infer<'_>) -> Result<(), Fail>;

/// The declaration of one op: all that is known of it but its kernel.
#[derive(Debug, Clone)]
pub struct OpRule {
    name: Cow<'static, str>,
    signature: Signature,
    infer: InferShapes,
    traits: &'static [Trait],
    gives: &'static str,
    notes: &'static str,
    renamed: bool,
}

impl OpRule {
    /// Declares an op without traits and without a word of documentation.
    pub fn new(name: &'static str, signature: Signature, infer: InferShapes) -> Self {
        Self {
            name: Cow::Borrowed(name),
            signature,
            infer,
            traits: &[],
            gives: "",
            notes: "",
            renamed: false,
        }
    }

    /// Declares its traits.
    #[must_use]
    pub fn is_a(mut self, traits: &'static [Trait]) -> Self {
        self.traits = traits;
        self
    }

    /// Documents the shape of one row of its output, in Markdown.
    #[must_use]
    pub fn gives(mut self, gives: &'static str) -> Self {
        self.gives = gives;
        self
    }

    /// Documents what it computes, in Markdown.
    #[must_use]
    pub fn notes(mut self, notes: &'static str) -> Self {
        self.notes = notes;
        self
    }

    /// Marks an op whose calls stand in the graph as another op, so that it needs no kernel.
    #[must_use]
    pub(super) fn renamed(mut self) -> Self {
        self.renamed = true;
        self
    }

    /// The name by which specs call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// True if it has a trait.
    pub fn is(&self, what: Trait) -> bool {
        self.traits.contains(&what)
    }

    /// The documentation of its output: the shape of one row.
    pub fn output_doc(&self) -> &'static str {
        self.gives
    }

    /// The documentation of what it computes.
    pub fn notes_doc(&self) -> &'static str {
        self.notes
    }

    /// True if nodes of it need a kernel.
    pub fn needs_kernel(&self) -> bool {
        !self.renamed
    }

    /// The default of a parameter; none if it has none, or if that is null.
    pub fn default_of(&self, param: &str) -> Option<&Scalar> {
        let param = self.signature.params.iter().find(|known| known.name == param)?;
        param.default.as_ref().filter(|default| **default != Scalar::Null)
    }

    /// Checks shapes, declares weights, and gives the outputs.
    pub(crate) fn infer(&self, call: &mut Infer<'_>) -> Result<(), Fail> {
        (self.infer)(call)
    }
}

/// A shared declaration: the op of a node.
#[derive(Clone)]
pub struct Op(Arc<OpRule>);

impl Op {
    pub(super) fn new(rule: OpRule) -> Self {
        Self(Arc::new(rule))
    }

    /// The name by which specs call it.
    pub fn as_str(&self) -> &str {
        &self.0.name
    }
}

impl std::ops::Deref for Op {
    type Target = OpRule;

    fn deref(&self) -> &OpRule {
        &self.0
    }
}

/// Finds an op of this crate, fused ones among them. Another name has no parameters and no traits.
impl From<&str> for Op {
    fn from(name: &str) -> Self {
        static ALL: LazyLock<OpSet> = LazyLock::new(OpSet::with_fused);
        ALL.get(name).cloned().unwrap_or_else(|| {
            let undeclared: InferShapes = |call| {
                Err(crate::diag::Finding::error(call.at(), "this op is not declared").into())
            };
            let mut rule = OpRule::new("", Signature::new(), undeclared);
            rule.name = Cow::Owned(name.to_owned());
            Self::new(rule)
        })
    }
}

impl PartialEq for Op {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Op {}

impl PartialOrd for Op {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Op {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialEq<str> for Op {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Op {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
