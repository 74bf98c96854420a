//! Errors of an importance matrix.

use std::io;
use std::path::PathBuf;

use crate::{gguf, safetensors};

/// Reason why an importance matrix cannot be read, written or used. Names are escaped, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    /// Error of the operating system; `fs_err` adds the path.
    #[error(transparent)]
    Io(#[from] io::Error),

    /// The file is GGUF, but malformed.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),

    /// The file of a shard is malformed, or cannot be written.
    #[error(transparent)]
    Safetensors(#[from] safetensors::Error),

    #[error("no shard of an importance matrix is given")]
    NoShards,

    #[error(
        "`{}` is no shard of an importance matrix: its schema is `{found}`; expected a file that \
         `imatrix` wrote for a shard", file.display()
    )]
    NoShard { file: PathBuf, found: String },

    #[error(
        "`{}` is damaged: its sums and keys have the checksum `{found}`, and `{expected}` was written with them; \
         copy or measure it again", file.display()
    )]
    Checksum { file: PathBuf, found: String, expected: String },

    #[error(
        "`{}` has `{key}` {found}; expected a number of chunks or tokens in range: measure this \
         shard again", file.display()
    )]
    BadKey { file: PathBuf, key: String, found: String },

    #[error(
        "`{}` has no integers `{tensor}`; every weight needs sums and counts in I64: measure this \
         shard again", file.display()
    )]
    NoIntegers { file: PathBuf, tensor: String },

    #[error(
        "`{}` is of another measurement than `{}`: model, text, chunks or settings differ; \
         measure one of them again", file.display(), other.display()
    )]
    OtherShard { file: PathBuf, other: PathBuf },

    #[error(
        "`{}` begins with chunk {found}; expected chunk {expected}: a shard is missing, or one is \
         given twice", file.display()
    )]
    ShardGap { file: PathBuf, found: u32, expected: u32 },

    #[error("the shards end with chunk {found}; expected {expected}: the last shard is missing")]
    ShardsEnd { found: u32, expected: u32 },

    #[error("the shards have sums of different shapes for `{tensor}`; measure them again")]
    OtherShardShape { tensor: String },

    #[error(
        "`{}` has no importance of any weight; expected an importance matrix, \
         as `imatrix` writes it in GGUF or in the older `.dat` form", file.display()
    )]
    Empty { file: PathBuf },

    #[error(
        "`{}` was cut short in {part}: {needed} bytes are needed, {left} are left; it is no \
         importance matrix, or it is damaged: make or download it again", file.display()
    )]
    CutShort { file: PathBuf, part: String, needed: u64, left: u64 },

    #[error(
        "{part} of `{}` is {found}; expected {expected}; it is no importance matrix, \
         or it is damaged: make or download it again", file.display()
    )]
    Number { file: PathBuf, part: String, found: i64, expected: &'static str },

    #[error(
        "{part} of `{}` is not UTF-8; it is no importance matrix, or it is damaged: \
         make or download it again", file.display()
    )]
    NotUtf8 { file: PathBuf, part: String },

    #[error("`{}` names `{tensor}` twice; make or download it again", file.display())]
    Twice { file: PathBuf, tensor: String },

    #[error(
        "`{}` has `{tensor}.{found}` but no `{tensor}.{lacking}`; every weight needs both: \
         make or download it again", file.display()
    )]
    Alone { file: PathBuf, tensor: String, found: &'static str, lacking: &'static str },

    #[error(
        "`{tensor}` in `{}` is kept in {found}; expected F32: make or download it again",
        file.display()
    )]
    NotF32 { file: PathBuf, tensor: String, found: crate::codec::BlockType },

    #[error(
        "`{tensor}` in `{}` has {sums} sums for {counts} counts; expected as many for each: \
         make or download it again", file.display()
    )]
    Uneven { file: PathBuf, tensor: String, sums: usize, counts: usize },

    #[error(
        "number {at} of `{tensor}` in `{}` is {found}; expected a finite number, not below zero: \
         make the importance matrix again", file.display()
    )]
    BadNumber { file: PathBuf, tensor: String, at: usize, found: f32 },

    #[error(
        "the importance matrix has {found} numbers for `{tensor}`, which needs {matrices} x {row}; \
         it was made for another model: make one for this model"
    )]
    OtherShape { tensor: String, found: usize, row: usize, matrices: usize },
}
