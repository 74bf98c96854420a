//! Split sets of files, which hold one model together.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::layout::{DimsStyle, GgufLayout, GgufTensorSpec};
use super::{ALIGNMENT_KEY, Error, Metadata, MetadataValue, rules};
use crate::output::folder_of;

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Key for the source and options of a set. It is equal in all files of the set, which may be written on
/// several machines.
pub const SET_KEY: &str = "onboard.set";

/// Keys that number the files of a set.
pub const SET_KEYS: [&str; 3] = [NO, COUNT, TENSORS];

/// Returns the suffix of file `no`, counted from zero.
fn ending(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// Returns the path of a file of a set: `prefix-00001-of-00003.gguf` for file 0 of 3.
pub fn path(prefix: &Path, no: u32, count: u32) -> PathBuf {
    let mut name = OsString::from(prefix.as_os_str());
    name.push(ending(no, count));
    name.into()
}

/// Returns the `prefix` of such a name; none if `file` lacks the suffix of file `no` of `count`.
pub fn prefix(file: &Path, no: u32, count: u32) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?.strip_suffix(&ending(no, count))?;
    (!name.is_empty()).then(|| file.with_file_name(name))
}

/// Name of a file of a set, in parts: `prefix-00001-of-00003.gguf`. Checkpoints have such names too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetName<'a> {
    /// Name of the set.
    pub prefix: &'a str,
    /// Number of files of the set.
    pub count: u32,
    /// Extension of the name.
    pub extension: &'a str,
    /// Place of the file, counted from one.
    pub no: u32,
}

impl<'a> SetName<'a> {
    /// Takes a name apart; none for the name of a file of no set.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (stem, extension) = name.rsplit_once('.')?;
        let (start, count) = stem.rsplit_once("-of-")?;
        let (prefix, no) = start.rsplit_once('-')?;
        let name =
            Self { prefix, count: number_of_name(count)?, extension, no: number_of_name(no)? };
        (1..=name.count).contains(&name.no).then_some(name)
    }

    /// Returns the name of the file at another place of the set.
    pub fn at(self, no: u32) -> String {
        let Self { prefix, count, extension, .. } = self;
        format!("{prefix}-{no:05}-of-{count:05}.{extension}")
    }
}

/// Parses a number as names of files have it.
fn number_of_name(digits: &str) -> Option<u32> {
    let is_number = digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Lists the files of all sets of a name in its folder, in order.
pub fn files_of_sets(prefix: &Path) -> std::io::Result<Vec<PathBuf>> {
    let start = prefix.file_name().unwrap_or_default().to_string_lossy();
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder_of(prefix))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parts = SetName::parse(&name);
        if parts.is_some_and(|name| name.prefix == start && name.extension == "gguf") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns a sentence for each set of files of which these names are a part.
pub fn incomplete_sets<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut sets: BTreeMap<SetName<'a>, BTreeSet<u32>> = BTreeMap::new();
    for name in names.into_iter().filter_map(SetName::parse) {
        sets.entry(SetName { no: 1, ..name }).or_default().insert(name.no);
    }
    let sentences = sets.into_iter().filter_map(|(set, present)| {
        let missing = (1..=set.count).find(|no| !present.contains(no))?;
        let count = set.count as usize - present.len();
        Some(format!(
            "{count} of {} files of a set {}, the first is `{}`",
            set.count,
            if count == 1 { "is missing" } else { "are missing" },
            crate::shown(&set.at(missing))
        ))
    });
    sentences.collect()
}

/// Lays out a set of files `prefix-00001-of-0000N.gguf` of at most `max_bytes` of tensors each. Files are
/// cut like those of `gguf-split --split-max-size`: padded tensors are added up, headers are not counted. A
/// larger tensor has a file of its own.
///
/// The first file has all keys; every file has the three that number it, and the alignment and
/// [`SET_KEY`], if there are keys for them.
pub fn layouts(
    prefix: &Path,
    metadata: &Metadata,
    tensors: &[GgufTensorSpec],
    max_bytes: u64,
    dims: DimsStyle,
) -> Result<Vec<(PathBuf, GgufLayout)>, Error> {
    let parts = cut(prefix, metadata, tensors, max_bytes)?;
    let (Ok(count), Ok(total)) = (u16::try_from(parts.len()), i32::try_from(tensors.len())) else {
        let file = prefix.into();
        return Err(Error::SplitTooMany { file, files: parts.len(), found: tensors.len() });
    };
    let mut set = Vec::with_capacity(parts.len());
    for (no, part) in (0..count).zip(&parts) {
        let mut keys = Metadata::new();
        if no == 0 {
            keys = metadata.clone();
        } else {
            for key in [ALIGNMENT_KEY, SET_KEY] {
                if let Some(value) = metadata.get(key) {
                    keys.set(key, value.clone());
                }
            }
        }
        // In the order of gguf-split.
        keys.set(NO, no);
        keys.set(TENSORS, total);
        keys.set(COUNT, count);
        let path = path(prefix, no.into(), count.into());
        let layout = GgufLayout::new(&path, &keys, part, dims)?;
        set.push((path, layout));
    }
    unique(&set)?;
    Ok(set)
}

/// Returns the smallest limit for which [`layouts`] makes no more than `count` files. It splits a model
/// most evenly and is the same in every process. A set can have fewer files.
pub fn even_limit(
    file: &Path,
    metadata: &Metadata,
    tensors: &[GgufTensorSpec],
    count: usize,
) -> Result<u64, Error> {
    let mut high = 1_u64;
    for tensor in tensors {
        let bytes = rules::tensor_bytes(file, &tensor.name, &tensor.shape, tensor.ty)?;
        high = high.saturating_add(bytes).saturating_add(u64::from(u32::MAX));
    }
    let mut low = 1;
    while low < high {
        let middle = low + (high - low) / 2;
        if cut(file, metadata, tensors, middle)?.len() <= count {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(low)
}

/// Returns the tensors of each file. There is at least one file.
fn cut<'a>(
    prefix: &Path,
    metadata: &Metadata,
    tensors: &'a [GgufTensorSpec],
    max_bytes: u64,
) -> Result<Vec<&'a [GgufTensorSpec]>, Error> {
    let alignment = metadata
        .alignment()
        .map_err(|value| Error::Alignment { file: prefix.into(), found: value })?;
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut sum = 0_u64;
    for (n, tensor) in tensors.iter().enumerate() {
        let bytes = rules::tensor_bytes(prefix, &tensor.name, &tensor.shape, tensor.ty)?;
        let bytes = rules::pad(bytes, alignment).unwrap_or(u64::MAX);
        sum = sum.saturating_add(bytes);
        if sum > max_bytes && n > begin {
            parts.push(&tensors[begin..n]);
            (begin, sum) = (n, bytes);
        }
    }
    parts.push(&tensors[begin..]);
    Ok(parts)
}

fn unique(set: &[(PathBuf, GgufLayout)]) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    for (path, layout) in set {
        for info in &layout.tensors {
            if !names.insert(&info.name) {
                let tensor = crate::shown(&info.name);
                return Err(Error::DuplicateTensor { file: path.clone(), tensor });
            }
        }
    }
    Ok(())
}

/// Description of a set in the keys of its first file.
#[derive(Debug)]
pub(super) struct SplitSet {
    prefix: PathBuf,
    pub(super) count: u32,
    tensors: Option<u64>,
    made_of: Option<String>,
}

impl SplitSet {
    /// Parses the description; none if a file with these keys is not part of a set.
    pub(super) fn of(file: &Path, metadata: &Metadata) -> Result<Option<Self>, Error> {
        let count = number(file, metadata, COUNT, u16::MAX.into())?.unwrap_or(0);
        if count < 2 {
            return Ok(None);
        }
        let no = number(file, metadata, NO, u16::MAX.into())?;
        let no = no.ok_or_else(|| key(file, NO, "missing", "0"))?;
        if no > 0 {
            let first = prefix(file, no, count).map(|prefix| path(&prefix, 0, count));
            return Err(Error::NotTheFirst { file: file.into(), no, count, first });
        }
        let tensors = number(file, metadata, TENSORS, i32::MAX as u32)?.map(u64::from);
        let prefix = prefix(file, no, count).ok_or_else(|| {
            let expected = ending(no, count);
            Error::SplitName { file: file.into(), no, count, expected }
        })?;
        let made_of = metadata.str(SET_KEY)?.map(str::to_owned);
        Ok(Some(Self { prefix, count, tensors, made_of }))
    }

    pub(super) fn path(&self, no: u32) -> PathBuf {
        path(&self.prefix, no, self.count)
    }

    /// Checks that a file with these keys is file `no` of this set.
    pub(super) fn check(&self, file: &Path, metadata: &Metadata, no: u32) -> Result<(), Error> {
        let made_of = metadata.str(SET_KEY)?;
        if made_of != self.made_of.as_deref() {
            let actual = made_of.map_or("missing".to_owned(), crate::shown);
            let expected = self.made_of.as_deref().map_or("missing".to_owned(), crate::shown);
            return Err(key(file, SET_KEY, actual, expected));
        }
        expect_number(file, metadata, NO, Some(no), true)?;
        expect_number(file, metadata, COUNT, Some(self.count), false)?;
        let tensors = self.tensors.and_then(|count| u32::try_from(count).ok());
        expect_number(file, metadata, TENSORS, tensors, false)
    }

    pub(super) fn check_tensors(&self, file: &Path, count: u64) -> Result<(), Error> {
        match self.tensors {
            Some(expected) if expected != count => {
                Err(Error::SplitTensors { file: file.into(), found: count, expected })
            }
            _ => Ok(()),
        }
    }
}

fn key(
    file: &Path,
    key: &'static str,
    actual: impl Into<String>,
    expected: impl Into<String>,
) -> Error {
    Error::SplitKey { file: file.into(), key, found: actual.into(), expected: expected.into() }
}

fn number(
    file: &Path,
    metadata: &Metadata,
    name: &'static str,
    limit: u32,
) -> Result<Option<u32>, Error> {
    let Some(value) = metadata.get(name) else { return Ok(None) };
    let number = value.integer().and_then(|x| u32::try_from(x).ok()).filter(|&x| x <= limit);
    if number.is_some() {
        return Ok(number);
    }
    let actual = match value {
        MetadataValue::String(_) | MetadataValue::Array(_) => value.kind_name(),
        other => other.integer().map_or(other.kind_name(), |x| x.to_string()),
    };
    Err(key(file, name, actual, format!("an integer from 0 to {limit}")))
}

/// Checks that a key has the expected number, if one is expected. A key that is not required may be missing.
fn expect_number(
    file: &Path,
    metadata: &Metadata,
    name: &'static str,
    expected: Option<u32>,
    required: bool,
) -> Result<(), Error> {
    let Some(expected) = expected else { return Ok(()) };
    match number(file, metadata, name, u32::MAX)? {
        Some(number) if number == expected => Ok(()),
        Some(number) => Err(key(file, name, number.to_string(), expected.to_string())),
        None if required => Err(key(file, name, "missing", expected.to_string())),
        None => Ok(()),
    }
}
