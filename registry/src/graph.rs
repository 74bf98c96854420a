//! The resolved program: straight-line nodes over values, weights and states.
//!
//! Every value has one row per token of a step; shapes below are the shape of
//! *one row*. `[heads, head_dim]` therefore means `[tokens, heads, head_dim]`
//! in memory, row-major. Only ops that own a state (attention, convolutions,
//! recurrences) look across rows, and only within one slot.

use std::collections::BTreeMap;

use crate::diag::Span;
use crate::dtype::DtypeRule;
use crate::image::ImageLayout;
use crate::op::{Op, Trait};
use crate::scalar::Scalar;

/// Index into [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// Index into [`Graph::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// Index into [`Graph::states`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateId(pub usize);

/// Index into [`crate::model::Model::ropes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RopeId(pub usize);

/// A value that flows between nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// The name the spec gave it, for display.
    pub name: String,
    /// Shape of one row.
    pub shape: Vec<usize>,
    /// Rounded to this after the node that makes it.
    pub dtype: DtypeRule,
    /// Public name (the module path in the reference code) when it can be captured.
    pub tap: Option<String>,
}

/// A named tensor of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// Full name, as the checkpoint spells it.
    pub name: String,
    /// Full shape, as the checkpoint has it.
    pub shape: Vec<usize>,
    /// The dtype that the reference keeps the weight in after loading.
    pub dtype: DtypeRule,
    /// True for integers, which a checkpoint may store as such.
    pub integers: bool,
    /// The place where the spec names the weight first.
    pub at: Span,
}

/// The kind of memory that a state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateKind {
    /// Keys and values of every position (or of the last `window - 1`).
    Attention,
    /// The last inputs of a causal convolution, oldest first.
    Conv,
    /// The latent rows that expand to keys and values, and the part of the key that all heads share.
    Latent,
    /// Keys that say which positions an attention looks at.
    Index,
    /// The values that a recurrence carries from one position to the next.
    Recurrent,
    /// Keys of the last positions, which are values too, and a pooled key of each complete block of positions.
    Pooled,
}

impl StateKind {
    /// The kinds, in the order in which they are listed to users.
    pub const ALL: [Self; 6] =
        [Self::Attention, Self::Conv, Self::Recurrent, Self::Latent, Self::Index, Self::Pooled];

    /// Returns the kind of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// True for states whose rows grow with the positions; convolutions and recurrences store one block.
    pub fn has_rows(self) -> bool {
        !matches!(self, Self::Conv | Self::Recurrent)
    }

    /// Returns the name of the kind in specs, dumps and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Conv => "conv",
            Self::Latent => "latent",
            Self::Index => "index",
            Self::Recurrent => "recurrent",
            Self::Pooled => "pooled",
        }
    }
}

/// One state of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// The name in the spec (`kv`, `conv`).
    pub name: String,
    /// The layer it belongs to.
    pub layer: usize,
    /// The kind.
    pub kind: StateKind,
    /// The parts. Attention: `k` and `v`, shape per position `[kv_heads, head_dim]`.
    /// Conv: `conv`, shape `[channels, width - 1]`. Latent: `k` and `v`, shape per position
    /// `[1, rank]` and `[1, rotated]`. Index: `index`, shape per position `[1, size]`.
    /// Recurrent: whatever its op carries. Pooled: `k`, shape per position `[1, size]`, and `pooled`,
    /// shape per block `[1, size]`.
    pub parts: Vec<StatePart>,
    /// The dtype of the state; for an 8-bit state, the dtype of the values read from it.
    pub dtype: DtypeRule,
    /// The scales of a state that is kept in 8 bits (`f8_e4m3`), if it is.
    pub eight: Option<ScaleGranularity>,
    /// The scale of each of its two 8-bit parts, if a checkpoint has them. They replace those of
    /// [`ScaleGranularity::Tensor`].
    pub fixed: Option<[f32; 2]>,
    /// For attention: how many positions a query sees, itself included.
    pub window: Option<usize>,
    /// For pooled keys: the positions of a block.
    pub block: Option<usize>,
    /// The place where the spec declares the state.
    pub at: Span,
    /// The place where the spec declares the dtype.
    pub dtype_at: Span,
}

/// The granularity of the scales of an 8-bit state at one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleGranularity {
    /// One scale per part (`f8_e4m3`).
    Tensor,
    /// One scale per head (`f8_e4m3_heads`).
    Head,
}

impl ScaleGranularity {
    /// Parses the dtype word of a spec, for a dtype that has scales.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "f8_e4m3" => Some(Self::Tensor),
            "f8_e4m3_heads" => Some(Self::Head),
            _ => None,
        }
    }

    /// Returns the name that [`ScaleGranularity::parse`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "f8_e4m3",
            Self::Head => "f8_e4m3_heads",
        }
    }

    /// Returns the number of scales that a part of this shape has at each position.
    pub fn count(self, shape: &[usize]) -> usize {
        match (self, shape) {
            (Self::Head, [heads, _]) => *heads,
            _ => 1,
        }
    }
}

/// A named tensor of a state.
#[derive(Debug, Clone, PartialEq)]
pub struct StatePart {
    /// `k`, `v`, `conv`, `recurrent`.
    pub name: String,
    /// The shape (per position for attention).
    pub shape: Vec<usize>,
}

/// One operation.
///
/// Attributes carry the names of the op's parameters (`docs/spec.md`), with these
/// rules on top:
///
/// * a call of `act` stands here as the op it names (`silu`, `gelu_new`, ...);
/// * `split` always has `sizes`, a list of integers;
/// * operators are `add`, `sub`, `mul`, `div` of two values (equal shapes, or one
///   of them is `[1]`), and with a number `s`: `scale` (`x * s`), `offset` (`x + s`),
///   `divide` (`x / s`) and `inverse` (`s / x`), each in f32 with one rounding after;
/// * weight roles are the tensor's last name (`weight`, `bias`, `alpha_p`, ...), `sinks`
///   for those of `attend`, and `weight.{h}` where each head has its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The op, by its declaration.
    pub op: Op,
    /// Values read, in the order of the op's signature.
    pub inputs: Vec<ValueId>,
    /// Weights read, by the role the op gives them (`weight`, `bias`, ...).
    pub weights: BTreeMap<String, WeightId>,
    /// The state it reads and updates.
    pub state: Option<StateId>,
    /// The rotary table it reads.
    pub rope: Option<RopeId>,
    /// Scalar arguments by name. One that is absent has its op's default ([`Node::argument`]).
    pub attrs: BTreeMap<String, Scalar>,
    /// Values made.
    pub outputs: Vec<ValueId>,
    /// The layer, if it is in one.
    pub layer: Option<usize>,
    /// The call in the spec.
    pub at: Span,
}

impl Node {
    /// Returns a scalar argument: the node's own, or the default that its op declares; none where it is null.
    pub fn argument(&self, name: &str) -> Option<&Scalar> {
        match self.attrs.get(name) {
            Some(Scalar::Null) => None,
            Some(value) => Some(value),
            None => self.op.default_of(name),
        }
    }
}

/// An op's demand that a state is kept in the dtype of a value.
#[derive(Debug, Clone, PartialEq)]
pub struct EqualDtypes {
    /// The op.
    pub op: String,
    /// The value that the op reads.
    pub value: ValueId,
    /// The state that the op keeps.
    pub state: StateId,
    /// The call in the spec.
    pub at: Span,
}

/// One layer's part of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// The kind of program that the layer runs (`conv`, `full_attention`).
    pub kind: String,
    /// The weight prefix, `model.layers.3`.
    pub prefix: String,
    /// The nodes, `start..end`.
    pub nodes: (usize, usize),
}

/// An input value that the caller of a step gives, besides the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedInput {
    /// The value.
    pub value: ValueId,
    /// The position of the first row of a sequence, for rotary tables and the like.
    pub position: usize,
}

/// The whole program. `values[0]` is the token ids; nodes are in execution order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// All values.
    pub values: Vec<Value>,
    /// All nodes, in an order that can be executed.
    pub nodes: Vec<Node>,
    /// All weights, each once.
    pub weights: Vec<Weight>,
    /// All states, by layer.
    pub states: Vec<State>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Weights that are another's by the spec (`lm_head.weight`), and whose they are. Only
    /// the owner stands in `weights`.
    pub tied: BTreeMap<String, String>,
    /// Ops that need their state and their input in the same dtype. A spec may declare otherwise;
    /// [`crate::check`] then reports that before anything runs.
    pub equal_dtypes: Vec<EqualDtypes>,
    /// The input besides tokens; none for a model that reads tokens alone.
    pub fed: Option<FeedInput>,
    /// The rows of an image, for an encoder of images: the input besides tokens are patches, and all rows of an image
    /// are fed in one chunk.
    pub encoder: Option<ImageLayout>,
    /// The logits; the rows of an encoder.
    pub output: Option<ValueId>,
    /// Nodes from here on see only the rows whose logits are wanted
    /// (nothing after the last layer looks across rows).
    pub head: usize,
    /// The number of first layers behind which a run may add rows.
    pub beside: usize,
}

impl Graph {
    /// Returns the embedding of the tokens, `hidden` numbers wide, in whose place a run may give rows.
    pub fn embedding(&self, hidden: usize) -> Option<ValueId> {
        let looked_up = self.nodes.iter().filter(|node| {
            node.op.is(Trait::FromTokens)
                && node.op.is(Trait::LooksUp)
                && !node.op.is(Trait::Positional)
        });
        let outputs = looked_up.filter_map(|node| node.outputs.first().copied());
        outputs.into_iter().find(|value| self.values[value.0].shape == [hidden])
    }

    /// Returns what a layer gives, if a node makes it.
    pub fn layer_output(&self, layer: usize) -> Option<ValueId> {
        let prefix = self.layers.get(layer)?.prefix.as_str();
        self.values.iter().position(|value| value.tap.as_deref() == Some(prefix)).map(ValueId)
    }
}

/// Formats a shape for messages and listings.
pub(crate) fn show(shape: &[usize]) -> String {
    let parts: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("[{}]", parts.join(", "))
}
