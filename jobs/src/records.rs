//! Records of finished pieces: a small file for each, in a folder that all machines share.
//!
//! A record names the files of its piece with their sizes and hashes, and fingerprints of the inputs. A piece is made if all
//! of that still holds.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use registry::file;
use serde::{Deserialize, Serialize};

use crate::division::DividedCommand;
use crate::error::{Error, StepContext as _, bail, ensure};
use crate::inputs;
use crate::words::without_dots;

const SCHEMA: &str = "onboard-jobs/1";
/// File that names the division before a piece is made.
const DIVISION: &str = "division.json";

/// Record of a division, and of a finished piece.
#[derive(Debug, Serialize, Deserialize)]
struct PieceRecord {
    schema: String,
    /// Hash of the command and of the number of pieces.
    identity: String,
    /// Number of the piece; 0 for the whole division.
    piece: usize,
    of: usize,
    command: Vec<String>,
    /// Fingerprints of the inputs by path.
    inputs: BTreeMap<String, String>,
    files: Vec<ProductFile>,
}

/// File that a piece has made.
#[derive(Debug, Serialize, Deserialize)]
struct ProductFile {
    path: PathBuf,
    bytes: u64,
    sha256: String,
}

/// State of a piece.
#[derive(Debug)]
pub(crate) enum PieceState {
    /// Its files are as they were written, and its inputs have not changed.
    Made,
    /// Nothing is recorded.
    Unmade,
    /// A recorded piece has to be made again: the reason, and the files that are removed for it.
    Spoiled(String, Vec<PathBuf>),
}

/// Piece that is left, with the reason if it was made before.
pub type UnmadePiece = (usize, Option<String>);

impl DividedCommand {
    fn record(&self, number: usize) -> PathBuf {
        self.state.join(format!("piece-{number}-of-{}.json", self.count))
    }

    /// Returns fingerprints of the inputs as they are now.
    pub(crate) fn inputs(&self) -> Result<BTreeMap<String, String>, Error> {
        inputs::fingerprints(&self.reads)
    }

    /// Claims the folder of records for this division before anything is computed. Returns true if it was
    /// not claimed before.
    pub(crate) fn begin(&self) -> Result<bool, Error> {
        self.refuse_foreign()?;
        let path = self.state.join(DIVISION);
        let new = !path.exists();
        // Written each time, which shows that records can be written.
        self.write_record(&path, 0, BTreeMap::new(), Vec::new())
            .with_context(|| format!("no record can be kept in `{}`", self.state.display()))?;
        self.refuse_foreign()?;
        Ok(new)
    }

    /// Gives up a claim if no piece was made under it, so that a mistyped command can be corrected.
    pub(crate) fn give_up(&self) {
        if !(1..=self.count).any(|number| self.record(number).exists()) {
            fs_err::remove_file(self.state.join(DIVISION)).ok();
            // Removes an empty folder only.
            fs_err::remove_dir(&self.state).ok();
        }
    }

    /// Returns the state of a piece with these inputs. A record of another command is an error.
    pub(crate) fn state_of(
        &self,
        number: usize,
        inputs: &BTreeMap<String, String>,
    ) -> Result<PieceState, Error> {
        let Some(record) = self.read_record(&self.record(number), number)? else {
            return Ok(PieceState::Unmade);
        };
        let changed = record
            .inputs
            .keys()
            .chain(inputs.keys())
            .find(|path| record.inputs.get(*path) != inputs.get(*path));
        if let Some(path) = changed {
            let why = format!("`{path}` has changed since it was made");
            let files = record.files.iter().map(|file| file.path.clone()).collect();
            return Ok(PieceState::Spoiled(why, files));
        }
        let mut why = None;
        let mut spoiled = Vec::new();
        for file in &record.files {
            if let Some(fault) = file.fault()? {
                why.get_or_insert(fault);
                spoiled.push(file.path.clone());
            }
        }
        Ok(why.map_or(PieceState::Made, |why| PieceState::Spoiled(why, spoiled)))
    }

    /// Records a finished piece.
    pub(crate) fn note_made(
        &self,
        number: usize,
        inputs: BTreeMap<String, String>,
        products: Vec<PathBuf>,
    ) -> Result<(), Error> {
        // Pieces of another division may have begun meanwhile.
        self.refuse_foreign()?;
        let mut files = Vec::with_capacity(products.len());
        for path in products {
            let path = PathBuf::from(without_dots(&path.display().to_string()));
            self.refuse_outside(&path)?;
            let (bytes, sha256) = inputs::digest(&path)
                .with_context(|| format!("`{}` was written and cannot be read", path.display()))?;
            files.push(ProductFile { path, bytes, sha256 });
        }
        self.write_record(&self.record(number), number, inputs, files)
    }

    /// Returns the pieces that are left. Records of other divisions are an error.
    pub fn left(&self) -> Result<Vec<UnmadePiece>, Error> {
        self.refuse_foreign()?;
        let inputs = self.inputs()?;
        let mut left = Vec::new();
        for number in 1..=self.count {
            match self.state_of(number, &inputs)? {
                PieceState::Made => {}
                PieceState::Unmade => left.push((number, None)),
                PieceState::Spoiled(why, _) => left.push((number, Some(why))),
            }
        }
        Ok(left)
    }

    fn write_record(
        &self,
        path: &Path,
        piece: usize,
        inputs: BTreeMap<String, String>,
        files: Vec<ProductFile>,
    ) -> Result<(), Error> {
        let record = PieceRecord {
            schema: SCHEMA.to_owned(),
            identity: self.identity(),
            piece,
            of: self.count,
            command: self.words.clone(),
            inputs,
            files,
        };
        Ok((self.host.write)(path, format!("{}\n", serde_json::to_string(&record)?).as_bytes())?)
    }

    /// Reads a record of this division; none if it is not there.
    fn read_record(&self, path: &Path, number: usize) -> Result<Option<PieceRecord>, Error> {
        let place = path.display();
        let bytes = match file::read(path, file::MANIFEST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("`{place}` cannot be read")),
        };
        let record: PieceRecord = serde_json::from_slice(&bytes)
            .with_context(|| format!("`{place}` is no record of a piece; remove it"))?;
        ensure!(
            record.schema == SCHEMA,
            "`{place}` has the schema `{}`; expected `{SCHEMA}`",
            record.schema
        );
        let of = if record.of == self.count {
            String::new()
        } else {
            format!(" into {} pieces, not {}", record.of, self.count)
        };
        ensure!(
            record.identity == self.identity(),
            "`{place}` is of another command or division: `{}`{of}. Give that command, remove the folder, or name \
             another with the option `state`",
            record.command.join(" ")
        );
        ensure!(
            (record.piece, record.of) == (number, self.count),
            "`{place}` is the record of piece {} of {}, a copy under another name; remove it",
            record.piece,
            record.of
        );
        for file in &record.files {
            self.refuse_outside(&file.path).with_context(|| format!("`{place}`"))?;
        }
        Ok(Some(record))
    }

    /// Refuses a path that cannot be a product: its name does not begin with that of the output.
    fn refuse_outside(&self, path: &Path) -> Result<(), Error> {
        let output = without_dots(&self.output);
        let begin = output.strip_suffix(".gguf").unwrap_or(&output);
        let name = path.to_str().and_then(|name| name.strip_prefix(begin));
        let inside = name.is_some_and(|tail| {
            Path::new(tail).components().all(|part| part != Component::ParentDir)
        });
        ensure!(
            inside,
            "`{}` is no file of this command; expected a name that begins with `{begin}`",
            path.display()
        );
        Ok(())
    }

    fn refuse_foreign(&self) -> Result<(), Error> {
        let entries = match fs_err::read_dir(&self.state) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                let place = self.state.display();
                return Err(error).with_context(|| {
                    format!("`{place}` cannot be read; expected a folder of records")
                });
            }
        };
        self.read_record(&self.state.join(DIVISION), 0)?;
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let inner = name.strip_prefix("piece-").and_then(|tail| tail.strip_suffix(".json"));
            let Some((number, count)) = inner.and_then(|inner| inner.split_once("-of-")) else {
                continue;
            };
            let place = self.state.join(&name);
            if count != self.count.to_string() {
                bail!(
                    "`{}` is of a division into {count} pieces; expected {}. Remove the folder, or \
                     name another with the option `state`",
                    place.display(),
                    self.count
                );
            }
            ensure!(
                number.parse().is_ok_and(|number| (1..=self.count).contains(&number)),
                "`{}` is no record of this division, whose pieces are 1 to {}; remove it",
                place.display(),
                self.count
            );
        }
        Ok(())
    }
}

impl ProductFile {
    /// Describes the difference from the file that was written, if there is one.
    fn fault(&self) -> Result<Option<String>, Error> {
        let place = self.path.display();
        let bytes = match fs_err::metadata(&self.path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Some(format!("`{place}` is gone")));
            }
            Err(error) => return Err(error).with_context(|| format!("`{place}` cannot be read")),
        };
        if bytes != self.bytes {
            let written = self.bytes;
            return Ok(Some(format!("`{place}` has {bytes} bytes; {written} were written")));
        }
        let (_, sha256) = inputs::digest(&self.path)?;
        let same = sha256 == self.sha256;
        Ok((!same).then(|| format!("`{place}` is damaged: its bytes are not those written")))
    }
}

/// Returns the numbers of the pieces that are left.
pub fn unmade_numbers(left: &[UnmadePiece]) -> Vec<usize> {
    left.iter().map(|(number, _)| *number).collect()
}

/// Returns a line for each piece that has to be made again, with a line break before it.
pub fn unmade_reasons(left: &[UnmadePiece]) -> String {
    let lines = left.iter().filter_map(|(number, why)| {
        Some(format!("\npiece {number} has to be made again: {}", why.as_ref()?))
    });
    lines.collect::<Vec<_>>().concat()
}

/// Shows numbers as ranges: `1, 3-5`.
pub fn number_ranges(numbers: &[usize]) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut remaining = numbers;
    while let Some(&first) = remaining.first() {
        let len =
            remaining.iter().enumerate().take_while(|(n, number)| first + n == **number).count();
        shown.push(match len {
            1 => first.to_string(),
            _ => format!("{first}-{}", first + len - 1),
        });
        remaining = &remaining[len..];
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_ranges() {
        for (numbers, text) in
            [(&[][..], ""), (&[3], "3"), (&[1, 2], "1-2"), (&[1, 3, 4, 5, 9], "1, 3-5, 9")]
        {
            assert_eq!(number_ranges(numbers), text);
        }
    }
}
