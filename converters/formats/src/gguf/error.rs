//! Errors of a GGUF file.

use std::io;
use std::path::PathBuf;

use super::{MAX_DIMS, MAX_LENGTH, MAX_NAME};
use crate::codec::BlockType;

/// Reason why a GGUF file cannot be read or laid out. Names are escaped, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    /// Error of the operating system; `fs_err` adds the path.
    #[error(transparent)]
    Io(#[from] io::Error),

    #[error(
        "`{}` begins with `{found}`; a GGUF file begins with `GGUF`; it is of another format, \
         damaged, or the stand-in of a large file that was not fetched", file.display()
    )]
    NotGguf { file: PathBuf, found: String },

    #[error(
        "`{}` is big-endian (its version reads as {found:#010x}); only little-endian files are read: \
         convert it with `gguf-convert-endian`, or convert the model again", file.display()
    )]
    BigEndian { file: PathBuf, found: u32 },

    #[error(
        "`{}` is GGUF version {found}; expected 2 or 3; {}", file.display(),
        if *found == 1 { "convert the model again" } else { "it is newer than this program, or damaged" }
    )]
    Version { file: PathBuf, found: u32 },

    #[error(
        "`{}` was cut short in {part}: {needed} bytes are needed at byte {at}, {left} are left; \
         download or convert it again", file.display()
    )]
    CutShort { file: PathBuf, part: String, at: u64, needed: u64, left: u64 },

    #[error(
        "the header of `{}` counts {found} {what}; the {left} bytes that follow hold at most {most}; \
         it is damaged: download or convert it again", file.display()
    )]
    Count { file: PathBuf, what: &'static str, found: u64, most: u64, left: u64 },

    #[error(
        "{part} in `{}` claims a length of {found}; at most {most} fit into what is left of the file \
         and the limit of {MAX_LENGTH}; it is damaged: download or convert it again", file.display()
    )]
    Length { file: PathBuf, part: String, found: u64, most: u64 },

    #[error(
        "{part} in `{}` is not UTF-8 at its byte {at}; it is damaged, or was written wrongly: \
         convert it again", file.display()
    )]
    NotUtf8 { file: PathBuf, part: String, at: usize },

    #[error("key {n} in `{}` is empty; every key needs a name: convert it again", file.display())]
    EmptyKey { file: PathBuf, n: u64 },

    #[error(
        "key {n} in `{}` is {len} bytes long; the format allows 65535: the file is damaged, download or \
         convert it again", file.display()
    )]
    LongKey { file: PathBuf, n: u64, len: usize },

    #[error(
        "key `{key}` stands twice in `{}`; keys must be unique: remove one of them", file.display()
    )]
    DuplicateKey { file: PathBuf, key: String },

    #[error(
        "key `{key}` in `{}` has a value of kind {found}, which is not known; \
         expected a kind from 0 to 12: the file is damaged, or newer than this program", file.display()
    )]
    UnknownKind { file: PathBuf, key: String, found: i32 },

    #[error(
        "key `{key}` in `{}` is an array of arrays, which no loader reads; \
         expected an array of numbers, bools or strings: write it flat", file.display()
    )]
    NestedArray { file: PathBuf, key: String },

    #[error(
        "`{}` of `{}` is {found}; expected a power of two of kind u32: correct or remove the key",
        super::ALIGNMENT_KEY, file.display()
    )]
    Alignment { file: PathBuf, found: String },

    #[error("key `{key}` is of kind {found}; expected {expected}: correct the key")]
    WrongKind { key: String, found: String, expected: &'static str },

    #[error("tensor {n} in `{}` has no name; every tensor needs one: convert it again", file.display())]
    EmptyName { file: PathBuf, n: u64 },

    #[error(
        "the name of tensor `{tensor}` in `{}` has {found} bytes; expected fewer than {MAX_NAME}: \
         shorten it", file.display()
    )]
    NameTooLong { file: PathBuf, tensor: String, found: u64 },

    #[error(
        "tensor `{tensor}` stands twice, the second time in `{}`; names must be unique: \
         rename or remove one", file.display()
    )]
    DuplicateTensor { file: PathBuf, tensor: String },

    #[error(
        "tensor `{tensor}` in `{}` has {found} dimensions; expected at most {MAX_DIMS}: \
         join some of them, or download the file again if it is damaged", file.display()
    )]
    TooManyDims { file: PathBuf, tensor: String, found: u64 },

    #[error(
        "tensor `{tensor}` in `{}` has a dimension of {found}; expected no negative one; \
         it is damaged: download or convert it again", file.display()
    )]
    NegativeDim { file: PathBuf, tensor: String, found: i64 },

    #[error(
        "tensor `{tensor}` in `{}` has shape {shape:?} of {ty}: more than can be counted; \
         it is damaged: download or convert it again", file.display()
    )]
    ShapeOverflow { file: PathBuf, tensor: String, shape: Vec<usize>, ty: BlockType },

    #[error(
        "tensor `{tensor}` in `{}` is of type {found}, which {}; expected one of {}: \
         convert the model again", file.display(), removed(*found), known()
    )]
    UnknownType { file: PathBuf, tensor: String, found: i32 },

    #[error(
        "tensor `{tensor}` in `{}` has rows of {row} numbers, which do not divide into {ty} blocks of {}; \
         choose another type for it", file.display(), ty.elements()
    )]
    Row { file: PathBuf, tensor: String, row: usize, ty: BlockType },

    #[error(
        "tensor `{tensor}` in `{}` begins at byte {found} of the data; expected {expected}, \
         right after the padding of the tensor before; it is damaged: convert it again", file.display()
    )]
    Offset { file: PathBuf, tensor: String, found: u64, expected: u64 },

    #[error(
        "the tensors of `{}` up to `{tensor}` take more bytes than a file can have; \
         it is damaged: download or convert it again", file.display()
    )]
    TooLarge { file: PathBuf, tensor: String },

    #[error(
        "`{}` was cut short at tensor `{tensor}`: it has {found} bytes, its header describes {expected}; \
         download or convert it again", file.display()
    )]
    Truncated { file: PathBuf, tensor: String, found: u64, expected: u64 },

    #[error(
        "`{}` is file {} of {count} of a split set; open the first one{}", file.display(), no + 1,
        first.as_ref().map_or(String::new(), |first| format!(", `{}`", first.display()))
    )]
    NotTheFirst { file: PathBuf, no: u32, count: u32, first: Option<PathBuf> },

    #[error(
        "`{}` says that it is file {} of {count}, so its name must end in `{expected}`: \
         name the files of the set as they were", file.display(), no + 1
    )]
    SplitName { file: PathBuf, no: u32, count: u32, expected: String },

    #[error(
        "`{}` is missing: `{}` is the first of {count} files; \
         download the others into the same folder", file.display(), first.display()
    )]
    SplitMissing { file: PathBuf, first: PathBuf, count: u32 },

    #[error(
        "`{key}` of `{}` is {found}; expected {expected}; the files are not of one set: \
         download them again", file.display()
    )]
    SplitKey { file: PathBuf, key: &'static str, found: String, expected: String },

    #[error(
        "the split set of `{}` has {found} tensors; its `split.tensors.count` is {expected}; \
         the files are not of one set: download them again", file.display()
    )]
    SplitTensors { file: PathBuf, found: u64, expected: u64 },

    #[error(
        "{found} tensors make a set of {files} files for `{}`; expected at most 65535 files and \
         2147483647 tensors: allow larger files", file.display()
    )]
    SplitTooMany { file: PathBuf, files: usize, found: usize },
}

fn known() -> String {
    BlockType::all().map(BlockType::name).collect::<Vec<_>>().join(", ")
}

/// Explains why a type id is not accepted.
fn removed(id: i32) -> &'static str {
    match id {
        4 | 5 | 31..=33 | 36..=38 => "is no longer supported",
        _ => "is not known",
    }
}
