//! A spec as its author wrote it: typed and parsed, nothing looked up yet.
//!
//! Names are not resolved here and no `config.json` is read; a [`Spec`] holds
//! the contents of the YAML, each part with its place. With
//! `extends:` the parts may come from several files.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::diag::{Finding, SourceText, Span};
use crate::graph::StateKind;
use crate::syntax::{Expr, Function, Ident, Program};

pub(crate) mod decode;
pub(crate) mod keys;

/// One architecture family, merged and decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The family; what `extends:` and `--like` take.
    pub name: Ident,
    /// Values of `architectures[0]` that this spec describes. Never inherited.
    pub matches: Vec<Ident>,
    /// Classes that hold this model as their text model. Never inherited.
    pub inside: Vec<Ident>,
    /// Classes whose encoder of images this is. Never inherited.
    pub encodes: Vec<Ident>,
    /// Config keys that the inner config of a model with encoders may leave out. Never inherited.
    pub defaults: IndexMap<String, GgufEntry>,
    /// Assumptions of this spec, in words, each with an expression that is true if it holds.
    pub assumes: IndexMap<String, GgufEntry>,
    /// The spec this one starts from, already merged into the fields below.
    pub extends: Option<Ident>,
    /// Function files of the library, already merged into `functions`.
    pub uses: Vec<Ident>,
    /// Numbers read from `config.json` or computed, in file order.
    pub dims: IndexMap<String, Dim>,
    /// Rotary tables.
    pub rope: IndexMap<String, RopeDecl>,
    /// The states that layers carry between steps.
    pub states: IndexMap<String, StateDecl>,
    /// Programs with parameters, including those of `use:`.
    pub functions: IndexMap<String, Function>,
    /// The repeated part.
    pub layers: Option<LayersDecl>,
    /// The program from `tokens` to logits.
    pub model: Program,
    /// Weights and config keys to pass over.
    pub ignore: IgnoreDecl,
    /// Weights that loading does not round to the run's dtype.
    pub kept: UnroundedDecl,
    /// Rules for checkpoint tensors that are named otherwise. Of the rules whose tensors exist, the first
    /// that gives the shape wins.
    pub weights: Vec<WeightRuleDecl>,
    /// The head that predicts one token more.
    pub nextn: Option<NextnDecl>,
    /// The rows of an encoder that an image becomes.
    pub image: ImageDecl,
    /// The model as a GGUF file; none if the spec says nothing of it.
    pub gguf: Option<GgufDecl>,
    /// The weights that a quantized checkpoint keeps unquantized; none if the spec does not say.
    pub quant: Option<QuantDecl>,
    /// `own_steps`, where the reference computes single steps by other numbers than a prefill.
    pub reference: Option<Ident>,
    /// The spec whose text names the GGUF architecture, where that is not this text alone.
    pub arch_owner: Option<ArchOwner>,
    /// The file the spec was loaded from (not its parents).
    pub source: Arc<SourceText>,
}

/// The spec that a GGUF architecture's name is inherited from.
#[derive(Debug, Clone, PartialEq)]
pub struct ArchOwner {
    /// The name.
    pub name: String,
    /// The spec without overrides; none if it is no complete spec.
    pub spec: Option<Arc<Spec>>,
}

/// A number of the model and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Dim {
    /// The name.
    pub name: Ident,
    /// Alternatives; the first that is present wins. Never empty.
    pub sources: Vec<DimSource>,
}

/// One place a number can come from.
#[derive(Debug, Clone, PartialEq)]
pub enum DimSource {
    /// A key of `config.json`, dotted if nested.
    Key(Ident),
    /// An expression; always present, so it ends the list.
    Compute(Expr),
}

/// A rotary table.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeDecl {
    /// The name.
    pub name: Ident,
    /// The size of a head.
    pub dim: Expr,
    /// The base of the frequencies.
    pub theta: Vec<DimSource>,
    /// The scaling object; empty if the spec names none.
    pub parameters: Vec<DimSource>,
    /// The rotated share of a head, where the class looks for one.
    pub partial: Option<Expr>,
    /// The longest sequence, for schemes that need it.
    pub context: Option<Expr>,
    /// Positions between a row and the earlier one whose angles it has.
    pub behind: Option<Expr>,
    /// The axis of positions that each frequency counts, where positions have several.
    pub axes: Option<Expr>,
    /// The numbers of the frequencies that pairs turn by, if not one after another.
    pub order: Option<Expr>,
    /// True if a longrope table keeps its short factors in long sequences and scales otherwise.
    pub long_by_scale: bool,
    /// The whole entry.
    pub at: Span,
}

/// A state that a layer carries between steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StateDecl {
    /// The name.
    pub name: Ident,
    /// `attention`, `conv`, ...
    pub kind: Ident,
    /// Tensors and their shapes. A lone `shape:` is named after the kind.
    pub parts: Vec<StatePartDecl>,
    /// `activation`, or a fixed dtype.
    pub dtype: Ident,
    /// The layer under which the reference's cache keeps the state, if not its own.
    pub layer: Option<Expr>,
    /// The whole entry.
    pub at: Span,
}

impl StateDecl {
    /// Returns the kind; a finding if there is none of the name.
    pub(crate) fn state_kind(&self) -> Result<StateKind, Finding> {
        StateKind::parse(&self.kind.name).ok_or_else(|| {
            let known = StateKind::ALL.map(|kind| format!("`{}`", kind.name()));
            let message = format!("there is no kind of state `{}`", self.kind.name);
            Finding::error(&self.kind.at, message).help(format!("known are {}", known.join(", ")))
        })
    }
}

/// One tensor of a state.
#[derive(Debug, Clone, PartialEq)]
pub struct StatePartDecl {
    /// `k`, `v`, or the state's kind.
    pub name: Ident,
    /// One row's shape.
    pub shape: Vec<Expr>,
}

/// The repeated part of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LayersDecl {
    /// The template of weight paths and taps, with `{i}`: `model.layers.{i}`.
    pub prefix: Ident,
    /// The number of layers; the dim `layers` if not given.
    pub count: Option<Expr>,
    /// Names the program of layer `i`; not needed if there is only one.
    pub kind: Option<Expr>,
    /// Scalars that differ by layer; `i` and `kind` are known to them.
    pub each: IndexMap<String, LayerScalarDecl>,
    /// Values that a layer may hand to the next besides `x`, in the order of its results.
    pub carry: Vec<Ident>,
    /// The number of first layers behind which a run may add rows.
    pub beside: Option<Expr>,
    /// Programs by kind. `a|b` stands here under both; `*` is any other kind.
    pub programs: IndexMap<String, LayerProgram>,
    /// The whole section.
    pub at: Span,
}

/// A scalar that differs by layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerScalarDecl {
    /// The name.
    pub name: Ident,
    /// The value in layer `i`.
    pub value: Expr,
}

/// The program of the layers of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerProgram {
    /// The kind, where the key names it.
    pub kind: Ident,
    /// The program from `x` to `x`.
    pub program: Program,
}

/// The `nextn:` section.
#[derive(Debug, Clone, PartialEq)]
pub struct NextnDecl {
    /// The number of layers, each for one token more.
    pub count: Option<Expr>,
    /// The template of the head's own weight paths, with `{i}` or `{depth}`.
    pub prefix: Ident,
    /// The template of its layer, if it differs.
    pub block: Option<Ident>,
    /// Names the program of its layer.
    pub kind: Option<Expr>,
    /// Scalars of its layer.
    pub each: IndexMap<String, LayerScalarDecl>,
    /// The module of the model whose output it reads.
    pub from: Ident,
    /// The program from `tokens` to `e`.
    pub embed: Program,
    /// The program that normalises `e`.
    pub norm_e: Program,
    /// The program that normalises `h`.
    pub norm_h: Program,
    /// `e` and `h`, in the order in which they are joined.
    pub concat: Vec<Ident>,
    /// The program from both to the input of the layer.
    pub proj: Program,
    /// The program that normalises the output of the layer.
    pub out_norm: Program,
    /// The program to logits.
    pub head: Program,
    /// `pre` or `post`.
    pub recycle: Ident,
    /// `token` or `hidden`.
    pub pos: Ident,
    /// `kept` or `zeroed`.
    pub first: Ident,
    /// The whole section.
    pub at: Span,
}

impl NextnDecl {
    /// Returns the programs of the section.
    pub(crate) fn programs(&self) -> [&Program; 6] {
        [&self.embed, &self.norm_e, &self.norm_h, &self.proj, &self.out_norm, &self.head]
    }
}

/// Weights and config keys to pass over without a finding.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IgnoreDecl {
    /// Patterns of checkpoint tensors; `*` matches any text.
    pub weights: Vec<Ident>,
    /// Config keys, dotted if nested; `*` matches any text.
    pub config: Vec<Ident>,
}

impl IgnoreDecl {
    /// Returns the patterns of config keys.
    pub(crate) fn keys(&self) -> Vec<&str> {
        self.config.iter().map(|pattern| pattern.name.as_str()).collect()
    }
}

/// Weights that loading does not round to the run's dtype; patterns in which `*` is any text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnroundedDecl {
    /// Weights that are f32 in every run.
    pub f32: Vec<Ident>,
    /// Weights that are f32 in f16 runs only.
    pub f32_in_f16: Vec<Ident>,
}

/// A rule for tensors that the checkpoint spells otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightRuleDecl {
    /// The pattern of names in the checkpoint.
    pub disk: Ident,
    /// The pattern of names in the model.
    pub weight: Ident,
    /// The steps from the tensors on disk to the model's, in order: words (`transpose`) and calls (`split(0,
    /// 3)`).
    pub steps: Vec<Expr>,
    /// The whole rule.
    pub at: Span,
}

/// The `image:` section: the rows of an encoder that an image becomes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ImageDecl {
    /// Pixels of a side of a patch; none if a processor gives patches.
    pub side: Option<Expr>,
    /// Patches of a side of a block.
    pub block: Option<Expr>,
    /// Blocks of a side of a window.
    pub window: Option<Expr>,
    /// Rows before those of the patches.
    pub skip: Option<Expr>,
    /// `lines` or `blocks`: the order of patches that a processor gives.
    pub order: Option<Ident>,
}

/// The `quant:` section: patterns of modules by their meaning, in words.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QuantDecl {
    /// The modules that are not quantized.
    pub keep: Vec<(Ident, Ident)>,
    /// The modules that share a scale.
    pub together: Vec<(Ident, Ident)>,
}

/// The `gguf:` section.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufDecl {
    /// `general.architecture`.
    pub arch: Option<DimSource>,
    /// The pre-tokenizer, by the name that the format gives it.
    pub pre: Option<DimSource>,
    /// Keys and what they hold, in file order.
    pub metadata: IndexMap<String, GgufEntry>,
    /// Keys that hold lists of 64-bit integers.
    pub wide: Vec<Ident>,
    /// Values that llama.cpp assumes for keys a file lacks.
    pub absent: IndexMap<String, AbsentKey>,
    /// Tensors and the weights they are made of.
    pub weights: Vec<GgufWeight>,
    /// Tensors of computed numbers.
    pub tensors: IndexMap<String, GgufEntry>,
    /// Keys, and patterns of the weights whose numbers they hold.
    pub scalars: Vec<(Ident, Ident)>,
    /// Assumptions of the format, in words, each with an expression that is true if it holds.
    pub assumes: IndexMap<String, GgufEntry>,
    /// Keys of `config.json` that are computed from a file, where its keys cannot be read backwards.
    pub config: IndexMap<String, GgufEntry>,
    /// Kinds of special tokens and their texts, where a checkpoint's files leave them open.
    pub special: Vec<(Ident, Ident)>,
    /// Tensors of the `nextn` head's own modules; if there are none, a file leaves the head out.
    pub nextn: Vec<GgufWeight>,
    /// Patterns of weights that the file leaves out.
    pub drop: Vec<Ident>,
    /// Patterns of weights that layers compute without, and that the file has where the checkpoint has them.
    pub idle: Vec<Ident>,
    /// Patterns of such weights that the file has in every layer.
    pub filled: Vec<Ident>,
    /// The whole section.
    pub at: Span,
}

/// The meaning of an absent key to llama.cpp.
#[derive(Debug, Clone, PartialEq)]
pub enum AbsentKey {
    /// Such a file is refused.
    Required,
    /// Nothing reads the key.
    Unread,
    /// The value in its place, as an expression over the file.
    Value(Expr),
}

/// A key or a tensor that is computed.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufEntry {
    /// The name.
    pub name: Ident,
    /// The expression of its value.
    pub value: Expr,
}

/// The weights and steps that make GGUF tensors of one pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufWeight {
    /// The pattern in the file: of a module, or of a tensor.
    pub name: Ident,
    /// The pattern in the model, of the same kind.
    pub weight: Ident,
    /// True if both are whole tensor names, not modules with a weight and a bias.
    pub exact: bool,
    /// Steps from the model's weights to the file's tensors.
    pub steps: Vec<Expr>,
    /// A type that holds whatever the file is made for.
    pub ty: Option<Ident>,
    /// The condition under which the entry counts; always if there is none.
    pub when: Option<Expr>,
    /// The number of layers, and the first one's number in the file, if the file counts them otherwise.
    pub layers: Option<(Expr, Expr)>,
    /// The whole entry.
    pub at: Span,
}
