//! The keys of a spec, in one table: the decoder knows no others, and the JSON
//! schema is made from the same lines.

/// The version of the spec language that is read.
pub(crate) const VERSION: &str = "1";

/// A key that a map may have.
#[derive(Debug)]
pub(crate) struct KeyRule {
    pub(crate) name: &'static str,
    pub(crate) required: bool,
    pub(crate) form: KeyForm,
    /// A one-line description, for editors.
    pub(crate) doc: &'static str,
}

/// The form of the value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// The number 1.
    Version,
    /// One word.
    Word,
    /// A word or a list of them.
    Words,
    /// A config key, an expression behind `=`, or a list that ends with one.
    Sources,
    /// An expression.
    Expr,
    /// Expressions.
    Exprs,
    /// A step or a list of them.
    Steps,
    /// Lines of assignments and a `return`.
    Program,
    /// A map of the author's names, each with the given form.
    Names(&'static Self),
    /// A map with these keys.
    Table(&'static KeyTable),
    /// A list of maps with these keys.
    Tables(&'static KeyTable),
    /// A word, or a map with these keys.
    WordOr(&'static KeyTable),
}

/// The keys of a map.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyTable {
    /// The name of the map in findings: `a rope table`.
    pub(crate) what: &'static str,
    pub(crate) keys: &'static [KeyRule],
    /// The form of the author's own keys beside them, if it may have any.
    pub(crate) others: Option<KeyForm>,
    /// `extends:` merges it by key, so that a file may leave out required ones.
    pub(crate) inherits: bool,
}

impl PartialEq for KeyRule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for KeyRule {}

impl KeyTable {
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.keys.iter().map(|key| key.name)
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

const fn must(name: &'static str, form: KeyForm, doc: &'static str) -> KeyRule {
    KeyRule { name, required: true, form, doc }
}

const fn may(name: &'static str, form: KeyForm, doc: &'static str) -> KeyRule {
    KeyRule { name, required: false, form, doc }
}

pub(crate) static SPEC: KeyTable = KeyTable {
    what: "a spec",
    keys: &[
        must("spec", KeyForm::Version, "The version of the spec language: 1."),
        must("name", KeyForm::Word, "The family; what `extends:` and `onboard new` take."),
        may(
            "matches",
            KeyForm::Words,
            "Values of `architectures[0]` in config.json. Never inherited.",
        ),
        may(
            "inside",
            KeyForm::Words,
            "Values of `architectures[0]` of models that hold this one, with encoders beside it. Never inherited.",
        ),
        may(
            "encodes",
            KeyForm::Words,
            "Values of `architectures[0]` of models whose encoder of images this spec describes. Never inherited.",
        ),
        may(
            "kinds",
            KeyForm::Words,
            "Further values of `model_type` of the config inside, besides the spec's name. Never inherited.",
        ),
        may(
            "defaults",
            KeyForm::Names(&KeyForm::Expr),
            "Config keys that the config of a model with encoders may leave out, and what they are then. Never inherited.",
        ),
        may(
            "assumes",
            KeyForm::Names(&KeyForm::Expr),
            "Assumptions of the spec in words, each with a condition on the config; a config without it is refused.",
        ),
        may("extends", KeyForm::Word, "The spec to start from; entries here override by name."),
        may("use", KeyForm::Words, "Function files of the library."),
        may("dims", KeyForm::Names(&KeyForm::Sources), "Numbers, from config.json or computed."),
        may("rope", KeyForm::Names(&KeyForm::Table(&ROPE)), "Rotary tables."),
        may(
            "states",
            KeyForm::Names(&KeyForm::Table(&STATE)),
            "States that layers keep between steps.",
        ),
        may(
            "functions",
            KeyForm::Names(&KeyForm::Program),
            "Programs with parameters: `mlp(x): |`.",
        ),
        may("layers", KeyForm::Table(&LAYERS), "The repeated part."),
        must(
            "model",
            KeyForm::Program,
            "From `tokens` to logits. Of an encoder: from `patches` to rows.",
        ),
        may("ignore", KeyForm::Table(&IGNORE), "Weights and config keys to pass over."),
        may("kept", KeyForm::Table(&KEPT), "Weights that loading does not round."),
        may(
            "weights",
            KeyForm::Tables(&WEIGHT),
            "Names of tensors in the checkpoint, for those that differ.",
        ),
        may("nextn", KeyForm::Table(&NEXTN), "The head that predicts one token more."),
        may("image", KeyForm::Table(&IMAGE), "The rows of an encoder that an image becomes."),
        may("gguf", KeyForm::Table(&GGUF), "The model as a GGUF file."),
        may(
            "quant",
            KeyForm::Table(&QUANT),
            "Modules that a quantized checkpoint keeps as they are.",
        ),
        may(
            "reference",
            KeyForm::Word,
            "`own_steps`: the reference computes single steps by other numbers than a prefill, in f32 too, and both are followed.",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static LIB: KeyTable = KeyTable {
    what: "a function file",
    keys: &[
        may("spec", KeyForm::Version, "The version of the spec language: 1."),
        may("functions", KeyForm::Names(&KeyForm::Program), "Programs with parameters."),
        may(
            "quant",
            KeyForm::Table(&QUANT),
            "Modules that a quantized checkpoint keeps as they are.",
        ),
        may("gguf", KeyForm::Table(&GGUF), "Settings of GGUF files."),
        may(
            "weights",
            KeyForm::Tables(&WEIGHT),
            "Names of tensors in the checkpoint, tried after those of the spec.",
        ),
    ],
    others: None,
    inherits: false,
};

pub(crate) static ROPE: KeyTable = KeyTable {
    what: "a rope table",
    keys: &[
        may("dim", KeyForm::Expr, "The size of a head; the dim `head_dim` if not given."),
        must("theta", KeyForm::Sources, "The base of the frequencies."),
        may(
            "parameters",
            KeyForm::Sources,
            "The scaling object of config.json; `= null` for none.",
        ),
        may(
            "partial",
            KeyForm::Expr,
            "The rotated share of a head; without it, what the parameters say, and all of it for tables of the kind `default`.",
        ),
        may(
            "context",
            KeyForm::Expr,
            "The longest sequence, for schemes that need it; the dim `context` if not given.",
        ),
        may(
            "behind",
            KeyForm::Expr,
            "Positions between a row and the earlier one whose angles it has; 0 if not given.",
        ),
        may(
            "axes",
            KeyForm::Expr,
            "The axis of positions that each frequency counts, a list; without it positions have one axis.",
        ),
        may(
            "order",
            KeyForm::Expr,
            "The numbers of the frequencies that pairs turn by, a list; without it one after another.",
        ),
        may(
            "long",
            KeyForm::Word,
            "Scaling of a `longrope` table for sequences beyond the original context: other `factors`, or the short ones and another `scale` of cos and sin (`long_mscale` where `short_mscale` was).",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static STATE: KeyTable = KeyTable {
    what: "a state",
    keys: &[
        must(
            "kind",
            KeyForm::Word,
            "`attention`, `conv`, `recurrent`, `latent`, `index` or `pooled`.",
        ),
        must(
            "dtype",
            KeyForm::Word,
            "`activation`, or a fixed one: `f32`, `bf16`, `f16`, `f8_e4m3`.",
        ),
        may("shape", KeyForm::Exprs, "The shape, where the state is one tensor."),
        may(
            "layer",
            KeyForm::Expr,
            "Layer of the reference's cache that keeps it; layer `i` if not given.",
        ),
    ],
    others: Some(KeyForm::Exprs),
    inherits: true,
};

pub(crate) static LAYERS: KeyTable = KeyTable {
    what: "`layers`",
    keys: &[
        must("prefix", KeyForm::Word, "The path of layer `{i}`: `model.layers.{i}`."),
        may("count", KeyForm::Expr, "Number of layers; the dim `layers` if not given."),
        may(
            "kind",
            KeyForm::Expr,
            "Names the program of layer `i`; the entry of the dim `layer_types` if not given.",
        ),
        may("each", KeyForm::Names(&KeyForm::Expr), "Scalars that differ by layer."),
        may("carry", KeyForm::Words, "Values that a layer hands to the next besides `x`."),
        may(
            "beside",
            KeyForm::Expr,
            "The number of first layers behind which a run may add rows; 0 if not given.",
        ),
    ],
    others: Some(KeyForm::Program),
    inherits: true,
};

pub(crate) static NEXTN: KeyTable = KeyTable {
    what: "`nextn`",
    keys: &[
        may("count", KeyForm::Expr, "Number of these layers in a checkpoint; 0 for none."),
        must("prefix", KeyForm::Word, "The path of the head's own modules; `{i}` counts on."),
        may(
            "block",
            KeyForm::Word,
            "The path of its layer, where that is another; `{depth}` from 0.",
        ),
        may("kind", KeyForm::Expr, "Which program of `layers` the layer runs."),
        may(
            "each",
            KeyForm::Names(&KeyForm::Expr),
            "Scalars of the layer, in place of `layers: each:`.",
        ),
        must("from", KeyForm::Word, "The module of the model whose output is `h`: `model.norm`."),
        must("embed", KeyForm::Program, "From `tokens` to `e`; paths are whole."),
        must("norm_e", KeyForm::Program, "Norm of `e`, the embedding of the next token."),
        must("norm_h", KeyForm::Program, "Norm of `h`, the hidden row of the model."),
        must("concat", KeyForm::Words, "Which comes first: `[e, h]` or `[h, e]`."),
        must("proj", KeyForm::Program, "From both, `x`, to what the layer gets."),
        must("out_norm", KeyForm::Program, "Norm of `x`, the layer's output."),
        must("head", KeyForm::Program, "From `x` to logits; paths are whole."),
        must("recycle", KeyForm::Word, "`h` of the next draft: `pre` or `post` the last norm."),
        must(
            "pos",
            KeyForm::Word,
            "The position of a pair: that of its `token`, or of its `hidden`.",
        ),
        must("first", KeyForm::Word, "The first `e` of a sequence: `kept` or `zeroed`."),
    ],
    others: None,
    inherits: true,
};

pub(crate) static IGNORE: KeyTable = KeyTable {
    what: "`ignore`",
    keys: &[
        may("weights", KeyForm::Words, "Patterns of checkpoint tensors; `*` matches any text."),
        may("config", KeyForm::Words, "Config keys, dotted if nested."),
    ],
    others: None,
    inherits: true,
};

pub(crate) static KEPT: KeyTable = KeyTable {
    what: "`kept`",
    keys: &[
        may("f32", KeyForm::Words, "Patterns of weights that are f32 in every run."),
        may("f32_in_f16", KeyForm::Words, "Patterns of weights that are f32 in f16 runs only."),
    ],
    others: None,
    inherits: true,
};

pub(crate) static WEIGHT: KeyTable = KeyTable {
    what: "a weight rule",
    keys: &[
        must("disk", KeyForm::Word, "The pattern of names in the checkpoint."),
        must("weight", KeyForm::Word, "The pattern of names in the model."),
        may("do", KeyForm::Steps, "Steps from disk to model: `transpose`, `split(0, 3)`."),
    ],
    others: None,
    inherits: false,
};

pub(crate) static QUANT: KeyTable = KeyTable {
    what: "`quant`",
    keys: &[
        may(
            "keep",
            KeyForm::Names(&KeyForm::Word),
            "Modules that are not quantized: their meaning in words, and their pattern.",
        ),
        may(
            "together",
            KeyForm::Names(&KeyForm::Word),
            "Modules that engines fuse, which share a scale: `*.{q_proj|k_proj|v_proj}`.",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static IMAGE: KeyTable = KeyTable {
    what: "`image`",
    keys: &[
        may(
            "side",
            KeyForm::Expr,
            "Pixels of a side of the squares that a picture is cut into; without it the processor gives patches.",
        ),
        may("block", KeyForm::Expr, "Patches of a side of a block; blocks come one after another."),
        may(
            "window",
            KeyForm::Expr,
            "Blocks of a side of a window; windows come one after another.",
        ),
        may("skip", KeyForm::Expr, "Rows before those of the patches."),
        may(
            "order",
            KeyForm::Word,
            "The order of patches that a processor gives: `lines`, or `blocks`.",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static GGUF: KeyTable = KeyTable {
    what: "`gguf`",
    keys: &[
        may("arch", KeyForm::Expr, "`general.architecture`; an expression behind `=`."),
        may(
            "pre",
            KeyForm::Expr,
            "The pre-tokenizer by llama.cpp's name; an expression behind `=`.",
        ),
        may(
            "metadata",
            KeyForm::Names(&KeyForm::Expr),
            "Keys below `<arch>.` (or whole ones that begin with `general.` or `tokenizer.`); null leaves one out.",
        ),
        may("wide", KeyForm::Words, "Keys of `metadata` that hold lists of 64-bit integers."),
        may(
            "absent",
            KeyForm::Names(&KeyForm::Expr),
            "Value that llama.cpp assumes if a file lacks a key: `required`, `unread`, or an expression over the file behind `=`.",
        ),
        may(
            "weights",
            KeyForm::Names(&KeyForm::WordOr(&GGUF_WEIGHT)),
            "GGUF modules, and the model's module that each is made of.",
        ),
        may(
            "special",
            KeyForm::Names(&KeyForm::Word),
            "Special tokens by kind and text, where a checkpoint's files leave a kind open.",
        ),
        may(
            "nextn",
            KeyForm::Names(&KeyForm::WordOr(&GGUF_WEIGHT)),
            "GGUF modules of the head's own, and its modules; without, a file leaves the head out.",
        ),
        may(
            "tensors",
            KeyForm::Names(&KeyForm::Expr),
            "Tensors of computed numbers; null leaves one out.",
        ),
        may(
            "scalars",
            KeyForm::Names(&KeyForm::Word),
            "Keys that hold the numbers of weights, and the pattern of those weights.",
        ),
        may(
            "assumes",
            KeyForm::Names(&KeyForm::Expr),
            "Assumptions of llama.cpp in words, each with a condition on this model.",
        ),
        may(
            "config",
            KeyForm::Names(&KeyForm::Expr),
            "Keys of config.json as expressions over a file, where `metadata` does not read backwards.",
        ),
        may("drop", KeyForm::Words, "Patterns of weights that the file leaves out."),
        may(
            "idle",
            KeyForm::Words,
            "Weights of layers that compute without them: the file has those that the checkpoint has.",
        ),
        may(
            "filled",
            KeyForm::Words,
            "The same, and zeros where the checkpoint has none: llama.cpp loads them in every layer.",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static GGUF_WEIGHT: KeyTable = KeyTable {
    what: "a GGUF weight",
    keys: &[
        may("weight", KeyForm::Word, "The module: its `weight` and its `bias` go along."),
        may("tensor", KeyForm::Word, "One tensor by its whole name, as is the key then."),
        may(
            "do",
            KeyForm::Steps,
            "Steps from the model's weight to the file: `permute_heads(heads, 'interleaved')`.",
        ),
        may("type", KeyForm::Word, "Dtype in every file: `f32`."),
        may(
            "when",
            KeyForm::Expr,
            "Condition over dims under which the entry counts; always if none is given. It may read `i`, the layer.",
        ),
        may(
            "layers",
            KeyForm::Expr,
            "Of how many layers it is, `{n}` from 0 on in the model; beside `first`.",
        ),
        may("first", KeyForm::Expr, "Value of `{n}` in the file for the first of these layers."),
    ],
    others: None,
    inherits: false,
};
