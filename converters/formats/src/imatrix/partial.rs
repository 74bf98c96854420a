//! Sums over a part of a text, which add up to those of the whole text in any order.
//!
//! The sums are integers ([decision 78](../../../../docs/decisions/0078-importance-in-fixed-point.md)).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::checksum::Checksum;
use super::{Error, Imatrix, ImportanceEntry};
use crate::safetensors::{FileDtype, SafetensorsFile, TensorSpec, Writer};
use crate::shown;

/// Value of the schema key in the metadata of a file.
const SCHEMA: &str = "onboard-imatrix-part/2";
/// Key of the checksum of everything else in a file.
const CHECKSUM: &str = "checksum";
const SUMS: &str = "sums";
const COUNTS: &str = "counts";
/// Unit of [`FixedSum`]: 2^-60. Sums of squares up to 1.4e20 fit.
const UNITS: f64 = (1_u64 << 60) as f64;

/// Sum with a fixed number of binary places. Additions are exact, so their order does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FixedSum(i128);

impl FixedSum {
    /// Rounds a number to the nearest sum.
    pub fn of(x: f64) -> Self {
        Self((x * UNITS).round_ties_even() as i128)
    }

    /// Adds another sum; stays at the largest sum if it would overflow.
    pub fn add(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }

    /// Returns the nearest number.
    pub fn value(self) -> f32 {
        (self.0 as f64 / UNITS) as f32
    }
}

/// Sums of squares of one weight's inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartialEntry {
    /// Sums: `[counts.len(), row]`.
    pub sums: Vec<FixedSum>,
    /// Number of summands for each matrix.
    pub counts: Vec<u64>,
}

/// Sums over some chunks of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialImatrix {
    /// Hash of everything that the sums depend on, except the chunks.
    pub identity: String,
    /// Chunks that were measured.
    pub chunks: Range<u32>,
    /// Number of chunks of the text.
    pub of: u32,
    /// Number of tokens per chunk.
    pub chunk_size: u32,
    /// Name of the text file.
    pub dataset: String,
    /// Sums by the GGUF name of the weight.
    pub entries: BTreeMap<String, PartialEntry>,
}

impl PartialImatrix {
    /// Writes a file of safetensors, which appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let metadata = [
            ("schema", SCHEMA.to_owned()),
            ("identity", self.identity.clone()),
            ("begin", self.chunks.start.to_string()),
            ("end", self.chunks.end.to_string()),
            ("of", self.of.to_string()),
            ("chunk_size", self.chunk_size.to_string()),
            ("dataset", self.dataset.clone()),
            (CHECKSUM, self.checksum()),
        ];
        let metadata = metadata.map(|(key, text)| (key.to_owned(), text)).into();
        let tensors: Vec<TensorSpec> = self
            .entries
            .iter()
            .flat_map(|(name, entry)| {
                let sums = entry.sums.len();
                let counts = entry.counts.len();
                [tensor_spec(name, SUMS, vec![sums, 2]), tensor_spec(name, COUNTS, vec![counts])]
            })
            .collect();
        let mut file = Writer::create(path, &metadata, &tensors)?;
        for (entry, specs) in self.entries.values().zip(tensors.chunks_exact(2)) {
            for sums in entry.sums.chunks(1 << 16) {
                let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.0.to_le_bytes()).collect();
                file.write(&specs[0].name, &bytes)?;
            }
            let bytes: Vec<u8> = entry.counts.iter().flat_map(|n| n.to_le_bytes()).collect();
            file.write(&specs[1].name, &bytes)?;
        }
        Ok(file.finish()?)
    }

    /// Reads a file that [`PartialImatrix::write`] has written.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (file, head) = Self::head(path)?;
        head.with_entries(path, &file)
    }

    /// Reads the sums, and compares everything with the checksum in the file.
    fn with_entries(self, path: &Path, file: &SafetensorsFile) -> Result<Self, Error> {
        let partial = Self { entries: entries(path, file)?, ..self };
        let expected = file.header().metadata.get(CHECKSUM).map(String::as_str).unwrap_or_default();
        Checksum::check(path, partial.checksum(), expected)?;
        Ok(partial)
    }

    fn checksum(&self) -> String {
        let Range { start, end } = self.chunks;
        let mut checksum = Checksum::default();
        checksum.add(&[self.identity.as_bytes(), self.dataset.as_bytes()]);
        checksum.add(&[start, end, self.of, self.chunk_size].map(u32::to_le_bytes));
        for (name, entry) in &self.entries {
            checksum.add(&[name]);
            entry.sums.iter().for_each(|sum| checksum.add(&[sum.0.to_le_bytes()]));
            entry.counts.iter().for_each(|count| checksum.add(&[count.to_le_bytes()]));
        }
        checksum.text()
    }

    /// Opens a file and reads its metadata, without the sums.
    fn head(path: &Path) -> Result<(SafetensorsFile, Self), Error> {
        let file = SafetensorsFile::open(path)?;
        let metadata = &file.header().metadata;
        let schema = text_of(metadata, "schema");
        if schema != SCHEMA {
            return Err(Error::NoShard { file: path.into(), found: shown(schema) });
        }
        let chunks = number_of(path, metadata, "begin")?..number_of(path, metadata, "end")?;
        let of = number_of(path, metadata, "of")?;
        if chunks.start > chunks.end || chunks.end > of {
            let range = format!("{}..{}", chunks.start, chunks.end);
            return Err(Error::BadKey {
                file: path.into(),
                key: "begin..end".into(),
                found: range,
            });
        }
        let head = Self {
            identity: text_of(metadata, "identity").to_owned(),
            chunks,
            of,
            chunk_size: number_of(path, metadata, "chunk_size")?,
            dataset: text_of(metadata, "dataset").to_owned(),
            entries: BTreeMap::new(),
        };
        Ok((file, head))
    }

    /// Adds the sums of other chunks of the same text.
    pub fn add(&mut self, other: BTreeMap<String, PartialEntry>) -> Result<(), Error> {
        for (name, entry) in other {
            let Some(total) = self.entries.get_mut(&name) else {
                self.entries.insert(name, entry);
                continue;
            };
            if (total.sums.len(), total.counts.len()) != (entry.sums.len(), entry.counts.len()) {
                return Err(Error::OtherShardShape { tensor: shown(&name) });
            }
            total.sums.iter_mut().zip(&entry.sums).for_each(|(sum, &more)| sum.add(more));
            total
                .counts
                .iter_mut()
                .zip(&entry.counts)
                .for_each(|(count, more)| *count = count.saturating_add(*more));
        }
        Ok(())
    }

    /// Joins files that together hold every chunk of a text once.
    pub fn join(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut shards = Vec::with_capacity(paths.len());
        for path in paths {
            let (file, head) = Self::head(path)?;
            shards.push((head, file, path));
        }
        // An empty shard comes before the one that begins where it ends.
        shards.sort_by_key(|(head, ..)| (head.chunks.start, head.chunks.end));
        let Some((first, _, first_path)) = shards.first() else { return Err(Error::NoShards) };
        let mut joined = Self { chunks: 0..0, ..first.clone() };
        for (head, file, path) in &shards {
            let same = head.identity == joined.identity
                && (head.of, head.chunk_size) == (joined.of, joined.chunk_size);
            if !same {
                let file = PathBuf::clone(path);
                let other = PathBuf::clone(first_path);
                return Err(Error::OtherShard { file, other });
            }
            let start = head.chunks.start;
            let expected = joined.chunks.end;
            if start != expected {
                return Err(Error::ShardGap { file: PathBuf::clone(path), found: start, expected });
            }
            joined.chunks.end = head.chunks.end;
            joined.add(head.clone().with_entries(path, file)?.entries)?;
        }
        if joined.chunks.end != joined.of {
            return Err(Error::ShardsEnd { found: joined.chunks.end, expected: joined.of });
        }
        Ok(joined)
    }

    /// Returns the importance that these sums give.
    pub fn importance(self) -> Imatrix {
        let entries = self.entries.into_iter().filter_map(|(name, entry)| {
            let sums = entry.sums.into_iter().map(FixedSum::value).collect();
            Some((name, ImportanceEntry::from_sums(sums, entry.counts)?))
        });
        Imatrix {
            entries: entries.collect(),
            chunks: self.chunks.end - self.chunks.start,
            chunk_size: self.chunk_size,
            datasets: vec![self.dataset],
        }
    }
}

/// Describes a tensor of integers, whose name is that of the weight and `end`.
fn tensor_spec(weight: &str, end: &str, shape: Vec<usize>) -> TensorSpec {
    TensorSpec { name: format!("{weight}.{end}"), dtype: FileDtype::I64, shape }
}

/// Returns the text of a key; an empty one if it is missing.
fn text_of<'m>(metadata: &'m BTreeMap<String, String>, key: &str) -> &'m str {
    metadata.get(key).map(String::as_str).unwrap_or_default()
}

/// Returns the number of a key.
fn number_of(path: &Path, metadata: &BTreeMap<String, String>, key: &str) -> Result<u32, Error> {
    let text = text_of(metadata, key);
    text.parse().map_err(|_| Error::BadKey {
        file: path.into(),
        key: key.to_owned(),
        found: shown(text),
    })
}

/// Reads the sums of every weight.
fn entries(path: &Path, file: &SafetensorsFile) -> Result<BTreeMap<String, PartialEntry>, Error> {
    let mut entries = BTreeMap::new();
    for name in file.header().tensors.keys() {
        let Some(weight) = name.strip_suffix(SUMS).and_then(|name| name.strip_suffix('.')) else {
            continue;
        };
        let sums = integers(path, file, name)?;
        let counts = integers(path, file, &format!("{weight}.{COUNTS}"))?;
        let entry = PartialEntry {
            sums: sums.as_chunks().0.iter().map(|pair| FixedSum(joined(*pair))).collect(),
            counts: counts.into_iter().map(i64::cast_unsigned).collect(),
        };
        let sums = entry.sums.len();
        let counts = entry.counts.len();
        if counts == 0 || sums == 0 || !sums.is_multiple_of(counts) {
            let tensor = shown(weight);
            return Err(Error::Uneven { file: path.into(), tensor, sums, counts });
        }
        if let Some((at, sum)) = entry.sums.iter().enumerate().find(|(_, sum)| sum.0 < 0) {
            let file = path.into();
            let tensor = shown(weight);
            return Err(Error::BadNumber { file, tensor, at, found: sum.value() });
        }
        entries.insert(weight.to_owned(), entry);
    }
    Ok(entries)
}

fn joined([low, high]: [i64; 2]) -> i128 {
    i128::from(high) << 64 | i128::from(low.cast_unsigned())
}

fn integers(path: &Path, file: &SafetensorsFile, name: &str) -> Result<Vec<i64>, Error> {
    let tensor = file.tensor(name)?;
    let Some((_, bytes)) = tensor.filter(|(entry, _)| entry.dtype == FileDtype::I64) else {
        return Err(Error::NoIntegers { file: path.into(), tensor: shown(name) });
    };
    Ok(bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(chunks: Range<u32>, sums: &[f64]) -> PartialImatrix {
        let entry = PartialEntry {
            sums: sums.iter().map(|&x| FixedSum::of(x)).collect(),
            counts: vec![u64::from(chunks.end - chunks.start)],
        };
        PartialImatrix {
            identity: "a".into(),
            chunks,
            of: 3,
            chunk_size: 8,
            dataset: "t".into(),
            entries: [("w".to_owned(), entry)].into(),
        }
    }

    #[test]
    fn sums_do_not_depend_on_their_order() {
        let numbers = [1e16, 0.1, -1e16, 3e-9, 0.7, 1e-18];
        let sum = sum_in_order(&numbers, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(sum, sum_in_order(&numbers, &[5, 3, 1, 2, 4, 0]));
        assert_eq!(sum.value(), 0.800_000_003_f64 as f32);
        assert_eq!(FixedSum::of(f64::MAX).value(), FixedSum(i128::MAX).value());
    }

    fn sum_in_order(numbers: &[f64], order: &[usize]) -> FixedSum {
        let mut sum = FixedSum::default();
        for &n in order {
            sum.add(FixedSum::of(numbers[n]));
        }
        sum
    }

    #[test]
    fn every_flipped_bit_is_refused_or_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.shard");
        let sound = part(0..3, &[1.5, 2.0, 1e-9]);
        sound.write(&path).unwrap();
        let bytes = fs_err::read(&path).unwrap();
        for at in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            fs_err::write(&path, bytes).unwrap();
            let read = PartialImatrix::read(&path);
            assert!(read.is_err() || read.is_ok_and(|read| read == sound), "bit {at}");
            let joined = PartialImatrix::join(std::slice::from_ref(&path));
            assert!(joined.is_err() || joined.is_ok_and(|partial| partial == sound), "bit {at}");
        }
    }

    #[test]
    fn shards_make_a_whole_or_say_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let parts = [part(0..2, &[1.5, 2.0]), part(2..2, &[0.0, 0.0]), part(2..3, &[0.25, 1e9])];
        let paths: Vec<PathBuf> =
            (0..3).map(|n| dir.path().join(format!("{n}.safetensors"))).collect();
        for (part, path) in parts.iter().zip(&paths) {
            part.write(path).unwrap();
            assert_eq!(PartialImatrix::read(path).unwrap(), *part);
        }
        let mut turned = paths.clone();
        turned.reverse();
        let joined = PartialImatrix::join(&turned).unwrap();
        assert_eq!(joined, PartialImatrix::join(&paths).unwrap());
        assert_eq!(joined.importance().entries["w"].means(), [1.75 / 3.0, (1e9 + 2.0) / 3.0]);
        assert!(join_error(&paths[1..]).contains("begins with chunk 2; expected chunk 0"));
        assert!(join_error(&paths[..2]).contains("end with chunk 2; expected 3"));
        assert!(join_error(&[&paths[..], &paths[2..]].concat()).contains("expected chunk 3"));
        assert!(join_error(&[]).contains("no shard"));
        PartialImatrix { identity: "b".into(), ..parts[2].clone() }.write(&paths[2]).unwrap();
        assert!(join_error(&paths).contains("another measurement"));
        let other = PartialImatrix { entries: part(2..3, &[1.0]).entries, ..parts[2].clone() };
        other.write(&paths[2]).unwrap();
        assert!(join_error(&paths).contains("`w`"));
    }

    fn join_error(paths: &[PathBuf]) -> String {
        PartialImatrix::join(paths).unwrap_err().to_string()
    }
}
