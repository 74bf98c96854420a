//! The keys of a spec, in one table: the decoder knows no others, and the JSON
//! schema is made from the same lines.

/// The version of the spec language that is read.
pub(crate) const VERSION: &str = "1";

/// A key that a map may have.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) required: bool,
    pub(crate) form: Form,
    /// A one-line description, for editors.
    pub(crate) doc: &'static str,
}

/// The form of the value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
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
    Table(&'static Table),
    /// A list of maps with these keys.
    Tables(&'static Table),
    /// A word, or a map with these keys.
    WordOr(&'static Table),
}

/// The keys of a map.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// The name of the map in findings: `a rope table`.
    pub(crate) what: &'static str,
    pub(crate) keys: &'static [Key],
    /// The form of the author's own keys beside them, if it may have any.
    pub(crate) others: Option<Form>,
    /// `extends:` merges it by key, so that a file may leave out required ones.
    pub(crate) inherits: bool,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Key {}

impl Table {
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.keys.iter().map(|key| key.name)
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

const fn must(name: &'static str, form: Form, doc: &'static str) -> Key {
    Key { name, required: true, form, doc }
}

const fn may(name: &'static str, form: Form, doc: &'static str) -> Key {
    Key { name, required: false, form, doc }
}

pub(crate) static SPEC: Table = Table {
    what: "a spec",
    keys: &[
        must("spec", Form::Version, "The version of the spec language: 1."),
        must("name", Form::Word, "The family; what `extends:` and `onboard new` take."),
        may(
            "matches",
            Form::Words,
            "Values of `architectures[0]` in config.json. Never inherited.",
        ),
        may(
            "inside",
            Form::Words,
            "Values of `architectures[0]` of models that hold this one, with encoders beside it. Never inherited.",
        ),
        may(
            "kinds",
            Form::Words,
            "What `model_type` of the config inside may be besides the spec's name. Never inherited.",
        ),
        may(
            "defaults",
            Form::Names(&Form::Expr),
            "Config keys that the config of a model with encoders may leave out, and what they are then. Never inherited.",
        ),
        may(
            "assumes",
            Form::Names(&Form::Expr),
            "What the spec takes for granted, in words, and whether a config is so; one that is not is refused.",
        ),
        may("extends", Form::Word, "The spec to start from; entries here override by name."),
        may("use", Form::Words, "Function files of the library."),
        may("dims", Form::Names(&Form::Sources), "Numbers, from config.json or computed."),
        may("rope", Form::Names(&Form::Table(&ROPE)), "Rotary tables."),
        may("states", Form::Names(&Form::Table(&STATE)), "What layers remember between steps."),
        may("functions", Form::Names(&Form::Program), "Programs with parameters: `mlp(x): |`."),
        may("layers", Form::Table(&LAYERS), "The repeated part."),
        must("model", Form::Program, "From `tokens` to logits."),
        may("ignore", Form::Table(&IGNORE), "Weights and config keys to pass over."),
        may("kept", Form::Table(&KEPT), "Weights that loading does not round."),
        may(
            "weights",
            Form::Tables(&WEIGHT),
            "How checkpoint tensors are spelled, where it differs.",
        ),
        may("nextn", Form::Table(&NEXTN), "The head that predicts one token more."),
        may("gguf", Form::Table(&GGUF), "The model as a GGUF file."),
        may("quant", Form::Table(&QUANT), "What a quantized checkpoint keeps as it is."),
        may(
            "reference",
            Form::Word,
            "`own_steps`: the reference computes single steps by other numbers than a prefill, in f32 too, and both are followed.",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static LIB: Table = Table {
    what: "a function file",
    keys: &[
        may("spec", Form::Version, "The version of the spec language: 1."),
        may("functions", Form::Names(&Form::Program), "Programs with parameters."),
        may("quant", Form::Table(&QUANT), "What a quantized checkpoint keeps as it is."),
        may("gguf", Form::Table(&GGUF), "What is common to GGUF files."),
    ],
    others: None,
    inherits: false,
};

pub(crate) static ROPE: Table = Table {
    what: "a rope table",
    keys: &[
        must("dim", Form::Expr, "The size of a head."),
        must("theta", Form::Sources, "The base of the frequencies."),
        may("parameters", Form::Sources, "The scaling object of config.json; `= null` for none."),
        may(
            "partial",
            Form::Expr,
            "The rotated share of a head; without it, what the parameters say, and all of it for tables of the kind `default`.",
        ),
        may("context", Form::Expr, "The longest sequence, for schemes that need it."),
        may(
            "long",
            Form::Word,
            "What a `longrope` table has for sequences beyond the original context: other `factors`, or the short ones and another `scale` of cos and sin (`long_mscale` where `short_mscale` was).",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static STATE: Table = Table {
    what: "a state",
    keys: &[
        must("kind", Form::Word, "`attention`, `conv`, `recurrent`, `latent` or `index`."),
        must("dtype", Form::Word, "`activation`, or a fixed one: `f32`, `bf16`, `f16`, `f8_e4m3`."),
        may("shape", Form::Exprs, "The shape, where the state is one tensor."),
        may("layer", Form::Expr, "Where the reference's cache keeps it; layer `i` if not given."),
    ],
    others: Some(Form::Exprs),
    inherits: true,
};

pub(crate) static LAYERS: Table = Table {
    what: "`layers`",
    keys: &[
        must("prefix", Form::Word, "The path of layer `{i}`: `model.layers.{i}`."),
        may("count", Form::Expr, "How many; the dim `layers` if not given."),
        may("kind", Form::Expr, "Names the program of layer `i`."),
        may("each", Form::Names(&Form::Expr), "Scalars that differ by layer."),
        may("carry", Form::Words, "Values that a layer hands to the next besides `x`."),
    ],
    others: Some(Form::Program),
    inherits: true,
};

pub(crate) static NEXTN: Table = Table {
    what: "`nextn`",
    keys: &[
        may("count", Form::Expr, "How many of these layers a checkpoint has; 0 for none."),
        must("prefix", Form::Word, "The path of the head's own modules; `{i}` counts on."),
        may("block", Form::Word, "The path of its layer, where that is another; `{depth}` from 0."),
        may("kind", Form::Expr, "Which program of `layers` the layer runs."),
        may("each", Form::Names(&Form::Expr), "Scalars of the layer, in place of `layers: each:`."),
        must("from", Form::Word, "The module of the model whose output is `h`: `model.norm`."),
        must("embed", Form::Program, "From `tokens` to `e`; paths are whole."),
        must("norm_e", Form::Program, "What becomes of `e`."),
        must("norm_h", Form::Program, "What becomes of `h`."),
        must("concat", Form::Words, "Which comes first: `[e, h]` or `[h, e]`."),
        must("proj", Form::Program, "From both, `x`, to what the layer gets."),
        must("out_norm", Form::Program, "What becomes of what the layer gives, `x`."),
        must("head", Form::Program, "From `x` to logits; paths are whole."),
        must("recycle", Form::Word, "`h` of the next draft: `pre` or `post` the last norm."),
        must("pos", Form::Word, "The position of a pair: that of its `token`, or of its `hidden`."),
        must("first", Form::Word, "Whether the first `e` of a sequence is `kept` or `zeroed`."),
    ],
    others: None,
    inherits: true,
};

pub(crate) static IGNORE: Table = Table {
    what: "`ignore`",
    keys: &[
        may("weights", Form::Words, "Patterns of checkpoint tensors; `*` matches any text."),
        may("config", Form::Words, "Config keys, dotted if nested."),
    ],
    others: None,
    inherits: true,
};

pub(crate) static KEPT: Table = Table {
    what: "`kept`",
    keys: &[
        may("f32", Form::Words, "Patterns of weights that are f32 in every run."),
        may("f32_in_f16", Form::Words, "Patterns of weights that are f32 in f16 runs only."),
    ],
    others: None,
    inherits: true,
};

pub(crate) static WEIGHT: Table = Table {
    what: "a weight rule",
    keys: &[
        must("disk", Form::Word, "The pattern of names in the checkpoint."),
        must("weight", Form::Word, "The pattern of names in the model."),
        may("do", Form::Steps, "Steps from disk to model: `transpose`, `split(0, 3)`."),
    ],
    others: None,
    inherits: false,
};

pub(crate) static QUANT: Table = Table {
    what: "`quant`",
    keys: &[
        may(
            "keep",
            Form::Names(&Form::Word),
            "What is not quantized, in words, and the pattern of those modules.",
        ),
        may(
            "together",
            Form::Names(&Form::Word),
            "Modules that engines fuse, which share a scale: `*.{q_proj|k_proj|v_proj}`.",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static GGUF: Table = Table {
    what: "`gguf`",
    keys: &[
        may("arch", Form::Expr, "`general.architecture`; an expression behind `=`."),
        may("pre", Form::Expr, "The pre-tokenizer by llama.cpp's name; an expression behind `=`."),
        may(
            "metadata",
            Form::Names(&Form::Expr),
            "Keys below `<arch>.` (or whole ones that begin with `general.` or `tokenizer.`); null leaves one out.",
        ),
        may(
            "absent",
            Form::Names(&Form::Expr),
            "What llama.cpp takes where a file lacks a key: `required`, `unread`, or an expression over the file behind `=`.",
        ),
        may(
            "weights",
            Form::Names(&Form::WordOr(&GGUF_WEIGHT)),
            "GGUF modules, and the model's module that each is made of.",
        ),
        may(
            "special",
            Form::Names(&Form::Word),
            "Special tokens by kind and text, where a checkpoint's files leave a kind open.",
        ),
        may(
            "nextn",
            Form::Names(&Form::WordOr(&GGUF_WEIGHT)),
            "GGUF modules of the head's own, and its modules; without, a file leaves the head out.",
        ),
        may(
            "tensors",
            Form::Names(&Form::Expr),
            "Tensors of computed numbers; null leaves one out.",
        ),
        may(
            "scalars",
            Form::Names(&Form::Word),
            "Keys that hold the numbers of weights, and the pattern of those weights.",
        ),
        may(
            "assumes",
            Form::Names(&Form::Expr),
            "What llama.cpp takes for granted, in words, and whether this model is so.",
        ),
        may(
            "config",
            Form::Names(&Form::Expr),
            "Keys of config.json as expressions over a file, where `metadata` does not read backwards.",
        ),
        may("drop", Form::Words, "Patterns of weights that the file leaves out."),
        may(
            "idle",
            Form::Words,
            "Weights of layers that compute without them: the file has those that the checkpoint has.",
        ),
        may(
            "filled",
            Form::Words,
            "The same, and zeros where the checkpoint has none: llama.cpp loads them in every layer.",
        ),
    ],
    others: None,
    inherits: true,
};

pub(crate) static GGUF_WEIGHT: Table = Table {
    what: "a GGUF weight",
    keys: &[
        may("weight", Form::Word, "The module: its `weight` and its `bias` go along."),
        may("tensor", Form::Word, "One tensor by its whole name, as is the key then."),
        may(
            "do",
            Form::Steps,
            "Steps from the model's weight to the file: `permute_heads(heads, 'interleaved')`.",
        ),
        may("type", Form::Word, "What it is always kept in: `f32`."),
        may("when", Form::Expr, "Whether the entry counts, over dims; always if nothing is said."),
        may(
            "layers",
            Form::Expr,
            "Of how many layers it is, `{n}` from 0 on in the model; beside `first`.",
        ),
        may("first", Form::Expr, "What `{n}` is in the file for the first of these layers."),
    ],
    others: None,
    inherits: false,
};
