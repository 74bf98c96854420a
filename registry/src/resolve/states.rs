//! A layer's states, as the spec declares them.

use std::collections::BTreeMap;

use crate::diag::Finding;
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::{self, Env, EvalError, expected};
use crate::graph::show;
use crate::graph::{ScaleGranularity, State, StateKind, StatePart};
use crate::scalar::Scalar;
use crate::spec::StateDecl;

use super::{MAX_DIM, MAX_LAYERS, Resolver};

/// The most numbers that one part of a state may hold: many times what any model keeps.
const MAX_NUMBERS: usize = 1 << 28;

impl Resolver<'_> {
    /// Resolves every declared state with its shapes in this layer; those that fail are `None`.
    pub(super) fn states(
        &mut self,
        layer: usize,
        env: &dyn Env,
    ) -> BTreeMap<String, Option<State>> {
        let mut states = BTreeMap::new();
        for (name, decl) in &self.spec.states {
            let state = match state(decl, layer, env) {
                Ok(state) => Some(state),
                Err(fail) => {
                    self.report.fail(fail);
                    None
                }
            };
            states.insert(name.clone(), state);
        }
        states
    }
}

fn state(decl: &StateDecl, layer: usize, env: &dyn Env) -> Result<State, EvalError> {
    let kind = match decl.kind.name.as_str() {
        "attention" => StateKind::Attention,
        "conv" => StateKind::Conv,
        "latent" => StateKind::Latent,
        "index" => StateKind::Index,
        "recurrent" => StateKind::Recurrent,
        "pooled" => StateKind::Pooled,
        other => {
            return Err(Finding::error(
                &decl.kind.at,
                format!("there is no kind of state `{other}`"),
            )
            .help("known are `attention`, `conv`, `recurrent`, `latent`, `index`, `pooled`")
            .into());
        }
    };
    let eight = ScaleGranularity::parse(&decl.dtype.name);
    if eight.is_some() && kind != StateKind::Attention {
        return Err(Finding::error(
            &decl.dtype.at,
            format!("a state of kind `{}` is not kept in 8 bits", kind.name()),
        )
        .help("keys and values of attention can be; others are read back into what they keep next")
        .into());
    }
    let dtype = match decl.dtype.name.as_str() {
        _ if eight.is_some() => DtypeRule::Activation,
        "activation" => DtypeRule::Activation,
        other => DtypeRule::Fixed(Dtype::parse(other).ok_or_else(|| {
            Finding::error(&decl.dtype.at, format!("there is no dtype `{other}`"))
                .help("known are `activation`, `f32`, `bf16`, `f16`, `f8_e4m3`, `f8_e4m3_heads`")
        })?),
    };
    let mut parts = Vec::new();
    for part in &decl.parts {
        let mut shape = Vec::new();
        for size in &part.shape {
            let value = eval::eval(size, env)?;
            match value.as_usize() {
                // A convolution of width 1 keeps no columns.
                Some(size) if size <= MAX_DIM => shape.push(size),
                _ => {
                    return Err(Finding::error(
                        &size.at,
                        format!("a size of the state `{}` is out of range", decl.name.name),
                    )
                    .label(size_expected(&value))
                    .into());
                }
            }
        }
        let numbers = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if numbers.is_none_or(|numbers| numbers > MAX_NUMBERS) {
            return Err(Finding::error(
                &decl.at,
                format!("the state `{}` is too large", decl.name.name),
            )
            .label(format!("its part `{}` is {}", part.name.name, show(&shape)))
            .into());
        }
        parts.push(StatePart { name: part.name.name.clone(), shape });
    }
    let layer = match &decl.layer {
        None => layer,
        Some(expr) => {
            let value = eval::eval(expr, env)?;
            value.as_usize().filter(|layer| *layer <= 2 * MAX_LAYERS).ok_or_else(|| {
                Finding::error(&expr.at, "this is no layer of a cache")
                    .label(expected(&format!("an integer up to {}", 2 * MAX_LAYERS), &value))
            })?
        }
    };
    Ok(State {
        name: decl.name.name.clone(),
        layer,
        kind,
        parts,
        dtype,
        eight,
        fixed: None,
        window: None,
        block: None,
        at: decl.at.clone(),
        dtype_at: decl.dtype.at.clone(),
    })
}

fn size_expected(value: &Scalar) -> String {
    expected(&format!("an integer up to {MAX_DIM}"), value)
}
