//! Hashes of written files, in a file of text beside them.
//!
//! GGUF and safetensors have no place for hashes that other programs would keep and skip, so they lie beside the file
//! ([decision 110](../../../docs/decisions/0110-hashes-beside-files.md)). A range of a file is hashed in pieces, and the sum over the pieces
//! does not depend on the order in which they are written:
//!
//! ```text
//! onboard hashes 1
//! file 1234567 "model.gguf"
//! 0 4096 4096 2fc1...      "header"                    offset, length, piece, hash, name
//! 4096 73728 144 90ab...   "blk.0.attn_k.weight"
//! end 77d0...                                          XXH3 of all lines before
//! ```
//!
//! Bytes of a file in no range are padding and zero.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::path::{Component, Path, PathBuf};

use rayon::prelude::*;
use registry::file::FileLimit;
use twox_hash::XxHash3_64;

use formats::mmap::FileMap;
use formats::output::with_end;
use formats::shown;

/// End of the names of files with hashes.
pub const END: &str = ".hashes";

/// Name of the file with the hashes of a folder.
pub const FOLDER: &str = "onboard.hashes";

/// Name of the first range of a file of tensors.
pub const HEADER: &str = "header";

/// First line of a file with hashes.
const SCHEMA: &str = "onboard hashes 1";

/// Upper limit on the size of a file with hashes. A tensor takes a line of about 150 bytes.
const HASHES: FileLimit = FileLimit { kind: "a file of hashes", bytes: 1 << 28 };

/// Number of bytes that a thread hashes at a time.
const PART: usize = 1 << 23;

/// Reason why hashes cannot be read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("`{}` has no hashes: it begins with `{found}`, expected `{SCHEMA}`", file.display())]
    Schema { file: PathBuf, found: String },
    #[error(
        "`{}` is damaged: {what}; nothing can be checked with it: compare the files with their source \
         (the option `verify` of `convert MODEL`), or convert again", file.display()
    )]
    Damaged { file: PathBuf, what: String },
}

/// Range of a file with its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedRange {
    /// Name of the tensor, or [`HEADER`].
    pub name: String,
    /// Offset of the range in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Number of bytes of a piece.
    pub piece: u64,
    /// Result of [`hash`].
    pub hash: u64,
}

/// File with the hashes of its ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedFile {
    /// Path relative to the folder of the hashes.
    pub name: String,
    /// Number of bytes.
    pub len: u64,
    /// Ranges in the order of their offsets, without overlap.
    pub ranges: Vec<HashedRange>,
}

/// Difference between a file and its hashes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Damage {
    #[error("`{}` is missing", file.display())]
    Missing { file: PathBuf },
    #[error("`{}` has {found} bytes, {expected} were written", file.display())]
    Length { file: PathBuf, found: u64, expected: u64 },
    #[error("`{}`: `{range}` has other bytes than were written (XXH3 {found:016x}, expected {expected:016x})", file.display())]
    Bytes { file: PathBuf, range: String, found: u64, expected: u64 },
    #[error("`{}`: byte {at} is padding and not zero", file.display())]
    Padding { file: PathBuf, at: u64 },
}

/// Returns the hash of consecutive pieces, of which the first is piece `first` of a range.
///
/// It is the sum of XXH3 of each piece times an odd number that grows with its place, so hashes of parts of a
/// range add up to the hash of the range, and exchanged pieces change it. It finds accidents; a forger can
/// write other hashes.
pub fn hash(bytes: &[u8], piece: usize, first: u64) -> u64 {
    let pieces = bytes.chunks(piece.max(1)).zip(first..);
    pieces.fold(0, |sum: u64, (bytes, place)| {
        let factor = place.wrapping_mul(2) | 1;
        sum.wrapping_add(XxHash3_64::oneshot(bytes).wrapping_mul(factor))
    })
}

/// Returns the path of the hashes of a single file.
pub fn path_for(file: &Path) -> PathBuf {
    with_end(file, END)
}

/// True for names of files with hashes.
pub fn is_hashes(name: &OsStr) -> bool {
    name.to_string_lossy().ends_with(END)
}

impl HashedFile {
    /// Returns the hash of a small file.
    pub fn whole(name: String, bytes: &[u8]) -> Self {
        let len = bytes.len() as u64;
        let hash = hash(bytes, bytes.len(), 0);
        let range = HashedRange { name: "bytes".to_owned(), offset: 0, len, piece: len, hash };
        Self { name, len, ranges: vec![range] }
    }

    /// Compares the file in a folder with its hashes.
    pub fn check(&self, folder: &Path) -> io::Result<Vec<Damage>> {
        let file = folder.join(&self.name);
        if !file.exists() {
            return Ok(vec![Damage::Missing { file }]);
        }
        let map = FileMap::open(&file)?;
        let actual = map.len() as u64;
        let expected = self.len;
        if actual != expected {
            return Ok(vec![Damage::Length { file, found: actual, expected }]);
        }
        let mut damage: Vec<Damage> = self.changed(&file, &map);
        let mut end = 0;
        let last = (self.len, 0);
        let taken = self.ranges.iter().map(|range| (range.offset, range.len)).chain([last]);
        for (from, len) in taken {
            let gap = map.get(end as usize..from as usize).unwrap_or_default();
            if let Some(at) = gap.iter().position(|&byte| byte != 0) {
                damage.push(Damage::Padding { file: file.clone(), at: end + at as u64 });
            }
            end = from + len;
        }
        Ok(damage)
    }

    /// Lists the ranges with other bytes.
    fn changed(&self, file: &Path, map: &FileMap) -> Vec<Damage> {
        let parts = self.ranges.iter().enumerate().flat_map(|(n, range)| {
            let step = (PART as u64 / range.piece.max(1)).max(1) * range.piece.max(1);
            (0..range.len).step_by(step as usize).map(move |at| (n, at, step.min(range.len - at)))
        });
        let parts: Vec<(usize, u64, u64)> = parts.collect();
        let hashed = parts.par_iter().map(|&(n, at, len): &(usize, u64, u64)| {
            let range = &self.ranges[n];
            let from = (range.offset + at) as usize;
            let bytes = map.get(from..from + len as usize).unwrap_or_default();
            (n, hash(bytes, range.piece as usize, at / range.piece))
        });
        let hashed: Vec<(usize, u64)> = hashed.collect();
        let mut sums = vec![0_u64; self.ranges.len()];
        for (n, part) in hashed {
            sums[n] = sums[n].wrapping_add(part);
        }
        let wrong = self.ranges.iter().zip(sums).filter(|(range, sum)| range.hash != *sum);
        let damage = wrong.map(|(range, sum)| Damage::Bytes {
            file: file.to_owned(),
            range: shown(&range.name),
            found: sum,
            expected: range.hash,
        });
        damage.collect()
    }
}

/// Returns the text of a file with hashes.
pub fn text(files: &[HashedFile]) -> String {
    let mut text = format!("{SCHEMA}\n");
    for HashedFile { name, len, ranges } in files {
        let _ = writeln!(text, "file {len} {}", quoted(name));
        for HashedRange { name, offset, len, piece, hash } in ranges {
            let _ = writeln!(text, "{offset} {len} {piece} {hash:016x} {}", quoted(name));
        }
    }
    let _ = writeln!(text, "end {:016x}", XxHash3_64::oneshot(text.as_bytes()));
    text
}

fn quoted(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

/// Reads a file with hashes.
pub fn read(path: &Path) -> Result<Vec<HashedFile>, Error> {
    let bytes = registry::file::read(path, HASHES)?;
    let begin = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if begin != SCHEMA.as_bytes() {
        let begin = shown(&String::from_utf8_lossy(&begin[..begin.len().min(80)]));
        return Err(Error::Schema { file: path.to_owned(), found: begin });
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged(path, "it is not UTF-8"))?;
    let last = text.rfind("\nend ").ok_or_else(|| damaged(path, "its last line is missing"))? + 1;
    let (body, end) = text.split_at(last);
    if end != format!("end {:016x}\n", XxHash3_64::oneshot(body.as_bytes())) {
        return Err(damaged(path, "its last line is not the hash of the lines before"));
    }
    let mut files: Vec<HashedFile> = Vec::new();
    for line in body.lines().skip(1) {
        if let Some(declared) = line.strip_prefix("file ") {
            files.push(file_line(declared).ok_or_else(|| wrong_line(path, line))?);
            continue;
        }
        let file = files.last_mut().ok_or_else(|| wrong_line(path, line))?;
        let range = range_line(line).ok_or_else(|| wrong_line(path, line))?;
        let begin = file.ranges.last().map_or(0, |before| before.offset + before.len);
        let end = range.offset.checked_add(range.len).filter(|end| *end <= file.len);
        if range.offset < begin || end.is_none() {
            return Err(wrong_line(path, line));
        }
        file.ranges.push(range);
    }
    Ok(files)
}

/// Returns the error for a file of hashes that was changed.
fn damaged(file: &Path, what: &str) -> Error {
    Error::Damaged { file: file.to_owned(), what: what.to_owned() }
}

/// Returns the error for a line that is no line of a file of hashes.
fn wrong_line(file: &Path, line: &str) -> Error {
    damaged(file, &format!("`{}` is no line of it", shown(line)))
}

fn file_line(line: &str) -> Option<HashedFile> {
    let (len, name) = line.split_once(' ')?;
    let name: String = serde_json::from_str(name).ok()?;
    let is_inside = Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
    let is_named = is_inside && !name.is_empty() && !name.contains('\0');
    is_named.then_some(HashedFile { name, len: len.parse().ok()?, ranges: Vec::new() })
}

fn range_line(line: &str) -> Option<HashedRange> {
    let mut words = line.splitn(5, ' ');
    let offset: u64 = words.next()?.parse().ok()?;
    let len: u64 = words.next()?.parse().ok()?;
    let piece: u64 = words.next()?.parse().ok()?;
    let hash = u64::from_str_radix(words.next()?, 16).ok()?;
    let name = serde_json::from_str(words.next()?).ok()?;
    (piece > 0 || len == 0).then_some(HashedRange { name, offset, len, piece, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, bytes: &[u8], (offset, len): (usize, usize), piece: usize) -> HashedRange {
        let hash = hash(&bytes[offset..offset + len], piece, 0);
        let offset = offset as u64;
        let len = len as u64;
        let piece = piece as u64;
        HashedRange { name: name.to_owned(), offset, len, piece, hash }
    }

    fn bytes() -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..1000_u32).map(|n| (n * n % 251) as u8).collect();
        bytes[100..128].fill(0);
        bytes
    }

    fn hashed(name: &str, bytes: &[u8]) -> HashedFile {
        let ranges = vec![
            range(HEADER, bytes, (0, 100), 100),
            range("a \"b\"\n", bytes, (128, 600), 36),
            range("c", bytes, (728, 272), 17),
        ];
        HashedFile { name: name.to_owned(), len: bytes.len() as u64, ranges }
    }

    #[test]
    fn parts_add_up_and_exchanged_pieces_do_not() {
        let bytes = bytes();
        let hash_of_all = hash(&bytes, 36, 0);
        for cut in [36, 360, 972] {
            let (begin, end) = bytes.split_at(cut);
            let sum = hash(begin, 36, 0).wrapping_add(hash(end, 36, cut as u64 / 36));
            assert_eq!(sum, hash_of_all, "{cut}");
        }
        let mut turned = bytes.clone();
        turned[..72].rotate_left(36);
        assert_ne!(hash(&turned, 36, 0), hash_of_all);
    }

    #[test]
    fn every_changed_bit_of_a_file_is_found_with_its_range() {
        let dir = tempfile::tempdir().unwrap();
        let sound = bytes();
        let path = dir.path().join("m");
        let hashes = dir.path().join("m.hashes");
        fs_err::write(&path, &sound).unwrap();
        fs_err::write(&hashes, text(&[hashed("m", &sound)])).unwrap();
        let files = read(&hashes).unwrap();
        assert_eq!(files, [hashed("m", &sound)]);
        assert_eq!(files[0].check(dir.path()).unwrap(), []);
        for at in (0..sound.len()).step_by(7) {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            fs_err::write(&path, &bytes).unwrap();
            let damage = files[0].check(dir.path()).unwrap();
            assert_eq!(damage.len(), 1, "{at}: {damage:?}");
            assert_eq!(matches!(damage[0], Damage::Padding { .. }), (100..128).contains(&at));
        }
        fs_err::write(&path, &sound[..999]).unwrap();
        assert!(matches!(files[0].check(dir.path()).unwrap()[..], [Damage::Length { .. }]));
        fs_err::remove_file(&path).unwrap();
        assert!(matches!(files[0].check(dir.path()).unwrap()[..], [Damage::Missing { .. }]));
    }

    #[test]
    fn damaged_hashes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.hashes");
        let sound = text(&[hashed("m", &bytes())]).into_bytes();
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            fs_err::write(&path, &bytes).unwrap();
            assert!(read(&path).is_err(), "{at}");
        }
        let lines =
            ["0 1 1 0 \"x\"", "file 1 \"../x\"", "file 1 \"/x\"", "file 2 \"x\"\n1 2 1 0 \"y\""];
        for lines in lines.iter().chain(&["file 2 \"x\"\n1 1 0 0 \"y\"", "file 1 \"\"", "none"]) {
            let body = format!("{SCHEMA}\n{lines}\n");
            let end = XxHash3_64::oneshot(body.as_bytes());
            fs_err::write(&path, format!("{body}end {end:016x}\n")).unwrap();
            let error = read(&path).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{lines}");
            if lines.starts_with("file 1") {
                assert!(error.to_string().contains("`file 1 "), "{error}");
            }
        }
    }
}
