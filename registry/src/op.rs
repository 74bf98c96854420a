//! Ops as data: names, parameters, traits and documentation.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::scalar::Scalar;

mod signature;
mod traits;

pub use signature::{Param, ParamKind, Signature};
pub use traits::Trait;

/// The declaration of one op without its shape rule.
#[derive(Debug, Clone)]
pub struct Declaration {
    pub(crate) name: Cow<'static, str>,
    pub(crate) signature: Signature,
    pub(crate) traits: &'static [Trait],
    pub(crate) gives: &'static str,
    pub(crate) notes: &'static str,
    pub(crate) renamed: bool,
}

impl Declaration {
    /// Returns the name by which specs call the op.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the parameters of the op.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// True if the op has a trait.
    pub fn is(&self, what: Trait) -> bool {
        self.traits.contains(&what)
    }

    /// Returns the documentation of the output: the shape of one row.
    pub fn output_doc(&self) -> &'static str {
        self.gives
    }

    /// Returns the documentation of the computation.
    pub fn notes_doc(&self) -> &'static str {
        self.notes
    }

    /// True if nodes of the op need a kernel.
    pub fn needs_kernel(&self) -> bool {
        !self.renamed
    }

    /// Returns the default of a parameter; none if it has none, or if the default is null.
    pub fn default_of(&self, param: &str) -> Option<&Scalar> {
        let param = self.signature.params.iter().find(|known| known.name == param)?;
        param.default.as_ref().filter(|default| **default != Scalar::Null)
    }
}

/// A shared declaration: the op of a node.
#[derive(Clone)]
pub struct Op(Arc<Declaration>);

impl Op {
    pub(crate) fn new(declaration: Declaration) -> Self {
        Self(Arc::new(declaration))
    }

    /// Returns the name by which specs call the op.
    pub fn as_str(&self) -> &str {
        &self.0.name
    }
}

impl std::ops::Deref for Op {
    type Target = Declaration;

    fn deref(&self) -> &Declaration {
        &self.0
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
