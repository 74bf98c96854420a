//! Reads both file formats.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::path::Path;

use super::checksum::Checksum;
use super::write::CHECKSUM;
use super::{Error, Imatrix, ImportanceEntry};
use crate::codec::BlockType;
use crate::mmap::FileMap;
use crate::{gguf, shown};

const SUMS: &str = "in_sum2";
const COUNTS: &str = "counts";

impl Imatrix {
    /// Reads a file of either format.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let map = FileMap::open(path)?;
        let imatrix =
            if map.starts_with(b"GGUF") { from_gguf(path)? } else { from_dat(path, &map)? };
        if imatrix.entries.is_empty() {
            return Err(Error::Empty { file: path.into() });
        }
        Ok(imatrix)
    }
}

/// Reads the GGUF format: two tensors for each weight, `<weight>.in_sum2`, `[matrices, row]`, and
/// `<weight>.counts`, `[matrices, 1]`. Other tensors are ignored.
fn from_gguf(path: &Path) -> Result<Imatrix, Error> {
    let file = gguf::GgufFile::open(path)?;
    let mut entries = BTreeMap::new();
    for info in file.tensors() {
        let ends = [(SUMS, COUNTS), (COUNTS, SUMS)];
        let split = ends.into_iter().find_map(|(end, other)| {
            Some((info.name.strip_suffix(end)?.strip_suffix('.')?, end, other))
        });
        let Some((weight, end, lacking)) = split else { continue };
        if file.info(&format!("{weight}.{lacking}")).is_none() {
            let file = path.into();
            let tensor = shown(weight);
            return Err(Error::Alone { file, tensor, found: end, lacking });
        }
        if end == SUMS {
            let sums = numbers(path, &file, &info.name)?;
            let counts = numbers(path, &file, &format!("{weight}.{COUNTS}"))?;
            // Integers that were written as f32.
            let counts = counts.into_iter().map(|count| count.round() as u64).collect();
            entries.insert(weight.to_owned(), entry(path, weight, sums, counts)?);
        }
    }
    let keys = file.metadata();
    let imatrix = Imatrix {
        entries,
        chunks: keys.u32("imatrix.chunk_count")?.unwrap_or(0),
        chunk_size: keys.u32("imatrix.chunk_size")?.unwrap_or(0),
        datasets: keys.strings("imatrix.datasets")?.unwrap_or(&[]).to_vec(),
    };
    // Other programs write none.
    if let Some(expected) = keys.str(CHECKSUM)? {
        let mut checksum = imatrix.checksum_of_keys();
        for weight in imatrix.entries.keys() {
            checksum.add(&[weight]);
            let ends = [SUMS, COUNTS];
            checksum.add(&ends.map(|end| file.bytes(&format!("{weight}.{end}")).unwrap_or(&[])));
        }
        Checksum::check(path, checksum.text(), expected)?;
    }
    Ok(imatrix)
}

fn numbers(path: &Path, file: &gguf::GgufFile, name: &str) -> Result<Vec<f32>, Error> {
    if let Some(info) = file.info(name).filter(|info| info.ty != BlockType::F32) {
        let tensor = shown(name);
        return Err(Error::NotF32 { file: path.into(), tensor, found: info.ty });
    }
    checked(path, name, file.bytes(name).unwrap_or(&[]))
}

/// Checks that values (mean squares or counts) are finite and not negative.
fn checked(path: &Path, name: &str, bytes: &[u8]) -> Result<Vec<f32>, Error> {
    let numbers = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    let checked = numbers.enumerate().map(|(at, number)| {
        if number.is_finite() && number >= 0.0 {
            return Ok(number);
        }
        Err(Error::BadNumber { file: path.into(), tensor: shown(name), at, found: number })
    });
    checked.collect()
}

fn entry(
    path: &Path,
    weight: &str,
    sums: Vec<f32>,
    counts: Vec<u64>,
) -> Result<ImportanceEntry, Error> {
    let sums_len = sums.len();
    let counts_len = counts.len();
    ImportanceEntry::from_sums(sums, counts).ok_or_else(|| Error::Uneven {
        file: path.into(),
        tensor: shown(weight),
        sums: sums_len,
        counts: counts_len,
    })
}

/// Reads the older format, all little-endian: the number of weights, then the weights. Each has its name's
/// length, its name, its number of chunks, its number of values, and these values, as means times chunks.
/// All but the oldest files end with the number of chunks and the name of the text.
fn from_dat(path: &Path, bytes: &[u8]) -> Result<Imatrix, Error> {
    let mut from = DatReader { path, left: bytes };
    let count = from.number("the number of weights", 1)?;
    let mut entries = BTreeMap::new();
    for n in 0..count {
        let name = from.text(&format!("the name of weight {n}"), 1)?;
        let chunks = from.number(&count_label("chunks", &name), i32::MIN)?;
        let numbers = count_label("numbers", &name);
        let count = from.number(&numbers, 1)?;
        let bytes = from.take(count as u64 * 4, &numbers)?;
        let sums = checked(path, &name, bytes)?;
        // Without chunks, the values already are means.
        let counts = vec![u64::try_from(chunks).unwrap_or(0).max(1)];
        let entry = entry(path, &name, sums, counts)?;
        match entries.entry(name) {
            btree_map::Entry::Vacant(place) => place.insert(entry),
            btree_map::Entry::Occupied(place) => {
                let tensor = shown(place.key());
                return Err(Error::Twice { file: path.into(), tensor });
            }
        };
    }
    let mut imatrix = Imatrix { entries, ..Imatrix::default() };
    if !from.left.is_empty() {
        let chunks = from.number("the number of chunks", i32::MIN)?;
        imatrix.chunks = u32::try_from(chunks).unwrap_or(0);
    }
    if !from.left.is_empty() {
        let name = from.text("the name of the text", 0)?;
        imatrix.datasets.extend(Some(name).filter(|name| !name.is_empty()));
    }
    Ok(imatrix)
}

/// Names the part of a file that counts something of a weight.
fn count_label(what: &str, weight: &str) -> String {
    format!("the number of {what} of `{}`", shown(weight))
}

struct DatReader<'a> {
    path: &'a Path,
    left: &'a [u8],
}

impl<'a> DatReader<'a> {
    fn take(&mut self, needed: u64, part: &str) -> Result<&'a [u8], Error> {
        let at = usize::try_from(needed).ok();
        let (taken, left) = at.and_then(|at| self.left.split_at_checked(at)).ok_or_else(|| {
            let left = self.left.len() as u64;
            Error::CutShort { file: self.path.into(), part: part.into(), needed, left }
        })?;
        self.left = left;
        Ok(taken)
    }

    fn number(&mut self, part: &str, least: i32) -> Result<i32, Error> {
        let bytes = self.take(4, part)?.try_into().expect("`take` gives as many as asked for");
        let number = i32::from_le_bytes(bytes);
        if number >= least {
            return Ok(number);
        }
        Err(Error::Number {
            file: self.path.into(),
            part: part.into(),
            found: number.into(),
            expected: if least == 0 { "no negative number" } else { "a number above zero" },
        })
    }

    fn text(&mut self, part: &str, least: i32) -> Result<String, Error> {
        let length = self.number(&format!("the length of {part}"), least)?;
        let bytes = self.take(length as u64, part)?;
        Ok(std::str::from_utf8(bytes)
            .map_err(|_| Error::NotUtf8 { file: self.path.into(), part: part.into() })?
            .to_owned())
    }
}
