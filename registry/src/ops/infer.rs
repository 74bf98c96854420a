//! Context of an inference rule: the arguments of a call, and the outputs and findings that the rule reports.

use std::collections::BTreeMap;

use super::Op;
use crate::builder::Builder;
use crate::diag::{Finding, Span};
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::EvalError;
use crate::graph::{Node, RopeId, StateKind, StatePart, ValueId, show};
use crate::rope::RopeTable;
use crate::scalar::Scalar;

/// An argument after binding: of the kind that its parameter asks for.
#[derive(Debug, Clone)]
pub(crate) enum Argument {
    Values(Vec<ValueId>),
    Path(PathArg),
    Scalar(Scalar),
    State(String),
    Rope(RopeId),
}

/// A weight path, prefix included.
#[derive(Debug, Clone)]
pub(crate) struct PathArg {
    pub(crate) name: String,
    pub(crate) at: Span,
}

/// A value as a rule sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The name, for messages.
    pub name: String,
    /// Shape of one row.
    pub shape: Vec<usize>,
    /// The dtype that the value is rounded to.
    pub dtype: DtypeRule,
    id: ValueId,
}

impl Input {
    /// Returns the size of the last axis. Values without axes have one number.
    pub fn last(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Returns the count of numbers in a row.
    pub fn numbers(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One call of an op while its rule checks it.
pub struct Infer<'a> {
    args: BTreeMap<&'static str, (Argument, Span)>,
    builder: &'a mut Builder,
    node: Node,
    outputs: Vec<(Vec<usize>, DtypeRule)>,
    tap: Option<String>,
}

impl<'a> Infer<'a> {
    pub(crate) fn new(
        op: &Op,
        args: BTreeMap<&'static str, (Argument, Span)>,
        builder: &'a mut Builder,
        at: &Span,
    ) -> Self {
        let attrs = args.iter().filter_map(|(name, (arg, _))| match arg {
            Argument::Scalar(value) => Some(((*name).to_owned(), value.clone())),
            _ => None,
        });
        let node = Node {
            op: op.clone(),
            inputs: Vec::new(),
            weights: BTreeMap::new(),
            state: None,
            rope: None,
            attrs: attrs.collect(),
            outputs: Vec::new(),
            layer: builder.layer(),
            at: at.clone(),
        };
        Self { args, builder, node, outputs: Vec::new(), tap: None }
    }

    /// Adds the node to the graph.
    pub(crate) fn finish(self) -> Result<Vec<ValueId>, EvalError> {
        self.builder.push(self.node, self.outputs, self.tap)
    }

    /// Returns the place of the call.
    pub fn at(&self) -> &Span {
        &self.node.at
    }

    /// Creates an error at an argument, or at the call if the argument was left out.
    pub fn error(&self, param: &str, message: impl Into<String>) -> Finding {
        let at = self.args.get(param).map_or(&self.node.at, |(_, at)| at);
        Finding::error(at, message)
    }

    /// Takes a value argument, which becomes the node's next input.
    pub fn input(&mut self, param: &str) -> Result<Input, EvalError> {
        self.inputs(param)?.into_iter().next().ok_or(EvalError::Reported)
    }

    /// Takes a value argument that calls may leave out; the attribute of its name is the number of the input.
    pub fn numbered_input(&mut self, param: &str) -> Result<Input, EvalError> {
        let number = i64::try_from(self.node.inputs.len()).unwrap_or(i64::MAX);
        self.set_attr(param, Scalar::Int(number));
        self.input(param)
    }

    /// Takes a list of values, which become the node's next inputs.
    pub fn inputs(&mut self, param: &str) -> Result<Vec<Input>, EvalError> {
        let Some((Argument::Values(ids), _)) = self.args.get(param) else {
            return Err(self.missing(param));
        };
        let ids = ids.clone();
        self.node.inputs.extend(&ids);
        Ok(ids
            .into_iter()
            .map(|id| {
                let value = self.builder.value(id);
                Input {
                    name: value.name.clone(),
                    shape: value.shape.clone(),
                    dtype: value.dtype,
                    id,
                }
            })
            .collect())
    }

    fn missing(&self, param: &str) -> EvalError {
        // Binding has checked every argument against the signature, so this is a rule
        // that asks for what its own signature does not have.
        self.error(
            param,
            format!("the rule of `{}` misreads its parameter `{param}`", self.node.op),
        )
        .into()
    }

    fn scalar(&self, param: &str) -> Option<&Scalar> {
        match self.args.get(param) {
            Some((Argument::Scalar(value), _)) => Some(value),
            _ => None,
        }
    }

    /// True if an argument is something other than null.
    pub fn given(&self, param: &str) -> bool {
        self.args.get(param).is_some_and(|(arg, _)| !matches!(arg, Argument::Scalar(Scalar::Null)))
    }

    /// Returns a size argument.
    pub fn dim(&self, param: &str) -> Result<usize, EvalError> {
        self.scalar(param).and_then(Scalar::as_usize).ok_or_else(|| self.missing(param))
    }

    /// Returns an integer argument.
    pub fn int(&self, param: &str) -> Result<i64, EvalError> {
        match self.scalar(param) {
            Some(Scalar::Int(n)) => Ok(*n),
            _ => Err(self.missing(param)),
        }
    }

    /// Returns a list of sizes; a lone number counts as a list of one.
    pub fn dims(&self, param: &str) -> Result<Vec<usize>, EvalError> {
        let dims: Option<Vec<usize>> = match self.scalar(param) {
            Some(Scalar::List(items)) => items.iter().map(Scalar::as_usize).collect(),
            Some(one) => one.as_usize().map(|n| vec![n]),
            None => None,
        };
        dims.ok_or_else(|| self.missing(param))
    }

    /// Returns the number of items of a list argument.
    pub fn length(&self, param: &str) -> Option<usize> {
        match self.scalar(param) {
            Some(Scalar::List(items)) => Some(items.len()),
            _ => None,
        }
    }

    /// True if an argument of kind `Sizes` is a list.
    pub fn is_list(&self, param: &str) -> bool {
        matches!(self.scalar(param), Some(Scalar::List(_)))
    }

    /// Returns a number argument.
    pub fn float(&self, param: &str) -> Result<f64, EvalError> {
        self.scalar(param).and_then(Scalar::as_f64).ok_or_else(|| self.missing(param))
    }

    /// Returns a flag argument.
    pub fn flag(&self, param: &str) -> bool {
        self.scalar(param) == Some(&Scalar::Bool(true))
    }

    /// Returns a word argument, if not null.
    pub fn word(&self, param: &str) -> Option<&str> {
        match self.scalar(param) {
            Some(Scalar::Str(word)) => Some(word),
            _ => None,
        }
    }

    /// Returns a path argument, prefix included.
    pub fn path(&self, param: &str) -> Result<String, EvalError> {
        match self.args.get(param) {
            Some((Argument::Path(path), _)) => Ok(path.name.clone()),
            _ => Err(self.missing(param)),
        }
    }

    /// Declares the tensor `suffix` of the path that `param` names (the path itself if it is
    /// empty), and gives it to the node under `role`.
    pub fn weight(
        &mut self,
        role: &str,
        param: &str,
        suffix: &str,
        shape: &[usize],
    ) -> Result<(), EvalError> {
        let Some((Argument::Path(path), _)) = self.args.get(param) else {
            return Err(self.missing(param));
        };
        let name =
            if suffix.is_empty() { path.name.clone() } else { format!("{}.{suffix}", path.name) };
        let id = self.builder.weight(&name, shape, &path.at)?;
        self.node.weights.insert(role.to_owned(), id);
        Ok(())
    }

    /// Returns the dtype of a weight of the node.
    pub fn weight_dtype(&self, role: &str) -> DtypeRule {
        self.node
            .weights
            .get(role)
            .map_or(DtypeRule::Activation, |id| self.builder.weight_dtype(*id))
    }

    /// Says that a tensor of `param` is another's.
    pub fn tie(&mut self, param: &str, owner: &str, suffix: &str) -> Result<(), EvalError> {
        let alias = format!("{}.{suffix}", self.path(param)?);
        let owner = format!("{}.{suffix}", self.path(owner)?);
        self.builder.tie(alias, owner);
        Ok(())
    }

    /// Returns the rotary table of an argument, and adds it to the node.
    pub fn rope(&mut self, param: &str) -> Result<&RopeTable, EvalError> {
        let Some(&(Argument::Rope(id), _)) = self.args.get(param) else {
            return Err(self.missing(param));
        };
        self.node.rope = Some(id);
        Ok(self.builder.rope(id))
    }

    /// Returns the state of this layer, which must be of this kind and have these parts.
    pub fn state(
        &mut self,
        param: &str,
        kind: StateKind,
        parts: &[(&str, Vec<usize>)],
    ) -> Result<(), EvalError> {
        let Some((Argument::State(name), at)) = self.args.get(param) else {
            return Err(self.missing(param));
        };
        let size = |name| match self.args.get(name) {
            Some((Argument::Scalar(size), _)) => size.as_usize(),
            _ => None,
        };
        let sizes = (size("window"), size("block").filter(|_| kind == StateKind::Pooled));
        let id = self.builder.state(name, at, self.node.op.as_str(), kind, parts, sizes)?;
        self.node.state = Some(id);
        Ok(())
    }

    /// Returns the declared kind of the state of this layer, if there is one.
    pub fn state_kind(&self, param: &str) -> Option<StateKind> {
        match self.args.get(param) {
            Some((Argument::State(name), _)) => self.builder.state_kind(name),
            _ => None,
        }
    }

    /// Returns the parts, the window and the dtype of the state of an earlier layer, which `layer` names by
    /// number.
    pub fn state_of(
        &mut self,
        param: &str,
        layer: &str,
        kind: StateKind,
    ) -> Result<(Vec<StatePart>, Option<usize>, DtypeRule), EvalError> {
        let layer = self.int(layer)?;
        let Some((Argument::State(name), at)) = self.args.get(param) else {
            return Err(self.missing(param));
        };
        let id = self.builder.state_of(name, layer, at, kind)?;
        self.node.state = Some(id);
        let state = self.builder.known_state(id);
        Ok((state.parts.clone(), state.window, state.dtype))
    }

    /// Requires the op's state in the dtype of a value: any other dtype changes numbers later.
    pub fn needs_dtype_of(&mut self, value: &Input) {
        if let Some(state) = self.node.state {
            self.builder.need_equal_dtypes(self.node.op.as_str(), value.id, state, &self.node.at);
        }
    }

    /// Requires the op's state in f32.
    pub fn needs_f32_state(&self, what: &str) -> Result<(), EvalError> {
        let Some(id) = self.node.state else { return Ok(()) };
        let state = self.builder.known_state(id);
        if state.dtype == DtypeRule::Fixed(Dtype::F32) {
            return Ok(());
        }
        Err(Finding::error(
            &state.dtype_at,
            format!("the state `{}` keeps {what} in `{}`", state.name, state.dtype),
        )
        .help("write `dtype: f32`")
        .into())
    }

    /// Renames the node to another op of the graph.
    pub fn rename(&mut self, op: &str) {
        self.node.op = Op::from(op);
    }

    /// Sets an attribute to something other than what the call said.
    pub fn set_attr(&mut self, name: &str, value: Scalar) {
        self.node.attrs.insert(name.to_owned(), value);
    }

    /// Removes an attribute that the engine has no use for.
    pub fn drop_attr(&mut self, name: &str) {
        self.node.attrs.remove(name);
    }

    /// Removes attributes that have their declared default, which most calls leave out.
    pub fn drop_defaults(&mut self, names: &[&str]) {
        for name in names {
            let param = self.node.op.signature().params.iter().find(|param| param.name == *name);
            if param.is_some_and(|param| self.node.attrs.get(*name) == param.default.as_ref()) {
                self.node.attrs.remove(*name);
            }
        }
    }

    /// Adds an output.
    pub fn output(&mut self, shape: Vec<usize>, dtype: DtypeRule) {
        self.outputs.push((shape, dtype));
    }

    /// Adds a tap of the first output under the path that `param` names.
    pub fn tap(&mut self, param: &str) {
        if let Some((Argument::Path(path), _)) = self.args.get(param) {
            self.tap = Some(path.name.clone());
        }
    }

    /// Adds taps of a choice and of its scores. Their paths are the one that `param` names, with `:chosen`
    /// and `:scores` appended.
    pub fn tap_choice(&mut self, chosen: &str, param: &str) -> Result<(), EvalError> {
        let path = self.path(param)?;
        let Some((Argument::Values(ids), _)) = self.args.get(chosen) else {
            return Err(self.missing(chosen));
        };
        for id in ids.clone() {
            if let Some(scores) = self.builder.chosen_by(id) {
                self.builder.tap(scores, format!("{path}:scores"));
            }
            self.builder.tap(id, format!("{path}:chosen"));
        }
        Ok(())
    }

    /// Creates a finding about two values that do not fit: both shapes, and the origin of each.
    pub fn misfit(&self, message: impl Into<String>, left: &Input, right: &Input) -> Finding {
        let mut finding = Finding::error(&self.node.at, message).label(format!(
            "{} and {}",
            show(&left.shape),
            show(&right.shape)
        ));
        let origins: Vec<String> = [left, right]
            .iter()
            .filter_map(|input| {
                let origin = self.builder.origin(input.id)?;
                Some(format!("`{}` is {} from {origin}", input.name, show(&input.shape)))
            })
            .collect();
        if !origins.is_empty() {
            finding = finding.help(origins.join("; "));
        }
        finding
    }
}

/// Returns the dtype that the result of two values is rounded to.
pub(super) fn join(left: DtypeRule, right: DtypeRule) -> DtypeRule {
    if left == right { left } else { DtypeRule::Fixed(crate::dtype::Dtype::F32) }
}
