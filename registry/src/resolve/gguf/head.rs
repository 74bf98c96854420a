//! Place of a `nextn` layer in the model and in a file.

use crate::spec::GgufWeight;

/// One layer of the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::resolve) struct HeadLayer {
    /// Its number: those of the model come before it.
    pub(in crate::resolve) index: usize,
    /// The path of the head's own modules.
    pub(in crate::resolve) prefix: String,
    /// The path of its layer, and that of a layer of the model with its number.
    pub(in crate::resolve) block: (String, String),
}

impl HeadLayer {
    /// Builds a rule for a module of the head's own.
    pub(super) fn own(&self, decl: &GgufWeight) -> GgufWeight {
        let mut decl = decl.clone();
        decl.name.name = decl.name.name.replace("{i}", &self.index.to_string());
        decl.weight.name = format!("{}.{}", self.prefix, decl.weight.name);
        decl
    }

    /// Returns the prefix of the head's layer and the one that layer rules use instead, if they differ.
    pub(super) fn alias(&self) -> Option<(String, String)> {
        let (from, to) = &self.block;
        (from != to).then(|| (format!("{from}."), format!("{to}.")))
    }
}
