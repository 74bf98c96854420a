//! Errors of finding, opening and drafting models.

use std::io;
use std::path::PathBuf;

use registry::diag::Finding;
use registry::listing;

use registry::quantity::plural;

/// Reason why a model cannot be found, opened or drafted.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    /// Mistakes in a spec or a config, or between a model and its weights.
    #[error("{refusal}{}", listed(findings))]
    Refused { refusal: FindingSubject, findings: Vec<Finding> },

    /// Error of the operating system; `fs_err` adds the path.
    #[error(transparent)]
    Io(#[from] io::Error),

    #[error("cannot read the weights")]
    Weights(#[source] checkpoints::checkpoint::Error),

    /// One tensor of a checkpoint cannot be read.
    #[error(transparent)]
    Tensor(#[from] checkpoints::checkpoint::Error),

    /// Random weights cannot be written.
    #[error(transparent)]
    Random(#[from] checkpoints::random::Error),

    /// A GGUF file is malformed.
    #[error(transparent)]
    Gguf(#[from] formats::gguf::Error),

    #[error("the config is not JSON")]
    ConfigNotJson(#[source] serde_json::Error),

    #[error(
        "several specs match the architecture `{architecture}`: {}; choose one with the option `spec FILE`",
        listing::items(specs)
    )]
    SeveralSpecs { architecture: String, specs: Vec<String> },

    #[error(
        "no spec matches the architecture `{architecture}` of `{}`{}; \
         name one with the option `spec SPEC`, or draft one",
        place.display(), inside(inner.as_deref())
    )]
    NoSpec { architecture: String, inner: Option<String>, place: PathBuf },

    #[error(
        "`{}`: no spec describes the encoder of images of `{architecture}`; write one with \
         `encodes: [{architecture}]` and give it by the option `spec`, or leave out the option `encoder` for the text model",
        place.display()
    )]
    NoEncoder { architecture: String, place: PathBuf },

    #[error("the registry has no specs to draft from")]
    NoBase,

    #[error(
        "`{}` is a file of a kind that is not read; expected a .safetensors file, a .gguf file, or a folder",
        path.display()
    )]
    FileKind { path: PathBuf },

    #[error("there is no file `{}`", path.display())]
    NoFile { path: PathBuf },

    #[error("cannot read the weights")]
    UnreadWeights { source: checkpoints::checkpoint::Error },

    #[error("there is no folder `{}`", path.display())]
    NoFolder { path: PathBuf },

    #[error(
        "`{}` has no config.json beside it, which says what model its weights are of; put it there",
        path.display()
    )]
    NoConfigBeside { path: PathBuf },

    #[error(
        "`{}` is neither model.safetensors nor a part that an index beside it names; \
         if it is the whole checkpoint, call it model.safetensors",
        path.display()
    )]
    NotIndexed { path: PathBuf },

    #[error("`{}` has no config.json: it holds {contents}", folder.display())]
    NoCheckpoint { folder: PathBuf, contents: String },

    #[error(
        "the config of `{}` says that weights are quantized by `{method}` \
         (`quantization_config.quant_method`), which is not read: {used} of {tensors} tensors can be used; \
         known are {known}. Undo it with the program that made it, or take the checkpoint that it was made from",
        folder.display()
    )]
    QuantMethod { folder: PathBuf, method: String, used: usize, tensors: usize, known: String },

    #[error(
        "`{}` was made with the spec `{spec}`, which is not here; give it by the option `spec FILE`, \
         or its folder by the option `specs`",
        path.display()
    )]
    SpecMissing { path: PathBuf, spec: String },

    #[error(
        "`{}` was made with another spec `{spec}` than the one that is here; \
         give it by the option `spec FILE`",
        path.display()
    )]
    SpecDiffers { path: PathBuf, spec: String },

    #[error("`{}` holds no model: it is {contents}", path.display())]
    NoModel { path: PathBuf, contents: String },

    #[error(
        "no spec matches the architecture `{architecture}` of `{}`; give the spec that it was made with \
         by the option `spec`, or its folder by the option `specs`",
        path.display()
    )]
    NoSpecOfFile { path: PathBuf, architecture: String },

    #[error(
        "`{}` has no key `{key}`; give its config: the option `model-config DIR`",
        path.display()
    )]
    NoKey { path: PathBuf, key: &'static str },

    #[error(
        "`{}`: no spec explains a file of `{architecture}`{faults}\n\
         give the config of its checkpoint: the option `model-config DIR`",
        path.display()
    )]
    NotExplained { path: PathBuf, architecture: String, faults: String },

    #[error(
        "`{}` holds a model of the architecture `{found}`, and its `{key}` leads to the spec `{spec}`, \
         which writes `{expected}`; give the spec that it was made with by the option `spec`",
        path.display()
    )]
    Architecture { path: PathBuf, found: String, expected: String, key: &'static str, spec: String },

    #[error(
        "the keys of `{}` describe another model than its `{key}` by the spec `{spec}`\n  {}\n\
         remove `{key}` to open it by its keys, or name its config with the option `model-config DIR`",
        path.display(), {
            let (first, remaining) = listing::lines(differences);
            first.iter().cloned().chain(remaining).collect::<Vec<_>>().join("\n  ")
        }
    )]
    Keys { path: PathBuf, key: &'static str, spec: String, differences: Vec<String> },
}

/// Subject of the findings of [`Error::Refused`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum FindingSubject {
    #[error("the config cannot be read")]
    Config,

    #[error("cannot read the specs in `{}`", folder.display())]
    Folder { folder: PathBuf },

    #[error("cannot use the spec `{spec}`")]
    Name { spec: String },

    #[error("the spec `{spec}` cannot be used: {}", plural(*count, "finding"))]
    Spec { spec: String, count: usize },

    #[error("the spec `{spec}` and `{config}` do not make a model: {}", plural(*count, "finding"))]
    Model { spec: String, config: String, count: usize },

    #[error(
        "the spec and the checkpoint `{}` do not explain each other: {used} of {tensors} tensors used",
        folder.display()
    )]
    Coverage { folder: PathBuf, used: usize, tensors: usize },

    #[error("the spec keeps a state in another dtype than its op needs")]
    Dtypes,
}

impl FindingSubject {
    /// Joins findings to their subject.
    pub(crate) fn of(self, findings: Vec<Finding>) -> Error {
        Error::Refused { refusal: self, findings }
    }
}

/// Returns the messages of findings, each on a line of its own.
fn listed(findings: &[Finding]) -> String {
    let (first, remaining) = listing::lines(findings);
    let messages = first.iter().map(|finding| finding.message.as_str());
    messages.chain(remaining.as_deref()).flat_map(|message| ["\n", message]).collect()
}

/// Names the inner text model of a multimodal config.
fn inside(kind: Option<&str>) -> String {
    kind.map(|kind| format!(" with `{kind}` inside")).unwrap_or_default()
}
