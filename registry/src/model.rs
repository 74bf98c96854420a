//! A model: a spec with its dims put in, every shape known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::matches;
use crate::gguf::Gguf;
use crate::graph::{Graph, ValueId};
use crate::layer_choice::LayerChoice;
use crate::quant::QuantRules;
use crate::rope::RopeTable;
use crate::scalar::Scalar;
use crate::weight_map::WeightRule;
use crate::wrapper::{beside, module, outside};

/// A resolved model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// The spec's name.
    pub name: String,
    /// `architectures[0]` of the config.
    pub architecture: String,
    /// Every dim the spec declares.
    pub dims: BTreeMap<String, Scalar>,
    /// The program.
    pub graph: Graph,
    /// Rotary tables.
    pub ropes: Vec<RopeTable>,
    /// Vocabulary size: the number of logits.
    pub vocab: usize,
    /// Number of tokens that the model reads: token ids are below it. More than `vocab` if the head has fewer rows
    /// than the embedding.
    pub input_vocab: usize,
    /// Most positions the model claims to handle, if it says.
    pub context: Option<usize>,
    /// Checkpoint tensors to pass over, as patterns with `*`.
    pub ignore: Vec<String>,
    /// The roots of the model's own weights, if the checkpoint holds other models beside this one.
    pub wrapped: Option<BTreeSet<String>>,
    /// Rules from the checkpoint's tensors to the model's, for tensors that differ: see [`find_rule`].
    ///
    /// [`find_rule`]: crate::weight_map::find_rule
    pub rules: Vec<WeightRule>,
    /// The head that predicts one token more, if the spec and the config have it.
    pub nextn: Option<Nextn>,
    /// The model as a GGUF file, if the spec says how.
    pub gguf: Option<Gguf>,
    /// The weights that a quantized checkpoint keeps unquantized, and the scales that it shares.
    pub quant: QuantRules,
    /// True if the reference computes single steps by other numbers than a prefill, and both are followed.
    pub own_steps: bool,
    /// The chosen layers, if others were left out.
    pub layers: Option<LayerChoice>,
}

impl Model {
    /// Makes the model of an engine that builds its own graph: a name, a vocabulary, a context, and nothing to see.
    pub fn opaque(
        name: String,
        architecture: String,
        vocab: usize,
        context: Option<usize>,
    ) -> Self {
        Self {
            name,
            architecture,
            dims: BTreeMap::new(),
            graph: Graph::default(),
            ropes: Vec::new(),
            vocab,
            input_vocab: vocab,
            context,
            ignore: Vec::new(),
            wrapped: None,
            rules: Vec::new(),
            nextn: None,
            gguf: None,
            quant: QuantRules::default(),
            own_steps: false,
            layers: None,
        }
    }

    /// Returns the embedding of the tokens, in whose place a run may give rows, and its width.
    pub fn embedding(&self) -> Option<(ValueId, usize)> {
        let hidden = self.dims.get("hidden").and_then(Scalar::as_usize)?;
        Some((self.graph.embedding(hidden)?, hidden))
    }

    /// Returns the weight that a tensor of the checkpoint is tied to, under any name that the checkpoint gives it.
    pub fn tied_owner(&self, name: &str) -> Option<&str> {
        self.tied_weight(name)
            .or_else(|| self.rules.iter().find_map(|rule| self.tied_weight(&rule.renamed(name)?)))
    }

    /// Returns the weight that one of the model's own names is tied to.
    fn tied_weight(&self, name: &str) -> Option<&str> {
        self.graph.tied.get(name).map(String::as_str)
    }

    /// True if a tensor of the checkpoint belongs to an encoder.
    pub fn is_beside(&self, name: &str) -> bool {
        self.wrapped.as_ref().is_some_and(|roots| beside(roots, name))
    }

    /// Returns the name that transformers gives a loaded tensor, if it differs from the name on disk. None
    /// for a checkpoint without encoders.
    pub fn module_of(&self, name: &str) -> Option<String> {
        self.wrapped.as_ref().and_then(|roots| module(roots, &self.rules, name))
    }

    /// True if a tensor of the checkpoint is none of the model's. Either the spec says so, or the tensor
    /// belongs to an encoder.
    pub fn passes_over(&self, name: &str) -> bool {
        self.is_listed(name)
            || (self.graph.encoder.is_some() && outside(&self.graph, name))
            || self.is_beside(name)
            || is_buffer(name)
            || (self.wrapped.is_some()
                && self.rules.iter().any(|rule: &WeightRule| {
                    rule.renamed(name).is_some_and(|name| self.is_listed(&name))
                }))
    }

    /// True if a tensor fits a pattern of `ignore`.
    fn is_listed(&self, name: &str) -> bool {
        self.ignore.iter().any(|pattern| matches(pattern, name))
    }
}

/// Ends of the names of tensors that classes compute themselves. Older versions of transformers stored these
/// buffers among the weights, and every loader passes over them.
const BUFFERS: [&str; 5] = [
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "rotary_emb_local.inv_freq",
    ".masked_bias",
];

/// True if a tensor that no weight is made of can only be a buffer.
pub fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|end| name.ends_with(end))
}

/// Layers that predict further tokens from what the model made of the last ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Nextn {
    /// The tap of the model whose rows it is fed.
    pub from: String,
    /// The tap of its own whose last row it is fed for the draft after the next.
    pub recycle: String,
    /// One model per token it looks ahead, the first for the token after the next.
    pub layers: Vec<Arc<Model>>,
    /// The model and the head as one GGUF file, if the spec says how.
    pub gguf: Option<Gguf>,
}
