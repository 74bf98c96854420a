//! Errors of a safetensors file.

use std::io;
use std::path::PathBuf;

use registry::listing;

use super::FileDtype;

/// Reason why a safetensors file cannot be read or written. Names are escaped, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    /// Error of the operating system; `fs_err` adds the path.
    #[error(transparent)]
    Io(#[from] io::Error),

    #[error(
        "`{}` has {found} bytes; a safetensors file begins with an 8-byte header length; \
         download or convert it again", file.display()
    )]
    TooShort { file: PathBuf, found: u64 },

    #[error(
        "`{}` is a pointer of Git LFS and not the file itself: fetch that with `git lfs pull`, \
         or download it", file.display()
    )]
    Pointer { file: PathBuf },

    #[error(
        "`{}` claims a header of {found} bytes; at most {} are allowed; \
         it is not a safetensors file, or its first bytes are damaged", file.display(), super::MAX_HEADER
    )]
    HeaderTooLong { file: PathBuf, found: u64 },

    #[error(
        "`{}` claims a header of {found} bytes, but only {left} follow; \
         the file was cut short: download it again", file.display()
    )]
    HeaderPastEnd { file: PathBuf, found: u64, left: u64 },

    #[error(
        "the header of `{}` is not UTF-8 at byte {at}; \
         it is not a safetensors file, or it is damaged", file.display()
    )]
    HeaderNotUtf8 { file: PathBuf, at: usize },

    #[error(
        "the header of `{}` is not the JSON object it should be: {why}; \
         it is not a safetensors file, or it is damaged", file.display()
    )]
    HeaderNotJson { file: PathBuf, why: String },

    #[error(
        "the header of `{}` names tensor `{tensor}` twice; names must be unique: \
         write the file again with one of them", file.display()
    )]
    DuplicateTensor { file: PathBuf, tensor: String },

    #[error(
        "tensor `{tensor}` in `{}` gives `{field}` twice; \
         expected `dtype`, `shape` and `data_offsets` once each: write the file again", file.display()
    )]
    DuplicateField { file: PathBuf, tensor: String, field: String },

    #[error(
        "tensor `{tensor}` in `{}` has no `{field}`; \
         expected `dtype`, `shape` and `data_offsets`: write the file again", file.display()
    )]
    MissingField { file: PathBuf, tensor: String, field: &'static str },

    #[error(
        "tensor `{tensor}` in `{}` has an unknown field `{field}`; \
         expected only `dtype`, `shape` and `data_offsets`: write the file again", file.display()
    )]
    UnknownField { file: PathBuf, tensor: String, field: String },

    #[error(
        "`{field}` of tensor `{tensor}` in `{}` is malformed: {why}; write the file again",
        file.display()
    )]
    BadField { file: PathBuf, tensor: String, field: &'static str, why: String },

    #[error(
        "`__metadata__` of `{}` is malformed: {why}; \
         expected an object of texts with unique names: write the file again", file.display()
    )]
    BadMetadata { file: PathBuf, why: String },

    #[error(
        "tensor `{tensor}` in `{}` has dtype `{found}`, which is not known; expected one of {}; \
         convert the tensor to one of these", file.display(), known()
    )]
    UnknownDtype { file: PathBuf, tensor: String, found: String },

    #[error(
        "tensor `{tensor}` in `{}` has shape [{}] of {dtype}: more bytes than can be counted; \
         the header is damaged: download or convert the file again", file.display(), listing::items(shape)
    )]
    ShapeOverflow { file: PathBuf, tensor: String, shape: Vec<u64>, dtype: FileDtype },

    #[error(
        "tensor `{tensor}` in `{}` begins at byte {begin} of the data and ends before it, at {end}; \
         the header is damaged: download or convert the file again", file.display()
    )]
    BackwardRange { file: PathBuf, tensor: String, begin: u64, end: u64 },

    #[error(
        "tensor `{tensor}` in `{}` has {found} bytes, but shape [{}] of {dtype} takes {expected}; \
         the header is damaged: download or convert the file again", file.display(), listing::items(shape)
    )]
    WrongSize {
        file: PathBuf,
        tensor: String,
        shape: Vec<usize>,
        dtype: FileDtype,
        found: u64,
        expected: u64,
    },

    #[error(
        "`{}` was cut short at tensor `{tensor}`: it has {found} bytes, its header describes {expected}; \
         download it again", file.display()
    )]
    Truncated { file: PathBuf, tensor: String, found: u64, expected: u64 },

    #[error(
        "tensor `{tensor}` in `{}` ends at byte {end} of the data, which has {data}; \
         the header is damaged: download or convert the file again", file.display()
    )]
    PastEnd { file: PathBuf, tensor: String, end: u64, data: u64 },

    #[error(
        "tensors `{first}` and `{second}` in `{}` overlap: `{second}` begins at byte {begin} of the data, \
         `{first}` ends at {end}; each needs bytes of its own: write the file again", file.display()
    )]
    Overlap { file: PathBuf, first: String, second: String, begin: u64, end: u64 },

    #[error(
        "bytes {from}..{to} of the data in `{}`, before tensor `{tensor}`, belong to no tensor; \
         tensors must follow each other without holes: write the file again", file.display()
    )]
    Hole { file: PathBuf, tensor: String, from: u64, to: u64 },

    #[error(
        "`{}` has {extra} bytes after its last tensor; expected the file to end there: \
         download or convert it again", file.display()
    )]
    Trailing { file: PathBuf, extra: u64 },

    #[error(
        "`{}` had {expected} bytes when its header was read and has {found} now; \
         let the program that writes it finish, then try again", file.display()
    )]
    Changed { file: PathBuf, expected: u64, found: u64 },

    #[error(
        "tensor `{tensor}` was declared twice for `{}`; names must be unique: rename one",
        file.display()
    )]
    DeclaredTwice { file: PathBuf, tensor: String },

    #[error(
        "bytes of tensor `{found}` came while `{}` expected those of {expected}; \
         write tensors in the order in which they were declared", file.display()
    )]
    OutOfOrder { file: PathBuf, found: String, expected: String },

    #[error(
        "tensor `{tensor}` in `{}` got {extra} bytes more than its {expected}; \
         write as many as its shape takes", file.display()
    )]
    TooManyBytes { file: PathBuf, tensor: String, extra: u64, expected: u64 },

    #[error(
        "tensor `{tensor}` in `{}` still lacks {missing} bytes; \
         write all tensors before finishing", file.display()
    )]
    Unfinished { file: PathBuf, tensor: String, missing: u64 },
}

fn known() -> String {
    FileDtype::ALL.map(FileDtype::name).join(", ")
}
