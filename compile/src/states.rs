//! States of layers as the settings of a file and the constructors of modules have them.

use std::collections::BTreeSet;

use registry::diag::Finding;
use registry::spec::Spec;
use registry::syntax::Expr;

use crate::file::CodeWriter;
use crate::modules::STATE;
use crate::python::expression;
use crate::symbol;

/// A state that layers keep.
pub(crate) struct StateCode {
    pub(crate) name: String,
    /// `conv`, `recurrent`, ...
    pub(crate) kind: String,
    /// Sizes of the axes, over dims.
    pub(crate) shape: Vec<Expr>,
    /// `activation`, or a dtype.
    pub(crate) dtype: String,
}

impl StateCode {
    /// Adds the dims of the shape to the settings that a file has.
    pub(crate) fn note_dims(&self, used: &mut BTreeSet<String>) {
        for size in &self.shape {
            symbol::names(size, &mut |name| {
                used.extend(name.strip_prefix("D:").map(str::to_owned));
            });
        }
    }

    /// Returns what templates see.
    pub(crate) fn value(&self) -> minijinja::Value {
        let size = |size: &Expr| expression(size).0.replace("«D:", "self.").replace('»', "");
        let shape: Vec<String> = self.shape.iter().map(size).collect();
        minijinja::context! {
            name => self.name.clone(),
            kind => self.kind.clone(),
            shape,
            dtype => self.dtype.clone(),
        }
    }
}

impl CodeWriter<'_, '_> {
    /// Returns the states that ops of layers keep in modules, in the order of the spec.
    pub(crate) fn states(&mut self) -> Result<Vec<StateCode>, Finding> {
        let spec: &Spec = self.walk.spec;
        let mut modules = self.walk.target.ops.values().flat_map(|op| op.modules.values());
        if !modules.any(|made| made.contains(STATE)) {
            return Ok(Vec::new());
        }
        let kept: BTreeSet<&String> =
            self.walk.layers.classes.iter().flat_map(|class| class.kept.places.keys()).collect();
        let mut states = Vec::new();
        for decl in spec.states.values().filter(|decl| kept.contains(&decl.name.name)) {
            let [part] = decl.parts.as_slice() else { continue };
            let mut shape = Vec::new();
            for size in &part.shape {
                let size = self.walk.scalars.resolve(size, &mut Vec::new(), 0).map_err(|_| {
                    let message = format!(
                        "the target `{}` keeps no state of a shape that depends on the layer",
                        self.walk.target.name
                    );
                    Finding::error(&decl.at, message)
                })?;
                shape.push(size);
            }
            states.push(StateCode {
                name: decl.name.name.clone(),
                kind: decl.kind.name.clone(),
                shape,
                dtype: decl.dtype.name.clone(),
            });
        }
        Ok(states)
    }
}
