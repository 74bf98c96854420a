//! Errors of an importance matrix.

use std::io;
use std::path::PathBuf;

use crate::gguf;

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
