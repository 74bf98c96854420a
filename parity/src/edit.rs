//! Edits of a resolved model, in the terms of specs: the source of mutants and of candidate causes.
//!
//! A [`Change`] is data that names the affected nodes, tables or states. `candidates` derives the
//! possible edits of a graph from its ops, their signatures and its tables. No edit is specific to a model.

mod apply;
mod arguments;
mod frequencies;
mod inserts;
mod knobs;
mod layouts;
mod logit_op;
mod moves;
mod number;
mod readings;
mod same;
mod scope;
mod structure;
mod tables;
mod windows;

use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{RopeId, StateId, ValueId, WeightId};
use registry::model::Model;
use registry::ops::OpSet;
use registry::rope::RopeTable;
use registry::scalar::Scalar;
use registry::weight_map::WeightStep;

pub(crate) use arguments::is_editable;
pub(crate) use frequencies::stretch;
pub use knobs::Knob;
pub use moves::OpMove;
pub(crate) use moves::candidates as rearrangements;
pub use readings::ConfigReader;
pub(crate) use same::same;
pub(crate) use scope::{Suspects, maker_of};
pub(crate) use structure::{can_bypass, has_swappable_inputs};
pub(crate) use windows::{has_window, window_of};

/// Change of a resolved model.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Sets an argument of nodes.
    Argument {
        /// Name of the argument.
        key: String,
        /// Nodes and their new values.
        values: Vec<(usize, Scalar)>,
    },
    /// Sets arguments of nodes: the node, the argument and the new value.
    Arguments(Vec<(usize, String, Scalar)>),
    /// Sets the window of nodes and of the states that they own.
    Window(Vec<(usize, Option<usize>)>),
    /// Replaces the op of nodes.
    Op {
        /// The nodes.
        nodes: Vec<usize>,
        /// The op.
        op: String,
    },
    /// Swaps the first two inputs of nodes.
    Inputs(Vec<usize>),
    /// Swaps two outputs of nodes, given by their indices.
    Outputs(Vec<usize>, [usize; 2]),
    /// Swaps all weights of pairs of nodes.
    Weights(Vec<(usize, usize)>),
    /// Swaps all weights of pairs of nodes, and the names under which their results are recorded.
    Projections(Vec<(usize, usize)>),
    /// Reads another weight in a role.
    Weight {
        /// The node.
        node: usize,
        /// The role.
        role: String,
        /// The weight.
        weight: WeightId,
    },
    /// Reads weights with more steps from the checkpoint.
    WeightSteps(Vec<(Vec<WeightId>, Vec<WeightStep>)>),
    /// Gives rules for the checkpoint's tensors more steps: the rule, the step that they come before, and the steps.
    RuleSteps(Vec<(usize, usize, Vec<WeightStep>)>),
    /// Swaps weights of a node.
    Roles(Vec<(usize, String, String)>),
    /// Lets nodes read another value: readers, the value that they read, and its replacement.
    Reroute(Vec<(Vec<usize>, ValueId, ValueId)>),
    /// Exchanges two ops of which the second reads the result of the first; pairs of their results.
    Order(Vec<(ValueId, ValueId)>),
    /// Moves ops to other places.
    Move(Vec<OpMove>),
    /// Puts an op behind the node that makes a value.
    Behind {
        /// The value.
        value: ValueId,
        /// The op.
        op: String,
        /// Arguments of the op.
        attrs: Vec<(String, Scalar)>,
        /// True if the tap shows the result.
        tapped: bool,
    },
    /// Lets nodes run without the weight of a role.
    Weightless {
        /// The nodes.
        nodes: Vec<usize>,
        /// The role.
        role: String,
    },
    /// Puts a model that a spec makes of another config in the place of the model.
    Model(Box<Model>),
    /// Feeds other tokens.
    Tokens(TokenEdit),
    /// Replaces a rotary table.
    Table {
        /// Index of the table.
        rope: usize,
        /// Replacement table.
        table: Box<RopeTable>,
    },
    /// Lets nodes read another rotary table.
    Rope(Vec<usize>, RopeId),
    /// Stores states in another dtype.
    StateDtype(Vec<StateId>, DtypeRule),
    /// Rounds values to another dtype.
    ValueDtype(Vec<ValueId>, DtypeRule),
    /// Lets heads that share a group lie a number of groups apart.
    Tiles(Vec<usize>),
    /// Computes decays without the function of their steps: a sum with one weight, times another.
    PlainDecay(Vec<usize>),
    /// Rounds the results of nodes.
    Narrow {
        /// The nodes.
        nodes: Vec<usize>,
        /// The dtype.
        dtype: Dtype,
        /// True if their inputs are rounded too.
        inputs: bool,
    },
    /// Multiplies values, before they are tapped or only for their readers.
    Scale {
        /// The values.
        values: Vec<ValueId>,
        /// The factor.
        by: f64,
        /// True if the tap shows the product.
        tapped: bool,
    },
}

/// Edit of the tokens of a prompt. Its rows are those of the prompt's own tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenEdit {
    /// Tokens before those of the prompt.
    pub before: Vec<u32>,
    /// Number of the prompt's first tokens that are left out.
    pub skip: usize,
}

/// One edit of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit {
    /// Description in the terms of specs: ``` `eps` of `rms_norm` = 1e-6 instead of 1e-5 ```.
    pub words: String,
    /// Call in the spec, layer, or number of nodes.
    pub place: String,
    /// Change of the model.
    pub change: Change,
}

impl Edit {
    /// Returns the edit of the tokens, which changes nothing if the edit is one of the model.
    pub(crate) fn tokens(&self) -> TokenEdit {
        match &self.change {
            Change::Tokens(tokens) => tokens.clone(),
            _ => TokenEdit::default(),
        }
    }
}

/// Edit, or family of edits with one value to find.
#[derive(Debug, Clone, PartialEq)]
pub enum Candidate {
    /// An edit.
    Edit(Edit),
    /// A family.
    Knob(Knob),
}

/// Facts about the observed difference that narrow the values that an edit tries.
#[derive(Debug, Clone, Default)]
pub struct Clues {
    /// First positions that differ.
    pub positions: Vec<usize>,
    /// Length of the longest sequence that was observed.
    pub longest: usize,
    /// Dtype of the run; edits of rounding are tried only in 16 bits.
    pub dtype: Option<Dtype>,
    /// True for the results of another engine, which may round parts of an f32 run.
    pub foreign: bool,
}

/// Derives every edit that affects a suspect node, simplest first, without [`rearrangements`].
pub(crate) fn candidates(
    model: &Model,
    ops: &OpSet,
    suspects: &Suspects,
    clues: &Clues,
) -> Vec<Candidate> {
    let mut all = tables::candidates(model, suspects);
    all.extend(arguments::candidates(model, ops, suspects, clues));
    all.extend(windows::candidates(&model.graph, &model.dims, suspects, clues));
    all.extend(structure::candidates(model, ops, suspects));
    all.extend(inserts::tiles(&model.graph, suspects));
    all.extend(inserts::decays(&model.graph, suspects));
    all.extend(inserts::narrow(&model.graph, suspects, clues));
    all.extend(tables::dtypes(model, suspects, clues));
    all.extend(knobs::scales(&model.graph, suspects));
    all.extend(layouts::candidates(model, suspects));
    let mut seen: Vec<Change> = Vec::new();
    all.retain(|candidate| match candidate {
        Candidate::Knob(_) => true,
        Candidate::Edit(edit) => {
            let new = !seen.contains(&edit.change);
            if new {
                seen.push(edit.change.clone());
            }
            new
        }
    });
    all
}
