//! The graph as it grows: values, weights, states, nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::matches;
use crate::diag::{Finding, Span};
use crate::dtype::DtypeRule;
use crate::eval::EvalError;
use crate::graph::show;
use crate::graph::{
    EqualDtypes, FeedInput, Graph, Layer, Node, RopeId, State, StateId, StateKind, Value, ValueId,
    Weight, WeightId,
};
use crate::image::ImageLayout;
use crate::listing::beginning;
use crate::op::Trait;
use crate::rope::RopeTable;

/// The most nodes of a graph.
pub(crate) const MAX_NODES: usize = 1 << 19;

/// The largest size of one axis.
pub const MAX_DIM: usize = 1 << 28;

/// The most numbers of one tensor.
const MAX_NUMBERS: usize = 1 << 44;

/// A graph under construction.
pub(crate) struct Builder {
    graph: Graph,
    ropes: Vec<Option<RopeTable>>,
    weights: BTreeMap<String, WeightId>,
    /// Patterns of weights that loading does not round to the run's dtype.
    kept: Vec<(String, DtypeRule)>,
    /// The place in the spec that each value comes from.
    origins: Vec<Option<Span>>,
    /// Flags of the values that carry a variable's name; other values are called after their op.
    named: Vec<bool>,
    taps: BTreeSet<String>,
    layer: Option<usize>,
    /// This layer's states by name: `None` if its declaration is faulty.
    states: BTreeMap<String, Option<State>>,
    /// Names of the states that stand in the graph, and the call that uses each.
    used: BTreeMap<String, Span>,
}

impl Builder {
    /// Begins with the token ids as value 0. A rope that is `None` is one that failed.
    pub(super) fn new(
        ropes: Vec<Option<RopeTable>>,
        stored_dtypes: Vec<(String, DtypeRule)>,
    ) -> Self {
        let tokens = Value {
            name: "tokens".to_owned(),
            shape: Vec::new(),
            dtype: DtypeRule::Activation,
            tap: None,
        };
        Self {
            graph: Graph { values: vec![tokens], ..Graph::default() },
            ropes,
            weights: BTreeMap::new(),
            kept: stored_dtypes,
            origins: vec![None],
            named: vec![true],
            taps: BTreeSet::new(),
            layer: None,
            states: BTreeMap::new(),
            used: BTreeMap::new(),
        }
    }

    pub(super) fn finish(self) -> (Graph, Vec<RopeTable>) {
        (self.graph, self.ropes.into_iter().flatten().collect())
    }

    pub(crate) fn layer(&self) -> Option<usize> {
        self.layer
    }

    pub(crate) fn value(&self, id: ValueId) -> &Value {
        &self.graph.values[id.0]
    }

    /// Returns the call that made a value, as text.
    pub(crate) fn origin(&self, id: ValueId) -> Option<String> {
        let at = self.origins[id.0].as_ref()?;
        let text = at.source.text.get(at.start..at.end)?;
        let line = 1 + at.source.text[..at.start].matches('\n').count();
        let flat: Vec<&str> = text.split_whitespace().collect();
        Some(format!("`{}` ({}:{line})", beginning(&flat.join(" ")), at.source.path))
    }

    /// Gives a value the name of the variable it is assigned to, unless it has one.
    pub(super) fn name(&mut self, id: ValueId, name: &str) {
        if !std::mem::replace(&mut self.named[id.0], true) {
            name.clone_into(&mut self.graph.values[id.0].name);
        }
    }

    pub(crate) fn rope(&self, id: RopeId) -> &RopeTable {
        // Ids are only given for tables that resolved.
        self.ropes[id.0].as_ref().expect("binding has refused tables that failed")
    }

    /// Returns the id of a rope by its place in the spec; none if it failed.
    pub(super) fn rope_id(&self, place: usize) -> Option<RopeId> {
        self.ropes.get(place)?.as_ref().map(|_| RopeId(place))
    }

    pub(crate) fn weight(
        &mut self,
        name: &str,
        shape: &[usize],
        at: &Span,
    ) -> Result<WeightId, EvalError> {
        let numbers = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if numbers.is_none_or(|numbers| numbers > MAX_NUMBERS) {
            return Err(Finding::error(at, format!("the weight `{name}` is too large"))
                .label(format!("{}, by the dims of the config", show(shape)))
                .into());
        }
        if let Some(&id) = self.weights.get(name) {
            let weight = &self.graph.weights[id.0];
            if weight.shape == shape {
                return Ok(id);
            }
            return Err(Finding::error(at, format!("the weight `{name}` is used with two shapes"))
                .label(format!("{} here and {} before", show(shape), show(&weight.shape)))
                .into());
        }
        let id = WeightId(self.graph.weights.len());
        self.graph.weights.push(Weight {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: self
                .kept
                .iter()
                .find(|(pattern, _)| matches(pattern, name))
                .map_or(DtypeRule::Activation, |(_, dtype)| *dtype),
            integers: false,
            at: at.clone(),
        });
        self.weights.insert(name.to_owned(), id);
        Ok(id)
    }

    pub(crate) fn weight_dtype(&self, id: WeightId) -> DtypeRule {
        self.graph.weights[id.0].dtype
    }

    /// Says that a weight holds integers.
    pub(crate) fn hold_integers(&mut self, id: WeightId) {
        self.graph.weights[id.0].integers = true;
    }

    pub(crate) fn tie(&mut self, alias: String, owner: String) {
        if alias != owner {
            self.graph.tied.insert(alias, owner);
        }
    }

    /// Adds a node and its outputs.
    pub(crate) fn push(
        &mut self,
        mut node: Node,
        outputs: Vec<(Vec<usize>, DtypeRule)>,
        tap: Option<String>,
    ) -> Result<Vec<ValueId>, EvalError> {
        if self.graph.nodes.len() >= MAX_NODES {
            return Err(Finding::error(
                &node.at,
                format!("the model has more than {MAX_NODES} nodes"),
            )
            .into());
        }
        // A module's path is the tap of its first use; later uses have no name of their own.
        let mut tap = tap.filter(|tap| self.taps.insert(tap.clone()));
        for (shape, dtype) in outputs {
            let numbers = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
            if numbers.is_none_or(|numbers| numbers > MAX_DIM) {
                return Err(Finding::error(&node.at, "this value is too large")
                    .label(show(&shape))
                    .into());
            }
            node.outputs.push(ValueId(self.graph.values.len()));
            self.graph.values.push(Value {
                name: node.op.to_string(),
                shape,
                dtype,
                tap: tap.take(),
            });
            self.origins.push(Some(node.at.clone()));
            self.named.push(false);
        }
        let outputs = node.outputs.clone();
        self.graph.nodes.push(node);
        Ok(outputs)
    }

    /// Returns the scores that a choice was made by, if an op made the choice.
    pub(crate) fn chosen_by(&self, chosen: ValueId) -> Option<ValueId> {
        let maker = self.graph.nodes.iter().rev().find(|node| node.outputs.contains(&chosen))?;
        maker.inputs.first().copied().filter(|_| maker.op.is(Trait::Chooses))
    }

    /// Gives a value a tap, unless it has one or another value has that name.
    pub(crate) fn tap(&mut self, id: ValueId, tap: String) {
        let value = &mut self.graph.values[id.0];
        if value.tap.is_none() && self.taps.insert(tap.clone()) {
            value.tap = Some(tap);
        }
    }

    pub(crate) fn need_equal_dtypes(
        &mut self,
        op: &str,
        value: ValueId,
        state: StateId,
        at: &Span,
    ) {
        self.graph.equal_dtypes.push(EqualDtypes {
            op: op.to_owned(),
            value,
            state,
            at: at.clone(),
        });
    }

    /// Begins a layer with its states.
    pub(super) fn enter(&mut self, layer: usize, states: BTreeMap<String, Option<State>>) {
        self.layer = Some(layer);
        self.states = states;
        self.used.clear();
    }

    /// Ends a layer; its result carries the layer's prefix as tap.
    pub(super) fn leave(
        &mut self,
        kind: &str,
        prefix: &str,
        first: usize,
        result: Option<ValueId>,
    ) {
        let nodes = (first, self.graph.nodes.len());
        if let Some(id) = result
            && self.graph.nodes[first..].iter().any(|node| node.outputs.contains(&id))
            && self.taps.insert(prefix.to_owned())
        {
            self.graph.values[id.0].tap = Some(prefix.to_owned());
        }
        self.graph.layers.push(Layer { kind: kind.to_owned(), prefix: prefix.to_owned(), nodes });
        self.layer = None;
    }

    pub(super) fn nodes(&self) -> usize {
        self.graph.nodes.len()
    }

    pub(super) fn layers(&self) -> usize {
        self.graph.layers.len()
    }

    pub(super) fn set_beside(&mut self, layers: usize) {
        self.graph.beside = layers;
    }

    pub(super) fn set_head(&mut self) {
        self.graph.head = self.graph.nodes.len();
    }

    /// Lets the rows of a module's output exist for every token, whatever logits are wanted; gives
    /// the shape of one. None if no value carries that name.
    pub(super) fn all_rows_up_to(&mut self, tap: &str) -> Option<Vec<usize>> {
        let graph = &mut self.graph;
        let value = graph.values.iter().position(|value| value.tap.as_deref() == Some(tap))?;
        let node = graph.nodes.iter().position(|node| node.outputs.contains(&ValueId(value)))?;
        graph.head = graph.head.max(node + 1);
        Some(graph.values[value].shape.clone())
    }

    /// Adds a value that is fed besides the tokens.
    pub(super) fn feed(&mut self, name: &str, shape: Vec<usize>, position: usize) -> ValueId {
        let value = ValueId(self.graph.values.len());
        let dtype = DtypeRule::Activation;
        self.graph.values.push(Value { name: name.to_owned(), shape, dtype, tap: None });
        self.origins.push(None);
        self.named.push(true);
        self.graph.fed = Some(FeedInput { value, position });
        value
    }

    /// Adds the patches that an encoder is fed.
    pub(super) fn feed_patches(&mut self, width: usize, layout: ImageLayout) -> ValueId {
        self.graph.encoder = Some(layout);
        self.feed("patches", vec![width], 0)
    }

    /// Sets the output. All rows of an encoder exist up to its end, where groups of rows are joined.
    pub(super) fn set_output(&mut self, id: ValueId) {
        self.graph.output = Some(id);
        if self.graph.encoder.is_some() {
            self.graph.head = self.graph.nodes.len();
        }
    }

    /// Returns the declared kind of a state.
    pub(crate) fn state_kind(&self, name: &str) -> Option<StateKind> {
        self.states.get(name)?.as_ref().map(|state| state.kind)
    }

    /// Returns the state of this layer that a call uses.
    pub(crate) fn state(
        &mut self,
        name: &str,
        at: &Span,
        op: &str,
        kind: StateKind,
        parts: &[(&str, Vec<usize>)],
        (window, block): (Option<usize>, Option<usize>),
    ) -> Result<StateId, EvalError> {
        if self.layer.is_none() {
            return Err(Finding::error(at, format!("`{op}` stands outside the layers"))
                .label("only layers have states")
                .into());
        }
        let Some(state) = self.states.get(name) else {
            return Err(Finding::error(at, format!("there is no state `{name}`")).into());
        };
        let mut state = state.clone().ok_or(EvalError::Reported)?;
        if state.kind != kind {
            return Err(Finding::error(
                at,
                format!(
                    "`{op}` needs a state of kind `{}`, and `{name}` is of kind `{}`",
                    kind.name(),
                    state.kind.name()
                ),
            )
            .into());
        }
        if let Some(before) = self.used.get(name) {
            let line = 1 + before.source.text[..before.start.min(before.source.text.len())]
                .matches('\n')
                .count();
            return Err(Finding::error(
                at,
                format!("the state `{name}` is used twice in one layer"),
            )
            .label("each call needs a state of its own")
            .help(format!("it is used first in line {line} of {}", before.source.path))
            .into());
        }
        // The one part of these kinds may have the name that the reference's cache gives it.
        let any_name = matches!(kind, StateKind::Conv | StateKind::Index);
        for (part, expected) in parts {
            let declared = match state.parts.as_slice() {
                [only] if any_name => Some(only),
                declared => declared.iter().find(|declared| declared.name == *part),
            };
            match declared {
                Some(declared) if declared.shape == *expected => {}
                Some(declared) => {
                    return Err(Finding::error(
                        at,
                        format!("`{part}` of the state `{name}` does not fit what `{op}` keeps"),
                    )
                    .label(format!(
                        "declared as {}, kept are {}",
                        show(&declared.shape),
                        show(expected)
                    ))
                    .into());
                }
                None => {
                    return Err(Finding::error(
                        &state.at,
                        format!("the state `{name}` has no part `{part}`"),
                    )
                    .into());
                }
            }
        }
        self.used.insert(name.to_owned(), at.clone());
        state.window = window;
        state.block = block;
        let id = StateId(self.graph.states.len());
        self.graph.states.push(state);
        Ok(id)
    }

    /// Returns the state that an earlier layer uses.
    pub(crate) fn state_of(
        &self,
        name: &str,
        layer: i64,
        at: &Span,
        kind: StateKind,
    ) -> Result<StateId, EvalError> {
        let position = self.graph.states.iter().position(|state| {
            usize::try_from(layer) == Ok(state.layer) && state.name == name && state.kind == kind
        });
        match position {
            Some(n) if self.layer != Some(self.graph.states[n].layer) => Ok(StateId(n)),
            _ => Err(Finding::error(at, format!("no earlier layer {layer} has a state `{name}`"))
                .label(format!("expected one of kind `{}`", kind.name()))
                .into()),
        }
    }

    /// Returns a state of the graph.
    pub(crate) fn known_state(&self, id: StateId) -> &State {
        &self.graph.states[id.0]
    }
}
