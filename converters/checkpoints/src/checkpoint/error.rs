//! Errors of a checkpoint's files.

use std::io;
use std::path::PathBuf;

/// Reason why a checkpoint cannot be read. Names are escaped, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    /// Error of the operating system; `fs_err` adds the path.
    #[error(transparent)]
    Io(#[from] io::Error),

    /// One of the files is malformed.
    #[error(transparent)]
    File(#[from] formats::safetensors::Error),

    /// A GGUF file is malformed.
    #[error(transparent)]
    GgufFile(#[from] formats::gguf::Error),

    /// A GGUF file does not hold the weights of its model.
    #[error(transparent)]
    Gguf(#[from] Box<crate::gguf_weights::Error>),

    #[error(
        "`{}` has no `{}` and no `{}`; found {found}; \
         give the folder of a safetensors checkpoint, or one safetensors file",
        folder.display(), super::SINGLE, super::INDEX
    )]
    NoWeights { folder: PathBuf, found: String },

    /// PyTorch's own format, which this program does not read.
    #[error("{}", super::pickled::advice(
        &format!("`{}`", folder.display()), file, &folder.to_string_lossy()
    ))]
    Pickled { folder: PathBuf, file: String },

    #[error(
        "`{}` is not the JSON object it should be: {why}; \
         expected an object with `weight_map`: download it again", index.display()
    )]
    IndexNotJson { index: PathBuf, why: String },

    #[error(
        "`{}` has no `weight_map`; expected an object of tensor names and file names: \
         download it again", index.display()
    )]
    NoWeightMap { index: PathBuf },

    #[error(
        "`weight_map` of `{}` names tensor `{tensor}` twice; names must be unique: \
         keep the entry whose file has the tensor", index.display()
    )]
    DuplicateTensor { index: PathBuf, tensor: String },

    #[error(
        "`{}` puts tensor `{tensor}` into `{shard}`, which is not a plain file name; \
         expected a file beside the index: do not trust this checkpoint, or correct the entry",
        index.display()
    )]
    ShardName { index: PathBuf, tensor: String, shard: String },

    #[error(
        "`{}`, named by `{}`, is a link to `{}` outside the checkpoint's folder; \
         expected a file beside the index: copy the file there if it is wanted",
        shard.display(), index.display(), target.display()
    )]
    ShardOutside { index: PathBuf, shard: PathBuf, target: PathBuf },

    #[error(
        "shard `{shard}`, in which `{}` has {tensors} tensors (`{tensor}` first), is missing; \
         download it again", index.display()
    )]
    MissingShard { index: PathBuf, shard: String, tensors: usize, tensor: String },

    #[error(
        "`{}` puts tensor `{tensor}` into `{shard}`, but {}; \
         index and shards are not of one checkpoint: download them again",
        index.display(), place(actual.as_ref())
    )]
    NotInShard { index: PathBuf, tensor: String, shard: String, actual: Option<PathBuf> },

    #[error(
        "tensor `{tensor}` is both in `{}` and in `{}`; expected it in one: \
         the shards are not of one checkpoint: download them again",
        first.display(), second.display()
    )]
    TensorTwice { tensor: String, first: PathBuf, second: PathBuf },

    #[error(
        "the files are not of one set: `{}` differs in `{}` and `{}`; expected shards of one conversion: \
         convert those again that are of another model or made otherwise",
        formats::gguf::split::SET_KEY, first.display(), second.display()
    )]
    Sets { first: PathBuf, second: PathBuf },

    #[error("`{}` has no tensor `{tensor}` among its {have}", root.display())]
    NoTensor { root: PathBuf, tensor: String, have: usize },

    #[error(
        "tensor `{tensor}` of `{}` is kept as codes and scales and has no bytes of its own; \
         write plain numbers with `convert` and the option `to bf16` first", root.display()
    )]
    Quantized { root: PathBuf, tensor: String },

    #[error("tensor `{tensor}` of `{}` has {found}; expected {expected}: {advice}", file.display())]
    Coded { file: PathBuf, tensor: String, found: String, expected: String, advice: &'static str },

    #[error(
        "`{key}` of what `{}` says of its quantization is {found}; expected {expected}", root.display()
    )]
    Quantization { root: PathBuf, key: String, found: String, expected: String },

    #[error(
        "tensor `{tensor}` of `{}` is no scale: it has {found}, expected one number above 0; \
         convert the checkpoint again", root.display()
    )]
    Scale { root: PathBuf, tensor: String, found: String },
}

fn place(actual: Option<&PathBuf>) -> String {
    match actual {
        Some(path) => format!("it is in `{}`", path.display()),
        None => "no shard has it".into(),
    }
}
